//! The checks of `tidegate doctor`.

use axum::response::Response;
use maud::html;
use tidegate::doctor::State;

use crate::desk::Desk;
use crate::html::{chip, table};
use crate::page::{Page, Place};
use crate::problem::Problem;

pub(super) async fn show(desk: Desk) -> Result<Response, Problem> {
    let report = desk.service().doctor().await?;
    let mut checks = report.checks;
    checks.sort_by_key(|check| match check.state {
        State::Problem => 0,
        State::Warning => 1,
        State::Ok => 2,
    });
    let head = html! { th { "Check" } th { "State" } th { "Found" } th { "Remedy" } };
    let rows = html! {
        @for check in &checks {
            tr {
                th scope="row" { (check.name) }
                td { @match check.state {
                    State::Ok => (chip("good", "✓", "ok")),
                    State::Warning => (chip("warn", "!", "warning")),
                    State::Problem => (chip("bad", "✕", "problem")),
                } }
                td { bdi { (check.finding) } }
                td { @if let Some(remedy) = &check.remedy { pre { code { (remedy) } } } }
            }
        }
    };
    let body = html! {
        @if report.ok { p { (chip("good", "✓", "ok")) " All checks passed." } }
        (table("Checks", &head, &rows))
    };
    Ok(Page::new(Place::Doctor, "Doctor", "tidegate doctor", body).answer(&desk))
}
