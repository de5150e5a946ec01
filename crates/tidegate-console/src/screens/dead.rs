//! Dead letters by kind and error code, with links to replay them.

use std::time::Duration;

use maud::{Markup, html};
use tidegate::admin::views::{DEAD_LOOKED_AT, DeadLetters};
use tidegate_cli::quoted;

use crate::desk::Desk;
use crate::form::Params;
use crate::html::{empty, event, input, named, number, select, short, status, table, time_of};
use crate::link::Base;
use crate::page::Page;
use crate::problem::Answered;

/// A span of time: its name in the address, its name for people, how the command line writes it, and its
/// hours.
const SPANS: [(&str, &str, &str, u64); 4] = [
    ("day", "the last day", "1d", 24),
    ("hour", "the last hour", "1h", 1),
    ("week", "the last week", "7d", 7 * 24),
    ("month", "the last 30 days", "30d", 30 * 24),
];

pub(super) async fn show(desk: Desk, Params(request): Params) -> Answered {
    let span = SPANS
        .iter()
        .find(|(name, ..)| request.text("span") == Some(name));
    let (span, _, since, hours) = *span.unwrap_or(&SPANS[0]);
    let kind = request.text("kind");
    let letters = desk
        .service()
        .dead_letters(Duration::from_hours(hours), kind)
        .await?;
    let seen: u64 = letters.iter().map(|letter| letter.events).sum();
    let body = html! {
        @if letters.is_empty() { (empty("All events that finished in this time have completed.")) } @else { (list(&desk, &letters, since)) }
        @if seen >= u64::from(DEAD_LOOKED_AT) { p.note { "These are the latest " (number(seen)) "; there are more." } }
    };
    let of_kind = kind.map(|kind| format!(" --kind {}", quoted(kind)));
    let command = format!(
        "tidegate list --status failed --since {since}{}",
        of_kind.unwrap_or_default()
    );
    let said = format!("{} events were not completed.", number(seen));
    let page = Page::new("/dead", "Dead letters", command, body);
    page.fixed(filters(desk.base(), kind, span))
        .renewing(said)
        .answer(&desk)
}

fn filters(base: &Base, kind: Option<&str>, span: &str) -> Markup {
    let spans = SPANS.map(|(name, label, ..)| (name, label));
    html! {
        search { form.filters method="get" action=(base.to("/dead")) {
            (select("Ended in", "span", span, &spans))
            (input("Kind", "kind", kind.unwrap_or_default(), ""))
            button.primary { "Show" }
        } }
    }
}

fn list(desk: &Desk, letters: &[DeadLetters], since: &str) -> Markup {
    let base = desk.base();
    let code = |letter: &DeadLetters| match &*letter.code {
        "" => short("none"),
        code => short(code),
    };
    table! { "Dead letters", go; letter in letters;
        th "Kind" { (named(&letter.kind.as_str().into(), |kind| base.to("/events").with("kind", kind).with("status", &letter.status).with("since", since))) }
        td "Status" { (status(&letter.status)) }
        td "Error code" { code { (code(letter)) } }
        n "Events" { (number(letter.events)) }
        td "Act" if (desk.may_act()) { a.button href=(base.to("/actions/replay").with("kind", &letter.kind).with("status", &letter.status).with("code", &letter.code).with("since", since)) { "Replay …" } }
        td "First" { (time_of(Some(&letter.first))) }
        td "Last" { (time_of(Some(&letter.last))) }
        td "Latest" { (event(base, &letter.last_id.into())) }
        error "Message" { (short(letter.message.as_deref().unwrap_or_default())) }
    }
}
