//! Owns the secret that is a login: reads a version of it from the cloud, and builds a login from its JSON
//! and the environment. It has the form of an RDS secret, as RDS or a rotation function writes it:
//!
//! ```json
//! {"username": "…", "password": "…", "host": "…", "port": 5432, "dbname": "…"}
//! ```
//!
//! Optional: `port` (5432), `sslmode`, `ca_pem`, `engine`. Unknown fields are ignored. The secret that RDS
//! manages itself holds only `username` and `password`; `DATABASE_HOST`, `DATABASE_PORT` and `DATABASE_NAME`
//! give the rest. If both give a value, the environment wins, because it is closer to the program: one secret
//! can serve a function that goes through a proxy and one that does not.
//!
//! No message quotes the secret, not even a field that is no password.

use std::sync::Arc;

use futures_util::future::FutureExt;
use serde_json::{Map, Value};
use tokio_postgres::Config;

use super::cloud::{Cloud, Version};
use super::login::{Login, TlsMode};
use super::source::Source;
use super::tls::Trust;
use crate::error::{Error, Result};

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

/// A secret, and what the environment adds to it.
pub(super) struct DatabaseSecret {
    id: String,
    place: DatabasePlace,
    /// The environment's certificates. The secret may bring its own.
    trust: Option<Trust>,
}

impl DatabaseSecret {
    pub(super) fn new(id: String, place: DatabasePlace, trust: Option<Trust>) -> Self {
        Self { id, place, trust }
    }

    pub(super) fn source(self, cloud: &'static dyn Cloud) -> Source {
        let name = format!("secret {}", self.id);
        let secret = Arc::new(self);
        Source {
            versions: &[Version::Current, Version::Pending],
            reused: None,
            trust: secret.trust.clone(),
            tried: format!("; {name} was read again, AWSCURRENT and AWSPENDING"),
            name,
            read: Box::new(move |version| {
                let secret = secret.clone();
                async move { secret.version(cloud, version).await }.boxed()
            }),
        }
    }

    /// Returns the login of a version; `None` when there is no such version.
    async fn version(&self, cloud: &dyn Cloud, version: Version) -> Result<Option<Login>> {
        let text = cloud.secret(&self.id, version).await?;
        text.map(|text| self.login(&text)).transpose()
    }

    pub(super) fn login(&self, text: &str) -> Result<Login> {
        let fields: Map<String, Value> = serde_json::from_str(text)
            // The parser's message might quote the secret.
            .map_err(|_| self.failed("must be a JSON object"))?;
        let refused = |why: String| self.failed(why);
        if let Some(engine) = text_field(&fields, "engine").map_err(refused)?
            && !engine.contains("postgres")
        {
            return Err(self.failed("engine: must be of a Postgres database"));
        }
        let mut config = Config::new();
        config
            .user(self.required(&fields, "username", None)?)
            .password(self.required(&fields, "password", None)?)
            .host(self.required(&fields, "host", self.place.host.as_deref())?)
            .dbname(self.required(&fields, "dbname", self.place.name.as_deref())?)
            .port(match self.place.port {
                Some(port) => port,
                None => port(&fields).map_err(refused)?,
            });
        let mode = match text_field(&fields, "sslmode").map_err(refused)? {
            None => TlsMode::Default,
            Some(mode) => TlsMode::parse(mode).map_err(|_| {
                self.failed("sslmode: must be verify-full (the default off loopback) or disable")
            })?,
        };
        let trust = match (&self.trust, text_field(&fields, "ca_pem").map_err(refused)?) {
            (Some(trust), _) => trust.clone(),
            (None, Some(pem)) => {
                Trust::only(pem.as_bytes(), &format_args!("secret {}: ca_pem", self.id))?
            }
            (None, None) => Trust::system(),
        };
        Ok(Login::new(config, mode, &trust))
    }

