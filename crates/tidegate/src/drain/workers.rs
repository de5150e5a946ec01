//! Owns the tasks in which handlers run, and what runs in them. There is a limited number of workers. Each
//! worker takes its next event itself when one has ended, and reports several ends to the loop at once. The
//! workers decide neither what starts nor what becomes of an event.
//!
//! With quick handlers, a task for each event and a wake-up of the loop for each end took a third of the
//! client's time. So while handlers are quick, a few more events are handed over than there are workers. An
//! event that waits here has not started and can be taken back.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::connect::Database;
use tidegate_core::event::{DecodeError, Event};
use tidegate_core::fault::Fault;
use tidegate_core::lease::{Lease, LeasedEvent};
use tidegate_core::queue::InHand;
use tidegate_core::sealing;
use tidegate_core::trace::TraceContext;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use uuid::Uuid;

use super::clocks::Reading;
use super::execute::{EventRun, Run, TimeLimits};
use super::leases::Leases;
use super::options::DrainOptions;
use super::scan::{ARRIVAL, ScanStep, WORTH};
use super::spans::Spans;
use crate::context::{Context, WrittenUpTo};
use crate::dispatch::Dispatch;
use crate::handler::{HandlerError, Unhandled};
use crate::policies::{BatchLimits, Policies};
use crate::services::Services;

/// Handlers that have recently taken less than this on average count as quick: events may line up behind
/// them.
const QUICK: Duration = Duration::from_millis(1);

/// The minimum and the maximum number of events in the buffer for each worker while handlers are quick,
/// including the running one. The number above the minimum is limited to the work of [`SHORT`]. The loop is
/// notified of ends when half as many have accumulated.
const QUEUED: (usize, usize) = (4, 32);

/// A line with less work than this is left to the worker that runs. With a worker for each event, two threads
/// passed the processor to each other for every second event of a drain of quick handlers (14 % slower; six
/// turns, four won).
const SHORT: Duration = Duration::from_micros(200);

/// A handler that does not react when its time is up blocks its thread. The loop gives up on it after this
/// time.
const OVERDUE: Duration = Duration::from_millis(500);

/// The work in one window. It is several times the time until the database knows about the next window.
const WINDOW: Duration = Duration::from_millis(50);

/// The most starts of a limited service that are requested at once.
const MOST_AHEAD: usize = 1000;

/// How long to wait for handlers that were cut. Those that were waiting for something are gone by then.
const LEAVING: Duration = Duration::from_millis(50);

/// The size of one permit to run a handler. Events that share a call share a permit, so a permit has parts.
pub(super) const PERMIT: usize = 1_000_000;

/// The handlers of one drain: the pool that runs them, and what they run for.
pub(super) struct Workers<D: Dispatch> {
    app: Arc<D>,
    /// For the handlers' own transactions.
    database: Database,
    services: Arc<Services>,
    /// The name of this run in its leases.
    worker: Uuid,
    options: DrainOptions,
    policies: Policies,
    pool: Pool<EventRun<D>>,
    /// Events that were handed to the pool and have not ended.
    running: BTreeMap<Lease, Arc<Context>>,
}

/// What an event's handlers start with.
pub(super) struct AttemptStart<'a> {
    pub start_by: Reading,
    pub flushed: WrittenUpTo,
    pub spans: Option<&'a Spans>,
    /// When handlers that still run are cut.
    pub cut: Instant,
    pub now: Instant,
}

impl<D: Dispatch> Workers<D> {
    pub(super) fn new(
        app: Arc<D>,
        database: Database,
        services: Arc<Services>,
        worker: Uuid,
        options: DrainOptions,
        pool: Pool<EventRun<D>>,
    ) -> Self {
        Self {
            app,
            database,
            services,
            worker,
            options,
            policies: Policies::default(),
            pool,
            running: BTreeMap::new(),
        }
    }

    pub(super) fn pool(&self) -> &Pool<EventRun<D>> {
        &self.pool
    }

    pub(super) fn policies(&mut self) -> &mut Policies {
        &mut self.policies
    }

    /// Returns how many events were handed over and have not ended.
    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    /// Returns the leases of these events.
    pub(super) fn leases(&self) -> impl Iterator<Item = Lease> {
        self.running.keys().copied()
    }

    /// Returns the ids and groups of these events.
    pub(super) fn groups(&self) -> impl Iterator<Item = (i64, Option<&str>)> {
        let running = self.running.values();
        running.map(|ctx| (ctx.event_id(), ctx.group_key()))
    }

    /// Returns the free permits, in parts: for all events, and for those with a large payload. Events chained
    /// behind others take no permit of their own, and those that share a call share one.
    pub(super) fn permits(&self) -> (usize, usize) {
        let taken = self.running.len().saturating_sub(self.pool.chained());
        let taken = (taken * PERMIT).saturating_sub(self.spared());
        let free = |room: usize| (room * PERMIT).saturating_sub(taken);
        (free(self.pool.room()), free(self.pool.room_for_large()))
    }

