//! Owns a whole program: its handlers, settings, database and migrations, put together so that a shell (a
//! function or a command line) only has to pass on requests. It does not know which shell runs it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::{BoxFuture, FutureExt, join};
use jiff::Timestamp;
use serde_json::Value;
use tidegate::drain::{DrainError, DrainOptions, DrainReport, Hooks, StopReason, drain_with};
use tidegate::intake::{Intake, Message, Receiver, TakeIn};
use tidegate::{Dispatch, Schedule, seal, wake};
use tidegate_core::chain::{NextTick, StartDrain};
use tidegate_core::config::{Lookup, parse_duration};
use tidegate_core::connect::{Database, Schema, Transaction, cloud};
use tidegate_core::error::{Error, Result};
use tidegate_core::event::{DecodeError, Event as _, NewEvent};
use tidegate_core::json::Json;
use tidegate_core::migrate::{Migrate, MigrateReport, Migrations, StoredSettings};
use tidegate_core::policy::Policy;
use tidegate_core::queue::{Declared, Targets};
use tidegate_core::sealing::begins_sealed;
use tokio::sync::{oneshot, watch};

use super::{Actions, MigrateRequest, Request, Verb};
use crate::doctor::{DoctorReport, DoctorTarget, examine, refuse_foreign};
use crate::numbers::metrics::Metrics;
use crate::retention::{self, CleanupHooks, CleanupOptions, CleanupReport};

/// A program: the handlers of its events, its own migrations and its own actions. A shell runs it.
///
/// ```
/// use tidegate::{Context, Dispatch, Done, Handlers};
/// use tidegate_admin::Program;
///
/// tidegate::events! {
///     pub enum Shop {
///         Opened(()) = "opened",
///     }
/// }
///
/// struct Handling;
///
/// impl Dispatch for Handling {
///     type Event = Shop;
///
///     fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
///         match event {
///             Shop::Opened(()) => Handlers::one("greet", async { Ok(Done::ok()) }),
///         }
///     }
/// }
///
/// let program = Program::new(|_settings| Ok(Handling));
/// ```
#[must_use = "nothing runs before it is started"]
pub struct Program {
    origin: &'static str,
    /// What `migrate` registers.
    kinds: &'static [&'static str],
    handlers: Box<MakeHandlers>,
    tables: Vec<Migrations>,
    further: Vec<(&'static str, Box<AnswerFurther>)>,
    intake: Option<Box<TakeIn>>,
    retentions: Vec<(&'static str, &'static str)>,
    policies: Vec<(&'static str, Policy)>,
    targets: Option<Box<ReadTargets>>,
}

type MakeHandlers = dyn Fn(Lookup<'_>) -> Result<Arc<dyn Drains>> + Send + Sync;
type ReadTargets = dyn Fn(&str, &DrainOptions) -> Result<Targets> + Send + Sync;
type AnswerFurther = dyn Fn(Database, Value) -> BoxFuture<'static, Result<Value>> + Send + Sync;

/// The handlers of a program, without its event type.
trait Drains: Send + Sync {
    fn drain<'a>(
        &self,
        database: &'a Database,
        options: &'a DrainOptions,
        hooks: Hooks,
    ) -> BoxFuture<'a, Result<DrainReport, DrainError>>;

    /// Returns the kinds that the handlers for this database handle.
    fn kinds<'a>(&self, database: &'a Database) -> BoxFuture<'a, Result<Vec<&'static str>>>;

    /// Examines what the handlers for this database call, and returns what is wrong.
    fn examine<'a>(&self, database: &'a Database) -> BoxFuture<'a, Result<Vec<String>>>;

    /// Decodes a payload as the handlers would get it.
    fn decode(&self, kind: &str, payload: Option<&[u8]>) -> Result<(), DecodeError>;

    fn schedules(&self) -> Result<Vec<Declared>>;

    /// What the program's settings give up: [`Dispatch::warnings`].
    fn warnings(&self) -> Vec<&'static str>;
}

struct Typed<D>(Arc<D>);

