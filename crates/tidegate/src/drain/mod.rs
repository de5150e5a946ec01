//! Owns the one loop. It leases ahead, starts handlers and writes the ends of events, until the queue is
//! empty or the budget is spent. Then it releases the remaining events and reports. It holds no SQL and knows
//! no kind.
//!
//! All decisions of the loop are made in one task, on its own thread with its two connections. Therefore a
//! handler that blocks its thread stops neither lease renewals nor the deadline. Handlers run in tasks of the
//! caller's runtime, the `workers`. Leases and writes go over two connections, so the loop leases the next
//! batch while it writes the last one (99,000 events/s against 73,000 on one connection).
//!
//! Two rules keep the order inside a group despite this overlap. First, a drain may lease further events of a
//! group that it holds, because in `buffer` those events line up behind the earlier ones. Second, no lease is
//! under way while an event goes back to the queue, so both sides always agree on which events are in the buffer.
//!
//! This file holds the loop and its state. The work is in `leasing`, `limiting`, `running` and `writing`.

mod buffer;
mod clocks;
pub(crate) mod execute;
mod flush;
mod leaser;
mod leases;
mod leasing;
mod limiting;
mod limits;
pub mod lines;
mod observers;
mod options;
mod outbox;
mod report;
mod running;
mod scan;
mod scheduling;
pub(crate) mod services;
mod session;
pub(crate) mod settle;
mod slots;
mod spans;
mod workers;
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use self::buffer::Buffer;
use self::execute::EventRun;
use self::flush::FlushResult;
use self::leaser::Fetched;
use self::leasing::Empty;
use self::limits::ServiceLimits;
use self::lines::EventLines;
use self::observers::Observers;
pub use self::options::DrainOptions;
use self::outbox::Outbox;
pub use self::report::{Cost, DrainReport, StopReason};
use self::scan::Scan;
use self::scheduling::Scheduling;
use self::services::Services;
use self::session::Slot;
use self::slots::Slots;
use self::spans::Spans;
use self::workers::Pool;
use crate::budget::{Budget, millis};
use crate::chain::{Chain, StartDrain};
use crate::connect::Database;
use crate::context::Context;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::event::Event;
use crate::figures::Figures;
use crate::lease::Lease;
use crate::policy::Policies;
use crate::queue;
use crate::sealing;

/// A drain that an infrastructure error ended, with its counts so far.
#[derive(Debug, thiserror::Error)]
#[error("{source}; until then: {} leased, {} completed, {} failed, {} retried", .report.leased, .report.completed, .report.failed, .report.retried)]
pub struct DrainError {
    /// Counts so far, without the events in the buffer. Their leases run out.
    pub report: Box<DrainReport>,
    /// The error that ended it.
    pub source: Error,
}

/// The signals that a drain listens to and sends while it runs.
#[derive(Default)]
pub struct Hooks {
    /// Turns true to end the run as if the budget were spent.
    pub stop: Option<watch::Receiver<bool>>,
    /// Receives the counts so far after every write.
    pub progress: Option<watch::Sender<DrainReport>>,
    /// The runtime of the handlers; the caller's runtime if `None`. Handlers that block all its threads also
    /// block everything else on it. A caller that must answer in time gives the handlers a runtime of their
    /// own.
    pub handlers: Option<Handle>,
    /// The drain's place in a chain of drains that start each other. `None` begins a chain.
    pub chain: Option<Chain>,
    /// Starts further drains: alongside this one while there is more to do than it can finish in time, and
    /// after it if its budget is spent and events are left. `None` leaves that to the schedule.
    pub starter: Option<Arc<dyn StartDrain>>,
}

/// Drains the queue with `app`'s handlers.
///
/// # Errors
/// If options are out of range or the database stays unavailable. Events in the buffer become available again when
/// their leases run out.
pub async fn drain<D: Dispatch>(
    database: &Database,
    app: Arc<D>,
    options: &DrainOptions,
) -> Result<DrainReport, DrainError> {
    drain_with(database, app, options, Hooks::default()).await
}

/// Like [`drain`], with hooks such as a stop signal and progress reports.
///
/// # Errors
/// The same as for [`drain`].
pub async fn drain_with<D: Dispatch>(
    database: &Database,
    app: Arc<D>,
    options: &DrainOptions,
    hooks: Hooks,
) -> Result<DrainReport, DrainError> {
    drain_measured(database, app, options, hooks, None).await
}

