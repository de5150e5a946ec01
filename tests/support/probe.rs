//! The events of tests of the engine, and what such tests do with them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::connect::{Client, Queryable};
use tidegate_core::event::{Event, NewEvent};
use tidegate_core::lease::Lease;
use tidegate_core::queue::{self, Completion, LeaseRequest, Retried, Taken, Walk};
use uuid::Uuid;

use crate::TestDb;
#[cfg(feature = "drain")]
pub use crate::app::*;
pub use crate::{database as probe_database, opened as probe};

tidegate_core::events! {
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

/// Takes an event from its worker, and returns the report.
pub async fn requeue(client: &impl Queryable, id: i64) -> serde_json::Value {
    let sql = "SELECT tidegate.requeue(ARRAY[$1::bigint], 'its worker hangs')";
    client.conn().query_one(sql, &[&id]).await.unwrap().get(0)
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
        Taken::None | Taken::Repeated | Taken::Idle => None,
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
