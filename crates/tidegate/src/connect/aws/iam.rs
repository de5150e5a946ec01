//! Owns IAM database authentication. The password is a token that is created here and is valid for 15
//! minutes, and no secret is stored anywhere. A token is a URL, signed like a request that is never sent
//! (<https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.html>).

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings};
use futures_util::future::FutureExt;
use tokio_postgres::config::Host;

use super::sdk::{Aws, CALL_TIMEOUT};
use super::sign::For;
use super::{Failed, encoded};
use crate::connect::login::Login;
use crate::connect::source::{Source, Version};
use crate::error::{Error, Result};

/// The server accepts no older token for a new connection.
const VALID: Duration = Duration::from_mins(15);

/// How long a token is used for new connections. The rest of its time allows for clocks that disagree.
const REUSED: Duration = Duration::from_mins(10);

/// A login whose password is created when it is needed.
pub(in crate::connect) struct Iam {
    login: Login,
    user: String,
    host: String,
    port: u16,
    aws: Aws,
}

impl Iam {
    /// # Errors
    /// [`Error::Config`] when the URL holds a password, no user, several hosts or no TLS.
    pub(in crate::connect) fn new(login: Login) -> Result<Self> {
        let refused =
            |why: &str| Error::Config(format!("DATABASE_URL: with DATABASE_AUTH=iam {why}"));
        let config = &login.config;
        if config.get_password().is_some() {
            return Err(refused(
                "there must be no password: a token takes its place",
            ));
        }
        if login.trust.is_none() {
            return Err(refused("there must be TLS: sslmode=verify-full"));
        }
        let user = config
            .get_user()
            .ok_or_else(|| refused("there must be a user"))?;
        let [Host::Tcp(host)] = config.get_hosts() else {
            return Err(refused(
                "there must be exactly one host, which the token names",
            ));
        };
        Ok(Self {
            user: user.to_owned(),
            host: host.clone(),
            port: config.get_ports().first().copied().unwrap_or(5432),
            login,
            aws: Aws::default(),
        })
    }

    pub(super) fn source(self) -> Source {
        let iam = Arc::new(self);
        Source {
            versions: &[Version::Current],
            reused: Some(REUSED),
            trust: None,
            name: "IAM".to_owned(),
            tried: "; with a new token too".to_owned(),
            read: Box::new(move |_| {
                let iam = iam.clone();
                async move { iam.login().await.map(Some) }.boxed()
            }),
        }
    }

    /// Returns the login with a new token.
    ///
    /// # Errors
    /// [`Error::Secret`] when there is no region or there are no credentials to sign with.
    async fn login(&self) -> Result<Login> {
        let signing = tokio::time::timeout(CALL_TIMEOUT, self.token());
        let token = signing
            .await
            .unwrap_or_else(|_| Err(failed(format!("no credentials within {CALL_TIMEOUT:?}"))))?;
        let mut config = self.login.config.clone();
        config.password(token);
        Ok(Login {
            config,
            trust: self.login.trust.clone(),
        })
    }

    async fn token(&self) -> Result<String> {
        let config = self.aws.config().await?;
        let region = config
            .region()
            .ok_or_else(|| failed("AWS_REGION is not set"))?;
        let credentials = self.aws.credentials().await.map_err(failed)?;
        let signed = self.signed(region.as_ref(), credentials, SystemTime::now());
        signed.map_err(|error| failed(format!("the token cannot be signed: {error}")))
    }

    fn signed(
        &self,
        region: &str,
        credentials: Credentials,
        now: SystemTime,
    ) -> Result<String, Failed> {
        let mut settings = SigningSettings::default();
        settings.expires_in = Some(VALID);
        settings.signature_location = SignatureLocation::QueryParams;
        let mut url = format!(
            "https://{}:{}/?Action=connect&DBUser={}",
            self.host,
            self.port,
            encoded(&self.user)
        );
        let body = SignableBody::Bytes(&[]);
        let request = SignableRequest::new("GET", url.clone(), std::iter::empty(), body)?;
        let to = For {
            service: "rds-db",
            region,
            settings,
            now,
        };
        let (_, pairs) = to.sign(credentials, request)?.into_parts();
        for (name, value) in pairs {
            write!(url, "&{name}={}", encoded(&value))?;
        }
        Ok(url.split_off("https://".len()))
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::Secret(format!("DATABASE_AUTH=iam: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::tls::Trust;

    fn iam(url: &str) -> Result<Iam, Error> {
        Iam::new(Login::from_url(url, &Trust::system())?)
    }

    /// The AWS SDK's own example, which gives the same token in the SDK of every language.
    #[test]
    fn a_token_is_signed_as_the_aws_sdk_signs_it() {
        let iam = iam("postgres://peccy@prod-instance.us-east-1.rds.amazonaws.com:3306/db")
            .unwrap_or_else(|error| panic!("{error}"));
        let credentials = Credentials::new("akid", "secret", None, None, "test");
        // 2024-08-26, 22:00.
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(479_086);
        assert_eq!(
            iam.signed("us-east-1", credentials, now).unwrap(),
            "prod-instance.us-east-1.rds.amazonaws.com:3306/?Action=connect&DBUser=peccy\
             &X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=akid%2F20240826%2Fus-east-1%2Frds-db%2Faws4_request\
             &X-Amz-Date=20240826T220000Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=dd0cba843009474347af724090233265628ace491ea17ce3eb3da098b983ad89"
        );
    }

    #[test]
    fn what_a_token_cannot_do_is_refused_by_name() {
        for (url, named) in [
            ("postgres://u:canary@db.example/d", "no password"),
            ("postgres://db.example/d", "a user"),
            ("postgres://u@db.example/d?sslmode=disable", "TLS"),
            ("postgres://u@127.0.0.1/d", "TLS"),
            ("postgres://u@one.example,two.example/d", "one host"),
        ] {
            let error = iam(url).err().unwrap().to_string();
            assert!(
                error.contains(named) && error.contains("DATABASE_AUTH"),
                "{error}"
            );
            assert!(!error.contains("canary"));
        }
    }
}
