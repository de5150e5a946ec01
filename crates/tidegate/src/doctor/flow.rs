//! Checks of the work in progress: leases, drains, deadlines, groups, paused kinds, services.

use std::time::Duration;

use super::{Finding, Probe};
use crate::error::Error;
use crate::queue::{self, EXPIRY_WINDOW, query, sql};
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
    let rows = query(&probe.client, &sql::doctor::LEASES, &[&limit]).await?;
    let Some(row) = rows.first() else {
        return Ok(Finding::ok("none"));
    };
    let (overdue, running): (i64, i64) = (row.get(0), row.get(1));
    if overdue > 0 {
        let text = format!(
            "{overdue} leases ran out more than {} ago and no drain has taken their events since",
            rounded(LEASE_OVERDUE)
        );
        return Ok(Finding::problem(text, "tidegate drain"));
    }
    let longest: Option<(i64, Duration)> = row
        .get::<_, Option<i64>>(2)
        .zip(row.get::<_, Option<f64>>(3).map(seconds));
    Ok(match longest {
        Some((id, time)) if time > WORKED_ON => {
            let text = format!(
                "event {id} has been worked on for {}, its lease renewed",
                rounded(time)
            );
            Finding::warning(text, format!("tidegate show {id}"))
        }
        Some((_, time)) => Finding::ok(format!(
            "{running} running, the longest for {}",
            rounded(time)
        )),
        None => Finding::ok("none running, none overdue"),
    })
}

/// Checks for states that no statement of the queue can produce. If there are any, the queue's tables were
/// changed by hand, or there is a bug.
pub(super) async fn order(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = query(&probe.client, &sql::doctor::DISORDER, &[&MOST_TOLD]).await?;
    if rows.is_empty() {
        return Ok(Finding::ok("every group is leased in its order"));
    }
    let named: Vec<String> = rows
        .iter()
        .map(|row| {
            let (id, group): (i64, String) = (row.get(0), row.get(1));
            format!("event {id} of group {group:?}")
        })
        .collect();
    let text = format!("out of the order of its group: {}", named.join(", "));
    let ids: Vec<String> = rows
        .iter()
        .map(|row| row.get::<_, i64>(0).to_string())
        .collect();
    let remedy = format!("tidegate requeue --id {} --reason disorder", ids.join(" "));
    Ok(Finding::problem(text, remedy))
}

pub(super) async fn drains(probe: &Probe<'_>) -> Result<Finding, Error> {
    let limit = UNTOUCHED.as_secs_f64();
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&limit, &probe.target.kinds];
    let rows = query(&probe.client, &sql::doctor::UNTOUCHED, &values).await?;
    let Some(row) = rows.first() else {
        return Ok(Finding::ok(format!(
            "no event has been ready for {}",
            rounded(UNTOUCHED)
        )));
    };
    let (id, time, something_ended) = (row.get::<_, i64>(0), seconds(row.get(1)), row.get(2));
    let text = format!("event {id} has been ready for {}", rounded(time));
    Ok(if something_ended {
        let text = format!("{text}: drains run, but not long or often enough");
        Finding::warning(text, "tidegate drain --budget 5m")
    } else {
        let text = format!(
            "{text}, and nothing has ended in {}: no drain runs",
            rounded(UNTOUCHED)
        );
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
    let limit = BLOCKED.as_secs_f64();
    let rows = query(&probe.client, &sql::doctor::LONG_BLOCKED, &[&limit]).await?;
    let first = rows.first();
    let group: Option<String> = first.and_then(|row| row.get(1));
    let (Some(row), Some(group)) = (first, group) else {
        return Ok(Finding::ok(format!(
            "none has been blocked for {}",
            rounded(BLOCKED)
        )));
    };
    let groups: i64 = row.get(0);
    let text = format!(
        "{groups} groups wait behind a first event older than {}, such as group {group:?}",
        rounded(BLOCKED)
    );
    Ok(Finding::warning(text, "tidegate blocked-groups"))
}

pub(super) async fn paused(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = query(&probe.client, &sql::doctor::PAUSED, &[]).await?;
    if rows.is_empty() {
        return Ok(Finding::ok("none has events waiting"));
    }
    let waiting = rows
        .iter()
        .map(|row| format!("{} ({})", row.get::<_, String>(0), row.get::<_, i64>(1)));
    let text = format!("events wait: {}", waiting.collect::<Vec<_>>().join(", "));
    let resume = rows
        .iter()
        .map(|row| format!("tidegate resume {}", row.get::<_, String>(0)));
    Ok(Finding::warning(
        text,
        resume.collect::<Vec<_>>().join("\n"),
    ))
}

pub(super) async fn services(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = query(&probe.client, &sql::doctor::SERVICES_DOWN, &[]).await?;
    let (mut texts, mut remedies, mut longest, mut refuses_us) =
        (vec![], vec![], Duration::ZERO, false);
    for row in &rows {
        let (name, state): (String, String) = (row.get(0), row.get(1));
        let (time, waiting): (Duration, i64) = (seconds(row.get(2)), row.get(3));
        let error = row.get::<_, Option<String>>(4).unwrap_or_default();
        let is_paused = state == "paused";
        let what = if is_paused {
            format!("has been paused for {} (", rounded(time))
        } else {
            format!("has not answered for {} ({error}; ", rounded(time))
        };
        texts.push(format!("{name} {what}{waiting} events wait)"));
        remedies.push(format!(
            "tidegate service {name} --resume --reason recovered"
        ));
        refuses_us |= error == "credentials" && !is_paused;
        longest = longest.max(if is_paused { Duration::ZERO } else { time });
    }
    let text = texts.join("; ");
    Ok(if rows.is_empty() {
        Finding::ok("all that were called have answered")
    } else if refuses_us || longest > LONG_OUTAGE {
        Finding::problem(text, remedies.join("\n"))
    } else if longest > OUTAGE || rows.iter().any(|row| row.get::<_, &str>(1) == "paused") {
        Finding::warning(text, remedies.join("\n"))
    } else {
        Finding::ok(text)
    })
}

/// Checks for overdue slots, and for schedules that no drain can fire.
pub(super) async fn schedules(probe: &Probe<'_>) -> Result<Finding, Error> {
    let limit = SLOT_OVERDUE.as_secs_f64();
    let rows = query(&probe.client, &sql::schedule::TROUBLED_SCHEDULES, &[&limit]).await?;
    if rows.is_empty() {
        return Ok(Finding::ok("none is stopped or late"));
    }
    let (mut texts, mut remedies) = (vec![], vec![]);
    for row in &rows {
        let (name, why): (String, String) = (row.get(0), row.get(1));
        let waits_for_a_drain: bool = row.get(2);
        remedies.push(if waits_for_a_drain {
            "tidegate drain".to_owned()
        } else {
            format!("tidegate schedule {name} --resume --reason mended")
        });
        texts.push(format!("{name}: {why}"));
    }
    remedies.dedup();
    Ok(Finding::warning(texts.join("; "), remedies.join("\n")))
}

/// Converts the database's seconds. They are negative if a clock was set back.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn rounded(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}
