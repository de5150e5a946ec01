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
//! writes. This file passes events from one to the next.

mod buffer;
mod clocks;
mod completer;
pub(crate) mod execute;
mod fetcher;
pub mod figures;
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
pub(crate) mod services;
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
use tidegate_core::fault::Fault;
use tidegate_core::lease::{Lease, LeaseDecision, LeasedEvent};
use tidegate_core::progress::Status;
use tidegate_core::queue::{self, Claim, Finalization, Grant, LeasedBatch, Retried};
use tidegate_core::sealing;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use self::buffer::{Buffer, StartRule, WindowDemand};
use self::clocks::Reading;
use self::completer::Completer;
use self::execute::EventRun;
use self::fetcher::{FetchKind, FetchRequest, FetchResult, Fetched, Fetcher, LEASE_BYTES};
use self::figures::Figures;
use self::flush::{Change, CountedAs, FlushResult, WriteResult};
use self::leases::Window;
use self::limits::{LimitInputs, ServiceLimits};
use self::observers::Observers;
pub use self::options::DrainOptions;
pub use self::report::{Cost, DrainReport, ServiceCalls, StopReason};
use self::scan::{Scan, WhenEmpty};
use self::settle::{AttemptResult, count, settle};
use self::slots::Slots;
use self::spans::Spans;
use self::workers::{
    AttemptStart, EndedAttempt, PERMIT, Pool, StartableEvent, WorkEnd, WorkOutcome, Workers,
};
use crate::budget::Budget;
use crate::context::Context;
use crate::dispatch::Dispatch;
use crate::ending;
use crate::handler::{HandlerError, Unhandled};
use crate::outcome::HandlerEnd;

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

/// The most events of a group that are handed over behind its first event. The handler task requests one from
/// the loop once for all of them.
const MOST_CHAINED: usize = 31;

/// An event may wait for a program that has its key or knows its version. This is the shortest and the
/// longest delay before the next try.
const DEFER: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));

/// How many windows of events may wait for their start.
const WINDOWS_OPEN: usize = 4;

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

/// What goes from the queue to the handlers.
impl<D: Dispatch> Drain<D> {
    /// Fetches ahead: as soon as the waiting events are no more than one lease brings. With half of that, the
    /// leasing session, which is the busier one, was idle for a seventh of a drain of quick handlers (5 %
    /// slower).
    fn send_fetch(&mut self) {
        if !self.fetcher.is_idle() || self.completer.is_exclusive() {
            return;
        }
        let now = Instant::now();
        let mut request = self.fetcher.request(self.buffer.leases());
        (request.fetch, request.kinds) = self.next_fetch(now);
        // Not together with a firing. The answer to the firing shows whether another drain holds the
        // schedules.
        if !matches!(request.fetch, FetchKind::Fire(_)) && !self.is_spent() {
            request.look = self.fetcher.scheduling.look(now);
        }
        request.keep = self.keep_slot(now);
        if !self.buffer.leases().has_suspect() {
            request.window = self.workers.window();
        }
        if self.fetcher.send(request, &mut self.buffer)
            && let Some(spans) = &mut self.observers.spans
        {
            spans.leases();
        }
    }

    /// Returns one thing to request: due schedules to fire, an event to try a service with, something for a
    /// limited service, or other events. Also returns the kinds of events.
    fn next_fetch(&mut self, now: Instant) -> (FetchKind, Vec<&'static str>) {
        let mut kinds = self.budget.kinds_with_time(&self.fetcher.all_kinds);
        let due = self.fetcher.scheduling.take_due();
        if !due.is_empty() {
            return (FetchKind::Fire(due), kinds);
        }
        let may_lease = self.may_lease();
        if let Some(probe) = self.services.calls.due(now).filter(|_| may_lease) {
            self.services.calls.note_requested(&probe, now);
            return (FetchKind::Probe(probe), kinds);
        }
        let wants_more = may_lease && self.wants_more(now);
        let most = self.room_to_lease();
        let rest_first = std::mem::take(&mut self.services.had_turn) && wants_more;
        let asks_limited = !rest_first && !self.services.is_empty();
        if asks_limited {
            let demand = LimitInputs {
                waiting: &|kinds| self.buffer.waiting_of(kinds),
                pace: self.workers.handled_in_a_second(),
                kinds: if may_lease { &kinds } else { &[] },
                most,
            };
            if let Some(limited) = self.services.next(&demand, now) {
                return limited;
            }
        }
        if !wants_more {
            return (FetchKind::Nothing, kinds);
        }
        self.fetcher.empty.kinds_left_out = kinds.len() < self.fetcher.all_kinds.len();
        kinds.retain(|kind| !self.services.has_kind(kind));
        let step = self.fetcher.scan.next(most, self.is_idle());
        (FetchKind::Events(step), kinds)
    }

