//! The services that handlers call: their state and limits.

use axum::response::Response;
use maud::{Markup, html};
use tidegate::admin::{Calls, ServiceRequest};
use tidegate::{ServiceState, ServiceStatus};

use crate::acts::{Act, audit};
use crate::desk::Desk;
use crate::form::{Asked, Fields};
use crate::html::{chip, empty, number, short, table, time_of};
use crate::offer::{Offer, input, reason};
use crate::page::{Page, Place};
use crate::problem::Problem;

pub(super) async fn show(desk: Desk, Asked(_): Asked) -> Result<Response, Problem> {
    let overview = desk.service().overview().await?;
    let down = overview
        .services
        .iter()
        .filter(|service| service.state != ServiceState::Closed)
        .count();
    let body = html! {
        @if overview.services.is_empty() { (empty("No handler has reported a service yet.")) } @else { (list(&desk, &overview.services)) }
        @if overview.is_estimate { p.note { "Waiting events are counted among the first 100,000 live events." } }
        (another(&desk))
    };
    Ok(
        Page::new(Place::Services, "Services", "tidegate services", body)
            .renewing(format!("{down} services are not available."))
            .answer(&desk),
    )
}

fn list(desk: &Desk, services: &[ServiceStatus]) -> Markup {
    let head = html! {
        th { "Service" } th { "State" } @if desk.may_act() { th { "Act" } } th { "Since" } th.n { "Failures in a row" } th { "Next try" } th { "Last answer" } th { "Last error" }
        th.n { "Waiting" } th { "Limits" }
    };
    let rows = html! {
        @for service in services {
            tr {
                th scope="row" { (short(&service.service)) }
                td { (state(service.state)) }
                @if desk.may_act() { td { (actions(desk, service)) } }
                td { (time_of(Some(&service.since))) }
                td.n { (service.failures) }
                td { (time_of(service.retry_at.as_deref())) }
                td { (time_of(service.answered_at.as_deref())) }
                td.error { (short(service.last_error.as_deref().unwrap_or("–"))) }
                td.n { (number(service.waiting)) }
                td { (limits(service)) }
            }
        }
    };
    table("Services", &head, &rows)
}

fn state(state: ServiceState) -> Markup {
    match state {
        ServiceState::Closed => chip("good", "✓", "available"),
        ServiceState::Open => chip("bad", "✕", "does not answer"),
        ServiceState::Probing => chip("warn", "?", "being tested"),
        ServiceState::Paused => chip("warn", "‖", "paused"),
    }
}

fn limits(service: &ServiceStatus) -> Markup {
    html! {
        @if let Some(most) = service.max_running { (service.places) " of " (most) " at once" br; }
        @if let Some(rate) = service.per_second { (rate) " a second" }
        @if service.max_running.is_none() && service.per_second.is_none() { "none" }
    }
}

fn actions(desk: &Desk, service: &ServiceStatus) -> Markup {
    let of: &[(&str, &str)] = &[("name", &service.service)];
    let pause: &[(&str, &str)] = &[("name", &service.service), ("do", "pause")];
    let resume: &[(&str, &str)] = &[("name", &service.service), ("do", "resume")];
    let offer = |label, explains, of| Offer {
        verb: "service",
        label,
        explains,
        of,
        is_grave: false,
    };
    html! {
        div.actions {
            @if service.state != ServiceState::Paused { (offer("Pause", "Handlers stop calling the service. Events that need it wait.", pause).plain(desk)) }
            @if service.state != ServiceState::Closed { (offer("Resume", "Handlers call the service again, even if it has not answered.", resume).plain(desk)) }
            (offer("Limit", "0 removes a limit; an empty field leaves it as it is.", of).with(desk, &html! {
                (input("Concurrency over all drains", "limit", "", "10")) (input("Starts per second", "per_second", "", "2.5"))
            }))
        }
    }
}

/// The form that limits a service that is not in the list yet.
fn another(desk: &Desk) -> Markup {
    if !desk.may_act() {
        return html! {};
    }
    html! {
        details.act {
            summary { "Limit another service" }
            form method="post" action=(desk.base().of("/act", "service")) {
                p { "Enter the name that handlers use. The service need not have been called yet." }
                input type="hidden" name="back" value=(desk.address);
                label { span { "Service" } input name="name" required maxlength="100" autocomplete="off"; }
                (input("Concurrency over all drains", "limit", "", "10")) (input("Starts per second", "per_second", "", "2.5"))
                (reason())
                button.primary { "Limit" }
            }
        }
    }
}

/// What can be done with a service.
pub(super) const ACTS: &[Act] = &[("service", |desk, sent| Box::pin(act(desk, sent)))];

async fn act(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let mut change = Calls::default();
    match sent.text("do") {
        Some("pause") => change.pause = true,
        Some("resume") => change.resume = true,
        _ => {
            change.limit = sent.number("limit")?;
            change.per_second = sent.number("per_second")?;
            if change == Calls::default() {
                return Err(Problem::invalid(
                    "max_running, per_second: one of them must be given, got neither",
                ));
            }
        }
    }
    let asked = ServiceRequest {
        name: sent.needed("name")?.to_owned(),
        change,
        audit: audit(desk, sent)?,
    };
    let change = desk.service().run(&asked).await?;
    let known = if change.known {
        ""
    } else {
        " This service was not known before."
    };
    Ok(format!(
        "{}: {}.{known}",
        change.service,
        if change.changed {
            "done"
        } else {
            "no change was needed"
        }
    ))
}
