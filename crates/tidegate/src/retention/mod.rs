//! Owns the scheduled cleanup: how events leave the queue without a drain, and the log without an operator. A
//! run is a sequence of stages, and a stage is a sequence of short steps. `queue::retention` implements the
//! steps. This module knows no SQL and no handlers.

mod report;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio_postgres::Client;

pub use self::report::{
    CleanupReport, CleanupStop, DroppedPartition, KindsReport, RedateReport, RetentionReport,
};
use crate::budget::millis;
use crate::config::in_range;
use crate::connect::Database;
use crate::drain::lines::EventLines;
use crate::error::Error;
use crate::forget::Records;
pub use crate::partitions::make_partitions;
use crate::partitions::{Halt, Steps, make_missing};
use crate::queue::retention::{
    self as steps, AuditNote, Counts, DeadEvents, Made, Partition, Walked,
};

/// How to clean up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanupOptions {
    /// Report what would be done, and change nothing.
    pub dry_run: bool,
    /// The time for the whole run. No step begins after that, but one step always runs.
    pub budget: Duration,
    /// End live events only if they were published at least this long ago.
    pub older_than: Duration,
    /// The most rows that one step examines or deletes: [`CleanupOptions::BATCH`].
    pub batch: u32,
    /// The operator's name, for the audit.
    pub actor: Option<String>,
    /// The time that counts as now, if it is earlier than the database's; for tests.
    #[doc(hidden)]
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

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the option and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        in_range("batch", self.batch, &Self::BATCH).map_err(Error::Invalid)
    }
}

/// What can stop a cleanup, what receives its counts while it runs, and the program's own data that it
/// removes.
#[derive(Default)]
pub struct CleanupHooks {
    /// Turns true to end the run as if the budget were spent.
    pub stop: Option<watch::Receiver<bool>>,
    /// The counts so far, sent after every step.
    pub progress: Option<watch::Sender<CleanupReport>>,
    /// The data about people in the program's own tables. It is removed when its retention is over.
    pub records: Option<Arc<dyn Records>>,
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
) -> Result<CleanupReport, Error> {
    options.check()?;
    let mut steps = Steps::new(options.budget, hooks.stop);
    let client = database.connect().await?;
    let clock = steps::clock(&client).await?;
    let mut cleanup = Cleanup {
        now: options.now.map_or(clock, |now| now.min(clock)),
        client: &client,
        options,
        progress: hooks.progress,
        records: hooks.records,
        report: CleanupReport {
            dry_run: options.dry_run,
            budget_ms: millis(options.budget),
            ..CleanupReport::default()
        },
        steps: &mut steps,
    };
    let ended = cleanup.run().await;
    let mut report = cleanup.report;
    report.stop_reason = stop_reason(ended)?;
    report.elapsed_ms = millis(steps.began.elapsed());
    (report.lock_timeouts, report.skipped) = (steps.lock_timeouts, steps.skipped);
    Ok(report)
}

/// Returns the retention of all kinds, or of one.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered; otherwise the database's error.
pub async fn kinds(database: &Database, kind: Option<&str>) -> Result<KindsReport, Error> {
    let client = database.connect().await?;
    let kinds = steps::retentions(&client, kind).await?;
    match kind {
        Some(kind) if kinds.is_empty() => Err(Error::Invalid(format!(
            "kind: {kind:?} is not registered; `tidegate retention` lists those that are"
        ))),
        _ => Ok(KindsReport { kinds }),
    }
}

/// A change of a kind's retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kind.
    pub kind: String,
    /// For COMPLETED events; `None` leaves it as it is.
    pub completed: Option<Duration>,
    /// For FAILED and `COMPLETED_WITH_ERRORS` events; `None` leaves it as it is.
    pub failed: Option<Duration>,
    /// Whether to apply it to events that have already finished, too.
    pub apply: bool,
    /// How long applying it may take.
    pub budget: Duration,
    /// The reason, for the audit.
    pub reason: String,
    /// The operator's name, for the audit.
    pub actor: Option<String>,
}

/// Sets a kind's retention for events that finish from now on. If requested, also gives events that have
/// already finished a new expiry (B21).
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed; otherwise the database's error.
pub async fn change(database: &Database, change: &Change) -> Result<RetentionReport, Error> {
    let client = database.connect().await?;
    let note = AuditNote {
        text: &change.reason,
        actor: change.actor.as_deref(),
    };
    if change.completed.is_some() || change.failed.is_some() {
        let (completed, failed) = (change.completed, change.failed);
        steps::set_retention(&client, &change.kind, completed, failed, note).await?;
        make_partitions(&client).await?;
    }
    let redated = if change.apply {
        Some(redate(&client, change, note).await?)
    } else {
        None
    };
    let kinds = kinds(database, Some(&change.kind)).await?.kinds;
    Ok(RetentionReport { kinds, redated })
}

