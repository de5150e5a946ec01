//! What people read of a pause and of a resume.

use tidegate::admin::{PauseReport, PauseRequest, ResumeRequest};

use super::Text;

impl Text for PauseRequest {
    fn text(&self, report: &Self::Report) -> String {
        paused(report)
    }
}

impl Text for ResumeRequest {
    fn text(&self, report: &Self::Report) -> String {
        paused(report)
    }
}

/// Describes whether a kind is paused now.
fn paused(report: &PauseReport) -> String {
    match (report.paused, report.changed) {
        (true, true) => format!(
            "{} is paused; events that are being handled end normally",
            report.kind
        ),
        (true, false) => format!("{} was paused already", report.kind),
        (false, true) => format!("{} is resumed", report.kind),
        (false, false) => format!("{} was not paused", report.kind),
    }
}
