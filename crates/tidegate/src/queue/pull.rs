//! Handling events without a drain, for a program with its own loop: lease a few events, handle them, and end
//! each. These are the SQL functions that programs in other languages call.
//!
//! Commit a [`poll`] before the work begins. [`finalize`] and [`retry`] may run in a transaction with the
//! handler's own changes: if the lease was lost, they fail, and so does the transaction.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use uuid::Uuid;

use super::finalize::NOT_HELD;
use super::lease::JsonText;
use super::publish::refused;
use super::statement::statements;
use super::{Queryable, query};
use crate::error::Error;
use crate::handler::Fault;
use crate::outcome::Status;

statements! {
    POLL: "poll" [TEXT_ARRAY, INT4, FLOAT8, TIMESTAMPTZ] =
        "SELECT * FROM tidegate.poll($1, $2, make_interval(secs => $3), $4)";

    FINALIZE: "pull_finalize" [INT8, UUID, TEXT, TEXT] =
        "SELECT tidegate.finalize($1, $2, $3::jsonb, $4::jsonb)";

    RETRY: "pull_retry" [INT8, UUID, TEXT, FLOAT8, BOOL] = "\
SELECT r.status, r.attempts, r.available_at, r.left_too
  FROM tidegate.retry($1, $2, $3::jsonb, make_interval(secs => $4), $5) AS r";

    EXTEND: "extend" [UUID, FLOAT8] =
        "SELECT e.lease_expires_at, e.held FROM tidegate.extend($1, make_interval(secs => $2)) AS e";
}

/// What to lease.
#[derive(Debug, Clone, Copy)]
pub struct PollRequest<'a> {
    /// The kinds of events, 1 to 100 that are registered.
    pub kinds: &'a [&'a str],
    /// The most events, 1 to 1,000.
    pub most: u32,
    /// How long they are leased, 1 second to 12 hours. End them by then, or call [`extend`].
    pub lease: Duration,
    /// The time that decides what is due and what has expired. For tests; only the owner of the schema may
    /// set it. The lease keeps the database's clock.
    pub now: Option<SystemTime>,
}

/// A leased event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PolledEvent {
    /// Its id.
    pub id: i64,
    /// The lease, which the later calls name. All events of one poll have the same.
    pub token: Uuid,
    /// Its kind.
    pub kind: String,
    /// Its payload, as it was published.
    pub payload: Option<Box<RawValue>>,
    /// Its group.
    pub group_key: Option<String>,
    /// Its correlation id.
    pub correlation_id: Option<String>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// When it was published.
    pub created_at: SystemTime,
    /// The deadline for its start.
    pub expires_at: Option<SystemTime>,
    /// When the lease runs out.
    pub lease_expires_at: SystemTime,
    /// The same text for every attempt, and different for every other event.
    pub idempotency_key: String,
    /// The W3C trace context of its publish.
    pub traceparent: Option<String>,
}

/// What became of an event that was to be retried.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetriedEvent {
    /// Whether that was its last attempt, so that it ended FAILED.
    pub failed: bool,
    /// How many attempts it has had.
    pub attempts: u32,
    /// When the next one may begin.
    pub available_at: Option<SystemTime>,
    /// Later events of its group, which have left the lease, too. Stop their work.
    pub left_too: Vec<i64>,
}

/// Leases the next ready events, lowest id first, each group in order. Empty if nothing is ready.
///
/// # Errors
/// [`Error::Invalid`] names the field and what it must be; otherwise the database's error.
pub async fn poll(
    client: &impl Queryable,
    request: &PollRequest<'_>,
) -> Result<Vec<PolledEvent>, Error> {
    let most = i32::try_from(request.most).unwrap_or(i32::MAX);
    let lease = request.lease.as_secs_f64();
    let rows = query(
        client,
        &POLL,
        &[&request.kinds, &most, &lease, &request.now],
    )
    .await;
    rows.map_err(refused)?.iter().map(polled).collect()
}

