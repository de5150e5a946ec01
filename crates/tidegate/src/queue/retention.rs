//! The steps of a cleanup, and how long finished events of each kind are kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::{GenericClient, Row};

use super::publish::refused;
use super::query;
use super::read::document;
use super::statement::statements;
use crate::error::Error;

statements! {
    CLEANUP_STEP: "cleanup_step" [JSONB, BOOL] = "SELECT tidegate.cleanup_step($1, $2)::text";

    LOG_PARTITIONS: "log_partitions" [] =
        "SELECT p.partition FROM tidegate.log_partitions() AS p ORDER BY p.partition";

    RETENTIONS: "retentions" [TEXT] = "\
SELECT k.kind, k.retention_completed::text, k.retention_failed::text,
       (extract(epoch FROM k.retention_completed) * 1000)::int8, (extract(epoch FROM k.retention_failed) * 1000)::int8
  FROM tidegate.event_kind AS k WHERE $1 IS NULL OR k.kind = $1 ORDER BY k.kind";

    /// In days and seconds. Null leaves it unchanged.
    SET_RETENTION: "set_retention" [TEXT, INT4, FLOAT8, INT4, FLOAT8, TEXT, TEXT] = "\
SELECT FROM tidegate.set_retention($1, make_interval(days => $2, secs => $3), make_interval(days => $4, secs => $5), $6, $7)";
}

/// What one step of a cleanup did, or would do in a dry run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Done {
    /// Partitions created.
    pub partitions_made: u64,
    /// Rows that moved into them from the default partition.
    pub rows_moved: u64,
    /// Days whose rows stay in the default partition.
    pub left_to_default: u64,
    /// Live events that were ended because their deadline had passed.
    pub expired: Vec<i64>,
    /// Live events that were ended because no attempts were left.
    pub abandoned: Vec<i64>,
    /// The partition that was dropped.
    pub dropped: Option<DroppedPartition>,
    /// Expired rows deleted.
    pub rows_deleted: u64,
    /// Messages from outside forgotten.
    pub messages_forgotten: u64,
    /// Rows that have a new expiry.
    pub rows_redated: u64,
}

/// A dropped partition: the finished events of a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
pub struct DroppedPartition {
    /// The partition's table.
    pub partition: String,
    /// How many rows it had.
    pub rows: u64,
}

/// What a step did, and with which state the next one begins; `None` when all is done.
#[derive(Debug, Deserialize)]
pub struct Step {
    /// What it did.
    #[serde(rename = "did")]
    pub done: Done,
    /// The state of the next step.
    pub next: Option<Value>,
}

/// Does the next step of a cleanup, or passes over it. A step waits at most 200 ms for a lock. If it does not
/// get the lock, [`Error::is_lock_timeout`] is true for the error, and nothing was changed.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed; otherwise the database's error.
pub async fn cleanup_step(
    client: &(impl GenericClient + Sync),
    state: &Value,
    skip: bool,
) -> Result<Step, Error> {
    let rows = query(client, &CLEANUP_STEP, &[state, &skip]).await;
    let rows = rows.map_err(refused)?;
    let row = rows.first();
    let step = row.map(|row| document(row, || "cleanup_step".to_owned()));
    step.unwrap_or_else(|| Err(Error::Unreadable("cleanup_step: no row".to_owned())))
}

/// Returns the names of the log's partitions.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn partitions(client: &(impl GenericClient + Sync)) -> Result<Vec<String>, Error> {
    let rows = query(client, &LOG_PARTITIONS, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
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

/// Returns the retention of all kinds, or of `kind` alone.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn retentions(
    client: &(impl GenericClient + Sync),
    kind: Option<&str>,
) -> Result<Vec<KindRetention>, Error> {
    let rows = query(client, &RETENTIONS, &[&kind]).await?;
    let read = |row: &Row| KindRetention {
        kind: row.get(0),
        retention_completed: row.get(1),
        retention_failed: row.get(2),
        retention_completed_ms: row.get(3),
        retention_failed_ms: row.get(4),
    };
    Ok(rows.iter().map(read).collect())
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
    reason: &str,
    actor: Option<&str>,
) -> Result<(), Error> {
    let (completed, failed) = (completed.map(in_days), failed.map(in_days));
    query(
        client,
        &SET_RETENTION,
        &[
            &kind,
            &completed.map(|time| time.0),
            &completed.map(|time| time.1),
            &failed.map(|time| time.0),
            &failed.map(|time| time.1),
            &reason,
            &actor,
        ],
    )
    .await
    .map_err(refused)
    .map(drop)
}

/// Splits a time into whole days and the remaining seconds: "7 days" reads better than "168:00:00".
fn in_days(time: Duration) -> (i32, f64) {
    const DAY: u64 = 24 * 60 * 60;
    let days = time.as_secs() / DAY;
    let rest = time.saturating_sub(Duration::from_secs(days * DAY));
    (i32::try_from(days).unwrap_or(i32::MAX), rest.as_secs_f64())
}
