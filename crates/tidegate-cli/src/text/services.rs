//! What people read of the outside services.

use tidegate::admin::{ServiceStatus, ServicesRequest};

use super::{Text, in_seconds, service, shown, state, table, time_of};

/// Those that are not called come first.
impl Text for ServicesRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.services.is_empty() {
            return "no service has failed, is paused or is limited".to_owned();
        }
        let table = table(
            &report.services,
            &[
                ("state", |service| state(service.state).to_owned()),
                ("service", |service| shown(&service.service)),
                ("waiting", |service| service.waiting.to_string()),
                ("next try", |service| time_of(service.retry_at.as_ref())),
                ("since", |service| in_seconds(&service.since)),
                ("failures", |service| service.failures.to_string()),
                ("last error", |service| {
                    service.last_error.as_deref().map(shown).unwrap_or_default()
                }),
                ("limits", limits),
            ],
        );
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
