//! Owns the connection to the database: its address, its login, its TLS, and the handlers' pool. It knows
//! nothing of the queue.
//!
//! # Layout
//!
//! - `login`: what one attempt to connect needs, read from a URL;
//! - `secret`, `token`: the same from a secret, or with a signed token as the password;
//! - `cloud`: who keeps secrets and signs tokens;
//! - `settings`: which of these the environment selects;
//! - `source`: the selected one, what is cached of it, and what happens when the database refuses it;
//! - `tls`: which certificates are trusted;
//! - `pool`: the handlers' pool, and when a connection goes back to it;
//! - `schema`: the queue's schema, and the connections that carry its name.
//!
//! [`Database::new`] needs nothing from AWS. [`Database::from_settings`] uses what the environment selects.
//!
//! Each run opens its own connections, and they end with it. A function is frozen between two runs for longer
//! than sockets live, and is not notified of their end. A connection that a firewall has forgotten answers
//! only with a time-out, after half a second at best. A new one costs 5 to 6 ms (TLS 1.3 and SCRAM, measured
//! on loopback), once a run. Only the HTTP interface keeps connections, because there a new one would take
//! most of a request. It checks that each connection is alive before it uses it.

mod cloud;
mod login;
mod pool;
mod schema;
mod secret;
mod settings;
mod source;
mod tls;
mod token;

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::Pool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use self::cloud::{Cloud, SecretReader, Version, cloud, install, secret_reader};
use self::login::Login;
use self::pool::{Lent, NO_TRANSACTION, Opener, POOL_WAIT, pool};
pub use self::schema::BEGIN;
use self::schema::Session;
pub use self::schema::{Client, Schema, Transaction};
pub use self::schema::{Conn, Queryable};
use self::secret::{DatabasePlace, DatabaseSecret};
use self::source::{Logins, Source};
pub use self::tls::Trust;
use crate::config::{Lookup, check_settings, environment};
use crate::error::{Error, Result};

/// The longest time for a connection attempt, including name look-up, TCP, TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the database is and how to connect to it. Cheap to clone; clones share one pool.
#[derive(Clone)]
pub struct Database {
    logins: Arc<Logins>,
    pool: Arc<Pool<Opener>>,
    places: Option<Places>,
    schema: Schema,
    /// What ends a connection's transaction before it goes back to the pool. With this, it goes back only
    /// when its last statement has been answered.
    end: Option<&'static str>,
}

/// The places for sessions outside the pool, and how long to wait for one.
#[derive(Clone)]
struct Places {
    free: Arc<Semaphore>,
    wait: Duration,
}

/// Returns the driver's configuration in a URL, without the certificates to trust. For fuzzing: nobody
/// connects with it.
///
/// # Errors
/// [`Error::Config`]. Its text never contains the password.
pub fn config_of_url(url: &str) -> Result<tokio_postgres::Config> {
    Login::from_url(url, &Trust::system()).map(|login| login.config)
}

/// Returns the driver's configuration in the text of a secret, without what the environment adds. For
/// fuzzing: nobody connects with it.
///
/// # Errors
/// [`Error::Secret`] names the field, and quotes nothing.
pub fn config_of_secret(text: &str) -> Result<tokio_postgres::Config> {
    let secret = DatabaseSecret::new("the secret".to_owned(), DatabasePlace::default(), None);
    secret.login(text).map(|login| login.config)
}

impl Database {
    /// Creates a database from a `postgres://` URL or a keyword/value string. `pool_size` limits the
    /// connections that handlers may hold at once. A connection is opened only when it is needed. The
    /// system's certificates are trusted. The queue is in the schema that the environment's `TIDEGATE_SCHEMA`
    /// names, or in `tidegate`.
    ///
    /// # Errors
    /// [`Error::Config`] when the string does not parse or asks for a TLS mode that is not supported. Its
    /// text never contains the password.
    pub fn new(url: &str, pool_size: usize) -> Result<Self> {
        let login = Login::from_url(url, &Trust::system())?;
        Self::of(
            Source::fixed(login),
            Schema::from_settings(&environment)?,
            pool_size,
        )
    }

