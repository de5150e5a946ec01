//! Owns the texts for people: tables, times, percentages. It queries nothing.
//!
//! Publishers choose kinds and keys, and handlers choose errors. [`shown`] makes such text safe to print: a
//! value within a line goes through it where the line is made, and every line goes through it again where it
//! is printed.

pub mod change;
pub mod cleanup;
pub mod operate;

use std::fmt::Write;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::Value;
use tidegate::doctor::DoctorReport;
use tidegate::invocation::StatsReport;
use tidegate::operate::{ExpiringKind, ScheduleStatus};
use tidegate::queue::{Lineage, RelatedEvent, Relation};
use tidegate::{DrainReport, ServiceState, ServiceStatus, StopReason};

/// Describes the queue and its health: one line for the whole, then one per kind.
pub fn status(stats: &StatsReport) -> String {
    let mut table = plain_table(&[
        "kind",
        "pending",
        "running",
        "delayed",
        "attempts",
        "oldest",
        "completed",
        "rejected",
        "failed",
        "failure rate",
        "p50",
        "p95",
        "p99",
        "",
    ]);
    for kind in &stats.kinds {
        table.add_row(vec![
            cell(&kind["kind"]),
            cell(&kind["pending"]),
            cell(&kind["processing"]),
            cell(&kind["delayed"]),
            cell(&kind["max_attempts_used"]),
            time(&kind["oldest_age_ms"]),
            cell(&kind["completed"]),
            cell(&kind["completed_with_errors"]),
            cell(&kind["failed"]),
            percent(&kind["failure_rate"]),
            time(&kind["latency_p50_ms"]),
            time(&kind["latency_p95_ms"]),
            time(&kind["latency_p99_ms"]),
            paused(kind),
        ]);
    }
    let depth = depth(stats);
    let whole = overall(stats);
    let expiring = expiring(&stats.expiring);
    let down = down(&stats.services_down);
    format!(
        "{depth}\n{whole}{expiring}{down}\nby kind (finished events are those of the last hour):\n{table}"
    )
}

/// Adds a line for each kind with events that will miss their deadline.
fn expiring(kinds: &[ExpiringKind]) -> String {
    let lines = kinds.iter().map(|kind| {
        format!(
            "\n{} {} will pass their deadline before they are started, the first at {}",
            kind.events,
            shown(&kind.kind),
            without_fraction(&kind.first_deadline)
        )
    });
    lines.collect()
}

/// Adds a line for each service that is not called.
fn down(services: &[ServiceStatus]) -> String {
    let lines = services.iter().map(|service| {
        format!(
            "\n{} is {} since {}; {} events wait for it",
            shown(&service.service),
            state(service.state),
            without_fraction(&service.since),
            service.waiting
        )
    });
    lines.collect()
}

/// Describes the number of live events and their age.
pub fn depth(stats: &StatsReport) -> String {
    match stats.backlog {
        0 => "the queue is empty".to_owned(),
        1 => format!("1 event in the queue, {} old", coarse(stats.oldest_age_ms)),
        events => format!(
            "{events} events in the queue, the oldest {} old",
            coarse(stats.oldest_age_ms)
        ),
    }
}

/// Describes the figures of the whole queue in one line.
fn overall(stats: &StatsReport) -> String {
    format!(
        "in flight {}, stuck {}, delayed {}, blocked groups {}; dead letters of the last day {}; \
         finished in the last hour {}, now {:.1}/s",
        stats.in_flight,
        stats.stuck,
        stats.delayed,
        stats.blocked_groups,
        stats.dead_letters_last_day,
        stats.finished_last_hour,
        stats.throughput_per_second,
    )
}

/// Returns the word for a paused kind, otherwise nothing.
pub fn paused(kind: &Value) -> String {
    let word = if kind["paused"] == true { "paused" } else { "" };
    word.to_owned()
}

