//! Reading without changes: figures, one event, lists; and the registry of kinds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

use super::lineage::{Lineage, MOST_RELATED, RelatedEvent, arrange};
use super::{query, sql};
use crate::error::Error;
use crate::handler::Fault;
use crate::operate::{ExpiringKind, Moment};
use crate::policy::Policy;

/// How far ahead to warn of events that will expire. That leaves time to react, and means that five drains at one a
/// minute have not reached the event.
pub const EXPIRY_WINDOW: Duration = Duration::from_mins(5);

/// The most events that [`expiring`] examines. A drain that ends also counts them, and a million of them must not delay
/// it: this many take 0.05 s.
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

/// Returns depth, attempts, latency and failure rate by kind (C13), one object for each.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn stats(client: &(impl GenericClient + Sync)) -> Result<Vec<Value>, Error> {
    parsed(
        "tidegate.stats",
        &query(client, &sql::look::STATS, &[]).await?,
    )
}

/// The figures of the whole queue that are not sums over its kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overview {
    /// The age of the live event with the lowest id, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
    /// Groups whose first event waits while others wait for it.
    pub blocked_groups: u64,
    /// Events that ended in the last day with a status other than COMPLETED.
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

/// Returns the events that will pass their deadline before they start, by kind, the soonest first (B13). Their deadline
/// is within [`EXPIRY_WINDOW`], or it is later but comes before their turn at the rate of the last window. At most
/// [`MOST_EXPIRING`] are examined.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn expiring(client: &(impl GenericClient + Sync)) -> Result<Vec<ExpiringKind>, Error> {
    let (window, most) = (EXPIRY_WINDOW.as_secs_f64(), i64::from(MOST_EXPIRING));
    let rows = query(client, &sql::look::EXPIRING, &[&window, &most]).await?;
    parsed("expiring", &rows)
}

/// Returns groups whose first event waits for a retry or a planned time while others wait for it, as in the view
/// `tidegate.blocked_groups`; the oldest first, at most `limit`.
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

/// Returns which worker holds what and since when, as in the view `tidegate.leases`; the oldest first, at most `limit`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn leases(client: &(impl GenericClient + Sync), limit: u32) -> Result<Vec<Value>, Error> {
    let limit = i64::from(limit);
    let rows = query(client, &sql::look::LEASES, &[&limit]).await?;
    parsed("tidegate.leases", &rows)
}

/// Returns all columns of one event, with its table in `in`; `None` when there is no such event. A column that this program
/// cannot read is null, and `unreadable` has the reason.
///
/// # Errors
/// When the database fails or does not answer, or [`Error::Unreadable`].
pub async fn show(client: &(impl GenericClient + Sync), id: i64) -> Result<Option<Value>, Error> {
    let rows = query(client, &sql::look::SHOW, &[&id]).await?;
    let text = rows.first().map(|row| row.get(0));
    text.map(|text| columns(text).map_err(|why| Error::Unreadable(format!("event {id}: {why}"))))
        .transpose()
}

/// Parses a row's columns one by one. A payload can be stored that no parser here reads: half of a surrogate pair, or
/// thousands of levels.
fn columns(row: &str) -> Result<Value, serde_json::Error> {
    let columns: BTreeMap<String, &RawValue> = serde_json::from_str(row)?;
    let (mut event, mut unreadable) = (Map::new(), Map::new());
    for (name, text) in columns {
        let value = serde_json::from_str(text.get()).unwrap_or_else(|error: serde_json::Error| {
            unreadable.insert(name.clone(), error.to_string().into());
            Value::Null
        });
        event.insert(name, value);
    }
    if !unreadable.is_empty() {
        event.insert("unreadable".to_owned(), unreadable.into());
    }
    Ok(event.into())
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
    /// When the job ended. While it is pending, when it is expected to end: the next time the drain is woken, counted
    /// from the publish. RFC 3339, UTC.
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

/// Reads one event as a job; `None` when there is no such event. `wake_interval` is how often the drain is woken.
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

/// Returns where an event comes from and what followed from it: the events that it follows or replays up to the first,
/// and all events that followed from these or replayed them. `None` when there is no such event. At most 500 events,
/// the nearest ones.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn lineage(
    client: &(impl GenericClient + Sync),
    id: i64,
) -> Result<Option<Lineage>, Error> {
    // Reads one more than are shown, to find out whether there are more.
    let limit = i64::try_from(MOST_RELATED).unwrap_or(i64::MAX) + 1;
    let rows = query(client, &sql::look::LINEAGE, &[&id, &limit]).await?;
    let related: Vec<RelatedEvent> = parsed("lineage", &rows)?;
    Ok(arrange(id, related))
}

/// Which events a list holds. A filter that is `None` accepts all events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListFilter<'a> {
    /// Events with this status, live or finished.
    pub status: Option<&'a str>,
    /// Events of this kind.
    pub kind: Option<&'a str>,
    /// Events of this group.
    pub group: Option<&'a str>,
    /// Events with this correlation id.
    pub correlation: Option<&'a str>,
    /// Events created at this time or later.
    pub since: Option<Moment>,
    /// Events created before this time.
    pub until: Option<Moment>,
    /// Events with a lower id: the page after the one that ended there.
    pub before: Option<i64>,
    /// Events with a higher id, which bounds the search.
    pub above: Option<i64>,
}

impl ListFilter<'_> {
    /// Whether live events are searched, and whether finished ones are, without an index that leads to those that match.
    fn is_searched(&self) -> (bool, bool) {
        let is_any = self.kind.is_none()
            && self.status.is_none()
            && self.group.is_none()
            && self.since.is_none()
            && self.until.is_none();
        // Either every event matches, or an index of both tables leads to the events that do.
        if is_any || self.correlation.is_some() {
            return (false, false);
        }
        let is_live = self
            .status
            .map(|status| ["PENDING", "PROCESSING"].contains(&status));
        // Only the live events have an index of groups.
        (
            is_live != Some(false) && self.group.is_none(),
            is_live != Some(true),
        )
    }
}

/// Where a bounded search ends: the first id that it does not reach, and when that event was created (RFC 3339).
pub(crate) struct SearchFloor {
    pub id: i64,
    pub created_at: Option<String>,
}

/// Returns where a search with this filter ends if it looks at no more than `most` live and `most` finished events. `None`
/// if it reaches all events, or finds by an index those that match.
///
/// # Errors
/// When the database fails or does not answer.
pub(crate) async fn search_floor(
    client: &(impl GenericClient + Sync),
    filter: &ListFilter<'_>,
    most: u32,
) -> Result<Option<SearchFloor>, Error> {
    let (live, logged) = filter.is_searched();
    if !live && !logged {
        return Ok(None);
    }
    let most = i64::from(most);
    let values: &[&(dyn ToSql + Sync)] = &[&filter.before, &live, &logged, &most];
    let rows = query(client, &sql::look::SEARCH_FLOOR, values).await?;
    Ok(rows.first().map(|row| SearchFloor {
        id: row.get(0),
        created_at: row.get(1),
    }))
}

/// Returns the newest events first, live and finished, at most `limit`.
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
            &filter.above,
        ],
    )
    .await?;
    parsed("list", &rows)
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

/// Declares how a program's kinds are handled, all of them. A kind without a policy in `policies` is handled with the
/// defaults.
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
        // For a wrong type the parser quotes the value, which may be a payload's (I9).
        let why = match error.classify() {
            Category::Data => "a field is not of the expected type".to_owned(),
            _ => error.to_string(),
        };
        Error::Unreadable(format!("{}: {why}", place()))
    })
}
