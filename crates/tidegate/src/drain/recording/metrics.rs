//! The figures of a drain as metrics. Dashboards depend on their names, which therefore must not change.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::drain::report::{DrainReport, StopReason};
use crate::figures::{Figures, Histogram, KindFigures};
use crate::otel::metric::{Buckets, Metrics};

const OUTCOME: &str = "tidegate.outcome";
const KIND: &str = "messaging.destination.name";

/// Returns how events left the run's hands, with the number of each.
pub(super) fn outcomes(report: &DrainReport) -> [(&'static str, u64); 10] {
    [
        ("completed", report.completed),
        ("completed_with_errors", report.completed_with_errors),
        ("failed", report.failed),
        ("retried", report.retried),
        ("deferred", report.deferred),
        ("snoozed", report.snoozed),
        ("released", report.released),
        ("lease_lost", report.lease_lost),
        ("expired", report.expired),
        ("abandoned", report.abandoned),
    ]
}

pub(super) fn stop_reason(report: &DrainReport) -> &'static str {
    match report.stop_reason {
        StopReason::QueueEmpty => "queue_empty",
        StopReason::BudgetSpent => "budget_spent",
        StopReason::LimitReached => "limit_reached",
        StopReason::NoSlot => "no_slot",
        StopReason::AlreadyRun => "already_run",
    }
}

/// Returns all metrics of a drain. After an infrastructure error, the remaining backlog is unknown.
pub(super) fn of_drain(
    report: &DrainReport,
    succeeded: bool,
    figures: &Figures,
    left: Option<&BTreeMap<String, u64>>,
    began: SystemTime,
) -> Metrics {
    let mut metrics = Metrics::of_run(began);
    let reason = if succeeded {
        stop_reason(report)
    } else {
        "error"
    };
    metrics.sum(
        "tidegate.drains",
        "{drain}",
        &[(&[("tidegate.stop_reason", reason)], 1)],
    );
    for (outcome, count) in outcomes(report) {
        metrics.sum(
            "tidegate.events",
            "{event}",
            &[(&[(OUTCOME, outcome)], count)],
        );
    }
    for (name, count) in [
        ("tidegate.leased", report.leased),
        ("tidegate.published", report.published),
        ("tidegate.scheduled", report.scheduled),
    ] {
        metrics.sum(name, "{event}", &[(&[], count)]);
    }
    let mut took = Buckets::default();
    took.add(Duration::from_millis(report.elapsed_ms), 1);
    metrics.histogram("tidegate.drain.duration", &[(&[], took)]);
    for (kind, figures) in figures.kinds() {
        of_kind(&mut metrics, kind, figures);
    }
    if succeeded {
        of_queue(&mut metrics, report, left);
    }
    metrics
}

fn of_kind(metrics: &mut Metrics, kind: &str, figures: &KindFigures) {
    for (outcome, count) in [
        ("completed", figures.completed),
        ("completed_with_errors", figures.completed_with_errors),
        ("failed", figures.failed),
        ("retried", figures.retried),
        ("snoozed", figures.snoozed),
    ] {
        let labels: &[(&str, &str)] = &[(KIND, kind), (OUTCOME, outcome)];
        metrics.sum("tidegate.attempts", "{attempt}", &[(labels, count)]);
    }
    let labels: &[(&str, &str)] = &[
        ("messaging.system", "tidegate"),
        ("messaging.operation.name", "process"),
        (KIND, kind),
    ];
    metrics.histogram(
        "messaging.process.duration",
        &[(labels, buckets(&figures.took))],
    );
}

fn of_queue(metrics: &mut Metrics, report: &DrainReport, left: Option<&BTreeMap<String, u64>>) {
    metrics.gauge("tidegate.queue.size", "{event}", &[(&[], report.backlog)]);
    metrics.gauge(
        "tidegate.queue.ready",
        "{event}",
        &[(&[], report.ready_left)],
    );
    metrics.gauge(
        "tidegate.queue.oldest_age",
        "ms",
        &[(&[], report.oldest_age_ms)],
    );
    metrics.gauge(
        "tidegate.queue.expiring",
        "{event}",
        &[(&[], report.expiring)],
    );
    for (kind, count) in left.into_iter().flatten() {
        let labels: &[(&str, &str)] = &[(KIND, kind)];
        metrics.gauge("tidegate.queue.events", "{event}", &[(labels, *count)]);
    }
}

fn buckets(took: &Histogram) -> Buckets {
    let mut buckets = Buckets::default();
    for (duration, count) in took.counted() {
        buckets.add(duration, count);
    }
    // Each of our buckets stands for a range, but the exact sum is known.
    buckets.sum = took.sum();
    buckets
}
