//! Owns one queue connection of a drain, and its bounded reconnects.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate_core::connect::{Client, Database};
use tidegate_core::error::Error;
use tokio::time::Instant;

/// How often a failed statement is tried. If the connection is lost, the next try opens a new one.
const TRIES: u32 = 4;

/// A connection that is opened when it is first needed, and again when it is lost.
pub(super) struct Session {
    database: Database,
    client: Option<Client>,
    /// How many connections were opened so far.
    opened: u32,
    failures: u32,
}

impl Session {
    fn new(database: Database) -> Self {
        Self {
            database,
            client: None,
            opened: 0,
            failures: 0,
        }
    }

    /// Opens a connection if none is open.
    pub(super) async fn client(&mut self) -> Result<&Client, Error> {
        Ok(self.numbered().await?.0)
    }

    /// Returns the open connection and its number. What was learned over another one may not hold: after a
    /// crash a server counts its transactions from an earlier one, and another copy of the database counts
    /// its own.
    pub(super) async fn numbered(&mut self) -> Result<(&Client, u32), Error> {
        let open = self.client.take().filter(|client| !client.is_closed());
        let client = if let Some(client) = open {
            client
        } else {
            self.opened += 1;
            self.database.session().await?
        };
        Ok((self.client.insert(client), self.opened))
    }

    /// Forgets the connection. The next call opens another one.
    pub(super) fn close(&mut self) {
        self.client = None;
    }

    /// Tells of a success: the next failure has all its tries again.
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

/// A connection that is idle or at work, and the time that it was at work.
pub(super) struct Lane<T> {
    state: LaneState<T>,
    /// When the current work was sent.
    sent: Instant,
    busy_time: Duration,
}

enum LaneState<T> {
    Idle(Box<Session>),
    Busy(BoxFuture<'static, T>),
    Empty,
}

impl<T> Lane<T> {
    /// Creates a lane with a session that is not open yet.
    pub(super) fn new(database: &Database) -> Self {
        Self {
            state: LaneState::Idle(Box::new(Session::new(database.clone()))),
            sent: Instant::now(),
            busy_time: Duration::ZERO,
        }
    }

    pub(super) fn idle(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            LaneState::Idle(session) => Some(session),
            LaneState::Busy(_) | LaneState::Empty => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, LaneState::Idle(_))
    }

    /// Returns how long the session was at work so far.
    pub(super) fn busy_time(&self) -> Duration {
        self.busy_time
    }

    /// Does nothing if the session is at work.
    pub(super) fn send(&mut self, work: impl FnOnce(Session) -> BoxFuture<'static, T>) {
        match std::mem::replace(&mut self.state, LaneState::Empty) {
            LaneState::Idle(session) => {
                self.sent = Instant::now();
                self.state = LaneState::Busy(work(*session));
            }
            busy => self.state = busy,
        }
    }

    /// Puts the session back after its work.
    pub(super) fn put(&mut self, session: Session) {
        self.busy_time += self.sent.elapsed();
        self.state = LaneState::Idle(Box::new(session));
    }

    /// Waits for the work, or for ever if there is none.
    pub(super) async fn done(&mut self) -> T {
        match &mut self.state {
            LaneState::Busy(work) => {
                let done = work.await;
                self.state = LaneState::Empty;
                done
            }
            LaneState::Idle(_) | LaneState::Empty => std::future::pending().await,
        }
    }
}