fn polled(row: &Row) -> Result<PolledEvent, Error> {
    let payload = row.get::<_, Option<JsonText>>("payload");
    let text = payload.map(|payload| String::from_utf8(payload.0));
    let text = text.transpose().ok().flatten().map(RawValue::from_string);
    let unreadable = |error| Error::Unreadable(format!("poll: payload: {error}"));
    Ok(PolledEvent {
        id: row.get("id"),
        token: row.get("token"),
        kind: row.get("kind"),
        payload: text.transpose().map_err(unreadable)?,
        group_key: row.get("group_key"),
        correlation_id: row.get("correlation_id"),
        attempt: row.get::<_, i32>("attempt").unsigned_abs(),
        max_attempts: row.get::<_, i32>("max_attempts").unsigned_abs(),
        created_at: row.get("created_at"),
        expires_at: row.get("expires_at"),
        lease_expires_at: row.get("lease_expires_at"),
        idempotency_key: row.get("idempotency_key"),
        traceparent: row.get("traceparent"),
    })
}

/// Ends an event: without errors as `COMPLETED`, else as `COMPLETED_WITH_ERRORS`. The same call again returns
/// the same status and changes nothing (C9).
///
/// # Errors
/// [`Error::LeaseLost`] if the lease does not hold the event any more; [`Error::Invalid`] if there is no such
/// event, or if an earlier event of its group comes first; otherwise the database's error.
pub async fn finalize(
    client: &impl Queryable,
    (id, token): (i64, Uuid),
    errors: &[Fault],
    result: Option<&Value>,
) -> Result<Status, Error> {
    let errors = serde_json::json!(errors).to_string();
    let result = result.map(Value::to_string);
    let rows = query(client, &FINALIZE, &[&id, &token, &errors, &result]).await;
    let rows = rows.map_err(|error| lost(error, id))?;
    let status: Option<String> = rows.first().and_then(|row| row.get(0));
    serde_json::from_value(status.into())
        .map_err(|error| Error::Unreadable(format!("finalize: {error}")))
}

/// Returns an event to the queue for another attempt: after `delay`, or after the kind's backoff. With an
/// error this attempt counts; without one it is a snooze, and the event keeps its attempt.
///
/// # Errors
/// As [`finalize`].
pub async fn retry(
    client: &impl Queryable,
    (id, token): (i64, Uuid),
    error: Option<&Fault>,
    delay: Option<Duration>,
) -> Result<RetriedEvent, Error> {
    let charged = error.is_some();
    let error = error.map(|error| serde_json::json!(error).to_string());
    let delay = delay.map(|delay| delay.as_secs_f64());
    let rows = query(client, &RETRY, &[&id, &token, &error, &delay, &charged]).await;
    let rows = rows.map_err(|error| lost(error, id))?;
    let row = rows.first().ok_or(Error::LeaseLost(id))?;
    Ok(RetriedEvent {
        failed: row.get::<_, &str>(0) == "FAILED",
        attempts: row.get::<_, i32>(1).unsigned_abs(),
        available_at: row.get(2),
        left_too: row.get(3),
    })
}

/// Keeps a lease for this long from now, 1 second to 12 hours. Returns when it runs out then, and the events
/// that it still holds. An operator may have taken or cancelled the others: stop their work.
///
/// # Errors
/// [`Error::LeaseLost`] with the id 0 if it holds no event any more; otherwise as [`finalize`].
pub async fn extend(
    client: &impl Queryable,
    token: Uuid,
    lease: Duration,
) -> Result<(SystemTime, Vec<i64>), Error> {
    let rows = query(client, &EXTEND, &[&token, &lease.as_secs_f64()]).await;
    let rows = rows.map_err(|error| lost(error, 0))?;
    let row = rows.first().ok_or(Error::LeaseLost(0))?;
    Ok((row.get(0), row.get(1)))
}

fn lost(error: Error, id: i64) -> Error {
    match error.sqlstate() {
        Some(state) if state.code() == NOT_HELD => Error::LeaseLost(id),
        _ => refused(error),
    }
}
