//! Dead letters by kind, status and error code, with links to replay them.

use maud::{Markup, html};
use tidegate_admin::{Cause, FailuresReport, FailuresRequest, parse_time_arg};
use tidegate_cli::quoted;

use crate::context::PageContext;
use crate::form::Params;
use crate::html::{
    empty, event, input, line, named, number, select, short, status, table, time_of,
};
use crate::link::{Base, Link};
use crate::page::Page;
use crate::problem::{Answered, Problem};

/// Spans of time: the name in the address, the name for people, and how the command line writes it.
const SPANS: [(&str, &str, &str); 4] = [
    ("day", "the last day", "1d"),
    ("hour", "the last hour", "1h"),
    ("week", "the last week", "7d"),
    ("month", "the last 30 days", "30d"),
];

/// The most causes on the page.
const LISTED: u32 = 200;

pub(super) async fn show(ctx: PageContext, Params(request): Params) -> Answered {
    let span = SPANS
        .iter()
        .find(|(name, ..)| request.text("span") == Some(name));
    let (span, _, since) = *span.unwrap_or(&SPANS[0]);
    let kind = request.text("kind");
    let wanted = FailuresRequest {
        since: Some(parse_time_arg(since).map_err(Problem::invalid)?),
        kind: kind.map(str::to_owned),
        limit: Some(LISTED),
        ..FailuresRequest::default()
    };
    let (report, kinds) = tokio::try_join!(ctx.runtime().run(&wanted), ctx.kinds())?;
    let body = html! {
        @if report.failures.is_empty() { (empty("All events that finished in this time have completed.")) } @else { (list(&ctx, &report)) }
        @if report.limit_reached { p.note { "These are the " (LISTED) " most frequent causes; there are more." } }
    };
    let of_kind = kind.map(|kind| format!(" --kind {}", quoted(kind)));
    let command = format!(
        "tidegate failures --since {since} --limit {LISTED}{}",
        of_kind.unwrap_or_default()
    );
    let said = format!(
        "{} events failed, and {} were rejected.",
        number(report.failed),
        number(report.rejected)
    );
    let page = Page::new("/dead", "Dead letters", command, body);
    page.fixed(html! { (filters(ctx.base(), kind, span)) (kinds) p { (said) } })
        .renewing(said)
        .answer(&ctx)
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

fn list(ctx: &PageContext, report: &FailuresReport) -> Markup {
    let base = ctx.base();
    // `(unregistered)` and `(other)` stand for several names, which no filter has.
    let only = |name: &str| (!name.starts_with('(')).then(|| name.to_owned());
    let of = |page: Link, cause: &Cause| {
        page.with("kind", &only(&cause.kind).unwrap_or_default())
            .with("status", &cause.status)
            .with("code", &only(&cause.code).unwrap_or_default())
            .with("since", &report.since)
    };
    let code = |cause: &Cause| match &*cause.code {
        "" => short("none"),
        code => short(code),
    };
    table! { "Dead letters", go; cause in &report.failures;
        th "Kind" { (named(&cause.kind.as_str().into(), |_| of(base.to("/events"), cause))) }
        td "Status" { (status(&cause.status)) }
        td "Error code" { code { (code(cause)) } }
        n "Events" { (number(cause.events)) }
        line "Message" { (line(cause.message.as_deref())) }
        td "Act" if (ctx.may_act()) { a.button href=(of(base.to("/actions/replay"), cause)) { "Replay …" } }
        td "Last" { (time_of(Some(&cause.last))) }
        td "First" { (time_of(Some(&cause.first))) }
        td "Example" { (event(base, &cause.example.into())) }
    }
}
