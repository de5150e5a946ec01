//! The audit, latest entries first.

use maud::{Markup, html};
use serde_json::Value;
use tidegate_admin::views::AuditRequest;

use crate::context::PageContext;
use crate::form::{Form, Params};
use crate::html::{empty, event, field, input, named, table, time};
use crate::link::Base;
use crate::page::Page;
use crate::problem::Answered;

/// The entries on a page.
const LISTED: u32 = 50;

pub(super) async fn show(ctx: PageContext, Params(wanted): Params) -> Answered {
    let request = AuditRequest {
        before: wanted.number("before")?,
        actor: wanted.owned("actor"),
        action: wanted.owned("action"),
        limit: LISTED,
    };
    let entries = ctx.runtime().audit(&request).await?;
    let next = entries.last().filter(|_| entries.len() == LISTED as usize);
    let next = next.and_then(|entry| entry["id"].as_i64());
    let body = html! {
        @if entries.is_empty() { (empty("No entry matches.")) } @else { (list(ctx.base(), &entries)) }
        nav.pages aria-label="Pages" {
            @if let Some(next) = next { a rel="next" href=(page(ctx.base(), &wanted).with("before", &next.to_string())) { "Older →" } }
        }
    };
    // The command line has no verb for the audit.
    let command =
        "psql \"$DATABASE_URL\" -c 'SELECT * FROM tidegate.audit ORDER BY id DESC LIMIT 50'";
    Page::new("/audit", "Audit", command, body)
        .fixed(filters(ctx.base(), &wanted))
        .answer(&ctx)
}

fn page(base: &Base, wanted: &Form) -> crate::link::Link {
    let given = |name| wanted.text(name).unwrap_or_default();
    base.to("/audit")
        .with("actor", given("actor"))
        .with("action", given("action"))
}

fn filters(base: &Base, wanted: &Form) -> Markup {
    let given = |name| wanted.text(name).unwrap_or_default();
    html! {
        search { form.filters method="get" action=(base.to("/audit")) {
            (input("Operator", "actor", given("actor"), ""))
            (input("Action", "action", given("action"), "replay"))
            button.primary { "Filter" }
        } }
    }
}

fn list(base: &Base, entries: &[Value]) -> Markup {
    table! { "Audit"; entry in entries;
        td "Time" { (time(&entry["at"])) }
        td "Operator" { (named(&entry["actor"], |actor| base.to("/audit").with("actor", actor))) }
        th "Action" { (field(&entry["action"])) }
        n "Count" { (field(&entry["count"])) }
        td "Filter" { (of(&entry["filter"])) }
        td "Events" { (events(base, entry)) }
        td "Reason" { (field(&entry["reason"])) }
        td "Database user" { (field(&entry["session_user_name"])) }
    }
}

fn events(base: &Base, entry: &Value) -> Markup {
    let ids = entry["ids"].as_array().map_or(&[][..], Vec::as_slice);
    let is_cut = ids.len() == 10 && entry["count"].as_u64() > Some(10);
    html! { @for id in ids { (event(base, id)) " " } @if is_cut { "…" } }
}

/// The arguments of the action.
fn of(filter: &Value) -> Markup {
    html! {
        @for (name, value) in filter.as_object().into_iter().flatten() {
            @if !value.is_null() && *value != false { span.pair { (name) " " (field(value)) } " " }
        }
    }
}
