//! Checks of the log: a partition for every day on which rows will expire, and no partition left whose rows
//! have all expired.

use super::{Finding, Probe};
use crate::error::Error;
use crate::queue::statement::statements;

/// A new day may begin between two checks, and a daily cleanup may be late once.
const DAYS_AHEAD: i32 = 2;

/// A daily cleanup that is overdue for longer has failed twice, and is not just late.
const DAYS_OVERDUE: i32 = 2;

/// A higher number makes no difference to what must be done.
const MOST_STRAYS: i64 = 100_000;

/// How many users, dashboards and scrapes may request figures or lists at the same moment.
const READERS: i64 = 5;

statements! {
    /// Days without a partition of the log on which events will soon expire, in the form of the partitions'
    /// names. For each retention, the days from now to `$1` days ahead.
    MISSING_PARTITIONS: "missing_partitions" [INT4] = "\
SELECT DISTINCT to_char(wanted.day, 'YYYYMMDD'), 'tidegate cleanup'
  FROM (SELECT ((clock_timestamp() AT TIME ZONE 'UTC') + r.retention)::date + ahead.days AS day
          FROM tidegate.event_kind AS k
         CROSS JOIN LATERAL (VALUES (k.retention_completed), (k.retention_failed)) AS r(retention)
         CROSS JOIN generate_series(0, $1) AS ahead(days)) AS wanted
 WHERE NOT EXISTS (
       SELECT FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'tidegate.event_log'::regclass
          AND c.relname = 'event_log_' || to_char(wanted.day, 'YYYYMMDD'))
 ORDER BY 1";

    /// Partitions of the log whose rows all expired more than `$1` days ago.
    EXPIRED_PARTITIONS: "expired_partitions" [INT4] = "\
SELECT c.relname::text, 'tidegate cleanup'
  FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'tidegate.event_log'::regclass
   AND c.relname ~ '^event_log_[0-9]{8}$'
   AND substr(c.relname, 11) < to_char((clock_timestamp() AT TIME ZONE 'UTC')::date - $1, 'YYYYMMDD')
 ORDER BY 1";

    /// The number of rows in the default partition, counted up to `$1`, if there are any.
    STRAY_ROWS: "stray_rows" [INT8] = "\
SELECT format('%s rows%s', count(*), CASE WHEN count(*) = $1 THEN ' or more' END), 'tidegate cleanup'
  FROM (SELECT FROM tidegate.event_log_default LIMIT $1) AS stray HAVING count(*) > 0";

    /// Three numbers: the relations that a query of the whole log locks, the locks that the server has room
    /// for, and the sessions for which it reserves that room.
    LOCKS: "locks" [] = "\
SELECT (SELECT count(*) FROM pg_catalog.pg_partition_tree('tidegate.event_log') AS t)
     + (SELECT count(*) FROM pg_catalog.pg_partition_tree('tidegate.event_log') AS t
          JOIN pg_catalog.pg_index AS i ON i.indrelid = t.relid),
       current_setting('max_locks_per_transaction')::bigint,
       current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint";
}

pub(super) async fn missing_partitions(probe: &Probe<'_>) -> Result<Finding, Error> {
    let missing = probe.wrong(&MISSING_PARTITIONS, &[&DAYS_AHEAD]).await?;
    let ok = format!("there for today's events and those of the next {DAYS_AHEAD} days");
    Ok(missing.or_ok(ok, ", ", |days, remedy| {
        let text = format!(
            "no partition for rows that expire on {days}; they go to the default one, which cannot be dropped"
        );
        Finding::warning(text, remedy)
    }))
}

pub(super) async fn expired_partitions(probe: &Probe<'_>) -> Result<Finding, Error> {
    let expired = probe.wrong(&EXPIRED_PARTITIONS, &[&DAYS_OVERDUE]).await?;
    let ok = "no partition is left that should be gone";
    Ok(expired.or_ok(ok, ", ", |names, remedy| {
        let text = format!(
            "all rows expired more than {DAYS_OVERDUE} days ago, so no cleanup has run since: {names}"
        );
        Finding::warning(text, remedy)
    }))
}

pub(super) async fn stray_rows(probe: &Probe<'_>) -> Result<Finding, Error> {
    let strays = probe.wrong(&STRAY_ROWS, &[&MOST_STRAYS]).await?;
    let ok = "no row is in the default partition";
    Ok(strays.or_ok(ok, "", |rows, remedy| {
        let text = format!(
            "{rows} in the default partition, where each is deleted by itself when it expires"
        );
        Finding::warning(text, remedy)
    }))
}

/// Checks the room for locks. A statement that finds no room for one more lock fails, even a publish or a
/// drain.
pub(super) async fn locks(probe: &Probe<'_>) -> Result<Finding, Error> {
    let row = probe.row(&LOCKS).await?;
    Ok(judge_locks(row.get(0), row.get(1), row.get(2)))
}

fn judge_locks(of_a_query: i64, for_each: i64, sessions: i64) -> Finding {
    let places = for_each * sessions;
    if of_a_query * READERS <= places {
        return Finding::ok(format!(
            "a query of the whole log takes {of_a_query} locks of {places}"
        ));
    }
    let text = format!(
        "a query of the whole log takes {of_a_query} locks, and the server has room for {places}: when {READERS} run at once, \
         publishes and drains fail with \"out of shared memory\""
    );
    // Twice what is needed now, because the log will have more days later.
    let wanted = of_a_query * READERS * 2 / sessions.max(1) + 1;
    let remedy =
        format!("ALTER SYSTEM SET max_locks_per_transaction = {wanted}; -- and restart the server");
    Finding::warning(text, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_log_of_a_year_wants_more_locks_than_a_server_has_by_itself() {
        // A table and six indexes for each of 366 days, and for their parent.
        let finding = judge_locks(2569, 64, 100);
        assert_eq!(finding.state, State::Warning);
        assert!(
            finding.finding.contains("room for 6400"),
            "{}",
            finding.finding
        );
        assert_eq!(judge_locks(2569, 257, 100).state, State::Ok);
        assert_eq!(judge_locks(7 * 99, 64, 100).state, State::Ok);
    }
}