async fn redate(
    client: &Client,
    change: &Change,
    note: AuditNote<'_>,
) -> Result<RedateReport, Error> {
    let mut steps = Steps::new(change.budget, None);
    let mut rows = 0;
    let ended = redate_all(client, change, note, &mut steps, &mut rows).await;
    Ok(RedateReport {
        rows,
        stop_reason: stop_reason(ended)?,
        lock_timeouts: steps.lock_timeouts,
        skipped: steps.skipped,
        elapsed_ms: millis(steps.began.elapsed()),
        budget_ms: millis(change.budget),
    })
}

async fn redate_all(
    client: &Client,
    change: &Change,
    note: AuditNote<'_>,
    steps: &mut Steps,
    rows: &mut u64,
) -> Result<(), Halt> {
    let now = steps::clock(client).await?;
    let kind = &change.kind;
    for partition in steps::partitions(client, now).await? {
        let name = &partition.name;
        let missing = steps.run(|| steps::missing_retention_days(client, kind, name));
        for day in missing.await?.unwrap_or_default() {
            steps.run(|| steps::make_partition(client, &day)).await?;
        }
        let mut since = None;
        loop {
            let walk =
                || steps::apply_retention(client, kind, name, since.as_deref(), 10_000, note);
            let Some(Walked { rows: dated, next }) = steps.run(walk).await? else {
                break;
            };
            *rows += dated;
            if next.is_none() {
                break;
            }
            since = next;
        }
    }
    Ok(())
}

fn stop_reason(ended: Result<(), Halt>) -> Result<CleanupStop, Error> {
    match ended {
        Ok(()) => Ok(CleanupStop::Done),
        Err(Halt::Spent) => Ok(CleanupStop::BudgetSpent),
        Err(Halt::Failed(error)) => Err(error),
    }
}

/// A cleanup that is running.
struct Cleanup<'a> {
    client: &'a Client,
    options: &'a CleanupOptions,
    now: SystemTime,
    progress: Option<watch::Sender<CleanupReport>>,
    records: Option<Arc<dyn Records>>,
    report: CleanupReport,
    steps: &'a mut Steps,
}

