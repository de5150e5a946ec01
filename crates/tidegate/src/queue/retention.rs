//! The steps of a cleanup, one short statement each, and the retention of kinds. Every step waits at most 200
//! ms for a lock. If it does not get the lock, [`Error::is_lock_timeout`] is true for the error, and nothing
//! was changed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

use super::publish::refused;
use super::{query, sql};
use crate::error::Error;

/// The most rows of a day that are moved out of the default partition. A day with more rows stays there.
pub const MOVED_AT_MOST: u64 = 10_000;

/// The result for a day that needs a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// It now has one, with this many rows from the default partition.
    New {
        /// Rows moved.
        moved: u64,
    },
    /// Another session has created it.
    There,
    /// Too many of its rows are in the default partition, or its name is taken.
    LeftToDefault,
}

/// A partition of the log.
#[derive(Debug, Clone)]
pub struct Partition {
    /// Its table, in the schema `tidegate`.
    pub name: String,
    /// Whether every row that it can hold has expired.
    pub over: bool,
    /// Whether it may hold expired rows.
    pub due: bool,
    /// What is known of its counts.
    pub counts: Counts,
}

/// What is known of a partition's daily counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// They may still grow.
    Open,
    /// They are final, because no event can finish into the partition any more. They are to be counted.
    Final,
    /// They are stored beside the partition: it is sealed.
    Sealed,
}

/// The events that were ended on one page of the live queue.
#[derive(Debug, Clone, Default)]
pub struct Ended {
    /// Ended because their deadline had passed.
    pub expired: Vec<i64>,
    /// Ended because no attempts were left.
    pub abandoned: Vec<i64>,
    /// Where the next page begins; `None` at the end.
    pub last_id: Option<i64>,
}

/// What one step of a walk through a partition changed.
#[derive(Debug, Clone, Default)]
pub struct Walked {
    /// Rows changed.
    pub rows: u64,
    /// Where the next step begins; `None` at the end.
    pub next: Option<String>,
}

/// How long finished events of a kind are kept, as the database writes intervals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
pub struct KindRetention {
    /// The kind.
    pub kind: String,
    /// For COMPLETED events.
    pub retention_completed: String,
    /// For FAILED and `COMPLETED_WITH_ERRORS` events.
    pub retention_failed: String,
    /// Of COMPLETED ones, in milliseconds; a month counts as 30 days, a year as 365.25.
    pub retention_completed_ms: i64,
    /// Of the others, likewise.
    pub retention_failed_ms: i64,
}

/// The reason and the operator of a change.
#[derive(Debug, Clone, Copy)]
pub struct AuditNote<'a> {
    /// The reason, for the audit.
    pub text: &'a str,
    /// The operator's name.
    pub actor: Option<&'a str>,
}

/// Returns the database's time.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn clock(client: &(impl GenericClient + Sync)) -> Result<SystemTime, Error> {
    let rows = query(client, &sql::retention::CLOCK, &[]).await?;
    Ok(rows.first().map_or_else(SystemTime::now, |row| row.get(0)))
}

