//! Owns what a handler may ask of the engine while it works: the event's data, the deadline, follow-ups,
//! stored sub-steps, and a transaction whose commit is the completion. It does not decide how the event ends
//! ([`crate::outcome`]), and it runs nothing ([`mod@crate::drain`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::connect::{BEGIN, Client, Conn, Database, Queryable};
use tidegate_core::error::{Error, Result};
use tidegate_core::event::{NewEvent, Publishable};
use tidegate_core::fault::Fault;
use tidegate_core::json::Json;
use tidegate_core::lease::LeasedEvent;
use tidegate_core::progress::{Progress, Status};
use tidegate_core::queue::{self, Follow};
use tidegate_core::sealing;
use tidegate_core::trace::TraceContext;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_postgres::SimpleQueryStream;
use tracing::Span;
use uuid::Uuid;

use crate::ending;
use crate::handler::{Committed, Done, HandlerError, HandlerResult, Verdicts, kept};
use crate::outcome::HandlerEnd;
use crate::policies::BatchLimits;
use crate::services::Services;

/// What the handlers of one event share: the event's data, and what they may ask of the engine.
pub struct Context {
    event: LeasedEvent,
    trace: Option<TraceContext>,
    /// `None` in a test without a database.
    database: Option<Database>,
    flushed: WrittenUpTo,
    sharing: BatchLimits,
    /// What the run knows of services; `None` in a test without a run.
    services: Option<Arc<Services>>,
    /// Identifies the run. Only events of one run share calls.
    run: Uuid,
    /// The number of this event's completion, once there is one. It is 0 if the completion is already in the
    /// database.
    completion: OnceLock<u64>,
    state: Mutex<HandlerState>,
    /// Whether another process now owns the event, so this attempt's results no longer count.
    taken_away: AtomicBool,
    cancellation: Notify,
    /// The span of the attempt for collectors of traces, once the attempt has begun.
    span: OnceLock<Span>,
}

/// What changes while the handlers run.
pub(crate) struct HandlerState {
    handler: &'static str,
    deadline: Instant,
    /// Whether the deadline is the end of the run, not the handler's own limit.
    is_cut: bool,
    emitted: Vec<NewEvent>,
    pub(crate) steps: BTreeMap<String, Json>,
    /// Handlers that have ended, in this attempt or in an earlier one.
    ends: Vec<HandlerEnd>,
    /// Whether another handler still has to run after the current one.
    more_to_come: bool,
    /// How many follow-ups a committed transaction has published.
    published: u64,
    /// The earliest time for the next progress report.
    next_report: Option<Instant>,
    /// Whether a transaction that completes the event is being committed. The event's row is then gone
    /// because of this handler.
    commits: bool,
}

/// The shortest time between two progress reports of a handler.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// How far the drain has written completions to the database. A handler starts before the completion of the
/// preceding event of its group is in the log. Its transaction must not commit before that completion.
#[derive(Clone)]
pub(crate) struct WrittenUpTo {
    /// The preceding event of the group, if both were handed over together.
    pub ahead: Option<Arc<Context>>,
    /// The number of the group's last completion before this event; 0 if there was none.
    pub after: u64,
    /// Which completions are in the database.
    pub progress: watch::Receiver<Written>,
}

/// Which completions are in the database, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// All up to this one, except those that are `open`.
    pub up_to: u64,
    /// Those that could not be written yet, because they wait for another session's lock for example.
    pub open: BTreeSet<u64>,
}

impl Written {
    fn contains(&self, number: u64) -> bool {
        number <= self.up_to && !self.open.contains(&number)
    }
}

impl WrittenUpTo {
    /// Whether all preceding completions of the group are in the database.
    fn is_clear(&self, written: &Written) -> bool {
        let ahead = self.ahead.as_ref();
        let completion = |ctx: &Arc<Context>| ctx.completion.get().copied();
        written.contains(self.after)
            && ahead
                .is_none_or(|ctx| completion(ctx).is_some_and(|number| written.contains(number)))
    }
}

