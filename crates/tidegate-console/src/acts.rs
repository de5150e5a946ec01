//! Handles actions. Each action is a form. It calls the same function of the program as the verb of the
//! command line, with the person's name for the audit, and redirects to the page where the form was.

mod upkeep;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::post;
use tidegate::operate::{
    CancelRequest, KindRequest, Periodic, PolicyRequest, ReplayRequest, RequeueRequest,
    RescheduleRequest, ScheduleAction, ScheduleRequest, ServiceAction, ServiceRequest, Skipped,
    UnblockAction, UnblockRequest, parse_catch_up,
};

use crate::desk::Desk;
use crate::flash;
use crate::form::{Fields, Sent};
use crate::html::number;
use crate::problem::Problem;
use crate::shared::Shared;

/// All actions.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/act/{verb}", post(act))
}

async fn act(desk: Desk, Path(verb): Path<String>, Sent(sent): Sent) -> Result<Response, Problem> {
    if !desk.may_act() {
        return Err(Problem::forbidden("You have read-only access."));
    }
    let told = match verb.as_str() {
        "requeue" => requeue(&desk, &sent).await?,
        "cancel" => cancel(&desk, &sent).await?,
        "reschedule" => reschedule(&desk, &sent).await?,
        "replay" => replay(&desk, &sent).await?,
        "unblock" => unblock(&desk, &sent).await?,
        "pause" | "resume" => pause(&desk, &sent, &verb).await?,
        "retire" => retire(&desk, &sent).await?,
        "policy" => policy(&desk, &sent).await?,
        "retention" => upkeep::retention(&desk, &sent).await?,
        "cleanup" => upkeep::cleanup(&desk, &sent).await?,
        "service" => service(&desk, &sent).await?,
        "schedule" => schedule(&desk, &sent).await?,
        _ => return Err(Problem::not_found()),
    };
    let to = sent.back(desk.base(), "/");
    Ok(flash::leading(&desk.shared.settings, &to, &told))
}

/// The reason. It is checked before the database is asked.
fn reason(sent: &Fields) -> Result<String, Problem> {
    sent.needed("reason").map(str::to_owned)
}

/// Describes how many events were changed. If none was, the page showed an outdated state, which is a
/// conflict.
fn done(
    what: &str,
    count: u64,
    skipped_count: u64,
    skipped: &[Skipped],
) -> Result<String, Problem> {
    let why = skipped
        .first()
        .map(|first| format!(": event {} {}", first.id, first.reason));
    if count == 0 {
        let why = why.unwrap_or_default();
        return Err(Problem::conflict(format!("No event was {what}{why}.")));
    }
    let left = match skipped_count {
        0 => String::new(),
        _ => format!(
            "; {} skipped{}",
            number(skipped_count),
            why.unwrap_or_default()
        ),
    };
    let events = if count == 1 { "event" } else { "events" };
    Ok(format!("{} {events} {what}{left}.", number(count)))
}

async fn requeue(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = RequeueRequest {
        ids: sent.ids("id")?,
        reason: reason(sent)?,
        actor: Some(desk.actor()),
    };
    let report = desk.service().requeue(&asked).await?;
    desk.service().wake().await;
    done(
        "put back for the next drain",
        report.requeued,
        report.skipped_count,
        &report.skipped,
    )
}

async fn cancel(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = CancelRequest {
        ids: Some(sent.ids("id")?),
        reason: reason(sent)?,
        actor: Some(desk.actor()),
        ..CancelRequest::default()
    };
    let report = desk.service().cancel(&asked).await?;
    done(
        "cancelled",
        report.cancelled,
        report.skipped_count,
        &report.skipped,
    )
}

async fn reschedule(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = RescheduleRequest {
        ids: Some(sent.ids("id")?),
        now: sent.is_set("now"),
        delay: sent.duration("delay")?,
        available_at: sent.time("available_at")?,
        expires_in: sent.duration("expires_in")?,
        no_deadline: sent.is_set("no_deadline"),
        reason: reason(sent)?,
        actor: Some(desk.actor()),
        ..RescheduleRequest::default()
    };
    let report = desk.service().reschedule(&asked).await?;
    if report.rescheduled == 0 && report.in_hand > 0 {
        return Err(Problem::conflict(
            "A worker has leased the event. Run it again or cancel it instead.",
        ));
    }
    if report.rescheduled == 0 && report.too_late > 0 {
        return Err(Problem::conflict(
            "This would hold up its group for longer than allowed.",
        ));
    }
    done(
        "rescheduled",
        report.rescheduled,
        report.skipped_count,
        &report.skipped,
    )
}