/// Like [`drain_with`]. `figures` receives the run's figures by kind when it ends, even if it fails.
pub(crate) async fn drain_measured<D: Dispatch>(
    database: &Database,
    app: Arc<D>,
    options: &DrainOptions,
    hooks: Hooks,
    figures: Option<oneshot::Sender<Figures>>,
) -> Result<DrainReport, DrainError> {
    let refused = |source| DrainError {
        report: Box::default(),
        source,
    };
    options.check().map_err(refused)?;
    sealing::ready().await.map_err(refused)?;
    let database = database.with_own_pool().map_err(refused)?;
    let mut hooks = hooks;
    let handlers = hooks.handlers.take().unwrap_or_else(Handle::current);
    let workers = Pool::new(options.concurrency, handlers);
    let observers = Observers::new(hooks.progress.take(), figures, Spans::begin(hooks.chain));
    let (options, span) = (options.clone(), tracing::Span::current());
    let run = move || {
        Drain::new(database, app, options, (hooks, observers), workers)
            .run_to_end()
            .instrument(span)
    };
    on_own_thread(run).await.unwrap_or_else(|| {
        let gone = "the drain's thread could not be started".to_owned();
        Err(refused(Error::Connect(gone)))
    })
}

/// Runs a future on its own thread, which ends with the future. A panic there continues here.
async fn on_own_thread<T, F>(make: impl FnOnce() -> F + Send + 'static) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let (sender, receiver) = oneshot::channel();
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
                ended = make() => drop(sender.send(ended)),
                _ = gone => {}
            }
        });
    };
    let thread = std::thread::Builder::new()
        .name("tidegate-drain".to_owned())
        .spawn(work)
        .ok()?;
    let ended = receiver.await;
    drop(here);
    match ended {
        Ok(ended) => Some(ended),
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => None,
        },
    }
}

/// The longest time that a run may take after its budget, whatever the database does. It is the same for
/// every budget, so the time that a caller reserves for its answer does not grow with the budget either.
pub const OVERRUN: Duration = Duration::from_secs(1);

struct Drain<D: Dispatch> {
    app: Arc<D>,
    database: Database,
    options: DrainOptions,
    /// Turns true to end the run as if the budget were spent.
    stop: Option<watch::Receiver<bool>>,
    observers: Observers,
    budget: Budget,
    report: DrainReport,
    lines: EventLines,
    /// The name of this run in its leases.
    worker: Uuid,
    slots: Slots,
    scan: Scan,
    buffer: Buffer,
    /// Events that were handed to the workers and have not ended.
    running: BTreeMap<Lease, Arc<Context>>,
    workers: Pool<EventRun<D>>,
    services: Arc<Services>,
    limits: ServiceLimits,
    policies: Policies,
    scheduling: Scheduling,
    outbox: Outbox,
    /// Either the idle session or the work that it does.
    leasing: Slot<Fetched>,
    writing: Slot<FlushResult>,
    /// When the current write was sent.
    write_sent: Instant,
    /// The total time spent waiting for the sessions so far.
    database_time: Duration,
    between: Between,
    empty: Empty,
    /// The error that makes the run fail.
    failed: Option<Error>,
}

/// The state that the leasing session and the writing session share.
#[derive(Default)]
struct Between {
    /// The current write releases events without an end, or reads them again.
    writes_back: bool,
    /// The current lease brings events that may start at once.
    brings_window: bool,
    /// Events were taken from this drain. No handler starts until the events in the buffer have been read again.
    rereads: bool,
}

impl<D: Dispatch> Drain<D> {
    fn new(
        database: Database,
        app: Arc<D>,
        options: DrainOptions,
        (hooks, observers): (Hooks, Observers),
        workers: Pool<EventRun<D>>,
    ) -> Self {
        Self {
            app,
            budget: Budget::new(options.budget),
            report: DrainReport {
                budget_ms: millis(options.budget),
                ..DrainReport::default()
            },
            lines: EventLines::default(),
            stop: hooks.stop,
            observers,
            worker: Uuid::new_v4(),
            slots: Slots::new(hooks.chain, hooks.starter, workers.runtime()),
            scan: Scan::new(options.concurrency, options.batch),
            buffer: Buffer::default(),
            running: BTreeMap::new(),
            workers,
            services: Arc::default(),
            limits: ServiceLimits::new(options.concurrency, options.batch, options.lease_timeout),
            policies: Policies::default(),
            scheduling: Scheduling::new(),
            outbox: Outbox::new(),
            leasing: Slot::new(&database),
            writing: Slot::new(&database),
            write_sent: Instant::now(),
            database_time: Duration::ZERO,
            between: Between::default(),
            empty: Empty {
                seen: false,
                looked_at: Instant::now(),
                since: None,
                kinds_left_out: false,
            },
            failed: None,
            database,
            options,
        }
    }

