//! The texts for people about the results of operators' actions.

use std::time::Duration;

use tidegate::operate::{
    ForgetReport, OrderRisks, PauseReport, PolicyReport, ReplayReport, RequeueReport,
    ScheduleChange, ServiceChange, ServiceState, Skipped, UnblockAction, UnblockReport,
};

use super::shown;

/// The most ids and lines that a text shows; `--json` has more.
pub(super) const SHOWN: usize = 10;

/// Describes what a replay did, or would do.
pub fn replayed(report: &ReplayReport) -> String {
    let mut lines = vec![match (report.dry_run, &report.refused) {
        (true, _) => format!(
            "dry run: {} of {} would be replayed",
            report.eligible,
            events(report.matched)
        ),
        (false, Some(refused)) => format!("nothing was replayed: {refused}"),
        (false, None) => format!("replayed {} of {}", report.replayed, events(report.matched)),
    }];
    if let (true, Some(refused)) = (report.dry_run, &report.refused) {
        lines.push(format!("the replay would be refused: {refused}"));
    }
    lines.extend(
        report
            .kinds
            .iter()
            .map(|(kind, count)| format!("  {}: {count}", shown(kind))),
    );
    let pairs = report.events.iter().take(SHOWN);
    lines.extend(
        pairs.map(|event| format!("  event {} replayed as event {}", event.replay_of, event.id)),
    );
    more(&mut lines, report.replayed);
    if report.limit_reached {
        lines.push("more events are left: run the same command again".to_owned());
    }
    if let Some(risks) = &report.order_risks {
        order_risks(&mut lines, risks);
    }
    if report.skipped_count > 0 {
        lines.push(format!("skipped {}:", events(report.skipped_count)));
        let reasons = report.skipped_reasons.iter();
        lines.extend(reasons.map(|(reason, count)| format!("  {reason}: {count}")));
        skipped(&mut lines, &report.skipped, report.skipped_count);
    }
    lines.join("\n")
}

fn order_risks(lines: &mut Vec<String>, risks: &OrderRisks) {
    lines.push(format!("groups with replayed events: {}", risks.groups));
    if risks.groups_with_live_events > 0 {
        lines.push(format!(
            "groups with live events, which run before the replayed events: {}",
            risks.groups_with_live_events
        ));
        let groups = risks.live_events.iter().take(SHOWN);
        lines.extend(
            groups.map(|group| format!("  {}: {} live", shown(&group.group_key), group.live)),
        );
        more(lines, risks.groups_with_live_events);
    }
    if risks.groups_overtaken > 0 {
        lines.push(format!(
            "groups in which later events have already ended: {}",
            risks.groups_overtaken
        ));
        let groups = risks.overtaken.iter().take(SHOWN);
        lines.extend(groups.map(|group| {
            format!(
                "  {}: {} ended, the last is event {}",
                shown(&group.group_key),
                group.ended,
                group.last_id
            )
        }));
        more(lines, risks.groups_overtaken);
    }
}

/// Describes what a requeue did.
pub fn requeued(report: &RequeueReport) -> String {
    let mut lines = vec![match report.requeued {
        0 => "nothing was requeued".to_owned(),
        count => format!(
            "requeued {}, to run at the next drain: {}",
            events(count),
            ids(&report.ids)
        ),
    }];
    if !report.past_deadline.is_empty() {
        lines.push(format!(
            "past their deadline, and will end as expired: {}",
            ids(&report.past_deadline)
        ));
    }
    if report.skipped_count > 0 {
        lines.push(format!("skipped {}:", events(report.skipped_count)));
        skipped(&mut lines, &report.skipped, report.skipped_count);
    }
    lines.join("\n")
}

/// Describes whether a service is called now, and its limits.
pub fn service(change: &ServiceChange) -> String {
    let name = &change.service;
    if change.action == "limit_service" {
        let limits = limits(change.max_running, change.per_second);
        let unknown = if change.known {
            ""
        } else {
            ". Nothing was known of it before: it must be spelled as handlers spell it"
        };
        return format!("{name}: {limits}{unknown}");
    }
    match (change.state, change.changed) {
        (ServiceState::Paused, true) if !change.known => format!(
            "{name} is paused; events that need it wait. Nothing was known of it before: it must be spelled as handlers spell it"
        ),
        (ServiceState::Paused, true) => format!("{name} is paused; events that need it wait"),
        (ServiceState::Paused, false) => format!("{name} was paused already"),
        (_, true) => format!("{name} is called again"),
        (_, false) => format!("{name} was neither paused nor down"),
    }
}

/// Describes the limits of a service.
pub fn limits(max_running: Option<u32>, per_second: Option<f64>) -> String {
    let running = max_running.map(|count| format!("at most {count} at once"));
    let starts = per_second.map(|count| format!("at most {count} a second"));
    let limits: Vec<String> = running.into_iter().chain(starts).collect();
    if limits.is_empty() {
        return "not limited".to_owned();
    }
    limits.join(", ")
}

