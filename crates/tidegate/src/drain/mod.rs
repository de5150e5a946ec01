//! Owns the one loop: lease ahead, start handlers, write down what became of events, until the queue
//! is empty or the budget spent; then give back the rest and report. It holds no SQL and knows no kind.
//!
//! Everything the loop decides on lives in one task, on a thread of its own with its two connections: a handler that
//! blocks its thread stops neither renewals nor the deadline. Handlers run in tasks of the caller's runtime, the `lanes`.
//! Leasing and writing go over two connections, so that the next batch is taken while the last one is written
//! (99,000 events/s against 73,000 on one).
//!
//! Order inside a group survives the overlap by two rules. A drain may lease further events of a
//! group it holds, because they queue up behind in `hand`. And while something goes back to the queue no lease is under
//! way, so that both sides always agree on what is in hand.
//!
//! This file holds the loop and its state; `handling` is what it does with handlers, `exchange`
//! what it does with the database.

mod exchange;
mod execute;
mod hand;
mod handling;
mod lanes;
mod leaser;
mod link;
mod report;
pub(crate) mod settle;
mod walk;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use self::execute::Handling;
#[cfg(feature = "testing")]
pub(crate) use self::execute::{Limits, execute};
use self::hand::Hand;
use self::lanes::Lanes;
use self::leaser::Arrival;
use self::link::Slot;
pub use self::report::{DrainReport, StopReason};
use self::walk::Cursor;
use self::writer::{End, Job, Round};
use crate::budget::Budget;
use crate::config::{Lookup, duration, number};
use crate::connect::Database;
use crate::context::Context;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::event::Event;
use crate::figures::Figures;
use crate::lease::Lease;
use crate::outcome::RetryPolicy;
use crate::queue;
use crate::xray::{self, Exporter};

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
    /// Reads the drain's options: `TIDEGATE_BUDGET`, `_BATCH`, `_CONCURRENCY`, `_LEASE_TIMEOUT`,
    /// `_HANDLER_TIMEOUT`, `_BACKOFF_BASE`, `_BACKOFF_MAX`, `_LINGER`, `_XRAY`.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let default = Self::default();
        Ok(Self {
            budget: duration(lookup, "TIDEGATE_BUDGET", default.budget)?,
            batch: number(lookup, "TIDEGATE_BATCH", default.batch, 1, 10_000)?,
            concurrency: number(lookup, "TIDEGATE_CONCURRENCY", default.concurrency, 1, 1000)?,
            lease_timeout: duration(lookup, "TIDEGATE_LEASE_TIMEOUT", default.lease_timeout)?,
            handler_timeout: duration(lookup, "TIDEGATE_HANDLER_TIMEOUT", default.handler_timeout)?,
            linger: duration(lookup, "TIDEGATE_LINGER", default.linger)?,
            max_events: None,
            retry: RetryPolicy {
                base: duration(lookup, "TIDEGATE_BACKOFF_BASE", default.retry.base)?,
                max: duration(lookup, "TIDEGATE_BACKOFF_MAX", default.retry.max)?,
            },
            xray: xray::daemon(lookup)?,
        })
    }

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
    /// Where handlers run; the caller's runtime when `None`. Handlers that block every thread of it keep it from everything
    /// else: who must answer in time whatever they do gives them one of their own.
    pub handlers: Option<Handle>,
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
    let mut hooks = hooks;
    let handlers = hooks.handlers.take().unwrap_or_else(Handle::current);
    let lanes = Lanes::new(options.concurrency, handlers);
    let (options, span) = (options.clone(), tracing::Span::current());
    let run = move || {
        Drain::new(database, app, options, hooks, lanes)
            .run_to_end()
            .instrument(span)
    };
    on_own_thread(run).await.unwrap_or_else(|| {
        let gone = "the drain's thread could not be started".to_owned();
        Err(refused(Error::Connect(gone)))
    })
}