/// Describes what a drain did.
pub fn drained(report: &DrainReport) -> String {
    let reason = match report.stop_reason {
        StopReason::QueueEmpty if !report.unhandled.is_empty() => {
            "no event that this program handles is ready"
        }
        StopReason::QueueEmpty => "the queue is empty",
        StopReason::BudgetSpent => "the budget is spent",
        StopReason::LimitReached => "the maximum number of events is reached",
        StopReason::NoSlot => "the maximum number of drains is already running",
        _ => "it ended early",
    };
    let mut table = counts(report);
    table.add_row(vec![
        "left in the queue".to_owned(),
        report.backlog.to_string(),
    ]);
    let mut text = format!(
        "drained for {}: {reason}\n{table}",
        coarse(report.elapsed_ms)
    );
    if !report.unhandled.is_empty() {
        let kinds = report.unhandled.iter();
        let kinds: Vec<String> = kinds
            .map(|(kind, count)| format!("{count} {}", shown(kind)))
            .collect();
        text.push_str("\nof other programs: ");
        text.push_str(&kinds.join(", "));
    }
    if report.expiring > 0 {
        let events = report.expiring;
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n{events} will pass their deadline before they are started"
        );
    }
    text.push_str(&down(&report.services_down));
    text
}

/// Describes what a drain did until it failed.
pub fn broken_off(report: &DrainReport) -> String {
    let table = counts(report);
    format!("failed after {}\n{table}", coarse(report.elapsed_ms))
}

fn counts(report: &DrainReport) -> Table {
    let mut table = plain_table(&["what", "events"]);
    for (what, events) in [
        ("leased", report.leased),
        ("completed", report.completed),
        ("rejected by a handler", report.completed_with_errors),
        ("failed", report.failed),
        ("to be retried", report.retried),
        ("waiting for a service", report.deferred),
        ("snoozed", report.snoozed),
        ("released before they started", report.released),
        ("lease lost", report.lease_lost),
        ("expired", report.expired),
        ("abandoned", report.abandoned),
        ("follow-ups published", report.published),
    ] {
        table.add_row(vec![what.to_owned(), events.to_string()]);
    }
    if report.scheduled > 0 {
        let told = report.scheduled.to_string();
        table.add_row(vec!["periodic events published".to_owned(), told]);
    }
    if report.still_running > 0 {
        let told = report.still_running.to_string();
        table.add_row(vec!["given up, but still running".to_owned(), told]);
    }
    table
}

/// Describes everything that is stored about an event, one line for each field with a value.
pub fn event(event: &Value) -> String {
    let mut text = String::new();
    for (name, value) in event.as_object().into_iter().flatten() {
        let value = match value {
            Value::Null => continue,
            Value::String(text) => shown(text),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        let value = value.replace('\n', "\n                       ");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:22} {value}");
    }
    text
}

/// Draws the ancestors and descendants of an event as a tree.
pub fn lineage(lineage: &Lineage, id: i64) -> String {
    let mut lines: Vec<String> = Vec::with_capacity(lineage.events.len());
    // Whether, at each depth, another branch follows below the line that is being drawn.
    let mut more: Vec<bool> = Vec::new();
    for event in lineage.events.iter().rev() {
        let depth = event.depth as usize;
        more.resize(depth + 1, false);
        let mut line = String::from("  ");
        for more in more.iter().take(depth).skip(1) {
            line.push_str(if *more { "│  " } else { "   " });
        }
        if depth > 0 {
            line.push_str(if more[depth] { "├─ " } else { "└─ " });
        }
        more[depth] = true;
        line.push_str(&related_line(event));
        if event.id == id {
            line.push_str("  ← this event");
        }
        lines.push(line);
    }
    lines.reverse();
    if let Some(gone) = lineage.events.first().and_then(RelatedEvent::origin) {
        let why = if lineage.truncated {
            "is not shown"
        } else {
            "is no longer stored"
        };
        lines.insert(0, format!("  (event {gone}, from which it came, {why})"));
    }
    if lineage.truncated {
        lines.push(format!(
            "  (only the nearest {} are shown)",
            lineage.events.len()
        ));
    }
    format!("lineage\n{}\n", lines.join("\n"))
}

fn related_line(event: &RelatedEvent) -> String {
    let replay = if event.relation == Relation::Replay {
        "replay "
    } else {
        ""
    };
    let when = event.finished_at.as_ref().map_or_else(
        || format!("created {}", without_fraction(&event.created_at)),
        |at| format!("ended {}", without_fraction(at)),
    );
    let attempts = match event.attempts {
        1 => "1 attempt".to_owned(),
        more => format!("{more} attempts"),
    };
    format!(
        "{replay}{} {} {}, {attempts}, {when}",
        event.id,
        shown(&event.kind),
        event.status
    )
}

