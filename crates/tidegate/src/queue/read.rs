//! Looking without touching: figures, one event, lists; and the registry of kinds.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use tokio_postgres::{GenericClient, Row};

use super::lineage::{Lineage, MOST_RELATED, RelatedEvent, arrange};
use super::{query, sql};
use crate::error::Error;
use crate::handler::Fault;
use crate::operate::{ExpiringKind, Moment};
use crate::policy::Policy;

/// Who hears of it can still do something, and five drains at one a minute have not come to the event.
pub const EXPIRY_WINDOW: Duration = Duration::from_mins(5);

/// A drain that ends asks how many will expire, and must not be kept by a million of them: 0.05 s for so many.
pub const MOST_EXPIRING: u32 = 10_000;

/// What is left in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
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

/// Live events of other kinds than these, by kind; of twenty kinds at most.
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

/// The kinds that programs have registered, in order.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn registered(client: &(impl GenericClient + Sync)) -> Result<Vec<String>, Error> {
    let rows = query(client, &sql::look::REGISTERED, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Depth, attempts, latency and failure rate by kind (C13), one object each.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn stats(client: &(impl GenericClient + Sync)) -> Result<Vec<Value>, Error> {
    parsed(
        "tidegate.stats",
        &query(client, &sql::look::STATS, &[]).await?,
    )
}

/// What the whole queue's figures have beside the sums of their kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overview {
    /// Age of the live event with the lowest id, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
    /// Groups whose first event waits while others wait behind it.
    pub blocked_groups: u64,
    /// Events that ended in the last day otherwise than COMPLETED.
    pub dead_letters_last_day: u64,
    /// Events that ended in the last minute.
    pub finished_last_minute: u64,
}

/// Reads the figures that belong to no kind.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn overview(client: &(impl GenericClient + Sync)) -> Result<Overview, Error> {
    let rows = query(client, &sql::look::OVERVIEW, &[]).await?;
    let Some(row) = rows.first() else {
        return Ok(Overview::default());
    };
    Ok(Overview {
        oldest_age_ms: row.get::<_, Option<i64>>(0).unwrap_or(0).unsigned_abs(),
        blocked_groups: row.get::<_, i64>(1).unsigned_abs(),
        dead_letters_last_day: row.get::<_, i64>(2).unsigned_abs(),
        finished_last_minute: row.get::<_, i64>(3).unsigned_abs(),
    })
}

/// Events that will pass their deadline before they are started, by kind, the soonest first (B13): within [`EXPIRY_WINDOW`], or
/// later, but before their turn comes at the rate of the last window. At most [`MOST_EXPIRING`] are looked at.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn expiring(client: &(impl GenericClient + Sync)) -> Result<Vec<ExpiringKind>, Error> {
    let (window, most) = (EXPIRY_WINDOW.as_secs_f64(), i64::from(MOST_EXPIRING));
    let rows = query(client, &sql::look::EXPIRING, &[&window, &most]).await?;
    parsed("expiring", &rows)
}

/// What a live view learns at every tick.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulse {
    /// Up to when finished events are counted, on the database's clock: the next look's `since`.
    pub at: SystemTime,
    /// Age of the live event with the lowest id, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
    /// Events that ended between `since` and `at`.
    pub finished: u64,
    /// How far handlers say that they have come, the oldest five events of which any does: `id`, `kind`, `handler`, `part`, `note`.
    pub at_work: Vec<Value>,
}

/// Of so many events a pulse tells how far they have come.
const MOST_AT_WORK: i64 = 5;

/// Takes the queue's pulse: cheap enough for every second, whatever the size of queue and log.
/// Without `since` nothing is counted as finished.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn pulse(
    client: &(impl GenericClient + Sync),
    since: Option<SystemTime>,
) -> Result<Pulse, Error> {
    let rows = query(client, &sql::look::PULSE, &[&since]).await?;
    let row = rows
        .first()
        .ok_or_else(|| Error::Unreadable("pulse: no row".to_owned()))?;
    let at_work = query(client, &sql::look::AT_WORK, &[&MOST_AT_WORK]).await?;
    Ok(Pulse {
        at: row.get(0),
        oldest_age_ms: row.get::<_, Option<i64>>(1).unwrap_or(0).unsigned_abs(),
        finished: row.get::<_, i64>(2).unsigned_abs(),
        at_work: parsed("tidegate.at_work", &at_work)?,
    })
}

