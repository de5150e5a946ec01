//! What is left in the queue, one event as a job, and the registry of kinds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use tokio_postgres::{GenericClient, Row};

use super::{query, sql};
use crate::error::Error;
use crate::handler::Fault;
use crate::policy::Policy;
use crate::status::ExpiringKind;

/// How far ahead to warn of events that will expire. That leaves time to react, and means that five drains at
/// one a minute have not reached the event.
pub const EXPIRY_WINDOW: Duration = Duration::from_mins(5);

/// The most events that [`expiring`] examines. A drain that ends also counts them, and a million of them must
/// not delay it: this many take 0.05 s.
pub const MOST_EXPIRING: u32 = 10_000;

/// What is left in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// Live events in any state: an exact number below 100,000, the planner's estimate above.
    pub events: u64,
    /// The age of the live event with the lowest id, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
}

/// Returns how many events are left, and how old the oldest is (B9).
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

/// Counts live events of other kinds than these, by kind; of twenty kinds at most.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn others(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
) -> Result<BTreeMap<String, u64>, Error> {
    let rows = query(client, &sql::look::OTHERS, &[&kinds]).await?;
    let count = |row: &Row| (row.get(0), row.get::<_, i64>(1).unsigned_abs());
    Ok(rows.iter().map(count).collect())
}

/// Returns the kinds that programs have registered, in order.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn registered(client: &(impl GenericClient + Sync)) -> Result<Vec<String>, Error> {
    let rows = query(client, &sql::look::REGISTERED, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the events that will pass their deadline before they start, by kind, the soonest first (B13).
/// Their deadline is within [`EXPIRY_WINDOW`], or it is later but comes before their turn at the rate of the
/// last window. At most [`MOST_EXPIRING`] are examined.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn expiring(client: &(impl GenericClient + Sync)) -> Result<Vec<ExpiringKind>, Error> {
    let (window, most) = (EXPIRY_WINDOW.as_secs_f64(), i64::from(MOST_EXPIRING));
    let rows = query(client, &sql::look::EXPIRING, &[&window, &most]).await?;
    parsed("expiring", &rows)
}

/// A job as a client of an HTTP interface sees it: a row of the view `tidegate.jobs`, without the payload.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Job {
    /// The event's id.
    pub id: i64,
    /// The event's kind.
    pub kind: String,
    /// Whether and how it ended (E13).
    pub status: JobStatus,
    /// The status code that a synchronous answer would have had; `None` while the job is pending.
    pub status_code: Option<u16>,
    /// Results by handler, of a processed job.
    pub result: Option<Value>,
    /// All faults so far, the latest last.
    pub errors: Vec<Fault>,
    /// When the job ended. While it is pending, when it is expected to end: the next time the drain is woken,
    /// counted from the publish. RFC 3339, UTC.
    pub eta: String,
}

/// A job's state (E13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// 0: in the queue.
    Pending,
    /// 1: its handlers have succeeded.
    Processed,
    /// 2: a handler rejected it, an expected error.
    Failed,
    /// 3: the system gave up.
    FailedWithError,
}

/// Reads one event as a job; `None` when there is no such event. `wake_interval` is how often the drain is
/// woken.
///
/// # Errors
/// When the database fails or does not answer, or [`Error::Unreadable`].
pub async fn job(
    client: &(impl GenericClient + Sync),
    id: i64,
    wake_interval: Duration,
) -> Result<Option<Job>, Error> {
    let interval = wake_interval.as_secs_f64();
    let rows = query(client, &sql::look::JOB, &[&id, &interval]).await?;
    let row = rows.first();
    row.map(|row| document(row, || format!("tidegate.jobs: row {id}")))
        .transpose()
}

/// Registers kinds, so that they may be published. Keeps an operator's changes.
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

/// Declares how a program's kinds are handled, all of them. A kind without a policy in `policies` is handled
/// with the defaults.
///
/// # Errors
/// [`Error::Invalid`] names what is out of range; otherwise the database's error.
pub async fn declare_policies(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
    policies: &[(&str, Policy)],
) -> Result<(), Error> {
    let of = |kind: &&str| {
        let found = policies.iter().find(|(of, _)| of == kind);
        let policy = found.map(|(_, policy)| *policy).unwrap_or_default();
        serde_json::to_string(&policy)
    };
    let written = kinds.iter().map(of).collect::<Result<Vec<String>, _>>();
    let written = written.map_err(|error| Error::Invalid(format!("policy: {error}")))?;
    query(client, &sql::look::DECLARE_POLICIES, &[&kinds, &written])
        .await
        .map(drop)
}

/// Returns those of `kinds` that no program has registered, so that their publish is refused.
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

/// Returns every row's document. One that does not parse is an error: left out, it would seem not to exist.
pub(crate) fn parsed<T: DeserializeOwned>(place: &str, rows: &[Row]) -> Result<Vec<T>, Error> {
    let numbered = rows.iter().enumerate();
    numbered
        .map(|(n, row)| document(row, || format!("{place}: row {}", n + 1)))
        .collect()
}

pub(super) fn document<T: DeserializeOwned>(
    row: &Row,
    place: impl Fn() -> String,
) -> Result<T, Error> {
    serde_json::from_str(row.get(0)).map_err(|error| {
        // For a wrong type the parser quotes the value, which may be a payload's (I9).
        let why = match error.classify() {
            Category::Data => "a field is not of the expected type".to_owned(),
            _ => error.to_string(),
        };
        Error::Unreadable(format!("{}: {why}", place()))
    })
}
