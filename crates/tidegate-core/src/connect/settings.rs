//! Owns the environment's settings for the database: its address, its login, and which certificates are
//! trusted.

use tokio_postgres::Config;

use super::cloud::cloud;
use super::login::{Login, TlsMode};
use super::secret::{DatabasePlace, DatabaseSecret};
use super::source::Source;
use super::tls::Trust;
use super::token::TokenLogin;
use crate::config::{Lookup, read, read_file};
use crate::error::{Error, Result};

/// Reads where logins come from: `DATABASE_URL` or `DATABASE_SECRET_ID`, and `DATABASE_AUTH`. Instead of a
/// secret, `DATABASE_SECRET_ID` may name a user of IAM database authentication by its ARN. `trust` is what
/// [`database_ca`] says.
///
/// # Errors
/// [`Error::Config`] names the variable and what is allowed.
pub(super) fn source(lookup: Lookup<'_>, trust: Option<Trust>) -> Result<Source> {
    let refused = |text: &str| Err(Error::Config(text.to_owned()));
    let iam = match lookup("DATABASE_AUTH").as_deref() {
        None | Some("password") => false,
        Some("iam") => true,
        Some(other) => {
            return refused(&format!(
                "DATABASE_AUTH: must be password or iam, got {other:?}"
            ));
        }
    };
    match (lookup("DATABASE_URL"), lookup("DATABASE_SECRET_ID")) {
        (Some(_), Some(_)) => {
            refused("DATABASE_URL and DATABASE_SECRET_ID are both set; set only one of them")
        }
        (None, Some(id)) if iam && user_in(&id).is_none() => refused(
            "DATABASE_AUTH: iam must be used with DATABASE_URL, not with a secret in DATABASE_SECRET_ID",
        ),
        (Some(url), None) => {
            let login = Login::from_url(&url, &trust.unwrap_or_else(Trust::system))?;
            if iam {
                return Ok(TokenLogin::new(login)?.source(cloud("DATABASE_AUTH: iam")?));
            }
            Ok(Source::fixed(login))
        }
        (None, Some(id)) => {
            let place = DatabasePlace {
                host: lookup("DATABASE_HOST"),
                port: read(lookup, "DATABASE_PORT", None, &[Some(1)..=Some(65535)])?,
                name: lookup("DATABASE_NAME"),
            };
            if let Some(user) = user_in(&id) {
                let login = TokenLogin::new(place.login_of(user, trust)?)?;
                return Ok(login.source(cloud("DATABASE_SECRET_ID")?));
            }
            let cloud = cloud("DATABASE_SECRET_ID")?;
            Ok(DatabaseSecret::new(id, place, trust).source(cloud))
        }
        (None, None) => refused(
            "neither DATABASE_URL nor DATABASE_SECRET_ID is set; a URL such as postgres://user:password@host/database, or the id of a secret, is needed",
        ),
    }
}

/// Returns the user in the ARN of a database user, as a policy for `rds-db:connect` has it:
/// `arn:aws:rds-db:REGION:ACCOUNT:dbuser:DATABASE/USER`. `None` for the name of a secret.
fn user_in(arn: &str) -> Option<&str> {
    let (_, user) = arn.split_once(":dbuser:")?.1.split_once('/')?;
    Some(user)
}

impl DatabasePlace {
    /// Returns the login of this user, without a password.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable that is missing.
    fn login_of(self, user: &str, trust: Option<Trust>) -> Result<Login> {
        let missing = |name| Error::Config(format!("{name}: is needed with a database user"));
        let mut config = Config::new();
        config
            .user(user)
            .host(self.host.ok_or_else(|| missing("DATABASE_HOST"))?)
            .dbname(self.name.ok_or_else(|| missing("DATABASE_NAME"))?)
            .port(self.port.unwrap_or(5432));
        let trust = trust.unwrap_or_else(Trust::system);
        Ok(Login::new(config, TlsMode::VerifyFull, &trust))
    }
}

/// Returns the certificates to trust instead of the system's, in PEM, and the variable that gives them:
/// `DATABASE_CA_FILE` or `DATABASE_CA_PEM`.
///
/// # Errors
/// [`Error::Config`] when both are set or the file cannot be read.
pub(super) fn database_ca(lookup: Lookup<'_>) -> Result<Option<(&'static str, Vec<u8>)>> {
    let (file, text) = ("DATABASE_CA_FILE", "DATABASE_CA_PEM");
    match (lookup(file), lookup(text)) {
        (None, None) => Ok(None),
        (Some(path), None) => Ok(Some((file, read_file(file, &path)?))),
        (None, Some(pem)) => Ok(Some((text, pem.into_bytes()))),
        (Some(_), Some(_)) => Err(Error::Config(format!(
            "{file} and {text} are both set; set only one of them"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f7_the_database_is_found_in_one_way_and_contradictions_are_refused_by_name() {
        let url = ("DATABASE_URL", "postgres://u@h/canary");
        let secret = ("DATABASE_SECRET_ID", "night/db");
        let user = ("DATABASE_SECRET_ID", "arn:aws:rds-db:r:1:dbuser:db-A/night");
        let refused = |settings: &[(&str, &str)]| {
            let lookup = |name: &str| {
                let found = settings.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let error = source(&lookup, None).err().map(|error| error.to_string());
            error.or_else(|| database_ca(&lookup).err().map(|error| error.to_string()))
        };
        assert_eq!(refused(&[url]), None);
        for needs_cloud in [
            [secret, ("DATABASE_PORT", "6432")],
            [url, ("DATABASE_AUTH", "iam")],
        ] {
            assert!(refused(&needs_cloud).unwrap().contains("needs AWS"));
        }
        for (settings, named) in [
            (&[][..], ["DATABASE_URL", "DATABASE_SECRET_ID"]),
            (&[url, secret], ["DATABASE_URL", "DATABASE_SECRET_ID"]),
            (
                &[secret, ("DATABASE_AUTH", "iam")],
                ["DATABASE_AUTH", "DATABASE_SECRET_ID"],
            ),
            (
                &[user, ("DATABASE_HOST", "h")],
                ["DATABASE_NAME", "database user"],
            ),
            (
                &[user, ("DATABASE_NAME", "d")],
                ["DATABASE_HOST", "database user"],
            ),
            (
                &[url, ("DATABASE_AUTH", "kerberos")],
                ["DATABASE_AUTH", "password or iam"],
            ),
            (
                &[secret, ("DATABASE_PORT", "0")],
                ["DATABASE_PORT", "1 to 65535"],
            ),
            (
                &[url, ("DATABASE_CA_FILE", "/nowhere.pem")],
                ["DATABASE_CA_FILE", "/nowhere.pem"],
            ),
            (
                &[
                    url,
                    ("DATABASE_CA_FILE", "/x"),
                    ("DATABASE_CA_PEM", "canary"),
                ],
                ["DATABASE_CA_FILE", "DATABASE_CA_PEM"],
            ),
        ] {
            let error = refused(settings).unwrap();
            assert!(named.iter().all(|name| error.contains(name)), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
