//! Operators' verbs: replay, requeue, pause, resume, retire, unblock. The work and its audit row are one
//! function of the database each; here they are called.

use std::collections::BTreeMap;
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
    Change, ForgetRequest, KindRequest, Moment, PauseReport, PolicyReport, PolicyRequest,
    ReplayReport, ReplayRequest, RequeueReport, RequeueRequest, RetireReport, RewrapRequest,
    Selection, ServiceAction, ServiceChange, ServiceRequest, Skipped, SubjectKeys, UnblockReport,
    UnblockRequest,
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
            &request.code,
            &request.digest,
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

/// A page of a selection: the events behind an id, at most so many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page<'a> {
    /// Which events are meant.
    pub selection: Selection<'a>,
    /// Only higher ids.
    pub after: i64,
    /// At most this many, 1 to 10,000.
    pub most: u32,
}

/// What became of the events of a page.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChangedPage {
    /// How many there were.
    pub matched: u64,
    /// Those that were changed, the first 100 of their ids below.
    pub changed: u64,
    pub ids: Vec<i64>,
    /// How many there were of each kind.
    pub kinds: BTreeMap<String, u64>,
    /// Cancelled ones that a handler may have been at work on.
    pub begun: u64,
    /// Locked by somebody else at this very moment, and left alone; all of them.
    pub missed: Vec<i64>,
    /// Not rescheduled, for a worker has them, the first 100 below.
    pub in_hand: u64,
    pub in_hand_ids: Vec<i64>,
    /// Not rescheduled, for they would hold up their groups, the first 100 below.
    pub too_late: u64,
    pub too_late_ids: Vec<i64>,
    /// Rescheduled, and will expire before they start, the first 100 below.
    pub past_deadline: u64,
    pub past_deadline_ids: Vec<i64>,
    /// Ids that are no live events.
    pub skipped: Vec<Skipped>,
    /// Behind which id the next page begins; `None` when this was the last.
    pub next: Option<i64>,
}

/// Cancels or reschedules a page of live events, in one transaction with its audit row.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; else the database's failure.
pub(crate) async fn change(
    client: &(impl GenericClient + Sync),
    change: &Change<'_>,
    page: &Page<'_>,
) -> Result<ChangedPage, Error> {
    let asked = &page.selection;
    let (since, since_ago) = Moment::parts(asked.since);
    let (until, until_ago) = Moment::parts(asked.until);
    let status = asked.status.map(str::to_uppercase);
    let most = i32::try_from(page.most).unwrap_or(i32::MAX);
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![
        &asked.ids,
        &asked.kind,
        &asked.dedup_key,
        &asked.correlation_id,
        &asked.group,
        &status,
        &since,
        &since_ago,
        &until,
        &until_ago,
        &asked.reason,
        &asked.actor,
        &most,
        &page.after,
        &asked.dry_run,
    ];
    let request = match change {
        Change::Cancel(_) => return report(client, &sql::operate::CANCEL, &values).await,
        Change::Reschedule(request) => request,
    };
    let (at, from_now) = request.start();
    let expires_in = request.expires_in.map(|time| time.as_secs_f64());
    let times: [&(dyn ToSql + Sync); 5] = [
        &at,
        &from_now,
        &request.expires_at,
        &expires_in,
        &request.no_deadline,
    ];
    values.extend(times);
    report(client, &sql::operate::RESCHEDULE, &values).await
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

/// Says how events of a kind are handled, or tells it.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered, or names the field that is out of range; else the database's failure.
pub async fn set_policy(
    client: &(impl GenericClient + Sync),
    request: &PolicyRequest,
) -> Result<PolicyReport, Error> {
    let change = request.change()?.to_string();
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &change, &request.reason, &request.actor];
    report(client, &sql::operate::SET_POLICY, values).await
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

pub(super) async fn report<R: DeserializeOwned>(
    client: &(impl GenericClient + Sync),
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<R, Error> {
    let rows = query(client, statement, values).await.map_err(refused)?;
    let text = rows.first().map_or("", |row| row.get(0));
    serde_json::from_str(text)
        .map_err(|error| Error::Unreadable(format!("{}: {error}", statement.name)))
}
