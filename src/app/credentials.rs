//! Owns how we authenticate to an outside service: a token in a header, or a client certificate. It knows no
//! particular service.
//!
//! A token is stored in a secret of Secrets Manager or in a file. It is never a setting or part of a URL,
//! because everyone who can read the deployment would see it. The token is read at the first call, and again
//! when the service refuses it, so a changed token needs no restart. No message quotes the token.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Identity;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use serde_json::Value;
use tidegate::config::read_secret_file;
use tidegate::{Error, Lookup};
use tidegate_core::connect::{SecretReader, secret_reader};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// After reading a token again without finding a change, wait this long before the next read.
const REREAD: Duration = Duration::from_secs(10);

/// Suffixes of the settings, after the service's own prefix.
const SECRET_ID: &str = "_AUTH_SECRET_ID";
const FILE: &str = "_AUTH_FILE";
const HEADER: &str = "_AUTH_HEADER";
const CERTIFICATE: &str = "_CLIENT_CERT_FILE";

/// The credentials for one service. Clones share what has been read.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    token: Option<Arc<Token>>,
    certificate: Option<Identity>,
}

/// A token: where it is stored, and how it is sent.
struct Token {
    /// The setting and where it says that the token is.
    place: String,
    read: SecretReader,
    /// A header that gets the stored text unchanged. Without one, the token is sent as `Bearer`.
    header: Option<HeaderName>,
    kept: Mutex<Option<Kept>>,
}

struct Kept {
    value: HeaderValue,
    /// When a repeated read found no change.
    unchanged: Option<Instant>,
}

impl Debug for Credentials {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// Reads `<prefix>_AUTH_SECRET_ID` or `<prefix>_AUTH_FILE`, where the token is stored.
    /// `<prefix>_AUTH_HEADER` names a header for the bare token; without it, the token is sent as
    /// `Authorization: Bearer`. `<prefix>_CLIENT_CERT_FILE` names a file with certificates and their private
    /// key in PEM.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(super) fn from_settings(prefix: &str, lookup: Lookup<'_>) -> Result<Self, Error> {
        let read = |suffix: &str| {
            let variable = format!("{prefix}{suffix}");
            let value = lookup(&variable)?;
            Some((variable, value))
        };
        let certificate = read(CERTIFICATE).map(|(variable, path)| identity(&variable, &path));
        Ok(Self {
            token: token(prefix, read)?.map(Arc::new),
            certificate: certificate.transpose()?,
        })
    }

    pub(super) fn certificate(&self) -> Option<&Identity> {
        self.certificate.as_ref()
    }

    /// Returns the header to send, if there is a token. After a refused one, the token is read again, and
    /// returned if it has changed since.
    ///
    /// # Errors
    /// If the token cannot be read. The error names the secret or file.
    pub(super) async fn header(
        &self,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, Error> {
        let Some(token) = &self.token else {
            return Ok(None);
        };
        let mut kept = token.kept.lock().await;
        let value = match &*kept {
            // Another call may have been refused earlier and already have read the new token.
            Some(kept) if refused != Some(&kept.value) => kept.value.clone(),
            Some(kept) if kept.unchanged.is_some_and(|at| at.elapsed() < REREAD) => {
                return Ok(None);
            }
            _ => {
                let value = token.read().await?;
                let unchanged = (refused == Some(&value)).then(Instant::now);
                kept.insert(Kept { value, unchanged }).value.clone()
            }
        };
        let header = token.header.clone().unwrap_or(AUTHORIZATION);
        Ok((refused != Some(&value)).then_some((header, value)))
    }
}

