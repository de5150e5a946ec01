//! Checks of the log: a partition for every day on which rows will expire, and no partition left whose rows
//! have all expired.

use super::{Finding, Probe};
use crate::error::Result;
use crate::queue::statement::statements;

/// How many users, dashboards and scrapes may request figures or lists at the same moment.
const READERS: i64 = 5;

statements! {
    /// Days without a partition of the log on which events will soon expire, in the form of the partitions'
    /// names. For each retention, the days from now to two days ahead: a new day may begin between two
    /// checks, and a daily cleanup may be late once.
    pub(super) MISSING_PARTITIONS: "missing_partitions" [] = "\
SELECT DISTINCT to_char(needed.day, 'YYYYMMDD'), 'tidegate cleanup'
  FROM (SELECT ((clock_timestamp() AT TIME ZONE 'UTC') + r.retention)::date + ahead.days AS day
          FROM tidegate.event_kind AS k
         CROSS JOIN LATERAL (VALUES (k.retention_completed), (k.retention_failed)) AS r(retention)
         CROSS JOIN generate_series(0, 2) AS ahead(days)) AS needed
 WHERE NOT EXISTS (
       SELECT FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'tidegate.event_log'::regclass
          AND c.relname = 'event_log_' || to_char(needed.day, 'YYYYMMDD'))
 ORDER BY 1";

    /// Partitions of the log whose rows all expired more than two days ago: a daily cleanup has failed twice,
    /// and is not just late.
    pub(super) EXPIRED_PARTITIONS: "expired_partitions" [] = "\
SELECT c.relname::text, 'tidegate cleanup'
  FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'tidegate.event_log'::regclass
   AND c.relname ~ '^event_log_[0-9]{8}$'
   AND substr(c.relname, 11) < to_char((clock_timestamp() AT TIME ZONE 'UTC')::date - 2, 'YYYYMMDD')
 ORDER BY 1";

    /// The number of rows in the default partition, if there are any. A number above 100,000 makes no
    /// difference to what must be done.
    pub(super) STRAY_ROWS: "stray_rows" [] = "\
SELECT format('%s rows%s', count(*), CASE WHEN count(*) = 100000 THEN ' or more' END), 'tidegate cleanup'
  FROM (SELECT FROM tidegate.event_log_default LIMIT 100000) AS stray HAVING count(*) > 0";

    /// Three numbers: the relations that a query of the whole log locks, the locks that the server has room
    /// for, and the sessions for which it reserves that room.
    LOCKS: "locks" [] = "\
SELECT (SELECT count(*) FROM pg_catalog.pg_partition_tree('tidegate.event_log') AS t)
     + (SELECT count(*) FROM pg_catalog.pg_partition_tree('tidegate.event_log') AS t
          JOIN pg_catalog.pg_index AS i ON i.indrelid = t.relid),
       current_setting('max_locks_per_transaction')::bigint,
       current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint";
}

/// Checks the room for locks. A statement that finds no room for one more lock fails, even a publish or a
/// drain.
pub(super) async fn locks(probe: &Probe<'_>) -> Result<Finding> {
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
    let enough = of_a_query * READERS * 2 / sessions.max(1) + 1;
    let remedy =
        format!("ALTER SYSTEM SET max_locks_per_transaction = {enough}; -- and restart the server");
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