/// Runs a future on a thread of its own, which ends with this one. A panic there is one here.
async fn on_own_thread<T, F>(make: impl FnOnce() -> F + Send + 'static) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let (tell, told) = oneshot::channel();
    let (here, gone) = oneshot::channel::<()>();
    let logs = tracing::dispatcher::get_default(Clone::clone);
    let work = move || {
        let _logs = tracing::dispatcher::set_default(&logs);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            tokio::select! {
                ended = make() => drop(tell.send(ended)),
                _ = gone => {}
            }
        });
    };
    let thread = std::thread::Builder::new()
        .name("tidegate-drain".to_owned())
        .spawn(work)
        .ok()?;
    let ended = told.await;
    drop(here);
    match ended {
        Ok(ended) => Some(ended),
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => None,
        },
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A full write is worth waiting this long for: one commit for many events.
const FLUSH_AGE: Duration = Duration::from_millis(10);

/// A window is this much work: about what passes until the database has been told of the next one, several times over.
const WINDOW: Duration = Duration::from_millis(50);

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
    /// Names this run in the leases that it takes.
    worker: Uuid,
    walk: Cursor,
    hand: Hand,
    /// What was handed to the lanes and has not ended.
    running: BTreeMap<Lease, Arc<Context>>,
    lanes: Lanes<Handling<D>>,
    pending: Job,
    pending_since: Instant,
    /// Ends whose follow-ups wait for another publisher, to be tried again then.
    busy: Vec<End>,
    busy_until: Instant,
    /// Either the idle link or the work it is busy with.
    leasing: Slot<Arrival>,
    writing: Slot<Round>,
    between: Between,
    completions: u64,
    flushed: (watch::Sender<u64>, watch::Receiver<u64>),
    /// Number of each group's last completion that is not written yet.
    group_ends: HashMap<String, u64>,
    seen_empty: bool,
    /// When the last lease that has arrived was asked for.
    looked_at: Instant,
    /// The last lease left out kinds that there was no time for.
    kinds_left_out: bool,
    idle_since: Option<Instant>,
    write_failures: u32,
    write_after: Instant,
    /// Why the run will end as failed.
    failed: Option<Error>,
}

/// What the leasing and the writing session must know of each other.
#[derive(Default)]
struct Between {
    /// What is being written leaves our hands without an end, or is read again.
    writes_back: bool,
    /// The lease that is under way brings events that may start at once.
    brings_window: bool,
    /// Something was taken from us: nothing starts until it was read again what is in hand.
    rereads: bool,
}

