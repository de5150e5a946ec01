//! What people read of a change of a schedule.

use tidegate::admin::ScheduleRequest;

use super::Text;

impl Text for ScheduleRequest {
    fn text(&self, report: &Self::Report) -> String {
        let name = &report.name;
        match (report.change.as_str(), report.changed) {
            ("paused", true) => format!("{name} is paused; slots that pass meanwhile are skipped"),
            ("paused", false) => format!("{name} was paused already"),
            ("resumed", true) => format!("{name} is resumed, from its next slot on"),
            ("resumed", false) => format!("{name} was not paused"),
            _ => format!(
                "{name} is published as event {}",
                report.event_id.unwrap_or_default()
            ),
        }
    }
}
