//! The list of events, newest first. Filters and pages are part of the address, and selected events can be
//! acted on.

use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::Value;
use tidegate_admin::{ListReport, ListRequest, Request, Searched};

use crate::actions::{Action, Intent};
use crate::context::PageContext;
use crate::form::{Form, Params, Posted};
use crate::html::{
    empty, event, field, line, named, number, reason, status, table, time, time_of, why,
};
use crate::link::{Base, Link};
use crate::page::Page;
use crate::problem::{Answered, Problem};

/// The names of the filters in the address.
const FILTERS: [&str; 9] = [
    "kind",
    "status",
    "code",
    "group",
    "correlation_id",
    "since",
    "until",
    "created_since",
    "created_until",
];

/// The default number of events on a page.
const LISTED: u32 = 50;

/// The most events on a page.
const MOST_LISTED: u32 = 500;

/// The most events whose payloads are searched at once.
const LOOKED_AT: u32 = 10_000;

/// The states of live events.
const LIVE: [&str; 2] = ["PENDING", "PROCESSING"];

fn is_live(event: &Value) -> bool {
    event["status"]
        .as_str()
        .is_some_and(|status| LIVE.contains(&status))
}

/// The request for at most `limit` events of a filter.
fn request(
    ctx: &PageContext,
    verb: Action,
    wanted: &Form,
    limit: u32,
) -> Result<ListRequest, Problem> {
    let mut bounded = wanted.clone();
    bounded.set("limit", &limit.to_string());
    match verb.request(ctx, &bounded, Intent::Direct)? {
        Request::List(request) => Ok(request),
        _ => Err(Problem::not_found()),
    }
}

pub(super) async fn show(ctx: PageContext, Params(wanted): Params) -> Answered {
    let verb = Action::of("list").ok_or_else(Problem::not_found)?;
    let limit = wanted.number("limit")?.unwrap_or(LISTED);
    let request = request(&ctx, verb, &wanted, limit.clamp(1, MOST_LISTED))?;
    let (report, kinds) = tokio::try_join!(ctx.runtime().search(&request), ctx.kinds())?;
    let is_later = wanted.is_set("before");
    let body = html! {
        @if report.events.is_empty() { (empty(if report.searched.is_some() { "No event matches so far." } else { "No event matches these filters." })) }
        @else { (picks(&ctx, &report.events, &of_filter(&ctx, &wanted, &report.events, report.next.is_none() && !is_later))) }
        @if let Some(searched) = &report.searched { (reach(searched)) }
        (pages(ctx.base(), &wanted, &report))
    };
    let said = format!("{} events are listed.", number(report.events.len() as u64));
    let page = Page::new("/events", "Events", verb.command(&wanted, ""), body)
        .fixed(html! { (filters(&ctx, verb, &wanted)) (kinds) });
    // Later pages are for reading and do not renew themselves.
    let page = if is_later { page } else { page.renewing(said) };
    page.answer(&ctx)
}

/// Leads to the event of an id, or to the events of a kind or else of a correlation id.
pub(super) async fn find(ctx: PageContext, Params(request): Params) -> Answered {
    let (base, text) = (ctx.base(), request.text("q").unwrap_or_default().trim());
    let to = if text.parse::<i64>().is_ok() {
        base.of("/events", text)
    } else {
        let kinds = ctx.runtime().kinds().await?;
        let is_kind = kinds.iter().any(|one| one.kind == text);
        let name = if is_kind { "kind" } else { "correlation_id" };
        base.to("/events").with(name, text)
    };
    Ok(Redirect::to(to.as_str()).into_response())
}

