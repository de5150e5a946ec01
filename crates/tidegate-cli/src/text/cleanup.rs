//! The texts for people about a cleanup and the retention of kinds.

use tidegate::queue::KindRetention;
use tidegate::retention::{CleanupReport, CleanupStop, RetentionReport};

use super::{coarse, plain_table, shown};

/// Describes what a cleanup did, or would do.
pub fn cleaned(report: &CleanupReport) -> String {
    let mut table = plain_table(&["what", "count"]);
    for (what, count) in [
        ("partitions created in advance", report.partitions_made),
        ("rows moved into these partitions", report.rows_moved),
        ("days left in the default partition", report.left_to_default),
        ("live events ended as expired", report.expired),
        ("live events ended as abandoned", report.abandoned),
        ("partitions counted", report.partitions_sealed),
        ("partitions dropped", report.partitions_dropped),
        ("rows dropped with these partitions", report.rows_dropped),
        ("rows deleted in batches", report.rows_deleted),
        ("old message ids deleted", report.messages_forgotten),
        ("steps left to the next run", report.skipped),
    ] {
        table.add_row(vec![what.to_owned(), count.to_string()]);
    }
    for dropped in &report.dropped {
        table.add_row(vec![
            format!("rows of {}", dropped.partition),
            dropped.rows.to_string(),
        ]);
    }
    for (name, rows) in &report.records {
        table.add_row(vec![format!("old rows of {name}"), rows.to_string()]);
    }
    let done = if report.dry_run {
        "dry run: a cleanup would do this"
    } else {
        "cleaned up"
    };
    let took = coarse(report.elapsed_ms);
    format!("{done} ({took}, {})\n{table}", reason(report.stop_reason))
}

/// Describes how long finished events of each kind are kept.
pub fn kinds(kinds: &[KindRetention]) -> String {
    let mut table = plain_table(&["kind", "completed", "failed"]);
    for kind in kinds {
        table.add_row(vec![
            shown(&kind.kind),
            shown(&kind.retention_completed),
            shown(&kind.retention_failed),
        ]);
    }
    table.to_string()
}

/// Describes the result of a change of retention.
pub fn changed(report: &RetentionReport) -> String {
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

fn reason(stop: CleanupStop) -> &'static str {
    match stop {
        CleanupStop::Done => "done",
        CleanupStop::BudgetSpent => "the budget is spent",
    }
}
