//! One event: state, errors, results and payload.

use std::collections::BTreeMap;

use axum::extract::Path;
use maud::{Markup, html};
use serde_json::Value;
use tidegate::Json;
use tidegate_admin::views::{self, Content, Dossier};
use tidegate_cli::pretty;

use crate::action_forms::offer;
use crate::actions::title;
use crate::context::PageContext;
use crate::form::{Form, Params};
use crate::html::{
    bytes, chip, empty, field, named, nothing, number, status, table, text, time, why,
};
use crate::link::Base;
use crate::page::Page;
use crate::problem::{Answered, Problem};
use crate::report::cell;

/// The most characters of a document that are shown at first.
const SHOWN: usize = 20_000;

pub(super) async fn show(
    ctx: PageContext,
    Path(id): Path<String>,
    Params(request): Params,
) -> Answered {
    let id: i64 = id.parse().map_err(|_| Problem::not_found())?;
    let dossier = ctx.runtime().dossier(id, ctx.shows_content()).await?;
    let one = &dossier.event;
    let base = ctx.base();
    let state = one["status"].as_str().unwrap_or_default();
    let body = html! {
        div.lead { (status(state)) span.of { (named(&one["kind"], |kind| base.of("/kinds", kind))) } (actions(&ctx, one)) }
        p.why { (why(base, &one["why"])) }
        (work(&dossier))
        (facts(base, &dossier))
        @match &dossier.content {
            Some(content) => { (errors(content)) (documents(base, id, content, &request)) }
            None => { (last_error(one)) (hidden(&ctx)) }
        }
    };
    let title = format!("Event {id}");
    let page = Page::new("/events", title, format!("tidegate show {id}"), body);
    let is_live = one["in"] == "event_queue";
    let page = if is_live {
        page.renewing(format!("Event {id} is {}.", state.to_lowercase()))
    } else {
        page
    };
    page.answer(&ctx)
}

fn actions(ctx: &PageContext, one: &Value) -> Markup {
    let id = one["id"].to_string();
    let of: &[(&str, &str)] = &[("id", &id)];
    let start = &["now", "delay", "at", "expires_in", "no_deadline"];
    html! {
        div.actions {
            @if one["in"] == "event_queue" {
                (offer(ctx, "requeue", "Run again now", of, &[]))
                (offer(ctx, "reschedule", "Reschedule", of, start))
                (offer(ctx, "cancel", "Cancel", of, &[]))
            } @else { (offer(ctx, "replay", "Replay", of, &["failed_handlers_only", "expires_in"])) }
        }
    }
}

fn work(dossier: &Dossier) -> Markup {
    let Some(work) = &dossier.work else {
        return html! {};
    };
    let part = work["part"].as_f64().unwrap_or_default().clamp(0.0, 1.0);
    html! {
        p.work {
            "The handler " strong { (field(&work["handler"])) } " reports progress: "
            progress max="100" value=(format!("{:.0}", part * 100.0)) aria-label="progress" {} " " (format!("{:.0} %", part * 100.0))
            @if let Some(note) = work["note"].as_str() { ": " (text(note)) } " (" (time(&work["reported_at"])) ")"
        }
    }
}

/// The fields that stand elsewhere on the page.
const ELSEWHERE: [&str; 7] = ["in", "id", "kind", "status", "why", "delayed", "last_error"];

/// All that is stored about the event but its content, in the order of the command line.
fn facts(base: &Base, dossier: &Dossier) -> Markup {
    let one = dossier.event.as_object().into_iter().flatten();
    let told = |name: &str, value: &Value| !value.is_null() && !ELSEWHERE.contains(&name);
    let mut facts: Vec<_> = one.filter(|(name, value)| told(name, value)).collect();
    facts.sort_by_key(|(name, _)| views::place(name));
    let trace = dossier.content.as_ref().and_then(Content::trace_id);
    html! {
        dl.facts {
            @for (name, value) in facts { div { dt { (title(name)) } dd { (cell(base, name, value)) } } }
            @if let Some(trace) = trace { div { dt { "Trace id" } dd { code { (trace) } } } }
        }
    }
}

fn last_error(one: &Value) -> Markup {
    html! { @if let Some(error) = one["last_error"].as_str() { section { h2 { "Last error" } p.problem { (text(error)) } } } }
}

fn hidden(ctx: &PageContext) -> Markup {
    let why = if ctx.shared.settings.shows_content {
        "The console's database login may not read payloads, results and error details."
    } else {
        "This console does not show payloads, results and error details."
    };
    html! { section { h2 { "Payload" } p.empty { (chip("idle", "▪", "hidden")) " " (why) } } }
}

/// All errors, latest first.
fn errors(content: &Content) -> Markup {
    let faults: Vec<BTreeMap<String, Json>> = content
        .errors
        .as_deref()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    if faults.is_empty() {
        return html! {};
    }
    let value = |fault: &BTreeMap<String, Json>, name| -> Value {
        let json: Option<&Json> = fault.get(name);
        json.and_then(|json| json.read().ok()).unwrap_or_default()
    };
    let table = table! { "Errors"; fault in faults.iter().rev();
        n "Attempt" { (field(&value(fault, "attempt"))) }
        td "Handler" { (field(&value(fault, "handler"))) }
        th "Code" { code { (field(&value(fault, "code"))) } }
        error "Message" { @match value(fault, "message").as_str() { Some(message) => (text(message)), None => (nothing()) } }
        td "When" { (time(&value(fault, "at"))) }
        td "Details" { @if let Some(details) = fault.get("details").filter(|details| details.get() != "null") { pre { code { bdi { (pretty(details.get()).chars().take(SHOWN).collect::<String>()) } } } } }
    };
    html! { section { h2 { "Failed attempts" } (table) } }
}

fn documents(base: &Base, id: i64, content: &Content, request: &Form) -> Markup {
    let shown = [
        ("payload", "Payload", &content.payload),
        ("result", "Results", &content.result),
        ("progress", "Progress", &content.progress),
    ];
    html! {
        @for (name, title, document) in shown {
            @if let Some(document) = document {
                section {
                    h2 { (title) }
                    @if name == "payload" && content.is_sealed() { p { (chip("idle", "▪", "sealed")) " Only programs that have the key can read it." } }
                    (laid_out(base, id, name, title, document, request.text("whole") == Some(name)))
                }
            } @else if name == "payload" { section { h2 { (title) } (empty("None.")) } }
        }
    }
}

fn laid_out(
    base: &Base,
    id: i64,
    name: &str,
    title: &str,
    document: &str,
    is_whole: bool,
) -> Markup {
    let laid_out = pretty(document);
    let end = laid_out
        .char_indices()
        .nth(SHOWN)
        .map(|(end, _)| end)
        .filter(|_| !is_whole);
    html! {
        pre.document tabindex="0" role="region" aria-label=(title) { code { bdi { (&laid_out[..end.unwrap_or(laid_out.len())]) } } }
        @if end.is_some() {
            p.note { "The first " (number(SHOWN as u64)) " characters of " (bytes(document.len() as u64)) ". "
                a href=(base.to(&format!("/events/{id}")).with("whole", name)) { "Show all of it" } }
        }
    }
}
