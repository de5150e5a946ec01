//! Owns how answers look to people: tables, times, percentages. It asks nobody for anything.

pub mod cleanup;
pub mod operate;

use std::fmt::Write;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::Value;
use tidegate::StopReason;
use tidegate::invocation::{DrainReport, StatsReport};

/// What is in the queue and how it is doing, a line for each kind.
pub fn status(stats: &StatsReport) -> String {
    let mut table = plain_table(&[
        "kind",
        "pending",
        "running",
        "delayed",
        "oldest",
        "completed",
        "rejected",
        "failed",
        "failure rate",
        "p50",
        "p95",
        "p99",
    ]);
    for kind in &stats.kinds {
        table.add_row(vec![
            cell(&kind["kind"]),
            cell(&kind["pending"]),
            cell(&kind["processing"]),
            cell(&kind["delayed"]),
            time(&kind["oldest_age_ms"]),
            cell(&kind["completed"]),
            cell(&kind["completed_with_errors"]),
            cell(&kind["failed"]),
            percent(&kind["failure_rate"]),
            time(&kind["latency_p50_ms"]),
            time(&kind["latency_p95_ms"]),
            time(&kind["latency_p99_ms"]),
        ]);
    }
    let depth = match stats.backlog {
        0 => "the queue is empty".to_owned(),
        1 => format!("1 event in the queue, {} old", coarse(stats.oldest_age_ms)),
        events => format!(
            "{events} events in the queue, the oldest {} old",
            coarse(stats.oldest_age_ms)
        ),
    };
    format!("{depth}; finished ones of the last hour:\n{table}")
}

/// What a drain did.
pub fn drained(report: &DrainReport) -> String {
    let reason = match report.stop_reason {
        StopReason::QueueEmpty => "the queue is empty",
        StopReason::BudgetSpent => "the budget is spent",
        StopReason::LimitReached => "the limit of events is reached",
    };
    let mut table = counts(report);
    table.add_row(vec![
        "left in the queue".to_owned(),
        report.backlog.to_string(),
    ]);
    format!(
        "drained for {}: {reason}\n{table}",
        coarse(report.elapsed_ms)
    )
}

/// What a drain did until it failed.
pub fn broken_off(report: &DrainReport) -> String {
    let table = counts(report);
    format!("failed after {}\n{table}", coarse(report.elapsed_ms))
}

fn counts(report: &DrainReport) -> Table {
    let mut table = plain_table(&["what", "events"]);
    for (what, events) in [
        ("leased", report.leased),
        ("completed", report.completed),
        ("rejected by a handler", report.completed_with_errors),
        ("failed", report.failed),
        ("to be retried", report.retried),
        ("given back unstarted", report.released),
        ("lease lost", report.lease_lost),
        ("expired", report.expired),
        ("abandoned", report.abandoned),
        ("follow-ups published", report.published),
    ] {
        table.add_row(vec![what.to_owned(), events.to_string()]);
    }
    table
}

/// Everything that is stored about an event, a line for each field that has a value.
pub fn event(event: &Value) -> String {
    let mut text = String::new();
    for (name, value) in event.as_object().into_iter().flatten() {
        let value = match value {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        let value = value.replace('\n', "\n                       ");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:22} {value}");
    }
    text
}

/// Events, a line for each.
pub fn list(events: &[Value]) -> String {
    let mut table = plain_table(&[
        "id",
        "kind",
        "status",
        "attempts",
        "group",
        "created",
        "last error",
    ]);
    for event in events {
        table.add_row(vec![
            cell(&event["id"]),
            cell(&event["kind"]),
            cell(&event["status"]),
            cell(&event["attempts"]),
            cell(&event["group_key"]),
            instant(&event["created_at"]),
            cell(&event["last_error"]).chars().take(80).collect(),
        ]);
    }
    table.to_string()
}

fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.to_vec());
    table
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A timestamp without its fraction of a second.
fn instant(value: &Value) -> String {
    cell(value)
        .split('.')
        .next()
        .unwrap_or_default()
        .replace('T', " ")
}

fn time(milliseconds: &Value) -> String {
    milliseconds.as_u64().map(coarse).unwrap_or_default()
}

/// Above a second nobody reads the milliseconds.
fn coarse(milliseconds: u64) -> String {
    let duration = match milliseconds {
        0..1000 => Duration::from_millis(milliseconds),
        _ => Duration::from_secs(milliseconds.saturating_add(500) / 1000),
    };
    humantime::format_duration(duration).to_string()
}

fn percent(share: &Value) -> String {
    share
        .as_f64()
        .map(|share| format!("{:.1} %", share * 100.0))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds_above_one() {
        for (milliseconds, text) in [
            (0, "0s"),
            (999, "999ms"),
            (1000, "1s"),
            (623_973, "10m 24s"),
        ] {
            assert_eq!(coarse(milliseconds), text);
        }
    }
}