    fn room_to_lease(&self) -> u64 {
        let leased = self.report.leased;
        let most = self.options.max_events;
        most.map_or(u64::MAX, |limit| limit.saturating_sub(leased))
    }

    /// Whether too few events wait. Those that wait for a limited service do not count: they do not keep
    /// other events from being leased.
    fn wants_more(&self, now: Instant) -> bool {
        let mut waiting = self.buffer.waiting();
        if !self.services.is_empty() {
            waiting -= self.buffer.waiting_of(&self.services.kinds());
        }
        let scan = &self.fetcher.scan;
        let enough = waiting > scan.want() as usize || self.buffer.bytes() as u64 > LEASE_BYTES;
        !enough && now >= scan.poll_at()
    }

    fn may_lease(&self) -> bool {
        let goes_back = self.completer.has_returns() || self.buffer.is_uncertain();
        !goes_back
            && self.completer.unwritten() < self.most_unwritten()
            && self.room_to_lease() > 0
            && !self.is_spent()
    }

    /// Processes the answer to a fetch. After an error, the held events are completed as far as possible, and
    /// the rest is released.
    fn on_fetched(&mut self, result: FetchResult) {
        let (request, mut fetched) = match self.fetcher.on_fetched(result) {
            Ok(fetched) => fetched,
            Err(error) => return self.fail(error),
        };
        if let Some(renewed) = &fetched.renewed {
            self.buffer.on_renewed(&request.held, renewed, request.sent);
        }
        if let Some(kept) = fetched.kept {
            self.slot_kept(kept, request.sent.steady);
        }
        for id in &fetched.given_up {
            self.observers.lines.failed(*id, "service_down");
            self.report.given_up += 1;
        }
        let scheduled = self.fetcher.on_scheduled(&mut fetched);
        self.report.scheduled += scheduled;
        if scheduled > 0 {
            self.rescan();
        }
        self.on_answer(request, fetched);
    }

    /// Processes what was requested besides renewals, schedules and slots.
    fn on_answer(&mut self, request: FetchRequest, mut fetched: Fetched) {
        let (batch, promoted, sent) = (&mut fetched.batch, fetched.promoted, request.sent);
        match request.fetch {
            FetchKind::Nothing | FetchKind::Fire(_) => return,
            FetchKind::Claim(claim) => return self.on_granted(&claim, fetched.grant, sent.steady),
            FetchKind::Probe(service) => {
                self.fetcher.empty.seen = false;
                if let Some(event) = batch.events.first() {
                    self.services.calls.begin_probe(event.lease, service);
                }
            }
            FetchKind::Limited(turn, step) => {
                self.fetcher.empty.seen &= batch.events.is_empty();
                self.services.arrived(&turn, step, promoted, batch);
            }
            FetchKind::Events(step) => {
                let (left, pace) = (self.buffer.waiting(), self.workers.pace(&step));
                let empty = self.fetcher.scan.arrived(step, promoted, batch, left, pace);
                let seen = empty && self.is_idle();
                if empty || !self.fetcher.scan.is_barren() {
                    self.fetcher.empty.note(seen, sent.steady);
                }
            }
        }
        // Delayed events that have become due may be behind the scans.
        if let Some(lowest) = promoted {
            self.back_to(lowest);
        }
        self.apply_lease_news(batch);
        if batch.events.is_empty() && batch.unreadable.is_empty() {
            return;
        }
        self.hold(fetched, sent);
    }

