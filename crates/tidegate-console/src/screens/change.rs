//! Cancels or reschedules all live events that match a filter: dry run, reason, confirmation. With the digest
//! of the dry run, the program changes exactly its events, or none if they have changed.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use tidegate::admin::{
    Audit, CancelReport, CancelRequest, Changed, Moment, RescheduleReport, RescheduleRequest,
    Selection, Start,
};

use super::confirm::{
    Confirmation, Tile, carried, fixed, kinds, permitted, refused, skipped, tiles,
};
use super::{options, quoted};
use crate::acts::{Act, audit, done};
use crate::desk::Desk;
use crate::flash;
use crate::form::{Asked, Fields, Sent};
use crate::html::{self, number};
use crate::link::{Base, Link};
use crate::offer::{Offer, input, select, tick};
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The fields that select the events and say what to do, in the address and in the confirmation.
const FIELDS: [&str; 12] = [
    "do",
    "kind",
    "group",
    "correlation",
    "status",
    "since",
    "until",
    "limit",
    "delay",
    "available_at",
    "expires_in",
    "no_deadline",
];

/// What can be done with live events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Cancel,
    Run,
    Reschedule,
}

impl Action {
    fn of(fields: &Fields) -> Result<Self, Problem> {
        match fields.needed("do")? {
            "cancel" => Ok(Self::Cancel),
            "run" => Ok(Self::Run),
            "reschedule" => Ok(Self::Reschedule),
            other => Err(Problem::invalid(format!(
                "do: must be cancel, run or reschedule, got {other:?}"
            ))),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Cancel => "Cancel",
            Self::Run => "Start now",
            Self::Reschedule => "Reschedule",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Run => "run",
            Self::Reschedule => "reschedule",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Cancel => "Cancelled",
            Self::Run => "Started",
            Self::Reschedule => "Rescheduled",
        }
    }
}

