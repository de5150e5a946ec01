//! Owns the settings: environment → validated values, each error naming the variable and what is
//! allowed. Command-line flags are parsed by the shell and win over these. It knows nothing of the
//! queue or of AWS.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::error::Error;

/// Looks a variable up; tests bring their own.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's environment.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The global attempt limit, if `TIDEGATE_MAX_ATTEMPTS` sets one (B6).
///
/// # Errors
/// [`Error::Config`] when it is not 1 to 1000.
pub fn max_attempts(lookup: Lookup<'_>) -> Result<Option<u16>, Error> {
    match lookup("TIDEGATE_MAX_ATTEMPTS") {
        None => Ok(None),
        Some(_) => number(lookup, "TIDEGATE_MAX_ATTEMPTS", 5, 1, 1000).map(Some),
    }
}

/// Who operates, for the audit: `TIDEGATE_ACTOR`, or the account's name in `USER`. A claim; what the
/// database knows for sure is its own user.
#[must_use]
pub fn actor(lookup: Lookup<'_>) -> Option<String> {
    lookup("TIDEGATE_ACTOR").or_else(|| lookup("USER"))
}

/// How the database is found, and as whom.
pub enum DatabaseAccess {
    /// By `DATABASE_URL`.
    Url(String),
    /// By a secret of this id, `DATABASE_SECRET_ID`.
    Secret {
        /// A name or an ARN.
        id: String,
        /// What the secret need not say.
        place: DatabasePlace,
    },
    /// By `DATABASE_URL` without a password; `DATABASE_AUTH=iam` makes one.
    Iam(String),
}

/// Where the database is, as far as `DATABASE_HOST`, `DATABASE_PORT` and `DATABASE_NAME` say.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DatabasePlace {
    /// A host's name or address.
    pub host: Option<String>,
    /// 1 to 65535.
    pub port: Option<u16>,
    /// The database's name.
    pub name: Option<String>,
}

/// Reads how the database is found: `DATABASE_URL` or `DATABASE_SECRET_ID`, and `DATABASE_AUTH`.
///
/// # Errors
/// [`Error::Config`] names the variable and what is allowed.
pub fn database_access(lookup: Lookup<'_>) -> Result<DatabaseAccess, Error> {
    let refused = |text: &str| Err(Error::Config(text.to_owned()));
    let iam = match lookup("DATABASE_AUTH").as_deref() {
        None | Some("password") => false,
        Some("iam") => true,
        Some(other) => {
            return refused(&format!(
                "DATABASE_AUTH: password or iam is allowed, got {other:?}"
            ));
        }
    };
    match (lookup("DATABASE_URL"), lookup("DATABASE_SECRET_ID")) {
        (Some(_), Some(_)) => {
            refused("DATABASE_URL and DATABASE_SECRET_ID are both set; only one of them is allowed")
        }
        (None, Some(_)) if iam => {
            refused("DATABASE_AUTH: iam is allowed with DATABASE_URL, not with DATABASE_SECRET_ID")
        }
        (Some(url), None) if iam => Ok(DatabaseAccess::Iam(url)),
        (Some(url), None) => Ok(DatabaseAccess::Url(url)),
        (None, Some(id)) => Ok(DatabaseAccess::Secret {
            id,
            place: DatabasePlace {
                host: lookup("DATABASE_HOST"),
                port: lookup("DATABASE_PORT")
                    .map(|_| number(lookup, "DATABASE_PORT", 5432, 1, 65535))
                    .transpose()?,
                name: lookup("DATABASE_NAME"),
            },
        }),
        (None, None) => refused(
            "neither DATABASE_URL nor DATABASE_SECRET_ID is set; a URL such as postgres://user:password@host/database, or the id of a secret, is needed",
        ),
    }
}

/// The certificates to trust instead of the system's, in PEM, and the variable that gives them:
/// `DATABASE_CA_FILE` or `DATABASE_CA_PEM`.
///
/// # Errors
/// [`Error::Config`] when both are set or the file cannot be read.
pub fn database_ca(lookup: Lookup<'_>) -> Result<Option<(&'static str, Vec<u8>)>, Error> {
    let (file, text) = ("DATABASE_CA_FILE", "DATABASE_CA_PEM");
    match (lookup(file), lookup(text)) {
        (None, None) => Ok(None),
        (Some(path), None) => Ok(Some((file, read_file(file, &path)?))),
        (None, Some(pem)) => Ok(Some((text, pem.into_bytes()))),
        (Some(_), Some(_)) => Err(Error::Config(format!(
            "{file} and {text} are both set; only one of them is allowed"
        ))),
    }
}

/// Reads the file that a variable names.
///
/// # Errors
/// [`Error::Config`] names the variable and the path.
pub(crate) fn read_file(variable: &str, path: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        Error::Config(format!(
            "{variable}: a file that can be read is allowed: {path}: {error}"
        ))
    })
}

/// No duration is longer: clocks and the database overflow long before a number of seconds does.
const LONGEST: Duration = Duration::from_hours(10 * 366 * 24);

/// A duration as people write it, of at most ten years.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refuse = |why: &dyn std::fmt::Display| {
        Err(format!(
            "a duration such as 500ms, 30s, 5m or 1h is allowed, got {text:?}: {why}"
        ))
    };
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Ok(_) => refuse(&"longer than ten years"),
        Err(error) => refuse(&error),
    }
}

/// Reads a field of an invocation whose text has a form of its own; the error names the field.
pub(crate) fn named<'de, T, D: Deserializer<'de>>(
    field: &str,
    parse: fn(&str) -> Result<T, String>,
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)
        .map_err(|error| D::Error::custom(format!("{field}: {error}")))?;
    text.map(|text| parse(&text))
        .transpose()
        .map_err(|allowed| D::Error::custom(format!("{field}: {allowed}")))
}

pub(crate) fn duration(
    lookup: Lookup<'_>,
    name: &str,
    default: Duration,
) -> Result<Duration, Error> {
    lookup(name).map_or(Ok(default), |text| {
        parse_duration(&text).map_err(|allowed| Error::Config(format!("{name}: {allowed}")))
    })
}

pub(crate) fn number<T>(
    lookup: Lookup<'_>,
    name: &str,
    default: T,
    least: T,
    most: T,
) -> Result<T, Error>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display + Copy,
{
    let Some(text) = lookup(name) else {
        return Ok(default);
    };
    match text.trim().parse::<T>() {
        Ok(value) if value >= least && value <= most => Ok(value),
        _ => Err(Error::Config(format!(
            "{name}: {least} to {most} is allowed, got {text:?}"
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

    #[test]
    fn a_bad_value_is_refused_by_name_with_what_is_allowed() {
        let error = max_attempts(&|_| Some("-1".to_owned()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("TIDEGATE_MAX_ATTEMPTS") && error.contains("1 to 1000"),
            "{error}"
        );
    }
}