impl<D: Dispatch> Drain<D> {
    fn new(
        database: Database,
        app: Arc<D>,
        options: DrainOptions,
        hooks: Hooks,
        lanes: Lanes<Handling<D>>,
    ) -> Self {
        let now = Instant::now();
        Self {
            app,
            budget: Budget::new(options.budget),
            report: DrainReport {
                budget_ms: millis(options.budget),
                ..DrainReport::default()
            },
            figures: hooks.figures.is_some().then(Figures::default),
            hooks,
            xray: options.xray.and_then(Exporter::open),
            worker: Uuid::new_v4(),
            walk: Cursor::new(options.concurrency, options.batch),
            hand: Hand::default(),
            running: BTreeMap::new(),
            lanes,
            pending: Job::default(),
            pending_since: now,
            busy: Vec::new(),
            busy_until: now,
            leasing: Slot::new(&database),
            writing: Slot::new(&database),
            between: Between::default(),
            completions: 0,
            flushed: watch::channel(0),
            group_ends: HashMap::new(),
            seen_empty: false,
            looked_at: now,
            kinds_left_out: false,
            idle_since: None,
            write_failures: 0,
            write_after: now,
            failed: None,
            database,
            options,
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
        if !self.writing.is_idle() {
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
            self.send_write();
            if let Some(reason) = self.stop_reason() {
                self.report.stop_reason = reason;
                return match self.failed.take() {
                    Some(error) => Err(error),
                    None => self.count_backlog().await,
                };
            }
            self.send_lease();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                ended = self.lanes.ended() => self.handlers_ended(ended),
                round = self.writing.done() => self.written(round)?,
                arrival = self.leasing.done() => self.lease_arrived(arrival),
                () = stop_signal(&mut self.hooks.stop) => self.budget.stop(),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// The run will end as failed: nothing new is leased or started, what has ended is written down as far as that
    /// goes, and the rest is given back.
    fn fail(&mut self, error: Error) {
        self.budget.stop();
        self.failed.get_or_insert(error);
    }

    /// Nothing in hand, nothing to write.
    fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.hand.waiting() == 0
            && !self.hand.has_over()
            && self.pending.is_empty()
            && self.busy.is_empty()
            && !self.between.rereads
            && self.writing.is_idle()
    }

    /// Events that have ended, or go back, and are not written.
    fn unwritten(&self) -> usize {
        self.pending.outcomes() + self.busy.len()
    }

    /// No handler starts while more waits to be written than this: what is slow is the database, and it must not be
    /// memory that pays for it.
    fn most_unwritten(&self) -> usize {
        (self.options.batch as usize * 2).max(self.options.concurrency * 2)
    }

    /// How many events of a lease may start without the database being told anew: as many as the handlers do in
    /// [`WINDOW`]. If this worker goes away, so many lose an attempt.
    fn window(&self) -> usize {
        let least = self.options.concurrency;
        let Some(typical) = self.lanes.typical() else {
            return least;
        };
        let each = WINDOW.as_nanos() / typical.as_nanos().max(1);
        let each = usize::try_from(each).unwrap_or(usize::MAX);
        each.saturating_mul(least)
            .clamp(least, (self.options.batch as usize).max(least))
    }

    /// The queue was seen empty, and again when linger was over.
    fn is_settled_empty(&mut self) -> bool {
        if !self.seen_empty || !self.is_idle() {
            self.idle_since = None;
            return false;
        }
        let now = Instant::now();
        let over = *self.idle_since.get_or_insert(now) + self.options.linger;
        if now < over {
            return false;
        }
        if self.options.linger.is_zero() || self.looked_at >= over {
            return true;
        }
        self.walk.hurry();
        false
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
        let now = Instant::now();
        !D::Event::KINDS
            .iter()
            .any(|kind| self.budget.allows(kind, now))
    }

    /// When something must be done even if nothing happens.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + Duration::from_millis(250);
        if self.writing.is_idle() && (self.pending.outcomes() > 0 || self.hand.has_over()) {
            wake = wake.min((self.pending_since + FLUSH_AGE).max(self.write_after));
        }
        if !self.busy.is_empty() {
            wake = wake.min(self.busy_until);
        }
        if self.leasing.is_idle() && self.hand.waiting() == 0 {
            wake = wake.min(self.walk.poll_at());
        }
        if let Some(open_at) = self.lanes.open_at() {
            wake = wake.min(open_at);
        }
        // Never a busy loop: what is due and cannot be done yet waits for an answer, not for time.
        wake.max(now + Duration::from_millis(1))
    }

    /// The last question to the database, and the last of our leases.
    async fn count_backlog(&mut self) -> Result<(), Error> {
        let ended = self.hand.take_ended();
        let Some(link) = self.leasing.idle() else {
            return Ok(());
        };
        let client = link.client().await?;
        let (removed, backlog) =
            futures_util::future::join(queue::remove_ended(client, &ended), queue::backlog(client))
                .await;
        removed?;
        let backlog = backlog?;
        self.report.backlog = backlog.events;
        self.report.oldest_age_ms = backlog.oldest_age_ms;
        // Not at the end of a spent budget: the caller's deadline comes first.
        if backlog.events > 0 && self.report.stop_reason == StopReason::QueueEmpty {
            self.report.unhandled = queue::others(client, D::Event::KINDS).await?;
        }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::dispatch::{DATABASE_ONLY, Handlers};
    use crate::handler::Done;

    crate::events! {
        enum Nothing {
            Nothing(serde_json::Value) = "nothing",
        }
    }

    struct Idle;

    impl Dispatch for Idle {
        type Event = Nothing;

        fn handlers<'a>(&'a self, _: &'a Nothing, _: &'a Context) -> Handlers<'a> {
            Handlers::one("idle", DATABASE_ONLY, async { Ok(Done::ok()) })
        }
    }

