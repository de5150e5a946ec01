//! What people read of an unblock.

use tidegate::admin::{UnblockAction, UnblockRequest};

use super::Text;

/// Fails if nothing was done.
impl Text for UnblockRequest {
    fn text(&self, report: &Self::Report) -> String {
        let (Some(id), group) = (report.id, &report.group_key) else {
            let refused = report.refused.as_deref().unwrap_or_default();
            return format!("nothing was done: {refused}");
        };
        match (report.how, report.new_id) {
            (UnblockAction::Retry, _) => {
                format!("event {id}, the first of {group}, is due now")
            }
            (UnblockAction::Skip, Some(new_id)) => {
                format!(
                    "event {id} has ended as skipped; its unfinished handlers are published as event {new_id}, at the end of {group}"
                )
            }
            (UnblockAction::Skip, None) | (UnblockAction::Cancel, _) => {
                format!("event {id}, the first of {group}, has ended as cancelled")
            }
        }
    }

    fn code(&self, report: &Self::Report) -> u8 {
        u8::from(report.id.is_none())
    }
}
