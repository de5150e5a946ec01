//! Owns the one loop: lease ahead, start handlers, write down what became of events, until the queue
//! is empty or the budget spent; then give back the rest and report. It holds no SQL and knows no kind.
//!
//! Everything the loop decides on lives in one task; handlers run in tasks of their own. Leasing and
//! writing go over two connections, so that the next batch is taken while the last one is written
//! (99,000 events/s against 73,000 on one).
//!
//! Order inside a group survives the overlap by two rules. A drain may lease further events of a
//! group it holds, because they queue up behind in [`schedule`]. And an event that goes back to the
//! queue closes its group ([`Barred`]): what was leased behind it goes back too, including what a
//! lease already under way still brings.

mod execute;
mod flusher;
mod leaser;
mod link;
mod schedule;
pub(crate) mod settle;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use uuid::Uuid;

use self::execute::{Limits, execute, timed_out};
use self::flusher::{Class, Flush, Job, Written, flush};
use self::leaser::{Arrival, Order, Pace, lease};
use self::link::Link;
use self::schedule::Schedule;
use self::settle::{Settled, given_up, settle};
use crate::budget::Budget;
use crate::connect::Database;
use crate::context::{Context, Flushed};
use crate::error::Error;
use crate::event::{DecodeError, Event, Fate, Lease, LeasedEvent};
use crate::handler::{Dispatch, Fault};
use crate::invocation::{DrainReport, StopReason};
use crate::outcome::{HandlerEnd, RetryPolicy, Status};
use crate::queue::{self, Finalization, Released};

