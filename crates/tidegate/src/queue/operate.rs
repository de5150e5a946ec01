//! Operators' verbs: replay, requeue, pause, resume, retire, unblock. The work and its audit row are one
//! function of the database each; here they are called.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use super::publish::refused;
use super::sql::Statement;
use super::{query, sql};
use crate::error::Error;
use crate::operate::{
    ForgetRequest, KindRequest, Moment, PauseReport, ReplayReport, ReplayRequest, RequeueReport,
    RequeueRequest, RetireReport, RewrapRequest, ServiceAction, ServiceChange, ServiceRequest,
    SubjectKeys, UnblockReport, UnblockRequest,
};

/// Puts logged events back as new ones (B22, F5).
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; else the database's failure.
pub async fn replay(
    client: &(impl GenericClient + Sync),
    request: &ReplayRequest,
) -> Result<ReplayReport, Error> {
    let (since, since_ago) = Moment::parts(request.since);
    let (until, until_ago) = Moment::parts(request.until);
    let expires_in = request.expires_in.as_ref().map(Duration::as_secs_f64);
    report(
        client,
        &sql::operate::REPLAY,
        &[
            &request.ids,
            &request.kind,
            &request.status,
            &since,
            &since_ago,
            &until,
            &until_ago,
            &request.reason,
            &request.actor,
            &request.limit,
            &request.dry_run,
            &request.again,
            &request.failed_handlers_only,
            &expires_in,
        ],
    )
    .await
}

/// Ends the leases of live events, so that they run at the next drain and their workers can finalize
/// nothing any more (D14).
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; else the database's failure.
pub async fn requeue(
    client: &(impl GenericClient + Sync),
    request: &RequeueRequest,
) -> Result<RequeueReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.ids, &request.reason, &request.actor];
    report(client, &sql::operate::REQUEUE, values).await
}

/// Keeps a kind from being leased; what is leased already ends as ever.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered; else the database's failure.
pub async fn pause(
    client: &(impl GenericClient + Sync),
    request: &KindRequest,
) -> Result<PauseReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &request.reason, &request.actor];
    report(client, &sql::operate::PAUSE, values).await
}

/// Lets a paused kind be leased again.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered; else the database's failure.
pub async fn resume(
    client: &(impl GenericClient + Sync),
    request: &KindRequest,
) -> Result<PauseReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &request.reason, &request.actor];
    report(client, &sql::operate::RESUME, values).await
}

/// Keeps a service from being called, so that what needs it waits; lets it be called again, one that does not answer too; or
/// limits how often it is.
///
/// # Errors
/// [`Error::Invalid`] names the field and what it must be; else the database's failure.
pub async fn change_service(
    client: &(impl GenericClient + Sync),
    request: &ServiceRequest,
) -> Result<ServiceChange, Error> {
    let (service, reason, actor) = (&request.service, &request.reason, &request.actor);
    match request.action {
        ServiceAction::Pause => {
            let statement = &sql::service::PAUSE_SERVICE;
            report(client, statement, &[service, reason, actor]).await
        }
        ServiceAction::Resume => {
            let statement = &sql::service::RESUME_SERVICE;
            report(client, statement, &[service, reason, actor]).await
        }
        ServiceAction::Limit {
            max_running,
            per_second,
        } => {
            let running = max_running.map(|count| i32::try_from(count).unwrap_or(i32::MAX));
            let values: &[&(dyn ToSql + Sync)] = &[service, &running, &per_second, reason, actor];
            report(client, &sql::service::LIMIT_SERVICE, values).await
        }
    }
}

/// Takes a kind that has no live events off the list: nobody can publish it any more. A program that handles it and is
/// migrated lists it again.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered or has live events; else the database's failure.
pub async fn retire(
    client: &(impl GenericClient + Sync),
    request: &KindRequest,
) -> Result<RetireReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &request.reason, &request.actor];
    report(client, &sql::operate::RETIRE, values).await
}

/// Acts on the first event of a group, which holds back the others.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; else the database's failure.
pub async fn unblock(
    client: &(impl GenericClient + Sync),
    request: &UnblockRequest,
) -> Result<UnblockReport, Error> {
    let how = request.how.as_str();
    let values: &[&(dyn ToSql + Sync)] =
        &[&request.group_key, &how, &request.reason, &request.actor];
    report(client, &sql::operate::UNBLOCK, values).await
}

/// Events of any of these groups or with any of these correlation ids: those in the queue, or in a partition of the log.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn find_subject(
    client: &(impl GenericClient + Sync),
    partition: Option<&str>,
    keys: &SubjectKeys,
) -> Result<Vec<i64>, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&partition, &keys.groups, &keys.correlation_ids];
    let rows = query(client, &sql::operate::FIND_SUBJECT, values).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// What came of these events, past this id: at most so many, by id.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn offspring(
    client: &(impl GenericClient + Sync),
    ids: &[i64],
    after: i64,
    most: i32,
) -> Result<Vec<i64>, Error> {
    let rows = query(client, &sql::operate::OFFSPRING, &[&ids, &after, &most]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Takes away what these events hold, and cancels those that are live; at most 1,000.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; else the database's failure.
pub async fn forget(
    client: &(impl GenericClient + Sync),
    ids: &[i64],
    request: &ForgetRequest,
) -> Result<ForgottenEvents, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&ids, &request.reason, &request.actor, &request.dry_run];
    report(client, &sql::operate::FORGET, values).await
}

/// A payload that is not sealed with the current key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsealed {
    /// Its event.
    pub id: i64,
    /// The event's kind.
    pub kind: String,
    /// The payload.
    pub payload: String,
}

/// Payloads that are not sealed with this key, in the queue or in a partition of the log: at most so many, by id.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn unsealed(
    client: &(impl GenericClient + Sync),
    partition: Option<&str>,
    key: &str,
    after: i64,
    most: i32,
) -> Result<Vec<Unsealed>, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&partition, &key, &after, &most];
    let rows = query(client, &sql::operate::UNSEALED, values).await?;
    let found = rows.iter().map(|row| Unsealed {
        id: row.get(0),
        kind: row.get(1),
        payload: row.get(2),
    });
    Ok(found.collect())
}

/// Puts these payloads in the place of the same ones under another seal, or none. Tells how many were still there.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; else the database's failure.
pub async fn rewrap(
    client: &(impl GenericClient + Sync),
    partition: Option<&str>,
    (ids, payloads): (&[i64], &[String]),
    request: &RewrapRequest,
) -> Result<u64, Error> {
    let values: &[&(dyn ToSql + Sync)] =
        &[&partition, &ids, &payloads, &request.reason, &request.actor];
    let rows = query(client, &sql::operate::REWRAP, values)
        .await
        .map_err(refused)?;
    Ok(rows
        .first()
        .map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// What became of events that were to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ForgottenEvents {
    /// Live ones that were cancelled.
    pub cancelled: u64,
    /// Those of them that a handler may have been at work on.
    pub in_hand: u64,
    /// All of which nothing is left now.
    pub forgotten: u64,
    /// Those of which nothing was left before.
    pub before: u64,
    /// Ids of no event.
    pub unknown: u64,
    /// What came of them and is not forgotten, the first 1,000.
    pub offspring: Vec<i64>,
}

async fn report<R: DeserializeOwned>(
    client: &(impl GenericClient + Sync),
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<R, Error> {
    let rows = query(client, statement, values).await.map_err(refused)?;
    let text = rows.first().map_or("", |row| row.get(0));
    serde_json::from_str(text)
        .map_err(|error| Error::Unreadable(format!("{}: {error}", statement.name)))
}