impl Context {
    pub(crate) fn new(
        event: LeasedEvent,
        database: Option<Database>,
        flushed: WrittenUpTo,
        deadline: Instant,
    ) -> Self {
        let steps = event
            .progress
            .as_ref()
            .map(|progress| progress.steps.clone())
            .unwrap_or_default();
        let state = HandlerState {
            handler: "",
            deadline,
            is_cut: false,
            emitted: Vec::new(),
            steps,
            ends: Vec::new(),
            more_to_come: false,
            published: 0,
            next_report: None,
            commits: false,
        };
        let published_under = event.traceparent.as_deref();
        let trace = published_under.and_then(TraceContext::parse);
        Self {
            trace: trace.map(|above| above.child()),
            event,
            database,
            flushed,
            sharing: BatchLimits::NONE,
            services: None,
            run: Uuid::nil(),
            completion: OnceLock::new(),
            state: Mutex::new(state),
            taken_away: AtomicBool::new(false),
            cancellation: Notify::new(),
            span: OnceLock::new(),
        }
    }

    /// Puts the attempt at this position of a trace instead of below the publish of its event.
    pub(crate) fn place(&mut self, position: Option<TraceContext>) {
        self.trace = position;
    }

    /// Records the attempt, which begins now, on this span.
    pub(crate) fn record_on(&self, span: Span) {
        self.span.get_or_init(|| span);
    }

    /// Returns the span of the attempt if somebody collects it.
    pub(crate) fn span(&self) -> Option<&Span> {
        self.span.get().filter(|span| !span.is_disabled())
    }

    /// Returns the trace context of a follow-up. It has its own position if its publish is recorded.
    fn follow_up(&self) -> Option<String> {
        let above = self.trace.as_ref()?;
        Some(if above.is_sampled() && self.span().is_some() {
            above.child().to_string()
        } else {
            above.to_string()
        })
    }

    /// Lets the event share calls with others of this run.
    pub(crate) fn share_calls(&mut self, sharing: BatchLimits, run: Uuid) {
        (self.sharing, self.run) = (sharing, run);
    }

    /// Lets handlers call further services that answer, as the run knows.
    pub(crate) fn know(&mut self, services: Arc<Services>) {
        self.services = Some(services);
    }

    /// Ignores poisoning: a handler's panic must not hide the results of the other handlers.
    pub(crate) fn state(&self) -> MutexGuard<'_, HandlerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the event's id, which stays the same for all attempts. A replay has another one.
    pub fn event_id(&self) -> i64 {
        self.event.lease.id
    }

    /// Returns the number of this attempt, from 1 (A11).
    pub fn attempt(&self) -> u32 {
        self.event.attempts
    }

    /// Returns how many attempts the event has before it fails.
    pub fn max_attempts(&self) -> u32 {
        self.event.max_attempts
    }

    /// Returns the id of the business object that the event belongs to. Follow-ups inherit it (A6).
    pub fn correlation_id(&self) -> Option<&str> {
        self.event.correlation_id.as_deref()
    }

    /// Returns the slot of the schedule for which the event was published, in RFC 3339, such as
    /// `2031-11-22T02:30:00Z`. For a follow-up, this is the slot of the first event of its chain. The slot
    /// comes from the correlation id `schedule:NAME@SLOT`.
    pub fn slot(&self) -> Option<&str> {
        let named = self.correlation_id()?.strip_prefix("schedule:")?;
        named.rsplit_once('@').map(|(_, slot)| slot)
    }

    /// Returns the event's group. Nothing else of the group runs meanwhile.
    pub fn group_key(&self) -> Option<&str> {
        self.event.group_key.as_deref()
    }

    /// Returns this attempt's position in the trace under which the event was published, if there is one.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Returns the time of the publish, by the database's clock.
    pub fn created_at(&self) -> SystemTime {
        self.event.created_at
    }

    /// Returns the event's start-before deadline, if it has one (B13).
    pub fn start_before(&self) -> Option<SystemTime> {
        self.event.expires_at
    }

    /// Returns when the running handler will be stopped.
    pub fn deadline(&self) -> Instant {
        self.state().deadline
    }

    /// Returns when the running handler will be stopped, and whether that is the end of the run.
    pub(crate) fn end(&self) -> (Instant, bool) {
        let state = self.state();
        (state.deadline, state.is_cut)
    }

