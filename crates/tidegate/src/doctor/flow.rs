//! Checks of the work in progress: leases, drains, deadlines, groups, paused kinds, services.

use std::time::Duration;

use tokio_postgres::Row;

use super::finding::Wrong;
use super::{Finding, Probe};
use crate::error::Result;
use crate::queue::statement::statements;
use crate::queue::{self, EXPIRY_WINDOW};
use crate::status::ExpiringKind;

/// The next drain takes an event whose lease has run out, and drains are woken about every minute.
const LEASE_OVERDUE: Duration = Duration::from_mins(5);

/// No Lambda function runs longer, so no function works longer on an event that it has leased.
const WORKED_ON: Duration = Duration::from_mins(15);

/// Ten wake-ups of a drain at one a minute.
const READY_FOR: Duration = Duration::from_mins(10);

/// Three wake-ups of a drain. If events are ready and none ends for so long, nothing handles them.
const STANDSTILL: Duration = Duration::from_mins(3);

/// Fewer dead letters in an hour are no share of anything.
const FEW: i64 = 10;

/// The percentage of dead letters in an hour that is worth a look.
const SOME_DEAD: i64 = 5;

/// The percentage of failed events in an hour that is a problem.
const MANY_FAILED: i64 = 25;

/// Whoever handles events by SQL polls more often than this.
const POLLED: Duration = Duration::from_hours(1);

/// A service that is down for this long needs an operator.
const LONG_OUTAGE: Duration = Duration::from_hours(2);

statements! {
    /// Leased events: how many have a lease that ran out more than `$1` seconds ago, which one has been
    /// worked on longest, and for how many seconds.
    LEASES: "leases" [FLOAT8] = "\
WITH leased AS MATERIALIZED (
    SELECT q.id, l.taken_at, l.expires_at
      FROM tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
      JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r))
