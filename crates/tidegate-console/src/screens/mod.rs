//! The pages, one file each. They show data, offer actions, and say what these do.

mod actions;
mod audit;
mod dead;
mod doctor;
mod drains;
mod event;
mod events;
mod forget;
mod groups;
mod kinds;
mod leases;
mod overview;
mod publish;
mod retention;
mod schedules;
mod services;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tidegate_admin::views::Span;

use crate::form::Form;
use crate::metrics::metrics;
use crate::problem::Problem;
use crate::shared::ConsoleState;

/// All pages and actions of a console.
pub(crate) fn pages(shared: &Arc<ConsoleState>) -> Router {
    let pages = routes().route("/metrics", get(metrics));
    let pages = pages.fallback(|| async { Problem::not_found() });
    pages.with_state(shared.clone())
}

fn routes() -> Router<Arc<ConsoleState>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/events", get(events::show))
        .route("/find", get(events::find))
        .route("/events/search", get(events::show).post(events::search))
        .route("/events/{id}", get(event::show))
        .route("/groups", get(groups::show))
        .route("/groups/{key}", get(groups::one))
        .route("/kinds", get(kinds::show))
        .route("/kinds/{kind}", get(kinds::one))
        .route("/dead", get(dead::show))
        .route("/actions", get(actions::index))
        .route("/actions/{verb}", get(actions::show).post(actions::confirm))
        .route("/act/{verb}", post(actions::act))
        .route("/publish", get(publish::show).post(publish::publish))
        .route("/services", get(services::show))
        .route("/schedules", get(schedules::show))
        .route("/leases", get(leases::show))
        .route("/drains", get(drains::show))
        .route("/retention", get(retention::show))
        .route("/doctor", get(doctor::show))
        .route("/doctor/run", get(doctor::run))
        .route("/audit", get(audit::show))
}

/// Reads a span from the address.
fn span(fields: &Form) -> Span {
    match fields.text("span") {
        Some("day") => Span::Day,
        Some("month") => Span::Month,
        _ => Span::Hour,
    }
}

/// The name of a span in the address.
fn span_name(span: Span) -> &'static str {
    match span {
        Span::Hour => "hour",
        Span::Day => "day",
        Span::Month => "month",
    }
}