/// Searches the payloads of the latest events of a filter. The text is sent in a form, so that no address
/// contains it.
pub(super) async fn search(ctx: PageContext, Posted(sent): Posted) -> Answered {
    if !ctx.shows_content() {
        return Err(Problem::forbidden("You may not read payloads."));
    }
    let verb = Action::of("list").ok_or_else(Problem::not_found)?;
    let text = sent.needed("text")?;
    let request = request(&ctx, verb, &sent, LOOKED_AT)?;
    let report = ctx.runtime().search(&request).await?;
    let id = |event: &Value| event["id"].as_i64();
    let ids: Vec<i64> = report.events.iter().filter_map(id).collect();
    let holding = ctx.runtime().holding(&ids, text).await?;
    let found = report
        .events
        .iter()
        .filter(|one| id(one).is_some_and(|id| holding.contains(&id)));
    let found: Vec<Value> = found.take(MOST_LISTED as usize).cloned().collect();
    let is_full = found.len() == MOST_LISTED as usize;
    let next = if is_full {
        found.last().and_then(id)
    } else {
        report.next
    };
    let oldest = report.events.last().map(|one| time(&one["created_at"]));
    let body = html! {
        p { "Of the " (number(ids.len() as u64)) " events that were looked at"
            @if let Some(oldest) = oldest { ", back to " (oldest) "," }
            " " strong { (number(holding.len() as u64)) } " contain the text." @if is_full { " The first " (MOST_LISTED) " are listed." } }
        @if !found.is_empty() { (list(ctx.base(), &found, false)) }
        @if let Some(next) = next { form method="post" action=(ctx.base().to("/events/search")) {
            (hidden(&sent)) input type="hidden" name="text" value=(text); input type="hidden" name="before" value=(next);
            button { "Search further →" }
        } }
    };
    let form = html! { (search_form(&ctx, &sent, text)) p { a href=(filtered(ctx.base(), &sent, "")) { "← All events of this filter" } } };
    Page::new("/events", "Search in payloads", "", body)
        .fixed(form)
        .answer(&ctx)
}

/// The filters as hidden fields.
fn hidden(wanted: &Form) -> Markup {
    html! { @for name in FILTERS { @if let Some(value) = wanted.text(name) { input type="hidden" name=(name) value=(value); } } }
}

/// The form that searches the payloads of a filter's events, for those who may read them.
fn search_form(ctx: &PageContext, wanted: &Form, text: &str) -> Markup {
    html! {
        @if ctx.shows_content() {
            details.act open[!text.is_empty()] {
                summary { "Search in payloads …" }
                form method="post" action=(ctx.base().to("/events/search")) {
                    p { "Looks at the payloads of the latest " (number(LOOKED_AT.into())) " events of this filter. The text must occur there as it is stored, with the same spaces and capital letters." }
                    (hidden(wanted))
                    label.wide { span { "Text" } input name="text" value=(text) required maxlength="1000" autocomplete="off"; }
                    button.primary { "Search" }
                }
            }
        }
    }
}

fn filters(ctx: &PageContext, verb: Action, wanted: &Form) -> Markup {
    let base = ctx.base();
    html! {
        search aria-label="Events" {
            form.filters method="get" action=(base.to("/events")) {
                @for field in FILTERS.iter().filter_map(|name| verb.field(name)) { (field.input(wanted)) }
                button.primary { "Filter" }
            }
        }
        div.actions {
            (search_form(ctx, wanted, ""))
            @if ctx.may_act() { a.button href=(base.to("/publish").with("kind", wanted.text("kind").unwrap_or_default())) { "Publish an event …" } " " a.button href=(base.to("/actions/forget")) { "Forget …" } " " a.button href=(base.to("/actions")) { "All actions" } }
        }
        @if FILTERS.iter().any(|name| wanted.is_set(name)) {
            ul.chips aria-label="Filters" {
                @for name in FILTERS {
                    @if let Some(value) = wanted.text(name) {
                        li { span { (name) " " bdi { (value) } } a href=(filtered(base, wanted, name)) { span aria-hidden="true" { "✕" } span.unseen { "without " (name) } } }
                    }
                }
                li.all { a href=(base.to("/events")) { "without filters" } }
            }
        }
    }
}

/// Links to the actions on all events of a filter, each only if the action can select by this filter.
/// `is_all` says whether `events` are all of them; then an action that none of them allows is left out.
fn of_filter(ctx: &PageContext, wanted: &Form, events: &[Value], is_all: bool) -> Markup {
    let has = |names: &[&str]| names.iter().any(|name| wanted.is_set(name));
    let status = wanted.text("status").map(|status| LIVE.contains(&status));
    let is_possible = |live| {
        status.is_none_or(|is_live| is_live == live)
            && (!is_all || events.iter().any(|one| is_live(one) == live))
    };
    let may_change = is_possible(true)
        && has(&["kind", "group", "correlation_id"])
        && !has(&["code", "since", "until"]);
    let may_replay = is_possible(false)
        && has(&["kind", "status", "code", "since", "until"])
        && !has(&["group", "correlation_id", "created_since", "created_until"]);
    let link = |verb| {
        let link = ctx.base().of("/actions", verb);
        FILTERS.iter().fold(link, |link, name| {
            link.with(name, wanted.text(name).unwrap_or_default())
        })
    };
    html! {
        @if may_change || may_replay {
            div.actions role="group" aria-label="All of this filter" {
                span.label { "All of this filter:" }
                @if may_change {
                    a.button href=(link("reschedule").with("now", "on")) { "Start now …" }
                    a.button href=(link("reschedule")) { "Reschedule …" }
                }
                @if may_replay { a.button href=(link("replay")) { "Replay …" } }
                @if may_change { a.button href=(link("cancel")) { "Cancel …" } }
            }
        }
    }
}