impl<D: Dispatch> Drains for Typed<D> {
    fn drain<'a>(
        &self,
        database: &'a Database,
        options: &'a DrainOptions,
        hooks: Hooks,
    ) -> BoxFuture<'a, Result<DrainReport, DrainError>> {
        drain_with(database, self.0.clone(), options, hooks).boxed()
    }

    fn kinds<'a>(&self, database: &'a Database) -> BoxFuture<'a, Result<Vec<&'static str>>> {
        let app = self.0.clone();
        // A pool that is kept would keep a connection while the process is idle or frozen.
        async move { Ok(app.for_run(&database.with_own_pool()?).await?.kinds()) }.boxed()
    }

    fn examine<'a>(&self, database: &'a Database) -> BoxFuture<'a, Result<Vec<String>>> {
        let app = self.0.clone();
        async move {
            let app = app.for_run(&database.with_own_pool()?).await?;
            Ok(app.examine().await)
        }
        .boxed()
    }

    fn decode(&self, kind: &str, payload: Option<&[u8]>) -> Result<(), DecodeError> {
        D::Event::decode(kind, payload).map(drop)
    }

    fn schedules(&self) -> Result<Vec<Declared>> {
        self.0.schedules().iter().map(Schedule::declared).collect()
    }

    fn warnings(&self) -> Vec<&'static str> {
        self.0.warnings()
    }
}

impl Program {
    /// Creates a program. `handlers` builds the handlers from the settings, and returns [`Error::Config`]
    /// when a setting is wrong.
    pub fn new<D: Dispatch>(
        handlers: impl Fn(Lookup<'_>) -> Result<D> + Send + Sync + 'static,
    ) -> Self {
        Self {
            origin: std::any::type_name::<D>()
                .split("::")
                .next()
                .unwrap_or_default(),
            kinds: D::Event::KINDS,
            handlers: Box::new(move |lookup| {
                let made: Arc<dyn Drains> = Arc::new(Typed(Arc::new(handlers(lookup)?)));
                Ok(made)
            }),
            tables: Vec::new(),
            further: Vec::new(),
            intake: None,
            retentions: Vec::new(),
            policies: Vec::new(),
            targets: None,
        }
    }

    /// Returns the name of the crate that the handlers come from. The log may show more of that crate.
    pub fn origin(&self) -> &'static str {
        self.origin
    }

    /// Adds tables of the program, which `migrate` creates next to the queue's.
    pub fn tables(mut self, tables: Migrations) -> Self {
        self.tables.push(tables);
        self
    }

    /// Sets how events of this kind are handled. `migrate` stores the policy.
    pub fn policy(mut self, kind: &'static str, policy: Policy) -> Self {
        self.policies.retain(|(known, _)| *known != kind);
        self.policies.push((kind, policy));
        self
    }

    /// Adds an action of the program. An invocation `{"action": name, …}` is answered with the value that
    /// `answer` returns for its other fields, or with its error: [`Error::Invalid`] says what is wrong with
    /// these fields.
    pub fn action<F>(
        mut self,
        name: &'static str,
        answer: impl Fn(Database, Value) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Value>> + Send + 'static,
    {
        let answer = move |database, fields| answer(database, fields).boxed();
        self.further.push((name, Box::new(answer)));
        self
    }

    /// Adds an intake for messages from outside, such as those that Lambda brings from SQS. The intake may
    /// store data and publish events, or none, in the transaction that it receives. The transaction commits
    /// when the intake returns without an error, and only then is the message acknowledged. A message that
    /// arrives again is acknowledged without calling the intake.
    ///
    /// [`Error::Invalid`] means that the message itself is wrong. Its sender then keeps it with the messages
    /// that cannot be taken in, for example in the dead-letter queue of SQS. After any other error the
    /// message is delivered again.
    ///
    /// ```
    /// # use tidegate::{Context, Dispatch, Done, Handlers, publish};
    /// # use tidegate_admin::Program;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # pub struct Order { order_id: i64 }
    /// # tidegate::events! { pub enum Shop { OrderPlaced(Order) = "order_placed" } }
    /// # struct Handling;
    /// # impl Dispatch for Handling {
    /// #     type Event = Shop;
    /// #     fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
    /// #         match event {
    /// #             Shop::OrderPlaced(_) => Handlers::one("greet", async { Ok(Done::ok()) }),
    /// #         }
    /// #     }
    /// # }
    /// let program = Program::new(|_settings| Ok(Handling)).receive(|transaction, message| {
    ///     Box::pin(async move {
    ///         let order: Order = message.json()?;
    ///         publish(transaction, &Shop::OrderPlaced(order)).await?;
    ///         Ok(())
    ///     })
    /// });
    /// ```
    pub fn receive(
        mut self,
        intake: impl for<'a> Fn(&'a Transaction<'a>, &'a Message) -> Intake<'a> + Send + Sync + 'static,
    ) -> Self {
        self.intake = Some(Box::new(intake));
        self
    }

