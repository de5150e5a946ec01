//! What is left in the queue, one event as a job, and the registry of kinds.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{FutureExt, OptionFuture, try_join3};
use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::Row;

use super::statement::statements;
use super::{Queryable, all, document, documents, query};
use crate::error::Result;
use crate::fault::Fault;
use crate::status::ExpiringKind;

statements! {
    /// The number of live events and the age of the oldest. Counts exactly up to 100,000. Beyond that it
    /// returns the planner's estimate, because counting millions takes longer than a whole tick. The count
    /// also finds the lowest id. A search in the index would pass every dead entry once more (with 200,000 of
    /// them 0.28 s, without 0.18 s).
    BACKLOG: "backlog" [] = "\
SELECT jsonb_build_object(
           'events', CASE WHEN counted.n < 100000 THEN counted.n
                          ELSE greatest(counted.n, (SELECT reltuples::bigint FROM pg_class WHERE oid = '@tidegate.event_queue'::regclass)) END,
           'oldest_age_ms', coalesce((SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint
                                        FROM @tidegate.event_queue
                                       WHERE id = CASE WHEN counted.n < 100000 THEN counted.lowest
                                                       ELSE (SELECT id FROM @tidegate.event_queue ORDER BY id LIMIT 1) END), 0))::text
  FROM (SELECT count(*) AS n, min(id) AS lowest
          FROM (SELECT id FROM @tidegate.event_queue LIMIT 100000) AS live) AS counted";

    OLDEST_READY: "oldest_ready" [TEXT_ARRAY] = "\
SELECT jsonb_build_array(o.id, (extract(epoch FROM o.ready_for) * 1000)::bigint)::text FROM @tidegate.oldest_ready($1) AS o";

    /// Live events of kinds that are not in this list and that are not only pulled, among the first 100,000
    /// events. If no other kind is registered, which is usual, the statement reads no event.
    OTHERS: "others" [TEXT_ARRAY] = "\
SELECT d.kind, d.events
  FROM @tidegate.depths() AS d
 WHERE d.kind <> ALL ($1) AND EXISTS (SELECT FROM @tidegate.event_kind AS k WHERE k.kind <> ALL ($1))
   AND NOT EXISTS (SELECT FROM @tidegate.event_kind AS k WHERE k.kind = d.kind AND k.targets = '{}')
 ORDER BY d.events DESC, d.kind LIMIT 20";

    EXPIRING: "expiring" [] = "SELECT to_jsonb(e)::text FROM @tidegate.expiring() AS e";

    /// One event as a job. A pending event is expected to end when a drain is next woken, every `$2` seconds
    /// from its publish on. Therefore the reported time is never in the past.
    JOB: "job" [INT8, FLOAT8] = "\
SELECT jsonb_build_object('id', j.id, 'kind', j.kind, 'status', j.status, 'status_code', j.status_code,
                          'result', j.result, 'errors', j.errors,
                          'eta', to_char(coalesce(j.finished_at, j.created_at + make_interval(secs => $2)
                              * (1 + floor(greatest(0, extract(epoch FROM greatest(clock_timestamp(), @tidegate.due_at(j.id)) - j.created_at)) / $2)::float8))
                              AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))::text
  FROM @tidegate.job($1) AS j";

    REGISTERED: "registered" [] = "SELECT k.kind FROM @tidegate.event_kind AS k ORDER BY k.kind";
}

/// What is left in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Backlog {
    /// Live events in any state: an exact number below 100,000, the planner's estimate above.
    pub events: u64,
    /// The age of the live event with the lowest id, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
}

impl Backlog {
    /// Whether `events` is the planner's estimate, as from 100,000 on.
    #[must_use]
    pub const fn is_estimate(&self) -> bool {
        self.events >= 100_000
    }
}

/// Returns how many events are left, and how old the oldest is (B9).
///
/// # Errors
/// When the database fails or does not answer.
pub async fn backlog(client: &impl Queryable) -> Result<Backlog> {
    Ok(document(client, &BACKLOG, &[]).await?.unwrap_or_default())
}

/// Returns the id of the oldest event that a drain of these kinds could lease now, if there is one, and for
/// how many milliseconds it has been ready.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn oldest_ready(client: &impl Queryable, kinds: &[&str]) -> Result<Option<(i64, u64)>> {
    document(client, &OLDEST_READY, &[&kinds]).await
}

/// Counts the live events of other kinds than these, by kind: the twenty kinds with the most, without those
/// that programs only poll.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn others(client: &impl Queryable, kinds: &[&str]) -> Result<BTreeMap<String, u64>> {
    let rows = query(client, &OTHERS, &[&kinds]).await?;
    let count = |row: &Row| (row.get(0), row.get::<_, i64>(1).unsigned_abs());
    Ok(rows.iter().map(count).collect())
}

/// Returns the kinds that programs have registered, in order.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn registered(client: &impl Queryable) -> Result<Vec<String>> {
    all(client, &REGISTERED, &[]).await
}

/// Returns the events that will pass their deadline before they start, by kind, the soonest first (B13). Of
/// those with a deadline, the first ten thousand are examined.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn expiring(client: &impl Queryable) -> Result<Vec<ExpiringKind>> {
    documents(client, &EXPIRING, &[]).await
}

/// What waits in the queue.
#[derive(Debug, Clone, Default)]
pub struct Waiting {
    /// Events whose deadline is near.
    pub expiring: u64,
    /// For how long the oldest one has been ready; 0 if none is.
    pub oldest_ready_ms: u64,
    /// Live events of other kinds, by kind.
    pub others: BTreeMap<String, u64>,
}

/// Looks at what waits, in one round trip. `kinds` are those of the drain that looks. It looks for those of
/// other kinds only with `beside`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn waiting(client: &impl Queryable, kinds: &[&str], beside: bool) -> Result<Waiting> {
    let (expiring, ready) = (expiring(client), oldest_ready(client, kinds));
    let others = OptionFuture::from(beside.then(|| others(client, kinds)));
    let others = others.map(Option::transpose);
    let (expiring, ready, others) = try_join3(expiring, ready, others).await?;
    Ok(Waiting {
        expiring: expiring.iter().map(|kind| kind.events).sum(),
        oldest_ready_ms: ready.map_or(0, |(_, ms)| ms),
        others: others.unwrap_or_default(),
    })
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
    /// When the job ended. While it is pending, when it is expected to end: the first time that the drain is
    /// woken, counted from the publish, after what holds the job up: its own time, the next try of a service
    /// that is down, what the first event of its group waits for. RFC 3339, UTC.
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
/// When the database fails or does not answer, or [`Error::Unreadable`](crate::Error::Unreadable).
pub async fn job(client: &impl Queryable, id: i64, wake_interval: Duration) -> Result<Option<Job>> {
    document(client, &JOB, &[&id, &wake_interval.as_secs_f64()]).await
}
