//! Outside services that do not answer: what drains tell each other of them, and what operators do.

use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::{query, sql};
use crate::error::Error;
use crate::operate::{ServiceState, ServiceStatus};

/// A service that has not answered of late.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Troubled {
    /// Its name, as handlers give it.
    pub service: String,
    /// Whether it may be called.
    pub state: ServiceState,
    /// How often it was told to have answered.
    pub answers: i64,
    /// When it is to be tried again, in seconds from when this was said.
    pub retry_in: Option<f64>,
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

/// Tells what was learnt of a service; answered by all that have not answered of late.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn report_service(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    report: &ServiceReport,
) -> Result<Vec<Troubled>, Error> {
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
    rows.first().map_or(Ok(Vec::new()), |row| troubled(row, 0))
}

/// The services in a column of a row; none when all answer.
pub(super) fn troubled(row: &Row, column: usize) -> Result<Vec<Troubled>, Error> {
    let text: Option<String> = row.get(column);
    let read = text.map(|text| serde_json::from_str(&text)).transpose();
    read.map(Option::unwrap_or_default)
        .map_err(|error| Error::Invalid(format!("services: {error}")))
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