impl Token {
    async fn read(&self) -> Result<HeaderValue, Error> {
        let text = (self.read)().await?;
        let sent = token_of(&text).map(|token| match self.header {
            Some(_) => token,
            None => format!("Bearer {token}"),
        });
        let value = sent.and_then(|sent| HeaderValue::try_from(sent).ok());
        let mut value = value.ok_or_else(|| {
            let must = "must be a token, or a JSON object with the field \"token\"";
            Error::Secret(format!("{}: {must}", self.place))
        })?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Returns the text itself. If the text is a JSON object, as the console of Secrets Manager writes it,
/// returns its field `token`.
fn token_of(text: &str) -> Option<String> {
    let text = text.trim();
    let token = match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => fields.get("token")?.as_str()?.trim().to_owned(),
        _ => text.to_owned(),
    };
    Some(token).filter(|token| !token.is_empty())
}

fn token(
    prefix: &str,
    read: impl Fn(&str) -> Option<(String, String)>,
) -> Result<Option<Token>, Error> {
    let refused = |why: String| Err(Error::Config(why));
    let (id, file) = (format!("{prefix}{SECRET_ID}"), format!("{prefix}{FILE}"));
    let header = read(HEADER);
    let (variable, place) = match (read(SECRET_ID), read(FILE), &header) {
        (Some(_), Some(_), _) => {
            return refused(format!(
                "{id} and {file} are both set; set only one of them"
            ));
        }
        (Some(secret), None, _) => secret,
        (None, Some((variable, path)), _) => (variable, format!("file:{path}")),
        (None, None, Some((variable, _))) => {
            return refused(format!(
                "{variable}: must be set with {id} or {file}, got neither"
            ));
        }
        (None, None, None) => return Ok(None),
    };
    let header = header.map(|(variable, name)| {
        let must = "must be the name of an HTTP header";
        let header = HeaderName::try_from(&name);
        header.map_err(|_| Error::Config(format!("{variable}: {must}, got {name:?}")))
    });
    Ok(Some(Token {
        read: secret_reader(&variable, place.clone())?,
        place: format!("{variable}: {place}"),
        header: header.transpose()?,
        kept: Mutex::default(),
    }))
}

fn identity(variable: &str, path: &str) -> Result<Identity, Error> {
    const KEY: &str = "-----BEGIN PRIVATE KEY-----";
    let refused = |why: String| Error::Config(format!("{variable}: must be a file {why}"));
    let pem = read_secret_file(path);
    let pem = pem.map_err(|why| refused(format!("that can be read: {why}")))?;
    let key = pem.find(KEY).map(|start| &pem[start..]);
    let identity =
        key.and_then(|key| Identity::from_pkcs8_pem(pem.as_bytes(), key.as_bytes()).ok());
    let must = format!("with certificates and their private key in PEM ({KEY}); {path} is not one");
    identity.ok_or_else(|| refused(must))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(settings: &[(&str, &str)]) -> Result<Credentials, Error> {
        Credentials::from_settings("ARCHIVE", &|name| {
            let mut set = settings.iter().filter(|(_, value)| !value.is_empty());
            let found = set.find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn file(text: &str) -> (tempfile::NamedTempFile, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        (file, path)
    }

    #[tokio::test]
    async fn a_token_is_sent_as_bearer_or_bare_in_a_header_of_its_own() {
        for (text, name, header, value) in [
            ("canary\n", "", "authorization", "Bearer canary"),
            (
                "{\"token\": \"canary\"}",
                "",
                "authorization",
                "Bearer canary",
            ),
            ("canary", "X-Api-Key", "x-api-key", "canary"),
            (
                "Basic canary",
                "Authorization",
                "authorization",
                "Basic canary",
            ),
        ] {
            let (_file, path) = file(text);
            let settings = [("ARCHIVE_AUTH_FILE", &*path), ("ARCHIVE_AUTH_HEADER", name)];
            let credentials = credentials(&settings).unwrap();
            let (sent, token) = credentials.header(None).await.unwrap().unwrap();
            assert_eq!((sent.as_str(), token.to_str().unwrap()), (header, value));
            assert!(!format!("{credentials:?} {token:?}").contains("canary"));
        }
        assert!(
            credentials(&[])
                .unwrap()
                .header(None)
                .await
                .unwrap()
                .is_none()
        );
    }

    #[tokio::test]
    async fn a_token_is_read_again_when_it_was_refused_and_not_all_the_time() {
        let (_file, path) = file("one");
        let credentials = credentials(&[("ARCHIVE_AUTH_FILE", &path)]).unwrap();
        let (_, one) = credentials.header(None).await.unwrap().unwrap();
        std::fs::write(&path, "two").unwrap();
        let (_, two) = credentials.header(Some(&one)).await.unwrap().unwrap();
        assert_eq!(two, "Bearer two");
        // Another call was sent with the old token.
        let (_, again) = credentials.header(Some(&one)).await.unwrap().unwrap();
        assert_eq!(again, "Bearer two");
        assert!(credentials.header(Some(&two)).await.unwrap().is_none());
        std::fs::write(&path, "three").unwrap();
        assert!(
            credentials.header(Some(&two)).await.unwrap().is_none(),
            "too soon"
        );
    }

    #[tokio::test]
    async fn what_is_no_token_is_named_and_not_quoted() {
        for text in [
            "",
            "{\"canary\": 1}",
            "{\"token\": [\"canary\"]}",
            "can\nary",
        ] {
            let (_file, path) = file(text);
            let credentials = credentials(&[("ARCHIVE_AUTH_FILE", &path)]).unwrap();
            let error = credentials.header(None).await.unwrap_err().to_string();
            assert!(error.contains("ARCHIVE_AUTH_FILE"), "{error}");
            assert!(
                !error.contains("canary") && !error.contains("can\nary"),
                "{error}"
            );
        }
        let credentials = credentials(&[("ARCHIVE_AUTH_FILE", "/nowhere")]).unwrap();
        let error = credentials.header(None).await.unwrap_err().to_string();
        assert!(error.contains("ARCHIVE_AUTH_FILE: /nowhere"), "{error}");
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let (_file, broken) =
            file("-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----\n");
        for (settings, named) in [
            (
                &[("ARCHIVE_AUTH_FILE", "/f"), ("ARCHIVE_AUTH_SECRET_ID", "s")][..],
                "ARCHIVE_AUTH_SECRET_ID and ARCHIVE_AUTH_FILE",
            ),
            (
                &[("ARCHIVE_AUTH_FILE", "/f"), ("ARCHIVE_AUTH_HEADER", "a b")],
                "ARCHIVE_AUTH_HEADER: must be the name",
            ),
            (
                &[("ARCHIVE_AUTH_HEADER", "X-Api-Key")],
                "ARCHIVE_AUTH_HEADER: must be set with",
            ),
            (
                &[("ARCHIVE_CLIENT_CERT_FILE", "/nowhere")],
                "ARCHIVE_CLIENT_CERT_FILE: must be a file",
            ),
            (
                &[("ARCHIVE_CLIENT_CERT_FILE", &broken)],
                "ARCHIVE_CLIENT_CERT_FILE: must be a file with certificates",
            ),
        ] {
            let error = credentials(settings).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn a_certificate_and_its_key_are_one_file() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        for text in [
            certificate.pem() + &key.serialize_pem(),
            key.serialize_pem() + &certificate.pem(),
        ] {
            let (_file, path) = file(&text);
            let credentials = credentials(&[("ARCHIVE_CLIENT_CERT_FILE", &path)]).unwrap();
            assert!(credentials.certificate().is_some());
        }
    }
}
