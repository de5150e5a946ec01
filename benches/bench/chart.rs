//! Draws an SVG chart that shows how far each target is reached: one bar for each target, with a
//! line at the target.

use std::fmt::Write;

use crate::measure::{Findings, Series, Target, Verdict};
use crate::report::number;

const ROW: u32 = 22;
const LEFT: u32 = 430;
const TARGET_AT: u32 = 200;
const RIGHT: u32 = 300;
/// Maximum length of a bar, in multiples of the target. The label shows the real value.
const LONGEST: f64 = 2.5;

/// Returns the chart of the targets of all workloads.
pub fn draw(workloads: &[(&str, Findings)]) -> String {
    let bars: Vec<String> = workloads
        .iter()
        .flat_map(|(name, found)| {
            let series = found.series.iter();
            series.filter_map(move |series| bar(name, found, series))
        })
        .collect();
    let rows = u32::try_from(bars.len()).unwrap_or(u32::MAX);
    let (width, height) = (LEFT + TARGET_AT * 5 / 2 + RIGHT, ROW * (rows + 2));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"15\" text-anchor=\"middle\">target</text>\n",
        LEFT + TARGET_AT
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = ROW * (u32::try_from(index).unwrap_or(u32::MAX) + 1);
        let _ = writeln!(svg, "<g transform=\"translate(0 {top})\">{bar}</g>");
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{0}\" x2=\"{0}\" y1=\"{ROW}\" y2=\"{1}\" stroke=\"black\"/>\n</svg>",
        LEFT + TARGET_AT,
        ROW * (rows + 1)
    );
    svg
}

/// Draws how many times the target was reached, with the range from the extremes of the rounds.
fn bar(workload: &str, found: &Findings, series: &Series) -> Option<String> {
    let (least, most) = series.range();
    let median = series.median();
    let (reached, text) = match series.target? {
        Target::Ratio(wanted) => {
            let ratio = found.ratio(series)?;
            let against = series.against.as_deref().unwrap_or_default();
            (
                ratio / wanted,
                format!("{ratio:.2} × {against} (at least {wanted:.2})"),
            )
        }
        Target::AtMost(limit) => (
            limit / median,
            format!(
                "{} {} (at most {})",
                number(median),
                series.unit,
                number(limit)
            ),
        ),
    };
    let scale = |value: f64| (value.min(LONGEST) * f64::from(TARGET_AT)).round();
    let colour = match found.verdict(series)? {
        Verdict::Reached => "#5a9e6f",
        Verdict::Missed => "#c8553d",
    };
    let inverse = matches!(series.target, Some(Target::AtMost(_)));
    let extreme = |value: f64| {
        reached
            * if inverse {
                median / value
            } else {
                value / median
            }
    };
    let (low, high) = (scale(extreme(least)), scale(extreme(most)));
    let left = f64::from(LEFT);
    Some(format!(
        "<text x=\"{}\" y=\"15\" text-anchor=\"end\">{}</text>\
         <rect x=\"{LEFT}\" y=\"4\" width=\"{}\" height=\"14\" fill=\"{colour}\"/>\
         <line x1=\"{}\" x2=\"{}\" y1=\"11\" y2=\"11\" stroke=\"black\"/>\
         <text x=\"{}\" y=\"15\">{}</text>",
        LEFT - 8,
        escaped(&format!("{workload}: {}", series.name)),
        scale(reached),
        left + low,
        left + high,
        left + scale(reached).max(low).max(high).max(f64::from(TARGET_AT)) + 8.0,
        escaped(&text),
    ))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
