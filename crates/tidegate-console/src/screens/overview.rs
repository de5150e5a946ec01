//! The overview: figures, and what needs attention.

use std::collections::BTreeSet;

use maud::{Markup, html};
use tidegate::ServiceState;
use tidegate_admin::views::{Depth, Kind, KindTotals, Overview, Span, Step};

use super::{drains, span, span_name};
use crate::chart;
use crate::context::PageContext;
use crate::form::Params;
use crate::html::{age, chip, millis, named, number, share, table};
use crate::link::{Base, Link};
use crate::page::Page;
use crate::problem::Answered;

/// The most kinds in the table. With thousands the page would be too large for an answer of Lambda.
const MOST_KINDS: usize = 300;

pub(super) async fn show(ctx: PageContext, Params(request): Params) -> Answered {
    let span = span(&request);
    let service = ctx.runtime();
    let (overview, course, ended) = tokio::try_join!(
        service.overview(),
        service.course(span, None),
        service.ended(span)
    )?;
    let steps = chart::complete(span, &course, std::time::SystemTime::now());
    let sum = sum(&ended);
    let needs = needs(ctx.base(), &overview, sum, span);
    let said = match needs.len() {
        0 => "Nothing needs attention.".to_owned(),
        some => format!("{some} things need attention."),
    };
    let body = html! {
        (tiles(&overview, span, sum))
        (attention(&needs))
        div.charts { (chart::ended(span, &steps)) (chart::failures(span, &steps)) }
        (kinds(ctx.base(), &overview, &ended, span))
        section { h2 { "Last drains" } (drains::list(&overview.drains)) }
    };
    let page = Page::new("/", "Overview", "tidegate status", body);
    page.fixed(spans(&ctx.base().to("/"), span))
        .renewing(said)
        .answer(&ctx)
}

/// The sums of all kinds, as the page of dead letters counts them.
fn sum(ended: &[KindTotals]) -> Step {
    let mut sum = Step::default();
    for KindTotals { sum: step, .. } in ended {
        sum.completed += step.completed;
        sum.rejected += step.rejected;
        sum.failed += step.failed;
        sum.latency_ms += step.latency_ms;
    }
    sum
}

fn tiles(overview: &Overview, span: Span, sum: Step) -> Markup {
    let in_hand: u64 = overview.depths.iter().map(|depth| depth.running).sum();
    let delayed: u64 = overview.depths.iter().map(|depth| depth.delayed).sum();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = sum.ended() as f64 / span.length().as_secs_f64();
    let rate = if rate < 1.0 {
        format!("{:.1}/min", rate * 60.0)
    } else {
        format!("{rate:.1}/s")
    };
    let counted = if overview.is_estimate {
        ", of the first 100,000"
    } else {
        ""
    };
    html! {
        dl.tiles {
            (tile("In the queue", &number(overview.events), if overview.is_estimate { "an estimate" } else { "live events" }))
            (tile("Oldest", &if overview.events == 0 { "–".to_owned() } else { millis(overview.oldest_age_ms) }, "since it was published"))
            (tile("In progress", &number(in_hand), &format!("{} delayed{counted}", number(delayed))))
            (tile("Ended", &number(sum.ended()), &format!("{rate} in {}", chart::name(span))))
            (tile("Not completed", &share(sum.rejected + sum.failed, sum.ended()), &format!("{} of {}", number(sum.rejected + sum.failed), number(sum.ended()))))
            (tile("Mean latency", &if sum.ended() == 0 { "–".to_owned() } else { millis(sum.latency_ms / sum.ended()) }, "from publish to end"))
        }
    }
}

fn tile(name: &str, value: &str, note: &str) -> Markup {
    html! { div { dt { (name) } dd { strong { (value) } span { (note) } } } }
}

/// What needs attention, the most serious first.
fn needs(base: &Base, overview: &Overview, sum: Step, span: Span) -> Vec<Markup> {
    let mut needs = Vec::new();
    for service in overview
        .services
        .iter()
        .filter(|service| service.state != ServiceState::Closed)
    {
        needs.push(html! {
            (chip("bad", "✕", "service")) " " a href=(base.to("/services")) { bdi { (service.service) } } " has not been called for "
            (age(Some(&service.since))) "; " (number(service.waiting)) " events wait for it"
        });
    }
    let stuck: u64 = overview.depths.iter().map(|depth| depth.stuck).sum();
    if stuck > 0 {
        needs.push(html! {
            (chip("bad", "!", "stuck")) " " a href=(base.to("/leases")) { (number(stuck)) " events" }
            " are leased by workers that have stopped responding; the next drain takes them back"
        });
    }
    if overview.blocked > 0 {
        let text = number(overview.blocked);
        needs.push(html! {
            (chip("warn", "!", "blocked")) " " a href=(base.to("/groups")) { (text) " groups" } " wait for their first event"
        });
    }
    if sum.failed + sum.rejected > 0 {
        needs.push(html! {
            (chip("warn", "!", "dead letters")) " " a href=(base.to("/dead").with("span", span_name(span))) { (number(sum.failed)) " failed, " (number(sum.rejected)) " rejected" }
            " in " (chart::name(span))
        });
    }
    needs
}

