//! Owns the SQL of the AI checks' table, one function for each statement. The migration defines
//! `checks.take_place` and explains what it requires from Postgres.

use std::time::{Duration, SystemTime};

use tokio_postgres::{Client, Row};

use super::IssuingCheck;
use crate::app::sql::{self, Param};
use tidegate::{Context, Error, HandlerError, Verdicts};

/// Stores a planned check. A message may change the due time, and may reopen a check that ended
/// without an answer.
const PLAN: &str = "\
INSERT INTO checks.issuing_check AS i (trigger_id, application_id, work_statusom, due_at)
VALUES ($1, $2, 'PLANNED', $3)
    ON CONFLICT (trigger_id, application_id) DO UPDATE
   SET due_at = excluded.due_at, updated_at = clock_timestamp(),
       work_statusom = CASE WHEN i.work_statusom IN ('OVERDUE', 'REFUSED') THEN 'PLANNED'
                            ELSE i.work_statusom END";

const STANDING: &str = "\
SELECT CASE WHEN work_statusom = 'DONE' THEN 'answered'
            WHEN due_at <= clock_timestamp() THEN 'overdue'
            ELSE 'open' END
  FROM checks.issuing_check WHERE trigger_id = $1 AND application_id = $2";

const TAKE_PLACE: &str = "SELECT taken, at FROM checks.take_place($1, $2, $3, $4)";

/// Stores an answer. The first answer is kept.
const ANSWER: &str = "\
INSERT INTO checks.issuing_check AS i (trigger_id, application_id, work_statusom, answer, answered_at)
VALUES ($1, $2, 'DONE', $3::text::jsonb, clock_timestamp())
    ON CONFLICT (trigger_id, application_id) DO UPDATE
   SET work_statusom = 'DONE', place_ends_at = NULL, updated_at = clock_timestamp(),
       answer = coalesce(i.answer, excluded.answer), answered_at = coalesce(i.answered_at, excluded.answered_at)";

const END_OVERDUE: &str = "\
UPDATE checks.issuing_check
   SET work_statusom = 'OVERDUE', place_ends_at = NULL, updated_at = clock_timestamp()
 WHERE trigger_id = $1 AND application_id = $2 AND work_statusom <> 'DONE'";

const LEAVE_PLACE: &str = "\
UPDATE checks.issuing_check
   SET work_statusom = $3, place_ends_at = NULL, updated_at = clock_timestamp()
 WHERE trigger_id = $1 AND application_id = $2 AND work_statusom = 'NEW'";

/// The state of a check before the service is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has an answer.
    Answered,
    /// Its due time has passed, by the database's clock.
    Overdue,
    /// It must be performed. A check without a row is open too, because nothing says that it is
    /// overdue.
    Open,
}

/// The decision of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// The check is now NEW.
    Taken,
    /// The maximum number of checks were already NEW at this time of the database's clock.
    Full { at: SystemTime },
}

/// The state of a check that leaves its place without an answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Left {
    /// To be performed again.
    Planned,
    /// The AI service refuses it.
    Refused,
}

/// Stores a check to be performed, with its due time.
pub(super) async fn plan(
    client: &Client,
    check: &IssuingCheck,
    due_at: Option<SystemTime>,
) -> Result<(), Error> {
    query(client, "checks.plan", PLAN, check, &[&due_at]).await?;
    Ok(())
}

pub(super) async fn standing(
    ctx: &Context,
    check: &IssuingCheck,
) -> Result<Standing, HandlerError> {
    let client = ctx.connection().await?;
    let rows = query(&client, "checks.standing", STANDING, check, &[])
        .await
        .retryable()?;
    Ok(match rows.first().map(|row| row.get(0)) {
        Some("answered") => Standing::Answered,
        Some("overdue") => Standing::Overdue,
        _ => Standing::Open,
    })
}

/// Makes the check NEW, unless `places` other checks already are. Runs outside the event's transaction: other
/// checks must see at once that this check is NEW.
pub(super) async fn take_place(
    ctx: &Context,
    check: &IssuingCheck,
    places: i32,
    held_for: Duration,
) -> Result<Gate, HandlerError> {
    let client = ctx.connection().await?;
    let more: [&dyn Param; 2] = [&places, &held_for.as_secs_f64()];
    let rows = query(&client, "checks.take_place", TAKE_PLACE, check, &more)
        .await
        .retryable()?;
    let row = rows
        .first()
        .ok_or_else(|| Error::Unreadable("checks.take_place: no row".to_owned()))
        .retryable()?;
    Ok(if row.get(0) {
        Gate::Taken
    } else {
        Gate::Full { at: row.get(1) }
    })
}

/// Stores the AI service's answer and makes the check DONE.
pub(super) async fn answer(
    client: &Client,
    check: &IssuingCheck,
    answer: &str,
) -> Result<(), Error> {
    query(client, "checks.answer", ANSWER, check, &[&answer]).await?;
    Ok(())
}

/// Ends an overdue check.
pub(super) async fn end_overdue(client: &Client, check: &IssuingCheck) -> Result<(), Error> {
    query(client, "checks.end_overdue", END_OVERDUE, check, &[]).await?;
    Ok(())
}

/// Releases a place without an answer.
pub(super) async fn leave_place(
    ctx: &Context,
    check: &IssuingCheck,
    left: Left,
) -> Result<(), HandlerError> {
    let client = ctx.connection().await?;
    let status = match left {
        Left::Planned => "PLANNED",
        Left::Refused => "REFUSED",
    };
    let left = query(
        &client,
        "checks.leave_place",
        LEAVE_PLACE,
        check,
        &[&status],
    )
    .await;
    left.map(drop).retryable()
}

/// Sends a statement about one check, whose ids are `$1` and `$2`.
async fn query(
    client: &Client,
    stage: &'static str,
    sql: &str,
    check: &IssuingCheck,
    more: &[&dyn Param],
) -> Result<Vec<Row>, Error> {
    let ids: [&dyn Param; 2] = [&check.trigger_id, &check.application_id];
    sql::query(client, stage, sql, &[&ids, more].concat()).await
}
