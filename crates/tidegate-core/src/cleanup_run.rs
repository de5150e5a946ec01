//! Owns how the short steps of a cleanup are run: within a budget, and again if they do not get their locks.
//! It knows no SQL; `tidegate.cleanup_step` decides what the next step is.
//!
//! No step waits long. A step that does not get its locks within 200 ms is tried again; after that it is left
//! to the next run, and counted. So producers and drains, which would queue up behind a waiting cleanup, come
//! first.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connect::Client;
use crate::error::{Error, Result};
use crate::queue::retention::{Cleaned, CleanupStep, cleanup_step};

/// Why the steps of a run ended early.
pub enum Halt {
    /// The time ran out, or a stop signal came.
    Spent,
    /// A step failed.
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
pub struct Steps {
    /// When the run began.
    pub began: Instant,
    budget: Duration,
    stop: Option<watch::Receiver<bool>>,
    begun: u64,
    /// How many tries did not get their locks.
    pub lock_timeouts: u64,
    /// How many steps are left to the next run.
    pub skipped: u64,
}

impl Steps {
    /// Begins a run. It ends after `budget`, or when `stop` says so.
    pub fn new(budget: Duration, stop: Option<watch::Receiver<bool>>) -> Self {
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
    async fn step(&mut self, client: &Client, state: &Value) -> Result<Option<CleanupStep>, Halt> {
        for attempt in 1..=TRIES {
            if self.is_over() {
                return Err(Halt::Spent);
            }
            self.begun += 1;
            match cleanup_step(client, state, false).await {
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

    /// Runs the steps of a cleanup from this state on, and reports what each did. A step that the database
    /// refuses, for example because of a damaged page, does not stop the others; the first such error is
    /// returned at the end.
    ///
    /// # Errors
    /// Why the run ended early, or the first step that was refused.
    pub async fn walk(
        &mut self,
        client: &Client,
        state: Value,
        mut on_done: impl FnMut(Cleaned),
    ) -> Result<(), Halt> {
        let (mut state, mut refusal) = (Some(state), None);
        while let Some(position) = state {
            let step = match self.step(client, &position).await {
                Ok(step) => step,
                Err(Halt::Failed(error)) if error.is_refusal() => {
                    refusal.get_or_insert(error);
                    None
                }
                Err(halt) => return Err(halt),
            };
            let step = match step {
                Some(step) => step,
                None => cleanup_step(client, &position, true).await?,
            };
            on_done(step.done);
            state = step.next;
        }
        refusal.map_or(Ok(()), |error| Err(Halt::Failed(error)))
    }
}
