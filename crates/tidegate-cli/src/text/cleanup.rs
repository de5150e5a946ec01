//! What people read of a cleanup.

use tidegate::admin::CleanupRequest;
use tidegate::retention::CleanupStop;

use super::{Text, coarse, counts};

impl Text for CleanupRequest {
    fn text(&self, report: &Self::Report) -> String {
        let steps = [
            ("partitions created in advance", report.partitions_made),
            ("rows moved into these partitions", report.rows_moved),
            ("days left in the default partition", report.left_to_default),
            ("live events ended as expired", report.expired),
            ("live events ended as abandoned", report.abandoned),
            ("live events ended, a service being down", report.given_up),
            ("partitions dropped", report.partitions_dropped),
            ("rows dropped with these partitions", report.rows_dropped),
            ("rows deleted in batches", report.rows_deleted),
            ("old message ids deleted", report.messages_forgotten),
            ("steps left to the next run", report.skipped),
        ];
        let steps = steps.map(|(what, count)| (what.to_owned(), count));
        let dropped = report.dropped.iter();
        let dropped = dropped.map(|one| (format!("rows of {}", one.partition), one.rows));
        let records = report.records.iter();
        let records = records.map(|(name, rows)| (format!("old rows of {name}"), *rows));
        let all: Vec<_> = steps.into_iter().chain(dropped).chain(records).collect();
        let table = counts("count", &all);
        let done = if report.dry_run {
            "dry run: a cleanup would do this"
        } else {
            "cleaned up"
        };
        let took = coarse(report.elapsed_ms);
        format!("{done} ({took}, {})\n{table}", reason(report.stop_reason))
    }
}

fn reason(stop: CleanupStop) -> &'static str {
    match stop {
        CleanupStop::Done => "done",
        CleanupStop::BudgetSpent => "the budget is spent",
    }
}