    /// Sets how long rows of the program's own tables are kept: as long as the variable `setting` says at the
    /// last `migrate`, a day or more such as `730d`; without it, for ever. `expire` is the name of an SQL
    /// function of the program, `(until timestamptz, most integer, dry_run boolean)`. It removes about `most`
    /// rows that are older, or counts all of them, and returns their numbers by table as a JSON object. Each
    /// cleanup calls it with the owner's rights until nothing is left.
    pub fn retention(mut self, setting: &'static str, expire: &'static str) -> Self {
        self.retentions.push((setting, expire));
        self
    }

    /// Lets `migrate` store the targets of a file in the database, for a program whose handlers are stored
    /// there. `read` returns what the file's text declares, for drains with these options, or
    /// [`Error::Invalid`].
    pub fn targets(
        mut self,
        read: impl Fn(&str, &DrainOptions) -> Result<Targets> + Send + Sync + 'static,
    ) -> Self {
        self.targets = Some(Box::new(read));
        self
    }

    /// Whether [`Program::targets`] was called, so that `migrate` takes a file of targets.
    pub fn takes_targets(&self) -> bool {
        self.targets.is_some()
    }

    /// Reads all settings, and checks that a handler's time limit fits into a lease.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn start(self, lookup: Lookup<'_>) -> Result<Runtime> {
        let handlers = (self.handlers)(lookup)?;
        for warning in handlers.warnings() {
            tracing::warn!("{warning}");
        }
        let options = DrainOptions::from_settings(lookup)?;
        options.check()?;
        seal::from_settings(lookup)?;
        let retentions = self.kept(lookup)?;
        let further: Vec<&'static str> = self.further.iter().map(|(name, _)| *name).collect();
        Ok(Runtime {
            database: Database::from_settings(lookup, options.concurrency.min(MOST_POOLED))?,
            options,
            stored: StoredSettings::from_settings(lookup)?,
            retentions,
            actor: actor(lookup),
            looks_within: None,
            wakes: wake::from_settings(lookup)?,
            next_tick: lookup(NEXT_TICK)
                .map(|arn| cloud(NEXT_TICK)?.next_tick(NEXT_TICK, arn))
                .transpose()?,
            metrics: Metrics::from_settings(lookup)?,
            metrics_to: |line| eprintln!("{line}"),
            actions: Actions::from_setting(lookup, &further, self.intake.is_some())?,
            handlers,
            program: Arc::new(self),
        })
    }

    /// Prints what a migration of a new queue does, for settings that name no database.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub async fn print(&self, lookup: Lookup<'_>, roles: bool) -> Result<MigrateReport> {
        let handlers = (self.handlers)(lookup)?;
        seal::from_settings(lookup)?;
        let (stored, kept) = (StoredSettings::from_settings(lookup)?, self.kept(lookup)?);
        let migrate = self.migration(&*handlers, stored, &kept, roles)?;
        migrate.print(&Schema::from_settings(lookup)?, None).await
    }

    fn migration<'a>(
        &'a self,
        handlers: &dyn Drains,
        stored: StoredSettings,
        kept: &'a [(&'static str, Option<Duration>)],
        roles: bool,
    ) -> Result<Migrate<'a>> {
        let migrate = Migrate::new(self.kinds)
            .tables(&self.tables)
            .policies(&self.policies)
            .retentions(kept)
            .stored(stored)
            .schedules(self.origin, handlers.schedules()?);
        Ok(if roles { migrate.with_roles() } else { migrate })
    }

    /// Reads how long rows of the program's own tables are kept.
    fn kept(&self, lookup: Lookup<'_>) -> Result<Vec<(&'static str, Option<Duration>)>> {
        let kept = |(setting, expire): &(&'static str, &'static str)| {
            Ok((*expire, kept_for(lookup, setting)?))
        };
        self.retentions.iter().map(kept).collect()
    }
}

