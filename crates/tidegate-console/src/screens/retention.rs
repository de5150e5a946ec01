//! The retention of finished events, and the partitions of the log.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;

use super::kinds;
use crate::desk::Desk;
use crate::html::{bytes, field, named, nothing, number, short, table};
use crate::offer::{Offer, input, tick};
use crate::page::{Page, Place};
use crate::problem::Problem;

pub(super) async fn show(desk: Desk) -> Result<Response, Problem> {
    let service = desk.service();
    let (kinds, partitions) = tokio::try_join!(service.kinds(), service.log_partitions())?;
    let base = desk.base();
    let head = html! { th { "Kind" } th { "Completed" } th { "Failed and rejected" } @if desk.may_act() { th { "Act" } } };
    let rows = html! {
        @for kind in &kinds {
            tr {
                th scope="row" { (named(&Value::from(kind.kind.as_str()), |name| base.of("/kinds", name))) }
                td { (short(&kind.retention_completed)) } td { (short(&kind.retention_failed)) }
                @if desk.may_act() { td { (kinds::retention(&desk, &kind.kind)) } }
            }
        }
    };
    let body = html! {
        (table("Retention", &head, &rows))
        section { h2 { "Partitions of the log" } (partitions_of(&partitions)) }
        (upkeep(&desk))
    };
    Ok(Page::new(Place::Retention, "Retention", "tidegate retention", body).answer(&desk))
}

/// The cleanup, which a schedule usually starts. It stops in time for a request.
fn upkeep(desk: &Desk) -> Markup {
    let dry = tick("Dry run", "dry_run", false);
    let older = input("Only live events older than", "older_than", "", "0s");
    let cleanup = Offer {
        verb: "cleanup",
        label: "Clean up",
        explains: "Creates the log's partitions for the coming days, ends events that no drain would handle any more, and removes events whose retention is over. Runs for at most ten seconds.",
        of: &[],
        is_grave: true,
    };
    html! {
        @if desk.may_act() {
            section { h2 { "Upkeep" } (cleanup.without_reason(desk, &html! { (older) (dry) })) }
        }
    }
}

fn partitions_of(partitions: &[Value]) -> Markup {
    let total: u64 = partitions
        .iter()
        .filter_map(|one| one["bytes"].as_u64())
        .sum();
    let head = html! { th { "Partition" } th { "Expiry range" } th.n { "Events (estimate)" } th.n { "Size" } };
    let rows = html! {
        @for one in partitions {
            tr {
                th scope="row" { code { (field(&one["partition"])) } }
                td { (field(&one["holds"])) }
                td.n { @match one["rows"].as_u64() { Some(rows) => (number(rows)), None => (nothing()) } }
                td.n { (bytes(one["bytes"].as_u64().unwrap_or_default())) }
            }
        }
    };
    html! {
        p { (partitions.len()) " partitions, " (bytes(total)) " in all. The numbers of events are the planner's estimates; a dash means not analyzed yet." }
        details #partitions { summary { "Show all" } (table("Partitions", &head, &rows)) }
    }
}