    /// Whether the event was taken from this attempt, because an operator cancelled or requeued it, for
    /// example. From then on nothing that the handler stores in the queue counts: its transaction cannot
    /// commit, and its follow-ups are not published. It may as well stop; its verdict does not matter. The
    /// drain notices the change when it renews its leases, that is, within a third of
    /// `TIDEGATE_LEASE_TIMEOUT`.
    pub fn is_cancelled(&self) -> bool {
        self.taken_away.load(Ordering::Acquire)
    }

    /// Waits until [`Context::is_cancelled`] is true. For a handler that should stop rather than wait for its
    /// service.
    pub async fn cancelled(&self) {
        let mut cancelled = pin!(self.cancellation.notified());
        // Register before the check. Otherwise a notification between the check and the wait would be lost.
        cancelled.as_mut().enable();
        if !self.is_cancelled() {
            cancelled.await;
        }
    }

    /// Tells the handlers that this drain no longer holds the event, unless their own transaction is ending
    /// it.
    pub(crate) fn note_taken_away(&self) {
        let ours = self.state().commits || self.completion.get().is_some();
        if !ours {
            self.taken_away.store(true, Ordering::Release);
            self.cancellation.notify_waiters();
        }
    }

    /// Returns the verdict for a write that the database refused. A lock that others hold, and a deadlock
    /// with them, cost the event no attempt.
    fn unsaved(&self, error: Error) -> HandlerError {
        if matches!(error, Error::LeaseLost(_)) {
            self.note_taken_away();
        }
        if error.is_lock_timeout() || error.is_transient() {
            let busy = "another transaction holds a lock that the end of this event needs";
            return HandlerError::retry("group_busy", busy)
                .after(BUSY_DELAY)
                .blameless();
        }
        HandlerError::retry("error", error)
    }

    /// Returns a key that is the same for every attempt of this handler at this event, and different for
    /// everything else. Send it with each call that has an effect. `step` distinguishes several calls of one
    /// handler.
    pub fn idempotency_key(&self, step: &str) -> String {
        let handler = self.state().handler;
        // Ids start again in a new database, and a service may serve several databases. The time of the
        // publish distinguishes them. A replay is a new event, and repeats the original's effects on purpose.
        let published = self.event.created_at.duration_since(SystemTime::UNIX_EPOCH);
        let published = published.unwrap_or_default().as_micros();
        format!(
            "tidegate-{}-{published}-{handler}-{step}",
            self.event.lease.id
        )
    }

    /// Publishes a follow-up when this event ends, and only then (A17). The follow-up inherits the
    /// correlation id and the trace, but not the group.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tidegate::{Context, Done, HandlerResult, NewEvent};
    /// # tidegate::events! { enum Shop { Paid(u32) = "paid", Reminded(u32) = "reminded" } }
    /// # fn pay(ctx: &Context) -> HandlerResult {
    /// ctx.emit(&Shop::Paid(7))?;
    /// let reminder = NewEvent::of(&Shop::Reminded(7))?.group("customer-3").delay(Duration::from_hours(24));
    /// ctx.emit(&reminder)?;
    /// # Ok(Done::ok())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A rejection, code `emit`, when the event cannot be serialized or a field exceeds its limit. The
    /// message names the field.
    pub fn emit(&self, event: &impl Publishable) -> Result<(), HandlerError> {
        self.keep(event.as_new().reject("emit")?.into_owned())
    }

    fn keep(&self, mut event: NewEvent) -> Result<(), HandlerError> {
        if event.traceparent.is_none() {
            event.traceparent = self.follow_up();
        }
        event.check().reject("emit")?;
        if event.replaces {
            return Err(HandlerError::reject("emit", queue::ALONE));
        }
        let event = sealing::sealed(&event).reject("emit")?.into_owned();
        self.state().emitted.push(event);
        Ok(())
    }

