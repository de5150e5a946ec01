//! Owns the output for people: a table on standard output that grows during the run.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use crate::measure::{Findings, Series, Target, Verdict};
use crate::setup::{LEAST_ROUNDS, ROUNDS};

/// Prints what a reader must know before the figures.
pub fn head(head: &Value) {
    let text = |name: &str| match &head[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    println!(
        "tidegate {}, {} set, {} cores ({}), {}, load before {}",
        text("tidegate"),
        text("set"),
        text("cores"),
        text("processor"),
        text("operating_system"),
        text("load_before")
    );
    let settings = head["server"].as_object().into_iter().flatten();
    let settings: Vec<String> = settings
        .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
        .collect();
    println!("Postgres: {}", settings.join(", "));
    println!(
        "one durable commit of one row takes {} ms (median of 100)",
        text("commit_ms")
    );
    println!(
        "figures are medians over the rounds, {LEAST_ROUNDS} to {ROUNDS} as time allows, ratios medians of each round's own; compare the ratios, not the figures, with those of other machines\n"
    );
    println!(
        "{:<58} {:>11} {:>23}  {:<13} {:>7}  against, target",
        "", "median", "min – max", "", "ratio"
    );
}

/// Prints the figures of a workload, and how long it took.
pub fn table(name: &str, about: &str, found: &Findings, took: Duration) {
    println!("{name}: {about} ({} s)", took.as_secs());
    for series in &found.series {
        let (least, most) = series.range();
        let line = format!(
            "  {:<56} {:>11} {:>23}  {:<13} {}",
            series.name,
            number(series.median()),
            format!("{} – {}", number(least), number(most)),
            series.unit,
            judgement(found, series)
        );
        println!("{}", line.trim_end());
    }
    for note in &found.notes {
        println!("  note: {note}");
    }
    println!();
}

/// Formats the ratio, its baseline and the target.
fn judgement(found: &Findings, series: &Series) -> String {
    let mut text = match (found.ratio(series), &series.against) {
        (Some(ratio), Some(against)) => format!("{ratio:>6.2} × {against}"),
        _ => format!("{:>8}", ""),
    };
    if let Some(target) = series.target {
        // Writing to a string cannot fail.
        let _ = match target {
            Target::Ratio(least) => write!(text, ", at least {least:.2}"),
            Target::AtMost(limit) => write!(text, " at most {}", number(limit)),
        };
    }
    match found.verdict(series) {
        Some(Verdict::Reached) => text + ": reached",
        Some(Verdict::Missed) => text + ": MISSED",
        None => text,
    }
}

/// Formats a value with its significant digits.
pub fn number(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 1000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
