//! Owns what a handler may ask of the engine while it works: who it is, how long it has, follow-ups,
//! remembered sub-steps, a transaction whose commit is the completion. It does not decide what
//! becomes of the event ([`crate::outcome`]) nor run anything ([`mod@crate::drain`]).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::Instant;
use tokio_postgres::{Client, SimpleQueryStream};
use uuid::Uuid;

use crate::connect::{Database, Pooled};
use crate::error::Error;
use crate::event::{Event, NewEvent};
use crate::handler::{Committed, Done, Fault, HandlerError, HandlerResult, Verdicts, kept};
use crate::lease::LeasedEvent;
use crate::otel;
use crate::outcome::{HandlerEnd, HandlerRecord, Member, Progress, Status};
use crate::policy::Sharing;
use crate::queue::{self, Follow, ending};
use crate::seal;
use crate::trace::TraceContext;

/// What the handlers of one event share.
pub struct Context {
    event: LeasedEvent,
    trace: Option<TraceContext>,
    /// `None` in a test without one.
    database: Option<Database>,
    flushed: Flushed,
    sharing: Sharing,
    /// Names the run: events of one run share calls.
    run: Uuid,
    /// What the event waited for, once it was asked.
    members: OnceCell<Vec<Member>>,
    /// The number of this event's completion, once it has one; 0 when it is in the database already.
    completion: OnceLock<u64>,
    state: Mutex<State>,
    /// The event is not this attempt's any more.
    taken_away: AtomicBool,
    told: Notify,
    /// When its handlers began, if somebody wants to know.
    #[cfg(feature = "otel")]
    began: OnceLock<SystemTime>,
}

/// What changes while the handlers run.
struct State {
    handler: &'static str,
    deadline: Instant,
    emitted: Vec<NewEvent>,
    steps: BTreeMap<String, Value>,
    /// Handlers that have ended, in this attempt or an earlier one.
    ends: Vec<HandlerEnd>,
    /// Whether another handler is still to run after the current one.
    more_to_come: bool,
    /// Follow-ups that a committed transaction has published.
    published: u64,
    /// When progress may be noted again.
    next_report: Option<Instant>,
    /// A transaction that completes the event is being committed: that it is gone is our own doing.
    commits: bool,
}

/// No handler notes its progress more often.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// How far the drain has written completions down. Handlers of one group start before the one ahead
/// is in the log; their transactions must not commit before it.
#[derive(Clone)]
pub(crate) struct Flushed {
    /// What was handed over with this event, ahead of it.
    pub ahead: Option<Arc<Context>>,
    /// The group's last completion before this event, numbered; 0 when there was none.
    pub after: u64,
    /// All completions up to this number are in the database.
    pub progress: watch::Receiver<u64>,
}

impl Flushed {
    /// Whether all that is ahead of this event in its group is in the database, when so many completions are.
    fn is_clear(&self, reached: u64) -> bool {
        let ahead = self.ahead.as_ref();
        let completion = |ctx: &Arc<Context>| ctx.completion.get().copied();
        reached >= self.after
            && ahead.is_none_or(|ctx| completion(ctx).is_some_and(|number| reached >= number))
    }
}

impl Context {
    pub(crate) fn new(
        event: LeasedEvent,
        database: Option<Database>,
        flushed: Flushed,
        limit: Duration,
    ) -> Self {
        let steps = event
            .progress
            .as_ref()
            .map(|progress| progress.steps.clone())
            .unwrap_or_default();
        let state = State {
            handler: "",
            deadline: Instant::now() + limit,
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
            sharing: Sharing::NONE,
            run: Uuid::nil(),
            members: OnceCell::new(),
            completion: OnceLock::new(),
            state: Mutex::new(state),
            taken_away: AtomicBool::new(false),
            told: Notify::new(),
            #[cfg(feature = "otel")]
            began: OnceLock::new(),
        }
    }

    /// It is at this position of a trace, not below whoever published its event.
    #[cfg(feature = "otel")]
    pub(crate) fn placed(mut self, position: Option<TraceContext>) -> Self {
        self.trace = position;
        self
    }

    /// Its handlers begin now.
    #[cfg(feature = "otel")]
    pub(crate) fn note_beginning(&self) {
        let _ = self.began.set(SystemTime::now());
    }

    #[cfg(feature = "otel")]
    pub(crate) fn began(&self) -> Option<SystemTime> {
        self.began.get().copied()
    }

    /// Its event may share calls with others of this run.
    pub(crate) fn sharing_calls(mut self, sharing: Sharing, run: Uuid) -> Self {
        (self.sharing, self.run) = (sharing, run);
        self
    }

    /// A handler's panic must not hide what the others did.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event's id.
    #[must_use]
    pub fn event_id(&self) -> i64 {
        self.event.lease.id
    }