    /// Returns the parts of permits that running events leave free because they share them.
    fn spared(&self) -> usize {
        if self.policies.most_shared() == 1 {
            return 0;
        }
        let sharing = self.running.values().map(|ctx| ctx.sharing().most);
        sharing.map(|most| PERMIT - PERMIT / most).sum()
    }

    /// Returns how many events share a call with this one. None do if the order of all events must be kept.
    pub(super) fn sharing(&self, event: &LeasedEvent) -> BatchLimits {
        if self.options.concurrency == 1 {
            return BatchLimits::NONE;
        }
        self.policies.sharing_of(event)
    }

    /// Returns the most events that share a call.
    pub(super) fn most_shared(&self) -> usize {
        if self.options.concurrency == 1 {
            return 1;
        }
        self.policies.most_shared()
    }

    /// Returns how many events the handlers do in this time, at least as many as run at once. `None` before
    /// the first one has ended.
    fn handled_in(&self, time: Duration) -> Option<usize> {
        let each = time.as_nanos() / self.pool.typical()?.as_nanos().max(1);
        let each = usize::try_from(each).unwrap_or(usize::MAX);
        Some(each.max(1).saturating_mul(self.options.concurrency))
    }

    /// Returns how many events the handlers do in a second, at least as many as run at once.
    pub(super) fn handled_in_a_second(&self) -> usize {
        let least = self.options.concurrency;
        let known = self.handled_in(Duration::from_secs(1));
        known.map_or(least, |count| count.clamp(least, MOST_AHEAD))
    }

    /// Returns how many events one lease may bring: as many as the handlers do in [`WORTH`], or while a lease
    /// like this one is under way. While that is not known, it returns a small number. Events that share a
    /// call take one permit together.
    pub(super) fn pace(&self, step: &ScanStep) -> u32 {
        let known = self.handled_in(step.under_way().clamp(WORTH, ARRIVAL));
        let most = known.unwrap_or(2 * self.options.concurrency);
        let shared = most.saturating_mul(self.policies.most_shared());
        u32::try_from(shared).unwrap_or(u32::MAX)
    }

    /// Returns how many events of a lease may start before the database must be notified again: as many as
    /// the handlers do in [`WINDOW`]. If this drain disappears, that many events lose an attempt.
    pub(super) fn window(&self) -> usize {
        let least = self.options.concurrency;
        let most = (self.options.batch as usize).max(least);
        let known = self.handled_in(WINDOW);
        known.map_or(least, |count| count.clamp(least, most))
    }

    /// Returns since when the oldest running suspect has been running.
    pub(super) fn suspect_runs(&self, leases: &Leases) -> Option<Instant> {
        if !leases.runs_suspect() {
            return None;
        }
        let running = self.pool.running().into_iter();
        let suspects = running.filter(|(lease, _)| leases.is_suspect(lease.token));
        suspects.map(|(_, since)| since).min()
    }

    /// Returns a leased event as a value of the program's enum.
    ///
    /// # Errors
    /// When no program can read it, or another one, or this one later.
    pub(super) fn read(leased: &LeasedEvent) -> Result<D::Event, Unhandled> {
        let payload = sealing::opened(&leased.kind, leased.payload.as_deref())?;
        D::Event::decode(&leased.kind, payload.as_deref()).map_err(|error| {
            // It belongs to another program, like an event of an unknown kind.
            if error.is_newer() {
                let waits = HandlerError::retry("newer_version", error);
                return Unhandled::Later(waits.blameless());
            }
            let code = match error {
                DecodeError::UnknownKind(_) => "no_handler",
                _ => "undecodable",
            };
            Unhandled::Never(Fault::new(code, error))
        })
    }

    /// Creates an event's work. It counts as running from now on. An event that is chained behind another one
    /// keeps its payload, because it may wait again.
    pub(super) fn prepare(
        &mut self,
        event: D::Event,
        mut leased: LeasedEvent,
        launch: AttemptStart<'_>,
    ) -> StartableEvent<EventRun<D>> {
        let lease = leased.lease;
        if launch.flushed.ahead.is_none() {
            leased.payload = None;
        }
        let usual = self.options.handler_timeout;
        let most = self.options.lease_timeout.mul_f64(0.9);
        let limit = self.policies.handler_timeout(&leased.kind, usual, most);
        let sharing = self.sharing(&leased);
        let database = Some(self.database.clone());
        let mut ctx = Context::new(leased, database, launch.flushed, launch.now + limit);
        if let Some(spans) = launch.spans {
            spans.place(&mut ctx);
        }
        ctx.share_calls(sharing, self.worker);
        ctx.know(self.services.clone());
        let span = tracing::info_span!(
            "event",
            event.id = lease.id,
            event.kind = event.kind(),
            event.attempt = ctx.attempt(),
            trace_id = ctx.trace().map(TraceContext::trace_id),
            span_id = ctx.trace().map(TraceContext::span_id),
            parent_span_id = ctx.trace().and_then(TraceContext::parent_span_id),
        );
        let ctx = Arc::new(ctx);
        self.running.insert(lease, ctx.clone());
        StartableEvent {
            lease,
            start_by: launch.start_by,
            part: PERMIT / sharing.most,
            handlers: EventRun {
                app: self.app.clone(),
                ctx,
                event,
                limits: TimeLimits {
                    handler: limit,
                    cut: launch.cut,
                },
                services: self.services.clone(),
                span,
            },
            then: VecDeque::new(),
        }
    }

