//! What people read of the blocked groups.

use tidegate::admin::{BlockedGroupsRequest, UnblockRequest, Verb};

use super::{Text, cell, short, table};

/// One line for each group, and the possible actions.
impl Text for BlockedGroupsRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.groups.is_empty() {
            return "no group is blocked".to_owned();
        }
        let table = table(
            &report.groups,
            &[
                ("group", |group| cell(&group["group_key"])),
                ("waiting", |group| cell(&group["waiting"])),
                ("first event", |group| cell(&group["head_id"])),
                ("kind", |group| cell(&group["head_kind"])),
                ("attempts", |group| {
                    format!("{} of {}", group["attempts"], group["max_attempts"])
                }),
                ("last error", |group| short(&group["last_error"])),
                ("why", |group| cell(&group["why"])),
            ],
        );
        format!(
            "{table}\nlook at the first event: tidegate show ID\n\
             release the group: tidegate {} GROUP --retry|--skip|--cancel",
            UnblockRequest::NAME
        )
    }
}
