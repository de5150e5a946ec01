//! Draws charts as SVG. Each has a title, a description and a table of its numbers. Colour is never the only
//! difference: failed events are hatched and on top.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tidegate_admin::views::{KindTotals, Span, Step};

use crate::html::{millis, number, share};

/// The height of a chart in its own units; its width is a hundred for each step.
const HEIGHT: u64 = 1000;

/// All steps of the span up to now, including those without events.
pub(crate) fn complete(span: Span, steps: &[Step], now: SystemTime) -> Vec<Step> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    let (length, step) = (span.length().as_secs(), span.step().as_secs());
    let last = now / step * step;
    let first = last.saturating_sub(length) + step;
    let of = |at: u64| {
        let mut there = steps.iter().filter(|known| known.at == at).copied();
        let mut empty = Step::default();
        empty.at = at;
        there.next().unwrap_or(empty)
    };
    let places = 0..length / step;
    places.map(|place| of(first + place * step)).collect()
}

/// The name of a span, within a sentence.
pub(crate) fn name(span: Span) -> &'static str {
    match span {
        Span::Hour => "the last hour",
        Span::Day => "the last day",
        Span::Month => "the last 30 days",
    }
}

/// The start of a step, as a time or a date.
fn label(span: Span, at: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
    let text = humantime::format_rfc3339_seconds(at).to_string();
    let part = match span {
        Span::Hour | Span::Day => text.get(11..16),
        Span::Month => text.get(5..10),
    };
    part.unwrap_or_default().to_owned()
}

/// Draws the finished events as stacked bars, one bar per step.
pub(crate) fn ended(span: Span, steps: &[Step]) -> Markup {
    let most = steps.iter().map(Step::ended).max();
    let most = most.unwrap_or(1).max(1);
    let total: u64 = steps.iter().map(Step::ended).sum();
    let failed: u64 = steps.iter().map(|step| step.failed).sum();
    let rejected: u64 = steps.iter().map(|step| step.rejected).sum();
    let desc = format!(
        "{} events finished in {}: {} rejected, {} failed. The highest bar is {}.",
        number(total),
        name(span),
        number(rejected),
        number(failed),
        number(most)
    );
    let bars = html! {
        defs {
            pattern #hatch width="24" height="24" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect.bad width="24" height="24" {} rect.gap width="8" height="24" {}
            }
        }
        @for (place, step) in steps.iter().enumerate() { (bar(place, step, most)) }
    };
    let rows = html! {
        @for step in steps.iter().rev().filter(|step| step.ended() > 0) {
            tr { th scope="row" { (label(span, step.at)) }
                td.n { (number(step.completed)) } td.n { (number(step.rejected)) } td.n { (number(step.failed)) }
                td.n { (millis(step.latency_ms / step.ended().max(1))) } }
        }
    };
    let head = html! { th { "From (UTC)" } th.n { "Completed" } th.n { "Rejected" } th.n { "Failed" } th.n { "Mean latency" } };
    let legend = html! {
        ul.legend {
            li { span.key.good {} "completed" } li { span.key.warn {} "rejected" } li { span.key.bad {} "failed" }
        }
    };
    figure(
        "ended",
        span,
        "Finished events",
        &desc,
        &number(most),
        steps,
        &bars,
        &legend,
        &Numbers { head, rows },
    )
}

fn bar(place: usize, step: &Step, most: u64) -> Markup {
    let height = |events: u64| match events {
        0 => 0,
        // Even a single event is visible.
        events => (events.saturating_mul(HEIGHT) / most).max(8),
    };
    let (good, warn, bad) = (
        height(step.completed),
        height(step.rejected),
        height(step.failed),
    );
    let x = place * 100 + 12;
    let top = HEIGHT.saturating_sub(good);
    let middle = top.saturating_sub(warn);
    html! {
        @if good > 0 { rect.good x=(x) y=(top) width="76" height=(good) {} }
        @if warn > 0 { rect.warn x=(x) y=(middle) width="76" height=(warn) {} }
        @if bad > 0 { rect.failed x=(x) y=(middle.saturating_sub(bad)) width="76" height=(bad) fill="url(#hatch)" {} }
    }
}