    /// Returns the context of an event that was handed over.
    pub(super) fn context(&self, lease: Lease) -> Option<Arc<Context>> {
        self.running.get(&lease).cloned()
    }

    /// Takes the context of an event that the pool is done with.
    pub(super) fn take(&mut self, lease: Lease) -> Option<Arc<Context>> {
        self.running.remove(&lease)
    }

    /// Takes back the selected events that were handed over and have not started.
    pub(super) fn recall(&mut self, selected: impl Fn(&LeasedEvent) -> bool) -> Vec<LeasedEvent> {
        let running = &self.running;
        let of_lease = |lease| running.get(&lease).is_some_and(|ctx| selected(ctx.event()));
        let leases = self.pool.take_waiting(of_lease).into_iter();
        let contexts = leases.filter_map(|lease| self.running.remove(&lease));
        contexts.map(|ctx| ctx.event().clone()).collect()
    }

    /// Cuts handlers that ignore their limit, or that are still running after `cut`, the end of the run.
    pub(super) fn cut_overdue(&mut self, cut: Instant) -> Vec<(Arc<Context>, Duration)> {
        let now = Instant::now();
        let mut overdue = Vec::new();
        for (lease, started) in self.pool.running() {
            let deadline = self.running.get(&lease).map(|ctx| ctx.deadline().min(cut));
            if deadline.is_none_or(|deadline| now < deadline.max(started) + OVERDUE)
                || !self.pool.cut(lease)
            {
                continue;
            }
            let Some(ctx) = self.running.remove(&lease) else {
                continue;
            };
            let took = started.elapsed();
            ctx.end_handler(Err(HandlerError::timed_out(took, now >= cut)));
            overdue.push((ctx, took));
        }
        overdue
    }

    /// Notifies handlers whose event is no longer ours: `held` lists those that are.
    pub(super) fn notify_lost(&self, held: &[InHand]) {
        let held: HashSet<(Uuid, i64)> = held.iter().map(|held| (held.token, held.id)).collect();
        for (lease, ctx) in &self.running {
            if !held.contains(&(lease.token, lease.id)) {
                ctx.note_taken_away();
            }
        }
    }
}

/// An event that may start.
pub(super) struct StartableEvent<H> {
    pub lease: Lease,
    /// From this time on the event must not start, because its lease may have run out, for instance while the
    /// process was frozen.
    pub start_by: Reading,
    /// How much of a [`PERMIT`] the event takes.
    pub part: usize,
    pub handlers: H,
    /// The events that follow it in its group. The worker continues with them as long as all goes well.
    pub then: VecDeque<StartableEvent<H>>,
}

impl<H> StartableEvent<H> {
    fn leases(&self) -> impl Iterator<Item = Lease> {
        std::iter::once(self.lease).chain(self.then.iter().map(|work| work.lease))
    }
}

/// An event that was handed over and is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkEnd {
    pub lease: Lease,
    pub how: WorkOutcome,
}

/// What happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkOutcome {
    /// Its handlers ended after this time.
    For(Duration),
    /// It was too late to start them.
    Late,
    /// A preceding event of its group did not end well.
    NotReached,
}

/// The workers of one drain.
pub(super) struct Pool<H> {
    shared: Arc<PoolShared<H>>,
}

struct PoolShared<H> {
    /// The runtime in which the workers' tasks run.
    runtime: Handle,
    /// The most workers at once.
    most: usize,
    state: Mutex<PoolState<H>>,
    ended_signal: Notify,
}

struct PoolState<H> {
    waiting: VecDeque<StartableEvent<H>>,
    ended: Vec<WorkEnd>,
    /// The event that each worker runs, by the worker's number. A worker that does not find its number here
    /// was cut, and ends.
    workers: BTreeMap<u64, Worker<H>>,
    /// The parts of permits that the workers take.
    taken: usize,
    /// The workers that were cut and have not noticed yet, because their handlers block their threads.
    cut: BTreeSet<u64>,
    made: u64,
    /// The typical time of a handler, weighted towards recent ones. `None` before the first end.
    typical: Option<Duration>,
}