/// What a change did, or would do.
struct Told {
    count: u64,
    report: Changed,
    risks: Vec<(u64, &'static str)>,
}

impl From<CancelReport> for Told {
    fn from(report: CancelReport) -> Self {
        Self {
            count: report.cancelled,
            report: report.changed,
            risks: vec![(
                report.begun,
                "may have a running handler. What it has done to other tables and services is not undone.",
            )],
        }
    }
}

impl From<RescheduleReport> for Told {
    fn from(report: RescheduleReport) -> Self {
        Self {
            count: report.rescheduled,
            report: report.changed,
            risks: vec![
                (
                    report.past_deadline,
                    "would start after their deadline, and end as expired.",
                ),
                (
                    report.in_hand,
                    "are leased by a worker and stay as they are.",
                ),
                (
                    report.too_late,
                    "would hold up their group for longer than allowed, and stay as they are.",
                ),
            ],
        }
    }
}

/// What can be done with live events that are selected by id.
pub(super) const ACTS: &[Act] = &[
    ("cancel", |desk, sent| Box::pin(cancel(desk, sent))),
    ("reschedule", |desk, sent| Box::pin(reschedule(desk, sent))),
];

/// The forms for one live event.
pub(super) fn offers_of(desk: &Desk, of: &[(&str, &str)]) -> Markup {
    let offer = |verb, label, explains, is_grave| Offer {
        verb,
        label,
        explains,
        of,
        is_grave,
    };
    html! {
        (offer("reschedule", "Reschedule", "Changes the start time or the deadline.", false).with(desk, &html! {
            (tick("at the next drain", "now", false))
            (input("or in", "delay", "", "30s, 2h"))
            (input("or at", "available_at", "", "2026-01-31T12:00:00Z"))
            (input("Deadline in", "expires_in", "", "1h"))
            (tick("without a deadline", "no_deadline", false))
        }))
        (offer("cancel", "Cancel", "Ends the event as FAILED (cancelled). What a handler has already done is not undone.", true).plain(desk))
    }
}

/// The buttons for the live ones of the selected events.
pub(super) fn starts(desk: &Desk) -> Markup {
    html! { button formaction=(desk.base().of("/act", "reschedule")) name="now" value="on" { "Start at the next drain" } }
}

pub(super) fn cancels(desk: &Desk) -> Markup {
    html! { button.grave formaction=(desk.base().of("/act", "cancel")) { "Cancel" } }
}

fn told(what: &str, count: u64, report: &Changed) -> Result<String, Problem> {
    done(what, count, report.skipped_count, &report.skipped)
}

async fn cancel(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = CancelRequest {
        select: Selection::of(&sent.ids("id")?),
        audit: audit(desk, sent)?,
    };
    let report = desk.service().run(&asked).await?;
    told("cancelled", report.cancelled, &report.changed)
}

async fn reschedule(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = RescheduleRequest {
        select: Selection::of(&sent.ids("id")?),
        start: Start {
            now: sent.is_set("now"),
            ..start(sent)?
        },
        audit: audit(desk, sent)?,
    };
    let report = desk.service().run(&asked).await?;
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
    told("rescheduled", report.rescheduled, &report.changed)
}

/// When events start, and their deadline.
fn start(sent: &Fields) -> Result<Start, Problem> {
    Ok(Start {
        delay: sent.duration("delay")?,
        available_at: sent.time("available_at")?,
        expires_in: sent.duration("expires_in")?,
        no_deadline: sent.is_set("no_deadline"),
        ..Start::default()
    })
}

/// Links to the actions on all events of a list, if its filter is one for live events.
pub(super) fn offers(desk: &Desk, asked: &Fields) -> Markup {
    let is_narrow = ["kind", "group", "correlation"]
        .iter()
        .any(|name| asked.is_set(name));
    let is_live = asked
        .text("status")
        .is_none_or(|status| ["PENDING", "PROCESSING"].contains(&status));
    if !desk.may_act() || !is_narrow || !is_live {
        return html! {};
    }
    html! {
        p.actions {
            @for action in [Action::Run, Action::Reschedule, Action::Cancel] {
                a.button href=(leading(desk.base(), action, asked)) { (action.title()) " all …" }
            }
        }
    }
}

fn leading(base: &Base, action: Action, asked: &Fields) -> Link {
    let link = base.to("/change").with("do", action.name());
    FIELDS[1..7].iter().fold(link, |link, name| {
        link.with(name, asked.text(name).unwrap_or_default())
    })
}

pub(super) async fn show(desk: Desk, Asked(asked): Asked) -> Result<Response, Problem> {
    permitted(&desk)?;
    let action = Action::of(&asked)?;
    let has_time = ["delay", "available_at", "expires_in", "no_deadline"]
        .iter()
        .any(|name| asked.is_set(name));
    let body = if action == Action::Reschedule && !has_time {
        html! { p.note { "Enter when the events should start, or a new deadline for them." } }
    } else {
        dry_run(&desk, action, &asked).await?
    };
    let title = format!("{} many events", action.title());
    Ok(
        Page::new(Place::Events, title, command(action, &asked), body)
            .fixed(filters(&desk, action, &asked))
            .answer(&desk),
    )
}

fn command(action: Action, asked: &Fields) -> String {
    let verb = match action {
        Action::Cancel => "cancel",
        Action::Run => "reschedule --now",
        Action::Reschedule => "reschedule",
    };
    let mut told = vec![options(
        asked,
        &[
            "kind",
            "group",
            "status",
            "since",
            "until",
            "limit",
            "delay",
            "expires_in",
        ],
    )];
    for (field, option) in [("correlation", "correlation-id"), ("available_at", "at")] {
        if let Some(value) = asked.text(field) {
            told.push(format!(" --{option} {}", quoted(value)));
        }
    }
    if asked.is_set("no_deadline") {
        told.push(" --no-deadline".to_owned());
    }
    let told = told.concat();
    format!("tidegate {verb} --dry-run --reason 'a look'{told}")
}

/// From when to when events were published.
type Times = (Option<Moment>, Option<Moment>);

/// Reads the times once, so that the dry run and its confirmation have the same.
fn times(fields: &Fields) -> Result<Times, Problem> {
    let since = fixed(fields.moment("since")?);
    Ok((since, fixed(fields.moment("until")?)))
}

/// Runs the action, dry or with the digest of a dry run.
async fn run(
    desk: &Desk,
    action: Action,
    fields: &Fields,
    (since, until): Times,
    (reason, digest): (&str, Option<String>),
) -> Result<Told, Problem> {
    let select = Selection {
        kind: fields.owned("kind"),
        group: fields.owned("group"),
        correlation_id: fields.owned("correlation"),
        status: fields.owned("status"),
        since,
        until,
        limit: fields.number("limit")?,
        dry_run: digest.is_none(),
        digest,
        ..Selection::default()
    };
    let audit = Audit::of(reason).by(desk.actor());
    let start = match action {
        Action::Cancel => {
            let asked = CancelRequest { select, audit };
            return Ok(desk.service().run(&asked).await?.into());
        }
        Action::Run => Start {
            now: true,
            ..Start::default()
        },
        Action::Reschedule => start(fields)?,
    };
    let asked = RescheduleRequest {
        select,
        start,
        audit,
    };
    Ok(desk.service().run(&asked).await?.into())
}

async fn dry_run(desk: &Desk, action: Action, asked: &Fields) -> Result<Markup, Problem> {
    let (since, until) = times(asked)?;
    let told = run(desk, action, asked, (since, until), ("a dry run", None)).await?;
    let all = if told.report.limit_reached {
        "and there are more"
    } else {
        "all that match"
    };
    let name = format!("{} {} events", action.title(), number(told.count));
    Ok(html! {
        section {
            h2 { "What it would do" }
            (tiles(&[Tile("Would be changed", told.count, all), Tile("Skipped", told.report.skipped_count, "see the reasons below")]))
            (kinds(&told.report.kinds))
            @if !told.report.ids.is_empty() {
                p { "The first: " @for id in told.report.ids.iter().take(10) { (html::event(desk.base(), &(*id).into())) " " } }
            }
            (skipped(desk.base(), &BTreeMap::new(), &told.report.skipped))
        }
        (risks(&told))
        @if let (Some(digest), true) = (&told.report.digest, told.count > 0) {
            (Confirmation {
                path: "/change",
                what: name,
                fields: carried(asked, &FIELDS, since, until),
                digest,
                further: html! {},
                note: "Exactly these events are changed. If the set has changed by then, for example because drains are working on it, \
                       nothing is changed. Pause the kind to keep the set as it is.",
            }.show(desk))
        } @else if told.count > 0 {
            p.problem { "Choose a limit of at most 10,000." }
        } @else {
            p.empty { "There is nothing to change." }
        }
    })
}

fn risks(told: &Told) -> Markup {
    let risks: Vec<_> = told
        .risks
        .iter()
        .filter(|(events, _)| *events > 0)
        .collect();
    html! {
        @if !risks.is_empty() {
            section {
                h2 { "Risks" }
                ul.plain { @for (events, risk) in risks { li { strong { (number(*events)) } " events " (risk) } } }
            }
        }
    }
}

fn filters(desk: &Desk, action: Action, asked: &Fields) -> Markup {
    let given = |name| asked.text(name).unwrap_or_default();
    let statuses = [
        ("", "any live"),
        ("PENDING", "pending"),
        ("PROCESSING", "processing"),
    ];
    html! {
        search { form.filters method="get" action=(desk.base().to("/change")) {
            input type="hidden" name="do" value=(action.name());
            label { span { "Kind" } input #filter name="kind" value=(given("kind")) autocomplete="off"; }
            (select("Status", "status", given("status"), &statuses))
            (input("Group", "group", given("group"), ""))
            (input("Correlation id", "correlation", given("correlation"), ""))
            (input("Published since", "since", given("since"), "2h or 2026-01-31T12:00:00Z"))
            (input("and before", "until", given("until"), ""))
            (input("At most", "limit", given("limit"), "10000"))
            @if action == Action::Reschedule {
                (input("Start in", "delay", given("delay"), "30s, 2h"))
                (input("or at", "available_at", given("available_at"), "2026-01-31T12:00:00Z"))
                (input("Deadline in", "expires_in", given("expires_in"), "1h"))
                (tick("without a deadline", "no_deadline", asked.is_set("no_deadline")))
            }
            button.primary { "Dry run" }
        } }
    }
}

/// Changes the events of the dry run, or none.
pub(super) async fn confirm(desk: Desk, Sent(sent): Sent) -> Result<Response, Problem> {
    permitted(&desk)?;
    let action = Action::of(&sent)?;
    let reason = sent.needed("reason")?.to_owned();
    let digest = sent.needed("digest")?.to_owned();
    let told = run(&desk, action, &sent, times(&sent)?, (&reason, Some(digest))).await?;
    if let Some(why) = told.report.refused {
        return Err(refused(&why));
    }
    if action != Action::Cancel {
        desk.service().wake().await;
    }
    let done = format!(
        "{} {} events; {} were skipped.",
        action.done(),
        number(told.count),
        number(told.report.skipped_count)
    );
    let settings = &desk.shared.settings;
    let to = settings
        .base
        .to("/events")
        .with("kind", sent.text("kind").unwrap_or_default());
    Ok(flash::leading(settings, to.as_str(), &done))
}
