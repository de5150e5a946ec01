//! What people read of a migration.

use tidegate::admin::MigrateRequest;

use tidegate::queue::Redeclared;

use super::Text;

impl Text for MigrateRequest {
    fn text(&self, report: &Self::Report) -> String {
        let applied = if report.applied.is_empty() {
            "nothing to apply".to_owned()
        } else {
            report.applied.join("\n")
        };
        let changes = report.targets.as_ref().map(|targets| {
            let lines = targets.iter().map(|(path, one)| changed(path, one));
            lines.collect::<String>()
        });
        let changes = changes.unwrap_or_default();
        if self.dry_run {
            let none = changes.is_empty().then_some("no target or kind differs\n");
            return changes + none.unwrap_or_default() + "nothing was changed";
        }
        let roles = if report.roles { ", roles granted" } else { "" };
        format!(
            "{applied}\n{changes}schema version {}, {} kinds registered{roles}",
            report.version, report.kinds
        )
    }
}

fn changed(path: &str, one: &Redeclared) -> String {
    match (&one.before, &one.after) {
        (Some(before), Some(after)) => format!("~ {path}: {after}, was {before}\n"),
        (None, Some(after)) => format!("+ {path}: {after}\n"),
        (before, None) => format!("- {path}: was {}\n", before.clone().unwrap_or_default()),
    }
}
