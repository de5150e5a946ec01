//! Owns the environment's settings for the database: its address, its login, and which certificates are
//! trusted.

use crate::config::{Lookup, number, read_file};
use crate::error::Error;

/// How to find the database, and how to log in.
#[cfg_attr(
    not(feature = "aws"),
    expect(dead_code, reason = "without AWS two of them are refused")
)]
pub(super) enum DatabaseAccess {
    /// With `DATABASE_URL`.
    Url(String),
    /// With a secret of this id, `DATABASE_SECRET_ID`.
    Secret {
        /// A name or an ARN.
        id: String,
        /// What the secret may leave out.
        place: DatabasePlace,
    },
    /// With `DATABASE_URL` without a password; `DATABASE_AUTH=iam` creates one.
    Iam(String),
}

/// The address of the database, as far as `DATABASE_HOST`, `DATABASE_PORT` and `DATABASE_NAME` give it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct DatabasePlace {
    /// A host's name or address.
    pub host: Option<String>,
    /// 1 to 65535.
    pub port: Option<u16>,
    /// The database's name.
    pub name: Option<String>,
}

/// Reads how to find the database: `DATABASE_URL` or `DATABASE_SECRET_ID`, and `DATABASE_AUTH`.
///
/// # Errors
/// [`Error::Config`] names the variable and what is allowed.
pub(super) fn database_access(lookup: Lookup<'_>) -> Result<DatabaseAccess, Error> {
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
        (None, Some(_)) if iam => refused(
            "DATABASE_AUTH: iam must be used with DATABASE_URL, not with DATABASE_SECRET_ID",
        ),
        (Some(url), None) if iam => Ok(DatabaseAccess::Iam(url)),
        (Some(url), None) => Ok(DatabaseAccess::Url(url)),
        (None, Some(id)) => Ok(DatabaseAccess::Secret {
            id,
            place: DatabasePlace {
                host: lookup("DATABASE_HOST"),
                port: lookup("DATABASE_PORT")
                    .map(|_| number(lookup, "DATABASE_PORT", 5432, &(1..=65535)))
                    .transpose()?,
                name: lookup("DATABASE_NAME"),
            },
        }),
        (None, None) => refused(
            "neither DATABASE_URL nor DATABASE_SECRET_ID is set; a URL such as postgres://user:password@host/database, or the id of a secret, is needed",
        ),
    }
}

/// Returns the certificates to trust instead of the system's, in PEM, and the variable that gives them:
/// `DATABASE_CA_FILE` or `DATABASE_CA_PEM`.
///
/// # Errors
/// [`Error::Config`] when both are set or the file cannot be read.
pub(super) fn database_ca(lookup: Lookup<'_>) -> Result<Option<(&'static str, Vec<u8>)>, Error> {
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
        let refused = |settings: &[(&str, &str)]| {
            let lookup = |name: &str| {
                let found = settings.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let error = database_access(&lookup)
                .err()
                .map(|error| error.to_string());
            error.or_else(|| database_ca(&lookup).err().map(|error| error.to_string()))
        };
        assert_eq!(refused(&[url]), None);
        assert_eq!(refused(&[secret, ("DATABASE_PORT", "6432")]), None);
        assert_eq!(refused(&[url, ("DATABASE_AUTH", "iam")]), None);
        for (settings, named) in [
            (&[][..], ["DATABASE_URL", "DATABASE_SECRET_ID"]),
            (&[url, secret], ["DATABASE_URL", "DATABASE_SECRET_ID"]),
            (
                &[secret, ("DATABASE_AUTH", "iam")],
                ["DATABASE_AUTH", "DATABASE_SECRET_ID"],
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