    /// Creates a database from `DATABASE_URL`, or from `DATABASE_SECRET_ID` with `DATABASE_HOST`, `_PORT` and
    /// `_NAME`. Also reads `DATABASE_AUTH`, and `DATABASE_CA_FILE` or `DATABASE_CA_PEM`, and
    /// `TIDEGATE_SCHEMA`. A secret is read when it is needed. AWS's own settings come from the environment of
    /// the process, whatever `lookup` is.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>, pool_size: usize) -> Result<Self> {
        check_settings(lookup)?;
        let trust = match settings::database_ca(lookup)? {
            Some((variable, pem)) => Some(Trust::only(&pem, &variable)?),
            None => None,
        };
        Self::of(
            settings::source(lookup, trust)?,
            Schema::from_settings(lookup)?,
            pool_size,
        )
    }

    fn of(source: Source, schema: Schema, pool_size: usize) -> Result<Self> {
        let logins = Arc::new(Logins::new(source));
        let pool = pool(&logins, pool_size)?;
        Ok(Self {
            logins,
            pool,
            places: None,
            schema,
            end: None,
        })
    }

    /// Returns the same database with at most `sessions` connections of [`Database::connect`] at once, in all
    /// its clones together. A connection counts until its last statement has been answered, even if its
    /// client was dropped before. A caller that must wait longer than `wait` for a place gets
    /// [`Error::TimedOut`].
    #[must_use]
    pub fn with_at_most(&self, sessions: usize, wait: Duration) -> Self {
        let free = Arc::new(Semaphore::new(sessions.max(1)));
        Self {
            places: Some(Places { free, wait }),
            ..self.clone()
        }
    }

    /// Returns the same database with an empty pool. Each run has a pool of its own, because a function may
    /// be frozen between two runs for longer than its sockets live. Its handlers may be stopped in the middle
    /// of a statement, so a connection of this pool is lent again only when its last statement has been
    /// answered.
    ///
    /// # Errors
    /// As [`Database::new`].
    pub fn with_own_pool(&self) -> Result<Self> {
        Ok(Self {
            pool: pool(&self.logins, self.pool.status().max_size)?,
            end: Some(NO_TRANSACTION),
            ..self.clone()
        })
    }

    /// Returns the same database, with an empty pool, for the queue of another schema.
    ///
    /// # Errors
    /// [`Error::Config`] when the pool cannot be created.
    pub fn with_schema(&self, schema: Schema) -> Result<Self> {
        Ok(Self {
            pool: pool(&self.logins, self.pool.status().max_size)?,
            schema,
            ..self.clone()
        })
    }

    /// Returns the schema of the queue that this database's connections use.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Reads the secret and creates the TLS connector in the background, so that the first connection does
    /// not wait for them. A failure here is not reported: the first connection tries again and reports it.
    /// Must be called on a runtime.
    pub fn prepare(&self) {
        let logins = self.logins.clone();
        tokio::spawn(async move { logins.prepare().await });
    }

    /// Opens a connection outside the pool. It ends when the client is dropped. If the login is refused, this
    /// tries again with the current secret.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Login`] or [`Error::Secret`] with the reason; [`Error::TimedOut`] when
    /// the number of connections is limited and no place becomes free in time.
    pub async fn connect(&self) -> Result<Client> {
        let mut place = match &self.places {
            Some(places) => Some(places.take().await?),
            None => None,
        };
        let client = self.logins.open(&mut place).await?;
        Ok(Client::new(client, self.schema.clone()))
    }

    /// Opens a connection for statements of the queue. Each of them is a transaction at READ COMMITTED, even
    /// if the login's default is another level, which is looked up once.
    ///
    /// # Errors
    /// As [`Database::connect`].
    pub async fn session(&self) -> Result<Client> {
        let client = self.connect().await?;
        let begins = self.logins.begins.get_or_try_init(async || {
            let sql = "SELECT current_setting('default_transaction_isolation') <> 'read committed'";
            let rows = client
                .query_typed(sql, &[])
                .await
                .map_err(Error::at("connect"))?;
            Ok::<bool, Error>(rows.first().is_some_and(|row| row.get(0)))
        });
        let begins = *begins.await?;
        Ok(client.beginning(begins))
    }

    /// Returns a connection of the handlers' pool, which returns to the pool when dropped.
    ///
    /// # Errors
    /// As [`Database::connect`]. [`Error::Connect`] also when no connection is free in time.
    pub async fn pooled(&self) -> Result<Client> {
        self.pooled_within(POOL_WAIT).await
    }

    /// Like [`Database::pooled`], but waits at most `wait` for a free connection.
    ///
    /// # Errors
    /// As [`Database::pooled`].
    pub async fn pooled_within(&self, wait: Duration) -> Result<Client> {
        let lent = Lent::by(&self.pool, wait, self.end).await?;
        Ok(Client::of(Session::Lent(lent), self.schema.clone()))
    }
}

impl Places {
    async fn take(&self) -> Result<OwnedSemaphorePermit> {
        let taken = tokio::time::timeout(self.wait, self.free.clone().acquire_owned()).await;
        // The semaphore is never closed.
        taken.ok().and_then(Result::ok).ok_or(Error::TimedOut {
            stage: "connect",
            limit: self.wait,
        })
    }
}

impl std::fmt::Debug for Database {
    /// Shows only the address: everything else here may contain the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("source", &self.logins)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i9_the_password_is_in_no_debug_text() {
        let database = Database::new("postgres://u:canary@db.example/db", 1).unwrap();
        let text = format!("{database:?}");
        assert!(
            text.contains("db.example") && !text.contains("canary"),
            "{text}"
        );
    }
}
