//! Owns the way to the database: URL, TLS, connections, the handlers' pool. It knows nothing of the
//! queue. The surprise: TLS with a checked certificate and host name is the default for everything
//! that is not loopback or a socket, whatever driver default a URL was written for; plaintext over a
//! network must be asked for by `sslmode=disable`.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Timeouts};
use postgres_native_tls::MakeTlsConnector;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, NoTls};

use crate::error::{Error, describe};

/// A connection attempt takes no longer, name look-up, TLS and login included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A handler waits no longer for a connection of the pool.
const POOL_WAIT: Duration = Duration::from_secs(30);

/// Where the database is and how to get there. Cheap to clone; shares one pool.
#[derive(Clone)]
pub struct Database {
    config: tokio_postgres::Config,
    tls: Option<MakeTlsConnector>,
    pool: Arc<Pool>,
}

impl Database {
    /// Reads a `postgres://` URL or a keyword/value string. `pool_size` bounds the connections that
    /// handlers may hold at once; none is opened before it is needed.
    ///
    /// # Errors
    /// [`Error::Config`] when the string does not parse or asks for a TLS mode that is not supported;
    /// its text never holds the password.
    pub fn new(url: &str, pool_size: usize) -> Result<Self, Error> {
        let mut config: tokio_postgres::Config =
            plain_sslmode(url)?.0.parse().map_err(|error| {
                // The parser's message names the key, not the value.
                Error::Config(format!(
                    "DATABASE_URL: a postgres:// URL or key=value pairs are allowed: {}",
                    describe(&error)
                ))
            })?;
        if config.get_hosts().is_empty() {
            return Err(Error::Config(
                "DATABASE_URL: the host is missing".to_owned(),
            ));
        }
        config
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(Duration::from_secs(30));
        if config.get_application_name().is_none() {
            config.application_name("tidegate");
        }
        let tls = match plain_sslmode(url)?.1 {
            SslRequest::Disabled => None,
            SslRequest::Default if is_local(&config) => None,
            SslRequest::Default | SslRequest::VerifyFull => Some(tls()?),
        };
        config.ssl_mode(if tls.is_some() {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        let pool = Arc::new(pool(&config, tls.as_ref(), pool_size)?);
        Ok(Self { config, tls, pool })
    }

    /// The same database with an empty pool. Each run has one of its own: a function may be frozen
    /// between two runs for longer than its sockets live.
    ///
    /// # Errors
    /// As [`Database::new`].
    pub fn with_own_pool(&self) -> Result<Self, Error> {
        let size = self.pool.status().max_size;
        let pool = Arc::new(pool(&self.config, self.tls.as_ref(), size)?);
        Ok(Self {
            pool,
            ..self.clone()
        })
    }

    /// Opens a connection of its own, outside the pool. It ends when the client is dropped.
    ///
    /// # Errors
    /// [`Error::Connect`] with the reason.
    pub async fn connect(&self) -> Result<Client, Error> {
        let connecting = async {
            if let Some(tls) = &self.tls {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                tokio::spawn(connection);
                return Ok(client);
            }
            let (client, connection) = self.config.connect(NoTls).await?;
            tokio::spawn(connection);
            Ok(client)
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => {
                connected.map_err(|error: tokio_postgres::Error| Error::Connect(describe(&error)))
            }
            Err(_) => Err(Error::Connect(format!(
                "no answer within {CONNECT_TIMEOUT:?}"
            ))),
        }
    }

    /// A connection of the handlers' pool; it goes back when dropped.
    ///
    /// # Errors
    /// [`Error::Connect`] when none is free or can be opened in time.
    pub async fn pooled(&self) -> Result<Object, Error> {
        self.pooled_within(POOL_WAIT).await
    }

    /// As [`Database::pooled`], but waits for a free connection no longer than `wait`.
    ///
    /// # Errors
    /// As [`Database::pooled`].
    pub async fn pooled_within(&self, wait: Duration) -> Result<Object, Error> {
        let timeouts = Timeouts {
            wait: Some(wait),
            ..self.pool.timeouts()
        };
        let lent = self.pool.timeout_get(&timeouts).await;
        lent.map_err(|error| match error {
            deadpool_postgres::PoolError::Backend(error) => Error::Connect(describe(&error)),
            other => Error::Connect(other.to_string()),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SslRequest {
    Default,
    Disabled,
    VerifyFull,
}

/// Takes `sslmode` out of the URL: the driver knows fewer modes than libpq, and we mean only two.
fn plain_sslmode(url: &str) -> Result<(String, SslRequest), Error> {
    let mut request = SslRequest::Default;
    let mut keep = |part: &str| -> Result<bool, Error> {
        let Some(mode) = part.strip_prefix("sslmode=") else {
            return Ok(true);
        };
        request = match mode.trim_matches('\'') {
            "disable" => SslRequest::Disabled,
            "verify-full" => SslRequest::VerifyFull,
            other => {
                return Err(Error::Config(format!(
                    "DATABASE_URL: sslmode: verify-full (the default off loopback) or disable is allowed, got {other:?}"
                )));
            }
        };
        Ok(false)
    };
    let rebuilt = if let Some((base, query)) = url.split_once('?').filter(|_| url.contains("://")) {
        let mut kept = Vec::new();
        for part in query.split('&') {
            if keep(part)? {
                kept.push(part);
            }
        }
        if kept.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", kept.join("&"))
        }
    } else if url.contains("://") {
        url.to_owned()
    } else {
        let mut kept = Vec::new();
        for part in url.split_whitespace() {
            if keep(part)? {
                kept.push(part);
            }
        }
        kept.join(" ")
    };
    Ok((rebuilt, request))
}

fn is_local(config: &tokio_postgres::Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost"
                || name
                    .parse::<std::net::IpAddr>()
                    .is_ok_and(|address| address.is_loopback())
        }
    })
}

fn tls() -> Result<MakeTlsConnector, Error> {
    let connector =
        native_tls::TlsConnector::new().map_err(|error| Error::Config(format!("TLS: {error}")))?;
    Ok(MakeTlsConnector::new(connector))
}

fn pool(
    config: &tokio_postgres::Config,
    tls: Option<&MakeTlsConnector>,
    size: usize,
) -> Result<Pool, Error> {
    let recycling = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    let manager = match tls {
        Some(tls) => Manager::from_config(config.clone(), tls.clone(), recycling),
        None => Manager::from_config(config.clone(), NoTls, recycling),
    };
    Pool::builder(manager)
        .max_size(size.max(1))
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts {
            wait: Some(POOL_WAIT),
            create: Some(CONNECT_TIMEOUT),
            recycle: Some(CONNECT_TIMEOUT),
        })
        .build()
        .map_err(|error| Error::Config(format!("pool: {error}")))
}

impl std::fmt::Debug for Database {
    /// Host names only: the configuration holds the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("hosts", &self.config.get_hosts())
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_the_default_off_loopback_and_plaintext_must_be_asked_for() {
        let tls = |url: &str| Database::new(url, 1).unwrap().tls.is_some();
        assert!(!tls("postgres://u:p@127.0.0.1/db"));
        assert!(!tls("postgres://u:p@localhost:5433/db"));
        assert!(!tls("host=/tmp user=u"));
        assert!(tls("postgres://u:p@db.example/db"));
        assert!(tls("postgres://u:p@localhost/db?sslmode=verify-full"));
        assert!(!tls(
            "postgres://u:p@db.example/db?sslmode=disable&application_name=x"
        ));
        assert!(!tls("host=db.example user=u sslmode=disable"));
    }

    #[test]
    fn weaker_tls_modes_are_refused_by_name() {
        for mode in ["prefer", "allow", "require", "verify-ca"] {
            let error = Database::new(&format!("postgres://u@h/db?sslmode={mode}"), 1)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("sslmode") && error.contains("verify-full"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_password_is_in_no_error_and_no_debug_text() {
        let url = "postgres://u:canary@h:notaport/db";
        assert!(
            !Database::new(url, 1)
                .unwrap_err()
                .to_string()
                .contains("canary")
        );
        let database = Database::new("postgres://u:canary@h/db", 1).unwrap();
        assert!(!format!("{database:?}").contains("canary"));
    }
}