struct Worker<H> {
    lease: Lease,
    part: usize,
    started: Instant,
    /// Whether its handler waits for something, so that its thread is free.
    waits: bool,
    abort: Option<AbortHandle>,
    /// The events that it continues with.
    then: VecDeque<StartableEvent<H>>,
}

impl<H> PoolShared<H> {
    fn state(&self) -> MutexGuard<'_, PoolState<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Run> PoolShared<H> {
    /// Opens as many workers as the line needs.
    fn open(self: &Arc<Self>) {
        loop {
            let begun = self.state().begin(self.most);
            let Some((number, work)) = begun else { return };
            let task = Task {
                shared: self.clone(),
                number,
            };
            let task = self.runtime.spawn(run(task, work));
            // The worker may have ended by now.
            if let Some(worker) = self.state().workers.get_mut(&number) {
                worker.abort = Some(task.abort_handle());
            }
        }
    }
}

impl<H: Run> Pool<H> {
    /// Creates workers, at most `most` of which run at once.
    pub(super) fn new(most: usize, runtime: Handle) -> Self {
        let shared = PoolShared {
            runtime,
            most,
            state: Mutex::new(PoolState::new()),
            ended_signal: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns the runtime in which handlers run.
    pub(super) fn runtime(&self) -> Handle {
        self.shared.runtime.clone()
    }

    /// Returns how many events may be handed over and not ended. A single worker receives one event at a
    /// time, so that the whole queue is handled in order (A2). The next event of a group can only be handed
    /// over when the preceding one has ended.
    pub(super) fn room(&self) -> usize {
        self.shared.state().room(self.shared.most)
    }

    /// Returns the lower limit that holds while the next event is large. A decoded payload may take a
    /// multiple of its size, and all handed-over events are decoded.
    pub(super) fn room_for_large(&self) -> usize {
        self.room().min(self.shared.most * QUEUED.0)
    }

    /// Whether the later events of a group are handed over together with its first one. With quick handlers
    /// they would wait longer for the loop than they take. Not with a single worker, which keeps the order of
    /// all events.
    pub(super) fn chains(&self) -> bool {
        self.room() > self.shared.most
    }

    /// Returns how many events were handed over to follow others, and still wait for them.
    pub(super) fn chained(&self) -> usize {
        let state = self.shared.state();
        let waiting = state.waiting.iter().map(|work| work.then.len());
        let running = state.workers.values().map(|worker| worker.then.len());
        waiting.chain(running).sum()
    }

    /// Returns the recent typical time of a handler, or `None` before the first has ended. If all permits are
    /// taken by handlers that have been running for longer, that time counts: quick events may have turned
    /// slow.
    pub(super) fn typical(&self) -> Option<Duration> {
        self.shared.state().pace(self.shared.most)
    }

    /// Returns how many events were handed over and wait for a permit.
    pub(super) fn waiting(&self) -> usize {
        self.shared.state().waiting.len()
    }

    /// Adds an event to those that wait. [`Pool::open`] makes it run.
    pub(super) fn push(&self, work: StartableEvent<H>) {
        self.shared.state().waiting.push_back(work);
    }

    /// Opens workers for the events that wait.
    pub(super) fn open(&self) {
        self.shared.open();
    }

    /// Returns when to call [`Pool::open`] again, if a handler that blocks its thread may hold up events that
    /// wait.
    pub(super) fn open_at(&self) -> Option<Instant> {
        let state = self.shared.state();
        let held_up = !state.waiting.is_empty() && state.has_place(self.shared.most);
        held_up.then(|| Instant::now() + QUICK)
    }

    /// Waits until events have ended, and takes them.
    pub(super) async fn ended(&self) -> Vec<WorkEnd> {
        loop {
            let ended = std::mem::take(&mut self.shared.state().ended);
            if !ended.is_empty() {
                return ended;
            }
            self.shared.ended_signal.notified().await;
        }
    }

    /// Takes back the events that have not started and that `selected` selects.
    pub(super) fn take_waiting(&self, selected: impl Fn(Lease) -> bool) -> Vec<Lease> {
        let mut state = self.shared.state();
        let mut taken = Vec::new();
        state.waiting.retain(|work| {
            let goes = selected(work.lease);
            if goes {
                taken.extend(work.leases());
            }
            !goes
        });
        for worker in state.workers.values_mut() {
            if worker.then.front().is_some_and(|work| selected(work.lease)) {
                taken.extend(worker.then.drain(..).map(|work| work.lease));
            }
        }
        taken
    }

    /// Returns the events that run, and since when.
    pub(super) fn running(&self) -> Vec<(Lease, Instant)> {
        let state = self.shared.state();
        state
            .workers
            .values()
            .map(|worker| (worker.lease, worker.started))
            .collect()
    }

    /// Ends the worker that runs this event. If the event has ended in the meantime, nothing happens.
    pub(super) fn cut(&self, lease: Lease) -> bool {
        let mut state = self.shared.state();
        let mut workers = state.workers.iter();
        let found = workers.find(|(_, worker)| worker.lease == lease);
        let Some(number) = found.map(|(number, _)| *number) else {
            return false;
        };
        let Some(removed) = state.remove(number) else {
            return false;
        };
        state.cut.insert(number);
        state.leave(removed.then);
        drop(state);
        // Not under the lock: a runtime that has shut down drops the task here.
        if let Some(abort) = removed.abort {
            abort.abort();
        }
        // Other events may wait for the worker's permit.
        self.shared.open();
        true
    }
}

impl<H> Pool<H> {
    /// Ends all workers. Returns how many handlers still run: a handler that waits for nothing cannot be
    /// ended, and blocks its thread for as long as it likes.
    pub(super) async fn close(&self) -> usize {
        self.shared.cut_all();
        let all_gone = async {
            while !self.shared.state().cut.is_empty() {
                self.shared.ended_signal.notified().await;
            }
        };
        let _ = tokio::time::timeout(LEAVING, all_gone).await;
        self.shared.state().cut.len()
    }
}

impl<H> PoolShared<H> {
    fn cut_all(&self) {
        let mut state = self.state();
        state.waiting.clear();
        let workers = std::mem::take(&mut state.workers);
        state.taken = 0;
        state.cut.extend(workers.keys());
        drop(state);
        for abort in workers.into_values().filter_map(|worker| worker.abort) {
            abort.abort();
        }
    }
}

/// When the drain is gone, nothing starts or continues except handlers that block their thread.
impl<H> Drop for Pool<H> {
    fn drop(&mut self) {
        self.shared.cut_all();
    }
}

/// A worker's task, from before its first step until it is dropped.
struct Task<H> {
    shared: Arc<PoolShared<H>>,
    number: u64,
}

impl<H> Drop for Task<H> {
    fn drop(&mut self) {
        if self.shared.state().cut.remove(&self.number) {
            self.shared.ended_signal.notify_one();
        }
    }
}

/// Runs one worker: one event after the other until none waits.
async fn run<H: Run>(worker: Task<H>, first: StartableEvent<H>) {
    let (shared, number) = (&worker.shared, worker.number);
    let (mut next, mut now) = (Some(first), Instant::now());
    while let Some(work) = next {
        let (lease, started) = (work.lease, now);
        let (how, goes_on) = if work.start_by.is_over(started) {
            (WorkOutcome::Late, false)
        } else {
            let goes_on = run_one(shared, number, work.handlers).await;
            now = Instant::now();
            (WorkOutcome::For(now - started), goes_on)
        };
        let ended = WorkEnd { lease, how };
        next = shared.state().advance(shared, number, now, ended, goes_on);
    }
}

/// Runs the handlers of one event. As soon as they wait for something, the loop is notified of earlier ends,
/// and other workers take the events that wait.
async fn run_one<H: Run>(shared: &Arc<PoolShared<H>>, number: u64, handlers: H) -> bool {
    let mut handlers = pin!(handlers.run());
    let mut waits = false;
    poll_fn(|context| {
        let polled = handlers.as_mut().poll(context);
        if polled.is_pending() && !waits {
            waits = true;
            if shared.state().note_waiting(number) {
                shared.ended_signal.notify_one();
            }
            shared.open();
        }
        polled
    })
    .await
}

impl<H> PoolState<H> {
    fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            ended: Vec::new(),
            workers: BTreeMap::new(),
            taken: 0,
            cut: BTreeSet::new(),
            made: 0,
            typical: None,
        }
    }