    /// Runs the whole loop and returns the report.
    async fn run_to_end(mut self) -> Result<DrainReport, DrainError> {
        let ended = self.run_in_time().await;
        self.close_workers().await;
        self.start_next().await;
        let elapsed = self.budget.elapsed();
        self.report.elapsed_ms = millis(elapsed);
        self.report.cost.database_ms = millis(self.database_time);
        let ended_events = self.report.ended();
        let memory = self.options.memory_mb;
        self.report.cost.charged(elapsed, memory, ended_events);
        self.observers.ended(&self.report, ended.as_ref().err());
        self.note_run().await;
        match ended {
            Ok(()) => Ok(self.report),
            Err(source) => Err(DrainError {
                report: Box::new(self.report),
                source,
            }),
        }
    }

    /// Runs within the limit. When the limit is over, the run ends without waiting for the database: the
    /// caller's own deadline comes first. The limit covers everything that the run waits for.
    async fn run_in_time(&mut self) -> Result<(), Error> {
        let limit = self.limit();
        let left = limit.saturating_sub(self.budget.elapsed());
        let ended = tokio::time::timeout(left, self.run()).await;
        ended.unwrap_or_else(|_| {
            Err(Error::TimedOut {
                stage: self.waits_for(),
                limit,
            })
        })
    }

    /// Returns how long the run may take.
    fn limit(&self) -> Duration {
        self.budget.total() + OVERRUN
    }

    /// Ends all handlers with the run, except those that block their threads. The report counts these:
    /// whatever they do from now on happens after the answer.
    async fn close_workers(&mut self) {
        let still_running = self.workers.close().await;
        if still_running > 0 {
            tracing::warn!(
                still_running,
                "handlers that block their threads continue after the run; their events were released"
            );
        }
        self.report.still_running = u64::try_from(still_running).unwrap_or(u64::MAX);
    }

