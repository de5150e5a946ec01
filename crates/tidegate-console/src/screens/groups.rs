//! Blocked groups, and the page of one group.

use axum::extract::Path;
use maud::{Markup, html};
use serde_json::{Value, json};
use tidegate_admin::BlockedGroupsRequest;
use tidegate_cli::quoted;

use super::events;
use crate::action_forms::offer;
use crate::context::PageContext;
use crate::form::Params;
use crate::html::{empty, event, field, named, table, why};
use crate::page::Page;
use crate::problem::Answered;

/// The most groups on the page, and the most live events on a group's page.
const SHOWN: u32 = 100;

pub(super) async fn show(ctx: PageContext, Params(request): Params) -> Answered {
    if let Some(key) = request.text("key") {
        return group(&ctx, key).await;
    }
    let wanted = BlockedGroupsRequest { limit: Some(SHOWN) };
    let report = json!(ctx.runtime().run(&wanted).await?);
    let groups = report["groups"].as_array().map_or(&[][..], Vec::as_slice);
    let count = groups.len();
    let body = html! {
        @if count == 0 { (empty("No group is blocked.")) } @else { (list(&ctx, groups)) }
        p.note { "A group is blocked while its first event waits for a retry, a planned time or a service. The page checks the first 10,000 delayed events of groups, and as many ready ones while a service is not called, and lists at most 100 groups." }
    };
    let page = Page::new("/groups", "Blocked groups", "tidegate blocked-groups", body);
    page.fixed(search(&ctx))
        .renewing(format!("{count} groups are blocked."))
        .answer(&ctx)
}

fn search(ctx: &PageContext) -> Markup {
    html! {
        search { form.filters method="get" action=(ctx.base().to("/groups")) {
            label { span { "Group" } input name="key" required autocomplete="off"; } button.primary { "Show" }
        } }
    }
}

fn list(ctx: &PageContext, groups: &[Value]) -> Markup {
    let base = ctx.base();
    table! { "Blocked groups", go; group in groups;
        th "Group" { (named(&group["group_key"], |key| base.of("/groups", key))) }
        td "Act" if (ctx.may_act()) { div.actions { (unblock(ctx, group["group_key"].as_str().unwrap_or_default())) } }
        td "First event" { (event(base, &group["head_id"])) }
        td "Kind" { (named(&group["head_kind"], |kind| base.of("/kinds", kind))) }
        n "Attempts" { (field(&group["attempts"])) " of " (field(&group["max_attempts"])) }
        n "Waiting behind" { @if group["waiting"] == 1000 { "1,000 or more" } @else { (field(&group["waiting"])) } }
        error "Why" { (why(base, &group["why"])) }
        error "Last error" { (field(&group["last_error"])) }
    }
}

fn unblock(ctx: &PageContext, key: &str) -> Markup {
    html! {
        (offer(ctx, "unblock", "Retry", &[("group", key), ("do", "retry")], &[]))
        (offer(ctx, "unblock", "Skip", &[("group", key), ("do", "skip")], &[]))
        (offer(ctx, "unblock", "Cancel", &[("group", key), ("do", "cancel")], &[]))
    }
}

pub(super) async fn one(ctx: PageContext, Path(key): Path<String>) -> Answered {
    group(&ctx, &key).await
}

async fn group(ctx: &PageContext, key: &str) -> Answered {
    let live = ctx.runtime().group(key, SHOWN).await?;
    let base = ctx.base();
    let body = html! {
        div.actions { (unblock(ctx, key)) }
        h2 { "Live events, in order" }
        @if live.is_empty() { (empty("This group has no live events.")) }
        @else { (events::picks(ctx, &live, &html! {})) }
        @if live.len() >= SHOWN as usize { p.note { "The first " (SHOWN) "." } }
        p { a href=(base.to("/events").with("group", key).with("created_since", "1d")) { "All events of the group published in the last day, finished ones included" } }
    };
    let command = format!("tidegate list --group {}", quoted(key));
    let title = format!("Group {key}");
    Page::new("/groups", title, command, body)
        .fixed(search(ctx))
        .renewing("")
        .answer(ctx)
}