/// Groups whose first event waits for a retry or a planned time while others wait behind it, as the
/// view `tidegate.blocked_groups` has them; the oldest first, at most `limit`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn blocked_groups(
    client: &(impl GenericClient + Sync),
    limit: u32,
) -> Result<Vec<Value>, Error> {
    let limit = i64::from(limit);
    let rows = query(client, &sql::look::BLOCKED_GROUPS, &[&limit]).await?;
    parsed("tidegate.blocked_groups", &rows)
}

/// Who holds what since when, as the view `tidegate.leases` has it; the oldest first, at most `limit`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn leases(client: &(impl GenericClient + Sync), limit: u32) -> Result<Vec<Value>, Error> {
    let limit = i64::from(limit);
    let rows = query(client, &sql::look::LEASES, &[&limit]).await?;
    parsed("tidegate.leases", &rows)
}

/// All columns of one event, with `in` telling its table; `None` when there is no such event.
///
/// # Errors
/// When the database fails or does not answer, or [`Error::Unreadable`].
pub async fn show(client: &(impl GenericClient + Sync), id: i64) -> Result<Option<Value>, Error> {
    let rows = query(client, &sql::look::SHOW, &[&id]).await?;
    let row = rows.first();
    row.map(|row| document(row, || format!("event {id}")))
        .transpose()
}

/// A job as a client of an HTTP interface sees it: a row of the view `tidegate.jobs`, without the
/// payload.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
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

/// Where an event comes from and what came of it: the events it follows or replays up to the first,
/// and all that followed from these or replayed them. `None` when there is no such event; at most
/// 500 events, the nearest ones.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn lineage(
    client: &(impl GenericClient + Sync),
    id: i64,
) -> Result<Option<Lineage>, Error> {
    // One more than are shown tells whether there are more.
    let limit = i64::try_from(MOST_RELATED).unwrap_or(i64::MAX) + 1;
    let rows = query(client, &sql::look::LINEAGE, &[&id, &limit]).await?;
    let related: Vec<RelatedEvent> = parsed("lineage", &rows)?;
    Ok(arrange(id, related))
}

/// Which events a list holds. A filter that is `None` lets everything pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListFilter<'a> {
    /// This status, of a live event or a finished one.
    pub status: Option<&'a str>,
    /// This kind.
    pub kind: Option<&'a str>,
    /// This group.
    pub group: Option<&'a str>,
    /// This business object.
    pub correlation: Option<&'a str>,
    /// Created then or later.
    pub since: Option<Moment>,
    /// Created earlier.
    pub until: Option<Moment>,
    /// A lower id: what follows a page that ended there.
    pub before: Option<i64>,
}

/// Newest events first, live and logged, at most `limit`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn list(
    client: &(impl GenericClient + Sync),
    filter: &ListFilter<'_>,
    limit: u32,
) -> Result<Vec<Value>, Error> {
    let limit = i64::from(limit);
    let (since, since_ago) = Moment::parts(filter.since);
    let (until, until_ago) = Moment::parts(filter.until);
    let rows = query(
        client,
        &sql::look::LIST,
        &[
            &filter.status,
            &filter.kind,
            &limit,
            &filter.group,
            &filter.correlation,
            &filter.before,
            &since,
            &since_ago,
            &until,
            &until_ago,
        ],
    )
    .await?;
    parsed("list", &rows)
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

/// Declares how a program's kinds are handled, all of them: whose policy is not among `policies` is handled as usual.
///
/// # Errors
/// [`Error::Invalid`] names what is out of range; else the database's failure.
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

/// Every row's document. One that does not parse is an error: left out, it would look as if it were not there.
pub(super) fn parsed<T: DeserializeOwned>(place: &str, rows: &[Row]) -> Result<Vec<T>, Error> {
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
        // Where a type is wrong the parser quotes the value, which may be a payload's (I9).
        let why = match error.classify() {
            Category::Data => "a field is not of the expected type".to_owned(),
            _ => error.to_string(),
        };
        Error::Unreadable(format!("{}: {why}", place()))
    })
}