    /// Puts fetched events into the buffer.
    fn hold(&mut self, fetched: Fetched, sent: Reading) {
        let (batch, token) = (fetched.batch, fetched.token);
        self.report.batches += 1;
        let run = batch
            .events
            .iter()
            .filter(|event| event.fate == LeaseDecision::Run);
        self.report.leased += (run.count() + batch.unreadable.len()) as u64;
        if let Some(spans) = &mut self.observers.spans {
            spans.leased(batch.events.len());
        }
        let window = Window {
            started_to: batch.started_to,
            suspect: batch.suspect,
        };
        let unreadable = &batch.unreadable;
        let stale = self
            .buffer
            .insert(token, batch.events, unreadable, window, sent);
        self.lose(stale);
        for id in batch.unreadable {
            self.completer.end_unreadable(Lease { id, token });
        }
    }

    /// Learns what a lease reports about services and kinds.
    fn apply_lease_news(&mut self, batch: &mut LeasedBatch) {
        let policies = std::mem::take(&mut batch.policies);
        self.workers.policies().replace_stored(policies);
        if self.services.calls.apply_stored_states(&batch.watched) {
            self.rescan();
        }
    }

    /// Processes the answer to a claim. Held events that wait for places of other drains go back, so that
    /// those can lease them.
    fn on_granted(&mut self, claim: &Claim, grant: Grant, sent: Instant) {
        if let Some(kinds) = self.services.granted(claim, grant, sent) {
            for event in self.buffer.take_kinds(&kinds) {
                self.release(event);
            }
        }
    }

    /// Leaves due schedules to the next run when there is no time left.
    fn stop_scheduling(&mut self) {
        if self.fetcher.scheduling.has_due() && self.is_spent() {
            self.fetcher.scheduling.stop();
        }
    }

    /// Moves the scans back to an event that may be ready.
    fn back_to(&mut self, id: i64) {
        self.fetcher.scan.back_to(id);
        self.services.back_to(id);
    }

    /// Looks again from the start, for events that waited for a service that answers again.
    fn rescan(&mut self) {
        self.back_to(1);
        self.fetcher.scan.hurry();
        self.services.hurry();
        self.fetcher.empty.seen = false;
    }

    /// Whether the queue was seen empty, and again when the linger time was over.
    fn is_settled_empty(&mut self) -> bool {
        // For limited services, nothing is left to do either, or other drains do it.
        let is_quiet = |services: &ServiceLimits| {
            services.is_empty()
                || services.is_quiet(&self.budget.kinds_with_time(&self.fetcher.all_kinds))
        };
        if !self.fetcher.empty.seen
            || !self.is_idle()
            || self.services.calls.due(Instant::now()).is_some()
            || !is_quiet(&self.services)
        {
            self.fetcher.note_busy();
            return false;
        }
        self.fetcher.has_lingered(self.options.linger)
    }

    /// Starts handlers while there are events, permits and time, and while the held events are certain.
    fn start_handlers(&mut self) {
        if self.buffer.is_uncertain() {
            return self.recall(|_| true);
        }
        self.follow_limits();
        let (mut permits, mut for_large) = self.workers.permits();
        let most_unwritten = self.most_unwritten();
        let in_order = self.options.concurrency == 1;
        let (now, spent) = (Instant::now(), self.is_spent());
        while permits > 0 && !spent && self.completer.unwritten() < most_unwritten {
            let before = self.workers.count();
            let pick = StartRule {
                in_order,
                large: for_large > 0,
            };
            match self.buffer.pop(pick) {
                Some(event) if self.is_late(&event, now) => {
                    let fate = LeaseDecision::Expired;
                    // What is only swept does not count as leased.
                    self.report.leased -= 1;
                    self.start(LeasedEvent { fate, ..event }, now);
                }
                Some(event) if self.may_start(&event, now) => {
                    let part = PERMIT / self.workers.sharing(&event).most;
                    self.start(event, now);
                    if self.workers.count() > before {
                        permits = permits.saturating_sub(part);
                        for_large = for_large.saturating_sub(part);
                    }
                }
                Some(event) => self.release(event),
                None => break,
            }
        }
        self.workers.pool().open();
    }

