//! Looking without touching: figures, one event, lists; and the registry of kinds.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::{GenericClient, Row};

use super::{query, sql};
use crate::error::Error;
use crate::handler::Fault;

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
    let rows = query(client, &sql::look::BACKLOG, &[]).await?;
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
    Ok(documents(&query(client, &sql::look::STATS, &[]).await?))
}

/// All columns of one event, with `in` telling its table; `None` when there is no such event.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn show(client: &(impl GenericClient + Sync), id: i64) -> Result<Option<Value>, Error> {
    Ok(documents(&query(client, &sql::look::SHOW, &[&id]).await?)
        .into_iter()
        .next())
}

/// A job as a client of an HTTP interface sees it: a row of the view `tidegate.jobs`, without the
/// payload.
#[derive(Debug, Clone, Deserialize)]
pub struct Job {
    /// The event's id.
    pub id: i64,
    /// The event's kind.
    pub kind: String,
    /// Whether and how it ended (E13).
    pub status: JobStatus,
    /// What it would have been answered if it had been waited for; `None` while it is pending.
    pub status_code: Option<u16>,
    /// Results by handler, of a processed one.
    pub result: Option<Value>,
    /// Every fault so far, the last one last.
    pub errors: Vec<Fault>,
    /// When it ended or, while it is pending, is expected to: the next time the drain is woken,
    /// counted from its publish. RFC 3339, UTC.
    pub eta: String,
}

/// A job's state (E13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// 0: in the queue.
    Pending,
    /// 1: its handlers are done.
    Processed,
    /// 2: its handler's own final verdict, an expected error.
    Failed,
    /// 3: the system gave up.
    FailedWithError,
}

/// Reads one event as a job; `None` when there is no such event. `wake_interval` is how often the
/// drain is woken.
///
/// # Errors
/// When the database fails or does not answer, or when a row is no job.
pub async fn job(
    client: &(impl GenericClient + Sync),
    id: i64,
    wake_interval: Duration,
) -> Result<Option<Job>, Error> {
    let interval = wake_interval.as_secs_f64();
    let rows = query(client, &sql::look::JOB, &[&id, &interval]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    serde_json::from_str(row.get(0))
        .map(Some)
        .map_err(|error| Error::Invalid(format!("tidegate.jobs: row {id}: {error}")))
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
        &query(client, &sql::look::LIST, &[&status, &kind, &limit]).await?,
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
    query(client, &sql::look::REGISTER_KINDS, &[&kinds])
        .await
        .map(drop)
}

/// Those of `kinds` that nobody has registered, so that publishing them is refused.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn unregistered(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
) -> Result<Vec<String>, Error> {
    let rows = query(client, &sql::look::UNREGISTERED, &[&kinds]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn documents(rows: &[Row]) -> Vec<Value> {
    rows.iter()
        .filter_map(|row| serde_json::from_str(row.get(0)).ok())
        .collect()
}
