//! Checks of the log: a partition for every day on which rows will expire, none left that is over.

use super::{Finding, Probe};
use crate::error::Error;
use crate::queue::{query, sql};

/// A day begins while nobody looks, and a cleanup that runs daily may be late once.
const DAYS_AHEAD: i32 = 2;

/// A daily cleanup that failed twice is not just late.
const DAYS_OVERDUE: i32 = 2;

/// What more there is makes no difference to what is to be done.
const MOST_STRAYS: i64 = 100_000;

const CLEANUP: &str = "tidegate cleanup";

pub(super) async fn missing_partitions(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = query(
        &probe.client,
        &sql::doctor::MISSING_PARTITIONS,
        &[&DAYS_AHEAD],
    )
    .await?;
    let days: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    Ok(if days.is_empty() {
        Finding::ok(format!(
            "there for today's events and those of the next {DAYS_AHEAD} days"
        ))
    } else {
        let text = format!(
            "no partition for rows that expire on {}; they go to the default one, which cannot be dropped",
            days.join(", ")
        );
        Finding::warning(text, CLEANUP)
    })
}

pub(super) async fn expired_partitions(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = query(
        &probe.client,
        &sql::doctor::EXPIRED_PARTITIONS,
        &[&DAYS_OVERDUE],
    )
    .await?;
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    Ok(if names.is_empty() {
        Finding::ok("no partition is left that should be gone")
    } else {
        let text = format!(
            "all rows expired more than {DAYS_OVERDUE} days ago, so no cleanup has run since: {}",
            names.join(", ")
        );
        Finding::warning(text, CLEANUP)
    })
}

pub(super) async fn stray_rows(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = query(&probe.client, &sql::doctor::STRAY_ROWS, &[&MOST_STRAYS]).await?;
    let strays: i64 = rows.first().map_or(0, |row| row.get(0));
    Ok(match strays {
        0 => Finding::ok("no row is in the default partition"),
        MOST_STRAYS => {
            Finding::warning(strays_text(&format!("{MOST_STRAYS} rows or more")), CLEANUP)
        }
        rows => Finding::warning(strays_text(&format!("{rows} rows")), CLEANUP),
    })
}

fn strays_text(rows: &str) -> String {
    format!("{rows} in the default partition, where each is deleted by itself when it expires")
}