/// The most connections that handlers may hold at once. Handlers that wait for a service need none, so these
/// serve any number of them.
const MOST_POOLED: usize = 8;

/// The ARN of the schedule that each drain moves to the time of the next work.
const NEXT_TICK: &str = "TIDEGATE_NEXT_TICK";

/// Reads how long rows of the program's own tables are kept; `None` means for ever.
fn kept_for(lookup: Lookup<'_>, setting: &str) -> Result<Option<Duration>> {
    let Some(text) = lookup(setting) else {
        return Ok(None);
    };
    let kept = parse_duration(&text).ok();
    let kept = kept.filter(|kept| *kept >= Duration::from_hours(24));
    kept.map(Some).ok_or_else(|| {
        let needed = "must be a duration of a day or more, such as 730d";
        Error::Config(format!("{setting}: {needed}, got {text:?}"))
    })
}

/// The operator's name for the audit: `TIDEGATE_ACTOR`, or the account's name in `USER`. Nothing verifies it;
/// the database knows only its own user for certain.
fn actor(lookup: Lookup<'_>) -> Option<String> {
    lookup("TIDEGATE_ACTOR").or_else(|| lookup("USER"))
}

/// A program with its settings, ready to answer requests.
#[derive(Clone)]
pub struct Runtime {
    /// Where the queue is.
    pub database: Database,
    /// The options of a drain, unless a request overrides them.
    pub options: DrainOptions,
    /// What `migrate` stores in the database. A publish without an attempt limit takes it from here.
    pub stored: StoredSettings,
    /// How long rows of the program's own tables are kept, by the function that removes them.
    retentions: Vec<(&'static str, Option<Duration>)>,
    /// The operator's name for the audit, unless a request overrides it.
    pub actor: Option<String>,
    /// The longest time that the database may take for one statement of a view; `None` means the usual limit.
    pub looks_within: Option<Duration>,
    /// What starts a drain after a publish.
    pub wakes: Option<Arc<dyn StartDrain>>,
    /// The schedule that each drain moves to the time of the next work, in place of a regular tick.
    pub next_tick: Option<Arc<dyn NextTick>>,
    /// The metrics to emit for each drain, if they are configured.
    pub metrics: Option<Metrics>,
    /// Writes each line of metrics.
    pub metrics_to: fn(&str),
    /// The allowed actions.
    pub actions: Actions,
    handlers: Arc<dyn Drains>,
    program: Arc<Program>,
}

/// Why a request could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A drain that failed because of the infrastructure, with its counts.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// Anything else.
    #[error(transparent)]
    Other(#[from] Error),
}

impl Runtime {
    /// Answers a request, within `time` if the caller has a limit.
    ///
    /// # Errors
    /// See [`Failure`]. [`Error::Invalid`] when an option of the request is out of range, or when the answer
    /// would be longer than [`ANSWER_LIMIT`](super::ANSWER_LIMIT).
    pub async fn answer(
        &self,
        request: &Request,
        time: Option<Duration>,
        hooks: Hooks,
    ) -> Result<Json, Failure> {
        request.answer(self, time, hooks).await
    }

    /// Answers the request of one verb, without a time limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the request; when the database fails.
    pub async fn run<V: Verb>(&self, verb: &V) -> Result<V::Report> {
        self.checked(verb)?.run(self).await
    }

    /// Checks a request, and fills in the operator's name of the settings if it has none itself.
    pub(super) fn checked<V: Verb>(&self, verb: &V) -> Result<V> {
        let mut verb = verb.clone();
        if let Some(actor) = verb.actor().filter(|actor| actor.is_none()) {
            actor.clone_from(&self.actor);
        }
        verb.check()?;
        Ok(verb)
    }

    /// The kinds that this program handles in this database.
    pub(super) async fn handled(&self) -> Result<Vec<&'static str>> {
        self.handlers.kinds(&self.database).await
    }

