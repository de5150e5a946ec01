//! Checks of the log: a partition for every day on which rows will expire, and no partition left whose rows
//! have all expired.

use tokio_postgres::Row;

use super::{Finding, Probe};
use crate::error::Error;
use crate::queue::sql;

/// A new day may begin between two checks, and a daily cleanup may be late once.
const DAYS_AHEAD: i32 = 2;

/// A daily cleanup that is overdue for longer has failed twice, and is not just late.
const DAYS_OVERDUE: i32 = 2;

/// A higher number makes no difference to what must be done.
const MOST_STRAYS: i64 = 100_000;

/// How many users, dashboards and scrapes may request figures or lists at the same moment.
const READERS: i64 = 5;

const CLEANUP: &str = "tidegate cleanup";

pub(super) async fn missing_partitions(probe: &Probe<'_>) -> Result<Finding, Error> {
    let statement = &sql::doctor::MISSING_PARTITIONS;
    let days = probe.rows(statement, &[&DAYS_AHEAD]).await?;
    Ok(match names(&days) {
        None => Finding::ok(format!(
            "there for today's events and those of the next {DAYS_AHEAD} days"
        )),
        Some(days) => Finding::warning(
            format!(
                "no partition for rows that expire on {days}; they go to the default one, which cannot be dropped"
            ),
            CLEANUP,
        ),
    })
}

pub(super) async fn expired_partitions(probe: &Probe<'_>) -> Result<Finding, Error> {
    let statement = &sql::doctor::EXPIRED_PARTITIONS;
    let partitions = probe.rows(statement, &[&DAYS_OVERDUE]).await?;
    Ok(match names(&partitions) {
        None => Finding::ok("no partition is left that should be gone"),
        Some(names) => Finding::warning(
            format!(
                "all rows expired more than {DAYS_OVERDUE} days ago, so no cleanup has run since: {names}"
            ),
            CLEANUP,
        ),
    })
}

fn names(rows: &[Row]) -> Option<String> {
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Checks the room for locks. A statement that finds no room for one more lock fails, even a publish or a
/// drain.
pub(super) async fn locks(probe: &Probe<'_>) -> Result<Finding, Error> {
    let row = probe.row(&sql::doctor::LOCKS).await?;
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

pub(super) async fn stray_rows(probe: &Probe<'_>) -> Result<Finding, Error> {
    let statement = &sql::doctor::STRAY_ROWS;
    let rows = probe.rows(statement, &[&MOST_STRAYS]).await?;
    let strays: i64 = rows.first().map_or(0, |row| row.get(0));
    if strays == 0 {
        return Ok(Finding::ok("no row is in the default partition"));
    }
    let more = if strays == MOST_STRAYS {
        " or more"
    } else {
        ""
    };
    let text = format!(
        "{strays} rows{more} in the default partition, where each is deleted by itself when it expires"
    );
    Ok(Finding::warning(text, CLEANUP))
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
