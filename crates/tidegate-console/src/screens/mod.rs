//! The pages, one file each. They show data, offer actions, and say what these do.

mod audit;
mod change;
mod confirm;
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
pub(crate) mod replay;
mod retention;
mod schedules;
mod services;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use tidegate::admin::views::Span;

use crate::acts::Act;
use crate::desk::Desk;
use crate::flash;
use crate::form::{Fields, Sent};
use crate::problem::Problem;
use crate::shared::Shared;

/// All pages and actions.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/events", get(events::show))
        .route("/events/{id}", get(event::show))
        .route("/groups", get(groups::show))
        .route("/groups/{key}", get(groups::one))
        .route("/kinds", get(kinds::show))
        .route("/kinds/{kind}", get(kinds::one))
        .route("/dead", get(dead::show))
        .route("/replay", get(replay::show).post(replay::confirm))
        .route("/change", get(change::show).post(change::confirm))
        .route("/publish", get(publish::show).post(publish::publish))
        .route("/forget", get(forget::show).post(forget::send))
        .route("/services", get(services::show))
        .route("/schedules", get(schedules::show))
        .route("/leases", get(leases::show))
        .route("/drains", get(drains::show))
        .route("/retention", get(retention::show))
        .route("/doctor", get(doctor::show))
        .route("/doctor/run", get(doctor::run))
        .route("/audit", get(audit::show))
        .route("/act/{verb}", post(act))
}

/// Runs an action.
async fn act(desk: Desk, Path(verb): Path<String>, Sent(sent): Sent) -> Result<Response, Problem> {
    confirm::permitted(&desk)?;
    let found = acts().find(|(name, _)| *name == verb);
    let (_, act) = found.ok_or_else(Problem::not_found)?;
    let told = act(&desk, &sent).await?;
    let to = sent.back(desk.base(), "/");
    Ok(flash::leading(&desk.shared.settings, &to, &told))
}

/// All actions.
fn acts() -> impl Iterator<Item = &'static Act> {
    [
        event::ACTS,
        change::ACTS,
        groups::ACTS,
        kinds::ACTS,
        services::ACTS,
        schedules::ACTS,
        retention::ACTS,
    ]
    .into_iter()
    .flatten()
}

/// Reads a span from the address.
fn span(fields: &Fields) -> Span {
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

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=:.,/+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns the options of a command from fields of the same names. Empty fields are left out.
fn options(fields: &Fields, names: &[&str]) -> String {
    let told = names.iter().filter_map(|name| {
        let value = fields.text(name)?;
        Some(format!(" --{} {}", name.replace('_', "-"), quoted(value)))
    });
    told.collect()
}