/// Draws the share of events that were not completed, as a line.
pub(crate) fn failures(span: Span, steps: &[Step]) -> Markup {
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let of = |step: &Step| {
        (step.ended() > 0).then(|| (step.rejected + step.failed) as f64 / step.ended() as f64)
    };
    let most = steps.iter().filter_map(of).fold(0.0, f64::max);
    let scale = if most > 0.25 {
        1.0
    } else if most > 0.05 {
        0.25
    } else {
        0.05
    };
    let bad: u64 = steps.iter().map(|step| step.rejected + step.failed).sum();
    let all: u64 = steps.iter().map(Step::ended).sum();
    let desc = format!(
        "{} of the events of {} were not completed; at most {:.1} % in one step.",
        share(bad, all),
        name(span),
        most * 100.0
    );
    let points = steps.iter().enumerate();
    let points = points.filter_map(|(place, step)| Some((place, of(step)?)));
    let points: Vec<(usize, f64)> = points.collect();
    let at = |(place, part): &(usize, f64)| {
        let height = 1000.0 - part / scale * 980.0 - 10.0;
        format!("{},{height:.0}", place * 100 + 50)
    };
    let line: Vec<String> = points.iter().map(at).collect();
    let drawn = html! {
        polyline.line points=(line.join(" ")) {}
        @for point in &line { @if let Some((x, y)) = point.split_once(',') { rect.dot x=(x.parse().unwrap_or(0_i64) - 12) y=(y.parse().unwrap_or(12_i64) - 12) width="24" height="24" {} } }
    };
    let rows = html! {
        @for (place, part) in points.iter().rev() {
            tr { th scope="row" { (label(span, steps[*place].at)) } td.n { (format!("{:.1} %", part * 100.0)) } }
        }
    };
    let head = html! { th { "From (UTC)" } th.n { "Not completed" } };
    let top = format!("{:.0} %", scale * 100.0);
    figure(
        "failures",
        span,
        "Share not completed",
        &desc,
        &top,
        steps,
        &drawn,
        &html! {},
        &Numbers { head, rows },
    )
}

/// The table below a chart.
struct Numbers {
    head: Markup,
    rows: Markup,
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of a picture, each of another kind"
)]
fn figure(
    id: &str,
    span: Span,
    title: &str,
    desc: &str,
    top: &str,
    steps: &[Step],
    drawn: &Markup,
    legend: &Markup,
    numbers: &Numbers,
) -> Markup {
    let labels = |place: usize| steps.get(place).map(|step| label(span, step.at));
    let (title_id, desc_id) = (format!("{id}-title"), format!("{id}-desc"));
    html! {
        figure.chart {
            figcaption { h2 { (title) } (legend) }
            div.plot {
                span.top aria-hidden="true" { (top) }
                svg role="img" aria-labelledby=(format!("{title_id} {desc_id}")) viewBox=(format!("0 0 {} {HEIGHT}", steps.len() * 100))
                    preserveAspectRatio="none" {
                    title id=(title_id) { (title) } desc id=(desc_id) { (desc) }
                    (drawn)
                }
                div.axis aria-hidden="true" { @for place in [0, steps.len() / 2, steps.len().saturating_sub(1)] { span { (labels(place).unwrap_or_default()) } } }
            }
            details id=(format!("{id}-numbers")) {
                summary { "Numbers" }
                p { (desc) }
                div.scroll role="region" aria-label=(format!("Numbers: {title}")) tabindex="0" {
                    table { thead { tr { (numbers.head) } } tbody { (numbers.rows) } }
                }
            }
        }
    }
}

/// The bounds of the latency histogram, in milliseconds: those of `tidegate.minute_stats`.
const BOUNDS: [u64; 8] = [50, 250, 1000, 5000, 30_000, 120_000, 600_000, 3_600_000];

/// Draws the latency distribution of a kind as a small histogram.
pub(crate) fn spread(figures: &KindTotals) -> Markup {
    let all = figures.within.iter().map(|(_, events)| *events);
    let (total, most) = (
        all.clone().sum::<u64>().max(1),
        all.max().unwrap_or(1).max(1),
    );
    let text = figures.within.iter().map(|(bound, events)| {
        let within = bound.map(|bound| format!("within {}", millis(bound)));
        let within = within.unwrap_or_else(|| "longer".to_owned());
        format!("{within}: {}", share(*events, total))
    });
    let text = text.collect::<Vec<_>>().join(", ");
    let bounds = BOUNDS.map(Some).into_iter().chain([None]);
    let events = |bound: Option<u64>| {
        let mut within = figures.within.iter();
        let found = within.find(|(known, _)| *known == bound);
        found.map_or(0, |(_, events)| *events)
    };
    html! {
        svg.spread role="img" aria-label=(text) viewBox="0 0 90 24" width="90" height="24" {
            title { (text) }
            @for (place, bound) in bounds.enumerate() {
                @let height = if events(bound) == 0 { 1 } else { (events(bound) * 23 / most).max(2) };
                rect class=(if events(bound) == 0 { "none" } else { "good" }) x=(place * 10) y=(24 - height) width="8" height=(height) {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_step_for_each_minute_hour_or_day_and_the_last_is_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 40 + 130);
        for (span, count) in [(Span::Hour, 60), (Span::Day, 24), (Span::Month, 30)] {
            let steps = complete(span, &[], now);
            assert_eq!(steps.len(), count);
            let last = steps.last().unwrap().at;
            assert!(last <= 86_400 * 40 + 130 && last + span.step().as_secs() > 86_400 * 40 + 130);
        }
    }

    #[test]
    fn a_chart_tells_its_numbers_in_words() {
        let mut step = Step::default();
        (step.at, step.completed, step.failed) = (86_400, 8, 2);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_430);
        let text = ended(Span::Hour, &complete(Span::Hour, &[step], now)).into_string();
        assert!(
            text.contains("10 events finished in the last hour: 0 rejected, 2 failed"),
            "{text}"
        );
        assert!(text.contains("url(#hatch)") && !text.contains("style="));
        let text = failures(Span::Hour, &complete(Span::Hour, &[step], now)).into_string();
        assert!(text.contains("20.0 % of the events"), "{text}");
    }
}
