//! The retention of finished events, and the partitions of the log.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use tidegate::retention::{CleanupHooks, CleanupOptions, CleanupStop};

use super::kinds;
use crate::acts::{APPLYING, Act};
use crate::desk::Desk;
use crate::form::Fields;
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

/// What can be done with the log.
pub(super) const ACTS: &[Act] = &[("cleanup", |desk, sent| Box::pin(cleanup(desk, sent)))];

async fn cleanup(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let options = CleanupOptions {
        dry_run: sent.is_set("dry_run"),
        budget: APPLYING,
        older_than: sent.duration("older_than")?.unwrap_or_default(),
        actor: Some(desk.actor()),
        ..CleanupOptions::default()
    };
    let hooks = CleanupHooks::default();
    let report = desk.service().cleanup(&options, hooks).await?;
    let (ended, removed, other, made) = (
        number(report.expired + report.abandoned),
        number(report.rows_dropped + report.rows_deleted),
        number(report.records.values().sum::<u64>() + report.messages_forgotten),
        number(report.partitions_made),
    );
    let told = if report.dry_run {
        format!(
            "Dry run: {ended} live events would end, {removed} finished events and {other} other rows would be removed, {made} partitions created."
        )
    } else {
        format!(
            "{ended} live events have ended, {removed} finished events and {other} other rows were removed, {made} partitions created."
        )
    };
    let is_done = report.skipped == 0 && report.stop_reason == CleanupStop::Done;
    let more = if is_done {
        ""
    } else {
        " More is left to do: repeat the action."
    };
    Ok(format!("{told}{more}"))
}
