//! Reads the figures for Prometheus, all from one moment.

use std::collections::BTreeMap;

use tokio_postgres::{Client, IsolationLevel, Row};

use crate::error::Error;
use crate::queue::{query, sql};

/// The most live events that are counted. Counting this many takes a twentieth of a second.
pub(crate) const MOST_EVENTS: i64 = 100_000;

/// The most rows that are read for groups, for deadlines and for stuck events.
const MOST_LOOKED_AT: i64 = 10_000;

/// The database cancels a statement that takes longer, in milliseconds.
const STATEMENT_TIMEOUT_MS: u32 = 5000;

/// The kind that stands for all kinds that no program has registered.
pub(crate) const OTHER: &str = "other";

/// The state of the queue at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Figures {
    /// The kinds that programs have registered.
    pub kinds: Vec<String>,
    /// Live events by kind and state, and how many seconds ago the oldest of them became ready.
    pub live: BTreeMap<(String, String), (u64, f64)>,
    /// The events that have ended, by kind, status and latency bound in milliseconds.
    pub ended: Vec<Ended>,
    /// Events whose workers no longer renew their leases.
    pub stuck: u64,
    /// Groups whose first event waits.
    pub blocked_groups: u64,
    /// Events whose deadline comes within an hour.
    pub expiring: u64,
    /// When the last drain ended, in seconds since 1970.
    pub last_drain: Option<f64>,
    /// Drains that are at work.
    pub drains: u64,
    /// The schema's version.
    pub version: i32,
    /// The services, and for each whether calls to it are stopped.
    pub services: Vec<(String, bool)>,
}

/// The sums for the events that ended with one kind, status and latency bound.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ended {
    pub kind: String,
    pub status: String,
    pub within_ms: Option<i64>,
    pub events: u64,
    pub attempts: u64,
    pub latency_ms: f64,
}

/// Reads all figures in one transaction, which changes nothing.
///
/// # Errors
/// When the database fails or does not answer in time.
pub(crate) async fn figures(client: &mut Client) -> Result<Figures, Error> {
    let stage = "prometheus";
    let failed = |source| Error::Database { stage, source };
    let transaction = client.build_transaction().read_only(true);
    let transaction = transaction.isolation_level(IsolationLevel::RepeatableRead);
    let transaction = transaction.start().await.map_err(failed)?;
    let limit = format!("SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}");
    transaction.batch_execute(&limit).await.map_err(failed)?;
    let kinds = query(&transaction, &sql::look::REGISTERED, &[]).await?;
    let set = transaction.batch_execute(sql::prometheus::WALK).await;
    set.map_err(failed)?;
    let live = query(&transaction, &sql::prometheus::EVENTS, &[&MOST_EVENTS]).await?;
    let set = transaction.batch_execute(sql::prometheus::AS_USUAL).await;
    set.map_err(failed)?;
    let ended = query(&transaction, &sql::prometheus::ENDED, &[]).await?;
    let whole = query(&transaction, &sql::prometheus::STATE, &[&MOST_LOOKED_AT]).await?;
    let services = query(&transaction, &sql::prometheus::SERVICES, &[]).await?;
    transaction.commit().await.map_err(failed)?;
    let mut figures = Figures {
        kinds: kinds.iter().map(|row| row.get(0)).collect(),
        live: counted(&live),
        ended: ended.iter().map(summed).collect(),
        services: services
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect(),
        ..Figures::default()
    };
    if let Some(row) = whole.first() {
        let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
        figures.stuck = count(0);
        figures.blocked_groups = count(1);
        figures.expiring = count(2);
        figures.last_drain = row.get(3);
        figures.drains = count(4);
        figures.version = row.get::<_, Option<i32>>(5).unwrap_or_default();
    }
    Ok(figures)
}

/// Adds up rows with the same kind and state: a program may have registered a kind named like [`OTHER`].
fn counted(rows: &[Row]) -> BTreeMap<(String, String), (u64, f64)> {
    let mut live = BTreeMap::new();
    for row in rows {
        let (events, age) = live.entry((kind(row), row.get(1))).or_insert((0, 0.0_f64));
        *events += row.get::<_, i64>(2).unsigned_abs();
        *age = age.max(row.get(3));
    }
    live
}

fn kind(row: &Row) -> String {
    let kind: Option<String> = row.get(0);
    kind.unwrap_or_else(|| OTHER.to_owned())
}

fn summed(row: &Row) -> Ended {
    Ended {
        kind: kind(row),
        status: row.get(1),
        within_ms: row.get(2),
        events: row.get::<_, i64>(3).unsigned_abs(),
        attempts: row.get::<_, i64>(4).unsigned_abs(),
        latency_ms: row.get(5),
    }
}
