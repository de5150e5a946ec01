//! Owns the one loop: lease ahead, start handlers, write down what became of events, until the queue
//! is empty or the budget spent; then give back the rest and report. It holds no SQL and knows no kind.
//!
//! Everything the loop decides on lives in one task; handlers run in tasks of their own, the `lanes`. Leasing and
//! writing go over two connections, so that the next batch is taken while the last one is written
//! (99,000 events/s against 73,000 on one).
//!
//! Order inside a group survives the overlap by two rules. A drain may lease further events of a
//! group it holds, because they queue up behind in `schedule`. And an event that goes back to the
//! queue closes its group (`Barred`): what was leased behind it goes back too, including what a
//! lease already under way still brings.
//!
//! This file holds the loop and its state; `handling` is what it does with handlers, `exchange`
//! what it does with the database.

mod behind;
mod exchange;
mod execute;
mod flusher;
mod handling;
mod lanes;
mod leaser;
mod link;
mod pace;
mod schedule;
pub(crate) mod settle;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use self::flusher::{Flush, Job};
use self::lanes::Lanes;
use self::leaser::Arrival;
use self::link::Slot;
use self::pace::Pace;
use self::schedule::Schedule;
use crate::budget::Budget;
use crate::connect::Database;
use crate::context::Context;
use crate::error::Error;
use crate::event::{Event, Lease};
use crate::figures::Figures;
use crate::handler::Dispatch;
use crate::invocation::{DrainReport, StopReason};
use crate::outcome::RetryPolicy;
use crate::queue;
use crate::xray::Exporter;

/// How to drain. Every duration is of this machine's clock, but for the lease's, which is the database's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainOptions {
    /// The whole run; a tenth of it, at most 2 s, is kept for writing down.
    pub budget: Duration,
    /// Most events leased at once, 1 to 10,000.
    pub batch: u32,
    /// Handlers at once, 1 to 1,000; with 1 the whole queue is FIFO (A2). With more, drains beside each other may begin
    /// events without a group that came later a second before older ones.
    pub concurrency: usize,
    /// After this long without a word from its worker an event is abandoned (C12).
    pub lease_timeout: Duration,
    /// Each handler's limit (B16); must fit into nine tenths of a lease.
    pub handler_timeout: Duration,
    /// Keep polling an empty queue for this long.
    pub linger: Duration,
    /// Lease at most this many.
    pub max_events: Option<u64>,
    /// Backoff between attempts.
    pub retry: RetryPolicy,
    /// The X-Ray daemon that is told of events under a sampled trace; `None` tells nobody.
    pub xray: Option<SocketAddr>,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(50),
            batch: 1000,
            concurrency: 8,
            lease_timeout: Duration::from_mins(1),
            handler_timeout: Duration::from_secs(30),
            linger: Duration::ZERO,
            max_events: None,
            retry: RetryPolicy::default(),
            xray: None,
        }
    }
}

impl DrainOptions {
    /// Checks ranges, and that a handler's limit fits into a lease with a tenth to spare (decision 3).
    ///
    /// # Errors
    /// [`Error::Config`] names the option and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Config(text));
        if !(1..=10_000).contains(&self.batch) {
            return refuse(format!("batch: 1 to 10000 is allowed, got {}", self.batch));
        }
        if !(1..=1000).contains(&self.concurrency) {
            return refuse(format!(
                "concurrency: 1 to 1000 is allowed, got {}",
                self.concurrency
            ));
        }
        if self.handler_timeout.is_zero() || self.handler_timeout > self.lease_timeout.mul_f64(0.9)
        {
            return refuse(format!(
                "handler timeout: must fit into nine tenths of the lease timeout of {:?}, got {:?}",
                self.lease_timeout, self.handler_timeout
            ));
        }
        Ok(())
    }
}

/// A drain that the infrastructure ended, with what it had done by then.
#[derive(Debug, thiserror::Error)]
#[error("{source}; until then: {} leased, {} completed, {} failed, {} retried", .report.leased, .report.completed, .report.failed, .report.retried)]
pub struct DrainError {
    /// Counts so far; what was in hand is missing from them and lapses with its leases.
    pub report: Box<DrainReport>,
    /// Why it ended.
    pub source: Error,
}

/// What a drain listens to and tells while it runs.
#[derive(Default)]
pub struct Hooks {
    /// Turns true to end the run as if the budget were spent.
    pub stop: Option<watch::Receiver<bool>>,
    /// Counts so far, told after every write.
    pub progress: Option<watch::Sender<DrainReport>>,
    /// Takes the run's figures by kind when it ends, also when it fails.
    pub figures: Option<oneshot::Sender<Figures>>,
}