    /// Learns which services are limited, and which of their events may start now. Events that were leased
    /// before their service was limited go back.
    fn follow_limits(&mut self) {
        let kinds = self.services.refresh();
        if !kinds.is_empty() {
            self.recall(|event| kinds.contains(&event.kind));
            for event in self.buffer.take_kinds(&kinds) {
                self.release(event);
            }
        }
        if !self.services.is_empty() || self.buffer.has_barred() {
            self.buffer.bar(self.services.barred(Instant::now()));
        }
    }

    /// Whether there is time for the event and its lease is certainly still valid. If this process was frozen
    /// or its machine suspended, another drain may be running the event.
    fn may_start(&self, event: &LeasedEvent, now: Instant) -> bool {
        !self.start_by(event).is_over(now) && self.budget.allows(&event.kind, now)
    }

    /// Whether the event's deadline has passed while it waited here (B13). It ends unless its lease may be
    /// lost.
    fn is_late(&self, event: &LeasedEvent, now: Instant) -> bool {
        let deadline = self.buffer.leases().deadline(event);
        event.fate == LeaseDecision::Run
            && deadline.is_some_and(|deadline| deadline.is_over(now))
            && !self.trusted_until(event).is_over(now)
    }

    /// Returns the time until which an event's lease can be trusted.
    fn trusted_until(&self, event: &LeasedEvent) -> Reading {
        let trusted = self.options.lease_timeout.mul_f64(0.9);
        let renewed = self.buffer.leases().renewed(event.lease.token);
        renewed.map_or_else(Reading::now, |renewed| renewed + trusted)
    }

    /// Returns the time before which an event must start: its lease can be trusted until then, and its
    /// deadline has not passed.
    fn start_by(&self, event: &LeasedEvent) -> Reading {
        let trusted = self.trusted_until(event);
        let deadline = self.buffer.leases().deadline(event);
        deadline.map_or(trusted, |deadline| deadline.earlier(trusted))
    }

    /// Starts one event, or ends it at once if there is nothing to run.
    fn start(&mut self, leased: LeasedEvent, now: Instant) {
        let swept = match leased.fate {
            LeaseDecision::Run => None,
            LeaseDecision::Expired => Some((
                CountedAs::Expired,
                "expired",
                "not started before its deadline",
            )),
            LeaseDecision::Abandoned => {
                let why = "its worker went away on the last attempt";
                Some((CountedAs::Abandoned, "abandoned", why))
            }
            LeaseDecision::Exhausted => {
                let why = "it has had as many attempts as it may have";
                Some((CountedAs::Abandoned, "attempts_exhausted", why))
            }
        };
        if let Some((counted_as, code, why)) = swept {
            return self.give_up(&leased, &Fault::new(code, why), counted_as);
        }
        let event = match Workers::<D>::read(&leased) {
            Ok(event) => event,
            Err(Unhandled::Later(error)) => return self.defer(&leased, error),
            Err(Unhandled::Never(fault)) => {
                return self.give_up(&leased, &fault, CountedAs::Handled(Status::Failed));
            }
        };
        let group = leased.group_key.clone();
        let limited = self.services.has_kind(&leased.kind);
        if limited {
            self.services.start(&leased.kind, leased.lease);
            self.buffer.bar(self.services.barred(now));
        }
        let mut work = self.prepare(event, leased, None, now);
        let chains = self.workers.pool().chains() && !limited && work.part == PERMIT;
        if let Some(group) = group.filter(|_| chains) {
            self.chain(&mut work, &group, now);
        }
        self.workers.pool().push(work);
    }

