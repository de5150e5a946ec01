//! The operators' requests: replay, requeue, pause, resume, retire, unblock. For each, one function of the
//! database does the work and writes the audit row. This module calls these functions.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient};

use crate::error::Error;
use crate::event::NewEvent;
use crate::operate::{
    Change, ForgetRequest, KindRequest, Moment, PauseReport, PolicyReport, PolicyRequest,
    ReplayReport, ReplayRequest, RequeueReport, RequeueRequest, RetireReport, Selection,
    ServiceAction, ServiceChange, ServiceRequest, Skipped, SubjectKeys, UnblockReport,
    UnblockRequest,
};
use crate::queue::publish::{Published, publish, refused};
use crate::queue::sql::Statement;
use crate::queue::{query, sql};

/// Publishes finished events again as new ones (B22, F5).
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
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

/// Ends the leases of live events. The events run at the next drain, and their workers can no longer finalize
/// anything (D14).
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
pub async fn requeue(
    client: &(impl GenericClient + Sync),
    request: &RequeueRequest,
) -> Result<RequeueReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.ids, &request.reason, &request.actor];
    report(client, &sql::operate::REQUEUE, values).await
}

/// A page of a selection: at most `most` events after an id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page<'a> {
    /// Which events are selected.
    pub selection: Selection<'a>,
    /// Only higher ids.
    pub after: i64,
    /// The most events, 1 to 10,000.
    pub most: u32,
}

/// The result for the events of a page.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChangedPage {
    /// How many events the page had.
    pub matched: u64,
    /// How many were changed. `ids` has the first 100 of them.
    pub changed: u64,
    pub ids: Vec<i64>,
    /// How many events the page had of each kind.
    pub kinds: BTreeMap<String, u64>,
    /// How many cancelled events a handler may have been working on.
    pub begun: u64,
    /// Events that another transaction had locked at that moment, which were skipped; all of them.
    pub missed: Vec<i64>,
    /// How many were not rescheduled because a worker has leased them. The first 100 ids are below.
    pub in_hand: u64,
    pub in_hand_ids: Vec<i64>,
    /// How many were not rescheduled because they would hold up their groups. The first 100 ids are below.
    pub too_late: u64,
    pub too_late_ids: Vec<i64>,
    /// How many were rescheduled and will expire before they start. The first 100 ids are below.
    pub past_deadline: u64,
    pub past_deadline_ids: Vec<i64>,
    /// Ids that name no live event.
    pub skipped: Vec<Skipped>,
    /// The id after which the next page begins; `None` when this was the last page.
    pub next: Option<i64>,
}

/// Cancels or reschedules a page of live events, in one transaction with its audit row.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
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

/// Publishes an event for an operator, in a transaction with its audit row. A duplicate is not recorded.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
pub(crate) async fn publish_by_hand(
    client: &mut Client,
    event: &NewEvent,
    reason: &str,
    actor: Option<&str>,
) -> Result<Published, Error> {
    let failed = |stage| move |source| Error::Database { stage, source };
    let transaction = client.transaction().await.map_err(failed("begin"))?;
    let published = publish(&transaction, event).await?;
    if published.created {
        let values: &[&(dyn ToSql + Sync)] = &[&published.id, &reason, &actor];
        let recorded = query(&transaction, &sql::operate::RECORD_PUBLISH, values).await;
        recorded.map_err(refused)?;
    }
    transaction.commit().await.map_err(failed("commit"))?;
    Ok(published)
}

/// Pauses a kind: its events are no longer leased. Events that are already leased end as usual.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered; otherwise the database's error.
pub async fn pause(
    client: &(impl GenericClient + Sync),
    request: &KindRequest,
) -> Result<PauseReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &request.reason, &request.actor];
    report(client, &sql::operate::PAUSE, values).await
}

/// Resumes a paused kind.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered; otherwise the database's error.
pub async fn resume(
    client: &(impl GenericClient + Sync),
    request: &KindRequest,
) -> Result<PauseReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &request.reason, &request.actor];
    report(client, &sql::operate::RESUME, values).await
}

/// Stops calls of a service, so that events which need it wait. Or allows calls again, even of a service that
/// does not answer. Or limits the calls.
///
/// # Errors
/// [`Error::Invalid`] names the field and what it must be; otherwise the database's error.
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

/// Removes a kind without live events from the registered kinds, so it can no longer be published. A
/// migration of a program that handles the kind registers it again.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered or has live events; otherwise the database's error.
pub async fn retire(
    client: &(impl GenericClient + Sync),
    request: &KindRequest,
) -> Result<RetireReport, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &request.reason, &request.actor];
    report(client, &sql::operate::RETIRE, values).await
}

/// Changes how events of a kind are handled, or returns how they are.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered, or names the field that is out of range; otherwise the
/// database's error.
pub async fn set_policy(
    client: &(impl GenericClient + Sync),
    request: &PolicyRequest,
) -> Result<PolicyReport, Error> {
    let change = request.change()?.to_string();
    let values: &[&(dyn ToSql + Sync)] = &[&request.kind, &change, &request.reason, &request.actor];
    report(client, &sql::operate::SET_POLICY, values).await
}

/// Retries, skips or cancels the first event of a group, which holds back the others.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
pub async fn unblock(
    client: &(impl GenericClient + Sync),
    request: &UnblockRequest,
) -> Result<UnblockReport, Error> {
    let how = request.how.as_str();
    let values: &[&(dyn ToSql + Sync)] =
        &[&request.group_key, &how, &request.reason, &request.actor];
    report(client, &sql::operate::UNBLOCK, values).await
}

/// Returns the events of any of these groups or with any of these correlation ids, from the queue or from a
/// partition of the log.
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

/// Returns the follow-ups of these events after this id: at most `most`, ordered by id.
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

/// Removes the content of these events, and cancels those that are live; at most 1,000. Their keys leave the
/// audit, and so do `keys`.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
pub async fn forget(
    client: &(impl GenericClient + Sync),
    ids: &[i64],
    keys: &SubjectKeys,
    request: &ForgetRequest,
) -> Result<ForgottenEvents, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[
        &ids,
        &request.reason,
        &request.actor,
        &request.dry_run,
        &keys.groups,
        &keys.correlation_ids,
    ];
    report(client, &sql::operate::FORGET, values).await
}

/// The result for events that were to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ForgottenEvents {
    /// How many live events were cancelled.
    pub cancelled: u64,
    /// How many of them a handler may have been working on.
    pub in_hand: u64,
    /// How many events have no content left now.
    pub forgotten: u64,
    /// How many of them had no content before.
    pub before: u64,
    /// How many ids name no event.
    pub unknown: u64,
    /// The first 1,000 follow-ups that are not forgotten.
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
