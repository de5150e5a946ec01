//! Checks of what keeps the queue's table small: vacuum, and what keeps vacuum from working.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::finding::Places;
use super::{Finding, Probe};
use crate::error::Error;
use crate::queue::sql;

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

pub(super) async fn bloat(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = probe.rows(&sql::doctor::BLOAT, &[]).await?;
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

pub(super) async fn autovacuum(probe: &Probe<'_>) -> Result<Finding, Error> {
    let names = ["autovacuum", "track_counts"];
    let settings = probe.settings(&names, |value| value == "off").await?;
    let mut off = Places::of(&settings, |row| {
        let name: String = row.get(0);
        (
            format!("{name} is off"),
            format!("ALTER SYSTEM SET {name} = on;"),
        )
    });
    if !settings.is_empty() {
        off.remedies.push("SELECT pg_reload_conf();".to_owned());
    }
    for row in probe.rows(&sql::doctor::UNVACUUMED, &[]).await? {
        let (table, option): (String, String) = (row.get(0), row.get(1));
        off.texts.push(format!("{option} is off for {table}"));
        off.remedies
            .push(format!("ALTER TABLE {table} RESET ({option});"));
    }
    Ok(match off.list("; ") {
        None => Finding::ok("on, for every table of the queue"),
        Some(text) => Finding::problem(text, off.remedy()),
    })
}

pub(super) async fn horizon(probe: &Probe<'_>) -> Result<Finding, Error> {
    let limits: [&(dyn ToSql + Sync); 2] = [&LONG_TRANSACTION.as_secs_f64(), &SLOT_BEHIND];
    let holders = probe.rows(&sql::doctor::HOLDERS, &limits).await?;
    let holders = Places::of(&holders, |row| (row.get(0), row.get(1)));
    if let Some(list) = holders.list("; ") {
        let text = format!("dead rows cannot be removed: {list}");
        return Ok(Finding::warning(text, holders.remedy()));
    }
    let sight = probe.row(&sql::doctor::SIGHT).await?;
    if sight.get(0) {
        return Ok(Finding::ok("nothing keeps vacuum from removing dead rows"));
    }
    Ok(Finding::warning(
        "this role does not see what other roles' sessions do",
        format!("GRANT pg_monitor TO {};", sight.get::<_, String>(1)),
    ))
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