    /// Creates an event's work, chained behind the event `ahead` in its group if that one has not ended yet.
    fn prepare(
        &mut self,
        event: D::Event,
        leased: LeasedEvent,
        ahead: Option<Arc<Context>>,
        now: Instant,
    ) -> StartableEvent<EventRun<D>> {
        let launch = AttemptStart {
            start_by: self.start_by(&leased),
            flushed: self.completer.progress(leased.group_key.as_deref(), ahead),
            spans: self.observers.spans.as_ref(),
            cut: self.budget.cut(),
            now,
        };
        self.workers.prepare(event, leased, launch)
    }

    /// Hands over the events of a group that follow its first event, together with it.
    fn chain(&mut self, work: &mut StartableEvent<EventRun<D>>, group: &str, now: Instant) {
        let mut ahead = self.workers.context(work.lease);
        while work.then.len() < MOST_CHAINED {
            let next = self.buffer.behind(group).filter(|next| {
                self.may_start(next, now)
                    && !self.services.has_kind(&next.kind)
                    && self.workers.sharing(next).most == 1
            });
            // An event that cannot be read ends without a handler, when it is its turn.
            let Some(Ok(event)) = next.map(Workers::<D>::read) else {
                return;
            };
            let Some(next) = self.buffer.pop_behind(group) else {
                return;
            };
            let lease = next.lease;
            work.then.push_back(self.prepare(event, next, ahead, now));
            ahead = self.workers.context(lease);
        }
    }
}

/// What comes back from the handlers, and leaves.
impl<D: Dispatch> Drain<D> {
    /// Collects the events whose handlers have ended.
    fn on_ended(&mut self, ended: Vec<WorkEnd>) {
        for WorkEnd { lease, how } in ended {
            let Some(ctx) = self.workers.take(lease) else {
                continue;
            };
            match how {
                WorkOutcome::For(took) => {
                    let (ends, published) = ctx.take_ends();
                    self.settle(EndedAttempt {
                        ctx,
                        ends,
                        published,
                        took,
                    });
                }
                WorkOutcome::Late => self.release(ctx.event().clone()),
                WorkOutcome::NotReached => self.buffer.reinsert(ctx.event().clone()),
            }
        }
    }

    /// Cuts handlers that ignore their limit, or that a stop signal overtook.
    fn cut_overdue(&mut self) {
        for attempt in self.workers.cut_overdue(self.budget.cut()) {
            self.settle(attempt);
        }
    }

    /// Decides the end of an event whose handlers ran.
    fn settle(&mut self, attempt: EndedAttempt) {
        let EndedAttempt {
            ctx,
            ends,
            published,
            took,
        } = attempt;
        let event = ctx.event();
        let timed_out = ends.iter().any(HandlerEnd::is_timed_out);
        if !timed_out {
            self.budget.learn(&event.kind, took);
        }
        let usual = self.options.retry;
        let retry = self.workers.policies().retry(&event.kind, usual);
        let settled = settle(event, &ends, &retry, fastrand::f64());
        let ended = settled.status().map(|_| event.kind.as_str());
        self.services.calls.note_left(event.lease, ended);
        self.observers.lines.ended(event, &settled, took);
        self.observers.attempted(&ctx, &settled, &ends, took);
        match settled {
            AttemptResult::AlreadyFinished(status) => {
                self.report.published += published;
                count(&mut self.report, CountedAs::of(status, &ends));
                self.buffer.note_gone(event.lease);
                self.open_group(event);
            }
            AttemptResult::Finish(end) => {
                let counted_as = CountedAs::of(end.status, &ends);
                ctx.note_completion(self.finish(event, end, counted_as, ends));
            }
            AttemptResult::Retry(retried) => self.retry(event, retried),
        }
    }

    /// Hands an event's end to the completer. Returns its number.
    fn finish(
        &mut self,
        event: &LeasedEvent,
        end: Finalization,
        counted_as: CountedAs,
        work: Vec<HandlerEnd>,
    ) -> u64 {
        let (number, holds_group) = self.completer.finish(event, end, counted_as, work);
        if !holds_group {
            self.open_group(event);
        }
        number
    }

    fn open_group(&mut self, event: &LeasedEvent) {
        if let Some(group) = &event.group_key {
            self.buffer.open_group(group, event.lease);
        }
    }

