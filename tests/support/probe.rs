//! A tiny application for tests of the engine: its handlers do what the test says, and it remembers
//! every call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tidegate::drain::OVERRUN;
use tidegate::{
    Context, Database, Dispatch, Done, DrainError, DrainOptions, DrainReport, Error, Event,
    HandlerResult, Handlers, NewEvent, Verdicts,
};
use tidegate_admin::Program;
use tidegate_admin::program::Runtime;
use tidegate_core::connect::{Client, Queryable};
use tidegate_core::lease::Lease;
use tidegate_core::queue::{self, Completion, LeaseRequest, Retried, Taken, Walk};
use uuid::Uuid;

use crate::{TestDb, database_for, ended, opened_for};

tidegate::events! {
    #[derive(Debug, Clone, PartialEq)]
    pub enum Probe {
        /// One handler, `act`.
        Act(Act) = "act",
        /// One handler, `note`, which always succeeds.
        Note(()) = "note",
        /// Two handlers, `first` and `second`.
        Pair(Act) = "pair",
    }
}

/// What an event carries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Act {
    pub name: String,
}

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

/// A database that knows the probe's kinds.
pub async fn probe_database() -> TestDb {
    database_for::<Probe>().await
}

/// The same, with a connection to it.
pub async fn probe() -> (TestDb, Client) {
    opened_for::<Probe>().await
}

/// A database that knows the probe's kinds, with this many connections to it.
pub async fn probe_sessions<const N: usize>() -> (TestDb, [Client; N]) {
    let db = probe_database().await;
    let mut clients = Vec::new();
    for _ in 0..N {
        clients.push(db.client().await);
    }
    (db, clients.try_into().unwrap())
}

/// An `act` event of this name.
pub fn act(name: &str) -> NewEvent {
    NewEvent::of(&Probe::Act(Act {
        name: name.to_owned(),
    }))
    .unwrap()
}

/// A `pair` event of this name.
pub fn pair(name: &str) -> NewEvent {
    NewEvent::of(&Probe::Pair(Act {
        name: name.to_owned(),
    }))
    .unwrap()
}

/// Publishes these events, and returns their ids.
pub async fn publish(client: &Client, events: impl IntoIterator<Item = NewEvent>) -> Vec<i64> {
    let events: Vec<NewEvent> = events.into_iter().collect();
    let mut ids = Vec::new();
    for batch in events.chunks(1000) {
        let published = queue::publish_batch(client, batch).await.unwrap();
        ids.extend(published.iter().map(|published| published.id));
    }
    ids
}

/// Publishes `count` `act` events named by their number from 0, and returns their ids.
pub async fn publish_acts(client: &Client, count: usize) -> Vec<i64> {
    publish(client, (0..count).map(|n| act(&n.to_string()))).await
}

/// The first call of a walk by a worker of its own: for a hundred events, all of which may start.
pub fn lease_request() -> LeaseRequest<'static> {
    LeaseRequest {
        token: Uuid::new_v4(),
        worker: Uuid::new_v4(),
        held: &[],
        over: &[],
        timeout: Duration::from_mins(1),
        kinds: Probe::KINDS,
        limit: 100,
        bytes: 8 << 20,
        first_window: 100,
        passed_by: &[],
        probe: None,
        walk: Walk::default(),
    }
}

/// The end of a lease's event without results or follow-ups.
pub fn completion_of(lease: Lease) -> Completion {
    Completion {
        token: lease.token,
        done: vec![lease.id],
        ..Completion::default()
    }
}

/// A charged retry at once.
pub fn retry_of(lease: Lease) -> Retried {
    Retried {
        lease,
        charged: true,
        delay: Duration::ZERO,
        errors: Vec::new(),
        progress: None,
        deferred: Vec::new(),
    }
}

/// Marks all events in leases as started: an event on its last attempt is never started with its lease.
pub async fn start_leases(client: &impl Queryable) {
    let sql = "UPDATE tidegate.lease SET started_to = upper(ids) - 1";
    client.conn().execute(sql, &[]).await.unwrap();
}

/// Leases time out by the database's clock, which a test cannot move: so it is they that are moved.
pub async fn expire_leases(client: &impl Queryable) {
    let sql = "UPDATE tidegate.lease SET expires_at = clock_timestamp() - interval '1 second'";
    client.conn().execute(sql, &[]).await.unwrap();
}

/// Breaks what has expired, as a drain does before it walks. Tells how many leases that were.
pub async fn sweep(client: &impl Queryable) -> u64 {
    let swept = queue::sweep(client, Uuid::new_v4(), &[]).await;
    swept.unwrap().broken
}

/// What breaks the order of a group, now or later: nothing, whenever one asks.
pub async fn disorder(client: &impl Queryable) -> Vec<String> {
    let sql = "SELECT 'unordered: ' || u FROM tidegate.unordered_leases() AS u
               UNION ALL SELECT 'unmarked: ' || u FROM tidegate.unmarked_events() AS u";
    let found = client.conn().query(sql, &[]).await.unwrap();
    found.iter().map(|row| row.get(0)).collect()
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

/// Status, attempts and the errors' codes of a row in the log, such as `FAILED 2 lapsed abandoned`; nothing
/// while it is not there.
pub async fn end_of(client: &Client, id: i64) -> String {
    let sql = "SELECT array_to_string(ARRAY[status, attempts::text]
                                  || ARRAY(SELECT e->>'code' FROM jsonb_array_elements(errors) AS e), ' ')
                 FROM tidegate.event_log WHERE id = $1";
    let row = client.query_opt(sql, &[&id]).await.unwrap();
    row.map_or_else(String::new, |row| row.get(0))
}

/// Which slot was taken, and whether its drain must tell publishers before it ends.
pub fn slot_of(taken: &Taken) -> Option<(i32, bool)> {
    match taken {
        Taken::Slot(slot) => Some((slot.number, slot.wakes)),
        Taken::None | Taken::Repeated => None,
    }
}

/// One number from the database.
pub async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Rows in the live queue.
pub async fn live(client: &Client) -> i64 {
    number(client, "SELECT count(*) FROM tidegate.event_queue").await
}

/// A program whose handlers do nothing.
pub struct Nothing;

impl Dispatch for Nothing {
    type Event = Probe;

    fn handlers<'a>(&'a self, _: &'a Probe, _: &'a Context) -> Handlers<'a> {
        Handlers::one("nothing", async { Ok(Done::ok()) })
    }
}

pub fn service(db: &TestDb) -> Runtime {
    let url = db.url.clone();
    let lookup = move |name: &str| (name == "DATABASE_URL").then(|| url.clone());
    Program::new(|_| Ok(Nothing)).start(&lookup).unwrap()
}
