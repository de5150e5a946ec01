//! Owns where logins come from, what is remembered of them, and what follows when the database
//! refuses one: a password that was changed is read again, three attempts in all.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Mutex;
use tokio_postgres::Client;

use super::iam::{self, Iam};
use super::login::{Failure, Login};
use super::secret::{Secret, Version};
use crate::error::Error;

/// Where logins come from.
pub(super) enum Source {
    /// It is known.
    Fixed(Arc<Login>),
    /// A secret of Secrets Manager.
    Secret(Box<Secret>),
    /// A token in place of a password.
    Iam(Box<Iam>),
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
            match &self.source {
                Source::Secret(secret) => match &secret.trust {
                    Some(trust) => trust.connector().await.map(drop),
                    None => Ok(()),
                },
                Source::Fixed(_) | Source::Iam(_) => Ok(()),
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
            until: match self.source {
                Source::Iam(_) => Some(SystemTime::now() + iam::REUSED),
                Source::Fixed(_) | Source::Secret(_) => None,
            },
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
    async fn read(&self, version: Version) -> Result<Option<Arc<Login>>, Error> {
        match self {
            Self::Fixed(login) => Ok(Some(login.clone())),
            Self::Secret(secret) => Ok(secret.read(version).await?.map(Arc::new)),
            Self::Iam(iam) => Box::pin(iam.login())
                .await
                .map(|login| Some(Arc::new(login))),
        }
    }

    /// What there is to try after a refusal.
    fn versions(&self) -> &'static [Version] {
        match self {
            Self::Fixed(_) => &[],
            Self::Secret(_) => &[Version::Current, Version::Pending],
            Self::Iam(_) => &[Version::Current],
        }
    }

    fn tried(&self) -> String {
        match self {
            Self::Fixed(_) => String::new(),
            Self::Secret(secret) => format!(
                "; secret {} was read again, AWSCURRENT and AWSPENDING",
                secret.id
            ),
            Self::Iam(_) => "; with a new token too".to_owned(),
        }
    }
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Fixed(login) => write!(f, "{:?}", login.config().get_hosts()),
            Source::Secret(secret) => write!(f, "secret {}", secret.id),
            Source::Iam(_) => f.write_str("IAM"),
        }
    }
}
