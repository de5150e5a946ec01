//! Checks of the work in progress: leases, drains, deadlines, groups, paused kinds, services.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::finding::Places;
use super::{Finding, Probe};
use crate::error::Error;
use crate::queue::{self, EXPIRY_WINDOW, sql};
use crate::status::ExpiringKind;

/// The next drain takes an event whose lease has run out, and drains are woken about every minute.
const LEASE_OVERDUE: Duration = Duration::from_mins(5);

/// No Lambda function runs longer, so no function works longer on an event that it has leased.
const WORKED_ON: Duration = Duration::from_mins(15);

/// Ten wake-ups of a drain at one a minute.
const UNTOUCHED: Duration = Duration::from_mins(10);

/// With the default backoff of at most ten minutes and five attempts, the first event of a group has ended by
/// then.
const BLOCKED: Duration = Duration::from_hours(1);

/// Fifteen wake-ups of a drain at one a minute.
const SLOT_OVERDUE: Duration = Duration::from_mins(15);

/// A service that is restarted or redeployed answers again by then.
const OUTAGE: Duration = Duration::from_mins(15);

/// A service that is down for this long needs an operator.
const LONG_OUTAGE: Duration = Duration::from_hours(2);

/// The most examples of each violation that a finding names.
const MOST_TOLD: i64 = 5;

pub(super) async fn leases(probe: &Probe<'_>) -> Result<Finding, Error> {
    let limit = LEASE_OVERDUE.as_secs_f64();
    let rows = probe.rows(&sql::doctor::LEASES, &[&limit]).await?;
    let Some(row) = rows.first() else {
        return Ok(Finding::ok("none"));
    };
    let (overdue, running): (i64, i64) = (row.get(0), row.get(1));
    if overdue > 0 {
        let since = rounded(LEASE_OVERDUE);
        let text = format!(
            "{overdue} leases ran out more than {since} ago and no drain has taken their events since"
        );
        return Ok(Finding::problem(text, "tidegate drain"));
    }
    let (Some(id), Some(time)) = (row.get::<_, Option<i64>>(2), row.get(3)) else {
        return Ok(Finding::ok("none running, none overdue"));
    };
    let (time, longest) = (seconds(time), rounded(seconds(time)));
    if time > WORKED_ON {
        let text = format!("event {id} has been worked on for {longest}, its lease renewed");
        return Ok(Finding::warning(text, format!("tidegate show {id}")));
    }
    let text = format!("{running} running, the longest for {longest}");
    Ok(Finding::ok(text))
}

/// Checks for states that no statement of the queue can produce. If there are any, the queue's tables were
/// changed by hand, or there is a bug.
pub(super) async fn order(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = probe.rows(&sql::doctor::DISORDER, &[&MOST_TOLD]).await?;
    if rows.is_empty() {
        return Ok(Finding::ok("every group is leased in its order"));
    }
    let events = rows.iter().map(|row| (row.get(0), row.get(1)));
    let events: Vec<(i64, String)> = events.collect();
    let named = events
        .iter()
        .map(|(id, group)| format!("event {id} of group {group:?}"));
    let text = format!(
        "out of the order of its group: {}",
        named.collect::<Vec<_>>().join(", ")
    );
    let ids: Vec<String> = events.iter().map(|(id, _)| id.to_string()).collect();
    let remedy = format!("tidegate requeue --id {} --reason disorder", ids.join(" "));
    Ok(Finding::problem(text, remedy))
}

pub(super) async fn drains(probe: &Probe<'_>) -> Result<Finding, Error> {
    let (limit, shown) = (UNTOUCHED.as_secs_f64(), rounded(UNTOUCHED));
    let values: [&(dyn ToSql + Sync); 2] = [&limit, &probe.target.kinds];
    let rows = probe.rows(&sql::doctor::UNTOUCHED, &values).await?;
    let Some(row) = rows.first() else {
        return Ok(Finding::ok(format!("no event has been ready for {shown}")));
    };
    let (id, time) = (row.get::<_, i64>(0), rounded(seconds(row.get(1))));
    let text = format!("event {id} has been ready for {time}");
    Ok(if row.get(2) {
        let text = format!("{text}: drains run, but not long or often enough");
        Finding::warning(text, "tidegate drain --budget 5m")
    } else {
        let text = format!("{text}, and nothing has ended in {shown}: no drain runs");
        Finding::problem(text, "tidegate drain")
    })
}

