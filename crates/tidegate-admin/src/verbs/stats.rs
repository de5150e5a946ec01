//! The verb `stats`: the figures of the queue. The command line calls it `status`.

use serde_json::Number;
use tidegate_core::queue::{backlog, document, documents, expiring, services_down};

use super::prelude::*;
use super::{ExpiringKind, ServiceStatus};

/// Show the size, age, throughput and failures of the queue, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
pub struct StatsRequest {}

/// Queue figures, of the whole queue and by kind (C13).
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct StatsReport {
    /// Live events: an exact number below 100,000, above it the planner's estimate.
    pub backlog: u64,
    /// Whether `backlog` is an estimate. Then the figures of live events cover the 100,000 with the lowest
    /// ids.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_estimate: bool,
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
    /// Dead letters of the last day that failed, as `failures` counts them.
    pub failed_last_day: u64,
    /// Dead letters of the last day that a handler rejected.
    pub rejected_last_day: u64,
    /// Events that ended since the minute that began an hour ago, as all figures of the last hour.
    pub finished_last_hour: u64,
    /// Events that ended since the last minute began, per second.
    pub throughput_per_second: f64,
    /// Events that will pass their start-before deadline before they start (B13), soonest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expiring: Vec<ExpiringKind>,
    /// Services that are not called, with the events that wait for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services_down: Vec<ServiceStatus>,
    /// One object per kind, with the columns of the view `tidegate.stats`.
    pub kinds: Vec<KindStats>,
}

/// Figures of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct KindStats {
    /// The kind.
    pub kind: String,
    /// Live events that wait, without the delayed ones.
    pub pending: u64,
    /// Leased events.
    pub processing: u64,
    /// Live events that wait for a planned time or for another attempt.
    pub delayed: u64,
    /// The most attempts of a live event.
    pub max_attempts_used: u64,
    /// Age of the oldest live event; null if there is none.
    #[schemars(with = "Option<u64>")]
    pub oldest_age_ms: Option<i64>,
    /// Events that ended COMPLETED in the last hour.
    pub completed: u64,
    /// Events that ended `COMPLETED_WITH_ERRORS` in the last hour.
    pub completed_with_errors: u64,
    /// Events that ended FAILED in the last hour.
    pub failed: u64,
    /// The average number of attempts of these events; null if none ended.
    #[schemars(with = "Option<f64>")]
    pub attempts_per_event: Option<Number>,
    /// The median latency from publish to end.
    pub latency_p50_ms: Option<i64>,
    /// The 95th percentile of this latency.
    pub latency_p95_ms: Option<i64>,
    /// The 99th percentile of this latency.
    pub latency_p99_ms: Option<i64>,
    /// The share that did not end COMPLETED, 0 to 1.
    #[schemars(with = "Option<f64>")]
    pub failure_rate: Option<Number>,
    /// All live events.
    pub events: u64,
    /// Live events whose worker no longer renews its lease.
    pub stuck: u64,
    /// Whether the kind is paused.
    pub paused: bool,
}

statements! {
    /// The figures of the whole queue that are not sums over its kinds.
    OVERVIEW: "overview" [] = "\
SELECT jsonb_build_object(
           'blocked_groups', (SELECT count(*) FROM @tidegate.blocked()),
           'failed_last_day', least(coalesce(sum(m.events) FILTER (WHERE m.status = 'FAILED'), 0), 1e17)::bigint,
           'rejected_last_day', least(coalesce(sum(m.events) FILTER (WHERE m.status <> 'FAILED'), 0), 1e17)::bigint,
           'throughput_per_second', (SELECT coalesce(sum(l.events), 0) / extract(epoch FROM statement_timestamp() - s.since)
                                       FROM (SELECT @tidegate.figures_since(statement_timestamp() - interval '1 minute') AS since) AS s
                                       LEFT JOIN @tidegate.ended(statement_timestamp() - interval '1 minute') AS l ON true
                                      GROUP BY s.since)::float8)::text
  FROM @tidegate.ended(statement_timestamp() - interval '1 day') AS m
 WHERE m.status <> 'COMPLETED'";

    STATS: "stats" [] = "SELECT to_jsonb(s)::text FROM @tidegate.stats AS s ORDER BY s.kind";
}

/// The figures that belong to no kind.
#[derive(Default, Deserialize)]
struct Whole {
    blocked_groups: u64,
    failed_last_day: u64,
    rejected_last_day: u64,
    throughput_per_second: f64,
}

impl Verb for StatsRequest {
    const NAME: &'static str = "stats";

    type Report = StatsReport;

    async fn run(&self, runtime: &Runtime) -> Result<StatsReport> {
        let client = runtime.looking().await?;
        let whole: Option<Whole> = document(&client, &OVERVIEW, &[]).await?;
        let whole = whole.unwrap_or_default();
        let kinds: Vec<KindStats> = documents(&client, &STATS, &[]).await?;
        let left = backlog(&client).await?;
        let sum = |of: fn(&KindStats) -> u64| kinds.iter().map(of).sum();
        Ok(StatsReport {
            backlog: left.events,
            is_estimate: left.is_estimate(),
            oldest_age_ms: left.oldest_age_ms,
            in_flight: sum(|kind| kind.processing),
            delayed: sum(|kind| kind.delayed),
            stuck: sum(|kind| kind.stuck),
            blocked_groups: whole.blocked_groups,
            failed_last_day: whole.failed_last_day,
            rejected_last_day: whole.rejected_last_day,
            finished_last_hour: sum(|kind| {
                kind.completed + kind.completed_with_errors + kind.failed
            }),
            throughput_per_second: whole.throughput_per_second,
            expiring: expiring(&client).await?,
            services_down: services_down(&client).await?,
            kinds,
        })
    }
}
