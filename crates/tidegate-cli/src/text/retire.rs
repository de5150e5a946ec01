//! What people read of a retirement.

use tidegate::admin::RetireRequest;

use super::Text;

impl Text for RetireRequest {
    fn text(&self, report: &Self::Report) -> String {
        format!(
            "{} is retired: it cannot be published any more",
            report.kind
        )
    }
}
