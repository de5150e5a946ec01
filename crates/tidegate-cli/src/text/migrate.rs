//! What people read of a migration.

use tidegate::admin::MigrateRequest;

use super::Text;

impl Text for MigrateRequest {
    fn text(&self, report: &Self::Report) -> String {
        let applied = if report.applied.is_empty() {
            "nothing to apply".to_owned()
        } else {
            report.applied.join("\n")
        };
        let roles = if report.roles { ", roles granted" } else { "" };
        format!(
            "{applied}\nschema version {}, {} kinds registered{roles}",
            report.version, report.kinds
        )
    }
}
