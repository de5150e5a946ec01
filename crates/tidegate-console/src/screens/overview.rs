//! The overview: figures, and what needs attention.

use axum::response::Response;
use maud::{Markup, html};
use tidegate::ServiceState;
use tidegate::admin::views::{KindFigures, Overview, Span, Step};

use super::{drains, span, span_name};
use crate::chart;
use crate::desk::Desk;
use crate::form::Asked;
use crate::html::{age, chip, millis, named, number, share, table};
use crate::link::Base;
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The most kinds in the table. With thousands the page would be too large for an answer of Lambda.
const MOST_KINDS: usize = 300;

pub(super) async fn show(desk: Desk, Asked(asked): Asked) -> Result<Response, Problem> {
    let span = span(&asked);
    let service = desk.service();
    let (overview, course, ended) = tokio::try_join!(
        service.overview(),
        service.course(span, None),
        service.ended(span)
    )?;
    let steps = chart::complete(span, &course, std::time::SystemTime::now());
    let sum = sum(&steps);
    let needs = needs(desk.base(), &overview, sum, span);
    let said = match needs.len() {
        0 => "Nothing needs attention.".to_owned(),
        some => format!("{some} things need attention."),
    };
    let body = html! {
        (tiles(&overview, span, sum))
        (attention(&needs))
        div.charts { (chart::ended(span, &steps)) (chart::failures(span, &steps)) }
        (kinds(desk.base(), &overview, &ended, span))
        section { h2 { "Last drains" } (drains::list(&overview.drains)) }
    };
    let page = Page::new(Place::Overview, "Overview", "tidegate status", body);
    Ok(page
        .fixed(spans(desk.base(), span))
        .renewing(said)
        .answer(&desk))
}

fn spans(base: &Base, chosen: Span) -> Markup {
    html! {
        nav.tabs aria-label="Span of time" {
            @for (span, name) in [(Span::Hour, "Hour"), (Span::Day, "Day"), (Span::Month, "30 days")] {
                a href=(base.to("/").with("span", span_name(span))) aria-current=[(span == chosen).then_some("true")] { (name) }
            }
        }
    }
}

fn sum(steps: &[Step]) -> Step {
    let mut sum = Step::default();
    for step in steps {
        sum.completed += step.completed;
        sum.rejected += step.rejected;
        sum.failed += step.failed;
        sum.latency_ms += step.latency_ms;
    }
    sum
}

fn tiles(overview: &Overview, span: Span, sum: Step) -> Markup {
    let in_hand: u64 = overview.depths.iter().map(|depth| depth.processing).sum();
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
    let blocked = overview.blocked.len();
    if blocked > 0 {
        let told = if blocked >= 100 {
            "100 or more".to_owned()
        } else {
            number(blocked as u64)
        };
        needs.push(html! {
            (chip("warn", "!", "blocked")) " " a href=(base.to("/groups")) { (told) " groups" } " wait for their first event"
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

fn kinds(base: &Base, overview: &Overview, ended: &[KindFigures], span: Span) -> Markup {
    let mut names: Vec<&str> = overview
        .depths
        .iter()
        .map(|depth| depth.kind.as_str())
        .collect();
    names.extend(ended.iter().map(|figures| figures.kind.as_str()));
    names.sort_unstable();
    names.dedup();
    let all = names.len();
    names.truncate(MOST_KINDS);
    let head = html! {
        th { "Kind" } th.n { "Live" } th { "Oldest" } th.n { "Ended" } th.n { "Not completed" } th.n { "Attempts per event" }
        th.n { "p50" } th.n { "p95" } th { "Latency" }
    };
    let rows = html! {
        @for name in names {
            @let depth = overview.depths.iter().find(|depth| depth.kind == name);
            @let figures = ended.iter().find(|figures| figures.kind == name);
            tr {
                th scope="row" { (named(&name.into(), |name| base.of("/kinds", name))) }
                td.n { (number(depth.map_or(0, |depth| depth.events))) }
                td { (age(depth.and_then(|depth| depth.oldest.as_deref()))) }
                @if let Some(figures) = figures { (figures_of(figures)) } @else { td.n { "0" } td.n { "–" } td.n { "–" } td.n { "–" } td.n { "–" } td {} }
            }
        }
    };
    html! {
        section {
            h2 { "By kind" }
            @if all > MOST_KINDS { p.note { "The first " (MOST_KINDS) " of " (number(all as u64)) " kinds." } }
            (table(&format!("Kinds, {}", chart::name(span)), &head, &rows))
        }
    }
}

/// The table cells with the figures of a kind.
pub(super) fn figures_of(figures: &KindFigures) -> Markup {
    let sum = figures.sum;
    let quantile = |part: f64| {
        figures.quantile_ms(part).map_or_else(
            || "longer".to_owned(),
            |bound| format!("≤ {}", millis(bound)),
        )
    };
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let attempts = figures.attempts as f64 / sum.ended().max(1) as f64;
    html! {
        td.n { (number(sum.ended())) }
        td.n { (share(sum.rejected + sum.failed, sum.ended())) }
        td.n { (format!("{attempts:.2}")) }
        td.n { (quantile(0.5)) } td.n { (quantile(0.95)) }
        td { (chart::spread(figures)) }
    }
}
