//! What people read of the retention of kinds.

use tidegate::admin::{KindRetention, Retention, RetentionReport, RetentionRequest};
use tidegate::retention::CleanupStop;

use super::{Column, Text, shown, table};

impl Text for RetentionRequest {
    fn text(&self, report: &Self::Report) -> String {
        match report {
            Retention::Kept(report) => kinds(&report.kinds),
            Retention::Changed(report) => changed(report),
        }
    }
}

/// Describes how long finished events of each kind are kept.
fn kinds(kinds: &[KindRetention]) -> String {
    let columns: &[Column<KindRetention>] = &[
        ("kind", |kind| shown(&kind.kind)),
        ("completed", |kind| shown(&kind.retention_completed)),
        ("failed", |kind| shown(&kind.retention_failed)),
    ];
    table(kinds, columns)
}

/// Describes the result of a change of retention.
fn changed(report: &RetentionReport) -> String {
    let table = kinds(&report.kinds);
    let Some(redated) = &report.redated else {
        return format!("retention of events that finish from now on:\n{table}");
    };
    let left = match (redated.stop_reason, redated.skipped) {
        (CleanupStop::Done, 0) => String::new(),
        (CleanupStop::Done, skipped) => {
            format!("; {skipped} steps could not get their locks; run the same command again")
        }
        (CleanupStop::BudgetSpent, _) => {
            "; the budget is spent; run the same command again".to_owned()
        }
    };
    let rows = redated.rows;
    format!(
        "retention of all events; {rows} finished events have a new expiry date{left}:\n{table}"
    )
}