    /// Runs a sub-step once. Its result is stored with the event immediately, and a later attempt gets the
    /// stored result without running the step. The step is repeated only after a crash between its effect and
    /// the store, so give the call an [idempotency key](Context::idempotency_key) too.
    ///
    /// # Errors
    /// The step's own verdict. A retry when the result cannot be stored. A rejection, code `step`, when the
    /// result cannot be serialized as JSON or has more than 1 MiB.
    pub async fn once<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        step: impl Future<Output = Result<T, HandlerError>> + Send,
    ) -> Result<T, HandlerError> {
        let key = format!("{}/{name}", self.state().handler);
        let stored = self.state().steps.get(&key).cloned();
        if let Some(value) = stored {
            return value.read().reject("step");
        }
        let result = step.await?;
        let value = kept("step", &result)?;
        let added = Progress {
            steps: BTreeMap::from([(key.clone(), value.clone())]),
            ..Progress::default()
        };
        if let Some(database) = &self.database {
            let client = database.pooled().await.retryable()?;
            let saved = queue::save_progress(&client, self.event.lease, &added).await;
            saved.map_err(|error| self.unsaved(error))?;
            client.give_back();
        }
        self.state().steps.insert(key, value);
        Ok(result)
    }

    /// Calls a further service, besides the one of [`Handlers::calls`](crate::Handlers::calls). Its failure
    /// counts for it, and not for the handler's own service: the event waits for it, and while it does not
    /// answer, the call is not made. Prefer one service a handler. With two, a failure of one repeats the
    /// call of the other, unless [`Context::once`] remembers it.
    ///
    /// # Errors
    /// What the call returned. [`HandlerError::unavailable`] if the service does not answer.
    pub async fn call<T>(
        &self,
        service: &'static str,
        call: impl Future<Output = Result<T, HandlerError>>,
    ) -> Result<T, HandlerError> {
        let Some(services) = &self.services else {
            return call.await;
        };
        let began = Instant::now();
        if let Some(refused) = services.refuse(service, &self.event) {
            return Err(refused.elsewhere());
        }
        let result = call.await;
        let ended = result.as_ref().map(|_| Done::ok()).map_err(Clone::clone);
        match services.judge(service, &self.event, began.elapsed(), ended) {
            Err(error) => Err(error.elsewhere()),
            Ok(_) => result,
        }
    }

    /// Reports how far the handler has come: a part from 0 to 1, and a note of at most 200 characters.
    /// Operators see the note, so put no personal data there. `tidegate show` and the console show the report
    /// while the handler works.
    ///
    /// A report costs little. The first is written at once, and later ones at most once a second; those in
    /// between are dropped. If the database does not answer, this call still succeeds; the end of the handler
    /// will show the fault.
    ///
    /// # Errors
    /// A retry, when this handler no longer holds the event: it was requeued or cancelled, or its lease has
    /// run out. Nothing that the handler does from then on is kept, so let `?` end it.
    pub async fn progress(&self, part: f64, note: impl Display) -> Result<(), HandlerError> {
        let handler = {
            let mut state = self.state();
            let now = Instant::now();
            if state.next_report.is_some_and(|next| now < next) {
                return Ok(());
            }
            state.next_report = Some(now + BETWEEN_REPORTS);
            state.handler
        };
        let Some(database) = &self.database else {
            return Ok(());
        };
        let part = if part.is_nan() {
            0.0
        } else {
            part.clamp(0.0, 1.0)
        };
        let note = Fault::new("", note).storable().message;
        let note: String = note.chars().take(200).collect();
        let lease = self.event.lease;
        let stored = async {
            let client = database.pooled().await?;
            queue::report_progress(&client, lease, handler, part, &note).await
        };
        match stored.await {
            Err(lost @ Error::LeaseLost(_)) => Err(self.unsaved(lost)),
            Err(error) => {
                tracing::warn!(event.id = lease.id, %error, "progress could not be stored");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Returns a connection of the pool, for reading. Writes belong in [`Context::transaction`].
    ///
    /// Behind a pooler in transaction mode, use only statements that are not prepared, such as
    /// [`tokio_postgres::Client::query_typed`]: each statement may run in another session.
    ///
    /// # Errors
    /// A retry when the database cannot be reached.
    pub async fn connection(&self) -> Result<Client, HandlerError> {
        let Some(database) = &self.database else {
            let why = "this test has no database; tidegate::testing::drain_now takes one";
            return Err(HandlerError::retry("no_database", why));
        };
        database.pooled().await.retryable()
    }

    /// Opens a transaction whose [`FencedTransaction::complete`] is this handler's completion. The handler's
    /// writes and its completion commit together, fenced by the lease, so the writes happen exactly once.
    /// Dropped without `complete`, the transaction rolls back.
    ///
    /// Beyond the handler's own statements, the transaction needs one round trip to the database, at its end.
    /// A result or a follow-up needs a second one.
    ///
    /// # Errors
    /// A retry when the database cannot be reached.
    pub async fn transaction(&self) -> Result<FencedTransaction<'_>, HandlerError> {
        // The preceding events of the group must be in the log before this one. Wait for them before the
        // transaction begins: a wait with an open transaction could wait for one of its own locks.
        let mut flushed = self.flushed.progress.clone();
        let ahead = flushed
            .wait_for(|written| self.flushed.is_clear(written))
            .await;
        ahead.map(drop).retryable()?;
        let mut client = self.connection().await?;
        // Sent without waiting for the answer: it travels with the handler's first statement. If this process
        // freezes or its host vanishes, the transaction ends soon after the handler's limit, and with it the
        // locks that others wait for. If the process ends while a statement waits for a lock, the server
        // notices within seconds.
        let limit = self
            .deadline()
            .saturating_duration_since(Instant::now())
            .saturating_add(IDLE_GRACE)
            .as_millis()
            .min(i32::MAX as u128);
        let opening = format!(
            "{BEGIN}; SET LOCAL idle_in_transaction_session_timeout = {limit}; \
             SET LOCAL client_connection_check_interval = '5s'"
        );
        let begun = client.begin(&opening).await.retryable()?;
        Ok(FencedTransaction {
            client,
            begun: Box::pin(begun),
            ctx: self,
        })
    }

    pub(crate) fn begin_handler(
        &self,
        handler: &'static str,
        deadline: Instant,
        is_cut: bool,
        more_to_come: bool,
    ) {
        let mut state = self.state();
        state.handler = handler;
        (state.deadline, state.is_cut) = (deadline, is_cut);
        state.emitted.clear();
        state.more_to_come = more_to_come;
        state.next_report = None;
    }

    pub(crate) fn end_handler(&self, result: HandlerResult) {
        let before = self.event.progress.as_ref();
        let result = match before.filter(|progress| progress.is_snoozed_out()) {
            Some(_) => result.map_err(HandlerError::snoozed_too_often),
            None => result,
        };
        let mut state = self.state();
        let emitted = if result.is_ok() {
            std::mem::take(&mut state.emitted)
        } else {
            Vec::new()
        };
        let handler = state.handler;
        state.ends.push(HandlerEnd {
            handler,
            result,
            earlier: false,
            emitted,
        });
    }

    /// Whether every handler has succeeded in the first attempt. Then only a failed write can keep the
    /// event's end from being stored.
    pub(crate) fn went_well(&self) -> bool {
        self.event.progress.is_none() && self.state().ends.iter().all(|end| end.result.is_ok())
    }

    pub(crate) fn note_completion(&self, number: u64) {
        // A handler's transaction may have set it already.
        let _ = self.completion.set(number);
    }

    pub(crate) fn skip_handler(&self, end: HandlerEnd) {
        self.state().ends.push(end);
    }

    pub(crate) fn sharing(&self) -> BatchLimits {
        self.sharing
    }

    pub(crate) fn run(&self) -> Uuid {
        self.run
    }

    pub(crate) fn event(&self) -> &LeasedEvent {
        &self.event
    }

    /// Takes the ends of the handlers so far, and the number of follow-ups that their transaction has already
    /// published.
    pub(crate) fn take_ends(&self) -> (Vec<HandlerEnd>, u64) {
        let mut state = self.state();
        (std::mem::take(&mut state.ends), state.published)
    }
}

/// A handler's transaction, which commits only while the handler holds its event. Use it like a
/// [`tokio_postgres::Client`] and end it with [`FencedTransaction::complete`]. It has no `commit`, because
/// that of a [`Transaction`](crate::Transaction) does not look at the lease.
pub struct FencedTransaction<'a> {
    client: Client,
    /// The answer to BEGIN.
    begun: Pin<Box<SimpleQueryStream>>,
    ctx: &'a Context,
}

