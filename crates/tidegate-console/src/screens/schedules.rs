//! Schedules of periodic events.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use tidegate::admin::{
    Recurring, ScheduleRequest, ScheduleStatus, SchedulesRequest, parse_catch_up,
};

use crate::acts::{Act, audit};
use crate::desk::Desk;
use crate::form::Fields;
use crate::html::{chip, empty, event, millis, named, short, table, time_of};
use crate::offer::{Offer, input, reason, select};
use crate::page::{Page, Place};
use crate::problem::Problem;

pub(super) async fn show(desk: Desk) -> Result<Response, Problem> {
    let report = desk
        .service()
        .run(&SchedulesRequest { limit: Some(500) })
        .await?;
    let stopped = report
        .schedules
        .iter()
        .filter(|one| one.state == "stopped")
        .count();
    let body = html! {
        @if report.schedules.is_empty() { (empty("There are no schedules.")) } @else { (list(&desk, &report.schedules)) }
        (another(&desk))
    };
    Ok(
        Page::new(Place::Schedules, "Schedules", "tidegate schedules", body)
            .renewing(format!("{stopped} schedules have stopped."))
            .answer(&desk),
    )
}

fn list(desk: &Desk, schedules: &[ScheduleStatus]) -> Markup {
    let base = desk.base();
    let head = html! {
        th { "Name" } th { "State" } @if desk.may_act() { th { "Act" } } th { "Publishes" } th { "When" } th { "Next" } th { "Last slot" } th { "Last event" } th { "Missed slots" } th { "Owner" }
    };
    let rows = html! {
        @for one in schedules {
            tr {
                th scope="row" { (short(&one.name)) }
                td { (state(one)) }
                @if desk.may_act() { td { (actions(desk, one)) } }
                td { (named(&Value::from(one.kind.as_str()), |kind| base.of("/kinds", kind))) }
                td { (when(one)) }
                td { (time_of(one.next_at.as_deref())) }
                td { (time_of(one.last_at.as_deref())) }
                td { @if let Some(id) = one.last_event_id { (event(base, &id.into())) } @else { "–" } }
                td { (one.catch_up.as_str()) }
                td { @match &one.keeper { Some(keeper) => { "program " (short(keeper)) } None => "operators" } }
            }
        }
    };
    table("Schedules", &head, &rows)
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

fn actions(desk: &Desk, one: &ScheduleStatus) -> Markup {
    let offer = |what, label, explains, is_grave| {
        let of: &[(&str, &str)] = &[("name", &one.name), ("do", what)];
        Offer {
            verb: "schedule",
            label,
            explains,
            of,
            is_grave,
        }
        .plain(desk)
    };
    html! {
        div.actions {
            (offer("run", "Run now", "Publishes its event now, in addition to its schedule.", false))
            @if one.state == "paused" { (offer("resume", "Resume", "Publishes again, starting with the next slot.", false)) }
            @else { (offer("pause", "Pause", "Publishes nothing until it is resumed. Slots in between are skipped.", false)) }
            @if one.keeper.is_none() { (offer("remove", "Remove", "Deletes the schedule.", true)) }
        }
    }
}

/// The form for a schedule owned by operators.
fn another(desk: &Desk) -> Markup {
    if !desk.may_act() {
        return html! {};
    }
    html! {
        details.act {
            summary { "Create or change a schedule" }
            form method="post" action=(desk.base().of("/act", "schedule")) {
                p { "For schedules owned by operators. Schedules that a program declares are changed in the program." }
                input type="hidden" name="back" value=(desk.address);
                input type="hidden" name="do" value="set";
                label { span { "Name" } input name="name" required maxlength="100" autocomplete="off"; }
                label { span { "Kind" } input name="kind" required maxlength="100" autocomplete="off"; }
                (input("Cron expression", "cron", "", "30 2 * * *"))
                (input("or every", "every", "", "15m"))
                (input("Time zone", "time_zone", "", "Europe/Kyiv"))
                (input("Group", "group", "", ""))
                (input("Start within", "start_within", "", "10m"))
                (select("Missed slots", "catch_up", "last", &[("last", "publish the last one"), ("all", "publish all"), ("none", "skip")]))
                label.wide { span { "Payload (JSON)" } textarea name="payload" rows="3" {} }
                (reason())
                button.primary { "Save" }
            }
        }
    }
}

/// What can be done with a schedule.
pub(super) const ACTS: &[Act] = &[("schedule", |desk, sent| Box::pin(act(desk, sent)))];

async fn act(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let mut asked = ScheduleRequest {
        name: sent.needed("name")?.to_owned(),
        audit: audit(desk, sent)?,
        ..ScheduleRequest::default()
    };
    match sent.needed("do")? {
        "pause" => asked.change.pause = true,
        "resume" => asked.change.resume = true,
        "remove" => asked.change.remove = true,
        "run" => asked.change.run = true,
        _ => {
            asked.recurring = recurring(sent)?;
            asked.change.kind = Some(sent.needed("kind")?.to_owned());
        }
    }
    let change = desk.service().run(&asked).await?;
    if let Some(id) = change.event_id {
        desk.service().wake().await;
        return Ok(format!("{} has published event {id}.", change.name));
    }
    Ok(format!(
        "{}: {}{}.",
        change.name,
        change.change,
        if change.changed {
            ""
        } else {
            ", as it was before"
        }
    ))
}

fn recurring(sent: &Fields) -> Result<Recurring, Problem> {
    let payload = sent.text("payload").map(serde_json::from_str).transpose();
    let payload =
        payload.map_err(|error| Problem::invalid(format!("payload: must be JSON: {error}")))?;
    let catch_up = sent.text("catch_up").map(parse_catch_up).transpose();
    let catch_up = catch_up.map_err(|why| Problem::invalid(format!("catch_up: {why}")))?;
    Ok(Recurring {
        payload,
        cron: sent.owned("cron"),
        every: sent.duration("every")?,
        time_zone: sent.owned("time_zone"),
        group: sent.owned("group"),
        start_within: sent.duration("start_within")?,
        catch_up,
    })
}
