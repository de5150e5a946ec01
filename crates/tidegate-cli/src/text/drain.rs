//! What people read of a drain.

use std::fmt::Write;

use comfy_table::Table;
use tidegate::admin::DrainRequest;
use tidegate::{DrainReport, StopReason};

use super::{Text, coarse, down, plain_table, shown};

impl Text for DrainRequest {
    fn text(&self, report: &Self::Report) -> String {
        let reason = match report.stop_reason {
            StopReason::QueueEmpty if !report.unhandled.is_empty() => {
                "no event that this program handles is ready"
            }
            StopReason::QueueEmpty => "the queue is empty",
            StopReason::BudgetSpent => "the budget is spent",
            StopReason::LimitReached => "the maximum number of events is reached",
            StopReason::NoSlot => "the maximum number of drains is already running",
            _ => "it ended early",
        };
        let mut table = counts(report);
        table.add_row(vec![
            "left in the queue".to_owned(),
            report.backlog.to_string(),
        ]);
        let mut text = format!(
            "drained for {}: {reason}\n{table}",
            coarse(report.elapsed_ms)
        );
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
    let table = counts(report);
    format!("failed after {}\n{table}", coarse(report.elapsed_ms))
}

fn counts(report: &DrainReport) -> Table {
    let mut table = plain_table(&["what", "events"]);
    for (what, events) in [
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
    ] {
        table.add_row(vec![what.to_owned(), events.to_string()]);
    }
    if report.scheduled > 0 {
        let message = report.scheduled.to_string();
        table.add_row(vec!["periodic events published".to_owned(), message]);
    }
    if report.still_running > 0 {
        let message = report.still_running.to_string();
        table.add_row(vec!["given up, but still running".to_owned(), message]);
    }
    table
}
