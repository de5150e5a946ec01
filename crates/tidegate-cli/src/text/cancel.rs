//! What people read of a cancel.

use tidegate::admin::CancelRequest;

use super::{Text, changed, events, rest};

/// Fails if the digest of a dry run does not match, or if the request names ids and none of these events
/// could be cancelled.
impl Text for CancelRequest {
    fn text(&self, report: &Self::Report) -> String {
        if let Some(refused) = &report.changed.refused {
            return format!("nothing was cancelled: {refused}");
        }
        let mut lines = vec![if report.changed.dry_run {
            format!("dry run: {} would be cancelled", events(report.cancelled))
        } else {
            format!("cancelled {}", events(report.cancelled))
        }];
        changed(&mut lines, &report.changed);
        if report.begun > 0 {
            lines.push(format!(
                "  {} may have a running handler; it is notified when its drain next renews its leases",
                events(report.begun)
            ));
        }
        rest(&mut lines, &report.changed);
        lines.join("\n")
    }

    fn code(&self, report: &Self::Report) -> u8 {
        u8::from(
            report.changed.refused.is_some()
                || (self.select.ids.is_some() && report.cancelled == 0),
        )
    }
}
