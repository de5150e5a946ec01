//! Checks of what keeps the queue's table small: vacuum, and what keeps vacuum from working.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::finding::Wrong;
use super::{Finding, Probe};
use crate::error::Result;
use crate::queue::statement::statements;

/// Ten times the number at which autovacuum should begin. With more, autovacuum does not keep up.
const MOST_DEAD_ROWS: i64 = 200_000;

/// Scanning a smaller table costs next to nothing.
const SMALL_TABLE: i64 = 64 * 1024 * 1024;

/// Two pages for each row: a scan then reads mostly empty space. Rows are at most two kibibytes, because
/// Postgres stores longer values elsewhere, and pages are filled to one half.
const MOST_BYTES_A_ROW: i64 = 16 * 1024;

/// Dead rows accumulate as long as a transaction is open. A drain of one minute creates millions.
const LONG_TRANSACTION: Duration = Duration::from_mins(10);

/// A replication slot stores no time. A queue of a hundred events per second generates this many transactions
/// in three hours.
const SLOT_BEHIND: i64 = 1_000_000;

statements! {
    /// The statistics of the queue's table: live and dead rows, its size without TOAST data, and the time of
    /// the last autovacuum.
    BLOAT: "bloat" [] = "\
SELECT s.n_live_tup, s.n_dead_tup, pg_relation_size(s.relid),
       to_char(s.last_autovacuum AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')
  FROM pg_catalog.pg_stat_all_tables AS s
 WHERE s.relid = 'tidegate.event_queue'::regclass";

    /// The queue's tables that have an option which turns autovacuum off.
    UNVACUUMED: "unvacuumed" [] = "\
SELECT format('%s is off for %s', given.option, c.oid::regclass), format('ALTER TABLE %s RESET (%s);', c.oid::regclass, given.option)
  FROM pg_catalog.pg_class AS c
  LEFT JOIN pg_catalog.pg_class AS t ON t.oid = c.reltoastrelid
 CROSS JOIN LATERAL (VALUES (c.reloptions, 'autovacuum_enabled'), (t.reloptions, 'toast.autovacuum_enabled'))
       AS given(options, option)
 WHERE c.relnamespace = to_regnamespace('tidegate')
   AND c.relkind = 'r'
   AND EXISTS (SELECT FROM unnest(given.options) AS o WHERE o ~* '^autovacuum_enabled=(off|f|n|0)')
 ORDER BY 1, 2";

    /// Sessions and slots that have kept vacuum from its work for more than `$1` seconds or, for a
    /// replication slot, `$2` transactions: what each one is, and how to end it.
    HOLDERS: "holders" [FLOAT8, INT8] = "\
SELECT format('session %s of %s, %s, has had a transaction open for %s s', a.pid, coalesce(a.usename, 'nobody'),
              coalesce(a.state, 'unknown'), round(extract(epoch FROM statement_timestamp() - a.xact_start))),
       format('SELECT pg_terminate_backend(%s);', a.pid)
  FROM pg_catalog.pg_stat_activity AS a
 WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
   AND a.xact_start <= statement_timestamp() - make_interval(secs => $1)
   AND a.pid <> pg_backend_pid()
   AND a.backend_type IN ('client backend', 'walsender', 'background worker')
UNION ALL
SELECT format('transaction %L is prepared and has waited for its end for %s s', p.gid,
              round(extract(epoch FROM statement_timestamp() - p.prepared))),
       format('ROLLBACK PREPARED %L;', p.gid)
  FROM pg_catalog.pg_prepared_xacts AS p
 WHERE p.prepared <= statement_timestamp() - make_interval(secs => $1)
UNION ALL
SELECT format('replication slot %s, %s, is %s transactions behind', s.slot_name,
              CASE WHEN s.active THEN 'in use' ELSE 'not in use' END, greatest(age(s.xmin), age(s.catalog_xmin))),
       format('SELECT pg_drop_replication_slot(%L);', s.slot_name)
  FROM pg_catalog.pg_replication_slots AS s
 WHERE greatest(age(s.xmin), age(s.catalog_xmin)) > $2";

    /// Sessions of this database that have been idle in a transaction or have waited for a lock for more than
    /// a minute. A query is shown without its values.
    pub(super) SESSIONS: "sessions" [] = "\
SELECT format('session %s of %s %s for %s s%s%s', s.pid, coalesce(s.usename, 'nobody'), s.what,
              round(extract(epoch FROM statement_timestamp() - s.since)), s.behind,
              ': ' || nullif(left(regexp_replace(regexp_replace(s.query, '''[^'']*''', '''…''', 'g'), '[[:space:]]+', ' ', 'g'), 100), '')),
       format('SELECT pg_terminate_backend(%s);', s.culprit)
  FROM (SELECT a.pid, a.usename, a.query, a.pid AS culprit, '' AS behind, 'has been ' || a.state AS what, a.state_change AS since
          FROM pg_catalog.pg_stat_activity AS a
         WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%' AND a.pid <> pg_backend_pid()
        UNION ALL
        SELECT a.pid, a.usename, a.query, coalesce((pg_blocking_pids(a.pid))[1], a.pid),
               ' behind session ' || (pg_blocking_pids(a.pid))[1], 'has waited for a lock', l.since
          FROM (SELECT k.pid, min(k.waitstart) AS since FROM pg_catalog.pg_locks AS k WHERE NOT k.granted GROUP BY k.pid) AS l
          JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid AND a.datname = current_database()) AS s
 WHERE s.since <= statement_timestamp() - interval '1 minute'
 ORDER BY s.since LIMIT 10";

    /// Whether this role cannot see other roles' sessions.
    SIGHT: "sight" [] = "\
SELECT 'this role does not see what other roles'' sessions do', format('GRANT pg_monitor TO %I;', current_user)
 WHERE NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')";
}

