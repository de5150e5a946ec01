//! Owns the one loop. It leases ahead, starts handlers and writes the ends of events, until the queue is
//! empty or the budget is spent. Then it releases the remaining events and reports. It holds no SQL and knows
//! no kind.
//!
//! All decisions of the loop are made in one task, on its own thread with its two connections. Therefore a
//! handler that blocks its thread stops neither lease renewals nor the deadline. Handlers run in tasks of the
//! caller's runtime, in the `workers`. Leases and writes go over two connections, so the loop leases the next
//! batch while it writes the last one (99,000 events/s against 73,000 on one connection).
//!
//! Two rules keep the order inside a group despite this overlap. First, a drain may lease further events of a
//! group that it holds, because in `buffer` those events line up behind the earlier ones. Second, no lease is
//! under way while an event goes back to the queue, so both sides always agree on which events are in the
//! buffer.
//!
//! Each stage has one owner: the `fetcher` leases, the `buffer` holds, the `workers` run, and the `completer`
//! writes. Events go forward through `feed` and come back through `finish`.

mod buffer;
mod clocks;
mod completer;
pub(crate) mod execute;
mod feed;
mod fetcher;
pub mod figures;
mod finish;
mod flush;
mod leases;
mod limits;
pub mod lines;
mod observers;
mod options;
pub mod report;
mod rest;
mod scan;
mod scheduling;
mod session;
pub(crate) mod settle;
mod slots;
mod spans;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::chain::{Chain, StartDrain};
use tidegate_core::config::millis;
use tidegate_core::connect::Database;
use tidegate_core::error::Error;
use tidegate_core::queue::{self};
use tidegate_core::sealing;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use self::buffer::Buffer;
use self::completer::Completer;
use self::execute::EventRun;
use self::fetcher::Fetcher;
use self::figures::Figures;
use self::limits::ServiceLimits;
use self::observers::Observers;
pub use self::options::DrainOptions;
pub use self::report::{Cost, DrainReport, StopReason};
use self::scan::{Scan, WhenEmpty};
use self::slots::Slots;
use self::spans::Spans;
use self::workers::{Pool, Workers};
use crate::budget::Budget;
use crate::dispatch::Dispatch;
pub use crate::services::ServiceCalls;

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
    /// Receives the run's figures by kind when it ends, even if it fails.
    pub figures: Option<oneshot::Sender<Figures>>,
}