/// How to drain. Every duration is of this machine's clock, but for the lease's, which is the database's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainOptions {
    /// The whole run; a tenth of it, at most 2 s, is kept for writing down.
    pub budget: Duration,
    /// Most events leased at once, 1 to 10,000.
    pub batch: u32,
    /// Handlers at once, 1 to 1,000; with 1 the whole queue is FIFO (A2).
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
    let mut drain = Drain::new(database, app, options, hooks);
    let ended = match options.check() {
        Ok(()) => drain.run().await,
        Err(error) => Err(error),
    };
    drain.report.elapsed_ms = millis(drain.budget.elapsed());
    match ended {
        Ok(()) => Ok(drain.report),
        Err(source) => Err(DrainError {
            report: Box::new(drain.report),
            source,
        }),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A full write is worth waiting this long for: one commit for many events.
const FLUSH_AGE: Duration = Duration::from_millis(10);

/// A handler that does not even notice that its time is up blocks its thread; it is given up on after this.
const OVERDUE: Duration = Duration::from_millis(500);

/// A retry with a delay below this may be ready without ever having counted as delayed.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The run must end, whatever the database does, this long after its budget.
const OVERRUN: Duration = Duration::from_secs(1);

struct Drain<D: Dispatch> {
    app: Arc<D>,
    database: Database,
    options: DrainOptions,
    hooks: Hooks,
    budget: Budget,
    report: DrainReport,
    pace: Pace,
    schedule: Schedule,
    running: HashMap<Lease, Running>,
    ended: (mpsc::UnboundedSender<Lease>, mpsc::UnboundedReceiver<Lease>),
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
    idle_since: Option<Instant>,
}

struct Running {
    ctx: Arc<Context>,
    started: Instant,
    abort: AbortHandle,
}

/// A lease's token, while rows of it are in hand.
struct Held {
    rows: usize,
    renewed: Instant,
}

/// A group one of whose events goes back to the queue. Its other events go back too, until the write
/// is done and every lease sent before that has arrived.
#[derive(Default)]
struct Barred {
    /// The last lease that may still bring events from before; `None` until the write is done.
    until_lease: Option<u64>,
}

/// A connection that is idle or at work.
enum Slot<T> {
    Idle(Box<Link>),
    Busy(BoxFuture<'static, T>),
    Empty,
}

impl<T> Slot<T> {
    fn is_idle(&self) -> bool {
        matches!(self, Self::Idle(_))
    }

    /// Takes the idle link out; the caller puts work in.
    fn take(&mut self) -> Option<Link> {
        match std::mem::replace(self, Self::Empty) {
            Self::Idle(link) => Some(*link),
            busy => {
                *self = busy;
                None
            }
        }
    }

    /// Waits for the work, for ever if there is none.
    async fn done(&mut self) -> T {
        match self {
            Self::Busy(work) => {
                let done = work.await;
                *self = Self::Empty;
                done
            }
            Self::Idle(_) | Self::Empty => std::future::pending().await,
        }
    }
}

impl<D: Dispatch> Drain<D> {
    fn new(database: &Database, app: Arc<D>, options: &DrainOptions, hooks: Hooks) -> Self {
        let now = Instant::now();
        Self {
            app,
            database: database.clone(),
            options: options.clone(),
            hooks,
            budget: Budget::new(options.budget),
            report: DrainReport {
                budget_ms: millis(options.budget),
                ..DrainReport::default()
            },
            pace: Pace::new(options.concurrency, options.batch),
            schedule: Schedule::default(),
            running: HashMap::new(),
            ended: mpsc::unbounded_channel(),
            pending: Job::default(),
            pending_since: now,
            leasing: Slot::Idle(Box::new(Link::new(database.clone()))),
            flushing: Slot::Idle(Box::new(Link::new(database.clone()))),
            held: HashMap::new(),
            barred: HashMap::new(),
            leases_sent: 0,
            completions: 0,
            flushed: watch::channel(0),
            group_ends: HashMap::new(),
            seen_empty: false,
            idle_since: None,
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
                Some(lease) = self.ended.1.recv() => self.handlers_ended(lease),
                flush = self.flushing.done() => self.flush_done(flush)?,
                arrival = self.leasing.done() => self.lease_arrived(arrival)?,
                () = stop_signal(&mut self.hooks.stop) => self.budget.stop(),
                () = tokio::time::sleep_until(wake) => self.refuse_overrun()?,
            }
        }
    }

    /// Starts handlers while there are events, free places and time.
    fn start_handlers(&mut self) {
        while self.running.len() < self.options.concurrency
            && self.schedule.has_ready()
            && self.budget.allows_start()
        {
            match self.schedule.pop() {
                Some(event) if self.is_surely_held(&event) => self.start(event),
                Some(event) => self.give_back(event),
                None => {}
            }
        }
    }

    /// Whether the event's lease cannot have run out yet: after this process was frozen, somebody
    /// else may be running it.
    fn is_surely_held(&self, event: &LeasedEvent) -> bool {
        let trusted = self.options.lease_timeout.mul_f64(0.9);
        self.held
            .get(&event.lease.token)
            .is_some_and(|held| held.renewed.elapsed() < trusted)
    }

    fn give_back(&mut self, event: LeasedEvent) {
        self.close_group(&event);
        self.release(vec![event]);
    }

    /// Starts one event, or ends it at once if there is nothing to run.
    fn start(&mut self, leased: LeasedEvent) {
        let swept = match leased.fate {
            Fate::Run => None,
            Fate::Expired => Some((
                Class::Expired,
                Fault::new("expired", "not started before its deadline"),
            )),
            Fate::Abandoned => Some((
                Class::Abandoned,
                Fault::new("abandoned", "its worker went away on the last attempt"),
            )),
        };
        if let Some((class, fault)) = swept {
            return self.give_up(&leased, &fault, class);
        }
        match D::Event::decode(&leased.kind, leased.payload.as_deref()) {
            Ok(event) => self.spawn(event, leased),
            Err(error) => {
                let code = match error {
                    DecodeError::UnknownKind(_) => "no_handler",
                    DecodeError::Payload { .. } => "undecodable",
                };
                self.give_up(
                    &leased,
                    &Fault::new(code, error),
                    Class::Handled(Status::Failed),
                );
            }
        }
    }

    /// Ends an event that no handler will see.
    fn give_up(&mut self, event: &LeasedEvent, fault: &Fault, class: Class) {
        let settled = Settled::Finish(given_up(event, fault));
        log_end(event, &settled, Duration::ZERO);
        if let Settled::Finish(end) = settled {
            self.finish(event, end, class);
        }
    }

    fn spawn(&mut self, event: D::Event, mut leased: LeasedEvent) {
        let lease = leased.lease;
        leased.payload = None;
        let after = leased
            .group_key
            .as_ref()
            .and_then(|group| self.group_ends.get(group))
            .copied()
            .unwrap_or(0);
        let flushed = Flushed {
            after,
            progress: self.flushed.1.clone(),
        };
        let limit = self.options.handler_timeout;
        let ctx = Arc::new(Context::new(leased, self.database.clone(), flushed, limit));
        let limits = Limits {
            handler: limit,
            cut: self.budget.cut(),
        };
        let (app, shared, ended) = (self.app.clone(), ctx.clone(), self.ended.0.clone());
        let span = tracing::info_span!(
            "event",
            event.id = lease.id,
            event.kind = event.kind(),
            event.attempt = ctx.attempt()
        );
        let work = async move {
            execute(app, shared, event, limits).await;
            // The loop may have given up on this one; then nobody listens any more.
            let _ = ended.send(lease);
        };
        let abort = tokio::spawn(tracing::Instrument::instrument(work, span)).abort_handle();
        self.running.insert(
            lease,
            Running {
                ctx,
                started: Instant::now(),
                abort,
            },
        );
    }

    /// Takes up every event whose handlers have ended by now.
    fn handlers_ended(&mut self, first: Lease) {
        let mut next = Some(first);
        while let Some(lease) = next {
            if let Some(running) = self.running.remove(&lease) {
                let (ends, published) = running.ctx.ends();
                self.settle(&running, &ends, published);
            }
            next = self.ended.1.try_recv().ok();
        }
    }

    /// Decides what becomes of an event that ran.
    fn settle(&mut self, running: &Running, ends: &[HandlerEnd], published: u64) {
        let took = running.started.elapsed();
        self.budget.learn(took);
        let event = running.ctx.event();
        let settled = settle(event, ends, &self.options.retry, fastrand::f64());
        log_end(event, &settled, took);
        match settled {
            Settled::AlreadyFinished(status) => {
                self.report.published += published;
                count(&mut self.report, Class::Handled(status));
                self.let_go(event.lease.token);
                self.open_group(event);
            }
            Settled::Finish(end) => {
                let class = Class::Handled(end.status);
                self.finish(event, end, class);
            }
            Settled::Retry(retried) => {
                self.pend();
                self.pending.retries.push(retried);
                self.close_group(event);
            }
        }
    }

    /// Notes an event's end, to be written with the next flush.
    fn finish(&mut self, event: &LeasedEvent, end: Finalization, class: Class) {
        self.pend();
        self.pending.ends.push((end, class));
        if let Some(group) = &event.group_key {
            self.group_ends.insert(group.clone(), self.completions);
        }
        self.open_group(event);
    }

    fn open_group(&mut self, event: &LeasedEvent) {
        if let Some(group) = &event.group_key {
            self.schedule.open(group);
        }
    }

    /// An event goes back to the queue: so does everything of its group that is in hand behind it.
    fn close_group(&mut self, event: &LeasedEvent) {
        if let Some(group) = &event.group_key {
            self.bar(group);
            let behind = self.schedule.close(group);
            self.release(behind);
        }
    }

    fn release(&mut self, events: Vec<LeasedEvent>) {
        for event in events {
            self.pend();
            if let Some(group) = &event.group_key {
                self.bar(group);
            }
            self.pending.releases.push(Released {
                lease: event.lease,
                counted: event.fate == Fate::Run,
            });
        }
    }

    /// Keeps a group shut until the next write is done and no lease from before it is under way.
    fn bar(&mut self, group: &str) {
        self.barred.insert(group.to_owned(), Barred::default());
        self.pending.closed_groups.push(group.to_owned());
    }

    /// Numbers what is about to be noted.
    fn pend(&mut self) {
        if self.pending.len() == 0 {
            self.pending_since = Instant::now();
        }
        self.completions += 1;
        self.pending.up_to = self.completions;
    }

    /// When nothing may start any more, what has not started goes back with its attempt (F2).
    fn give_back_rest(&mut self) {
        if self.schedule.len() > 0 && !self.budget.allows_start() {
            let rest = self.schedule.take_all();
            self.release(rest);
        }
    }

    /// Handlers that ignore their limit, or that a stop signal overtook, are cut from here.
    fn cut_overdue(&mut self) {
        let now = Instant::now();
        let cut = self.budget.cut();
        let overdue: Vec<Lease> = self
            .running
            .iter()
            .filter(|(_, running)| {
                now >= running.ctx.deadline().min(cut) + OVERDUE && now >= running.started + OVERDUE
            })
            .map(|(lease, _)| *lease)
            .collect();
        for lease in overdue {
            let Some(running) = self.running.remove(&lease) else {
                continue;
            };
            running.abort.abort();
            let (mut ends, published) = running.ctx.ends();
            let error = timed_out(running.started.elapsed(), now >= cut);
            let handler = running.ctx.running_handler();
            ends.push(HandlerEnd {
                handler,
                result: Err(error),
                earlier: false,
                emitted: Vec::new(),
            });
            self.settle(&running, &ends, published);
        }
    }
}

/// The part of the loop that talks to the database.
impl<D: Dispatch> Drain<D> {
    /// Writes when enough has come together, when it has waited long enough, when nothing else is
    /// going on, or when leases must be renewed.
    fn send_flush(&mut self) {
        if !self.flushing.is_idle() {
            return;
        }
        let now = Instant::now();
        self.pending.renewals = self.leases_to_renew(now);
        let enough = self.pending.len() >= (self.options.batch / 2).max(1) as usize;
        let aged = now >= self.pending_since + FLUSH_AGE;
        let quiet = self.running.is_empty() && !self.schedule.has_ready();
        if self.pending.is_empty()
            || !(enough || aged || quiet || !self.pending.renewals.is_empty())
        {
            return;
        }
        if let Some(link) = self.flushing.take() {
            let job = std::mem::take(&mut self.pending);
            self.flushing = Slot::Busy(flush(link, job, self.options.lease_timeout).boxed());
        }
    }

    /// Leases older than a third of their time, for what runs or waits.
    fn leases_to_renew(&mut self, now: Instant) -> Vec<Lease> {
        let third = self.options.lease_timeout / 3;
        if self.held.values().all(|held| now < held.renewed + third) {
            return Vec::new();
        }
        let due: Vec<Uuid> = self
            .held
            .iter()
            .filter(|(_, held)| now >= held.renewed + third)
            .map(|(token, _)| *token)
            .collect();
        for token in &due {
            if let Some(held) = self.held.get_mut(token) {
                held.renewed = now;
            }
        }
        let running = self
            .running
            .values()
            .map(|running| running.ctx.event().lease);
        running
            .chain(self.schedule.leases())
            .filter(|lease| due.contains(&lease.token))
            .collect()
    }

    fn flush_done(&mut self, flush: Flush) -> Result<(), Error> {
        self.flushing = Slot::Idle(Box::new(flush.link));
        let written = flush.written?;
        self.count_written(&flush.job, &written);
        self.look_again(&flush.job);
        self.bar_until_leases_arrive(&flush.job);
        self.drop_lost(&flush.job, &written);
        self.flushed.0.send_if_modified(|reached| {
            let further = flush.job.up_to > *reached;
            *reached = flush.job.up_to.max(*reached);
            further
        });
        self.group_ends
            .retain(|_, number| *number > flush.job.up_to);
        self.pace.hurry();
        if let Some(progress) = &self.hooks.progress {
            let mut report = self.report.clone();
            report.elapsed_ms = millis(self.budget.elapsed());
            progress.send_replace(report);
        }
        Ok(())
    }

    fn count_written(&mut self, job: &Job, written: &Written) {
        let came_back = |held: &Option<HashSet<Lease>>, lease: &Lease| {
            held.as_ref().is_some_and(|held| held.contains(lease))
        };
        self.report.published += written.published;
        for (end, class) in &job.ends {
            self.let_go(end.lease.token);
            let class = if written.unstorable.contains(&end.lease) {
                Class::Handled(Status::Failed)
            } else {
                *class
            };
            match class {
                _ if came_back(&written.ended, &end.lease) => count(&mut self.report, class),
                Class::Handled(_) => self.count_lost(end.lease),
                Class::Expired | Class::Abandoned => {}
            }
        }
        for retry in &job.retries {
            self.let_go(retry.lease.token);
            if came_back(&written.retried, &retry.lease) {
                self.report.retried += 1
            } else {
                self.count_lost(retry.lease)
            }
        }
        for release in &job.releases {
            self.let_go(release.lease.token);
            match (
                release.counted,
                came_back(&written.released, &release.lease),
            ) {
                (true, true) => self.report.released += 1,
                (true, false) => self.count_lost(release.lease),
                (false, _) => {}
            }
        }
    }

    /// What went back behind the cursor is looked for at once, not only by the next walk.
    fn look_again(&mut self, job: &Job) {
        let at_once = job
            .retries
            .iter()
            .filter(|retry| retry.delay < AT_ONCE)
            .map(|retry| retry.lease.id);
        if let Some(lowest) = job
            .releases
            .iter()
            .map(|release| release.lease.id)
            .chain(at_once)
            .min()
        {
            self.pace.back_to(lowest);
        }
    }

    fn count_lost(&mut self, lease: Lease) {
        tracing::warn!(
            event.id = lease.id,
            "lease lost; what became of the event here changes nothing"
        );
        self.report.lease_lost += 1;
    }

    /// The groups that this write closed stay barred until no lease from before it is under way.
    fn bar_until_leases_arrive(&mut self, job: &Job) {
        for group in &job.closed_groups {
            if self.leasing.is_idle() {
                self.barred.remove(group);
            } else if let Some(barred) = self.barred.get_mut(group) {
                barred.until_lease = Some(self.leases_sent);
            }
        }
    }

    /// Unstarted events whose lease could not be renewed belong to somebody else now.
    fn drop_lost(&mut self, job: &Job, written: &Written) {
        for lease in &job.renewals {
            if written
                .renewed
                .as_ref()
                .is_some_and(|renewed| renewed.contains(lease))
            {
                continue;
            }
            if let Some((event, behind)) = self.schedule.remove(*lease) {
                self.let_go(event.lease.token);
                if event.fate == Fate::Run {
                    self.count_lost(event.lease);
                }
                self.release(behind);
            }
        }
    }

    /// One row fewer of this lease is in hand.
    fn let_go(&mut self, token: Uuid) {
        if let Some(held) = self.held.get_mut(&token) {
            held.rows -= 1;
            if held.rows == 0 {
                self.held.remove(&token);
            }
        }
    }

    /// Leases ahead: as soon as no more than one lease's worth of events waits.
    fn send_lease(&mut self) {
        let most = self
            .options
            .max_events
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.report.leased));
        let enough = self.schedule.len() > self.pace.want() as usize / 2;
        if !self.leasing.is_idle()
            || enough
            || most == 0
            || !self.budget.allows_start()
            || Instant::now() < self.pace.poll_at()
        {
            return;
        }
        if let Some(link) = self.leasing.take() {
            self.leases_sent += 1;
            let idle = self.is_idle();
            let mut order = Order::new(&mut self.pace, most, idle);
            order.held = self.held.keys().copied().collect();
            order.timeout = self.options.lease_timeout;
            order.kinds = D::Event::KINDS;
            order.number = self.leases_sent;
            self.leasing = Slot::Busy(lease(link, order).boxed());
        }
    }

    fn lease_arrived(&mut self, arrival: Arrival) -> Result<(), Error> {
        self.leasing = Slot::Idle(Box::new(arrival.link));
        let batch = arrival.batch?;
        let empty = self.pace.arrived(
            &arrival.order,
            arrival.promoted,
            &batch,
            self.schedule.len(),
        );
        self.seen_empty = empty && self.is_idle();
        if !batch.events.is_empty() {
            self.report.batches += 1;
        }
        for event in batch.events {
            let held = self.held.entry(event.lease.token).or_insert(Held {
                rows: 0,
                renewed: arrival.order.sent,
            });
            held.rows += 1;
            self.report.leased += u64::from(event.fate == Fate::Run);
            if self.is_barred(&event, arrival.order.number) {
                self.release(vec![event]);
            } else {
                self.schedule.push(event);
            }
        }
        self.barred.retain(|_, barred| {
            barred
                .until_lease
                .is_none_or(|until| until > arrival.order.number)
        });
        Ok(())
    }

    fn is_barred(&self, event: &LeasedEvent, lease_number: u64) -> bool {
        let barred = event
            .group_key
            .as_ref()
            .and_then(|group| self.barred.get(group));
        barred.is_some_and(|barred| barred.until_lease.is_none_or(|until| lease_number <= until))
    }

    /// Nothing in hand, nothing to write.
    fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.schedule.len() == 0
            && self.pending.len() == 0
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
        if !self.budget.allows_start() {
            return Some(StopReason::BudgetSpent);
        }
        if self
            .options
            .max_events
            .is_some_and(|limit| self.report.leased >= limit)
        {
            return Some(StopReason::LimitReached);
        }
        self.is_settled_empty().then_some(StopReason::QueueEmpty)
    }

    /// When something must be done even if nothing happens.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + Duration::from_millis(250);
        if self.pending.len() > 0 {
            wake = wake.min(self.pending_since + FLUSH_AGE);
        }
        if self.leasing.is_idle() && self.schedule.len() == 0 {
            wake = wake.min(self.pace.poll_at());
        }
        if self.budget.last_start() > now {
            wake = wake.min(self.budget.last_start());
        }
        // Never a busy loop: what is due and cannot be done yet waits for an answer, not for time.
        wake.max(now + Duration::from_millis(1))
    }

    /// The database has had its time: the caller's own deadline comes first.
    fn refuse_overrun(&self) -> Result<(), Error> {
        let overrun = OVERRUN.max(self.budget.total() / 20);
        if self.budget.elapsed() > self.budget.total() + overrun {
            return Err(Error::TimedOut {
                stage: "finish",
                limit: self.budget.total() + overrun,
            });
        }
        Ok(())
    }

    async fn count_backlog(&mut self) -> Result<(), Error> {
        if let Slot::Idle(link) = &mut self.leasing {
            let backlog = queue::backlog(link.client().await?).await?;
            self.report.backlog = backlog.events;
            self.report.oldest_age_ms = backlog.oldest_age_ms;
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
    std::future::pending().await
}

fn count(report: &mut DrainReport, class: Class) {
    *match class {
        Class::Handled(Status::Completed) => &mut report.completed,
        Class::Handled(Status::CompletedWithErrors) => &mut report.completed_with_errors,
        Class::Handled(Status::Failed) => &mut report.failed,
        Class::Expired => &mut report.expired,
        Class::Abandoned => &mut report.abandoned,
    } += 1;
}

/// One line for an event's end. Successes are for debugging; a failure that will be retried, a
/// handler's own verdict and a final failure are told apart by level and text (B29, B30).
fn log_end(event: &LeasedEvent, settled: &Settled, took: Duration) {
    let (id, kind, attempt, elapsed_ms) = (
        event.lease.id,
        event.kind.as_str(),
        event.attempts,
        millis(took),
    );
    let (status, errors) = match settled {
        Settled::AlreadyFinished(status) => (Some(*status), &[][..]),
        Settled::Finish(end) => (Some(end.status), end.errors.as_slice()),
        Settled::Retry(retry) => (None, retry.errors.as_slice()),
    };
    let code = errors.first().map_or("", |entry| entry.code.as_str());
    match status {
        Some(Status::Completed) => {
            tracing::debug!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                elapsed_ms,
                "event completed"
            );
        }
        Some(Status::CompletedWithErrors) => {
            tracing::warn!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                elapsed_ms,
                code,
                "event rejected by a handler"
            );
        }
        Some(Status::Failed) => {
            tracing::error!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                elapsed_ms,
                code,
                "event failed for good"
            );
        }
        None => {
            tracing::warn!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                elapsed_ms,
                code,
                "event failed, will be retried"
            );
        }
    }
}
