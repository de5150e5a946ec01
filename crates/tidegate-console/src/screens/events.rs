//! The list of events, newest first. Filters and pages are part of the address, and selected events can be
//! acted on.

use maud::{Markup, html};
use serde_json::Value;
use tidegate::admin::Request;
use tidegate::admin::{SearchReport, Searched};

use crate::acts::{Action, Intent};
use crate::desk::Desk;
use crate::form::{Fields, Params};
use crate::html::{empty, event, field, named, number, reason, status, table, time, time_of, why};
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

pub(super) async fn show(desk: Desk, Params(wanted): Params) -> Answered {
    let verb = Action::of("list").ok_or_else(Problem::not_found)?;
    let limit = wanted.number("limit")?.unwrap_or(LISTED);
    let mut bounded = wanted.clone();
    bounded.set("limit", &limit.clamp(1, MOST_LISTED).to_string());
    let Request::List(request) = verb.request(&desk, &bounded, Intent::Direct)? else {
        return Err(Problem::not_found());
    };
    let report = desk.service().search(&request).await?;
    let body = html! {
        @if report.events.is_empty() { (empty(if report.searched.is_some() { "No event matches so far." } else { "No event matches these filters." })) }
        @else { (picks(&desk, &list(desk.base(), &report.events, desk.may_act()))) }
        @if let Some(searched) = &report.searched { (reach(searched, wanted.is_set("before"))) }
        (pages(desk.base(), &wanted, &report))
    };
    let said = format!("{} events are listed.", number(report.events.len() as u64));
    let page = Page::new("/events", "Events", verb.command(&wanted, ""), body)
        .fixed(filters(&desk, verb, &wanted));
    // Later pages are for reading and do not renew themselves.
    let page = if wanted.is_set("before") {
        page
    } else {
        page.renewing(said)
    };
    page.answer(&desk)
}

fn filters(desk: &Desk, verb: Action, wanted: &Fields) -> Markup {
    let base = desk.base();
    html! {
        search {
            form.filters method="get" action=(base.to("/events")) {
                @for field in FILTERS.iter().filter_map(|name| verb.field(name)) { (field.input(wanted)) }
                button.primary { "Filter" }
            }
        }
        (links(desk, wanted))
        @if desk.may_act() {
            p.actions { a.button href=(base.to("/publish").with("kind", wanted.text("kind").unwrap_or_default())) { "Publish an event …" } " " a.button href=(base.to("/actions/forget")) { "Forget …" } " " a.button href=(base.to("/actions")) { "All actions" } }
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

/// Links to the actions on all events of a list, if its filter is one for live events.
fn links(desk: &Desk, wanted: &Fields) -> Markup {
    let is_narrow = ["kind", "group", "correlation_id"]
        .iter()
        .any(|name| wanted.is_set(name));
    let is_live = wanted
        .text("status")
        .is_none_or(|status| ["PENDING", "PROCESSING"].contains(&status));
    // What ended, or failed with a code, is not what the actions on live events select.
    let is_other = ["code", "since", "until"]
        .iter()
        .any(|name| wanted.is_set(name));
    if !desk.may_act() || !is_narrow || !is_live || is_other {
        return html! {};
    }
    let link = |verb| {
        let link = desk.base().of("/actions", verb);
        FILTERS.iter().fold(link, |link, name| {
            link.with(name, wanted.text(name).unwrap_or_default())
        })
    };
    html! {
        p.actions {
            a.button href=(link("reschedule").with("now", "on")) { "Start now all …" }
            a.button href=(link("reschedule")) { "Reschedule all …" }
            a.button href=(link("cancel")) { "Cancel all …" }
        }
    }
}

/// A link to the list without one of the filters.
fn filtered(base: &Base, wanted: &Fields, without: &str) -> Link {
    let kept = FILTERS.iter().filter(|name| **name != without);
    kept.fold(base.to("/events"), |link, name| {
        link.with(name, wanted.text(name).unwrap_or_default())
    })
}

/// How far the page has searched.
fn reach(searched: &Searched, is_further: bool) -> Markup {
    html! {
        p.note {
            "Searched "
            @if is_further { "the next " } @else { "the newest " }
            (number(searched.events.into())) " live and " (number(searched.events.into())) " finished events at most"
            @if let Some(back_to) = &searched.back_to { ", back to " (time_of(Some(back_to))) }
            ". Older events have not been searched yet."
        }
    }
}

fn pages(base: &Base, wanted: &Fields, report: &SearchReport) -> Markup {
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

/// The list with a form for the selected events.
pub(super) fn picks(desk: &Desk, list: &Markup) -> Markup {
    if !desk.may_act() {
        return list.clone();
    }
    let act = |verb: &str| desk.base().of("/act", verb);
    html! {
        form.picks method="post" action=(act("requeue")) {
            input type="hidden" name="back" value=(desk.address);
            (list)
            details.act {
                summary { "Act on the selected events …" }
                div.row {
                    (reason())
                    button formaction=(act("requeue")) { "Run again now" }
                    button formaction=(act("reschedule")) name="now" value="on" { "Start at the next drain" }
                    button formaction=(act("replay")) { "Replay" }
                    button.grave formaction=(act("cancel")) { "Cancel" }
                }
                p.note { "Run again, start and cancel work on live events; replay works on finished ones. Other events are skipped." }
            }
        }
    }
}

/// A table of events.
pub(super) fn list(base: &Base, events: &[Value], has_picks: bool) -> Markup {
    let has_reasons = events.iter().any(|one| !one["why"].is_null());
    table! { "Events", go; one in events;
        td "Select" if (has_picks) { input.pick type="checkbox" name="id" value=(one["id"]) aria-label=(format!("Select event {}", one["id"])); }
        th "Id" { (event(base, &one["id"])) }
        td "Kind" { (named(&one["kind"], |kind| base.of("/kinds", kind))) }
        td "Status" { (status(one["status"].as_str().unwrap_or_default())) }
        n "Attempts" { (field(&one["attempts"])) }
        error "Why" if (has_reasons) { (why(base, &one["why"])) }
        td "Group" { (named(&one["group_key"], |group| base.of("/groups", group))) }
        td "Correlation" { (named(&one["correlation_id"], |id| base.to("/events").with("correlation", id))) }
        td "Published" { (time(&one["created_at"])) }
        td "Ended" { (time(&one["finished_at"])) }
        error "Last error" { (field(&one["last_error"])) }
    }
}
