//! Kinds of events: figures, state, policy and retention.

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use tidegate::admin::views::{Kind, Span};
use tidegate::admin::{
    PauseRequest, PolicyRequest, ResumeRequest, Retention, RetentionRequest, RetireRequest,
};

use super::overview::figures_of;
use super::{quoted, span, span_name};
use crate::acts::{APPLYING, Act, audit, reason};
use crate::chart;
use crate::desk::Desk;
use crate::form::{Asked, Fields};
use crate::html::{age, chip, empty, field, millis, named, number, short, table, time_of};
use crate::offer::{Offer, input};
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The fields of a policy: name in the form, name in the database, whether it is a duration, label.
const POLICY: [(&str, &str, bool, &str); 7] = [
    ("attempts", "max_attempts", false, "Attempts"),
    (
        "handler_timeout",
        "handler_timeout_ms",
        true,
        "Handler timeout",
    ),
    ("backoff", "backoff_ms", true, "First retry delay"),
    ("backoff_max", "backoff_max_ms", true, "Longest delay"),
    (
        "concurrency",
        "concurrency",
        false,
        "Concurrency over all drains",
    ),
    ("batch", "batch", false, "Batch size"),
    (
        "batch_within",
        "batch_within_ms",
        true,
        "Batch waits at most",
    ),
];

pub(super) async fn show(desk: Desk, Asked(asked): Asked) -> Result<Response, Problem> {
    let span = span(&asked);
    let service = desk.service();
    let (kinds, overview, ended) =
        tokio::try_join!(service.kinds(), service.overview(), service.ended(span))?;
    let base = desk.base();
    let head = html! {
        th { "Kind" } th { "State" } th.n { "Live" } th { "Oldest" } th.n { "Ended" } th.n { "Not completed" } th.n { "Attempts per event" }
        th.n { "p50" } th.n { "p95" } th { "Latency" }
    };
    let rows = html! {
        @for kind in &kinds {
            @let depth = overview.depths.iter().find(|depth| depth.kind == kind.kind);
            tr.go {
                th scope="row" { (named(&Value::from(kind.kind.as_str()), |name| base.of("/kinds", name))) }
                td { (state(kind)) }
                td.n { (number(depth.map_or(0, |depth| depth.events))) }
                td { (age(depth.and_then(|depth| depth.oldest.as_deref()))) }
                @match ended.iter().find(|figures| figures.kind == kind.kind) {
                    Some(figures) => (figures_of(figures)),
                    None => { td.n { "0" } td.n { "–" } td.n { "–" } td.n { "–" } td.n { "–" } td {} }
                }
            }
        }
    };
    let body = html! {
        @if kinds.is_empty() { (empty("No kind is registered yet: run `tidegate migrate`.")) } @else { (table("Kinds", &head, &rows)) }
        @if overview.is_estimate { p.note { "Live events are counted among the first 100,000." } }
    };
    let paused = kinds.iter().filter(|kind| kind.paused).count();
    Ok(Page::new(Place::Kinds, "Kinds", "tidegate status", body)
        .renewing(format!("{paused} kinds are paused."))
        .answer(&desk))
}

fn state(kind: &Kind) -> Markup {
    if kind.paused {
        chip("warn", "‖", "paused")
    } else {
        chip("good", "▸", "active")
    }
}

pub(super) async fn one(
    desk: Desk,
    Path(name): Path<String>,
    Asked(asked): Asked,
) -> Result<Response, Problem> {
    let span = span(&asked);
    let service = desk.service();
    let (kinds, course, ended) = tokio::try_join!(
        service.kinds(),
        service.course(span, Some(&name)),
        service.ended(span)
    )?;
    let kind = kinds.into_iter().find(|kind| kind.kind == name);
    let base = desk.base();
    let steps = chart::complete(span, &course, std::time::SystemTime::now());
    let figures = ended.iter().find(|figures| figures.kind == name);
    let body = html! {
        @match &kind {
            Some(kind) => { div.lead { (state(kind)) " registered " (time_of(Some(&kind.registered_at))) (actions(&desk, kind)) } }
            None => { p.empty { "This kind is not registered, or it was retired." } }
        }
        nav.tabs aria-label="Span of time" {
            @for (choice, told) in [(Span::Hour, "Hour"), (Span::Day, "Day"), (Span::Month, "30 days")] {
                a href=(base.of("/kinds", &name).with("span", span_name(choice))) aria-current=[(choice == span).then_some("true")] { (told) }
            }
        }
        @if let Some(figures) = figures {
            (table("Figures", &html! { th.n { "Ended" } th.n { "Not completed" } th.n { "Attempts per event" } th.n { "p50" } th.n { "p95" } th { "Latency" } }, &html! { tr { (figures_of(figures)) } }))
        }
        div.charts { (chart::ended(span, &steps)) (chart::failures(span, &steps)) }
        @if let Some(kind) = &kind { (policy(&desk, kind)) (kept(&desk, kind)) }
        p { a href=(base.to("/events").with("kind", &name)) { "Its events" } " · " a href=(base.to("/dead").with("kind", &name)) { "Its dead letters" } }
    };
    let command = format!("tidegate policy {}", quoted(&name));
    Ok(
        Page::new(Place::Kinds, format!("Kind {name}"), command, body)
            .renewing("")
            .answer(&desk),
    )
}