async fn replay(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = ReplayRequest {
        ids: Some(sent.ids("id")?),
        failed_handlers_only: sent.is_set("failed_handlers_only"),
        expires_in: sent.duration("expires_in")?,
        reason: reason(sent)?,
        actor: Some(desk.actor()),
        ..ReplayRequest::default()
    };
    let report = desk.service().replay(&asked).await?;
    if let Some(refused) = report.refused {
        return Err(Problem::conflict(refused));
    }
    desk.service().wake().await;
    let told = done(
        "replayed",
        report.replayed,
        report.skipped_count,
        &report.skipped,
    )?;
    Ok(match report.events.as_slice() {
        [one] => format!("{told} It is event {} now.", one.id),
        _ => told,
    })
}

async fn unblock(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
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
        group_key: sent.needed("group")?.to_owned(),
        how,
        reason: reason(sent)?,
        actor: Some(desk.actor()),
    };
    let report = desk.service().unblock(&asked).await?;
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

async fn pause(desk: &Desk, sent: &Fields, verb: &str) -> Result<String, Problem> {
    let asked = kind(desk, sent)?;
    let report = match verb {
        "pause" => desk.service().pause(&asked).await?,
        _ => desk.service().resume(&asked).await?,
    };
    if verb == "resume" {
        desk.service().wake().await;
    }
    let (is, was) = if report.paused {
        ("is paused now", "was paused already")
    } else {
        ("is active again", "was not paused")
    };
    Ok(format!(
        "{} {}.",
        report.kind,
        if report.changed { is } else { was }
    ))
}

fn kind(desk: &Desk, sent: &Fields) -> Result<KindRequest, Problem> {
    Ok(KindRequest {
        kind: sent.needed("kind")?.to_owned(),
        reason: Some(reason(sent)?),
        actor: Some(desk.actor()),
    })
}

async fn retire(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let report = desk.service().retire(&kind(desk, sent)?).await?;
    Ok(format!(
        "{} is retired: it cannot be published any more.",
        report.kind
    ))
}

async fn policy(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = PolicyRequest {
        kind: sent.needed("kind")?.to_owned(),
        attempts: sent.number("attempts")?,
        handler_timeout: sent.duration("handler_timeout")?,
        backoff: sent.duration("backoff")?,
        backoff_max: sent.duration("backoff_max")?,
        concurrency: sent.number("concurrency")?,
        batch: sent.number("batch")?,
        batch_within: sent.duration("batch_within")?,
        reset: sent.all("reset").map(str::to_owned).collect(),
        reason: Some(reason(sent)?),
        actor: Some(desk.actor()),
    };
    let report = desk.service().policy(&asked).await?;
    Ok(format!(
        "{} {}.",
        report.kind,
        if report.changed {
            "has a new policy"
        } else {
            "keeps its policy: no field was given"
        }
    ))
}

async fn service(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let action = match sent.text("do") {
        Some("pause") => ServiceAction::Pause,
        Some("resume") => ServiceAction::Resume,
        _ => {
            let (max_running, per_second) = (sent.number("limit")?, sent.number("per_second")?);
            if max_running.is_none() && per_second.is_none() {
                return Err(Problem::invalid(
                    "max_running, per_second: one of them must be given, got neither",
                ));
            }
            ServiceAction::Limit {
                max_running,
                per_second,
            }
        }
    };
    let asked = ServiceRequest {
        service: sent.needed("name")?.to_owned(),
        action,
        reason: reason(sent)?,
        actor: Some(desk.actor()),
    };
    let change = desk.service().change_service(&asked).await?;
    let known = if change.known {
        ""
    } else {
        " This service was not known before."
    };
    Ok(format!(
        "{}: {}.{known}",
        change.service,
        if change.changed {
            "done"
        } else {
            "no change was needed"
        }
    ))
}

async fn schedule(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let action = match sent.needed("do")? {
        "pause" => ScheduleAction::Pause,
        "resume" => ScheduleAction::Resume,
        "remove" => ScheduleAction::Remove,
        "run" => ScheduleAction::Run,
        _ => ScheduleAction::Set(periodic(sent)?),
    };
    let asked = ScheduleRequest {
        name: sent.needed("name")?.to_owned(),
        action,
        reason: reason(sent)?,
        actor: Some(desk.actor()),
    };
    let change = desk.service().change_schedule(&asked).await?;
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

fn periodic(sent: &Fields) -> Result<Periodic, Problem> {
    let payload = sent.text("payload").map(serde_json::from_str).transpose();
    let payload =
        payload.map_err(|error| Problem::invalid(format!("payload: must be JSON: {error}")))?;
    let catch_up = sent.text("catch_up").map(parse_catch_up).transpose();
    let catch_up = catch_up.map_err(|why| Problem::invalid(format!("catch_up: {why}")))?;
    Ok(Periodic {
        kind: sent.needed("kind")?.to_owned(),
        payload,
        cron: sent.owned("cron"),
        every: sent.duration("every")?,
        time_zone: sent.owned("time_zone"),
        group: sent.owned("group"),
        start_within: sent.duration("start_within")?,
        catch_up: catch_up.unwrap_or_default(),
    })
}
