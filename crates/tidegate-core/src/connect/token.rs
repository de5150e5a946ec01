//! Owns logins whose password is a token that the cloud signs when it is needed, so that no secret is stored
//! anywhere.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio_postgres::config::Host;

use super::cloud::{Cloud, Version};
use super::login::Login;
use super::source::Source;
use crate::error::{Error, Result};

/// How long a token is used for new connections. The rest of its time allows for clocks that disagree.
const REUSED: Duration = Duration::from_mins(10);

/// A login whose password is created when it is needed.
pub(super) struct TokenLogin {
    login: Login,
    user: String,
    host: String,
    port: u16,
}

impl TokenLogin {
    /// # Errors
    /// [`Error::Config`] when the URL holds a password, no user, several hosts or no TLS.
    pub(super) fn new(login: Login) -> Result<Self> {
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
        })
    }

    pub(super) fn source(self, cloud: &'static dyn Cloud) -> Source {
        let iam = Arc::new(self);
        Source {
            versions: &[Version::Current],
            reused: Some(REUSED),
            trust: None,
            name: "IAM".to_owned(),
            tried: "; with a new token too".to_owned(),
            read: Box::new(move |_| {
                let iam = iam.clone();
                async move { iam.login(cloud).await.map(Some) }.boxed()
            }),
        }
    }

    /// Returns the login with a new token.
    ///
    /// # Errors
    /// [`Error::Secret`] when there is no region or there are no credentials to sign with.
    async fn login(&self, cloud: &dyn Cloud) -> Result<Login> {
        let token = cloud.token(&self.host, self.port, &self.user).await?;
        let mut config = self.login.config.clone();
        config.password(token);
        Ok(Login {
            config,
            trust: self.login.trust.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tls::Trust;
    use super::*;

    #[test]
    fn what_a_token_cannot_do_is_refused_by_name() {
        for (url, named) in [
            ("postgres://u:canary@db.example/d", "no password"),
            ("postgres://db.example/d", "a user"),
            ("postgres://u@db.example/d?sslmode=disable", "TLS"),
            ("postgres://u@127.0.0.1/d", "TLS"),
            ("postgres://u@one.example,two.example/d", "one host"),
        ] {
            let login =
                Login::from_url(url, &Trust::system()).unwrap_or_else(|error| panic!("{error}"));
            let error = TokenLogin::new(login).err().unwrap().to_string();
            assert!(
                error.contains(named) && error.contains("DATABASE_AUTH"),
                "{error}"
            );
            assert!(!error.contains("canary"));
        }
    }
}
