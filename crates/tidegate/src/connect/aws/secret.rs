//! Owns the secret: reads a version of it from Secrets Manager, and builds a login from its JSON and the
//! environment. It has the form of an RDS secret, as RDS or a rotation function writes it:
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

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_secretsmanager::operation::get_secret_value::{
    GetSecretValueError, GetSecretValueOutput,
};
use futures_util::future::FutureExt;
use serde_json::{Map, Value};
use tokio_postgres::Config;

use super::super::settings::DatabasePlace;
use super::sdk::{Aws, CALL_TIMEOUT};
use crate::connect::login::{Login, TlsMode};
use crate::connect::source::{Source, Version};
use crate::connect::tls::Trust;
use crate::error::{Error, Result, with_causes};

/// Longer than the SDK's own limit, whose error explains more. Loading the SDK's settings has no limit of its
/// own.
const READ_TIMEOUT: Duration = CALL_TIMEOUT.saturating_add(Duration::from_secs(1));

/// The text of a secret of any kind. Debug output shows only its id.
pub struct SecretText {
    id: String,
    aws: Aws,
}

/// A secret, and what the environment adds to it.
pub(in crate::connect) struct DatabaseSecret {
    text: SecretText,
    place: DatabasePlace,
    /// The environment's certificates. The secret may bring its own.
    trust: Option<Trust>,
}

/// Returns the name of a version in Secrets Manager.
fn stage(version: Version) -> &'static str {
    match version {
        Version::Current => "AWSCURRENT",
        Version::Pending => "AWSPENDING",
    }
}

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SecretText").field(&self.id).finish()
    }
}

impl SecretText {
    /// Creates the secret of this name or ARN. Nothing is requested before it is read.
    pub fn new(id: String) -> Self {
        Self {
            id,
            aws: Aws::default(),
        }
    }

    /// Reads the valid version, within six seconds.
    ///
    /// # Errors
    /// [`Error::Secret`] names the secret and what is wrong with it, and quotes none of its content.
    pub async fn read(&self) -> Result<String> {
        // The SDK's futures are large.
        let current = Box::pin(self.version(Version::Current)).await?;
        current.ok_or_else(|| self.failed("there is no such secret"))
    }

    /// Reads a version; `None` when there is no such version.
    async fn version(&self, version: Version) -> Result<Option<String>> {
        let reading = tokio::time::timeout(READ_TIMEOUT, self.fetch(version));
        let answer = reading
            .await
            .unwrap_or_else(|_| Err(self.failed(format!("no answer within {READ_TIMEOUT:?}"))))?;
        let Some(value) = answer else {
            return Ok(None);
        };
        let text = value
            .secret_string
            .ok_or_else(|| self.failed("must be a text, got a binary value"))?;
        Ok(Some(text))
    }

    async fn fetch(&self, version: Version) -> Result<Option<GetSecretValueOutput>> {
        let request = Client::new(self.aws.config().await?)
            .get_secret_value()
            .secret_id(&self.id)
            .version_stage(stage(version))
            .send();
        match request.await {
            Ok(value) => Ok(Some(value)),
            Err(error) if version == Version::Pending && is_missing(&error) => Ok(None),
            Err(error) => Err(self.failed(reason(&error))),
        }
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::Secret(format!("{}: {why}", self.id))
    }
}

impl DatabaseSecret {
    pub(in crate::connect) fn new(id: String, place: DatabasePlace, trust: Option<Trust>) -> Self {
        Self {
            text: SecretText::new(id),
            place,
            trust,
        }
    }

    pub(super) fn source(self) -> Source {
        let name = format!("secret {}", self.text.id);
        let secret = Arc::new(self);
        Source {
            versions: &[Version::Current, Version::Pending],
            reused: None,
            trust: secret.trust.clone(),
            tried: format!("; {name} was read again, AWSCURRENT and AWSPENDING"),
            name,
            read: Box::new(move |version| {
                let secret = secret.clone();
                async move { secret.version(version).await }.boxed()
            }),
        }
    }

    /// Returns the login of a version; `None` when there is no such version.
    async fn version(&self, version: Version) -> Result<Option<Login>> {
        let text = self.text.version(version).await?;
        text.map(|text| self.login(&text)).transpose()
    }

    pub(in crate::connect) fn login(&self, text: &str) -> Result<Login> {
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
            (None, Some(pem)) => Trust::only(
                pem.as_bytes(),
                &format_args!("secret {}: ca_pem", self.text.id),
            )?,
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
        self.text.failed(why)
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

fn is_missing(error: &SdkError<GetSecretValueError>) -> bool {
    error
        .as_service_error()
        .is_some_and(GetSecretValueError::is_resource_not_found_exception)
}

const NONSENSE: &str = "the service's answer makes no sense";

/// Returns what the service said, or why it could not be called. Never the answer itself, which may be the
/// secret.
fn reason(error: &SdkError<GetSecretValueError>) -> String {
    match error {
        SdkError::ServiceError(refused) => match (refused.err().code(), refused.err().message()) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(code), None) => code.to_owned(),
            _ if refused.raw().status().is_success() => NONSENSE.to_owned(),
            _ => format!("the service answers {}", refused.raw().status()),
        },
        SdkError::TimeoutError(_) => format!("no answer within {CALL_TIMEOUT:?}"),
        // The outermost message only names the type of the failure.
        SdkError::DispatchFailure(failure) => failure
            .as_connector_error()
            .and_then(StdError::source)
            .map_or_else(|| "the service cannot be called".to_owned(), with_causes),
        SdkError::ConstructionFailure(_) => {
            "the service cannot be called: are AWS_REGION and credentials set?".to_owned()
        }
        _ => NONSENSE.to_owned(),
    }
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
