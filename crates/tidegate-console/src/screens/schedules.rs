//! Schedules of periodic events.

use maud::{Markup, html};
use tidegate_admin::{ScheduleStatus, SchedulesRequest};

use crate::action_forms::offer;
use crate::context::PageContext;
use crate::html::{chip, empty, event, millis, named, short, table, time_of};
use crate::page::Page;
use crate::problem::Answered;

pub(super) async fn show(ctx: PageContext) -> Answered {
    let wanted = SchedulesRequest { limit: Some(500) };
    let report = ctx.runtime().run(&wanted).await?;
    let stopped = report
        .schedules
        .iter()
        .filter(|one| one.state == "stopped")
        .count();
    let body = html! {
        @if report.schedules.is_empty() { (empty("There are no schedules.")) } @else { (list(&ctx, &report.schedules)) }
    };
    Page::new("/schedules", "Schedules", "tidegate schedules", body)
        .renewing(format!("{stopped} schedules have stopped."))
        .answer(&ctx)
}

fn list(ctx: &PageContext, schedules: &[ScheduleStatus]) -> Markup {
    let base = ctx.base();
    table! { "Schedules"; one in schedules;
        th "Name" { (short(&one.name)) }
        td "State" { (state(one)) }
        td "Act" if (ctx.may_act()) { (actions(ctx, one)) }
        td "Publishes" { (named(&one.kind.as_str().into(), |kind| base.of("/kinds", kind))) }
        td "When" { (when(one)) }
        td "Next" { (time_of(one.next_at.as_deref())) }
        td "Last slot" { (time_of(one.last_at.as_deref())) }
        td "Last event" { (event(base, &one.last_event_id.into())) }
        td "Missed slots" { (one.catch_up.as_str()) }
        td "Program" { (short(&one.keeper)) }
    }
}

fn state(one: &ScheduleStatus) -> Markup {
    let (class, sign) = match one.state.as_str() {
        "waiting" => ("good", "✓"),
        "due" => ("busy", "▸"),
        "stopped" | "unregistered_kind" => ("bad", "✕"),
        _ => ("warn", "‖"),
    };
    html! { (chip(class, sign, &one.state.replace('_', " "))) @if let Some(problem) = &one.problem { p.error { (short(problem)) } } }
}

fn when(one: &ScheduleStatus) -> Markup {
    html! {
        @if let Some(cron) = &one.cron { code { (short(cron)) } " " (short(&one.time_zone)) }
        @if let Some(every) = one.every_ms { "every " (millis(every.unsigned_abs())) }
    }
}

fn actions(ctx: &PageContext, one: &ScheduleStatus) -> Markup {
    let of = |what| [("name", one.name.as_str()), ("do", what)];
    html! {
        div.actions {
            (offer(ctx, "schedule", "Run now", &of("run"), &[]))
            @if one.state == "paused" { (offer(ctx, "schedule", "Resume", &of("resume"), &[])) }
            @else { (offer(ctx, "schedule", "Pause", &of("pause"), &[])) }
        }
    }
}
