//! Finished drains and their cost.

use maud::{Markup, html};
use tidegate_admin::views::DrainRun;

use crate::context::PageContext;
use crate::html::{bytes, chip, empty, millis, number, short, table, time_of};
use crate::page::Page;
use crate::problem::Answered;

/// The most drains in the list.
const LISTED: u32 = 200;

pub(super) async fn show(ctx: PageContext) -> Answered {
    let drains = ctx.runtime().drains(LISTED).await?;
    let body = html! { p { "At most the latest " (LISTED) " drains. Reports are kept for a week." } (list(&drains)) };
    let command = "tidegate status --watch";
    Page::new("/drains", "Drains", command, body)
        .renewing("")
        .answer(&ctx)
}

pub(super) fn list(drains: &[DrainRun]) -> Markup {
    if drains.is_empty() {
        return empty("No drain has finished yet.");
    }
    let count = |drain: &DrainRun, name: &str| drain.report[name].as_u64().unwrap_or_default();
    let cost = |drain: &DrainRun, name: &str, shown: fn(u64) -> String| {
        let cost = drain.report["cost"][name].as_u64();
        cost.map_or_else(|| "–".to_owned(), shown)
    };
    table! { "Drains"; drain in drains;
        td "Ended" { (time_of(Some(&drain.ended_at))) }
        n "Duration" { (millis(count(drain, "elapsed_ms"))) }
        td "Stop reason" {
            @if drain.stop_reason == "failed" { (chip("bad", "✕", "failed")) " " (short(drain.report["error"].as_str().unwrap_or_default())) }
            @else { (short(&drain.stop_reason.replace('_', " "))) }
        }
        n "Completed" { (number(count(drain, "completed"))) }
        n "Not completed" { (number(count(drain, "completed_with_errors") + count(drain, "failed"))) }
        n "Retried" { (number(count(drain, "retried"))) }
        n "Database time" { (cost(drain, "database_ms", millis)) }
        n "WAL written" { (cost(drain, "server_wal_bytes", bytes)) }
        n "GB-s" { @if let Some(used) = drain.report["cost"]["gb_seconds"].as_f64() { (format!("{used:.2}")) } @else { "–" } }
        td "Worker" { code { (drain.worker.get(..8).unwrap_or(&drain.worker)) } }
    }
}
