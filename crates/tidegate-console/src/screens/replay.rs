//! Replays many events: filter, dry run, reason, confirmation. The confirmation carries the digest of the
//! events that the dry run found. The database compares it in the transaction that replays, and replays
//! nothing if it has changed.

use axum::response::Response;
use maud::{Markup, html};
use tidegate::admin::{Audit, OrderRisks, ReplayReport, ReplayRequest};

use super::confirm::{
    Confirmation, Tile, carried, fixed, kinds, permitted, refused, skipped, tiles,
};
use super::options;
use crate::acts::audit;
use crate::desk::Desk;
use crate::flash;
use crate::form::{Asked, Fields, Sent};
use crate::html::{event, number, short, table, time_of};
use crate::link::Base;
use crate::offer::{input, select, tick};
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The fields that select the events, in the address and in the confirmation.
const FIELDS: [&str; 9] = [
    "kind",
    "status",
    "code",
    "since",
    "until",
    "limit",
    "expires_in",
    "again",
    "failed_handlers_only",
];

pub(super) async fn show(desk: Desk, Asked(asked): Asked) -> Result<Response, Problem> {
    permitted(&desk)?;
    let told = match asked.text("since") {
        Some(_) => dry_run(&desk, &asked).await?,
        None => {
            html! { p.note { "Choose the events. At least the field \"Ended since\" must be filled in." } }
        }
    };
    let command = format!(
        "tidegate replay --dry-run --reason 'a look'{}",
        options(&asked, &FIELDS[..7])
    );
    Ok(Page::new(Place::Dead, "Replay", command, told)
        .fixed(filters(&desk, &asked))
        .answer(&desk))
}

fn request(asked: &Fields) -> Result<ReplayRequest, Problem> {
    Ok(ReplayRequest {
        kind: asked.owned("kind"),
        status: asked.owned("status"),
        code: asked.owned("code"),
        since: fixed(asked.moment("since")?),
        until: fixed(asked.moment("until")?),
        limit: asked.number("limit")?,
        again: asked.is_set("again"),
        failed_handlers_only: asked.is_set("failed_handlers_only"),
        expires_in: asked.duration("expires_in")?,
        ..ReplayRequest::default()
    })
}

async fn dry_run(desk: &Desk, asked: &Fields) -> Result<Markup, Problem> {
    let asked_for = request(asked)?;
    let dry = ReplayRequest {
        dry_run: true,
        audit: Audit::of("a dry run").by(desk.actor()),
        ..asked_for.clone()
    };
    let report = desk.service().run(&dry).await?;
    Ok(html! {
        (counts(desk.base(), &report))
        @if let Some(risks) = &report.order_risks { (order(desk.base(), risks)) }
        (confirmation(desk, asked, &asked_for, &report))
    })
}

fn counts(base: &Base, report: &ReplayReport) -> Markup {
    let all = if report.limit_reached {
        "and there are more"
    } else {
        "all eligible events"
    };
    html! {
        section {
            h2 { "What it would do" }
            (tiles(&[
                Tile("Matching", report.matched, "events in the log"),
                Tile("Would be replayed", report.eligible, all),
                Tile("Skipped", report.skipped_count, "see the reasons below"),
            ]))
            (kinds(&report.kinds))
            (skipped(base, &report.skipped_reasons, &report.skipped))
            @if let Some(refused) = &report.refused { p.problem { bdi { (refused) } } }
        }
    }
}

fn order(base: &Base, risks: &OrderRisks) -> Markup {
    html! {
        section {
            h2 { "Risks to the order of groups" }
            @if risks.groups_with_live_events == 0 && risks.groups_overtaken == 0 { p { "None. Of the " (number(risks.groups)) " groups concerned, none has live events and none has later events that have finished." } }
            @if risks.groups_with_live_events > 0 {
                p { "Live events: in " (counted(risks.groups_with_live_events)) ". The replays would wait behind them." }
                (table("Groups with live events", &html! { th { "Group" } th.n { "Live" } }, &html! { @for group in &risks.live_events { tr { th scope="row" { a href=(base.of("/groups", &group.group_key)) { (short(&group.group_key)) } } td.n { (number(group.live)) } } } }))
            }
            @if risks.groups_overtaken > 0 {
                p { "In " (counted(risks.groups_overtaken)) " later events have already finished. The replays would run after events that they once preceded." }
                (table("Groups overtaken", &html! { th { "Group" } th.n { "Finished later" } th { "The last" } th { "When" } }, &html! { @for group in &risks.overtaken { tr { th scope="row" { a href=(base.of("/groups", &group.group_key)) { (short(&group.group_key)) } } td.n { (number(group.ended)) } td { (event(base, &group.last_id.into())) } td { (time_of(Some(&group.last_finished_at))) } } } }))
            }
        }
    }
}

/// The number of groups, as text.
fn counted(groups: u64) -> Markup {
    html! { strong { (number(groups)) } @if groups == 1 { " group" } @else { " groups" } }
}

fn confirmation(
    desk: &Desk,
    asked: &Fields,
    request: &ReplayRequest,
    report: &ReplayReport,
) -> Markup {
    if report.eligible == 0 || report.refused.is_some() {
        return html! { p.empty { "There is nothing to replay." } };
    }
    Confirmation {
        path: "/replay",
        what: format!("Replay {} events", number(report.eligible)),
        fields: carried(asked, &FIELDS, request.since, request.until),
        digest: &report.digest,
        further: html! {},
        note: "If the set of eligible events has changed by then, nothing is replayed.",
    }
    .show(desk)
}

fn filters(desk: &Desk, asked: &Fields) -> Markup {
    let given = |name| asked.text(name).unwrap_or_default();
    let statuses = [
        ("", "any"),
        ("FAILED", "failed"),
        ("COMPLETED_WITH_ERRORS", "rejected"),
        ("COMPLETED", "completed"),
    ];
    html! {
        search { form.filters method="get" action=(desk.base().to("/replay")) {
            label { span { "Kind" } input #filter name="kind" value=(given("kind")) autocomplete="off"; }
            (select("Ended", "status", given("status"), &statuses))
            (input("Error code", "code", given("code"), ""))
            label { span { "Ended since" } input name="since" value=(given("since")) required placeholder="2h or 2026-01-31T12:00:00Z" autocomplete="off"; }
            (input("and before", "until", given("until"), ""))
            (input("At most", "limit", given("limit"), "10000"))
            (input("New deadline in", "expires_in", given("expires_in"), "1h"))
            (tick("include events replayed before", "again", asked.is_set("again")))
            (tick("only handlers that failed", "failed_handlers_only", asked.is_set("failed_handlers_only")))
            button.primary { "Dry run" }
        } }
    }
}

/// Replays the events of the dry run, or nothing.
pub(super) async fn confirm(desk: Desk, Sent(sent): Sent) -> Result<Response, Problem> {
    permitted(&desk)?;
    let asked = ReplayRequest {
        audit: audit(&desk, &sent)?,
        digest: Some(sent.needed("digest")?.to_owned()),
        ..request(&sent)?
    };
    let report = desk.service().run(&asked).await?;
    if let Some(why) = report.refused {
        return Err(refused(&why));
    }
    desk.service().wake().await;
    let told = format!(
        "Replayed {} events; {} were skipped.",
        number(report.replayed),
        number(report.skipped_count)
    );
    let settings = &desk.shared.settings;
    Ok(flash::leading(
        settings,
        settings.base.to("/dead").as_str(),
        &told,
    ))
}