fn actions(desk: &Desk, kind: &Kind) -> Markup {
    let of: &[(&str, &str)] = &[("kind", &kind.kind)];
    let offer = |verb, label, explains, is_grave| Offer {
        verb,
        label,
        explains,
        of,
        is_grave,
    };
    html! {
        div.actions {
            @if kind.paused { (offer("resume", "Resume", "Workers take events of this kind again.", false).plain(desk)) }
            @else { (offer("pause", "Pause", "Events of this kind wait. Those that a worker has already leased still finish.", false).plain(desk)) }
            (offer("retire", "Retire", "Removes the kind, so that it can no longer be published. Works only for a kind that this program does not handle and that has no live events.", true).plain(desk))
        }
    }
}

fn policy(desk: &Desk, kind: &Kind) -> Markup {
    let told = |value: Option<&Value>, is_time: bool| match value.and_then(Value::as_u64) {
        None => "default".to_owned(),
        Some(value) if is_time => millis(value),
        Some(value) => number(value),
    };
    let head = html! { th { "Setting" } th.n { "In effect" } th.n { "Declared by the program" } th.n { "Set by operators" } };
    let rows = html! {
        @for (_, stored, is_time, what) in POLICY {
            tr { th scope="row" { (what) } td.n { (told(kind.policy.get(stored), is_time)) } td.n { (told(kind.declared.get(stored), is_time)) }
                td.n { @if kind.overridden.contains_key(stored) { (told(kind.overridden.get(stored), is_time)) } @else { "–" } } }
        }
    };
    let offer = Offer {
        verb: "policy",
        label: "Change the policy",
        explains: "Settings whose field is empty stay as they are. Durations are written like 30s. Reset returns to the declared value.",
        of: &[("kind", &kind.kind)],
        is_grave: false,
    };
    let fields = html! {
        @for (name, _, is_time, what) in POLICY {
            (input(what, name, "", if is_time { "30s" } else { "" }))
            label.tick { input type="checkbox" name="reset" value=(name); span { "reset" span.unseen { " " (what) } } }
        }
    };
    html! { section { h2 { "Policy" } (table("Policy", &head, &rows)) div.actions { (offer.with(desk, &fields)) } } }
}

/// The retention of a kind, with a form to change it.
pub(super) fn kept(desk: &Desk, kind: &Kind) -> Markup {
    html! {
        section {
            h2 { "Retention" }
            p { "Completed events are kept for " strong { (short(&kind.retention_completed)) } ", failed and rejected ones for " strong { (field(&Value::from(kind.retention_failed.as_str()))) } "." }
            div.actions { (retention(desk, &kind.kind)) }
        }
    }
}

/// The form that changes the retention of a kind.
pub(super) fn retention(desk: &Desk, kind: &str) -> Markup {
    let offer = Offer {
        verb: "retention",
        label: "Change the retention",
        explains: "Applies to events that finish from now on, and to finished ones if you tick the box.",
        of: &[("kind", kind)],
        is_grave: false,
    };
    offer.with(desk, &html! {
        (input("Completed for", "completed", "", "30d"))
        (input("Failed and rejected for", "failed", "", "90d"))
        label.tick { input type="checkbox" name="apply" value="on"; span { "also for events that have already finished" } }
    })
}

/// What can be done with a kind.
pub(super) const ACTS: &[Act] = &[
    ("pause", |desk, sent| Box::pin(pause(desk, sent))),
    ("resume", |desk, sent| Box::pin(resume(desk, sent))),
    ("retire", |desk, sent| Box::pin(retire(desk, sent))),
    ("policy", |desk, sent| Box::pin(change_policy(desk, sent))),
    ("retention", |desk, sent| {
        Box::pin(change_retention(desk, sent))
    }),
];

fn pausing(desk: &Desk, sent: &Fields) -> Result<PauseRequest, Problem> {
    Ok(PauseRequest {
        kind: sent.needed("kind")?.to_owned(),
        reason: Some(reason(sent)?),
        actor: Some(desk.actor()),
    })
}

async fn pause(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let report = desk.service().run(&pausing(desk, sent)?).await?;
    let was = if report.changed {
        "is paused now"
    } else {
        "was paused already"
    };
    Ok(format!("{} {was}.", report.kind))
}

async fn resume(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = ResumeRequest {
        of: pausing(desk, sent)?,
    };
    let report = desk.service().run(&asked).await?;
    desk.service().wake().await;
    let was = if report.changed {
        "is active again"
    } else {
        "was not paused"
    };
    Ok(format!("{} {was}.", report.kind))
}

async fn retire(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = RetireRequest {
        kind: sent.needed("kind")?.to_owned(),
        audit: audit(desk, sent)?,
    };
    let report = desk.service().run(&asked).await?;
    Ok(format!(
        "{} is retired: it cannot be published any more.",
        report.kind
    ))
}

async fn change_policy(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
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
    let report = desk.service().run(&asked).await?;
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

async fn change_retention(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = RetentionRequest {
        kind: Some(sent.needed("kind")?.to_owned()),
        completed: sent.duration("completed")?,
        failed: sent.duration("failed")?,
        apply: sent.is_set("apply"),
        budget: Some(APPLYING),
        reason: Some(reason(sent)?),
        actor: Some(desk.actor()),
    };
    match desk.service().run(&asked).await? {
        Retention::Kept(_) => Err(Problem::invalid(
            "completed: must be given, or failed, or that it is applied",
        )),
        Retention::Changed(report) => {
            let redated = report.redated.map(|redated| {
                format!(
                    " {} finished events got a new expiry.",
                    number(redated.rows)
                )
            });
            let kind = asked.kind.unwrap_or_default();
            Ok(format!(
                "The retention of {kind} is changed.{}",
                redated.unwrap_or_default()
            ))
        }
    }
}