/// Describes whether a kind is paused now.
pub fn paused(report: &PauseReport) -> String {
    match (report.paused, report.changed) {
        (true, true) => format!(
            "{} is paused; events that are being handled end normally",
            report.kind
        ),
        (true, false) => format!("{} was paused already", report.kind),
        (false, true) => format!("{} is resumed", report.kind),
        (false, false) => format!("{} was not paused", report.kind),
    }
}

/// Describes what was done to the first event of a group.
pub fn unblocked(report: &UnblockReport) -> String {
    let (Some(id), group) = (report.id, &report.group_key) else {
        let refused = report.refused.as_deref().unwrap_or_default();
        return format!("nothing was done: {refused}");
    };
    match (report.how, report.new_id) {
        (UnblockAction::Retry, _) => {
            format!("event {id}, the first of {group}, runs at the next drain")
        }
        (UnblockAction::Skip, Some(new_id)) => {
            format!(
                "event {id} has ended as skipped; its unfinished handlers are published as event {new_id}, at the end of {group}"
            )
        }
        (UnblockAction::Skip, None) | (UnblockAction::Cancel, _) => {
            format!("event {id}, the first of {group}, has ended as cancelled")
        }
    }
}

/// Describes which data was removed.
pub fn forgotten(report: &ForgetReport) -> String {
    let would = if report.dry_run {
        "dry run; to be forgotten: "
    } else {
        "forgotten: "
    };
    let mut lines = vec![format!(
        "{would}{}, {} of them live (live events are cancelled)",
        events(report.forgotten),
        report.cancelled
    )];
    if report.in_hand > 0 {
        lines.push(format!(
            "  {} may have a running handler: run the same command again after it has ended",
            events(report.in_hand)
        ));
    }
    if report.before > 0 {
        lines.push(format!("  {} already forgotten", events(report.before)));
    }
    if report.unknown > 0 {
        lines.push(format!("  {} ids without an event", report.unknown));
    }
    if report.schedules > 0 {
        lines.push(format!("  {} schedules", report.schedules));
    }
    let tables = report.tables.iter();
    lines.extend(tables.map(|(table, rows)| format!("  {rows} rows of {table}")));
    if report.incomplete {
        lines.push("  more events were published meanwhile: run the same command again".to_owned());
    }
    lines.join("\n")
}

/// Describes the result of a change of a schedule.
pub fn schedule(change: &ScheduleChange) -> String {
    let name = &change.name;
    match (change.change.as_str(), change.changed) {
        ("set", _) => {
            let next = change.next_at.as_deref().unwrap_or("an unknown time");
            let paused = if change.paused { "; it is paused" } else { "" };
            format!("{name} is set; its next slot is {next}{paused}")
        }
        ("paused", true) => format!("{name} is paused; slots that pass meanwhile are skipped"),
        ("paused", false) => format!("{name} was paused already"),
        ("resumed", true) => format!("{name} is resumed, from its next slot on"),
        ("resumed", false) => format!("{name} was not paused"),
        ("run", _) => format!(
            "{name} is published as event {}",
            change.event_id.unwrap_or_default()
        ),
        _ => format!("{name} is removed; events that it has published stay"),
    }
}

pub(super) fn skipped(lines: &mut Vec<String>, skipped: &[Skipped], count: u64) {
    lines.extend(skipped.iter().take(SHOWN).map(|event| match event.by {
        Some(by) => format!("  event {}: {} (event {by})", event.id, event.reason),
        None => format!("  event {}: {}", event.id, event.reason),
    }));
    more(lines, count);
}

/// Adds a line if a list of `count` entries was cut.
fn more(lines: &mut Vec<String>, count: u64) {
    let shown = u64::try_from(SHOWN).unwrap_or(u64::MAX);
    if count > shown {
        lines.push(format!("  and {} more", count - shown));
    }
}

pub(super) fn ids(ids: &[i64]) -> String {
    let mut told: Vec<String> = ids.iter().take(SHOWN).map(ToString::to_string).collect();
    if ids.len() > SHOWN {
        told.push(format!("and {} more", ids.len() - SHOWN));
    }
    told.join(", ")
}

pub(super) fn events(count: u64) -> String {
    match count {
        1 => "1 event".to_owned(),
        count => format!("{count} events"),
    }
}

/// Describes how events of a kind are handled, and where each setting comes from.
pub fn policy(report: &PolicyReport) -> String {
    if report.policy.is_empty() {
        return format!("{} is handled with the default policy", report.kind);
    }
    let mut table = super::plain_table(&["what", "value", "set by"]);
    for (field, value) in &report.policy {
        let (field, value) = match (field.strip_suffix("_ms"), value.as_u64()) {
            (Some(field), Some(millis)) => {
                let time = humantime::format_duration(Duration::from_millis(millis));
                (field, time.to_string())
            }
            _ => (field.as_str(), value.to_string()),
        };
        let stored = |fields: &serde_json::Map<String, serde_json::Value>| {
            fields.contains_key(field) || fields.contains_key(&format!("{field}_ms"))
        };
        let by = if stored(&report.overridden) {
            "an operator"
        } else {
            "the program"
        };
        table.add_row(vec![field.to_owned(), value, by.to_owned()]);
    }
    format!("{}\n{table}", report.kind)
}