impl FencedTransaction<'_> {
    /// Commits the handler's writes together with its completion. For the last handler of an event, this also
    /// moves the event to the log and publishes the follow-ups. Return the returned value from the handler.
    ///
    /// # Errors
    /// A retry when the lease is lost or the database fails. Then nothing is committed, unless only the
    /// answer to the commit was lost. The next attempt finds that out.
    pub async fn complete(mut self, done: Done) -> HandlerResult {
        while let Some(answer) = self.begun.next().await {
            answer.retryable()?;
        }
        self.ctx.state().commits = true;
        let committed = self.commit(&done).await;
        let ended = matches!(committed, Ok(Committed::Event));
        self.ctx.state().commits = ended;
        let committed = committed.map_err(|error| self.ctx.unsaved(error))?;
        self.client.give_back();
        if committed == Committed::Event {
            self.ctx.note_completion(0);
        }
        Ok(Done { committed, ..done })
    }

    /// Writes the completion inside the transaction and commits. If no handler is left, this completes the
    /// whole event.
    async fn commit(&self, done: &Done) -> Result<Committed> {
        let (end, ends, more_to_come) = {
            let state = self.ctx.state();
            let end = HandlerEnd {
                handler: state.handler,
                result: Ok(done.clone()),
                earlier: false,
                emitted: state.emitted.clone(),
            };
            let ends: Vec<HandlerEnd> = state.ends.iter().cloned().chain([end.clone()]).collect();
            (end, ends, state.more_to_come)
        };
        let lease = self.ctx.event.lease;
        let client = &self.client;
        if more_to_come || !ends.iter().all(HandlerEnd::is_final) {
            let added = ending::progress(std::slice::from_ref(&end)).unwrap_or_default();
            queue::save_progress(client, lease, &added).await?;
            queue::commit(client).await?;
            return Ok(Committed::Handler);
        }
        let status = if ends.iter().all(|end| end.result.is_ok()) {
            Status::Completed
        } else {
            Status::CompletedWithErrors
        };
        let end = ending::finalization(&self.ctx.event, &ends, status);
        if end.is_plain() {
            queue::complete_and_commit(client, lease).await?;
            return Ok(Committed::Event);
        }
        let flushed = queue::finalize_under(client, lease.token, &[&end], Follow::Wait).await?;
        if flushed.ended.is_empty() {
            return Err(Error::LeaseLost(lease.id));
        }
        queue::commit(client).await?;
        self.ctx.state().published = flushed.published;
        Ok(Committed::Event)
    }
}

