//! What people read of the retention of kinds.

use tidegate::admin::{KindRetention, RetentionRequest};

use super::{Column, Text, shown, table};

impl Text for RetentionRequest {
    fn text(&self, report: &Self::Report) -> String {
        let columns: &[Column<KindRetention>] = &[
            ("kind", |kind| shown(&kind.kind)),
            ("completed", |kind| shown(&kind.retention_completed)),
            ("failed", |kind| shown(&kind.retention_failed)),
        ];
        let table = table(&report.kinds, columns);
        if self.changes() {
            return format!("retention of events that finish from now on:\n{table}");
        }
        table
    }
}
