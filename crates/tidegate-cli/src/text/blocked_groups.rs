//! What people read of the blocked groups.

use tidegate::admin::{BlockedGroupsRequest, UnblockRequest, Verb};

use super::{Text, cell, instant, plain_table, short};

/// One line for each group, and the possible actions.
impl Text for BlockedGroupsRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.groups.is_empty() {
            return "no group is blocked".to_owned();
        }
        let mut table = plain_table(&[
            "group",
            "waiting",
            "first event",
            "kind",
            "attempts",
            "runs next",
            "last error",
        ]);
        for group in &report.groups {
            table.add_row(vec![
                cell(&group["group_key"]),
                cell(&group["waiting"]),
                cell(&group["head_id"]),
                cell(&group["head_kind"]),
                format!("{} of {}", group["attempts"], group["max_attempts"]),
                instant(&group["available_at"]),
                short(&group["last_error"]),
            ]);
        }
        format!(
            "{table}\nlook at the first event: tidegate show ID\n\
             release the group: tidegate {} GROUP --retry|--skip|--cancel",
            UnblockRequest::NAME
        )
    }
}