fn attention(needs: &[Markup]) -> Markup {
    html! {
        section.attention {
            h2 { "Needs attention" }
            @if needs.is_empty() { p.empty { (chip("good", "✓", "ok")) " Nothing is blocked, stuck or down, and nothing has failed." } }
            @else { ul { @for need in needs { li { (need) } } } }
        }
    }
}

fn kinds(base: &Base, overview: &Overview, ended: &[KindTotals], span: Span) -> Markup {
    let live = overview.depths.iter().map(|depth| depth.kind.as_str());
    let ended_kinds = ended.iter().map(|figures| figures.kind.as_str());
    let names: BTreeSet<&str> = live.chain(ended_kinds).collect();
    let all = names.len();
    let label = format!("Kinds, {}", chart::name(span));
    let shown = names.into_iter().take(MOST_KINDS);
    html! {
        section {
            h2 { "By kind" }
            @if all > MOST_KINDS { p.note { "The first " (MOST_KINDS) " of " (number(all as u64)) " kinds." } }
            (figures(base, &label, shown, Some(&overview.depths), ended, &[]))
        }
    }
}

/// A table of kinds with their figures, their live events if these were counted, and their state if that is
/// known.
pub(super) fn figures<'a>(
    base: &Base,
    label: &str,
    names: impl Iterator<Item = &'a str>,
    depths: Option<&[Depth]>,
    ended: &[KindTotals],
    kinds: &[Kind],
) -> Markup {
    let depth = |name| depths?.iter().find(|depth| depth.kind == name);
    let of = |name, shown: &dyn Fn(&KindTotals) -> String| {
        let figures = ended.iter().find(|figures| figures.kind == name);
        figures.map_or_else(|| "–".to_owned(), shown)
    };
    let quantile = |figures: &KindTotals, part| match figures.quantile_ms(part) {
        Some(bound) => format!("≤ {}", millis(bound)),
        None => "longer".to_owned(),
    };
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let attempts =
        |figures: &KindTotals| figures.attempts as f64 / figures.sum.ended().max(1) as f64;
    table! { label, go; name in names;
        th "Kind" { (named(&name.into(), |name| base.of("/kinds", name))) }
        td "State" if (!kinds.is_empty()) { @if let Some(kind) = kinds.iter().find(|kind| kind.kind == name) { (state(kind)) } }
        n "Live" if (depths.is_some()) { (number(depth(name).map_or(0, |depth| depth.events))) }
        td "Oldest" if (depths.is_some()) { (age(depth(name).and_then(|depth| depth.oldest.as_deref()))) }
        n "Ended" { (of(name, &|figures| number(figures.sum.ended()))) }
        n "Not completed" { (of(name, &|figures| share(figures.sum.rejected + figures.sum.failed, figures.sum.ended()))) }
        n "Attempts per event" { (of(name, &|figures| format!("{:.2}", attempts(figures)))) }
        n "p50" { (of(name, &|figures| quantile(figures, 0.5))) }
        n "p95" { (of(name, &|figures| quantile(figures, 0.95))) }
        td "Latency" { @if let Some(figures) = ended.iter().find(|figures| figures.kind == name) { (chart::spread(figures)) } }
    }
}

/// Whether drains take events of a kind.
pub(super) fn state(kind: &Kind) -> Markup {
    if kind.paused {
        chip("warn", "‖", "paused")
    } else {
        chip("good", "▸", "active")
    }
}

/// Links to the spans of time of a page.
pub(super) fn spans(page: &Link, chosen: Span) -> Markup {
    html! {
        nav.tabs aria-label="Span of time" {
            @for (span, name) in [(Span::Hour, "Hour"), (Span::Day, "Day"), (Span::Month, "30 days")] {
                a href=(page.clone().with("span", span_name(span))) aria-current=[(span == chosen).then_some("true")] { (name) }
            }
        }
    }
}