pub(super) async fn bloat(probe: &Probe<'_>) -> Result<Finding> {
    let rows = probe.rows(&BLOAT, &[]).await?;
    let Some(row) = rows.first() else {
        return Ok(Finding::ok("the server collects no statistics"));
    };
    let mut finding = judge_bloat(row.get(0), row.get(1), row.get(2));
    let last: Option<String> = row.get(3);
    let last = last.map_or_else(|| "never".to_owned(), |at| format!("{at} UTC"));
    finding.finding = format!("{}; last autovacuum: {last}", finding.finding);
    Ok(finding)
}

fn judge_bloat(live: i64, dead: i64, bytes: i64) -> Finding {
    let mib = bytes / 1024 / 1024;
    if dead > MOST_DEAD_ROWS && dead > live {
        let text = format!("{dead} dead rows in event_queue beside {live} live ones");
        return Finding::warning(text, "VACUUM (VERBOSE) tidegate.event_queue;");
    }
    if bytes > SMALL_TABLE && bytes / live.max(1) > MOST_BYTES_A_ROW {
        let text = format!(
            "event_queue has {mib} MiB for {live} live rows; the repair locks the queue for a moment"
        );
        return Finding::warning(text, "VACUUM FULL tidegate.event_queue;");
    }
    Finding::ok(format!("{live} live and {dead} dead rows in {mib} MiB"))
}

pub(super) async fn autovacuum(probe: &Probe<'_>) -> Result<Finding> {
    let names = ["autovacuum", "track_counts"];
    let settings = probe.settings(&names, |value| value == "off").await?;
    let mut off = Wrong::of(&settings, |row| {
        let name: String = row.get(0);
        (
            format!("{name} is off"),
            format!("ALTER SYSTEM SET {name} = on;"),
        )
    });
    if !settings.is_empty() {
        off.remedies.push("SELECT pg_reload_conf();".to_owned());
    }
    let of_tables = probe.wrong(&UNVACUUMED, &[]).await?;
    off.texts.extend(of_tables.texts);
    off.remedies.extend(of_tables.remedies);
    Ok(off.or_ok("on, for every table of the queue", "; ", Finding::problem))
}

pub(super) async fn horizon(probe: &Probe<'_>) -> Result<Finding> {
    let limits: [&(dyn ToSql + Sync); 2] = [&LONG_TRANSACTION.as_secs_f64(), &SLOT_BEHIND];
    let holders = probe.wrong(&HOLDERS, &limits).await?;
    if holders.texts.is_empty() {
        let blind = probe.wrong(&SIGHT, &[]).await?;
        let ok = "nothing keeps vacuum from removing dead rows";
        return Ok(blind.or_ok(ok, "", Finding::warning));
    }
    Ok(holders.or_ok("", "; ", |list, remedy| {
        Finding::warning(format!("dead rows cannot be removed: {list}"), remedy)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_table_is_judged_by_its_dead_rows_and_its_emptiness() {
        const GIB: i64 = 1024 * 1024 * 1024;
        for (live, dead, bytes, remedy) in [
            (0, 0, 0, None),
            (2_000_000, 150_000, GIB, None),
            (2_000_000, 1_900_000, GIB, None),
            (100, 300_000, SMALL_TABLE, Some("VACUUM (")),
            (100, 10, GIB, Some("VACUUM FULL")),
            (0, 0, GIB, Some("VACUUM FULL")),
            (0, 0, SMALL_TABLE, None),
        ] {
            let finding = judge_bloat(live, dead, bytes);
            assert_eq!(finding.state == State::Ok, remedy.is_none(), "{finding:?}");
            assert!(remedy.is_none_or(|start| finding.remedy.unwrap().starts_with(start)));
        }
    }
}
