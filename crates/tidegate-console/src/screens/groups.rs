//! Blocked groups, and the page of one group.

use axum::extract::Path;
use maud::{Markup, html};
use serde_json::{Value, json};
use tidegate::admin::BlockedGroupsRequest;
use tidegate_cli::quoted;

use super::events;
use crate::desk::Desk;
use crate::form::Params;
use crate::html::{empty, event, field, named, table, why};
use crate::offer::offer;
use crate::page::Page;
use crate::problem::Answered;

/// The most groups on the page, and the most live events on a group's page.
const SHOWN: u32 = 100;

pub(super) async fn show(desk: Desk, Params(request): Params) -> Answered {
    if let Some(key) = request.text("key") {
        return group(&desk, key).await;
    }
    let wanted = BlockedGroupsRequest { limit: Some(SHOWN) };
    let report = json!(desk.service().run(&wanted).await?);
    let groups = report["groups"].as_array().map_or(&[][..], Vec::as_slice);
    let count = groups.len();
    let body = html! {
        @if count == 0 { (empty("No group is blocked.")) } @else { (list(&desk, groups)) }
        p.note { "A group is blocked while its first event waits for a retry, a planned time or a service. The page checks the first 10,000 delayed events of groups, and as many ready ones while a service is not called, and lists at most 100 groups." }
    };
    let page = Page::new("/groups", "Blocked groups", "tidegate blocked-groups", body);
    page.fixed(search(&desk))
        .renewing(format!("{count} groups are blocked."))
        .answer(&desk)
}

fn search(desk: &Desk) -> Markup {
    html! {
        search { form.filters method="get" action=(desk.base().to("/groups")) {
            label { span { "Group" } input name="key" required autocomplete="off"; } button.primary { "Show" }
        } }
    }
}

fn list(desk: &Desk, groups: &[Value]) -> Markup {
    let base = desk.base();
    table! { "Blocked groups", go; group in groups;
        th "Group" { (named(&group["group_key"], |key| base.of("/groups", key))) }
        td "Act" if (desk.may_act()) { div.actions { (unblock(desk, group["group_key"].as_str().unwrap_or_default())) } }
        td "First event" { (event(base, &group["head_id"])) }
        td "Kind" { (named(&group["head_kind"], |kind| base.of("/kinds", kind))) }
        n "Attempts" { (field(&group["attempts"])) " of " (field(&group["max_attempts"])) }
        n "Waiting behind" { @if group["waiting"] == 1000 { "1,000 or more" } @else { (field(&group["waiting"])) } }
        error "Why" { (why(base, &group["why"])) }
        error "Last error" { (field(&group["last_error"])) }
    }
}

fn unblock(desk: &Desk, key: &str) -> Markup {
    html! {
        (offer(desk, "unblock", "Retry", &[("group", key), ("do", "retry")], &[]))
        (offer(desk, "unblock", "Skip", &[("group", key), ("do", "skip")], &[]))
        (offer(desk, "unblock", "Cancel", &[("group", key), ("do", "cancel")], &[]))
    }
}

pub(super) async fn one(desk: Desk, Path(key): Path<String>) -> Answered {
    group(&desk, &key).await
}

async fn group(desk: &Desk, key: &str) -> Answered {
    let live = desk.service().group(key, SHOWN).await?;
    let base = desk.base();
    let body = html! {
        div.actions { (unblock(desk, key)) }
        h2 { "Live events, in order" }
        @if live.is_empty() { (empty("This group has no live events.")) }
        @else { (events::picks(desk, &live, &html! {})) }
        @if live.len() >= SHOWN as usize { p.note { "The first " (SHOWN) "." } }
        p { a href=(base.to("/events").with("group", key).with("created_since", "1d")) { "All events of the group published in the last day, finished ones included" } }
    };
    let command = format!("tidegate list --group {}", quoted(key));
    let title = format!("Group {key}");
    Page::new("/groups", title, command, body)
        .fixed(search(desk))
        .renewing("")
        .answer(desk)
}
