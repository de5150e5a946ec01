//! Schedules as operators see and change them.

use std::time::Duration;

use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use super::operate::report;
use crate::error::Error;
use crate::operate::{
    ForgetRequest, ScheduleAction, ScheduleChange, ScheduleRequest, ScheduleStatus,
};
use crate::queue::publish::refused;
use crate::queue::{query, sql};

/// Returns schedules: those that have stopped first, then the others by their next slot.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn schedules(
    client: &(impl GenericClient + Sync),
    limit: u32,
) -> Result<Vec<ScheduleStatus>, Error> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = query(client, &sql::schedule::SCHEDULES, &[&limit]).await?;
    let read = rows.iter().map(|row| serde_json::from_str(row.get(0)));
    read.collect::<Result<_, _>>()
        .map_err(|error| Error::Unreadable(format!("schedules: {error}")))
}

/// Changes a schedule as an operator requests.
///
/// # Errors
/// [`Error::Invalid`] names the field and what it must be; otherwise the database's error.
pub async fn change_schedule(
    client: &(impl GenericClient + Sync),
    request: &ScheduleRequest,
    payload: Option<&str>,
) -> Result<ScheduleChange, Error> {
    let (name, reason, actor) = (&request.name, &request.reason, &request.actor);
    let statement = match &request.action {
        ScheduleAction::Set(asked) => {
            let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
            let values: &[&(dyn ToSql + Sync)] = &[
                name,
                &asked.kind,
                &payload,
                &asked.cron,
                &seconds(asked.every),
                &asked.time_zone.as_deref().unwrap_or("UTC"),
                &asked.group,
                &seconds(asked.start_within),
                &asked.catch_up.as_str(),
                reason,
                actor,
            ];
            return report(client, &sql::schedule::SET_SCHEDULE, values).await;
        }
        ScheduleAction::Pause => &sql::schedule::PAUSE_SCHEDULE,
        ScheduleAction::Resume => &sql::schedule::RESUME_SCHEDULE,
        ScheduleAction::Remove => &sql::schedule::REMOVE_SCHEDULE,
        ScheduleAction::Run => &sql::schedule::RUN_SCHEDULE,
    };
    report(client, statement, &[name, reason, actor]).await
}

/// Removes the operators' schedules of these groups, or counts them.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
pub async fn forget_schedules(
    client: &(impl GenericClient + Sync),
    groups: &[String],
    request: &ForgetRequest,
) -> Result<u64, Error> {
    let values: &[&(dyn ToSql + Sync)] =
        &[&groups, &request.reason, &request.actor, &request.dry_run];
    let rows = query(client, &sql::schedule::FORGET_SCHEDULES, values).await;
    let rows = rows.map_err(refused)?;
    Ok(rows
        .first()
        .map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}