/// Drains the queue with `app`'s handlers.
///
/// # Errors
/// When options are out of range or the database stays away; events in hand come back when their
/// leases end.
pub async fn drain<D: Dispatch>(
    database: &Database,
    app: Arc<D>,
    options: &DrainOptions,
) -> Result<DrainReport, DrainError> {
    drain_with(database, app, options, Hooks::default()).await
}

/// As [`drain`], with a stop signal and a view of the progress.
///
/// # Errors
/// As [`drain`].
pub async fn drain_with<D: Dispatch>(
    database: &Database,
    app: Arc<D>,
    options: &DrainOptions,
    hooks: Hooks,
) -> Result<DrainReport, DrainError> {
    let refused = |source| DrainError {
        report: Box::default(),
        source,
    };
    options.check().map_err(refused)?;
    let database = database.with_own_pool().map_err(refused)?;
    let run = Drain::new(&database, app, options, hooks).run_to_end();
    // A task that ends with this future: from a worker thread of the runtime a handler starts without the
    // thread that waits here being woken for each (drains are 3 % faster).
    let mut task = JoinSet::new();
    task.spawn(run.in_current_span());
    match task.join_next().await {
        Some(Ok(drained)) => drained,
        Some(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        _ => Err(refused(Error::Connect(
            "the runtime is shutting down".to_owned(),
        ))),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A full write is worth waiting this long for: one commit for many events.
const FLUSH_AGE: Duration = Duration::from_millis(10);

/// The run ends this long after its budget at the latest, whatever the database does. The same for every budget:
/// what a caller keeps of an invocation for the answer does not grow with it either.
pub const OVERRUN: Duration = Duration::from_secs(1);

struct Drain<D: Dispatch> {
    app: Arc<D>,
    database: Database,
    options: DrainOptions,
    hooks: Hooks,
    budget: Budget,
    report: DrainReport,
    /// Kept only if somebody asked for them.
    figures: Option<Figures>,
    /// Open only if traces are exported.
    xray: Option<Exporter>,
    pace: Pace,
    schedule: Schedule,
    /// What was handed to the lanes and has not ended.
    running: BTreeMap<Lease, Arc<Context>>,
    lanes: Lanes,
    pending: Job,
    pending_since: Instant,
    /// Either the idle link or the work it is busy with.
    leasing: Slot<Arrival>,
    flushing: Slot<Flush>,
    held: HashMap<Uuid, Held>,
    barred: HashMap<String, Barred>,
    leases_sent: u64,
    completions: u64,
    flushed: (watch::Sender<u64>, watch::Receiver<u64>),
    /// Number of each group's last completion that is not written yet.
    group_ends: HashMap<String, u64>,
    seen_empty: bool,
    /// The last lease left out kinds that there was no time for.
    kinds_left_out: bool,
    idle_since: Option<Instant>,
}

/// A lease's token, while rows of it are in hand.
struct Held {
    rows: usize,
    /// No row of it has a lower id.
    lowest: i64,
    renewed: Instant,
}

/// A group of which events go back to the queue. Whatever else of it is leased goes back too, until
/// all of that is written and every lease sent before has arrived.
#[derive(Default)]
struct Barred {
    /// Events that go back and are not written yet.
    unwritten: usize,
    /// The last lease that may still bring events from before; known when all is written.
    until_lease: Option<u64>,
}

impl<D: Dispatch> Drain<D> {
    fn new(database: &Database, app: Arc<D>, options: &DrainOptions, hooks: Hooks) -> Self {
        let now = Instant::now();
        Self {
            app,
            database: database.clone(),
            options: options.clone(),
            budget: Budget::new(options.budget),
            report: DrainReport {
                budget_ms: millis(options.budget),
                ..DrainReport::default()
            },
            figures: hooks.figures.is_some().then(Figures::default),
            hooks,
            xray: options.xray.and_then(Exporter::open),
            pace: Pace::new(options.concurrency, options.batch),
            schedule: Schedule::default(),
            running: BTreeMap::new(),
            lanes: Lanes::new(options.concurrency),
            pending: Job::default(),
            pending_since: now,
            leasing: Slot::new(database),
            flushing: Slot::new(database),
            held: HashMap::new(),
            barred: HashMap::new(),
            leases_sent: 0,
            completions: 0,
            flushed: watch::channel(0),
            group_ends: HashMap::new(),
            seen_empty: false,
            kinds_left_out: false,
            idle_since: None,
        }
    }

    /// The whole run, with its report and figures.
    async fn run_to_end(mut self) -> Result<DrainReport, DrainError> {
        let ended = self.run_in_time().await;
        self.report.elapsed_ms = millis(self.budget.elapsed());
        if let (Some(asked), Some(figures)) = (self.hooks.figures.take(), self.figures.take()) {
            // Who asked may have gone.
            let _ = asked.send(figures);
        }
        match ended {
            Ok(()) => Ok(self.report),
            Err(source) => Err(DrainError {
                report: Box::new(self.report),
                source,
            }),
        }
    }

    /// The database has had its time when the limit is over: the caller's own deadline comes first. Nothing
    /// that the run waits for is outside of this.
    async fn run_in_time(&mut self) -> Result<(), Error> {
        let limit = self.budget.total() + OVERRUN;
        let left = limit.saturating_sub(self.budget.elapsed());
        let ended = tokio::time::timeout(left, self.run()).await;
        ended.unwrap_or_else(|_| {
            Err(Error::TimedOut {
                stage: self.waits_for(),
                limit,
            })
        })
    }

    /// What a run that was cut would have gone on with.
    fn waits_for(&self) -> &'static str {
        if !self.flushing.is_idle() {
            "write outcomes"
        } else if !self.leasing.is_idle() {
            "lease"
        } else if !self.running.is_empty() {
            "handlers"
        } else {
            "backlog"
        }
    }

    /// The loop. Each pass starts what can start, then waits for the next thing to happen.
    async fn run(&mut self) -> Result<(), Error> {
        loop {
            self.cut_overdue();
            self.start_handlers();
            self.give_back_rest();
            self.send_flush();
            if let Some(reason) = self.stop_reason() {
                self.report.stop_reason = reason;
                return self.count_backlog().await;
            }
            self.send_lease();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                ended = self.lanes.ended() => self.handlers_ended(ended),
                flush = self.flushing.done() => self.flush_done(flush)?,
                arrival = self.leasing.done() => self.lease_arrived(arrival)?,
                () = stop_signal(&mut self.hooks.stop) => self.budget.stop(),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Nothing in hand, nothing to write.
    fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.schedule.is_empty()
            && !self.pending.has_outcomes()
            && self.flushing.is_idle()
    }

    /// The queue was seen empty and linger is over.
    fn is_settled_empty(&mut self) -> bool {
        if !self.seen_empty || !self.is_idle() {
            self.idle_since = None;
            return false;
        }
        self.idle_since.get_or_insert_with(Instant::now).elapsed() >= self.options.linger
    }

    /// Whether the run is over, and why.
    fn stop_reason(&mut self) -> Option<StopReason> {
        if !self.is_idle() || !self.leasing.is_idle() {
            return None;
        }
        if self.is_spent() {
            return Some(StopReason::BudgetSpent);
        }
        if self
            .options
            .max_events
            .is_some_and(|limit| self.report.leased >= limit)
        {
            return Some(StopReason::LimitReached);
        }
        // Kinds that there was no time for may still wait.
        let reason = if self.kinds_left_out {
            StopReason::BudgetSpent
        } else {
            StopReason::QueueEmpty
        };
        self.is_settled_empty().then_some(reason)
    }

    /// Whether there is time for no kind of event any more.
    fn is_spent(&self) -> bool {
        !D::Event::KINDS.iter().any(|kind| self.budget.allows(kind))
    }

    /// When something must be done even if nothing happens.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + Duration::from_millis(250);
        if self.pending.has_outcomes() {
            wake = wake.min(self.pending_since + FLUSH_AGE);
        }
        if self.leasing.is_idle() && self.schedule.is_empty() {
            wake = wake.min(self.pace.poll_at());
        }
        if let Some(open_at) = self.lanes.open_at() {
            wake = wake.min(open_at);
        }
        // Never a busy loop: what is due and cannot be done yet waits for an answer, not for time.
        wake.max(now + Duration::from_millis(1))
    }

    /// The last question to the database.
    async fn count_backlog(&mut self) -> Result<(), Error> {
        let Some(link) = self.leasing.idle() else {
            return Ok(());
        };
        let backlog = queue::backlog(link.client().await?).await?;
        self.report.backlog = backlog.events;
        self.report.oldest_age_ms = backlog.oldest_age_ms;
        Ok(())
    }
}

async fn stop_signal(stop: &mut Option<watch::Receiver<bool>>) {
    let stopped = match stop {
        Some(stop) => stop.wait_for(|stopped| *stopped).await.is_ok(),
        None => false,
    };
    if stopped {
        *stop = None;
        return;
    }
    std::future::pending::<()>().await;
}
