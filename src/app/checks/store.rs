//! Owns the SQL of the AI checks' table, one function for each statement. The migration defines
//! `checks.take_place` and explains what it requires from Postgres.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tidegate::{Context, Error, HandlerError};
use tidegate_core::connect::Queryable;
use tidegate_core::queue::{document, execute, query};
use tidegate_core::statements;
use tokio_postgres::types::ToSql;

use super::IssuingCheck;

statements! {
    /// Stores a planned check. A message may change the due time, and may reopen a check that was overdue.
    PLAN: "checks.plan" [TEXT, TEXT, TIMESTAMPTZ] = "\
INSERT INTO checks.issuing_check AS i (trigger_id, application_id, work_statusom, due_at)
VALUES ($1, $2, 'PLANNED', $3)
    ON CONFLICT (trigger_id, application_id) DO UPDATE
   SET due_at = excluded.due_at, updated_at = clock_timestamp(),
       work_statusom = CASE WHEN i.work_statusom = 'OVERDUE' THEN 'PLANNED'
                            ELSE i.work_statusom END";

    STANDING: "checks.standing" [TEXT, TEXT] = "\
SELECT to_jsonb(CASE WHEN work_statusom = 'DONE' THEN 'answered'
                     WHEN due_at <= clock_timestamp() THEN 'overdue'
                     ELSE 'open' END)::text
  FROM checks.issuing_check WHERE trigger_id = $1 AND application_id = $2";

    TAKE_PLACE: "checks.take_place" [TEXT, TEXT, INT4, FLOAT8] = "SELECT at, own FROM checks.take_place($1, $2, $3, $4) WHERE NOT taken";

    /// Stores an answer. The first answer is kept.
    ANSWER: "checks.answer" [TEXT, TEXT, TEXT] = "\
INSERT INTO checks.issuing_check AS i (trigger_id, application_id, work_statusom, answer, answered_at)
VALUES ($1, $2, 'DONE', $3::text::jsonb, clock_timestamp())
    ON CONFLICT (trigger_id, application_id) DO UPDATE
   SET work_statusom = 'DONE', place_ends_at = NULL, updated_at = clock_timestamp(),
       answer = coalesce(i.answer, excluded.answer), answered_at = coalesce(i.answered_at, excluded.answered_at)";

    /// Ends a check as overdue, or ends its place without an answer.
    LEAVE: "checks.leave" [TEXT, TEXT, TEXT] = "\
UPDATE checks.issuing_check
   SET work_statusom = $3, place_ends_at = NULL, updated_at = clock_timestamp()
 WHERE trigger_id = $1 AND application_id = $2
   AND CASE $3 WHEN 'OVERDUE' THEN work_statusom <> 'DONE' ELSE work_statusom = 'NEW' END";
}

/// The state of a check before the service is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Standing {
    /// It has an answer.
    Answered,
    /// Its due time has passed, by the database's clock.
    Overdue,
    /// It must be performed. A check without a row is open too, because nothing says that it is
    /// overdue.
    Open,
}

/// Stores a check to be performed, with its due time.
pub(super) async fn plan(
    client: &impl Queryable,
    check: &IssuingCheck,
    due_at: Option<SystemTime>,
) -> Result<(), Error> {
    let params: [&(dyn ToSql + Sync); 3] = [&check.trigger_id, &check.application_id, &due_at];
    execute(client, &PLAN, &params).await
}

pub(super) async fn standing(
    ctx: &Context,
    check: &IssuingCheck,
) -> Result<Standing, HandlerError> {
    let client = ctx.connection().await?;
    let params: [&(dyn ToSql + Sync); 2] = [&check.trigger_id, &check.application_id];
    let standing = document(&*client, &STANDING, &params).await?;
    Ok(standing.unwrap_or(Standing::Open))
}

/// Makes the check NEW, unless `places` other checks already are. Runs outside the event's transaction: other
/// checks must see at once that this check is NEW. Without a place, returns the database's time, and whether
/// another check of ours has one.
pub(super) async fn take_place(
    ctx: &Context,
    check: &IssuingCheck,
    places: i32,
    held_for: Duration,
) -> Result<Option<(SystemTime, bool)>, HandlerError> {
    let client = ctx.connection().await?;
    let held_for = held_for.as_secs_f64();
    let params: [&(dyn ToSql + Sync); 4] =
        [&check.trigger_id, &check.application_id, &places, &held_for];
    let full = query(&*client, &TAKE_PLACE, &params).await?;
    Ok(full.first().map(|row| (row.get(0), row.get(1))))
}

/// Stores the AI service's answer and makes the check DONE.
pub(super) async fn answer(
    client: &impl Queryable,
    check: &IssuingCheck,
    answer: &str,
) -> Result<(), Error> {
    let params: [&(dyn ToSql + Sync); 3] = [&check.trigger_id, &check.application_id, &answer];
    execute(client, &ANSWER, &params).await
}

/// Ends a check as OVERDUE, or releases its place without an answer: it is PLANNED.
pub(super) async fn leave(
    client: &impl Queryable,
    check: &IssuingCheck,
    state: &str,
) -> Result<(), Error> {
    let params: [&(dyn ToSql + Sync); 3] = [&check.trigger_id, &check.application_id, &state];
    execute(client, &LEAVE, &params).await
}
