//! Looking without touching: figures, one event, lists; and the registry of kinds.

use serde_json::Value;
use tokio_postgres::{GenericClient, Row};

use super::{query, sql};
use crate::error::Error;

/// What is left in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Live events, whatever their state: exact below 100,000, the planner's estimate above.
    pub events: u64,
    /// Age of the live event with the lowest id, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
}

/// How much is left and how old it is (B9).
///
/// # Errors
/// When the database fails or does not answer.
pub async fn backlog(client: &(impl GenericClient + Sync)) -> Result<Backlog, Error> {
    let rows = query(client, &sql::BACKLOG, &[]).await?;
    Ok(rows.first().map_or_else(Backlog::default, |row| Backlog {
        events: row.get::<_, i64>(0).unsigned_abs(),
        oldest_age_ms: row.get::<_, Option<i64>>(1).unwrap_or(0).unsigned_abs(),
    }))
}

/// Depth, attempts, latency and failure rate by kind (C13), one object each.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn stats(client: &(impl GenericClient + Sync)) -> Result<Vec<Value>, Error> {
    Ok(documents(&query(client, &sql::STATS, &[]).await?))
}

/// All columns of one event, with `in` telling its table; `None` when there is no such event.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn show(client: &(impl GenericClient + Sync), id: i64) -> Result<Option<Value>, Error> {
    Ok(documents(&query(client, &sql::SHOW, &[&id]).await?)
        .into_iter()
        .next())
}

/// Newest events first, live and logged, at most `limit`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn list(
    client: &(impl GenericClient + Sync),
    status: Option<&str>,
    kind: Option<&str>,
    limit: u32,
) -> Result<Vec<Value>, Error> {
    let limit = i64::from(limit);
    Ok(documents(
        &query(client, &sql::LIST, &[&status, &kind, &limit]).await?,
    ))
}

/// Registers kinds, so that they may be published; keeps what an operator edited.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn register_kinds(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
) -> Result<(), Error> {
    query(client, &sql::REGISTER_KINDS, &[&kinds])
        .await
        .map(drop)
}

fn documents(rows: &[Row]) -> Vec<Value> {
    rows.iter()
        .filter_map(|row| serde_json::from_str(row.get(0)).ok())
        .collect()
}
