//! What people read of a drain.

use std::fmt::Write;

use tidegate::admin::DrainRequest;
use tidegate::{DrainReport, StopReason};

use super::{Text, coarse, counts, down, shown};

impl Text for DrainRequest {
    fn text(&self, report: &Self::Report) -> String {
        let reason = match report.stop_reason {
            StopReason::QueueEmpty if !report.unhandled.is_empty() => {
                "no event that this program handles is ready"
            }
            StopReason::QueueEmpty if report.backlog > Some(0) => "no event is ready",
            StopReason::QueueEmpty => "the queue is empty",
            StopReason::BudgetSpent => "the budget is spent",
            StopReason::LimitReached => "the maximum number of events is reached",
            StopReason::NoSlot => "the maximum number of drains is already running",
            _ => "it ended early",
        };
        let mut ended = ended(report);
        ended.extend(
            report
                .backlog
                .map(|left| ("left in the queue".to_owned(), left)),
        );
        let table = counts("events", &ended);
        let mut text = format!(
            "drained for {}: {reason}\n{table}",
            coarse(report.elapsed_ms)
        );
        if report.backlog.is_none() && report.slot > 0 {
            text.push_str(
                "\nleft in the queue: not known, because the database did not tell in time",
            );
        }
        if !report.unhandled.is_empty() {
            let kinds = report.unhandled.iter();
            let kinds: Vec<String> = kinds
                .map(|(kind, count)| format!("{count} {}", shown(kind)))
                .collect();
            text.push_str("\nof other programs: ");
            text.push_str(&kinds.join(", "));
        }
        if report.expiring > 0 {
            let events = report.expiring;
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n{events} will pass their deadline before they are started"
            );
        }
        text.push_str(&down(&report.services_down));
        text
    }
}

/// Describes what a drain did until it failed.
pub fn broken_off(report: &DrainReport) -> String {
    let table = counts("events", &ended(report));
    format!("failed after {}\n{table}", coarse(report.elapsed_ms))
}

/// What a drain has counted; the last two only if there are any.
fn ended(report: &DrainReport) -> Vec<(String, u64)> {
    let counts = [
        ("leased", report.leased),
        ("completed", report.completed),
        ("rejected by a handler", report.completed_with_errors),
        ("failed", report.failed),
        ("to be retried", report.retried),
        ("waiting for a service", report.deferred),
        ("snoozed", report.snoozed),
        ("released before they started", report.released),
        ("lease lost", report.lease_lost),
        ("expired", report.expired),
        ("abandoned", report.abandoned),
        ("ended, a service being down", report.given_up),
        ("follow-ups published", report.published),
    ];
    let rare = [
        ("periodic events published", report.scheduled),
        ("given up, but still running", report.still_running),
    ];
    let rare = rare.into_iter().filter(|(_, count)| *count > 0);
    let all = counts.into_iter().chain(rare);
    all.map(|(what, count)| (what.to_owned(), count)).collect()
}
