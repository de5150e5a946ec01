//! The services that handlers call: their state and limits.

use maud::{Markup, html};
use tidegate::{ServiceState, ServiceStatus};
use tidegate_admin::views::TargetState;

use crate::action_forms::offer;
use crate::context::PageContext;
use crate::html::{chip, due, empty, line, number, short, table, time_of};
use crate::page::Page;
use crate::problem::Answered;

pub(super) async fn show(ctx: PageContext) -> Answered {
    let service = ctx.runtime();
    let (overview, targets) = tokio::try_join!(service.overview(), service.targets())?;
    let down = overview
        .services
        .iter()
        .filter(|service| service.state != ServiceState::Closed)
        .count();
    let body = html! {
        @if overview.services.is_empty() { (empty("No handler has reported a service yet.")) } @else { (list(&ctx, &overview.services)) }
        @if overview.is_estimate { p.note { "Waiting events are counted among the first 100,000 live events." } }
        (another(&ctx))
        @if !targets.is_empty() { h2 { "Targets" } (called(&ctx, &targets)) }
    };
    Page::new("/services", "Services", "tidegate services", body)
        .renewing(format!("{down} services are not available."))
        .answer(&ctx)
}

fn list(ctx: &PageContext, services: &[ServiceStatus]) -> Markup {
    table! { "Services"; service in services;
        th "Service" { (short(&service.service)) }
        td "State" { (state(service.state)) }
        n "Waiting" { (number(service.waiting)) }
        line "Last error" { (line(service.last_error.as_deref())) }
        td "Next try" { (due(service.retry_at.as_deref())) }
        td "Act" if (ctx.may_act()) { (actions(ctx, service)) }
        n "Failures in a row" { (service.failures) }
        td "Since" { (time_of(Some(&service.since))) }
        td "Last answer" { (time_of(service.answered_at.as_deref())) }
        n "Limits" { (limits(service)) }
    }
}

/// The targets of `tidegate-relay`. Each has a service of the same name.
fn called(ctx: &PageContext, targets: &[TargetState]) -> Markup {
    table! { "Targets"; target in targets;
        th "Target" { (short(&target.target)) }
        td "State" { (state(target.state)) }
        line "Last error" { (line(target.last_error.as_deref())) }
        td "Act" if (ctx.may_act()) { div.actions {
            @let name = ("name", target.target.as_str());
            @if target.state != ServiceState::Paused { (offer(ctx, "service", "Pause", &[name, ("do", "pause")], &[])) }
            @if target.state != ServiceState::Closed { (offer(ctx, "service", "Resume", &[name, ("do", "resume")], &[])) }
        } }
        td "Kinds" { @for kind in &target.kinds { a href=(ctx.base().of("/kinds", kind)) { (short(kind)) } " " } }
        td "Way" { (target.way.as_deref().unwrap_or("–")) }
        td "Declared" { (time_of(Some(&target.since))) }
    }
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

fn actions(ctx: &PageContext, service: &ServiceStatus) -> Markup {
    let name = ("name", service.service.as_str());
    html! {
        div.actions {
            @if service.state != ServiceState::Paused { (offer(ctx, "service", "Pause", &[name, ("do", "pause")], &[])) }
            @if service.state != ServiceState::Closed { (offer(ctx, "service", "Resume", &[name, ("do", "resume")], &[])) }
            (offer(ctx, "service", "Limit", &[name], &["limit", "per_second"]))
        }
    }
}

/// The form that limits a service that is not in the list yet.
fn another(ctx: &PageContext) -> Markup {
    let inputs = &["name", "limit", "per_second"];
    offer(ctx, "service", "Limit another service", &[], inputs)
}
