//! Owns the test kit for a program's own tests (feature `testing`). It runs an event's handlers without a
//! database and reports what they did, or drains a scratch database completely.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tidegate_core::connect::Database;
use tidegate_core::error::Result;
use tidegate_core::event::{Event, NewEvent};
use tidegate_core::json::Json;
use tidegate_core::lease::LeasedEvent;
use tidegate_core::migrate::Migrate;
use tidegate_core::progress::Progress;
pub use tidegate_core::progress::Status;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::{Context, Written, WrittenUpTo};
use crate::dispatch::Dispatch;
use crate::drain::execute::{TimeLimits, execute};
use crate::drain::{DrainError, DrainOptions, DrainReport, drain};
use crate::handler::HandlerError;
use crate::outcome::{Disposition, RetryPolicy};
use crate::services::Services;

/// The end of the simulated run, later than the end of any test.
const NO_RUN_IS_LONGER: Duration = Duration::from_hours(24);

/// An attempt at an event, without a database. By default it is the first of five attempts.
///
/// ```
/// use tidegate::testing::{Attempt, Status};
/// use tidegate::{Context, Dispatch, Done, HandlerError, Handlers};
///
/// tidegate::events! {
///     pub enum Shop {
///         Opened(u32) = "opened",
///         Greeted(u32) = "greeted",
///     }
/// }
///
/// struct Handling;
///
/// impl Dispatch for Handling {
///     type Event = Shop;
///
///     fn handlers<'a>(&'a self, event: &'a Shop, ctx: &'a Context) -> Handlers<'a> {
///         match event {
///             Shop::Opened(shop) => Handlers::one("greet", async move {
///                 if ctx.attempt() == 1 {
///                     return Err(HandlerError::retry("closed", "nobody is there"));
///                 }
///                 ctx.emit(&Shop::Greeted(*shop))?;
///                 Ok(Done::ok())
///             }),
///             Shop::Greeted(_) => Handlers::one("rest", async { Ok(Done::ok()) }),
///         }
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let ran = Attempt::first().run(&Handling, &Shop::Opened(3)).await;
/// assert!(ran.retries_after.is_some());
/// let ran = Attempt::number(2).run(&Handling, &Shop::Opened(3)).await;
/// assert_eq!(ran.status, Some(Status::Completed));
/// assert!(matches!(ran.follow_ups::<Shop>()?[..], [Shop::Greeted(3)]));
/// # Ok::<(), tidegate::DecodeError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "no handler runs before `run`"]
pub struct Attempt {
    event: LeasedEvent,
    limit: Duration,
}

/// What the handlers of an event did in one attempt.
#[derive(Debug)]
pub struct Ran {
    /// How the event ends; `None` if it is retried.
    pub status: Option<Status>,
    /// The delay before the retry: the delay that a handler wants, or the middle of the backoff's range.
    pub retries_after: Option<Duration>,
    /// How each handler ended, in order.
    pub handlers: Vec<Handled>,
    /// The results of the handlers' steps, under `handler/step`.
    pub steps: BTreeMap<String, Value>,
    /// How long the handlers took together.
    pub took: Duration,
    emitted: Vec<NewEvent>,
}

/// How one handler ended.
#[derive(Debug)]
pub struct Handled {
    /// The handler's name.
    pub name: &'static str,
    /// What it returned: its result, if it had one, or its verdict.
    pub result: Result<Option<Json>, HandlerError>,
}

impl Attempt {
    /// Creates the first attempt at an event that was published just now, without group and correlation id.
    pub fn first() -> Self {
        Self::number(1)
    }

    /// Creates the attempt of this number, from 1.
    pub fn number(attempt: u32) -> Self {
        let event = LeasedEvent {
            attempts: attempt,
            created_at: SystemTime::now(),
            ..LeasedEvent::sample(1, None)
        };
        let limit = DrainOptions::default().handler_timeout;
        Self { event, limit }
    }

