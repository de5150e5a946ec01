//! Owns one queue connection of a drain, and its bounded reconnects.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_postgres::Client;

use crate::connect::Database;
use crate::error::Error;

/// How often a failed statement is tried. If the connection is lost, the next try opens a new one.
const TRIES: u32 = 4;

/// A connection that is opened when it is first needed, and again when it is lost.
pub(super) struct Session {
    database: Database,
    client: Option<Client>,
    /// Whether the connection was opened since this was last asked.
    is_new: bool,
    failures: u32,
}

impl Session {
    fn new(database: Database) -> Self {
        Self {
            database,
            client: None,
            is_new: false,
            failures: 0,
        }
    }

    /// Returns the open connection.
    pub(super) async fn client(&mut self) -> Result<&Client, Error> {
        let open = self.client.take().filter(|client| !client.is_closed());
        let client = if let Some(client) = open {
            client
        } else {
            self.is_new = true;
            self.database.connect().await?
        };
        Ok(self.client.insert(client))
    }

    /// Opens the connection, and returns whether it has been opened since the last call. What was learned
    /// over another one may not hold: the server may be another copy of the database, which counts its
    /// transactions differently.
    pub(super) async fn begins_anew(&mut self) -> Result<bool, Error> {
        self.client().await?;
        Ok(std::mem::take(&mut self.is_new))
    }

    /// Notes a success. The next failure has all its tries again.
    pub(super) fn recovered(&mut self) {
        self.failures = 0;
    }

    /// Decides whether to try again after `error`. If so, waits a little, longer each time.
    ///
    /// # Errors
    /// The error itself, when it is permanent or no tries are left.
    pub(super) async fn retry_after(&mut self, error: Error) -> Result<(), Error> {
        if error.is_connection_lost() {
            self.client = None;
        } else if !error.is_transient() && !error.is_lock_timeout() {
            return Err(error);
        }
        self.failures += 1;
        if self.failures >= TRIES {
            return Err(error);
        }
        tracing::warn!(error = %error, tries = self.failures, "database failed, trying again");
        let pause = Duration::from_millis(50) * 4_u32.pow(self.failures - 1);
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// A connection that is idle or at work.
pub(super) enum Slot<T> {
    Idle(Box<Session>),
    Busy(BoxFuture<'static, T>),
    Empty,
}

impl<T> Slot<T> {
    /// Creates a slot with a session that is not open yet.
    pub(super) fn new(database: &Database) -> Self {
        Self::Idle(Box::new(Session::new(database.clone())))
    }

    /// Returns the session, if it is idle.
    pub(super) fn idle(&mut self) -> Option<&mut Session> {
        match self {
            Self::Idle(session) => Some(session),
            Self::Busy(_) | Self::Empty => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle(_))
    }

    /// Takes the idle session out. The caller puts work in.
    pub(super) fn take(&mut self) -> Option<Session> {
        match std::mem::replace(self, Self::Empty) {
            Self::Idle(session) => Some(*session),
            busy => {
                *self = busy;
                None
            }
        }
    }

    /// Waits for the work, or for ever if there is none.
    pub(super) async fn done(&mut self) -> T {
        match self {
            Self::Busy(work) => {
                let done = work.await;
                *self = Self::Empty;
                done
            }
            Self::Idle(_) | Self::Empty => std::future::pending().await,
        }
    }
}
