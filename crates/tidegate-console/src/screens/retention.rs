//! The retention of finished events, and the partitions of the log.

use maud::{Markup, html};
use serde_json::Value;

use super::kinds;
use crate::action_forms::offer;
use crate::context::PageContext;
use crate::html::{bytes, field, named, nothing, number, short, table};
use crate::page::Page;
use crate::problem::Answered;

pub(super) async fn show(ctx: PageContext) -> Answered {
    let service = ctx.runtime();
    let (kinds, partitions) = tokio::try_join!(service.kinds(), service.log_partitions())?;
    let base = ctx.base();
    let table = table! { "Retention"; kind in &kinds;
        th "Kind" { (named(&kind.kind.as_str().into(), |name| base.of("/kinds", name))) }
        td "Completed" { (short(&kind.retention_completed)) }
        td "Failed and rejected" { (short(&kind.retention_failed)) }
        td "Act" if (ctx.may_act()) { (kinds::retention(&ctx, &kind.kind)) }
    };
    let body = html! {
        (table)
        section { h2 { "Partitions of the log" } (partitions_of(&partitions)) }
        (upkeep(&ctx))
    };
    Page::new("/retention", "Retention", "tidegate retention", body).answer(&ctx)
}

/// The cleanup, which a schedule usually starts. It stops in time for a request.
fn upkeep(ctx: &PageContext) -> Markup {
    let cleanup = offer(ctx, "cleanup", "Clean up", &[], &["older_than", "dry_run"]);
    html! { @if ctx.may_act() { section { h2 { "Upkeep" } (cleanup) } } }
}

fn partitions_of(partitions: &[Value]) -> Markup {
    let total: u64 = partitions
        .iter()
        .filter_map(|one| one["bytes"].as_u64())
        .sum();
    let table = table! { "Partitions"; one in partitions;
        th "Partition" { code { (field(&one["partition"])) } }
        td "Expiry range" { (field(&one["holds"])) }
        n "Events (estimate)" { @match one["rows"].as_u64() { Some(rows) => (number(rows)), None => (nothing()) } }
        n "Size" { (bytes(one["bytes"].as_u64().unwrap_or_default())) }
    };
    html! {
        p { (partitions.len()) " partitions, " (bytes(total)) " in all. The numbers of events are the planner's estimates; a dash means not analyzed yet." }
        details #partitions { summary { "Show all" } (table) }
    }
}
