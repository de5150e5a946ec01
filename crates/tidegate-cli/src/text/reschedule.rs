//! What people read of events that got another time or deadline.

use tidegate::admin::RescheduleRequest;

use super::{Text, changed, events, ids, rest};

/// Fails if the digest of a dry run does not match, or if the request names ids and none of these events
/// could be rescheduled.
impl Text for RescheduleRequest {
    fn text(&self, report: &Self::Report) -> String {
        if let Some(refused) = &report.changed.refused {
            return format!("nothing was rescheduled: {refused}");
        }
        let mut lines = vec![if report.changed.dry_run {
            format!(
                "dry run: {} would be rescheduled",
                events(report.rescheduled)
            )
        } else {
            format!("rescheduled {}", events(report.rescheduled))
        }];
        changed(&mut lines, &report.changed);
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
        rest(&mut lines, &report.changed);
        lines.join("\n")
    }

    fn code(&self, report: &Self::Report) -> u8 {
        u8::from(
            report.changed.refused.is_some()
                || (self.select.ids.is_some() && report.rescheduled == 0),
        )
    }
}
