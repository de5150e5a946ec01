//! What people read of a requeue.

use tidegate::admin::RequeueRequest;

use super::{Text, events, ids, skipped};

/// Fails if none of the ids could be requeued.
impl Text for RequeueRequest {
    fn text(&self, report: &Self::Report) -> String {
        let mut lines = vec![match report.requeued {
            0 => "nothing was requeued".to_owned(),
            count => format!("requeued {}, due now: {}", events(count), ids(&report.ids)),
        }];
        if !report.past_deadline.is_empty() {
            lines.push(format!(
                "past their deadline, and will end as expired: {}",
                ids(&report.past_deadline)
            ));
        }
        if report.skipped_count > 0 {
            lines.push(format!("skipped {}:", events(report.skipped_count)));
            skipped(&mut lines, &report.skipped, report.skipped_count);
        }
        lines.join("\n")
    }

    fn code(&self, report: &Self::Report) -> u8 {
        u8::from(report.requeued == 0)
    }
}