    fn pace(&self, most: usize) -> Option<Duration> {
        let typical = self.typical?;
        if self.taken + PERMIT <= most * PERMIT {
            return Some(typical);
        }
        let now = Instant::now();
        let running = self.workers.values();
        let running = running.map(|worker| now - worker.started).min();
        Some(typical.max(running.unwrap_or_default()))
    }

    /// Returns how many events may be handed over and not ended.
    fn room(&self, most: usize) -> usize {
        match self.pace(most) {
            Some(typical) if typical < QUICK && most > 1 => {
                let short = SHORT.as_nanos() / typical.as_nanos().max(1);
                let short = usize::try_from(short).unwrap_or(usize::MAX);
                short.clamp(most * QUEUED.0, most * QUEUED.1)
            }
            _ => most,
        }
    }

    /// Returns how many ends accumulate before the loop is notified.
    fn notify_at(&self, most: usize) -> usize {
        (self.room(most) / 2).max(most * QUEUED.0 / 2)
    }

    /// Returns the next worker's number and first work, if another worker is needed.
    fn begin(&mut self, most: usize) -> Option<(u64, StartableEvent<H>)> {
        if !self.has_place(most) || self.has_runner_soon(Instant::now()) {
            return None;
        }
        let mut work = self.waiting.pop_front()?;
        self.made += 1;
        self.taken += work.part;
        let worker = Worker {
            lease: work.lease,
            part: work.part,
            started: Instant::now(),
            waits: false,
            abort: None,
            then: std::mem::take(&mut work.then),
        };
        self.workers.insert(self.made, worker);
        Some((self.made, work))
    }

