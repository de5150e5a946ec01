//! What people read of a forget.

use tidegate::admin::ForgetRequest;

use super::{Text, events};

/// Fails if there was nothing to forget.
impl Text for ForgetRequest {
    fn text(&self, report: &Self::Report) -> String {
        let would = if report.dry_run {
            "dry run; to be forgotten: "
        } else {
            "forgotten: "
        };
        let mut lines = vec![format!(
            "{would}{}, {} of them live (live events are cancelled)",
            events(report.forgotten),
            report.cancelled
        )];
        if report.in_hand > 0 {
            lines.push(format!(
                "  {} may have a running handler: run the same command again after it has ended",
                events(report.in_hand)
            ));
        }
        if report.before > 0 {
            lines.push(format!("  {} already forgotten", events(report.before)));
        }
        if report.unknown > 0 {
            lines.push(format!("  {} ids without an event", report.unknown));
        }
        let tables = report.tables.iter();
        lines.extend(tables.map(|(table, rows)| format!("  {rows} rows of {table}")));
        if report.incomplete {
            lines.push(
                "  more events were published meanwhile: run the same command again".to_owned(),
            );
        }
        lines.join("\n")
    }

    fn code(&self, report: &Self::Report) -> u8 {
        let rows: u64 = report.tables.values().sum();
        let found = report.forgotten + report.before + rows;
        u8::from(found == 0 || report.incomplete)
    }
}