    /// Refuses a payload that this program could not decode when it handles the event. Kinds of other
    /// programs, sealed payloads and payloads of a newer version pass.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field of the payload that does not fit.
    pub fn check_payload(&self, event: &NewEvent) -> Result<()> {
        let payload = event.payload.as_ref().map(|text| text.get().as_bytes());
        if payload.is_some_and(begins_sealed) {
            return Ok(());
        }
        match self.handlers.decode(&event.kind, payload) {
            Err(DecodeError::Payload {
                kind,
                what,
                line,
                column,
            }) => Err(Error::Invalid(format!(
                "payload: must fit kind {kind:?}: {what} at line {line}, column {column}"
            ))),
            Err(error @ DecodeError::Version { .. }) if !error.is_newer() => {
                Err(Error::Invalid(format!("payload: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Examines the database, and what the handlers call.
    pub(super) async fn examine(&self) -> Result<DoctorReport> {
        let target = DoctorTarget {
            database: &self.database,
            kinds: &self.handled().await?,
            options: &self.options,
            tables: &self.program.tables,
            warnings: self.handlers.warnings(),
            uncalled: self.handlers.examine(&self.database).await?,
        };
        examine(&target).await
    }

    /// Drains the queue, and emits metrics of the drain if they are configured. Moves the next tick to when
    /// the next work is due.
    ///
    /// # Errors
    /// As [`tidegate::drain()`].
    pub async fn drain(
        &self,
        options: &DrainOptions,
        mut hooks: Hooks,
    ) -> Result<DrainReport, DrainError> {
        let (shown, figures) = oneshot::channel();
        hooks.figures = self.metrics.is_some().then_some(shown);
        let drained = self.handlers.drain(&self.database, options, hooks);
        // If this drain dies, another one comes when a lease may have lapsed. While it works, that one sees
        // its slot, and moves the tick on.
        let after = SystemTime::now() + options.lease_timeout;
        let (mut refused, mut drained) = join(self.tick_at(Some(after)), drained).await;
        // After a spent budget the caller's deadline is near, and the tick as well. A drain that this one has
        // started, or that has kept it out, moves the tick itself.
        if let Ok(report) = &drained
            && refused == 0
            && report.ready_left.is_some()
            && report.started_drains == 0
            && report.stop_reason != StopReason::BudgetSpent
        {
            refused = self.tick_at(needed_again(report)).await;
        }
        let succeeded = drained.is_ok();
        let report = match &mut drained {
            Ok(report) => report,
            Err(error) => &mut *error.report,
        };
        report.starts_failed += refused;
        if let Some(metrics) = &self.metrics {
            // A drain that was refused has no figures.
            let figures = figures.await.unwrap_or_default();
            let line = metrics.render_drain(report, &figures, succeeded, SystemTime::now());
            (self.metrics_to)(&line);
        }
        drained
    }

    /// Removes finished events whose retention is over, and ends events that no program will handle. Emits
    /// metrics of the cleanup if they are configured.
    ///
    /// # Errors
    /// As [`retention::cleanup`].
    pub async fn cleanup(
        &self,
        options: &CleanupOptions,
        hooks: CleanupHooks,
    ) -> Result<CleanupReport> {
        let cleaned = retention::cleanup(&self.database, options, hooks).await;
        if let Some(metrics) = self.metrics.as_ref().filter(|_| !options.dry_run) {
            (self.metrics_to)(&metrics.of_cleanup(cleaned.is_ok(), SystemTime::now()));
        }
        cleaned
    }

    /// Returns what passes messages from outside to the program's intake.
    ///
    /// # Errors
    /// [`Error::Invalid`] when this process may not receive, or when the program has no intake.
    pub fn receiver(&self) -> Result<Receiver<'_>> {
        self.actions.check("receive")?;
        match &self.program.intake {
            Some(intake) => Ok(Receiver::new(&self.database, intake.as_ref())),
            None => Err(Error::Invalid(
                "action: must not be receive, because this program has no intake".to_owned(),
            )),
        }
    }

    /// Answers an action that the program added.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such action; otherwise the action's own errors.
    pub async fn further(&self, action: &str, fields: Value) -> Result<Value> {
        let mut known = self.program.further.iter();
        let Some((_, answer)) = known.find(|(name, _)| *name == action) else {
            return Err(Error::Invalid(format!("action: there is no {action:?}")));
        };
        answer(self.database.clone(), fields).await
    }

    /// Brings the schemas of the queue and of the program up to date. With `roles`, it also creates the
    /// database roles and grants their privileges.
    ///
    /// # Errors
    /// As [`Migrate::run`]. Also [`Error::Migrate`] when another program owns the queue and the request does
    /// not ask to share it.
    pub async fn migrate(&self, request: MigrateRequest) -> Result<MigrateReport> {
        let targets = self.declared(&request)?;
        if !request.share {
            let declared = targets.iter().flat_map(|targets| targets.kinds.keys());
            let handled = self.handled().await?;
            let all: Vec<&str> = declared.map(String::as_str).chain(handled).collect();
            refuse_foreign(&self.database, &all).await?;
        }
        // Checked before anything is changed: a wrong declaration must not leave a half-finished migration.
        let (program, kept) = (&self.program, &self.retentions);
        let migrate = program.migration(&*self.handlers, self.stored, kept, request.roles)?;
        if request.print {
            let client = self.database.connect().await?;
            let printed = migrate.print(self.database.schema(), Some(&client));
            return Box::pin(printed).await;
        }
        let migrate = match &targets {
            Some(targets) => migrate.targets(targets, self.actor.as_deref()),
            None => migrate,
        };
        if request.dry_run {
            return migrate.compare(&self.database).await;
        }
        migrate.run(&self.database).await
    }

    /// Reads the file of targets in a request, if it has one.
    fn declared(&self, request: &MigrateRequest) -> Result<Option<Targets>> {
        match (&request.targets, &self.program.targets) {
            (Some(text), Some(read)) => read(text, &self.options).map(Some),
            (Some(_), None) => Err(Error::Invalid(
                "targets: must not be given, because this program has handlers of its own"
                    .to_owned(),
            )),
            (None, _) if request.dry_run => Err(Error::Invalid(
                "dry_run: must be given with targets alone".to_owned(),
            )),
            (None, _) => Ok(None),
        }
    }

    /// Moves the next tick, and returns how many moves failed. A failure is only logged: then a drain comes
    /// at the time that was set before.
    async fn tick_at(&self, at: Option<SystemTime>) -> u64 {
        let Some(tick) = &self.next_tick else {
            return 0;
        };
        let moved = tick.set(at).await;
        if let Err(error) = &moved {
            tracing::warn!(%error, "the next tick could not be moved");
        }
        u64::from(moved.is_err())
    }

    /// Whether a publish of this event should wake a drain. One that is planned for later needs a drain only
    /// to move the next tick to its time.
    #[must_use]
    pub fn wakes_for(&self, event: &NewEvent) -> bool {
        event.delay.is_none() || self.next_tick.is_some()
    }

    /// Wakes the function that `TIDEGATE_WAKE` names, if no drain is at work. Call it after the commit of a
    /// publish. A failure is only logged, because the publish is not affected.
    pub async fn wake(&self) {
        if let Some(starter) = &self.wakes {
            wake::wake_quietly(&self.database, &**starter).await;
        }
    }
}

/// When the next drain is needed: now if this one has left work, otherwise when the next work is due.
fn needed_again(report: &DrainReport) -> Option<SystemTime> {
    if report.ready_left > Some(0) {
        return Some(SystemTime::now());
    }
    let due: Timestamp = report.next_due_at.as_ref()?.parse().ok()?;
    Some(due.into())
}

/// Turns a configuration error into an error of the request. The settings were checked when the runtime was
/// built, so the value that is out of range came with the request.
pub(super) fn the_callers(error: Error) -> Error {
    match error {
        Error::Config(text) => Error::Invalid(text),
        other => other,
    }
}

/// Cuts off work that has no budget of its own, because its caller is gone after `time`.
pub(super) async fn within<T>(
    time: Option<Duration>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match time {
        Some(limit) => Error::within("invocation", limit, work).await,
        None => work.await,
    }
}

/// Logs panics from now on, but only their place: the text may quote a payload (I9), and a handler's panic
/// text is stored with the event anyway.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(location, "panic");
    }));
}

/// Returns a receiver that turns true at SIGTERM or Ctrl-C, which ends a run as the end of its budget would.
pub fn stopped_by_signal() -> watch::Receiver<bool> {
    let (stop, stopped) = watch::channel(false);
    let signal = stop_signal();
    tokio::spawn(async move {
        signal.await;
        let _ = stop.send(true);
    });
    stopped
}

/// Listens for SIGTERM and Ctrl-C from this call on; call it in a Tokio runtime. The future is ready at the
/// first signal, or never if the process cannot listen for signals.
pub fn stop_signal() -> impl Future<Output = ()> + Send + 'static {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}
