//! The texts for people about changes of many live events.

use std::collections::BTreeMap;

use tidegate::operate::{CancelReport, RescheduleReport, Skipped};

use super::operate::{SHOWN, events, ids, skipped};
use super::shown;

/// Describes what was cancelled.
pub fn cancelled(report: &CancelReport) -> String {
    if let Some(refused) = &report.refused {
        return format!("nothing was cancelled: {refused}");
    }
    let mut lines = vec![if report.dry_run {
        format!("dry run: {} would be cancelled", events(report.cancelled))
    } else {
        format!("cancelled {}", events(report.cancelled))
    }];
    told(&mut lines, &report.kinds, &report.ids);
    if report.begun > 0 {
        lines.push(format!(
            "  {} may have a running handler; it is notified when its drain next renews its leases",
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
    if let Some(refused) = &report.refused {
        return format!("nothing was rescheduled: {refused}");
    }
    let mut lines = vec![if report.dry_run {
        format!(
            "dry run: {} would be rescheduled",
            events(report.rescheduled)
        )
    } else {
        format!("rescheduled {}", events(report.rescheduled))
    }];
    told(&mut lines, &report.kinds, &report.ids);
    if report.past_deadline > 0 {
        lines.push(format!(
            "{} would start after the deadline, and will end as expired: {}",
            events(report.past_deadline),
            ids(&report.past_deadline_ids)
        ));
    }
    if report.in_hand > 0 {
        lines.push(format!(
            "{} held by a worker, and not changed: requeue or cancel them instead",
            events(report.in_hand)
        ));
    }
    if report.too_late > 0 {
        lines.push(format!(
            "{} not changed: events of a group cannot start so late (TIDEGATE_MAX_GROUP_DELAY)",
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
            .map(|(kind, count)| format!("  {}: {count}", shown(kind))),
    );
    if !first.is_empty() {
        lines.push(format!(
            "  for example {}",
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
        lines.push("more events are left: run the same command again".to_owned());
    }
}
