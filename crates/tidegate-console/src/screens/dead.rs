//! Dead letters by kind and error code, with links to replay them.

use std::time::Duration;

use axum::response::Response;
use maud::{Markup, html};
use tidegate::admin::views::{DEAD_LOOKED_AT, DeadLetters, Span};

use super::{options, span_name};
use crate::desk::Desk;
use crate::form::{Asked, Fields};
use crate::html::{empty, event, named, number, short, status, table, time_of};
use crate::link::Base;
use crate::offer::select;
use crate::page::{Page, Place};
use crate::problem::Problem;

const SPANS: [(&str, &str); 4] = [
    ("hour", "the last hour"),
    ("day", "the last day"),
    ("week", "the last week"),
    ("month", "the last 30 days"),
];

pub(super) async fn show(desk: Desk, Asked(asked): Asked) -> Result<Response, Problem> {
    let span = asked.text("span").unwrap_or("day");
    let kind = asked.text("kind");
    let letters = desk.service().dead_letters(length(span), kind).await?;
    let seen: u64 = letters.iter().map(|letter| letter.events).sum();
    let body = html! {
        @if letters.is_empty() { (empty("All events that finished in this time have completed.")) } @else { (list(&desk, &letters, since(span))) }
        @if seen >= u64::from(DEAD_LOOKED_AT) { p.note { "These are the latest " (number(seen)) "; there are more." } }
    };
    let command = format!(
        "tidegate list --status failed --since {}{}",
        since(span),
        options(&asked, &["kind"])
    );
    let said = format!("{} events were not completed.", number(seen));
    let page = Page::new(Place::Dead, "Dead letters", command, body);
    Ok(page
        .fixed(filters(desk.base(), &asked, span))
        .renewing(said)
        .answer(&desk))
}

fn length(span: &str) -> Duration {
    match span {
        "hour" => Span::Hour.length(),
        "week" => 7 * Span::Day.length(),
        "month" => Span::Month.length(),
        _ => Span::Day.length(),
    }
}

/// The span as the command line writes it.
fn since(span: &str) -> &'static str {
    match span {
        "hour" => "1h",
        "week" => "7d",
        "month" => "30d",
        _ => "1d",
    }
}

fn filters(base: &Base, asked: &Fields, span: &str) -> Markup {
    let span = if SPANS.iter().any(|(known, _)| *known == span) {
        span
    } else {
        span_name(Span::Day)
    };
    html! {
        search { form.filters method="get" action=(base.to("/dead")) {
            (select("Ended in", "span", span, &SPANS))
            label { span { "Kind" } input #filter name="kind" value=(asked.text("kind").unwrap_or_default()) autocomplete="off"; }
            button.primary { "Show" }
        } }
    }
}

fn list(desk: &Desk, letters: &[DeadLetters], since: &str) -> Markup {
    let base = desk.base();
    let head = html! { th { "Kind" } th { "Status" } th { "Error code" } th.n { "Events" } @if desk.may_act() { th { "Act" } } th { "First" } th { "Last" } th { "Latest" } th { "Message" } };
    let rows = html! {
        @for letter in letters {
            tr.go {
                th scope="row" { (named(&letter.kind.as_str().into(), |kind| base.to("/events").with("kind", kind).with("status", &letter.status).with("since", since))) }
                td { (status(&letter.status)) }
                td { code { (short(if letter.code.is_empty() { "none" } else { &letter.code })) } }
                td.n { (number(letter.events)) }
                @if desk.may_act() {
                    td { a.button href=(base.to("/replay").with("kind", &letter.kind).with("status", &letter.status).with("code", &letter.code).with("since", since)) { "Replay …" } }
                }
                td { (time_of(Some(&letter.first))) } td { (time_of(Some(&letter.last))) }
                td { (event(base, &letter.last_id.into())) }
                td.error { (short(letter.message.as_deref().unwrap_or_default())) }
            }
        }
    };
    table("Dead letters", &head, &rows)
}
