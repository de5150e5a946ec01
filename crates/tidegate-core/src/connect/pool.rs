//! Owns the pool of connections for handlers, and when a lent connection goes back to it.

use std::sync::Arc;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Manager, Metrics, Object, PoolError, RecycleError, RecycleResult};
use deadpool::managed::{Pool, Timeouts};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_postgres::Client;

use super::source::Logins;
use crate::error::{Error, Result};

/// The longest time that a handler waits for a connection of the pool.
pub(super) const POOL_WAIT: Duration = Duration::from_secs(30);

/// How long a connection that comes back to the pool has for its last answer.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Ends a transaction that is open. If none is, as nearly always, the server has nothing to warn of. If the
/// open one has failed, this fails, too.
pub(super) const NO_TRANSACTION: &str = "BEGIN; ROLLBACK";

/// Opens the pool's connections in the same way as all others.
#[derive(Debug)]
pub(super) struct Opener(Arc<Logins>);

impl Manager for Opener {
    type Type = Arc<Mutex<Client>>;
    type Error = Error;

    async fn create(&self) -> Result<Self::Type> {
        let client = self.0.open(&mut None).await?;
        Ok(Arc::new(Mutex::new(client)))
    }

    async fn recycle(&self, client: &mut Self::Type, _: &Metrics) -> RecycleResult<Error> {
        if client.lock().await.is_closed() {
            return Err(RecycleError::message("closed"));
        }
        Ok(())
    }
}

pub(super) fn pool(logins: &Arc<Logins>, size: usize) -> Result<Arc<Pool<Opener>>> {
    let pool = Pool::builder(Opener(logins.clone()))
        .max_size(size.max(1))
        .runtime(Runtime::Tokio1)
        // Opening has limits of its own, whose errors say what took too long.
        .timeouts(Timeouts {
            wait: Some(POOL_WAIT),
            create: None,
            recycle: None,
        })
        .build();
    pool.map(Arc::new)
        .map_err(|error| Error::Config(format!("pool: {error}")))
}

/// A connection of a pool, which goes back when dropped. With an `end`, it goes back once its last statement
/// has been answered: a handler may have been stopped in the middle of a statement that waits for a lock.
/// Nobody else shall wait behind it, so such a statement is cancelled, and its connection is thrown away.
#[derive(Debug)]
pub(super) struct Lent {
    /// Whoever has the connection holds its lock.
    pub client: OwnedMutexGuard<Client>,
    /// `None` once it is on its way back.
    place: Option<Object<Opener>>,
    /// Ends the transaction that may be open.
    pub end: Option<&'static str>,
}

impl Lent {
    /// Waits at most `wait` for a free connection.
    pub async fn by(
        pool: &Pool<Opener>,
        wait: Duration,
        end: Option<&'static str>,
    ) -> Result<Self> {
        let timeouts = Timeouts {
            wait: Some(wait),
            ..pool.timeouts()
        };
        let place = pool.timeout_get(&timeouts).await;
        let place = place.map_err(|error| match error {
            PoolError::Backend(error) => error,
            other => Error::Connect(other.to_string()),
        })?;
        Ok(Self {
            client: Arc::clone(&*place).lock_owned().await,
            place: Some(place),
            end,
        })
    }

    /// Takes the connection out of the pool, so that it ends when dropped.
    pub fn leave(&mut self) {
        self.place.take().map(Object::take);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (Some(place), Some(end)) = (self.place.take(), self.end) else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            return drop(Object::take(place));
        };
        runtime.spawn(async move {
            let client = place.lock().await;
            let answer = tokio::time::timeout(LAST_ANSWER, client.simple_query(end)).await;
            if !matches!(answer, Ok(Ok(_))) {
                let token = client.cancel_token();
                drop(client);
                let pool = Object::pool(&place);
                drop(Object::take(place));
                if let Some(pool) = pool {
                    pool.manager().0.cancel(token).await;
                }
            }
        });
    }
}
