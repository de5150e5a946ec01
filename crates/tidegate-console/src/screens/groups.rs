//! Blocked groups, and the page of one group.

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use tidegate::admin::views::HEADS_LOOKED_AT;
use tidegate::admin::{UnblockAction, UnblockRequest};

use super::{events, quoted};
use crate::acts::{Act, audit};
use crate::desk::Desk;
use crate::form::{Asked, Fields};
use crate::html::{empty, event, field, named, number, table, time};
use crate::offer::{Offer, select};
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The most live events on a group's page.
const SHOWN: u32 = 100;

pub(super) async fn show(desk: Desk, Asked(asked): Asked) -> Result<Response, Problem> {
    if let Some(key) = asked.text("key") {
        return group(&desk, key).await;
    }
    let overview = desk.service().overview().await?;
    let count = overview.blocked.len();
    let body = html! {
        @if count == 0 { (empty("No group is blocked.")) } @else { (list(&desk, &overview.blocked)) }
        p.note { "A group is blocked while its first event waits for a retry or a planned time. The page checks the first " (number(u64::from(HEADS_LOOKED_AT))) " delayed events and lists at most 100 groups." }
    };
    let page = Page::new(
        Place::Groups,
        "Blocked groups",
        "tidegate blocked-groups",
        body,
    );
    Ok(page
        .fixed(search(&desk))
        .renewing(format!("{count} groups are blocked."))
        .answer(&desk))
}

fn search(desk: &Desk) -> Markup {
    html! {
        search { form.filters method="get" action=(desk.base().to("/groups")) {
            label { span { "Group" } input #filter name="key" required autocomplete="off"; } button.primary { "Show" }
        } }
    }
}

fn list(desk: &Desk, groups: &[Value]) -> Markup {
    let base = desk.base();
    let head = html! { th { "Group" } @if desk.may_act() { th { "Act" } } th { "First event" } th { "Kind" } th.n { "Attempts" } th.n { "Waiting behind" } th { "Next attempt" } th { "Last error" } };
    let rows = html! {
        @for group in groups {
            tr.go {
                th scope="row" { (named(&group["group_key"], |key| base.of("/groups", key))) }
                @if desk.may_act() { td { (unblock(desk, group["group_key"].as_str().unwrap_or_default())) } }
                td { (event(base, &group["head_id"])) }
                td { (named(&group["head_kind"], |kind| base.of("/kinds", kind))) }
                td.n { (field(&group["attempts"])) " of " (field(&group["max_attempts"])) }
                td.n { @if group["waiting"] == 1000 { "1,000 or more" } @else { (field(&group["waiting"])) } }
                td { (time(&group["available_at"])) }
                td.error { (field(&group["last_error"])) }
            }
        }
    };
    table("Blocked groups", &head, &rows)
}

fn unblock(desk: &Desk, key: &str) -> Markup {
    let how = [
        ("retry", "retry: run the first event at the next drain"),
        (
            "skip",
            "skip: move its unfinished handlers behind the other events",
        ),
        ("cancel", "cancel: end it; the other events go on"),
    ];
    let offer = Offer {
        verb: "unblock",
        label: "Unblock",
        explains: "Acts on the first event of the group.",
        of: &[("group", key)],
        is_grave: false,
    };
    offer.with(desk, &select("How", "how", "retry", &how))
}

pub(super) async fn one(desk: Desk, Path(key): Path<String>) -> Result<Response, Problem> {
    group(&desk, &key).await
}

async fn group(desk: &Desk, key: &str) -> Result<Response, Problem> {
    let live = desk.service().group(key, SHOWN).await?;
    let base = desk.base();
    let body = html! {
        div.actions { (unblock(desk, key)) }
        h2 { "Live events, in order" }
        @if live.is_empty() { (empty("This group has no live events.")) }
        @else { (events::picks(desk, &events::list(base, &live, desk.may_act()))) }
        @if live.len() >= SHOWN as usize { p.note { "The first " (SHOWN) "." } }
        p { a href=(base.to("/events").with("group", key).with("since", "1d")) { "All events of the group published in the last day, finished ones included" } }
    };
    let command = format!("tidegate list --group {}", quoted(key));
    let title = format!("Group {key}");
    Ok(Page::new(Place::Groups, title, command, body)
        .fixed(search(desk))
        .renewing("")
        .answer(desk))
}

/// What can be done with a group.
pub(super) const ACTS: &[Act] = &[("unblock", |desk, sent| Box::pin(act(desk, sent)))];

async fn act(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let how = match sent.needed("how")? {
        "retry" => UnblockAction::Retry,
        "skip" => UnblockAction::Skip,
        "cancel" => UnblockAction::Cancel,
        other => {
            return Err(Problem::invalid(format!(
                "how: must be retry, skip or cancel, got {other:?}"
            )));
        }
    };
    let asked = UnblockRequest {
        group: sent.needed("group")?.to_owned(),
        how: how.into(),
        audit: audit(desk, sent)?,
    };
    let report = desk.service().run(&asked).await?;
    if let Some(refused) = report.refused {
        return Err(Problem::conflict(refused));
    }
    desk.service().wake().await;
    let id = report.id.unwrap_or_default();
    Ok(match (how, report.new_id) {
        (UnblockAction::Retry, _) => format!("Event {id} runs at the next drain."),
        (UnblockAction::Skip, Some(new)) => {
            format!("The rest of event {id} was moved behind its group as event {new}.")
        }
        (UnblockAction::Skip | UnblockAction::Cancel, _) => {
            format!("Event {id} has ended; its group goes on.")
        }
    })
}