SELECT (SELECT count(*) FROM leased WHERE expires_at <= statement_timestamp() - make_interval(secs => $1)),
       (SELECT count(*) FROM leased WHERE expires_at > statement_timestamp()), longest.id, longest.seconds
  FROM (VALUES (1)) AS one
  LEFT JOIN (SELECT id, extract(epoch FROM statement_timestamp() - taken_at)::float8 AS seconds
               FROM leased
              WHERE expires_at > statement_timestamp()
              ORDER BY taken_at, id LIMIT 1) AS longest ON true";

    /// States that no statement of the queue can produce (see `V0003__lease.sql`): events that are leased
    /// ahead of their group, and unmarked events with a group that a walk has passed. If there are any, the
    /// queue's tables were changed by hand, or there is a bug. Up to five of each.
    pub(super) DISORDER: "disorder" [] = "\
SELECT format('event %s of group %s', d.id, to_json(d.group_key)),
       format('tidegate requeue --id %s --reason disorder', string_agg(d.id::text, ' ') OVER ())
  FROM (SELECT u.id, u.group_key FROM tidegate.unordered_leases(5) AS u
        UNION ALL
        SELECT m.id, m.group_key FROM tidegate.unmarked_events(5) AS m) AS d";

    /// Whether any event has ended within the last `$1` seconds.
    ENDED_SINCE: "ended_since" [FLOAT8] = "\
SELECT EXISTS (SELECT FROM tidegate.event_log AS l
                WHERE l.finished_at > statement_timestamp() - make_interval(secs => $1))";

    /// Events that ended in the last hour: all, those that failed, and those that were rejected.
    ENDED: "ended_last_hour" [] = "\
SELECT least(coalesce(sum(m.events), 0), 1e16)::bigint, least(coalesce(sum(m.events) FILTER (WHERE m.status = 'FAILED'), 0), 1e16)::bigint,
       least(coalesce(sum(m.events) FILTER (WHERE m.status = 'COMPLETED_WITH_ERRORS'), 0), 1e16)::bigint
  FROM tidegate.minute_stats AS m
 WHERE m.minute > statement_timestamp() - interval '1 hour' AND m.status <> 'PUT_OFF'";

    /// The kinds whose events are only pulled.
    PULLED: "pulled" [] = "SELECT k.kind FROM tidegate.event_kind AS k WHERE k.targets = '{}' ORDER BY k.kind";

    /// The number of groups that wait behind an old first event, and the oldest one's group. With the default
    /// backoff of at most ten minutes and five attempts, a first event has ended within an hour.
    pub(super) LONG_BLOCKED: "long_blocked" [] = "\
SELECT format('%s groups wait behind a first event older than 1h, such as group %s', count(*),
              to_json((array_agg(b.group_key ORDER BY b.head_id))[1])), 'tidegate blocked-groups'
  FROM tidegate.blocked_groups AS b
 WHERE b.created_at <= statement_timestamp() - interval '1 hour' HAVING count(*) > 0";

    /// Paused kinds with their number of events.
    pub(super) PAUSED: "paused" [] = "\
SELECT format('%s (%s)', k.kind, count(*)), 'tidegate resume ' || k.kind
  FROM tidegate.event_kind AS k JOIN tidegate.event_queue AS q USING (kind)
 WHERE k.paused
 GROUP BY k.kind ORDER BY k.kind";

    /// Kinds with a limit, of the kind or of a service, that are only pulled or that a program holds events
    /// of.
    pub(super) LIMITED_PULLS: "limited_pulls" [] = "\
SELECT k.kind, 'tidegate services'
  FROM tidegate.event_kind AS k
 WHERE EXISTS (SELECT FROM tidegate.service AS s WHERE k.kind = ANY (s.kinds) AND num_nonnulls(s.max_running, s.per_second) > 0)
   AND (k.targets = '{}' OR k.kind IN (
       SELECT q.kind FROM tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
         JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
        WHERE l.token = l.worker AND NOT l.ended))
 ORDER BY k.kind";

    /// Services that are not called: for how many seconds, how many events wait, the code of the last
    /// failure, and in how many seconds the first event gives up.
    SERVICES_DOWN: "services_down" [] = "\
SELECT s.service, s.state, extract(epoch FROM clock_timestamp() - s.since)::float8, s.waiting, s.last_error,
       CASE WHEN s.state <> 'paused' THEN (
           SELECT extract(epoch FROM min(greatest(s.since, coalesce(q.waits_since, q.available_at)) - clock_timestamp()
                                         + tidegate.patience(k.policy)))::float8
             FROM tidegate.event_queue AS q JOIN tidegate.event_kind AS k USING (kind)
            WHERE q.kind = ANY (s.kinds) AND NOT k.paused) END
  FROM tidegate.services AS s
 WHERE s.state <> 'closed'
 ORDER BY s.since, s.service";

    /// Schedules with a problem: their kind is not registered, they have stopped, they are ahead of the
    /// clock, or they have not fired for fifteen minutes after their slot: as many wake-ups of a drain.
    pub(super) TROUBLED_SCHEDULES: "troubled_schedules" [] = "\
SELECT s.name || ': ' ||
       CASE WHEN s.problem IS NOT NULL THEN s.problem
            WHEN k.kind IS NULL THEN 'its kind ' || s.kind || ' is not registered'
            WHEN s.last_at > statement_timestamp() THEN 'its last slot is in the future: the clock was set back'
            ELSE 'its slot has been due since ' || to_char(s.next_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') END,
       CASE WHEN s.problem IS NULL AND k.kind IS NOT NULL AND coalesce(s.last_at <= statement_timestamp(), true) THEN 'tidegate drain'
            ELSE format('tidegate schedule %s --resume --reason mended', s.name) END
  FROM tidegate.schedule AS s LEFT JOIN tidegate.event_kind AS k USING (kind)
 WHERE NOT s.paused AND NOT coalesce(k.paused, false)
   AND (s.problem IS NOT NULL OR k.kind IS NULL OR s.last_at > statement_timestamp()
        OR isfinite(s.next_at) AND s.next_at <= statement_timestamp() - interval '15 minutes')
 ORDER BY s.name LIMIT 10";
}

