//! Owns the scheduled cleanup: how events leave the queue without a drain, and the log without an operator. A
//! run is a sequence of short steps, which `tidegate.cleanup_step` chooses. This module knows no SQL and no
//! handlers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::drain::lines::EventLines;
use tidegate_core::cleanup_run::{Halt, Steps};
use tidegate_core::config::{in_range, millis};
use tidegate_core::connect::Database;
use tidegate_core::error::{Error, Result};
use tidegate_core::queue::retention::Cleaned;
pub use tidegate_core::queue::retention::DroppedPartition;
use tokio::sync::watch;

/// How to clean up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanupOptions {
    /// Report what would be done, and change nothing.
    pub dry_run: bool,
    /// The time for the whole run. No step begins after it, but one step always runs.
    pub budget: Duration,
    /// End live events only if they were published at least this long ago.
    pub older_than: Duration,
    /// The most rows that one step examines or deletes, within [`CleanupOptions::BATCH`].
    pub batch: u32,
    /// The operator's name, for the audit.
    pub actor: Option<String>,
    /// The time that counts as now, if it is earlier than the database's; for tests.
    pub now: Option<SystemTime>,
}

impl Default for CleanupOptions {
    fn default() -> Self {
        Self {
            dry_run: false,
            budget: Duration::from_secs(50),
            older_than: Duration::ZERO,
            batch: 10_000,
            actor: None,
            now: None,
        }
    }
}

impl CleanupOptions {
    /// The allowed range of rows that one step examines or deletes.
    pub const BATCH: RangeInclusive<u32> = 1..=100_000;

    /// Checks that `batch` is in its range.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the option and what is allowed.
    pub fn check(&self) -> Result<()> {
        in_range("batch", self.batch, &Self::BATCH).map_err(Error::Invalid)
    }

    /// The state that `tidegate.cleanup_step` begins with.
    fn state(&self) -> Value {
        let now = self.now.and_then(|now| Timestamp::try_from(now).ok());
        json!({
            "dry_run": self.dry_run,
            "batch": self.batch,
            "older_than": self.older_than.as_secs_f64(),
            "actor": self.actor,
            "now": now.map(|now| now.to_string()),
        })
    }
}

/// What can stop a cleanup, and what receives its counts while it runs.
#[derive(Default)]
pub struct CleanupHooks {
    /// Turns true to end the run as if the budget were spent.
    pub stop: Option<watch::Receiver<bool>>,
    /// The counts so far, sent after every step.
    pub progress: Option<watch::Sender<CleanupReport>>,
}

/// Why a cleanup ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CleanupStop {
    /// Nothing is left to do, except what was skipped because of locks.
    #[default]
    Done,
    /// The time ran out, or a stop signal came.
    BudgetSpent,
}

/// What a cleanup did or, in a dry run, would have done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct CleanupReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// How many partitions were created ahead.
    pub partitions_made: u64,
    /// How many rows moved into them from the default partition.
    pub rows_moved: u64,
    /// How many days have too many rows in the default partition; these rows are deleted in batches.
    pub left_to_default: u64,
    /// How many live events ended as FAILED because their start-before deadline had passed.
    pub expired: u64,
    /// How many live events ended as FAILED because a worker had abandoned their last attempt.
    pub abandoned: u64,
    /// How many live events ended as FAILED because they had waited for a service for too long.
    #[serde(default)]
    pub given_up: u64,
    /// How many partitions were dropped.
    pub partitions_dropped: u64,
    /// How many rows were dropped with them.
    pub rows_dropped: u64,
    /// The dropped partitions, with their numbers of rows.
    pub dropped: Vec<DroppedPartition>,
    /// How many expired rows were deleted in batches.
    pub rows_deleted: u64,
    /// How many messages from outside were forgotten, because they were taken in long ago.
    #[serde(default)]
    pub messages_forgotten: u64,
    /// How many rows of the program's own tables were removed because their retention is over, by table.
    #[serde(default)]
    pub records: BTreeMap<String, u64>,
    /// How often a step did not get a lock in time.
    pub lock_timeouts: u64,
    /// How many steps were left to the next run because of that.
    pub skipped: u64,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// How long it was allowed to take, in milliseconds.
    pub budget_ms: u64,
    /// Why it ended.
    pub stop_reason: CleanupStop,
}

impl CleanupReport {
    fn add(&mut self, step: Cleaned) {
        let count = |ids: Vec<i64>| u64::try_from(ids.len()).unwrap_or(u64::MAX);
        self.partitions_made += step.partitions_made;
        self.rows_moved += step.rows_moved;
        self.left_to_default += step.left_to_default;
        self.expired += count(step.expired);
        self.abandoned += count(step.abandoned);
        self.given_up += count(step.given_up);
        if let Some(dropped) = step.dropped {
            self.partitions_dropped += 1;
            self.rows_dropped += dropped.rows;
            self.dropped.push(dropped);
        }
        self.rows_deleted += step.rows_deleted;
        self.messages_forgotten += step.messages_forgotten;
        for (table, rows) in step.records {
            *self.records.entry(table).or_default() += rows;
        }
    }
}

/// Creates partitions ahead, ends live events that no program will handle, and removes finished events whose
/// retention is over (B14, B15, F4). For the whole run, "now" is the time at which the run began.
///
/// # Errors
/// When options are out of range or the database fails. What was done before the error stays done.
pub async fn cleanup(
    database: &Database,
    options: &CleanupOptions,
    hooks: CleanupHooks,
) -> Result<CleanupReport> {
    options.check()?;
    let client = database.session().await?;
    let mut steps = Steps::new(options.budget, hooks.stop);
    let mut report = CleanupReport {
        dry_run: options.dry_run,
        budget_ms: millis(options.budget),
        ..CleanupReport::default()
    };
    let send = |report: &CleanupReport| {
        if let Some(progress) = &hooks.progress {
            progress.send_replace(report.clone());
        }
    };
    let mut lines = EventLines::default();
    let on_done = |done: Cleaned| {
        if !options.dry_run {
            let ended = [
                (&done.expired, "expired"),
                (&done.abandoned, "abandoned"),
                (&done.given_up, "service_down"),
            ];
            for (ids, code) in ended {
                for id in ids {
                    lines.failed(*id, code);
                }
            }
        }
        report.add(done);
        send(&report);
    };
    let ended = steps.walk(&client, options.state(), on_done).await;
    report.stop_reason = stop_reason(ended)?;
    report.elapsed_ms = millis(steps.began.elapsed());
    (report.lock_timeouts, report.skipped) = (steps.lock_timeouts, steps.skipped);
    Ok(report)
}

fn stop_reason(ended: Result<(), Halt>) -> Result<CleanupStop> {
    match ended {
        Ok(()) => Ok(CleanupStop::Done),
        Err(Halt::Spent) => Ok(CleanupStop::BudgetSpent),
        Err(Halt::Failed(error)) => Err(error),
    }
}
