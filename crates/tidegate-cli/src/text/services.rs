//! What people read of the outside services.

use tidegate::admin::{ServiceStatus, ServicesRequest};

use super::{Text, plain_table, service, shown, state, without_fraction};

/// Those that are not called come first.
impl Text for ServicesRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.services.is_empty() {
            return "no service has failed, is paused or is limited".to_owned();
        }
        let mut table = plain_table(&[
            "service",
            "state",
            "since",
            "waiting",
            "next try",
            "failures",
            "last error",
            "limits",
        ]);
        let time =
            |time: &Option<String>| time.as_deref().map(without_fraction).unwrap_or_default();
        for service in &report.services {
            table.add_row(vec![
                shown(&service.service),
                state(service.state).to_owned(),
                without_fraction(&service.since),
                service.waiting.to_string(),
                time(&service.retry_at),
                service.failures.to_string(),
                service.last_error.as_deref().map(shown).unwrap_or_default(),
                limits(service),
            ]);
        }
        format!("{table}\nresume calls of a service: tidegate service NAME --resume --reason TEXT")
    }
}

/// Describes the limits of a service's calls, and the number of its places that drains hold.
fn limits(service: &ServiceStatus) -> String {
    let limits = service::limits(service.max_running, service.per_second);
    match (service.max_running, service.per_second) {
        (None, None) => String::new(),
        (None, Some(_)) => limits,
        (Some(_), _) => format!("{limits} ({} now)", service.places),
    }
}