pub(super) async fn leases(probe: &Probe<'_>) -> Result<Finding> {
    let limit = LEASE_OVERDUE.as_secs_f64();
    let rows = probe.rows(&LEASES, &[&limit]).await?;
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

pub(super) async fn drains(probe: &Probe<'_>) -> Result<Finding> {
    let oldest = queue::oldest_ready(&probe.client, probe.target.kinds).await?;
    let oldest = oldest.map(|(id, ms)| (id, Duration::from_millis(ms)));
    let ready_for = |limit| oldest.filter(|(_, time)| *time >= limit);
    let is_ready =
        |id: i64, time: Duration| format!("event {id} has been ready for {}", rounded(time));
    if let Some((id, time)) = ready_for(STANDSTILL) {
        let ended = probe
            .rows(&ENDED_SINCE, &[&STANDSTILL.as_secs_f64()])
            .await?;
        if !ended.iter().any(|row| row.get(0)) {
            let (ready, limit) = (is_ready(id, time), rounded(STANDSTILL));
            let text = format!(
                "{ready}, and nothing has ended in {limit}: no drain runs, or none gets on"
            );
            return Ok(Finding::problem(text, "tidegate drain"));
        }
    }
    Ok(match ready_for(READY_FOR) {
        Some((id, time)) => {
            let text = is_ready(id, time) + ": drains run, but not long or often enough";
            Finding::warning(text, "tidegate drain --budget 5m")
        }
        None => Finding::ok(format!(
            "no event has been ready for {}",
            rounded(READY_FOR)
        )),
    })
}

/// Checks what share of the events of the last hour became dead letters.
pub(super) async fn failures(probe: &Probe<'_>) -> Result<Finding> {
    let row = probe.row(&ENDED).await?;
    let (ended, failed, rejected): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let text = format!(
        "of {ended} events that ended in the last hour, {failed} failed and {rejected} were rejected"
    );
    let remedy = "tidegate failures --since 1h";
    let is_share = |events: i64, percent: i64| events >= FEW && events * 100 >= ended * percent;
    Ok(if is_share(failed, MANY_FAILED) {
        Finding::problem(text, remedy)
    } else if is_share(failed + rejected, SOME_DEAD) {
        Finding::warning(text, remedy)
    } else {
        Finding::ok(text)
    })
}

/// Checks whether the events of kinds that no drain handles are polled. A poll leaves no trace beyond its
/// lease, so one that takes nothing is not seen.
pub(super) async fn pulled(probe: &Probe<'_>) -> Result<Finding> {
    let rows = probe.rows(&PULLED, &[]).await?;
    let kinds: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    if kinds.is_empty() {
        return Ok(Finding::ok("none"));
    }
    let oldest = queue::oldest_ready(&probe.client, &kinds).await?;
    Ok(
        match oldest.map(|(id, ms)| (id, Duration::from_millis(ms))) {
            Some((id, time)) if time >= POLLED => {
                let text = format!("event {id} has been ready for {}", rounded(time));
                let text = format!("{text}: nobody polls its kind, or not often enough");
                Finding::warning(text, format!("tidegate show {id}"))
            }
            _ => Finding::ok(format!("no event has been ready for {}", rounded(POLLED))),
        },
    )
}

/// Checks which events will expire unless an operator acts: more drains, a resumed kind, a service that
/// answers.
pub(super) async fn deadlines(probe: &Probe<'_>) -> Result<Finding> {
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

pub(super) async fn services(probe: &Probe<'_>) -> Result<Finding> {
    let rows = probe.rows(&SERVICES_DOWN, &[]).await?;
    let is_paused = |row: &Row| row.get::<_, &str>(1) == "paused";
    let error = |row: &Row| row.get::<_, Option<String>>(4).unwrap_or_default();
    let down = Wrong::of(&rows, |row| {
        let (name, waiting): (String, i64) = (row.get(0), row.get(3));
        let (time, error) = (rounded(seconds(row.get(2))), error(row));
        let text = if is_paused(row) {
            format!("{name} has been paused for {time} ({waiting} events wait)")
        } else {
            let gives_up = row.get::<_, Option<f64>>(5).map(seconds);
            let first =
                gives_up.map(|time| format!(", the first ends FAILED in {}", rounded(time)));
            let first = first.unwrap_or_default();
            format!("{name} has not answered for {time} ({error}; {waiting} events wait{first})")
        };
        let remedy = format!("tidegate service {name} --resume --reason recovered");
        (text, remedy)
    });
    let silent = || rows.iter().filter(|row| !is_paused(row));
    let longest = silent().map(|row| seconds(row.get(2))).max();
    let longest = longest.unwrap_or_default();
    let ok = "all that were called have answered";
    Ok(down.or_ok(ok, "; ", |text, remedy| {
        if longest > LONG_OUTAGE || silent().any(|row| error(row) == "credentials") {
            Finding::problem(text, remedy)
        } else {
            Finding::warning(text, remedy)
        }
    }))
}

/// Converts the database's seconds. They are negative if a clock was set back.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn rounded(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}