    /// Returns a field that the environment or the secret must give.
    fn required<'a>(
        &self,
        fields: &'a Map<String, Value>,
        name: &str,
        given: Option<&'a str>,
    ) -> Result<&'a str> {
        if let Some(given) = given {
            return Ok(given);
        }
        let found = text_field(fields, name).map_err(|why| self.failed(why))?;
        found.ok_or_else(|| {
            let variable = match name {
                "host" => "; DATABASE_HOST can give it",
                "dbname" => "; DATABASE_NAME can give it",
                _ => "",
            };
            self.failed(format!("{name}: is missing{variable}"))
        })
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::Secret(format!("{}: {why}", self.id))
    }
}

/// Returns a text, if it is there and not empty.
fn text_field<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.contains('\0') => {
            Err(format!("{name}: must be a text without the character NUL"))
        }
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("{name}: must be a text")),
    }
}

/// Returns the port, a number. Some rotation functions write it as a text.
fn port(fields: &Map<String, Value>) -> Result<u16, String> {
    let port = match fields.get("port") {
        None | Some(Value::Null) => Some(5432),
        Some(Value::String(text)) => text.parse().ok(),
        Some(value) => value.as_u64().and_then(|port| u16::try_from(port).ok()),
    };
    port.filter(|port| *port > 0)
        .ok_or_else(|| "port: must be a number from 1 to 65535".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(place: DatabasePlace) -> DatabaseSecret {
        DatabaseSecret::new("night/db".to_owned(), place, None)
    }

    fn complete() -> Value {
        json!({"username": "u", "password": "canary", "host": "db.example", "port": 5433, "dbname": "d",
               "engine": "postgres", "dbInstanceIdentifier": "x"})
    }

    #[test]
    fn f7_an_rds_secret_is_a_login_through_tls() {
        let login = secret(DatabasePlace::default()).login(&complete().to_string());
        let login = login.unwrap_or_else(|error| panic!("{error}"));
        let config = &login.config;
        assert_eq!(
            (config.get_user(), config.get_dbname()),
            (Some("u"), Some("d"))
        );
        assert_eq!(
            (config.get_password(), config.get_ports()),
            (Some(&b"canary"[..]), &[5433][..])
        );
        assert!(login.trust.is_some());
    }

    #[test]
    fn f7_the_environment_fills_what_the_secret_lacks_and_wins_where_both_speak() {
        let place = || DatabasePlace {
            host: Some("127.0.0.1".to_owned()),
            port: Some(6432),
            name: Some("other".to_owned()),
        };
        for text in [json!({"username": "u", "password": "canary"}), complete()] {
            let login = secret(place())
                .login(&text.to_string())
                .unwrap_or_else(|error| panic!("{error}"));
            let config = &login.config;
            assert_eq!(
                (config.get_dbname(), config.get_ports()),
                (Some("other"), &[6432][..])
            );
            assert!(login.trust.is_none(), "loopback");
        }
    }

    #[test]
    fn f7_i9_each_missing_or_malformed_field_is_named_and_nothing_is_quoted() {
        let with = |name: &str, value: Value| {
            let mut fields = complete();
            fields[name] = value;
            fields.to_string()
        };
        for (text, named) in [
            ("canary".to_owned(), "JSON object"),
            ("[\"canary\"]".to_owned(), "JSON object"),
            ("{\"password\": \"canary\"".to_owned(), "JSON object"),
            (with("username", Value::Null), "username: is missing"),
            (with("password", json!("")), "password: is missing"),
            (
                with("password", json!(["canary"])),
                "password: must be a text",
            ),
            (
                with("password", json!("can\0ary")),
                "password: must be a text without",
            ),
            (with("host", Value::Null), "DATABASE_HOST"),
            (with("dbname", Value::Null), "DATABASE_NAME"),
            (with("port", json!("canary")), "port: must be a number"),
            (with("port", json!(65536)), "port: must be a number"),
            (with("port", json!(0)), "port: must be a number"),
            (
                with("sslmode", json!("canary")),
                "sslmode: must be verify-full",
            ),
            (
                with("ca_pem", json!("canary")),
                "ca_pem: must be one or more",
            ),
            (with("engine", json!("mysql-canary")), "engine"),
        ] {
            let error = secret(DatabasePlace::default()).login(&text).err().unwrap();
            let error = format!("{error} {error:?}");
            assert!(
                error.contains("night/db") && error.contains(named),
                "{named}: {error}"
            );
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