    /// Whether the first event waiting may have a worker.
    fn has_place(&self, most: usize) -> bool {
        let part = self.waiting.front().map_or(PERMIT, |work| work.part);
        self.taken + part <= most * PERMIT
    }

    /// Removes a worker, because it ends.
    fn remove(&mut self, number: u64) -> Option<Worker<H>> {
        let removed = self.workers.remove(&number)?;
        self.taken -= removed.part;
        Some(removed)
    }

    /// Whether the line is short and a running worker will soon come to it.
    fn has_runner_soon(&self, now: Instant) -> bool {
        let little = u32::try_from(self.waiting.len())
            .is_ok_and(|count| self.typical.is_some_and(|typical| typical * count < SHORT));
        let mut workers = self.workers.values();
        little && workers.any(|worker| !worker.waits && now < worker.started + QUICK)
    }

    /// Notes that a worker's handler waits. Returns whether there are ends for the loop.
    fn note_waiting(&mut self, number: u64) -> bool {
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.waits = true;
        }
        !self.ended.is_empty()
    }

    /// Notes an end. Returns what the worker runs next, or `None` if the worker ends.
    fn advance(
        &mut self,
        shared: &PoolShared<H>,
        number: u64,
        now: Instant,
        ended: WorkEnd,
        goes_on: bool,
    ) -> Option<StartableEvent<H>> {
        // Without an entry, the worker was cut: the loop has settled the event itself, and another worker has
        // this one's permit.
        let worker = self.workers.get_mut(&number)?;
        let mut then = std::mem::take(&mut worker.then);
        self.taken -= std::mem::take(&mut worker.part);
        self.ended.push(ended);
        if let WorkOutcome::For(took) = ended.how {
            self.typical = Some(
                self.typical
                    .map_or(took, |typical| (typical * 7 + took) / 8),
            );
        }
        if !goes_on {
            self.leave(std::mem::take(&mut then));
        }
        let mut next = then.pop_front();
        if next.is_none() && self.has_place(shared.most) {
            next = self.waiting.pop_front();
            then = next
                .as_mut()
                .map_or_else(VecDeque::new, |work| std::mem::take(&mut work.then));
        }
        if let (Some(work), Some(worker)) = (&next, self.workers.get_mut(&number)) {
            (worker.lease, worker.part, worker.then) = (work.lease, work.part, then);
            (worker.started, worker.waits) = (now, false);
            self.taken += worker.part;
        } else {
            self.workers.remove(&number);
        }
        if next.is_none() || self.ended.len() >= self.notify_at(shared.most) {
            shared.ended_signal.notify_one();
        }
        next
    }

    /// Reports events that will not start because of a preceding event of their group.
    fn leave(&mut self, then: VecDeque<StartableEvent<H>>) {
        let left = then.into_iter().map(|work| WorkEnd {
            lease: work.lease,
            how: WorkOutcome::NotReached,
        });
        self.ended.extend(left);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::time::SystemTime;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;
    use uuid::Uuid;

    use super::*;

    type Boxed = Pin<Box<dyn Future<Output = bool> + Send>>;

    impl Run for Boxed {
        fn run(self) -> impl Future<Output = bool> + Send {
            self
        }
    }

    fn lease(id: i64) -> Lease {
        Lease {
            id,
            token: Uuid::nil(),
        }
    }

    fn work(id: i64, handlers: impl Future<Output = ()> + Send + 'static) -> StartableEvent<Boxed> {
        ending(id, true, handlers)
    }

    /// Ends, and says whether the following event may start.
    fn ending(
        id: i64,
        well: bool,
        handlers: impl Future<Output = ()> + Send + 'static,
    ) -> StartableEvent<Boxed> {
        StartableEvent {
            lease: lease(id),
            start_by: Reading::now() + Duration::from_mins(1),
            part: PERMIT,
            handlers: Box::pin(handlers.map(move |()| well)),
            then: VecDeque::new(),
        }
    }

    /// Chains events, one after the other.
    fn chain(
        mut head: StartableEvent<Boxed>,
        then: Vec<StartableEvent<Boxed>>,
    ) -> StartableEvent<Boxed> {
        head.then.extend(then);
        head
    }

    fn start(workers: &Pool<Boxed>, work: StartableEvent<Boxed>) {
        workers.push(work);
        workers.open();
    }

    fn ids(ended: &[WorkEnd]) -> Vec<i64> {
        ended.iter().map(|ended| ended.lease.id).collect()
    }

    /// A handler that waits until it is notified.
    fn waiting() -> (oneshot::Sender<()>, impl Future<Output = ()>) {
        let (sender, received) = oneshot::channel::<()>();
        (sender, async move { drop(received.await) })
    }

    #[tokio::test]
    async fn no_more_run_at_once_than_there_are_workers_and_the_rest_follows_in_order() {
        let workers = Pool::new(2, Handle::current());
        let (first, one) = waiting();
        let (second, two) = waiting();
        start(&workers, work(1, one));
        start(&workers, work(2, two));
        start(&workers, work(3, async {}));
        start(&workers, work(4, std::future::pending()));
        tokio::task::yield_now().await;
        let running = |workers: &Pool<Boxed>| -> Vec<i64> {
            workers
                .running()
                .iter()
                .map(|(lease, _)| lease.id)
                .collect()
        };
        assert_eq!(running(&workers), [1, 2]);
        second.send(()).unwrap();
        assert_eq!(ids(&workers.ended().await), [2, 3]);
        assert_eq!(running(&workers), [1, 4]);
        first.send(()).unwrap();
        assert_eq!(ids(&workers.ended().await), [1]);
        assert_eq!(running(&workers), [4]);
    }

    #[tokio::test]
    async fn what_shares_a_place_runs_at_once_and_what_has_one_of_its_own_waits_for_a_whole_one() {
        let workers = Pool::new(2, Handle::current());
        let (waiting, mut ends) = (Vec::from([1, 2, 3, 4].map(|_| waiting())), Vec::new());
        for (id, (sender, handlers)) in (1..).zip(waiting) {
            ends.push(sender);
            let part = PERMIT / 4;
            start(
                &workers,
                StartableEvent {
                    part,
                    ..work(id, handlers)
                },
            );
        }
        for id in [5, 6] {
            start(&workers, work(id, std::future::pending()));
        }
        tokio::task::yield_now().await;
        let running = |workers: &Pool<Boxed>| -> Vec<i64> {
            workers
                .running()
                .iter()
                .map(|(lease, _)| lease.id)
                .collect()
        };
        assert_eq!(running(&workers), [1, 2, 3, 4, 5]);
        // A quarter of a permit is too little for it.
        for (left, sender) in ends.into_iter().enumerate() {
            sender.send(()).unwrap();
            workers.ended().await;
            workers.open();
            assert_eq!(running(&workers).contains(&6), left == 3);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn more_are_taken_on_only_while_handlers_are_quick() {
        let workers = Pool::new(3, Handle::current());
        assert_eq!(workers.room(), 3, "nothing is known yet");
        start(&workers, work(1, async {}));
        workers.ended().await;
        assert_eq!(workers.room(), 3 * QUEUED.1, "it took no time");
        for (typical, room) in [(5, 40), (50, 3 * QUEUED.0)] {
            workers.shared.state().typical = Some(Duration::from_micros(typical));
            assert_eq!(workers.room(), room, "{typical} us each");
        }
        start(&workers, work(2, tokio::time::sleep(QUICK * 20)));
        workers.ended().await;
        assert_eq!(workers.room(), 3);
    }

    /// Creates workers that have learnt that handlers are quick.
    async fn quick_workers(most: usize) -> Pool<Boxed> {
        let workers = Pool::new(most, Handle::current());
        start(&workers, work(0, async {}));
        assert_eq!(ids(&workers.ended().await), [0]);
        workers.shared.state().typical = Some(Duration::from_micros(2));
        workers
    }

    #[tokio::test(start_paused = true)]
    async fn one_lane_runs_a_line_of_quick_handlers_and_many_run_a_long_one() {
        let workers = quick_workers(4).await;
        for id in 1..=8 {
            start(&workers, work(id, async {}));
        }
        assert_eq!(workers.running().len(), 1);
        workers.shared.state().typical = Some(SHORT);
        workers.open();
        assert_eq!(workers.running().len(), 4);
        assert_eq!(workers.open_at(), None, "there is no worker left to open");
        tokio::task::yield_now().await;
        assert_eq!(ids(&workers.ended().await), [1, 5, 6, 7, 8, 2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_waits_lets_others_pass_though_most_are_quick() {
        let workers = quick_workers(2).await;
        let (sender, one) = waiting();
        start(&workers, work(1, one));
        start(&workers, work(2, async {}));
        assert_eq!(ids(&workers.ended().await), [2]);
        start(&workers, work(3, async {}));
        assert_eq!(ids(&workers.ended().await), [3]);
        sender.send(()).unwrap();
        assert_eq!(ids(&workers.ended().await), [1]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_handler_that_keeps_its_thread_to_itself_lets_others_pass_though_most_are_quick() {
        let workers = quick_workers(2).await;
        let (sender, received) = std::sync::mpsc::channel::<()>();
        start(&workers, work(1, async move { received.recv().unwrap() }));
        start(&workers, work(2, async {}));
        while let Some(at) = workers.open_at() {
            tokio::time::sleep_until(at).await;
            workers.open();
        }
        assert_eq!(ids(&workers.ended().await), [2]);
        sender.send(()).unwrap();
        assert_eq!(ids(&workers.ended().await), [1]);
    }

    #[tokio::test]
    async fn a2_a_single_lane_takes_one_event_at_a_time_however_quick() {
        let workers = Pool::new(1, Handle::current());
        start(&workers, work(1, async {}));
        workers.ended().await;
        assert_eq!(workers.room(), 1);
    }

    #[tokio::test]
    async fn a_lane_goes_on_with_what_stands_behind_as_long_as_all_goes_well() {
        let workers = Pool::new(2, Handle::current());
        let (sender, two) = waiting();
        let never = || work(4, async { unreachable!() });
        start(
            &workers,
            chain(
                work(1, async {}),
                vec![
                    ending(2, false, two),
                    work(3, async { unreachable!() }),
                    never(),
                ],
            ),
        );
        tokio::task::yield_now().await;
        assert_eq!(
            (ids(&workers.ended().await), workers.chained()),
            (vec![1], 2)
        );
        sender.send(()).unwrap();
        let ended = workers.ended().await;
        assert_eq!(ids(&ended), [2, 3, 4]);
        let ran: Vec<bool> = ended
            .iter()
            .map(|ended| matches!(ended.how, WorkOutcome::For(_)))
            .collect();
        assert_eq!(ran, [true, false, false]);
        assert_eq!((workers.chained(), workers.running().len()), (0, 0));
    }

    #[tokio::test]
    async fn what_stands_behind_is_taken_back_or_left_with_what_is_ahead() {
        let workers = Pool::new(1, Handle::current());
        let behind = |ids: [i64; 2]| ids.map(|id| work(id, async { unreachable!() })).into();
        start(
            &workers,
            chain(work(1, std::future::pending()), behind([2, 3])),
        );
        start(
            &workers,
            chain(work(4, std::future::pending()), behind([5, 6])),
        );
        tokio::task::yield_now().await;
        assert_eq!(
            workers.take_waiting(|lease| lease.id == 4),
            [4, 5, 6].map(lease)
        );
        assert!(workers.cut(lease(1)));
        assert_eq!(ids(&workers.ended().await), [2, 3]);
        assert!(workers.running().is_empty());
    }

    #[tokio::test]
    async fn what_was_cut_is_not_told_of_and_leaves_its_place_to_the_next() {
        let workers = Pool::new(1, Handle::current());
        start(&workers, work(1, std::future::pending()));
        start(&workers, work(2, async {}));
        tokio::task::yield_now().await;
        assert!(workers.cut(lease(1)));
        assert!(!workers.cut(lease(1)));
        assert_eq!(ids(&workers.ended().await), [2]);
        assert!(workers.running().is_empty());
    }

    #[tokio::test]
    async fn what_waits_can_be_taken_back_and_does_not_outlive_the_drain() {
        let workers = Pool::new(1, Handle::current());
        let (sender, one) = waiting();
        start(&workers, work(1, one));
        for id in [2, 3, 4] {
            start(&workers, work(id, async {}));
        }
        assert_eq!(
            workers.take_waiting(|_| true),
            [lease(2), lease(3), lease(4)]
        );
        let (outlived, received) = oneshot::channel::<()>();
        start(&workers, work(5, async move { outlived.send(()).unwrap() }));
        drop(workers);
        let _ = sender.send(());
        assert!(received.await.is_err(), "event 5 was dropped unstarted");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_waits_ends_with_the_drain_and_what_keeps_its_thread_is_told() {
        let workers = Pool::new(4, Handle::current());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (here, blocks) = oneshot::channel();
        let (held, dropped) = oneshot::channel::<()>();
        start(
            &workers,
            work(1, async move {
                here.send(()).unwrap();
                let _ = released.recv();
            }),
        );
        start(
            &workers,
            work(2, async move {
                std::future::pending::<()>().await;
                drop(held);
            }),
        );
        blocks.await.unwrap();
        assert_eq!(workers.close().await, 1, "event 1 blocks");
        assert!(dropped.await.is_err(), "event 2 was ended");
        drop(release);
        while workers.close().await > 0 {}
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_late_is_not_started() {
        let workers = Pool::new(1, Handle::current());
        let mut late = work(1, async { unreachable!() });
        late.start_by = Reading::now();
        start(&workers, late);
        // The machine was suspended, so only the wall clock has gone on.
        let mut thawed = work(2, async { unreachable!() });
        thawed.start_by.wall = SystemTime::now();
        start(&workers, thawed);
        let mut ended = workers.ended().await;
        while ended.len() < 2 {
            ended.extend(workers.ended().await);
        }
        let how = [1, 2].map(|id| (lease(id), WorkOutcome::Late));
        assert_eq!(
            ended.iter().map(|e| (e.lease, e.how)).collect::<Vec<_>>(),
            how
        );
    }
}