    /// Ends an event that no handler will see.
    fn give_up(&mut self, event: &LeasedEvent, fault: &Fault, counted_as: CountedAs) {
        self.services.calls.note_left(event.lease, None);
        let settled = AttemptResult::Finish(ending::given_up(event, fault));
        self.observers.lines.ended(event, &settled, Duration::ZERO);
        if let Some(spans) = &mut self.observers.spans {
            spans.given_up(event, &fault.code);
        }
        if let AttemptResult::Finish(end) = settled {
            self.finish(event, end, counted_as, Vec::new());
        }
    }

    /// Retries an event later that no handler here can take. The delay grows with the age of the event, like
    /// the backoff of its own attempts. Otherwise many such events, which nothing ends, would keep drains
    /// busy for ever. An event that has held back its group for too long ends.
    fn defer(&mut self, event: &LeasedEvent, error: HandlerError) {
        if event.is_overdue {
            let why = "held back its group for longer than TIDEGATE_MAX_GROUP_DELAY";
            let fault = Fault::new("held_too_long", why);
            return self.give_up(event, &fault, CountedAs::Handled(Status::Failed));
        }
        let age = event.created_at.elapsed().unwrap_or_default();
        let error = error.after((age / 4).clamp(DEFER.0, DEFER.1));
        self.services.calls.note_left(event.lease, None);
        let end = HandlerEnd {
            handler: "read",
            result: Err(error),
            earlier: false,
            emitted: Vec::new(),
        };
        let settled = settle(event, &[end], &self.options.retry, fastrand::f64());
        self.observers.lines.ended(event, &settled, Duration::ZERO);
        if let AttemptResult::Retry(retried) = settled {
            self.retry(event, retried);
        }
    }

    fn retry(&mut self, event: &LeasedEvent, retried: Retried) {
        if let Some(group) = &event.group_key {
            self.buffer.close_group(group, event.lease.id);
        }
        self.completer.retry(event, retried);
    }

    /// Releases an event that has not started, with its attempt restored.
    fn release(&mut self, event: LeasedEvent) {
        self.services.calls.note_left(event.lease, None);
        if let Some(group) = &event.group_key {
            self.buffer.close_group(group, event.lease.id);
        }
        self.completer.release(event);
    }

    /// Releases the selected events that were handed over and have not started.
    fn recall(&mut self, selected: impl Fn(&LeasedEvent) -> bool) {
        for event in self.workers.recall(selected) {
            self.release(event);
        }
    }

    /// Releases all events that have not started, with their attempts restored, when no handler may start any
    /// more (F2).
    fn release_rest(&mut self) {
        if self.is_idle() || !self.is_spent() {
            return;
        }
        self.recall(|_| true);
        for event in self.buffer.take_all() {
            self.completer.release(event);
        }
    }

    /// Flushes when enough outcomes have accumulated, when they have waited long enough, when nothing else is
    /// going on, or when more events are to start.
    fn send_flush(&mut self) {
        if !self.completer.may_flush() {
            return;
        }
        self.completer.retry_busy();
        self.start_more();
        let enough = (self.options.batch / 2).max(1) as usize;
        let quiet = self.workers.count() == 0 && !self.buffer.has_startable();
        let alone = self.fetcher.is_idle();
        let is_due = self.completer.is_due(enough, &self.buffer, quiet, alone);
        if is_due
            && self
                .completer
                .send(alone, &mut self.buffer, self.workers.groups())
            && let Some(spans) = &mut self.observers.spans
        {
            spans.writes();
        }
    }

    /// Requests that more of a lease may start, before the handlers run out of work.
    fn start_more(&mut self) {
        if self.buffer.is_uncertain() || self.is_spent() || self.completer.has_starts() {
            return;
        }
        let shared = self.workers.most_shared();
        if self.close_windows(shared) {
            return;
        }
        let running = self.workers.count();
        let needed = WindowDemand {
            few: self.options.concurrency * shared,
            window: self.workers.window() * shared,
            permits: self.options.concurrency.saturating_sub(running),
            now: Instant::now(),
            brings_window: self.fetcher.brings_window(),
            suspect_runs: self.workers.suspect_runs(self.buffer.leases()),
        };
        if let Some(start) = self.buffer.start_more(&needed) {
            self.completer.start(start);
        }
    }