/// Drains the queue with `app`'s handlers.
///
/// # Errors
/// If options are out of range or the database stays unavailable. Events in the buffer become available again
/// when their leases run out.
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
    mut hooks: Hooks,
) -> Result<DrainReport, DrainError> {
    let refused = |source| DrainError {
        report: Box::default(),
        source,
    };
    options.check().map_err(refused)?;
    sealing::ready().await.map_err(refused)?;
    let budget = Budget::new(options.budget);
    let database = database.with_own_pool().map_err(refused)?;
    let app = Error::within("program", budget.total(), app.for_run(&database));
    let app = app.await.map_err(refused)?;
    let handlers = hooks.handlers.take().unwrap_or_else(Handle::current);
    let pool = Pool::new(options.concurrency, handlers);
    let (progress, figures) = (hooks.progress.take(), hooks.figures.take());
    let observers = Observers::new(progress, figures, Spans::begin(hooks.chain));
    let (options, span) = (options.clone(), tracing::Span::current());
    let run = move || {
        Drain::new(database, app, budget, options, hooks, observers, pool)
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
    options: DrainOptions,
    /// Turns true to end the run as if the budget were spent.
    stop: Option<watch::Receiver<bool>>,
    budget: Budget,
    report: DrainReport,
    /// The error that makes the run fail.
    failed: Option<Error>,
    observers: Observers,
    slots: Slots,
    services: ServiceLimits,
    fetcher: Fetcher,
    buffer: Buffer,
    workers: Workers<D>,
    completer: Completer,
}

impl<D: Dispatch> Drain<D> {
    fn new(
        database: Database,
        app: Arc<D>,
        budget: Budget,
        options: DrainOptions,
        hooks: Hooks,
        observers: Observers,
        pool: Pool<EventRun<D>>,
    ) -> Self {
        let (concurrency, timeout) = (options.concurrency, options.lease_timeout);
        let services = ServiceLimits::new(concurrency, options.batch, timeout);
        let calls = &services.calls;
        let when_empty = if options.linger.is_zero() {
            WhenEmpty::Ends
        } else {
            WhenEmpty::Lingers
        };
        let scan = Scan::new(concurrency, options.batch, when_empty);
        let fetcher = Fetcher::new(&database, timeout, app.kinds().into(), scan);
        let (worker, longest) = (fetcher.worker, options.retry.max);
        Self {
            budget,
            report: DrainReport {
                budget_ms: millis(options.budget),
                ..DrainReport::default()
            },
            failed: None,
            stop: hooks.stop,
            observers,
            slots: Slots::new(hooks.chain, hooks.starter, pool.runtime()),
            buffer: Buffer::default(),
            completer: Completer::new(&database, worker, calls.clone(), longest),
            workers: Workers::new(app, database, calls.clone(), worker, options.clone(), pool),
            fetcher,
            services,
            options,
        }
    }

    /// Runs the whole loop and returns the report.
    async fn run_to_end(mut self) -> Result<DrainReport, DrainError> {
        let ended = self.run_in_time().await;
        if ended.is_ok() {
            self.look_at_rest().await;
        }
        self.close_workers().await;
        self.start_next().await;
        let elapsed = self.budget.elapsed();
        self.report.elapsed_ms = millis(elapsed);
        let database_time = self.fetcher.database_time() + self.completer.database_time();
        self.report.cost.database_ms = millis(database_time);
        let ended_events = self.report.ended();
        let memory = self.options.memory_mb;
        self.report.cost.charged(elapsed, memory, ended_events);
        self.report.services = self.services.calls.take_made();
        self.observers.ended(&self.report, ended.as_ref().err());
        self.note_run(ended.as_ref().err()).await;
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
        let still_running = self.workers.pool().close().await;
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
        if self.report.slot == 0 {
            "slot"
        } else if !self.completer.is_idle() {
            "write outcomes"
        } else if !self.fetcher.is_idle() {
            "lease"
        } else if self.workers.count() > 0 {
            "handlers"
        } else {
            "release"
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
            self.send_flush();
            if let Some(reason) = self.stop_reason() {
                if reason == StopReason::QueueEmpty && self.finds_news().await? {
                    continue;
                }
                self.report.stop_reason = reason;
                return match self.failed.take() {
                    Some(error) => Err(error),
                    None => self.release_all().await,
                };
            }
            self.send_fetch();
            let wake = self.next_wake();
            tokio::select! {
                biased;
                ended = self.workers.pool().ended() => self.on_ended(ended),
                flushed = self.completer.flushed() => self.on_flushed(flushed)?,
                fetched = self.fetcher.fetched() => self.on_fetched(fetched),
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
        self.workers.count() == 0
            && self.buffer.waiting() == 0
            && !self.buffer.leases().has_over()
            && !self.buffer.is_uncertain()
            && self.completer.is_empty()
            && self.completer.is_idle()
            && !self.services.calls.has_reports()
            && !self.fetcher.scheduling.has_due()
    }

    /// No handler starts while more ends than this wait to be written. Otherwise a slow database would fill
    /// the memory.
    fn most_unwritten(&self) -> usize {
        (self.options.batch as usize * 2).max(self.options.concurrency * 2)
    }

    /// Returns why the run is over, or `None` if it is not.
    fn stop_reason(&mut self) -> Option<StopReason> {
        if !self.is_idle() || !self.fetcher.is_idle() {
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
        let reason = if self.fetcher.empty.kinds_left_out {
            StopReason::BudgetSpent
        } else {
            StopReason::QueueEmpty
        };
        self.is_settled_empty().then_some(reason)
    }

    /// Whether the time that is left is too short for every kind.
    fn is_spent(&self) -> bool {
        let now = Instant::now();
        let kinds = &self.fetcher.all_kinds;
        !kinds.is_empty() && !kinds.iter().any(|kind| self.budget.allows(kind, now))
    }

    /// Returns when the loop must act even if nothing happens.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let looks = self.fetcher.is_idle() && self.buffer.waiting() == 0;
        let moments = [
            self.completer.wake(self.buffer.leases().has_over()),
            looks.then(|| self.fetcher.scan.poll_at()),
            self.services.wake(),
            self.workers.pool().open_at(),
        ];
        // What has no moment of its own relies on this: renewals, the slot, schedules, handlers' limits.
        let idle = now + Duration::from_millis(250);
        let wake = moments.into_iter().flatten().fold(idle, Instant::min);
        // Prevents a busy loop: work that is due but blocked waits for an answer, not for time.
        wake.max(now + Duration::from_millis(1))
    }

    /// Releases what the run still has: ended leases, places at services, its slot.
    async fn release_all(&mut self) -> Result<(), Error> {
        let ended = self.buffer.take_ended();
        let (worker, has_unknown) = (self.fetcher.worker, self.fetcher.has_unknown());
        let Some(session) = self.fetcher.session() else {
            return Ok(());
        };
        let client = session.client().await?;
        queue::remove_ended(client, &ended).await?;
        if has_unknown {
            // What nobody has started goes back uncharged.
            queue::sweep(client, worker, &self.buffer.leases().tokens()).await?;
        }
        for claim in self.services.release() {
            queue::claim_service(client, worker, &claim).await?;
        }
        self.leave_slot().await
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
    use crate::context::Context;
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
                let pool = Pool::new(options.concurrency, Handle::current());
                let limit = options.budget + OVERRUN;
                let began = Instant::now();
                let budget = Budget::new(options.budget);
                let (hooks, observers) = <_>::default();
                let app = Arc::new(Idle);
                let drain = Drain::new(database, app, budget, options, hooks, observers, pool);
                let ended = drain.run_to_end().await;
                assert!(ended.is_err());
                assert!(began.elapsed() <= limit, "{lets_in}, {:?}", began.elapsed());
            }
        }
    }
}