/// Lists events, one line each, and the command for the next page if there may be one.
pub fn list(events: &[Value], next: Option<&str>) -> String {
    let mut table = plain_table(&[
        "id",
        "kind",
        "status",
        "attempts",
        "group",
        "created",
        "last error",
    ]);
    for event in events {
        table.add_row(vec![
            cell(&event["id"]),
            kind_of(event),
            cell(&event["status"]),
            cell(&event["attempts"]),
            cell(&event["group_key"]),
            instant(&event["created_at"]),
            short(&event["last_error"]),
        ]);
    }
    let mut text = table.to_string();
    if events.iter().any(is_foreign) {
        text.push_str("\n* this program does not have this kind");
    }
    if let Some(next) = next {
        // Writing to a string does not fail.
        let _ = write!(text, "\nnext page: {next}");
    }
    text
}

/// Returns an event's kind, with a mark if the program does not have it.
pub fn kind_of(event: &Value) -> String {
    let mark = if is_foreign(event) { "*" } else { "" };
    format!("{}{mark}", cell(&event["kind"]))
}

fn is_foreign(event: &Value) -> bool {
    event["handled"] == false
}

/// Lists groups that wait, one line each, and the possible actions.
pub fn blocked_groups(groups: &[Value]) -> String {
    if groups.is_empty() {
        return "no group is blocked".to_owned();
    }
    let mut table = plain_table(&[
        "group",
        "waiting",
        "first event",
        "kind",
        "attempts",
        "runs next",
        "last error",
    ]);
    for group in groups {
        table.add_row(vec![
            cell(&group["group_key"]),
            cell(&group["waiting"]),
            cell(&group["head_id"]),
            cell(&group["head_kind"]),
            format!("{} of {}", group["attempts"], group["max_attempts"]),
            instant(&group["available_at"]),
            short(&group["last_error"]),
        ]);
    }
    format!(
        "{table}\nlook at the first event: tidegate show ID\n\
         release the group: tidegate unblock GROUP --retry|--skip|--cancel"
    )
}

/// Lists outside services; those that are not called come first.
pub fn services(services: &[ServiceStatus]) -> String {
    if services.is_empty() {
        return "no service has failed, is paused or is limited".to_owned();
    }
    let mut table = plain_table(&[
        "service",
        "state",
        "since",
        "waiting",
        "next try",
        "failures",
        "last error",
        "limits",
    ]);
    let time = |time: &Option<String>| time.as_deref().map(without_fraction).unwrap_or_default();
    for service in services {
        table.add_row(vec![
            shown(&service.service),
            state(service.state).to_owned(),
            without_fraction(&service.since),
            service.waiting.to_string(),
            time(&service.retry_at),
            service.failures.to_string(),
            service.last_error.as_deref().map(shown).unwrap_or_default(),
            limits(service),
        ]);
    }
    format!("{table}\nresume calls of a service: tidegate service NAME --resume --reason TEXT")
}

/// Lists periodic events: those that have stopped first, then the others by their next slot.
pub fn schedules(schedules: &[ScheduleStatus]) -> String {
    if schedules.is_empty() {
        return "there are no schedules".to_owned();
    }
    let mut table = plain_table(&[
        "schedule",
        "kind",
        "when",
        "state",
        "next",
        "last",
        "last event",
        "catch up",
        "kept by",
    ]);
    let time = |time: &Option<String>| time.as_deref().map(without_fraction).unwrap_or_default();
    for one in schedules {
        let state = one.problem.as_deref().unwrap_or(&one.state);
        table.add_row(vec![
            shown(&one.name),
            shown(&one.kind),
            when(one),
            shown(&state.replace('_', " ")),
            time(&one.next_at),
            time(&one.last_at),
            one.last_event_id
                .map_or_else(String::new, |id| id.to_string()),
            one.catch_up.as_str().to_owned(),
            shown(one.keeper.as_deref().unwrap_or("operators")),
        ]);
    }
    format!("{table}\ntimes are in UTC")
}