    /// Closes windows that the handlers' pace no longer fills: when quick events turn slow, thousands that
    /// have not started would be charged if this drain died. Returns whether it did.
    fn close_windows(&mut self, shared: usize) -> bool {
        let handed_over = self.workers.count();
        let started = handed_over + self.completer.unwritten();
        let unstarted = self.buffer.leases().open().saturating_sub(started);
        let fits = WINDOWS_OPEN * self.workers.window().max(self.options.concurrency) * shared;
        let wide = unstarted + self.workers.pool().waiting() > fits;
        if !self.buffer.stays_wide(wide, Instant::now()) {
            return false;
        }
        self.recall(|_| true);
        let begun = self
            .workers
            .leases()
            .chain(self.completer.unwritten_leases());
        let marks = self.buffer.close_windows(begun);
        let closed = self.workers.count() < handed_over || !marks.is_empty();
        self.completer.lower(marks);
        closed
    }

    /// Processes the answer to a flush.
    fn on_flushed(&mut self, result: FlushResult) -> Result<(), Error> {
        let is_over = self.budget.is_over();
        let mut flushed = self.completer.on_flushed(result, is_over)?;
        if let Some(spans) = &mut self.observers.spans {
            spans.written(flushed.outcomes);
        }
        let has_left = |id: &i64| !flushed.retried.contains(id);
        // Looks at once for events that are free again, and not only with the next scan.
        let left = flushed.state.left.iter().flatten().copied();
        if let Some(lowest) = left.filter(has_left).min() {
            self.back_to(lowest);
        }
        for event in self.buffer.on_flushed(&flushed) {
            self.report.released +=
                u64::from(event.fate == LeaseDecision::Run && has_left(&event.lease.id));
        }
        for change in std::mem::take(&mut flushed.changes) {
            self.on_change(&change);
        }
        let lost = self.buffer.end_flush(&flushed);
        self.lose(lost);
        if let Some(held) = &flushed.state.reread {
            self.workers.notify_lost(held);
        }
        if flushed.state.service_opened {
            self.rescan();
        }
        self.report.published += flushed.state.published;
        if let Some(error) = flushed.failed {
            self.fail(error);
        }
        self.fetcher.scan.hurry();
        self.observers
            .progress(&self.report, millis(self.budget.elapsed()));
        Ok(())
    }

    /// Counts what became of an event.
    fn on_change(&mut self, change: &Change) {
        for event in self.buffer.apply(change) {
            self.release(event);
        }
        match &change.result {
            WriteResult::Ended(counted_as) => count(&mut self.report, *counted_as),
            WriteResult::Refused(refusal) => {
                let code = &refusal.fault.code;
                self.observers.lines.unwritable(change.lease, code);
                if let Some(group) = &change.group {
                    // Later events of the group that have not started need not be charged.
                    self.recall(|event| event.group_key.as_ref() == Some(group));
                }
            }
            WriteResult::Returned(counted_as, at_once) => {
                if change.leased {
                    count(&mut self.report, *counted_as);
                }
                if *at_once {
                    self.back_to(change.lease.id);
                }
            }
            WriteResult::Abandoned | WriteResult::Lost { .. } => {
                if change.leased {
                    self.count_lost(change.lease);
                }
            }
        }
    }

    /// Counts waiting events that are no longer ours.
    fn lose(&mut self, events: Vec<LeasedEvent>) {
        for event in events {
            self.services.calls.note_left(event.lease, None);
            self.buffer.note_gone(event.lease);
            if event.fate == LeaseDecision::Run {
                self.count_lost(event.lease);
            }
        }
    }

    fn count_lost(&mut self, lease: Lease) {
        self.observers.lines.lost(lease);
        self.report.lease_lost += 1;
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
