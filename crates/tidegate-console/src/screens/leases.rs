//! Leases: which workers hold which events.

use maud::{Markup, html};
use serde_json::Value;
use tidegate::admin::LeasesRequest;

use crate::desk::Desk;
use crate::html::{chip, empty, event, field, short, table, time};
use crate::page::Page;
use crate::problem::Answered;

pub(super) async fn show(desk: Desk) -> Answered {
    let report = desk
        .service()
        .run(&LeasesRequest { limit: Some(200) })
        .await?;
    let expired = report
        .leases
        .iter()
        .filter(|lease| lease["expired"] == true)
        .count();
    let body = html! {
        @if report.leases.is_empty() { (empty("No events are leased.")) } @else { (list(&desk, &report.leases)) }
        @if expired > 0 { p.note { "The next drain takes back the events of the " (expired) " workers that have stopped responding." } }
    };
    let said = format!("{expired} workers have stopped responding.");
    Page::new("/leases", "Leases", "tidegate leases", body)
        .renewing(said)
        .answer(&desk)
}

fn list(desk: &Desk, leases: &[Value]) -> Markup {
    let base = desk.base();
    table! { "Leases"; lease in leases;
        th "Worker" { @if let Some(name) = lease["name"].as_str() { (short(name)) " " } code { (short(lease["worker"].as_str().and_then(|worker| worker.get(..8)).unwrap_or_default())) } }
        td "State" { @if lease["expired"] == true { (chip("bad", "!", "not responding")) } @else { (chip("busy", "▸", "working")) } }
        n "Events" { (field(&lease["events"])) }
        n "Started" { (field(&lease["started"])) }
        td "First" { (event(base, &lease["first_id"])) }
        td "Last" { (event(base, &lease["last_id"])) }
        td "Taken" { (time(&lease["taken_at"])) }
        td "Renewed" { (time(&lease["renewed_at"])) }
        td "Expires" { (time(&lease["expires_at"])) }
    }
}
