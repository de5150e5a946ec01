//! Owns where logins come from, what is cached of them, and what happens when the database refuses one: a
//! changed password is read again, with three attempts at most.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit};
use tokio_postgres::{CancelToken, Client};

use super::cloud::Version;
use super::login::{Failure, Login};
use super::tls::Trust;
use crate::error::{Error, Result};

/// Where logins come from: a setting, a store of secrets, or a generator of tokens.
pub(super) struct Source {
    /// Reads a version of the login; `None` when there is no such version.
    pub read: Box<ReadLogin>,
    /// The versions to try after a refusal, one after the other.
    pub versions: &'static [Version],
    /// How long a login is used for new connections; `None` means until it is refused.
    pub reused: Option<Duration>,
    /// The certificates to trust, if they do not depend on the login. They can be prepared before the login
    /// is read.
    pub trust: Option<Trust>,
    /// The name of the place, for a log.
    pub name: String,
    /// What was tried, for the error when all versions were refused.
    pub tried: String,
}

pub(super) type ReadLogin =
    dyn Fn(Version) -> BoxFuture<'static, Result<Option<Login>>> + Send + Sync;

pub(super) struct Logins {
    source: Source,
    /// Held during a read from the source, so that many connections with a changed password read it only
    /// once.
    latest: Mutex<Option<Latest>>,
    /// Whether the login's default is another level than READ COMMITTED.
    pub(super) begins: OnceCell<bool>,
}

struct Latest {
    login: Arc<Login>,
    /// By the wall clock: the monotonic clock stops while a function is frozen.
    until: Option<SystemTime>,
}

impl Logins {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            latest: Mutex::default(),
            begins: OnceCell::new(),
        }
    }

    /// Prepares what the first connection would have to wait for.
    pub(super) async fn prepare(&self) {
        // Errors are ignored here: the next connection meets and reports them.
        let known = async {
            match &self.source.trust {
                Some(trust) => trust.connector().await.map(drop),
                None => Ok(()),
            }
        };
        let read = async {
            let login = self.login().await?;
            login.prepare().await
        };
        let _ = tokio::join!(known, read);
    }

    /// Connects. If the login is refused, or may have been, tries again with the source's further versions:
    /// of a secret the current one, if it has changed, then the one that a rotation is about to make valid.
    /// The connection takes `place` with it.
    ///
    /// # Errors
    /// [`Error::Secret`] when there is no login to try, [`Error::Login`] when none is accepted,
    /// [`Error::Connect`] otherwise.
    pub(super) async fn open(&self, place: &mut Option<OwnedSemaphorePermit>) -> Result<Client> {
        let mut login = self.login().await?;
        let mut failure = match login.open(place).await {
            Ok(client) => return Ok(client),
            Err(failure) => failure,
        };
        for version in self.source.versions {
            if matches!(failure, Failure::Other(_)) {
                break;
            }
            match self.instead_of(&login, *version).await {
                Ok(Some(other)) => login = other,
                Ok(None) => continue,
                Err(error) => return Err(failure.with(&format!("; then {error}"))),
            }
            tracing::info!(version = ?version, "login refused; trying again with the current secret");
            failure = match login.open(place).await {
                Ok(client) => return Ok(client),
                Err(failure) => failure,
            };
        }
        if matches!(failure, Failure::Refused(_)) {
            self.forget(&login).await;
        }
        Err(failure.with(&self.source.tried))
    }

    /// Asks the server to cancel what a session is doing. A failure is not reported: the session's own limits
    /// end the statement later.
    pub(super) async fn cancel(&self, token: CancelToken) {
        if let Ok(login) = self.login().await {
            login.cancel(token).await;
        }
    }

    /// Returns the login to use: the last one that was read, while it is good.
    async fn login(&self) -> Result<Arc<Login>> {
        let mut latest = self.latest.lock().await;
        match &*latest {
            Some(known) if known.until.is_none_or(|until| SystemTime::now() < until) => {
                Ok(known.login.clone())
            }
            _ => {
                let login = (self.source.read)(Version::Current).await?;
                // The valid version always exists, or reading it is an error.
                let login = login.ok_or_else(|| Error::Secret("no valid version".to_owned()))?;
                Ok(self.keep(&mut latest, login))
            }
        }
    }

    /// Returns what to try after `refused`: the login that another connection has read since, or else the
    /// source's version. `None` when that is the same login again.
    async fn instead_of(
        &self,
        refused: &Arc<Login>,
        version: Version,
    ) -> Result<Option<Arc<Login>>> {
        let mut latest = self.latest.lock().await;
        if let Some(known) = &*latest
            && !Arc::ptr_eq(&known.login, refused)
        {
            return Ok(Some(known.login.clone()));
        }
        let read = (self.source.read)(version).await?;
        let changed = read.filter(|read| read.config != refused.config);
        Ok(changed.map(|login| self.keep(&mut latest, login)))
    }

    fn keep(&self, latest: &mut Option<Latest>, login: Login) -> Arc<Login> {
        let login = Arc::new(login);
        *latest = Some(Latest {
            login: login.clone(),
            until: self.source.reused.map(|time| SystemTime::now() + time),
        });
        login
    }

    /// Forgets a refused login, so that the next connection begins with the secret of that time.
    async fn forget(&self, refused: &Arc<Login>) {
        let mut latest = self.latest.lock().await;
        if latest
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(&known.login, refused))
        {
            *latest = None;
        }
    }
}

impl Source {
    /// The source of a login that is known.
    pub(super) fn fixed(login: Login) -> Self {
        Self {
            name: format!("{:?}", login.config.get_hosts()),
            versions: &[],
            reused: None,
            trust: None,
            tried: String::new(),
            read: Box::new(move |_| ready(Ok(Some(login.clone()))).boxed()),
        }
    }
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source.name)
    }
}