impl Deref for FencedTransaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Queryable for FencedTransaction<'_> {
    fn conn(&self) -> Conn<'_> {
        self.client.conn()
    }
}

/// How long a handler waits for its next attempt when another publisher holds the group of its follow-up.
const BUSY_DELAY: Duration = Duration::from_secs(1);

/// How much longer than its handler a transaction may be idle.
const IDLE_GRACE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        let (_, progress) = watch::channel(Written::default());
        let flushed = WrittenUpTo {
            ahead: None,
            after: 0,
            progress,
        };
        let event = LeasedEvent::sample(1, None);
        Context::new(event, None, flushed, Instant::now())
    }

    #[test]
    fn an_event_that_left_the_queue_by_its_own_end_was_not_taken_away() {
        let (ended, commits, taken_away) = (context(), context(), context());
        ended.note_completion(1);
        commits.state().commits = true;
        for ctx in [&ended, &commits, &taken_away] {
            ctx.note_taken_away();
        }
        assert!(!ended.is_cancelled() && !commits.is_cancelled());
        assert!(taken_away.is_cancelled());
    }

    #[test]
    fn what_comes_behind_waits_for_all_that_was_before_it_and_is_not_written() {
        let ahead = Arc::new(context());
        let behind = WrittenUpTo {
            ahead: Some(ahead.clone()),
            after: 3,
            progress: ahead.flushed.progress.clone(),
        };
        let written = |up_to, open: &[u64]| Written {
            up_to,
            open: open.iter().copied().collect(),
        };
        assert!(!behind.is_clear(&written(9, &[])), "it has not ended");
        ahead.note_completion(7);
        assert!(behind.is_clear(&written(7, &[5])));
        for (up_to, open) in [(2, vec![]), (6, vec![]), (7, vec![3]), (7, vec![7])] {
            assert!(!behind.is_clear(&written(up_to, &open)), "{up_to} {open:?}");
        }
    }
}