/// Returns the days (`YYYY-MM-DD`, UTC) without a partition on which events expire that finish within a week
/// from `now`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn missing_days(
    client: &(impl GenericClient + Sync),
    now: SystemTime,
) -> Result<Vec<String>, Error> {
    let rows = query(client, &sql::retention::MISSING_DAYS, &[&now]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Counts the rows of a day in the default partition, up to one more than [`MOVED_AT_MOST`].
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn rows_in_default(
    client: &(impl GenericClient + Sync),
    day: &str,
) -> Result<u64, Error> {
    let rows = query(client, &sql::retention::ROWS_IN_DEFAULT, &[&day]).await?;
    Ok(rows
        .first()
        .map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Creates the partition of one day (`YYYY-MM-DD`, UTC).
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn make_partition(
    client: &(impl GenericClient + Sync),
    day: &str,
) -> Result<Made, Error> {
    let rows = query(client, &sql::retention::MAKE_PARTITION, &[&day]).await?;
    let Some(row) = rows.first() else {
        return Ok(Made::There);
    };
    match row.get(0) {
        "made" => Ok(Made::New {
            moved: row.get::<_, i64>(1).unsigned_abs(),
        }),
        "there" => Ok(Made::There),
        "left_to_default" => Ok(Made::LeftToDefault),
        other => Err(Error::Unreadable(format!(
            "make_log_partition: outcome {other} is unknown"
        ))),
    }
}

/// Returns the log's partitions, the soonest to expire first, the default one last.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn partitions(
    client: &(impl GenericClient + Sync),
    now: SystemTime,
) -> Result<Vec<Partition>, Error> {
    let rows = query(client, &sql::retention::PARTITIONS, &[&now]).await?;
    let partition = |row: &Row| Partition {
        name: row.get(0),
        over: row.get(1),
        due: row.get(2),
        counts: match (row.get(3), row.get(4)) {
            (_, true) => Counts::Sealed,
            (true, false) => Counts::Final,
            (false, false) => Counts::Open,
        },
    };
    Ok(rows.iter().map(partition).collect())
}

/// Returns how many expired rows each partition holds. Reads all of them.
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn expired_rows(
    client: &(impl GenericClient + Sync),
    now: SystemTime,
) -> Result<BTreeMap<String, u64>, Error> {
    let rows = query(client, &sql::retention::EXPIRED_ROWS, &[&now]).await?;
    let counted = |row: &Row| (row.get(0), row.get::<_, i64>(1).unsigned_abs());
    Ok(rows.iter().map(counted).collect())
}

/// Which live events are to be ended: those that no drain would give to a handler any more.
#[derive(Debug, Clone, Copy)]
pub struct DeadEvents<'a> {
    /// The most rows to examine.
    pub page: u32,
    /// Only those published at least this long ago.
    pub older_than: Duration,
    /// Report what would be done, and change nothing.
    pub dry_run: bool,
    /// The operator's name, for the audit.
    pub actor: Option<&'a str>,
    /// The time that counts as now.
    pub now: SystemTime,
}

/// Ends the dead events on one page of the live events after id `after`.
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn end_dead(
    client: &(impl GenericClient + Sync),
    after: i64,
    dead: &DeadEvents<'_>,
) -> Result<Ended, Error> {
    let page = as_int4(dead.page);
    let older_than = dead.older_than.as_secs_f64();
    let rows = query(
        client,
        &sql::retention::SWEEP,
        &[
            &after,
            &page,
            &older_than,
            &dead.dry_run,
            &dead.actor,
            &dead.now,
        ],
    )
    .await?;
    Ok(rows.first().map_or_else(Ended::default, |row| Ended {
        expired: row.get(0),
        abandoned: row.get(1),
        last_id: row.get(2),
    }))
}

/// Makes one step of counting a closed partition, so that dropping it later takes no time. Returns whether
/// that was the last step, or `None` when the partition is not closed, or gone.
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn seal(
    client: &(impl GenericClient + Sync),
    partition: &str,
    now: SystemTime,
) -> Result<Option<bool>, Error> {
    let rows = query(client, &sql::retention::SEAL, &[&partition, &now]).await?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Drops a sealed partition that is over, and returns its number of rows; `None` when it is not over, or
/// already gone.
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn drop_partition(
    client: &(impl GenericClient + Sync),
    partition: &str,
    actor: Option<&str>,
    now: SystemTime,
) -> Result<Option<u64>, Error> {
    let rows = query(client, &sql::retention::DROP, &[&partition, &actor, &now]).await?;
    let dropped = rows.first().and_then(|row| row.get::<_, Option<i64>>(0));
    Ok(dropped.map(i64::unsigned_abs))
}

/// Deletes at most `batch` expired rows of one partition, from the place `since` on.
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn delete_expired(
    client: &(impl GenericClient + Sync),
    partition: &str,
    since: Option<&str>,
    batch: u32,
    actor: Option<&str>,
    now: SystemTime,
) -> Result<Walked, Error> {
    let batch = as_int4(batch);
    let rows = query(
        client,
        &sql::retention::DELETE,
        &[&partition, &since, &batch, &actor, &now],
    )
    .await?;
    Ok(walked(&rows))
}

/// Forgets at most `batch` messages that were taken in long ago, or counts all of them. Returns how many.
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn forget_received(
    client: &(impl GenericClient + Sync),
    batch: u32,
    dry_run: bool,
    actor: Option<&str>,
    now: SystemTime,
) -> Result<u64, Error> {
    let values: [&(dyn ToSql + Sync); 4] = [&as_int4(batch), &dry_run, &actor, &now];
    let rows = query(client, &sql::retention::FORGET, &values).await?;
    Ok(rows
        .first()
        .map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Combines figures of old minutes into hours and days, and forgets drains that ended a week ago: at most
/// about `batch` rows of each. Returns the larger of the two numbers of rows.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn fold_figures(client: &(impl GenericClient + Sync), batch: u32) -> Result<u64, Error> {
    let rows = query(client, &sql::retention::FOLD_FIGURES, &[&as_int4(batch)]).await?;
    Ok(rows
        .first()
        .map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Returns the retention of all kinds, or of `kind` alone.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn retentions(
    client: &(impl GenericClient + Sync),
    kind: Option<&str>,
) -> Result<Vec<KindRetention>, Error> {
    let rows = query(client, &sql::retention::RETENTIONS, &[&kind]).await?;
    Ok(rows.iter().map(kind_retention).collect())
}

/// Sets how long finished events of a kind are kept, from now on. `None` leaves it as it is.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered or a value is out of range; otherwise the database's
/// error.
pub async fn set_retention(
    client: &(impl GenericClient + Sync),
    kind: &str,
    completed: Option<Duration>,
    failed: Option<Duration>,
    note: AuditNote<'_>,
) -> Result<Vec<KindRetention>, Error> {
    let (completed, failed) = (completed.map(in_days), failed.map(in_days));
    let rows = query(
        client,
        &sql::retention::SET_RETENTION,
        &[
            &kind,
            &completed.map(|time| time.0),
            &completed.map(|time| time.1),
            &failed.map(|time| time.0),
            &failed.map(|time| time.1),
            &note.text,
            &note.actor,
        ],
    )
    .await
    .map_err(refused)?;
    Ok(rows.iter().map(kind_retention).collect())
}

/// Returns the days without a partition to which rows of a kind in one partition would move.
///
/// # Errors
/// When the database fails or does not answer, or when a lock is not available.
pub async fn missing_retention_days(
    client: &(impl GenericClient + Sync),
    kind: &str,
    partition: &str,
) -> Result<Vec<String>, Error> {
    let rows = query(
        client,
        &sql::retention::MISSING_RETENTION_DAYS,
        &[&kind, &partition],
    )
    .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Gives at most `batch` finished events of a kind in one partition a new expiry, from the place `since` on.
///
/// # Errors
/// [`Error::Invalid`] when the kind is not registered or the reason is empty; otherwise the database's error.
/// Also when a lock is not available.
pub async fn apply_retention(
    client: &(impl GenericClient + Sync),
    kind: &str,
    partition: &str,
    since: Option<&str>,
    batch: u32,
    note: AuditNote<'_>,
) -> Result<Walked, Error> {
    let batch = as_int4(batch);
    let rows = query(
        client,
        &sql::retention::APPLY_RETENTION,
        &[&kind, &partition, &since, &batch, &note.text, &note.actor],
    )
    .await
    .map_err(refused)?;
    Ok(walked(&rows))
}

fn as_int4(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Splits a time into whole days and the remaining seconds: "7 days" reads better than "168:00:00".
fn in_days(time: Duration) -> (i32, f64) {
    const DAY: u64 = 24 * 60 * 60;
    let days = time.as_secs() / DAY;
    let rest = time.saturating_sub(Duration::from_secs(days * DAY));
    (i32::try_from(days).unwrap_or(i32::MAX), rest.as_secs_f64())
}

fn walked(rows: &[Row]) -> Walked {
    rows.first().map_or_else(Walked::default, |row| Walked {
        rows: row.get::<_, i64>(0).unsigned_abs(),
        next: row.get(1),
    })
}

fn kind_retention(row: &Row) -> KindRetention {
    KindRetention {
        kind: row.get(0),
        retention_completed: row.get(1),
        retention_failed: row.get(2),
        retention_completed_ms: row.get(3),
        retention_failed_ms: row.get(4),
    }
}
