//! Owns how partitions of the log are made ahead, and how the short steps of a cleanup are run. It knows no
//! SQL.
//!
//! No step waits long. A step that does not get its locks within 200 ms is tried again; after that it is left
//! to the next run, and counted. So producers and drains, which would queue up behind a waiting cleanup, come
//! first.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::error::Error;
use crate::queue::retention::{self, Made};

/// Creates the partitions for events that finish within a week. Nothing fails without them: rows without a
/// partition go to the default one.
///
/// # Errors
/// When the database fails; not when a lock is not available.
pub async fn make_partitions(client: &Client) -> Result<(), Error> {
    let now = retention::clock(client).await?;
    let mut steps = Steps::new(Duration::from_secs(30), None);
    let made = make_missing(client, now, &mut steps, |_| ()).await;
    if let Err(Halt::Failed(error)) = made {
        return Err(error);
    }
    if made.is_err() || steps.skipped > 0 {
        tracing::warn!(
            lock_timeouts = steps.lock_timeouts,
            "partitions are missing; the next cleanup makes them"
        );
    }
    Ok(())
}

/// Why the stages of a run stopped early.
pub(crate) enum Halt {
    /// The time ran out, or a stop signal came.
    Spent,
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// How often a step that does not get its locks is tried in all.
const TRIES: u32 = 3;

/// How long to pause, so that the sessions which waited for the step go first.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs steps one by one while there is time.
pub(crate) struct Steps {
    pub(crate) began: Instant,
    budget: Duration,
    stop: Option<watch::Receiver<bool>>,
    begun: u64,
    pub(crate) lock_timeouts: u64,
    pub(crate) skipped: u64,
}

impl Steps {
    pub(crate) fn new(budget: Duration, stop: Option<watch::Receiver<bool>>) -> Self {
        Self {
            began: Instant::now(),
            budget,
            stop,
            begun: 0,
            lock_timeouts: 0,
            skipped: 0,
        }
    }

    /// Whether no further step may begin. The first step always may. So even runs with a budget of zero
    /// complete the work over time.
    fn is_over(&self) -> bool {
        let stopped = self.stop.as_ref().is_some_and(|stop| *stop.borrow());
        stopped || (self.begun > 0 && self.began.elapsed() >= self.budget)
    }

    /// Runs a step. Returns `None` when it did not get its locks.
    pub(crate) async fn run<T, F>(&mut self, mut step: impl FnMut() -> F) -> Result<Option<T>, Halt>
    where
        F: Future<Output = Result<T, Error>>,
    {
        for attempt in 1..=TRIES {
            if self.is_over() {
                return Err(Halt::Spent);
            }
            self.begun += 1;
            match step().await {
                Ok(done) => return Ok(Some(done)),
                Err(error) if error.is_lock_timeout() || error.is_transient() => {
                    self.lock_timeouts += 1;
                }
                Err(error) => return Err(Halt::Failed(error)),
            }
            if attempt < TRIES {
                tokio::time::sleep(PAUSE).await;
            }
        }
        self.skipped += 1;
        Ok(None)
    }
}

/// Creates every missing partition, and reports the result of each.
pub(crate) async fn make_missing(
    client: &Client,
    now: SystemTime,
    steps: &mut Steps,
    mut on_made: impl FnMut(Made),
) -> Result<(), Halt> {
    for day in retention::missing_days(client, now).await? {
        let made = steps.run(|| retention::make_partition(client, &day));
        if let Some(made) = made.await? {
            on_made(made);
        }
    }
    Ok(())
}
