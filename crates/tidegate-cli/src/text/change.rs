//! The texts for people about changes of many live events.

use std::collections::BTreeMap;

use tidegate::operate::{CancelReport, RescheduleReport, Skipped};

use super::operate::{SHOWN, events, ids, skipped};

/// Describes what was cancelled.
pub fn cancelled(report: &CancelReport) -> String {
    let mut lines = vec![if report.dry_run {
        format!(
            "nothing was changed; to be cancelled: {}",
            events(report.cancelled)
        )
    } else {
        format!("cancelled {}", events(report.cancelled))
    }];
    told(&mut lines, &report.kinds, &report.ids);
    if report.begun > 0 {
        lines.push(format!(
            "  {} in a handler's hands, which is told at its drain's next renewal",
            events(report.begun)
        ));
    }
    rest(
        &mut lines,
        &report.skipped,
        report.skipped_count,
        report.limit_reached,
    );
    lines.join("\n")
}

/// Describes what was rescheduled.
pub fn rescheduled(report: &RescheduleReport) -> String {
    let mut lines = vec![if report.dry_run {
        format!(
            "nothing was changed; to be rescheduled: {}",
            events(report.rescheduled)
        )
    } else {
        format!("rescheduled {}", events(report.rescheduled))
    }];
    told(&mut lines, &report.kinds, &report.ids);
    if report.past_deadline > 0 {
        lines.push(format!(
            "past their deadline before they start, so that they end as expired: {}: {}",
            events(report.past_deadline),
            ids(&report.past_deadline_ids)
        ));
    }
    if report.in_hand > 0 {
        lines.push(format!(
            "{} in a worker's hands: requeue or cancel instead",
            events(report.in_hand)
        ));
    }
    if report.too_late > 0 {
        lines.push(format!(
            "{} further ahead than an event of a group may be (TIDEGATE_MAX_GROUP_DELAY)",
            events(report.too_late)
        ));
    }
    rest(
        &mut lines,
        &report.skipped,
        report.skipped_count,
        report.limit_reached,
    );
    lines.join("\n")
}

fn told(lines: &mut Vec<String>, kinds: &BTreeMap<String, u64>, first: &[i64]) {
    lines.extend(
        kinds
            .iter()
            .map(|(kind, count)| format!("  {kind}: {count}")),
    );
    if !first.is_empty() {
        lines.push(format!(
            "  such as {}",
            ids(&first[..first.len().min(SHOWN)])
        ));
    }
}

fn rest(lines: &mut Vec<String>, left: &[Skipped], count: u64, limit_reached: bool) {
    if count > 0 {
        lines.push(format!("skipped {}:", events(count)));
        skipped(lines, left, count);
    }
    if limit_reached {
        lines.push("more are left: ask again for the rest".to_owned());
    }
}