    /// This attempt's number, from 1 (A11).
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.event.attempts
    }

    /// The attempt after which the event is given up.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.event.max_attempts
    }

    /// The business object the event belongs to; follow-ups inherit it (A6).
    #[must_use]
    pub fn correlation_id(&self) -> Option<&str> {
        self.event.correlation_id.as_deref()
    }

    /// The slot of the schedule that it was published for, RFC 3339, such as `2031-11-22T02:30:00Z`; of a follow-up, the slot
    /// that its first event was published for. It is what the correlation id `schedule:NAME@SLOT` says.
    #[must_use]
    pub fn slot(&self) -> Option<&str> {
        let named = self.correlation_id()?.strip_prefix("schedule:")?;
        named.rsplit_once('@').map(|(_, slot)| slot)
    }

    /// The event's group.
    #[must_use]
    pub fn group_key(&self) -> Option<&str> {
        self.event.group_key.as_deref()
    }

    /// This attempt's position in the trace that the event was published under, if it was under one.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// When the event was published, by the database's clock.
    #[must_use]
    pub fn created_at(&self) -> SystemTime {
        self.event.created_at
    }

    /// The event's start-before deadline, if it has one (B13).
    #[must_use]
    pub fn start_before(&self) -> Option<SystemTime> {
        self.event.expires_at
    }

    /// When the running handler will be cut.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.state().deadline
    }

    /// Whether the event was taken from this attempt: an operator has cancelled or requeued it, say. Nothing that the handler
    /// still writes in the queue's name counts, its transaction cannot commit and its follow-ups are not published; so it may as
    /// well stop, with any verdict. The drain learns of it when it prolongs its leases, every third of
    /// `TIDEGATE_LEASE_TIMEOUT` at the latest.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.taken_away.load(Ordering::Acquire)
    }

    /// Waits until [`Context::is_cancelled`]; for a handler that would rather stop than wait for its service.
    pub async fn cancelled(&self) {
        let mut told = pin!(self.told.notified());
        // Before the look: what is told between the look and the wait is not missed.
        told.as_mut().enable();
        if !self.is_cancelled() {
            told.await;
        }
    }

    /// The event is in this drain's hands no more. What its own transaction is ending has not been taken away.
    pub(crate) fn note_taken_away(&self) {
        let ours = self.state().commits || self.completion.get().is_some();
        if !ours {
            self.taken_away.store(true, Ordering::Release);
            self.told.notify_waiters();
        }
    }

    /// A write of the event was refused, perhaps for it is not ours any more.
    fn note_refusal(&self, error: &Error) {
        if matches!(error, Error::LeaseLost(_)) {
            self.note_taken_away();
        }
    }

    /// The same for every attempt of this handler on this event, different for every other: send it
    /// with each call that has an effect. `step` tells several calls of one handler apart.
    #[must_use]
    pub fn idempotency_key(&self, step: &str) -> String {
        let handler = self.state().handler;
        // Ids begin anew in a new database, and a service may serve several; the time of the publish
        // tells them apart. A replay is a new event, and repeats the original's effects on purpose.
        let published = self.event.created_at.duration_since(SystemTime::UNIX_EPOCH);
        let published = published.unwrap_or_default().as_micros();
        format!(
            "tidegate-{}-{published}-{handler}-{step}",
            self.event.lease.id
        )
    }

    /// Publishes a follow-up when this event ends, and only then (A17). It inherits the correlation id
    /// and the trace.
    ///
    /// # Errors
    /// A rejection, code `emit`, when the event does not serialize or breaks a size limit.
    pub fn emit(&self, event: &impl Event) -> Result<(), HandlerError> {
        self.emit_new(NewEvent::of(event).reject("emit")?)
    }

    /// As [`Context::emit`], with the options of [`NewEvent`]: group, delay, deadline and so on.
    ///
    /// # Errors
    /// A rejection, code `emit`, when a field breaks its limit; the message names it.
    pub fn emit_new(&self, mut event: NewEvent) -> Result<(), HandlerError> {
        if event.traceparent.is_none() {
            event.traceparent = self.trace.as_ref().map(otel::follow_up);
        }
        event.check().reject("emit")?;
        if event.replaces {
            return Err(HandlerError::reject("emit", queue::ALONE));
        }
        if !event.after.is_empty() {
            return Err(HandlerError::reject("emit", queue::AFTER));
        }
        let event = seal::sealed(&event).reject("emit")?.into_owned();
        self.state().emitted.push(event);
        Ok(())
    }

    /// The events that this one waited for, in the order of their ids, and how they ended; none if it did not wait. The same in every
    /// attempt; a replay has what its original had. What they returned is in the log, `event_log.result`.
    ///
    /// # Errors
    /// A retry when the database fails.
    pub async fn members(&self) -> Result<&[Member], HandlerError> {
        let read = async || {
            let client = self.pooled().await?;
            queue::members(&*client, self.event_id()).await.retryable()
        };
        self.members.get_or_try_init(read).await.map(Vec::as_slice)
    }

    /// In a test: it has waited for these.
    #[cfg(feature = "testing")]
    pub(crate) fn having_waited_for(self, members: Option<Vec<Member>>) -> Self {
        let members = OnceCell::new_with(members);
        Self { members, ..self }
    }

    /// Runs a sub-step once: its result is stored with the event as soon as it is there, and a later
    /// attempt gets it back without running the step. Only a crash between the effect and the store
    /// repeats it, so give the call an [idempotency key](Context::idempotency_key) all the same.
    ///
    /// # Errors
    /// The step's own verdict; a retry when its result cannot be stored; a rejection, code `step`, when that is no JSON, or of
    /// more than 1 MiB.
    pub async fn once<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        step: impl Future<Output = Result<T, HandlerError>> + Send,
    ) -> Result<T, HandlerError> {
        let key = format!("{}/{name}", self.state().handler);
        let stored = self.state().steps.get(&key).cloned();
        if let Some(value) = stored {
            return serde_json::from_value(value).reject("step");
        }
        let result = step.await?;
        let value = kept("step", &result)?;
        let added = Progress {
            steps: BTreeMap::from([(key.clone(), value.clone())]),
            ..Progress::default()
        };
        if let Some(database) = &self.database {
            let client = database.pooled().await.retryable()?;
            let saved = queue::save_progress(&*client, self.event.lease, &added).await;
            saved
                .inspect_err(|error| self.note_refusal(error))
                .retryable()?;
        }
        self.state().steps.insert(key, value);
        Ok(result)
    }

    /// Tells whoever looks how far the handler has come: a part of 0 to 1, and a word of at most 200 characters, which operators
    /// see; put no personal data there. `tidegate show` and `tidegate status --watch` have it while the handler works.
    ///
    /// Costs little: it is written once a second at most, the first time at once, and what comes between is left out. A
    /// database that does not answer is no reason to fail; that is for the handler's end to find.
    ///
    /// # Errors
    /// A retry, when the event is not this handler's any more: it was requeued or cancelled, or its lease has run out. Nothing that
    /// the handler does from then on is kept, so let `?` end it.
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
        let told = match database.pooled().await {
            Ok(client) => {
                let lease = self.event.lease;
                queue::report_progress(&*client, lease, handler, part, &note).await
            }
            Err(error) => Err(error),
        };
        match told {
            Err(lost @ Error::LeaseLost(_)) => {
                self.note_refusal(&lost);
                Err(lost).retryable()
            }
            Err(error) => {
                tracing::warn!(event.id = self.event.lease.id, %error, "progress is not noted");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// A connection of the pool, for reading. Writes belong in [`Context::transaction`].
    ///
    /// Where a pooler in transaction mode stands between, only what is not prepared passes, such as
    /// [`Client::query_typed`]: each statement may run in another session.
    ///
    /// # Errors
    /// A retry when the database cannot be reached.
    pub async fn connection(&self) -> Result<impl Deref<Target = Client>, HandlerError> {
        self.pooled().await
    }

    /// Opens a transaction whose [`Transaction::complete`] is this handler's completion: its writes
    /// and the fact that it is done commit together, fenced by the lease, so that they happen
    /// exactly once. Dropped without that, it rolls back.
    ///
    /// Beyond the handler's own statements it takes one round trip to the database, at its end; a second one
    /// if there is a result or a follow-up to store.
    ///
    /// # Errors
    /// A retry when the database cannot be reached.
    pub async fn transaction(&self) -> Result<Transaction<'_>, HandlerError> {
        // What ran ahead in the group must be in the log before this can be; waiting for that with an
        // open transaction could wait for a lock of its own.
        let mut flushed = self.flushed.progress.clone();
        let ahead = flushed
            .wait_for(|reached| self.flushed.is_clear(*reached))
            .await;
        ahead.map(drop).retryable()?;
        let client = self.pooled().await?;
        // Sent, not waited for: it travels with the handler's first statement.
        let begun = client.simple_query_raw("BEGIN").await.retryable()?;
        Ok(Transaction {
            client: Some(client),
            begun: Box::pin(begun),
            ctx: self,
        })
    }

    async fn pooled(&self) -> Result<Pooled, HandlerError> {
        let Some(database) = &self.database else {
            let why = "this test has no database; tidegate::testing::drain_now takes one";
            return Err(HandlerError::retry("no_database", why));
        };
        database.pooled().await.retryable()
    }

    /// What earlier steps and those of this attempt have left.
    #[cfg(feature = "testing")]
    pub(crate) fn steps(&self) -> BTreeMap<String, Value> {
        self.state().steps.clone()
    }

    pub(crate) fn begin_handler(&self, handler: &'static str, limit: Duration, more_to_come: bool) {
        let mut state = self.state();
        state.handler = handler;
        state.deadline = Instant::now() + limit;
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

    /// Whether every handler has done its work, in the first attempt: nothing but a write that fails can keep the event's
    /// end from being stored.
    pub(crate) fn went_well(&self) -> bool {
        self.event.progress.is_none() && self.state().ends.iter().all(|end| end.result.is_ok())
    }

    /// The event has ended, and this is the number of its completion.
    pub(crate) fn note_completion(&self, number: u64) {
        // A handler's transaction came first.
        let _ = self.completion.set(number);
    }

    pub(crate) fn skip_handler(&self, end: HandlerEnd) {
        self.state().ends.push(end);
    }

    /// With how many others the event may share a call.
    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The run that the event is handled in.
    pub(crate) fn run(&self) -> Uuid {
        self.run
    }

    pub(crate) fn event(&self) -> &LeasedEvent {
        &self.event
    }

    /// Takes how the handlers ended so far, and the follow-ups already published by their transaction.
    pub(crate) fn take_ends(&self) -> (Vec<HandlerEnd>, u64) {
        let mut state = self.state();
        (std::mem::take(&mut state.ends), state.published)
    }

    /// The handler that is running, with what it has emitted forgotten: it was cut.
    pub(crate) fn running_handler(&self) -> &'static str {
        self.state().handler
    }
}