    /// Sets how many attempts the event has, instead of five.
    pub fn of(mut self, most: u32) -> Self {
        self.event.max_attempts = most;
        self
    }

    /// Sets the event's group.
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.event.group_key = Some(key.into());
        self
    }

    /// Sets the correlation id of a business object.
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.event.correlation_id = Some(id.into());
        self
    }

    /// Sets the time of the publish.
    pub fn published(mut self, at: SystemTime) -> Self {
        self.event.created_at = at;
        self
    }

    /// Sets the time limit of a handler. The default is that of a drain.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Adds the result of a handler's step from an earlier attempt. The step does not run again.
    pub fn done_before(mut self, handler: &str, step: &str, result: Value) -> Self {
        let progress = self.event.progress.get_or_insert_with(Progress::default);
        progress
            .steps
            .insert(format!("{handler}/{step}"), result.into());
        self
    }

    /// Runs the event's handlers as a drain does: in order, each within its time limit, with panics caught. A
    /// handler that uses the database fails with a retry, code `no_database`.
    pub async fn run<D: Dispatch>(mut self, app: &D, event: &D::Event) -> Ran {
        event.kind().clone_into(&mut self.event.kind);
        let (attempt, most) = (self.event.attempts, self.event.max_attempts);
        let context = context(self.event, self.limit);
        let began = Instant::now();
        let limits = TimeLimits {
            handler: self.limit,
            cut: began + NO_RUN_IS_LONGER,
        };
        execute(app, &context, event, limits, &Services::default()).await;
        let took = began.elapsed();
        let (ends, _) = context.take_ends();
        let ended = RetryPolicy::default().resolve(attempt, most, &ends, 0.5);
        let (status, retries_after) = match ended {
            Disposition::Finish(status) => (Some(status), None),
            Disposition::Retry(after) => (None, Some(after)),
        };
        Ran {
            status,
            retries_after,
            emitted: ends.iter().flat_map(|end| end.emitted.clone()).collect(),
            handlers: ends
                .into_iter()
                .map(|end| Handled {
                    name: end.handler,
                    result: end.result.map(|done| done.result),
                })
                .collect(),
            steps: context
                .state()
                .steps
                .iter()
                .map(|(step, json)| (step.clone(), json.read().unwrap_or_default()))
                .collect(),
            took,
        }
    }
}

impl Ran {
    /// Returns the follow-ups that are published when the event ends, as events of the program.
    ///
    /// # Errors
    /// When one of them is not an event of `E`.
    pub fn follow_ups<E: Event>(&self) -> Result<Vec<E>, crate::DecodeError> {
        let decoded = self.emitted.iter().map(|event| {
            let payload = event.payload.as_ref().map(|json| json.get().as_bytes());
            E::decode(&event.kind, payload)
        });
        decoded.collect()
    }

    /// Returns the same follow-ups as they will be published, with group, delay and so on.
    pub fn published(&self) -> &[NewEvent] {
        &self.emitted
    }
}

/// Lists an event's handlers with the services that they call, in order, and runs none of them.
pub fn handlers_of<D: Dispatch>(
    app: &D,
    event: &D::Event,
) -> Vec<(&'static str, Option<&'static str>)> {
    let attempt = Attempt::first();
    app.handlers(event, &context(attempt.event, attempt.limit))
        .list()
}

fn context(event: LeasedEvent, limit: Duration) -> Context {
    let flushed = WrittenUpTo {
        ahead: None,
        after: 0,
        progress: watch::channel(Written::default()).1,
    };
    Context::new(event, None, flushed, Instant::now() + limit)
}

/// Drains a scratch database with default settings until no event is ready. Creates the queue's schema there
/// if it is missing, and registers the program's kinds.
///
/// # Errors
/// When the database fails.
pub async fn drain_now<D: Dispatch>(database: &Database, app: Arc<D>) -> Result<DrainReport> {
    Migrate::new(D::Event::KINDS).run(database).await?;
    let drained = drain(database, app, &DrainOptions::default()).await;
    drained.map_err(|DrainError { source, .. }| source)
}