impl Cleanup<'_> {
    /// Runs the stages.
    async fn run(&mut self) -> Result<(), Halt> {
        if self.options.dry_run {
            self.preview_partitions().await?;
            self.end_dead().await?;
            self.preview_removal().await?;
            self.forget_received().await?;
            return self.expire_records().await;
        }
        self.make_partitions().await?;
        self.end_dead().await?;
        self.seal_closed().await?;
        self.drop_expired().await?;
        self.delete_expired().await?;
        self.forget_received().await?;
        self.fold_figures().await?;
        self.expire_records().await
    }

    /// Makes the program remove rows of its own tables whose retention is over.
    async fn expire_records(&mut self) -> Result<(), Halt> {
        let (client, dry_run) = (self.client, self.options.dry_run);
        let Some(records) = self.records.clone() else {
            return Ok(());
        };
        loop {
            let removed = self.steps.run(|| records.expire(client, dry_run)).await?;
            let removed = removed.unwrap_or_default();
            if removed.values().all(|rows| *rows == 0) {
                return Ok(());
            }
            for (table, rows) in removed {
                *self.report.records.entry(table).or_default() += rows;
            }
            self.report_progress();
            if dry_run {
                return Ok(());
            }
        }
    }

    async fn make_partitions(&mut self) -> Result<(), Halt> {
        let report = &mut self.report;
        make_missing(self.client, self.now, self.steps, |made| {
            count_made(report, made);
        })
        .await?;
        self.report_progress();
        Ok(())
    }

    /// Ends live events that no program will handle, page by page.
    async fn end_dead(&mut self) -> Result<(), Halt> {
        let dead = DeadEvents {
            page: self.options.batch,
            older_than: self.options.older_than,
            dry_run: self.options.dry_run,
            actor: self.options.actor.as_deref(),
            now: self.now,
        };
        let mut after = i64::MIN;
        let mut lines = EventLines::default();
        loop {
            let (client, page) = (self.client, after);
            let ended = self.steps.run(|| steps::end_dead(client, page, &dead));
            let Some(ended) = ended.await? else {
                return Ok(());
            };
            if !self.options.dry_run {
                for (ids, code) in [(&ended.expired, "expired"), (&ended.abandoned, "abandoned")] {
                    for id in ids {
                        lines.failed(*id, code);
                    }
                }
            }
            self.report.expired += count(&ended.expired);
            self.report.abandoned += count(&ended.abandoned);
            self.report_progress();
            match ended.last_id {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    /// Counts the rows of partitions into which no event can finish any more, so that dropping them takes no
    /// time (B23).
    async fn seal_closed(&mut self) -> Result<(), Halt> {
        for partition in steps::partitions(self.client, self.now).await? {
            if partition.counts == Counts::Final {
                self.seal(&partition).await?;
            }
        }
        Ok(())
    }

    async fn seal(&mut self, partition: &Partition) -> Result<(), Halt> {
        let (client, now) = (self.client, self.now);
        loop {
            let sealed = self
                .steps
                .run(|| steps::seal(client, &partition.name, now))
                .await?
                .flatten();
            self.report.partitions_sealed += u64::from(sealed == Some(true));
            self.report_progress();
            if sealed != Some(false) {
                return Ok(());
            }
        }
    }

    async fn drop_expired(&mut self) -> Result<(), Halt> {
        let (client, now) = (self.client, self.now);
        let actor = self.options.actor.as_deref();
        for partition in steps::partitions(client, now).await? {
            if !partition.over || partition.counts != Counts::Sealed {
                continue;
            }
            let name = &partition.name;
            let dropped = self
                .steps
                .run(|| steps::drop_partition(client, name, actor, now));
            if let Some(Some(rows)) = dropped.await? {
                self.count_dropped(partition.name, rows);
            }
        }
        Ok(())
    }

    /// Deletes expired rows in partitions that stay.
    async fn delete_expired(&mut self) -> Result<(), Halt> {
        for partition in steps::partitions(self.client, self.now).await? {
            if partition.due {
                self.delete_from(&partition.name).await?;
            }
        }
        Ok(())
    }

    async fn delete_from(&mut self, name: &str) -> Result<(), Halt> {
        let (client, options, now) = (self.client, self.options, self.now);
        let mut since = None;
        loop {
            let (batch, actor) = (options.batch, options.actor.as_deref());
            let delete =
                || steps::delete_expired(client, name, since.as_deref(), batch, actor, now);
            let Some(Walked { rows, next }) = self.steps.run(delete).await? else {
                return Ok(());
            };
            self.report.rows_deleted += rows;
            self.report_progress();
            if next.is_none() {
                return Ok(());
            }
            since = next;
        }
    }

    /// Forgets messages that will not arrive again, batch by batch.
    async fn forget_received(&mut self) -> Result<(), Halt> {
        let (client, options, now) = (self.client, self.options, self.now);
        let (batch, actor) = (options.batch, options.actor.as_deref());
        loop {
            let forget = || steps::forget_received(client, batch, options.dry_run, actor, now);
            let Some(forgotten) = self.steps.run(forget).await? else {
                return Ok(());
            };
            self.report.messages_forgotten += forgotten;
            self.report_progress();
            if options.dry_run || forgotten < u64::from(batch) {
                return Ok(());
            }
        }
    }

    /// Combines the figures of old minutes into hours and days. Nothing that matters to an operator is
    /// removed, so the report does not mention it.
    async fn fold_figures(&mut self) -> Result<(), Halt> {
        let (client, batch) = (self.client, self.options.batch);
        loop {
            let folded = self
                .steps
                .run(|| steps::fold_figures(client, batch))
                .await?;
            if folded.unwrap_or_default() < u64::from(batch) {
                return Ok(());
            }
        }
    }

    /// Reports what [`Self::make_partitions`] would do.
    async fn preview_partitions(&mut self) -> Result<(), Halt> {
        let client = self.client;
        for day in steps::missing_days(client, self.now).await? {
            let waiting = self.steps.run(|| steps::rows_in_default(client, &day));
            let Some(moved) = waiting.await? else {
                continue;
            };
            let made = if moved > steps::MOVED_AT_MOST {
                Made::LeftToDefault
            } else {
                Made::New { moved }
            };
            count_made(&mut self.report, made);
        }
        Ok(())
    }

    /// Reports what sealing, dropping and deleting would do.
    async fn preview_removal(&mut self) -> Result<(), Halt> {
        let (client, now) = (self.client, self.now);
        let expired = self.steps.run(|| steps::expired_rows(client, now));
        let Some(mut rows) = expired.await? else {
            return Ok(());
        };
        for partition in steps::partitions(client, now).await? {
            let expired = rows.remove(&partition.name).unwrap_or(0);
            self.report.partitions_sealed += u64::from(partition.counts == Counts::Final);
            if partition.over {
                self.count_dropped(partition.name, expired);
            } else {
                self.report.rows_deleted += expired;
            }
        }
        Ok(())
    }

    fn count_dropped(&mut self, partition: String, rows: u64) {
        self.report.partitions_dropped += 1;
        self.report.rows_dropped += rows;
        let dropped = DroppedPartition { partition, rows };
        self.report.dropped.push(dropped);
        self.report_progress();
    }

    fn report_progress(&self) {
        if let Some(progress) = &self.progress {
            progress.send_replace(self.report.clone());
        }
    }
}

fn count_made(report: &mut CleanupReport, made: Made) {
    match made {
        Made::New { moved } => {
            report.partitions_made += 1;
            report.rows_moved += moved;
        }
        Made::There => {}
        Made::LeftToDefault => report.left_to_default += 1,
    }
}

fn count(ids: &[i64]) -> u64 {
    u64::try_from(ids.len()).unwrap_or(u64::MAX)
}
