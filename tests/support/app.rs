//! A tiny application for tests of the engine: its handlers do what the test says, and it remembers
//! every call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate::drain::OVERRUN;
use tidegate::{
    Context, Database, Dispatch, Done, DrainError, DrainOptions, DrainReport, Error, HandlerResult,
    Handlers, Verdicts,
};

use crate::probe::{Act, Probe};
use crate::{TestDb, ended};

/// A call of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub id: i64,
    pub attempt: u32,
    pub handler: &'static str,
    pub name: String,
}

type Behaviour = dyn for<'a> Fn(Call, &'a Context) -> BoxFuture<'a, HandlerResult> + Send + Sync;

pub struct ProbeApp {
    pub calls: Mutex<Vec<Call>>,
    behaviour: Box<Behaviour>,
}

impl ProbeApp {
    /// An application whose handlers do this.
    pub fn new(
        behaviour: impl for<'a> Fn(Call, &'a Context) -> BoxFuture<'a, HandlerResult>
        + Send
        + Sync
        + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            calls: Mutex::default(),
            behaviour: Box::new(behaviour),
        })
    }

    /// The same, for handlers that need no context.
    pub fn doing<F: Future<Output = HandlerResult> + Send + 'static>(
        behaviour: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::new(move |call, _| Box::pin(behaviour(call)))
    }

    /// An application whose handlers write their event's id into the table `effect`, each in its transaction.
    pub fn writing() -> Arc<Self> {
        Self::new(|call, ctx| {
            Box::pin(async move {
                let transaction = ctx.transaction().await?;
                let insert = "INSERT INTO effect VALUES ($1)";
                let inserted = transaction.execute(insert, &[&call.id]).await;
                inserted.retryable()?;
                transaction.complete(Done::ok()).await
            })
        })
    }

    /// An application whose handlers succeed.
    pub fn succeeding() -> Arc<Self> {
        Self::doing(|_| async { Ok(Done::ok()) })
    }

    /// All calls so far, in the order they started.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Ids in the order their handlers started.
    pub fn ids(&self) -> Vec<i64> {
        self.calls().iter().map(|call| call.id).collect()
    }

    /// Does what the handlers do, for another application's handler.
    pub async fn behave(&self, call: Call, ctx: &Context) -> HandlerResult {
        (self.behaviour)(call, ctx).await
    }

    async fn call(&self, handler: &'static str, act: &Act, ctx: &Context) -> HandlerResult {
        let call = Call {
            id: ctx.event_id(),
            attempt: ctx.attempt(),
            handler,
            name: act.name.clone(),
        };
        self.calls.lock().unwrap().push(call.clone());
        (self.behaviour)(call, ctx).await
    }

    fn note(&self, ctx: &Context) {
        let (id, attempt) = (ctx.event_id(), ctx.attempt());
        self.calls.lock().unwrap().push(Call {
            id,
            attempt,
            handler: "note",
            name: String::new(),
        });
    }
}

impl Dispatch for ProbeApp {
    type Event = Probe;

    fn handlers<'a>(&'a self, event: &'a Probe, ctx: &'a Context) -> Handlers<'a> {
        match event {
            Probe::Act(act) => Handlers::one("act", self.call("act", act, ctx)),
            Probe::Note(()) => Handlers::one("note", async {
                self.note(ctx);
                Ok(Done::ok())
            }),
            Probe::Pair(act) => Handlers::one("first", self.call("first", act, ctx))
                .and("second", self.call("second", act, ctx)),
        }
    }
}

/// Options for tests: retries at once, and a budget that nothing here needs but on a machine that hardly
/// moves.
pub fn options() -> DrainOptions {
    DrainOptions {
        budget: Duration::from_mins(2),
        retry: tidegate::RetryPolicy {
            base: Duration::ZERO,
            max: Duration::ZERO,
        },
        ..DrainOptions::default()
    }
}

/// Drains and checks that the report is balanced.
pub async fn drain(db: &TestDb, app: &Arc<ProbeApp>, options: &DrainOptions) -> DrainReport {
    let report = tidegate::drain(&db.database(), app.clone(), options)
        .await
        .unwrap();
    assert!(report.is_balanced(), "{report:?}");
    report
}

/// Drains, and checks that the run came to its end before any longer time-out of the connection or a
/// statement, however it ended.
pub async fn drain_that_ends(
    database: &Database,
    app: &Arc<ProbeApp>,
    options: &DrainOptions,
) -> Result<DrainReport, DrainError> {
    let limit = options.budget + OVERRUN;
    let drained = ended(
        &format!("a drain that has {limit:?}"),
        tidegate::drain(database, app.clone(), options),
    )
    .await;
    if let Err(failed) = &drained {
        let late = match &failed.source {
            Error::TimedOut { limit: waited, .. } => *waited > limit,
            // Of a connection.
            Error::Connect(why) => why.contains("no answer within"),
            _ => false,
        };
        assert!(!late, "{failed}; {:?}, limit {limit:?}", failed.report);
    }
    drained
}

/// A program whose handlers do nothing.
pub struct Nothing;

impl Dispatch for Nothing {
    type Event = Probe;

    fn handlers<'a>(&'a self, _: &'a Probe, _: &'a Context) -> Handlers<'a> {
        Handlers::one("nothing", async { Ok(Done::ok()) })
    }
}

#[cfg(feature = "admin")]
pub fn service(db: &TestDb) -> tidegate_admin::program::Runtime {
    let url = db.url.clone();
    let lookup = move |name: &str| (name == "DATABASE_URL").then(|| url.clone());
    tidegate_admin::Program::new(|_| Ok(Nothing))
        .start(&lookup)
        .unwrap()
}
