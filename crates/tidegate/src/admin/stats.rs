//! The verb `stats`: the figures of the queue. The command line calls it `status`.

use serde_json::Value;

use super::prelude::*;
use super::{ExpiringKind, ServiceStatus};
use crate::look::rows;
use crate::queue;

/// Show the size, age, throughput and failures of the queue, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
pub struct StatsRequest {}

/// Queue figures, of the whole queue and by kind (C13).
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "stats")]
#[non_exhaustive]
pub struct StatsReport {
    /// Live events.
    pub backlog: u64,
    /// Age of the oldest live event.
    pub oldest_age_ms: u64,
    /// Leased events.
    pub in_flight: u64,
    /// Events that wait for a planned time or for another attempt.
    pub delayed: u64,
    /// Leased events whose lease has run out because their worker died or froze.
    pub stuck: u64,
    /// Groups whose first event waits while other events wait behind it.
    pub blocked_groups: u64,
    /// Events that ended `COMPLETED_WITH_ERRORS` or FAILED in the last day.
    pub dead_letters_last_day: u64,
    /// Events that ended in the last hour.
    pub finished_last_hour: u64,
    /// Events that ended in the last minute, per second.
    pub throughput_per_second: f64,
    /// Events that will pass their start-before deadline before they start (B13), soonest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expiring: Vec<ExpiringKind>,
    /// Services that are not called, with the events that wait for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services_down: Vec<ServiceStatus>,
    /// One object per kind, with the columns of the view `tidegate.stats`.
    #[schemars(with = "Vec<rows::KindStats>")]
    pub kinds: Vec<Value>,
}

impl Verb for StatsRequest {
    const NAME: &'static str = "stats";
    const CHANGES: bool = false;

    type Report = StatsReport;

    fn on_all(&self, service: &Service, _: Option<Duration>) -> Result<Option<Duration>, Error> {
        Ok(Some(service.options.budget))
    }

    async fn run(&self, service: &Service) -> Result<StatsReport, Error> {
        let client = service.looking().await?;
        let kinds = queue::stats(&client).await?;
        let overview = queue::overview(&client).await?;
        let expiring = queue::expiring(&client).await?;
        let services_down = queue::services_down(&client).await?;
        let sum = |field: &str| kinds.iter().filter_map(|kind| kind[field].as_u64()).sum();
        let finished = ["completed", "completed_with_errors", "failed"];
        Ok(StatsReport {
            backlog: sum("events"),
            oldest_age_ms: overview.oldest_age_ms,
            in_flight: sum("processing"),
            delayed: sum("delayed"),
            stuck: sum("stuck"),
            blocked_groups: overview.blocked_groups,
            dead_letters_last_day: overview.dead_letters_last_day,
            finished_last_hour: finished.map(sum).iter().sum(),
            #[expect(
                clippy::cast_precision_loss,
                reason = "nobody finishes 2^53 events a minute"
            )]
            throughput_per_second: overview.finished_last_minute as f64 / 60.0,
            expiring,
            services_down,
            kinds,
        })
    }
}