    /// A server that says nothing: not even hello, or nothing more once it has let somebody in.
    async fn silent_server(lets_in: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(say_nothing(stream, lets_in));
            }
        });
        format!("postgres://nobody@127.0.0.1:{port}/nothing?sslmode=disable")
    }

    async fn say_nothing(mut stream: TcpStream, lets_in: bool) {
        let mut heard = [0; 1024];
        let mut first = lets_in;
        while stream.read(&mut heard).await.is_ok_and(|count| count > 0) {
            if std::mem::take(&mut first) {
                // AuthenticationOk, ReadyForQuery.
                let welcome = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
                stream.write_all(welcome).await.unwrap();
            }
        }
    }

    #[test]
    fn c12_defaults_are_the_documented_ones_and_can_be_overridden() {
        let options = DrainOptions::from_settings(&|_| None).unwrap();
        assert_eq!(options.budget, Duration::from_secs(50));
        assert_eq!(options.concurrency, 8);
        assert_eq!(options.lease_timeout, Duration::from_mins(1));
        assert_eq!(options.handler_timeout, Duration::from_secs(30));
        assert_eq!(options.retry.base, Duration::from_secs(1));
        assert_eq!(options.retry.max, Duration::from_mins(10));
        let options = DrainOptions::from_settings(&|name| {
            (name == "TIDEGATE_LEASE_TIMEOUT").then(|| "5m".to_owned())
        })
        .unwrap();
        assert_eq!(options.lease_timeout, Duration::from_mins(5));
    }

    #[test]
    fn a_bad_option_is_refused_by_name_with_what_is_allowed() {
        for (variable, value, allowed) in [
            ("TIDEGATE_BUDGET", "soon", "500ms, 30s, 5m or 1h"),
            ("TIDEGATE_BUDGET", "11y", "longer than ten years"),
            ("TIDEGATE_BATCH", "0", "1 to 10000"),
            ("TIDEGATE_CONCURRENCY", "many", "1 to 1000"),
        ] {
            let error =
                DrainOptions::from_settings(&|name| (name == variable).then(|| value.to_owned()))
                    .unwrap_err()
                    .to_string();
            assert!(
                error.contains(variable) && error.contains(allowed) && error.contains(value),
                "{error}"
            );
        }
    }

    /// In virtual time: it jumps ahead whenever nothing is under way in this process.
    #[tokio::test(start_paused = true)]
    async fn i8_no_run_outlives_its_budget_by_more_than_a_second_under_a_server_that_says_nothing()
    {
        for lets_in in [false, true] {
            let url = silent_server(lets_in).await;
            for seconds in [1, 84, 300, 800] {
                let options = DrainOptions {
                    budget: Duration::from_secs(seconds),
                    ..DrainOptions::default()
                };
                let database = Database::new(&url, 1).unwrap();
                let lanes = Lanes::new(options.concurrency, Handle::current());
                let limit = options.budget + OVERRUN;
                let began = Instant::now();
                let drain = Drain::new(database, Arc::new(Idle), options, Hooks::default(), lanes);
                let ended = drain.run_to_end().await;
                assert!(ended.is_err());
                assert!(began.elapsed() <= limit, "{lets_in}, {:?}", began.elapsed());
            }
        }
    }
}
