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
use tokio::sync::Mutex;
use tokio::time::Instant;

use tidegate::Error;
use tidegate::connect::SecretText;

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
    keeper: Keeper,
    header: HeaderName,
    /// Whether to send it as `Bearer`. A header of its own gets the stored text unchanged.
    bearer: bool,
    kept: Mutex<Option<Kept>>,
}

enum Keeper {
    Secret(Box<SecretText>),
    File { variable: String, path: String },
}

struct Kept {
    value: HeaderValue,
    /// When the last repeated read found no change.
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
    pub(super) fn from_settings(
        prefix: &str,
        setting: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let read = |suffix: &str| {
            let variable = format!("{prefix}{suffix}");
            let value = setting(&variable).filter(|text| !text.is_empty())?;
            Some((variable, value))
        };
        Ok(Self {
            token: token(prefix, read)?.map(Arc::new),
            certificate: read(CERTIFICATE)
                .map(|(variable, path)| identity(&variable, &path))
                .transpose()?,
        })
    }

    /// Returns the client certificate, if there is one.
    pub(super) fn certificate(&self) -> Option<&Identity> {
        self.certificate.as_ref()
    }

    /// Returns the header to send, if there is a token.
    ///
    /// # Errors
    /// If the token cannot be read. The error names the secret or file.
    pub(super) async fn header(&self) -> Result<Option<(HeaderName, HeaderValue)>, Error> {
        let Some(token) = &self.token else {
            return Ok(None);
        };
        let mut kept = token.kept.lock().await;
        let value = match &*kept {
            Some(kept) => kept.value.clone(),
            None => kept.insert(Kept::new(token.read().await?)).value.clone(),
        };
        Ok(Some((token.header.clone(), value)))
    }

    /// Returns the header to send instead of a refused one, if the token has changed since.
    ///
    /// # Errors
    /// As [`Credentials::header`].
    pub(super) async fn changed(
        &self,
        refused: &HeaderValue,
    ) -> Result<Option<(HeaderName, HeaderValue)>, Error> {
        let Some(token) = &self.token else {
            return Ok(None);
        };
        let mut kept = token.kept.lock().await;
        let known = kept.as_ref().filter(|kept| kept.value == *refused);
        let in_vain = known.and_then(|kept| kept.unchanged);
        if in_vain.is_some_and(|read| read.elapsed() < REREAD) {
            return Ok(None);
        }
        // Another call may have been refused earlier and already have read the new token.
        if kept.is_none() || known.is_some() {
            *kept = Some(Kept::new(token.read().await?));
        }
        let now = kept.as_mut().filter(|kept| kept.value == *refused);
        if let Some(unchanged) = now {
            unchanged.unchanged = Some(Instant::now());
            return Ok(None);
        }
        let value = kept.as_ref().map(|kept| kept.value.clone());
        Ok(value.map(|value| (token.header.clone(), value)))
    }
}

impl Kept {
    fn new(value: HeaderValue) -> Self {
        Self {
            value,
            unchanged: None,
        }
    }
}

impl Token {
    async fn read(&self) -> Result<HeaderValue, Error> {
        let (text, place) = match &self.keeper {
            Keeper::Secret(secret) => (secret.read().await?, format!("{secret:?}")),
            Keeper::File { variable, path } => {
                let read = tokio::fs::read_to_string(path).await;
                let why = |error| Error::Config(format!("{variable}: {path}: {error}"));
                (read.map_err(why)?, format!("{variable}: {path}"))
            }
        };
        let token = token_of(&text);
        let sent = match (&token, self.bearer) {
            (Some(token), true) => HeaderValue::try_from(format!("Bearer {token}")).ok(),
            (Some(token), false) => HeaderValue::try_from(token).ok(),
            (None, _) => None,
        };
        let mut value = sent.ok_or_else(|| {
            let must = "must be a token, or a JSON object with the field \"token\"";
            Error::Secret(format!("{place}: {must}"))
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
    let keeper = match (read(SECRET_ID), read(FILE)) {
        (Some(_), Some(_)) => {
            return Err(Error::Config(format!(
                "{prefix}{SECRET_ID} and {prefix}{FILE} are both set; set only one of them"
            )));
        }
        (Some((_, id)), None) => Some(Keeper::Secret(Box::new(SecretText::new(id)))),
        (None, Some((variable, path))) => Some(Keeper::File { variable, path }),
        (None, None) => None,
    };
    let named = read(HEADER);
    let Some(keeper) = keeper else {
        return match named {
            Some((variable, _)) => Err(Error::Config(format!(
                "{variable}: must be set with {prefix}{SECRET_ID} or {prefix}{FILE}, got neither"
            ))),
            None => Ok(None),
        };
    };
    let bearer = named.is_none();
    let header = match named {
        None => AUTHORIZATION,
        Some((variable, name)) => HeaderName::try_from(&name).map_err(|_| {
            Error::Config(format!(
                "{variable}: must be the name of an HTTP header, got {name:?}"
            ))
        })?,
    };
    Ok(Some(Token {
        keeper,
        header,
        bearer,
        kept: Mutex::default(),
    }))
}

fn identity(variable: &str, path: &str) -> Result<Identity, Error> {
    const KEY: &str = "-----BEGIN PRIVATE KEY-----";
    let pem = std::fs::read_to_string(path).map_err(|error| {
        Error::Config(format!(
            "{variable}: must be a file that can be read: {path}: {error}"
        ))
    })?;
    let key = pem.find(KEY).map(|start| &pem[start..]);
    key.and_then(|key| Identity::from_pkcs8_pem(pem.as_bytes(), key.as_bytes()).ok())
        .ok_or_else(|| {
            Error::Config(format!(
                "{variable}: must be a file with certificates and their private key in PEM ({KEY}); {path} is not one"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(settings: &[(&str, &str)]) -> Result<Credentials, Error> {
        Credentials::from_settings("ARCHIVE", |name| {
            let found = settings.iter().find(|(known, _)| *known == name);
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
            let (sent, token) = credentials.header().await.unwrap().unwrap();
            assert_eq!((sent.as_str(), token.to_str().unwrap()), (header, value));
            assert!(!format!("{credentials:?} {token:?}").contains("canary"));
        }
        assert!(credentials(&[]).unwrap().header().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_token_is_read_again_when_it_was_refused_and_not_all_the_time() {
        let (_file, path) = file("one");
        let credentials = credentials(&[("ARCHIVE_AUTH_FILE", &path)]).unwrap();
        let (_, one) = credentials.header().await.unwrap().unwrap();
        std::fs::write(&path, "two").unwrap();
        let (_, two) = credentials.changed(&one).await.unwrap().unwrap();
        assert_eq!(two, "Bearer two");
        // Another call was sent with the old token.
        let (_, again) = credentials.changed(&one).await.unwrap().unwrap();
        assert_eq!(again, "Bearer two");
        assert!(credentials.changed(&two).await.unwrap().is_none());
        std::fs::write(&path, "three").unwrap();
        assert!(
            credentials.changed(&two).await.unwrap().is_none(),
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
            let error = credentials.header().await.unwrap_err().to_string();
            assert!(error.contains("ARCHIVE_AUTH_FILE"), "{error}");
            assert!(
                !error.contains("canary") && !error.contains("can\nary"),
                "{error}"
            );
        }
        let credentials = credentials(&[("ARCHIVE_AUTH_FILE", "/nowhere")]).unwrap();
        let error = credentials.header().await.unwrap_err().to_string();
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
