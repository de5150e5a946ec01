//! What people read of a change of a service.

use tidegate::admin::{ServiceRequest, ServiceState};

use super::Text;

impl Text for ServiceRequest {
    fn text(&self, report: &Self::Report) -> String {
        let name = &report.service;
        if report.action == "limit_service" {
            let limits = limits(report.max_running, report.per_second);
            let unknown = if report.known {
                ""
            } else {
                ". Nothing was known of it before: it must be spelled as handlers spell it"
            };
            return format!("{name}: {limits}{unknown}");
        }
        match (report.state, report.changed) {
            (ServiceState::Paused, true) if !report.known => format!(
                "{name} is paused; events that need it wait. Nothing was known of it before: it must be spelled as handlers spell it"
            ),
            (ServiceState::Paused, true) => format!("{name} is paused; events that need it wait"),
            (ServiceState::Paused, false) => format!("{name} was paused already"),
            (_, true) => format!("{name} is called again"),
            (_, false) => format!("{name} was neither paused nor down"),
        }
    }
}

/// Describes the limits of a service.
pub fn limits(max_running: Option<u32>, per_second: Option<f64>) -> String {
    let running = max_running.map(|count| format!("at most {count} at once"));
    let starts = per_second.map(|count| format!("at most {count} a second"));
    let limits: Vec<String> = running.into_iter().chain(starts).collect();
    if limits.is_empty() {
        return "not limited".to_owned();
    }
    limits.join(", ")
}
