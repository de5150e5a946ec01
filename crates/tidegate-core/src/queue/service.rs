//! Outside services: what drains report about them to each other, and the limits that all drains share.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::statement::statements;
use super::{Queryable, document, documents, first, query};
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::status::{ServiceState, ServiceStatus};

statements! {
    REPORT_SERVICE: "report_service" [TEXT, UUID, BOOL, INT4, TEXT, FLOAT8, TEXT_ARRAY, BOOL, TEXT] =
        "SELECT @tidegate.report_service($1, $2, $3, $4, $5, $6, $7, $8, $9)::text";

    CLAIM_SERVICE: "claim_service" [TEXT, UUID, INT4, INT4, INT4, FLOAT8] = "\
SELECT jsonb_build_object('places', c.places, 'starts', CASE WHEN c.starting IS NOT NULL THEN to_jsonb(c) END)::text
  FROM @tidegate.claim_service($1, $2, $3, $4, $5, $6) AS c";

    GIVE_UP: "give_up" [INT4, INT4] = "\
SELECT g.ended FROM @tidegate.give_up(-9223372036854775808, 9223372036854775807, $1, $2) AS g";

    SERVICES: "services" [] =
        "SELECT to_jsonb(s)::text FROM @tidegate.services AS s ORDER BY s.state = 'closed', s.since, s.service LIMIT 1000";
}

/// A service that has recently not answered, or whose calls are limited.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Watched {
    /// Its name, as handlers give it.
    pub service: String,
    /// Whether it may be called.
    pub state: ServiceState,
    /// Whether it has recently not answered.
    pub troubled: bool,
    /// How often it was reported to have answered.
    pub answers: i64,
    /// When it is to be tried again, in seconds from this answer.
    pub retry_in: Option<f64>,
    /// How its calls are limited.
    pub limited: Option<Limited>,
}

/// How the calls of a service are limited.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Limited {
    /// Whether the number of running events is limited.
    pub running: bool,
    /// Whether the number of starts per second is limited.
    pub starts: bool,
    /// Kinds of events that call it, as far as is known.
    pub kinds: BTreeSet<String>,
}

/// A worker's request for places and starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The service.
    pub service: String,
    /// How many of its events the worker runs.
    pub running: u32,
    /// For how many more events it wants a place.
    pub wanted: u32,
    /// How many starts it wants. A negative number gives starts back.
    pub starts: i32,
    /// How long places are kept without a renewal.
    pub length: Duration,
}

/// The answer to a claim. It grants nothing when another worker was claiming at the same moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Grant {
    /// How many places the worker has now; `None` if running is not limited.
    pub places: Option<u32>,
    /// The starts that it may use in addition.
    pub starts: Option<Starts>,
}

/// Times at which an event may start.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Starts {
    /// How many.
    #[serde(rename = "starting")]
    pub count: u32,
    /// The time until the first one or, if there is none, until it would be.
    #[serde(deserialize_with = "seconds")]
    pub first_in: Duration,
    /// The time from one to the next.
    #[serde(deserialize_with = "seconds")]
    pub apart: Duration,
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

/// What a worker has learnt of a service since its last report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceReport {
    /// The service.
    pub service: String,
    /// Whether it has answered, before the failures.
    pub answered: bool,
    /// How many calls in a row it has not answered since.
    pub failed: u32,
    /// The code of the last failure.
    pub code: Option<String>,
    /// When it wants to be called again.
    pub retry_after: Option<Duration>,
    /// Kinds of events that wait for it.
    pub kinds: Vec<String>,
    /// Whether this is the result of the one event that tried the service.
    pub probed: bool,
    /// The kind of the event that was to try the service, when its handlers have ended without a call.
    pub uncalled: Option<String>,
}

/// Reports what was learnt of a service. The answer lists all services that have recently not answered, or
/// are limited.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn report_service(
    client: &impl Queryable,
    worker: Uuid,
    report: &ServiceReport,
) -> Result<Vec<Watched>> {
    let failed = i32::try_from(report.failed).unwrap_or(i32::MAX);
    let retry_after = report.retry_after.map(|after| after.as_secs_f64());
    let rows = query(
        client,
        &REPORT_SERVICE,
        &[
            &report.service,
            &worker,
            &report.answered,
            &failed,
            &report.code,
            &retry_after,
            &report.kinds,
            &report.probed,
            &report.uncalled,
        ],
    )
    .await?;
    let answer = rows.first().map(|row| watched(row, 0)).transpose()?;
    Ok(answer.map(|(services, _)| services).unwrap_or_default())
}

/// Requests places and starts at a limited service. Never waits for a lock.
///
/// # Errors
/// When the database fails or does not answer. It may have granted the request all the same.
pub async fn claim_service(client: &impl Queryable, worker: Uuid, claim: &Claim) -> Result<Grant> {
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let values: [&(dyn ToSql + Sync); 6] = [
        &claim.service,
        &worker,
        &count(claim.running),
        &count(claim.wanted),
        &claim.starts,
        &claim.length.as_secs_f64(),
    ];
    let granted = document(client, &CLAIM_SERVICE, &values).await?;
    Ok(granted.unwrap_or_default())
}

/// Ends events that have waited for a service for longer than their kind allows, and returns their ids. Looks
/// at the first 50,000 ready events, and ends a thousand at most.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn give_up(client: &impl Queryable) -> Result<Vec<i64>> {
    let ended = first(client, &GIVE_UP, &[&50_000, &1000]).await?;
    Ok(ended.unwrap_or_default())
}

/// Kinds that have a policy of their own.
type OfKinds = Vec<(String, Policy)>;

/// What a drain receives with each lease.
#[derive(Deserialize)]
#[serde(untagged)]
enum LeaseNews {
    Service(Watched),
    Kind { kind: String, policy: Policy },
}

/// Reads the services and the kinds with a policy from a column of a row. Both are empty when there is
/// nothing to know.
pub(super) fn watched(row: &Row, column: usize) -> Result<(Vec<Watched>, OfKinds)> {
    let text: Option<String> = row.get(column);
    let Some(text) = text else {
        return Ok(<_>::default());
    };
    let entries: Vec<LeaseNews> = serde_json::from_str(&text)
        .map_err(|error| Error::Invalid(format!("services: {error}")))?;
    let (mut services, mut policies) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            LeaseNews::Service(service) => services.push(service),
            LeaseNews::Kind { kind, policy } => policies.push((kind, policy)),
        }
    }
    Ok((services, policies))
}

/// Returns the services that a drain has reported or an operator has changed, 1,000 at most. Those that are
/// not called come first.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn services(client: &impl Queryable) -> Result<Vec<ServiceStatus>> {
    documents(client, &SERVICES, &[]).await
}

/// Returns the services that are not called.
///
/// # Errors
/// As [`services`].
pub async fn services_down(client: &impl Queryable) -> Result<Vec<ServiceStatus>> {
    let mut all = services(client).await?;
    all.retain(|service| service.state != ServiceState::Closed);
    Ok(all)
}