fn when(schedule: &ScheduleStatus) -> String {
    match (&schedule.cron, schedule.every_ms) {
        (Some(cron), _) if schedule.time_zone == "UTC" => cron.clone(),
        (Some(cron), _) => format!("{cron} {}", schedule.time_zone),
        (None, every) => {
            let every = Duration::from_millis(every.unwrap_or_default().unsigned_abs());
            format!("every {}", humantime::format_duration(every))
        }
    }
}

/// Describes the limits of a service's calls, and the number of its places that drains hold.
fn limits(service: &ServiceStatus) -> String {
    let limits = operate::limits(service.max_running, service.per_second);
    match (service.max_running, service.per_second) {
        (None, None) => String::new(),
        (None, Some(_)) => limits,
        (Some(_), _) => format!("{limits} ({} now)", service.places),
    }
}

/// Describes whether a service is called.
pub fn state(state: ServiceState) -> &'static str {
    match state {
        ServiceState::Closed => "called",
        ServiceState::Open => "down",
        ServiceState::Probing => "being probed",
        ServiceState::Paused => "paused",
    }
}

/// Lists leases and their workers, one line each.
pub fn leases(leases: &[Value]) -> String {
    if leases.is_empty() {
        return "nothing is leased".to_owned();
    }
    let mut table = plain_table(&[
        "worker", "events", "started", "first", "last", "since", "renewed", "expires", "",
    ]);
    for lease in leases {
        let expired = if lease["expired"] == true {
            "expired"
        } else {
            ""
        };
        table.add_row(vec![
            cell(&lease["worker"]),
            cell(&lease["events"]),
            cell(&lease["started"]),
            cell(&lease["first_id"]),
            cell(&lease["last_id"]),
            instant(&lease["taken_at"]),
            instant(&lease["renewed_at"]),
            instant(&lease["expires_at"]),
            expired.to_owned(),
        ]);
    }
    format!("{table}\ntake an event from its worker: tidegate requeue --id ID --reason TEXT")
}

/// Lists the doctor's findings, one line for each check and one for each remedy.
pub fn doctor(report: &DoctorReport) -> String {
    let mut text = String::new();
    for check in &report.checks {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:8} {:20} {}",
            check.state.word(),
            check.name,
            shown(&check.finding)
        );
        for line in check.remedy.iter().flat_map(|remedy| remedy.lines()) {
            let _ = writeln!(text, "{:8} {:20} remedy: {line}", "", "");
        }
    }
    text
}

fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.to_vec());
    table
}

pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => shown(text),
        other => shown(&other.to_string()),
    }
}

/// Returns a text in which a terminal finds no command and no change of the direction of writing, and which
/// has one line. Such characters are written as `\u{1b}`.
pub fn shown(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut shown, one| {
            if is_command(one) {
                shown.extend(one.escape_default());
            } else {
                shown.push(one);
            }
            shown
        })
}

/// Whether a character moves, colours, reorders or breaks what is written, instead of being seen: ASCII's and
/// C1's controls, the line separators, and the marks of bidirectional text.
pub fn is_command(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cuts an error to the width of a line.
fn short(value: &Value) -> String {
    let line = value.as_str().unwrap_or_default().replace('\n', " ");
    shown(&line.chars().take(80).collect::<String>())
}

/// Formats a timestamp without its fraction of a second.
pub fn instant(value: &Value) -> String {
    without_fraction(&cell(value))
}

pub fn without_fraction(time: &str) -> String {
    let whole = time.split(['.', '+', 'Z']).next();
    whole.unwrap_or_default().replace('T', " ")
}

pub fn time(milliseconds: &Value) -> String {
    milliseconds.as_u64().map(coarse).unwrap_or_default()
}

/// Formats a duration; above one second without milliseconds.
pub fn coarse(milliseconds: u64) -> String {
    let duration = match milliseconds {
        0..1000 => Duration::from_millis(milliseconds),
        _ => Duration::from_secs(milliseconds.saturating_add(500) / 1000),
    };
    humantime::format_duration(duration).to_string()
}

pub fn percent(share: &Value) -> String {
    share
        .as_f64()
        .map(|share| format!("{:.1} %", share * 100.0))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds_above_one() {
        for (milliseconds, text) in [
            (0, "0s"),
            (999, "999ms"),
            (1000, "1s"),
            (623_973, "10m 24s"),
        ] {
            assert_eq!(coarse(milliseconds), text);
        }
    }
}