    /// Names what a run that was cut was waiting for.
    fn waits_for(&self) -> &'static str {
        if self.slots.is_waiting() {
            "slot"
        } else if !self.writing.is_idle() {
            "write outcomes"
        } else if !self.leasing.is_idle() {
            "lease"
        } else if !self.running.is_empty() {
            "handlers"
        } else {
            "backlog"
        }
    }

    /// Runs the loop. Each pass starts the handlers that can start, then waits for the next thing to happen.
    async fn run(&mut self) -> Result<(), Error> {
        if let Some(reason) = self.take_slot().await? {
            self.report.stop_reason = reason;
            return Ok(());
        }
        loop {
            self.cut_overdue();
            self.start_handlers();
            self.release_rest();
            self.stop_scheduling();
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
                ended = self.workers.ended() => self.handlers_ended(ended),
                round = self.writing.done() => self.written(round)?,
                arrival = self.leasing.done() => self.lease_arrived(arrival),
                () = stop_signal(&mut self.stop) => self.budget.stop(),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Makes the run end as failed. Nothing new is leased or started, ends are written as far as possible,
    /// and the rest is released.
    fn fail(&mut self, error: Error) {
        self.budget.stop();
        self.failed.get_or_insert(error);
    }

    /// Whether no event is in the buffer and nothing is waiting to be written.
    fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.buffer.waiting() == 0
            && !self.buffer.leases.has_over()
            && self.outbox.is_empty()
            && !self.between.rereads
            && !self.services.has_reports()
            && !self.scheduling.has_due()
            && self.writing.is_idle()
    }

    /// No handler starts while more ends than this wait to be written. Otherwise a slow database would fill
    /// the memory.
    fn most_unwritten(&self) -> usize {
        (self.options.batch as usize * 2).max(self.options.concurrency * 2)
    }

    /// Returns why the run is over, or `None` if it is not.
    fn stop_reason(&mut self) -> Option<StopReason> {
        if !self.is_idle() || !self.leasing.is_idle() {
            return None;
        }
        if self.slots.lost {
            return Some(StopReason::NoSlot);
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
        // There may be events of kinds for which the time was too short.
        let reason = if self.empty.kinds_left_out {
            StopReason::BudgetSpent
        } else {
            StopReason::QueueEmpty
        };
        (self.is_settled_empty() && self.may_end_empty()).then_some(reason)
    }

    /// Whether the time that is left is too short for every kind.
    fn is_spent(&self) -> bool {
        let now = Instant::now();
        !D::Event::KINDS
            .iter()
            .any(|kind| self.budget.allows(kind, now))
    }

    /// Returns when the loop must act even if nothing happens.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + Duration::from_millis(250);
        if self.writing.is_idle()
            && (self.outbox.next.outcomes() > 0 || self.buffer.leases.has_over())
        {
            wake = wake.min(self.outbox.due());
        }
        if let Some(busy_until) = self.outbox.busy_until() {
            wake = wake.min(busy_until);
        }
        if self.leasing.is_idle() && self.buffer.waiting() == 0 {
            wake = wake.min(self.scan.poll_at());
        }
        if let Some(limits) = self.limits.wake() {
            wake = wake.min(limits);
        }
        if let Some(open_at) = self.workers.open_at() {
            wake = wake.min(open_at);
        }
        // Prevents a busy loop: work that is due but blocked waits for an answer, not for time.
        wake.max(now + Duration::from_millis(1))
    }

    /// Asks the database for the backlog, in the last query, and releases the last leases.
    async fn count_backlog(&mut self) -> Result<(), Error> {
        let ended = self.buffer.leases.take_ended();
        let Some(session) = self.leasing.idle() else {
            return Ok(());
        };
        let client = session.client().await?;
        let (removed, backlog) =
            futures_util::future::join(queue::remove_ended(client, &ended), queue::backlog(client))
                .await;
        removed?;
        let backlog = backlog?;
        if self.buffer.leases.has_unknown {
            // What nobody has started goes back uncharged.
            queue::sweep(client, self.worker, &self.buffer.leases.tokens()).await?;
        }
        for claim in self.limits.release() {
            queue::claim_service(client, self.worker, &claim).await?;
        }
        if self.services.has_shut() {
            self.report.services_down = queue::services_down(client).await?;
        }
        self.report.backlog = backlog.events;
        self.report.oldest_age_ms = backlog.oldest_age_ms;
        if backlog.events > 0 {
            let kinds = queue::expiring(client).await?;
            self.report.expiring = kinds.iter().map(|kind| kind.events).sum();
        }
        // Not at the end of a spent budget, because the caller's deadline comes first.
        if backlog.events > 0 && self.report.stop_reason == StopReason::QueueEmpty {
            self.report.unhandled = queue::others(client, D::Event::KINDS).await?;
        }
        let left = self.leave_slot().await?;
        self.report.ready_left = left.ready;
        self.report.next_due_at = left.next_due_at;
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
    use crate::dispatch::Handlers;
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
            Handlers::one("idle", async { Ok(Done::ok()) })
        }
    }

    /// Starts a server that says nothing: it either never answers, or falls silent after the login.
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

    /// In virtual time, which jumps ahead whenever nothing is under way in this process.
    #[tokio::test(start_paused = true)]
    async fn i8_no_run_outlives_its_budget_by_more_than_a_second_under_a_server_that_says_nothing()
    {
        for lets_in in [false, true] {
            let url = silent_server(lets_in).await;
            for seconds in [1, 84, 300, 800, 900] {
                let options = DrainOptions {
                    budget: Duration::from_secs(seconds),
                    ..DrainOptions::default()
                };
                let database = Database::new(&url, 1).unwrap();
                let workers = Pool::new(options.concurrency, Handle::current());
                let limit = options.budget + OVERRUN;
                let began = Instant::now();
                let drain = Drain::new(database, Arc::new(Idle), options, <_>::default(), workers);
                let ended = drain.run_to_end().await;
                assert!(ended.is_err());
                assert!(began.elapsed() <= limit, "{lets_in}, {:?}", began.elapsed());
            }
        }
    }
}