/// A handler's transaction; use it as a [`tokio_postgres::Client`], end it with
/// [`Transaction::complete`].
pub struct Transaction<'a> {
    client: Option<Pooled>,
    /// The answer to BEGIN.
    begun: Pin<Box<SimpleQueryStream>>,
    ctx: &'a Context,
}

impl Transaction<'_> {
    /// Commits the handler's writes together with its completion: the last handler of an event also
    /// moves the event to the log and publishes the follow-ups. Return what it returns.
    ///
    /// # Errors
    /// A retry when the lease is lost or the database fails; nothing is committed then, unless the
    /// answer to the commit itself was lost, which the next attempt finds out.
    pub async fn complete(mut self, done: Done) -> HandlerResult {
        while let Some(answer) = self.begun.next().await {
            answer.retryable()?;
        }
        self.ctx.state().commits = true;
        let committed = self.commit(&done).await;
        let ended = matches!(committed, Ok(Committed::Event));
        self.ctx.state().commits = ended;
        let committed = committed.map_err(|error| {
            self.ctx.note_refusal(&error);
            if error.is_lock_timeout() {
                let busy = "another transaction publishes to a follow-up's group";
                return HandlerError::retry("group_busy", busy)
                    .after(BUSY_DELAY)
                    .blameless();
            }
            HandlerError::retry("error", error)
        })?;
        self.client = None;
        if committed == Committed::Event {
            self.ctx.note_completion(0);
        }
        Ok(Done { committed, ..done })
    }

    /// Writes the completion inside the transaction, the event's if nothing of it is left to do, and commits.
    async fn commit(&self, done: &Done) -> Result<Committed, Error> {
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
        let client: &Client = self;
        if more_to_come || !ends.iter().all(HandlerEnd::is_final) {
            let handlers = HandlerRecord::of(&end)
                .map(|record| (end.handler.to_owned(), record))
                .into_iter()
                .collect();
            let added = Progress {
                handlers,
                ..Progress::default()
            };
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

impl Deref for Transaction<'_> {
    type Target = Client;

    #[expect(
        clippy::expect_used,
        reason = "only complete and drop take the client, and both end the value"
    )]
    fn deref(&self) -> &Client {
        self.client
            .as_ref()
            .expect("the client is held until the transaction ends")
    }
}

impl Drop for Transaction<'_> {
    /// Rolls back. A handler that was cut in the middle of a statement leaves a connection that is
    /// still busy with it; that one is thrown away, so that the next handler does not wait behind it.
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        tokio::spawn(async move {
            let rolled_back =
                tokio::time::timeout(ROLLBACK_TIMEOUT, client.batch_execute("ROLLBACK")).await;
            if !matches!(rolled_back, Ok(Ok(()))) {
                drop(Pooled::take(client));
            }
        });
    }
}

/// A handler whose follow-up waits for another publisher runs again after this.
const BUSY_DELAY: Duration = Duration::from_secs(1);

/// A connection that cannot roll back within this is thrown away.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(2);
