//! What people read of a note.

use tidegate::admin::NoteRequest;

use super::Text;

/// Fails if there is no such event.
impl Text for NoteRequest {
    fn text(&self, report: &Self::Report) -> String {
        match (&report.refused, report.dry_run) {
            (Some(refused), _) => format!("nothing was noted: {refused}"),
            (None, true) => format!("dry run: event {} would be noted", report.id),
            (None, false) => format!("event {} is noted; show prints it", report.id),
        }
    }

    fn code(&self, report: &Self::Report) -> u8 {
        u8::from(report.refused.is_some())
    }
}
