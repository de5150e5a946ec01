//! What people read of a drain.

use std::fmt::Write;

use tidegate::{DrainReport, StopReason};
use tidegate_admin::DrainRequest;

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

/// What people read of a drain that failed: what it did until then.
pub fn broken_off(report: &DrainReport) -> String {
    let table = counts("events", &ended(report));
    format!("failed after {}\n{table}", coarse(report.elapsed_ms))
}

fn ended(report: &DrainReport) -> Vec<(String, u64)> {
    let counts = report.counts();
    counts
        .map(|(what, count)| (what.to_owned(), count))
        .collect()
}
