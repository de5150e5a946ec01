//! Handling events without a drain, for a program with its own loop: lease a few events, handle them, and end
//! each. These are the SQL functions that programs in other languages call.

use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::finalize::NOT_HELD;
use super::lease::JsonText;
use super::publish::refused;
use super::read::JobStatus;
use super::statement::statements;
use super::{Queryable, query, text};
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::json::Json;

statements! {
    POLL: "poll" [TEXT_ARRAY, INT4, FLOAT8, TIMESTAMPTZ] =
        "SELECT * FROM @tidegate.poll($1, $2, make_interval(secs => $3), $4)";

    FINALIZE: "pull_finalize" [INT8, UUID, TEXT, TEXT] =
        "SELECT @tidegate.finalize($1, $2, $3::jsonb, $4::jsonb)";

    RETRY: "pull_retry" [INT8, UUID, TEXT, FLOAT8, BOOL] = "\
SELECT r.available_at, r.left_too FROM @tidegate.retry($1, $2, $3::jsonb, make_interval(secs => $4), $5) AS r";

    EXTEND: "extend" [UUID, FLOAT8] =
        "SELECT e.lease_expires_at, e.held FROM @tidegate.extend($1, make_interval(secs => $2)) AS e";
}

/// What a program with its own loop leases: [`PollRequest::poll`]. Programs in other languages call the SQL
/// function `tidegate.poll`.
#[derive(Debug, Clone, Copy)]
pub struct PollRequest<'a> {
    /// The kinds of events, 1 to 100 that are registered.
    pub kinds: &'a [&'a str],
    /// The most events, 1 to 1,000.
    pub most: u32,
    /// How long they are leased, 1 second to 12 hours. End them by then, or call [`PolledEvent::extend`].
    pub lease: Duration,
    /// The time that decides what is due, what has expired and which poller has died, and from which the
    /// lease runs. For tests; only the owner of the schema may set it.
    pub now: Option<SystemTime>,
}

/// An event that [`PollRequest::poll`] has leased. End it with [`PolledEvent::finalize`] or return it with
/// [`PolledEvent::retry`].
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

impl PollRequest<'_> {
    /// Leases the next ready events, lowest id first, each group in order. Empty if nothing is ready. Commit
    /// before the work begins.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what it must be; otherwise the database's error.
    pub async fn poll(&self, client: &impl Queryable) -> Result<Vec<PolledEvent>> {
        let most = i32::try_from(self.most).unwrap_or(i32::MAX);
        let lease = self.lease.as_secs_f64();
        let rows = query(client, &POLL, &[&self.kinds, &most, &lease, &self.now]).await;
        rows.map_err(refused)?.iter().map(PolledEvent::of).collect()
    }
}

impl PolledEvent {
    fn of(row: &Row) -> Result<Self> {
        let payload = row.get::<_, Option<JsonText>>("payload");
        let text = payload.map(|payload| String::from_utf8(payload.0));
        let text = text.transpose().ok().flatten().map(RawValue::from_string);
        let unreadable = |error| Error::Unreadable(format!("poll: payload: {error}"));
        Ok(Self {
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

    /// Ends the event, in the caller's transaction if there is one: without errors as `COMPLETED`, else as
    /// `COMPLETED_WITH_ERRORS`. The same call again returns the same status and changes nothing (C9).
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the lease does not hold the event any more; [`Error::Invalid`] if an earlier
    /// event of its group comes first; otherwise the database's error.
    pub async fn finalize(
        &self,
        client: &impl Queryable,
        errors: &[Fault],
        result: Option<&Json>,
    ) -> Result<JobStatus> {
        let errors = text("errors", errors)?;
        let result = result.map(Json::get);
        let values: &[&(dyn ToSql + Sync)] = &[&self.id, &self.token, &errors, &result];
        let rows = query(client, &FINALIZE, values).await;
        let rows = rows.map_err(|error| self.lost(error))?;
        let status = rows.first().and_then(|row| row.get::<_, Option<&str>>(0));
        Ok(match status {
            Some("COMPLETED") => JobStatus::Processed,
            Some("COMPLETED_WITH_ERRORS") => JobStatus::Failed,
            _ => JobStatus::FailedWithError,
        })
    }

    /// Returns the event to the queue for another attempt: after `delay`, or after the kind's backoff. With
    /// an error this attempt counts; without one it is a snooze, and the event keeps its attempt. Returns
    /// when the next attempt may begin, `None` if that was the last one and the event ended FAILED, and the
    /// later events of its group, which have left the lease, too: stop their work.
    ///
    /// # Errors
    /// As [`PolledEvent::finalize`].
    pub async fn retry(
        &self,
        client: &impl Queryable,
        error: Option<&Fault>,
        delay: Option<Duration>,
    ) -> Result<(Option<SystemTime>, Vec<i64>)> {
        let charged = error.is_some();
        let error = error.map(|error| text("error", error)).transpose()?;
        let delay = delay.map(|delay| delay.as_secs_f64());
        let values: &[&(dyn ToSql + Sync)] = &[&self.id, &self.token, &error, &delay, &charged];
        let rows = query(client, &RETRY, values).await;
        let rows = rows.map_err(|error| self.lost(error))?;
        let row = rows.first().ok_or(Error::LeaseLost(self.id))?;
        Ok((row.get(0), row.get(1)))
    }

    /// Keeps the lease of this event, and of all others of the same poll, for this long from now, 1 second to
    /// 12 hours. Returns when it runs out then, and the events that it still holds. An operator may have
    /// taken or cancelled the others: stop their work.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it holds no event any more; otherwise as [`PolledEvent::finalize`].
    pub async fn extend(
        &self,
        client: &impl Queryable,
        lease: Duration,
    ) -> Result<(SystemTime, Vec<i64>)> {
        let rows = query(client, &EXTEND, &[&self.token, &lease.as_secs_f64()]).await;
        let rows = rows.map_err(|error| self.lost(error))?;
        let row = rows.first().ok_or(Error::LeaseLost(self.id))?;
        Ok((row.get(0), row.get(1)))
    }

    fn lost(&self, error: Error) -> Error {
        match error.sqlstate() {
            Some(state) if state.code() == NOT_HELD => Error::LeaseLost(self.id),
            _ => refused(error),
        }
    }
}
