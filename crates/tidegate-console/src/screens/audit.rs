//! The audit, latest entries first.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use tidegate::admin::views::AuditRequest;

use crate::desk::Desk;
use crate::form::{Asked, Fields};
use crate::html::{empty, event, field, short, table, time};
use crate::link::Base;
use crate::offer::input;
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The entries on a page.
const LISTED: u32 = 50;

pub(super) async fn show(desk: Desk, Asked(asked): Asked) -> Result<Response, Problem> {
    let request = AuditRequest {
        before: asked.number("before")?,
        actor: asked.owned("actor"),
        action: asked.owned("action"),
        limit: LISTED,
    };
    let entries = desk.service().audit(&request).await?;
    let next = entries.last().filter(|_| entries.len() == LISTED as usize);
    let next = next.and_then(|entry| entry["id"].as_i64());
    let body = html! {
        @if entries.is_empty() { (empty("No entry matches.")) } @else { (list(desk.base(), &entries)) }
        nav.pages aria-label="Pages" {
            @if let Some(next) = next { a rel="next" href=(page(desk.base(), &asked).with("before", &next.to_string())) { "Older →" } }
        }
    };
    // The command line has no verb for the audit.
    let command =
        "psql \"$DATABASE_URL\" -c 'SELECT * FROM tidegate.audit ORDER BY id DESC LIMIT 50'";
    Ok(Page::new(Place::Audit, "Audit", command, body)
        .fixed(filters(desk.base(), &asked))
        .answer(&desk))
}

fn page(base: &Base, asked: &Fields) -> crate::link::Link {
    let given = |name| asked.text(name).unwrap_or_default();
    base.to("/audit")
        .with("actor", given("actor"))
        .with("action", given("action"))
}

fn filters(base: &Base, asked: &Fields) -> Markup {
    let given = |name| asked.text(name).unwrap_or_default();
    html! {
        search { form.filters method="get" action=(base.to("/audit")) {
            label { span { "Operator" } input #filter name="actor" value=(given("actor")) autocomplete="off"; }
            (input("Action", "action", given("action"), "replay"))
            button.primary { "Filter" }
        } }
    }
}

fn list(base: &Base, entries: &[Value]) -> Markup {
    let head = html! { th { "Time" } th { "Operator" } th { "Action" } th.n { "Count" } th { "Filter" } th { "Events" } th { "Reason" } th { "Database user" } };
    let rows = html! {
        @for entry in entries {
            tr {
                td { (time(&entry["at"])) }
                td { @if let Some(actor) = entry["actor"].as_str() { a href=(base.to("/audit").with("actor", actor)) { (short(actor)) } } @else { (field(&Value::Null)) } }
                th scope="row" { (field(&entry["action"])) }
                td.n { (field(&entry["count"])) }
                td { (of(&entry["filter"])) }
                td { @for id in entry["ids"].as_array().into_iter().flatten() { (event(base, id)) " " } @if entry["count"].as_u64() > Some(10) && entry["ids"].as_array().is_some_and(|ids| ids.len() == 10) { "…" } }
                td { (field(&entry["reason"])) }
                td { (field(&entry["session_user_name"])) }
            }
        }
    };
    table("Audit", &head, &rows)
}

/// The arguments of the action.
fn of(filter: &Value) -> Markup {
    html! {
        @for (name, value) in filter.as_object().into_iter().flatten() {
            @if !value.is_null() && *value != false { span.pair { (name) " " (field(value)) } " " }
        }
    }
}
