//! Owns where logins come from, what is remembered of them, and what follows when the database
//! refuses one: a password that was changed is read again, three attempts in all.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use super::login::{Failure, Login};
use super::tls::Trust;
use crate::error::Error;

/// Where logins come from.
pub(super) enum Source {
    /// It is known.
    Fixed(Arc<Login>),
    /// It is kept elsewhere, and read when it is needed.
    #[cfg_attr(
        not(feature = "aws"),
        expect(dead_code, reason = "without AWS nothing keeps logins")
    )]
    Kept(Box<dyn Keeper>),
}

/// Where a login is kept: a store of secrets, a maker of tokens.
pub(super) trait Keeper: Send + Sync {
    /// Reads a version of the login; `None` when there is no such version.
    fn read(&self, version: Version) -> BoxFuture<'_, Result<Option<Login>, Error>>;

    /// What there is to try after a refusal, one after the other.
    fn versions(&self) -> &'static [Version];

    /// How long a login is used for new connections; `None` until it is refused.
    fn reused(&self) -> Option<Duration>;

    /// What is trusted whatever the login says: it can be made ready before that is read.
    fn trust(&self) -> Option<&Trust>;

    /// Where, for a log.
    fn name(&self) -> String;

    /// What was tried when all of [`Keeper::versions`] were refused.
    fn tried(&self) -> String;
}

/// Which version of a login. Never a store's own choice: not all of their stand-ins agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// The valid one.
    Current,
    /// The one that a rotation under way is about to make valid; the database may know it already.
    #[cfg_attr(not(feature = "aws"), expect(dead_code, reason = "no keeper has one"))]
    Pending,
}

/// The source and the login that was last read from it.
pub(super) struct Logins {
    source: Source,
    /// Held while the source is asked, so that many who find their password changed ask once.
    latest: Mutex<Option<Latest>>,
}

struct Latest {
    login: Arc<Login>,
    /// Of the wall clock: the other one stands still while a function is frozen.
    until: Option<SystemTime>,
}

impl Logins {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            latest: Mutex::default(),
        }
    }

    /// Makes what the first connection would have to wait for.
    pub(super) async fn prepare(&self) {
        // Whoever connects meets the same errors, and tells them.
        let known = async {
            match self.source.keeper().and_then(Keeper::trust) {
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

    /// Connects. When the login is refused, or may have been: once more with the secret as it is now, if
    /// that is another one, and once with the version that a rotation is about to make valid.
    ///
    /// # Errors
    /// [`Error::Secret`] when there is no login to try, [`Error::Login`] when none is accepted,
    /// [`Error::Connect`] otherwise.
    pub(super) async fn open(&self) -> Result<Client, Error> {
        let mut login = self.login().await?;
        let mut failure = match login.open().await {
            Ok(client) => return Ok(client),
            Err(failure) => failure,
        };
        for version in self.source.versions() {
            if matches!(failure, Failure::Other(_)) {
                break;
            }
            match self.instead_of(&login, *version).await {
                Ok(Some(other)) => login = other,
                Ok(None) => continue,
                Err(error) => return Err(failure.with(&format!("; then {error}"))),
            }
            tracing::info!(version = ?version, "login refused, trying the secret as it is now");
            failure = match login.open().await {
                Ok(client) => return Ok(client),
                Err(failure) => failure,
            };
        }
        if matches!(failure, Failure::Refused(_)) {
            self.forget(&login).await;
        }
        Err(failure.with(&self.source.tried()))
    }

    /// The login to use: the one that was last read, while it is good.
    async fn login(&self) -> Result<Arc<Login>, Error> {
        let mut latest = self.latest.lock().await;
        match &*latest {
            Some(known) if known.until.is_none_or(|until| SystemTime::now() < until) => {
                Ok(known.login.clone())
            }
            _ => {
                let login = self.source.read(Version::Current).await?;
                // The valid version is always there, or reading it is an error.
                let login = login.ok_or_else(|| Error::Secret("no valid version".to_owned()))?;
                Ok(self.keep(&mut latest, login))
            }
        }
    }

    /// What to try after `refused`: what somebody else has read since, or else the source's version.
    /// `None` when that is the same again.
    async fn instead_of(
        &self,
        refused: &Arc<Login>,
        version: Version,
    ) -> Result<Option<Arc<Login>>, Error> {
        let mut latest = self.latest.lock().await;
        if let Some(known) = &*latest
            && !Arc::ptr_eq(&known.login, refused)
        {
            return Ok(Some(known.login.clone()));
        }
        let read = self.source.read(version).await?;
        let changed = read.filter(|read| read.config() != refused.config());
        Ok(changed.map(|login| self.keep(&mut latest, login)))
    }

    fn keep(&self, latest: &mut Option<Latest>, login: Arc<Login>) -> Arc<Login> {
        *latest = Some(Latest {
            login: login.clone(),
            until: self
                .source
                .keeper()
                .and_then(Keeper::reused)
                .map(|time| SystemTime::now() + time),
        });
        login
    }

    /// The next one who connects begins with the secret as it is then.
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
    fn keeper(&self) -> Option<&dyn Keeper> {
        match self {
            Self::Fixed(_) => None,
            Self::Kept(keeper) => Some(&**keeper),
        }
    }

    async fn read(&self, version: Version) -> Result<Option<Arc<Login>>, Error> {
        match self {
            Self::Fixed(login) => Ok(Some(login.clone())),
            Self::Kept(keeper) => Ok(keeper.read(version).await?.map(Arc::new)),
        }
    }

    /// What there is to try after a refusal.
    fn versions(&self) -> &'static [Version] {
        self.keeper().map_or(&[], Keeper::versions)
    }

    fn tried(&self) -> String {
        self.keeper().map_or_else(String::new, Keeper::tried)
    }
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Fixed(login) => write!(f, "{:?}", login.config().get_hosts()),
            Source::Kept(keeper) => f.write_str(&keeper.name()),
        }
    }
}