/// Checks which events will expire unless an operator acts: more drains, a resumed kind, a service that
/// answers.
pub(super) async fn deadlines(probe: &Probe<'_>) -> Result<Finding, Error> {
    let kinds = queue::expiring(&probe.client).await?;
    let Some(first) = kinds.first() else {
        return Ok(Finding::ok(format!(
            "no waiting event will pass its deadline within {} or before its turn",
            rounded(EXPIRY_WINDOW)
        )));
    };
    let events: u64 = kinds.iter().map(|kind| kind.events).sum();
    let named = |kind: &ExpiringKind| format!("{} ({})", kind.kind, kind.events);
    let named: Vec<String> = kinds.iter().map(named).collect();
    let text = format!(
        "{events} events will pass their deadline before they are started: {}; the first at {}",
        named.join(", "),
        first.first_deadline
    );
    Ok(Finding::warning(text, "tidegate drain --budget 5m"))
}

pub(super) async fn groups(probe: &Probe<'_>) -> Result<Finding, Error> {
    let (limit, shown) = (BLOCKED.as_secs_f64(), rounded(BLOCKED));
    let rows = probe.rows(&sql::doctor::LONG_BLOCKED, &[&limit]).await?;
    let row = rows.first();
    let (Some(row), Some(group)) = (row, row.and_then(|row| row.get::<_, Option<String>>(1)))
    else {
        return Ok(Finding::ok(format!("none has been blocked for {shown}")));
    };
    let groups: i64 = row.get(0);
    let text = format!(
        "{groups} groups wait behind a first event older than {shown}, such as group {group:?}"
    );
    Ok(Finding::warning(text, "tidegate blocked-groups"))
}

pub(super) async fn paused(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = probe.rows(&sql::doctor::PAUSED, &[]).await?;
    let paused = Places::of(&rows, |row| {
        let (kind, events): (String, i64) = (row.get(0), row.get(1));
        (
            format!("{kind} ({events})"),
            format!("tidegate resume {kind}"),
        )
    });
    Ok(match paused.list(", ") {
        None => Finding::ok("none has events waiting"),
        Some(kinds) => Finding::warning(format!("events wait: {kinds}"), paused.remedy()),
    })
}

pub(super) async fn services(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = probe.rows(&sql::doctor::SERVICES_DOWN, &[]).await?;
    let is_paused = |row: &Row| row.get::<_, &str>(1) == "paused";
    let error = |row: &Row| row.get::<_, Option<String>>(4).unwrap_or_default();
    let down = Places::of(&rows, |row| {
        let (name, waiting): (String, i64) = (row.get(0), row.get(3));
        let (time, error) = (rounded(seconds(row.get(2))), error(row));
        let text = if is_paused(row) {
            format!("{name} has been paused for {time} ({waiting} events wait)")
        } else {
            format!("{name} has not answered for {time} ({error}; {waiting} events wait)")
        };
        (
            text,
            format!("tidegate service {name} --resume --reason recovered"),
        )
    });
    let Some(text) = down.list("; ") else {
        return Ok(Finding::ok("all that were called have answered"));
    };
    let silent = || rows.iter().filter(|row| !is_paused(row));
    let longest = silent()
        .map(|row| seconds(row.get(2)))
        .max()
        .unwrap_or_default();
    Ok(
        if longest > LONG_OUTAGE || silent().any(|row| error(row) == "credentials") {
            Finding::problem(text, down.remedy())
        } else if longest > OUTAGE || rows.iter().any(is_paused) {
            Finding::warning(text, down.remedy())
        } else {
            Finding::ok(text)
        },
    )
}

/// Checks for overdue slots, and for schedules that no drain can fire.
pub(super) async fn schedules(probe: &Probe<'_>) -> Result<Finding, Error> {
    let limit = SLOT_OVERDUE.as_secs_f64();
    let rows = probe
        .rows(&sql::schedule::TROUBLED_SCHEDULES, &[&limit])
        .await?;
    let troubled = Places::of(&rows, |row| {
        let (name, why): (String, String) = (row.get(0), row.get(1));
        let resume = format!("tidegate schedule {name} --resume --reason mended");
        let waits_for_a_drain: bool = row.get(2);
        let remedy = if waits_for_a_drain {
            "tidegate drain".to_owned()
        } else {
            resume
        };
        (format!("{name}: {why}"), remedy)
    });
    Ok(match troubled.list("; ") {
        None => Finding::ok("none is stopped or late"),
        Some(text) => Finding::warning(text, troubled.remedy()),
    })
}

/// Converts the database's seconds. They are negative if a clock was set back.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn rounded(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}
