//! Finished drains and their cost.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use tidegate::admin::views::DrainRun;

use crate::desk::Desk;
use crate::html::{bytes, empty, millis, number, short, table, time_of};
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The most drains in the list.
const LISTED: u32 = 200;

pub(super) async fn show(desk: Desk) -> Result<Response, Problem> {
    let drains = desk.service().drains(LISTED).await?;
    let body = html! { p { "At most the latest " (LISTED) " drains. Reports are kept for a week." } (list(&drains)) };
    let command = "tidegate status --watch";
    Ok(Page::new(Place::Drains, "Drains", command, body)
        .renewing("")
        .answer(&desk))
}

pub(super) fn list(drains: &[DrainRun]) -> Markup {
    if drains.is_empty() {
        return empty("No drain has finished yet.");
    }
    let head = html! {
        th { "Ended" } th.n { "Duration" } th { "Stop reason" } th.n { "Completed" } th.n { "Not completed" } th.n { "Retried" }
        th.n { "Database time" } th.n { "WAL written" } th.n { "GB-s" } th { "Worker" }
    };
    let rows = html! { @for drain in drains { (row(drain)) } };
    table("Drains", &head, &rows)
}

fn row(drain: &DrainRun) -> Markup {
    let report = &drain.report;
    let count = |name: &str| report[name].as_u64().unwrap_or_default();
    let cost = &report["cost"];
    let told = |value: &Value, tell: fn(u64) -> String| {
        value.as_u64().map_or_else(|| "–".to_owned(), tell)
    };
    let reason = drain
        .stop_reason
        .as_deref()
        .unwrap_or("failed")
        .replace('_', " ");
    html! {
        tr {
            td { (time_of(Some(&drain.ended_at))) }
            td.n { (millis(count("elapsed_ms"))) }
            td { (short(&reason)) }
            td.n { (number(count("completed"))) }
            td.n { (number(count("completed_with_errors") + count("failed"))) }
            td.n { (number(count("retried"))) }
            td.n { (told(&cost["database_ms"], millis)) }
            td.n { (told(&cost["server_wal_bytes"], bytes)) }
            td.n { @if let Some(used) = cost["gb_seconds"].as_f64() { (format!("{used:.2}")) } @else { "–" } }
            td { code { (drain.worker.get(..8).unwrap_or(&drain.worker)) } }
        }
    }
}
