//! Outside services that do not answer: what drains tell each other of them, and what operators do.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::{query, sql};
use crate::error::Error;
use crate::operate::{ServiceState, ServiceStatus};
use crate::policy::Policy;

/// A service that has not answered of late, or whose calls are limited.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Watched {
    /// Its name, as handlers give it.
    pub service: String,
    /// Whether it may be called.
    pub state: ServiceState,
    /// It has not answered of late.
    pub troubled: bool,
    /// How often it was told to have answered.
    pub answers: i64,
    /// When it is to be tried again, in seconds from when this was said.
    pub retry_in: Option<f64>,
    /// How its calls are limited.
    pub limited: Option<Limited>,
}

/// In what the calls of a service are limited.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Limited {
    /// In how many run at once.
    pub running: bool,
    /// In how many start in a second.
    pub starts: bool,
    /// Kinds of events that call it, as far as is known.
    pub kinds: BTreeSet<String>,
}

/// What a worker asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Of which service.
    pub service: String,
    /// How many of its events the worker runs.
    pub running: u32,
    /// For how many more it wants a place.
    pub wanted: u32,
    /// So many starts; less than none gives them back.
    pub starts: i32,
    /// Places are lost after this without a word.
    pub length: Duration,
}

/// What it gets; nothing of it when somebody else was asking just then.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Grant {
    /// How many places it has now; `None` if running is not limited.
    pub places: Option<u32>,
    /// Which starts it may use, too.
    pub starts: Option<Starts>,
}

/// Moments at which an event may start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Starts {
    /// How many.
    pub count: u32,
    /// When the first one is or, if there is none, would be.
    pub first_in: Duration,
    /// From one to the next.
    pub apart: Duration,
}

/// What a worker has learnt of a service since its last report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceReport {
    /// Which.
    pub service: String,
    /// It has answered, before the failures.
    pub answered: bool,
    /// Calls in a row that it has not answered since.
    pub failed: u32,
    /// The last failure's code.
    pub code: Option<String>,
    /// When it wants to be asked again.
    pub retry_after: Option<Duration>,
    /// Kinds of events that wait for it.
    pub kinds: Vec<String>,
    /// This is what became of the one event that was to be tried.
    pub probed: bool,
}

/// Tells what was learnt of a service; answered by all that have not answered of late, or are limited.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn report_service(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    report: &ServiceReport,
) -> Result<Vec<Watched>, Error> {
    let failed = i32::try_from(report.failed).unwrap_or(i32::MAX);
    let retry_after = report.retry_after.map(|after| after.as_secs_f64());
    let rows = query(
        client,
        &sql::service::REPORT_SERVICE,
        &[
            &report.service,
            &worker,
            &report.answered,
            &failed,
            &report.code,
            &retry_after,
            &report.kinds,
            &report.probed,
        ],
    )
    .await?;
    let told = rows.first().map(|row| watched(row, 0)).transpose()?;
    Ok(told.map(|(services, _)| services).unwrap_or_default())
}

/// Asks for places and starts. Never waits for a lock.
///
/// # Errors
/// When the database fails or does not answer; what was asked for may then still have been given.
pub async fn claim_service(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    claim: &Claim,
) -> Result<Grant, Error> {
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let rows = query(
        client,
        &sql::service::CLAIM_SERVICE,
        &[
            &claim.service,
            &worker,
            &count(claim.running),
            &count(claim.wanted),
            &claim.starts,
            &claim.length.as_secs_f64(),
        ],
    )
    .await?;
    Ok(rows.first().map(granted).unwrap_or_default())
}

fn granted(row: &Row) -> Grant {
    let count = |column: usize| -> Option<u32> {
        let count: Option<i32> = row.get(column);
        count.map(|count| count.try_into().unwrap_or_default())
    };
    let seconds = |column: usize| {
        let seconds: Option<f64> = row.get(column);
        Duration::try_from_secs_f64(seconds.unwrap_or_default().max(0.0)).unwrap_or_default()
    };
    Grant {
        places: count(0),
        starts: count(1).map(|count| Starts {
            count,
            first_in: seconds(2),
            apart: seconds(3),
        }),
    }
}

/// Kinds that have a policy of their own.
type OfKinds = Vec<(String, Policy)>;

/// What a drain is told with each lease.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    Service(Watched),
    Kind { kind: String, policy: Policy },
}

/// The services in a column of a row, and the kinds that have a policy; none when there is nothing to know.
pub(super) fn watched(row: &Row, column: usize) -> Result<(Vec<Watched>, OfKinds), Error> {
    let text: Option<String> = row.get(column);
    let Some(text) = text else {
        return Ok(<_>::default());
    };
    let told: Vec<Told> = serde_json::from_str(&text)
        .map_err(|error| Error::Invalid(format!("services: {error}")))?;
    let (mut services, mut policies) = (Vec::new(), Vec::new());
    for told in told {
        match told {
            Told::Service(service) => services.push(service),
            Told::Kind { kind, policy } => policies.push((kind, policy)),
        }
    }
    Ok((services, policies))
}

/// All services that somebody has told something of; first those that are not called.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn services(client: &(impl GenericClient + Sync)) -> Result<Vec<ServiceStatus>, Error> {
    let rows = query(client, &sql::service::SERVICES, &[]).await?;
    let read = rows.iter().map(|row| serde_json::from_str(row.get(0)));
    read.collect::<Result<_, _>>()
        .map_err(|error| Error::Invalid(format!("services: {error}")))
}

/// Those that are not called.
///
/// # Errors
/// As [`services`].
pub async fn services_down(
    client: &(impl GenericClient + Sync),
) -> Result<Vec<ServiceStatus>, Error> {
    let mut all = services(client).await?;
    all.retain(|service| service.state != ServiceState::Closed);
    Ok(all)
}
