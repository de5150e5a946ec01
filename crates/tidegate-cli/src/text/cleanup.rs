//! What people read of a cleanup.

use tidegate::admin::CleanupRequest;
use tidegate::retention::CleanupStop;

use super::{Text, coarse, plain_table};

impl Text for CleanupRequest {
    fn text(&self, report: &Self::Report) -> String {
        let mut table = plain_table(&["what", "count"]);
        for (what, count) in [
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
}

fn reason(stop: CleanupStop) -> &'static str {
    match stop {
        CleanupStop::Done => "done",
        CleanupStop::BudgetSpent => "the budget is spent",
    }
}
