//! Leases: which workers hold which events.

use maud::{Markup, html};
use tidegate_admin::{LeaseStatus, LeasesRequest};

use crate::context::PageContext;
use crate::html::{chip, empty, event, number, short, table, time_of};
use crate::page::Page;
use crate::problem::Answered;

pub(super) async fn show(ctx: PageContext) -> Answered {
    let report = ctx
        .runtime()
        .run(&LeasesRequest { limit: Some(200) })
        .await?;
    let expired = report.leases.iter().filter(|lease| lease.expired).count();
    let body = html! {
        @if report.leases.is_empty() { (empty("No events are leased.")) } @else { (list(&ctx, &report.leases)) }
        @if expired > 0 { p.note { "The next drain takes back the events of the " (expired) " workers that have stopped responding." } }
    };
    let said = format!("{expired} workers have stopped responding.");
    Page::new("/leases", "Leases", "tidegate leases", body)
        .renewing(said)
        .answer(&ctx)
}

fn list(ctx: &PageContext, leases: &[LeaseStatus]) -> Markup {
    let base = ctx.base();
    table! { "Leases"; lease in leases;
        th "Worker" { @if let Some(name) = &lease.name { (short(name)) " " } code { (short(lease.worker.as_deref().and_then(|worker| worker.get(..8)).unwrap_or_default())) } }
        td "State" { @if lease.expired { (chip("bad", "!", "not responding")) } @else { (chip("busy", "▸", "working")) } }
        n "Events" { (number(lease.events)) }
        n "Started" { (number(lease.started)) }
        td "First" { (event(base, &lease.first_id.into())) }
        td "Last" { (event(base, &lease.last_id.into())) }
        td "Taken" { (time_of(Some(&lease.taken_at))) }
        td "Renewed" { (time_of(Some(&lease.renewed_at))) }
        td "Expires" { (time_of(Some(&lease.expires_at))) }
    }
}