/// A link to the list without one of the filters.
fn filtered(base: &Base, wanted: &Form, without: &str) -> Link {
    let kept = FILTERS.iter().filter(|name| **name != without);
    kept.fold(base.to("/events"), |link, name| {
        link.with(name, wanted.text(name).unwrap_or_default())
    })
}

/// Says how far the page has searched.
fn reach(searched: &Searched) -> Markup {
    html! {
        p.note {
            "Searched " (number(searched.events.into())) " live and " (number(searched.events.into())) " finished events at most"
            @if let Some(back_to) = &searched.back_to { ", back to " (time_of(Some(back_to))) }
            ". Older events have not been searched yet."
        }
    }
}

fn pages(base: &Base, wanted: &Form, report: &ListReport) -> Markup {
    let first = filtered(base, wanted, "");
    html! {
        nav.pages aria-label="Pages" {
            @if wanted.is_set("before") { a href=(first) { "← Newest" } }
            @if let Some(next) = report.next {
                a href=(first.clone().with("limit", wanted.text("limit").unwrap_or_default()).with("before", &next.to_string())) rel="next" { @if report.searched.is_some() { "Search further →" } @else { "Older →" } }
            }
        }
    }
}

/// The list of events below a form for the selected ones, which offers what at least one event of the list
/// allows, and the actions on all events of the filter.
pub(super) fn picks(ctx: &PageContext, events: &[Value], of_filter: &Markup) -> Markup {
    let list = list(ctx.base(), events, ctx.may_act());
    if !ctx.may_act() {
        return list;
    }
    let act = |verb: &str| ctx.base().of("/act", verb);
    let has_live = events.iter().any(is_live);
    let has_ended = !events.iter().all(is_live);
    html! {
        form.picks method="post" action=(act(if has_live { "requeue" } else { "replay" })) {
            input type="hidden" name="back" value=(ctx.address);
            div.actions {
                details.act {
                    summary { "Act on the selected events …" }
                    div.row {
                        (reason())
                        @if has_live {
                            button formaction=(act("requeue")) { "Run again now" }
                            button formaction=(act("reschedule")) name="now" value="on" { "Start at the next drain" }
                        }
                        @if has_ended { button formaction=(act("replay")) { "Replay" } }
                        @if has_live { button.grave formaction=(act("cancel")) { "Cancel" } }
                    }
                    @if has_live && has_ended { p.note { "Run again, start and cancel work on live events; replay works on finished ones. Other events are skipped." } }
                }
                (of_filter)
            }
            (list)
        }
    }
}

/// A table of events. `has_picks` says whether each can be selected.
fn list(base: &Base, events: &[Value], has_picks: bool) -> Markup {
    let has_reasons = events.iter().any(|one| !one["why"].is_null());
    table! { "Events", go; one in events;
        td "Select" if (has_picks) { input.pick type="checkbox" name="id" value=(one["id"]) aria-label=(format!("Select event {}", one["id"])); }
        th "Id" { (event(base, &one["id"])) }
        td "Kind" { (named(&one["kind"], |kind| base.of("/kinds", kind))) }
        td "Status" { (status(one["status"].as_str().unwrap_or_default())) }
        error "Why" if (has_reasons) { (why(base, &one["why"])) }
        line "Last error" { (line(one["last_error"].as_str())) }
        n "Attempts" { (field(&one["attempts"])) }
        td "Published" { (time(&one["created_at"])) }
        td "Ended" { (time(&one["finished_at"])) }
        td "Group" { (named(&one["group_key"], |group| base.of("/groups", group))) }
        td "Correlation" { (named(&one["correlation_id"], |id| base.to("/events").with("correlation_id", id))) }
    }
}
