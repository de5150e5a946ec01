//! The calls of a cleanup's steps, and the log's partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::publish::refused;
use super::statement::statements;
use super::{Queryable, all, document, execute};
use crate::error::{Error, Result};

statements! {
    CLEANUP_STEP: "cleanup_step" [JSONB, BOOL] = "SELECT @tidegate.cleanup_step($1, $2)::text";

    pub(crate) MAKE_PARTITIONS: "make_partitions" [] =
        "SELECT @tidegate.cleanup('30 seconds', '{\"stages\": [\"make\"]}')";

    LOG_PARTITIONS: "log_partitions" [] =
        "SELECT p.partition FROM @tidegate.log_partitions() AS p ORDER BY p.partition";
}

/// What one step of a cleanup did, or would do in a dry run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cleaned {
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
    /// Live events that were ended because they had waited for a service for too long.
    pub given_up: Vec<i64>,
    /// The partition that was dropped.
    pub dropped: Option<DroppedPartition>,
    /// Expired rows deleted.
    pub rows_deleted: u64,
    /// Messages from outside forgotten.
    pub messages_forgotten: u64,
    /// Rows of programs' own tables that were removed, by table.
    pub records: BTreeMap<String, u64>,
}

/// A dropped partition: the finished events of a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DroppedPartition {
    /// The partition's table.
    pub partition: String,
    /// How many rows it had.
    pub rows: u64,
}

/// What a step did, and with which state the next one begins; `None` when all is done.
#[derive(Debug, Deserialize)]
pub struct CleanupStep {
    /// What it did.
    #[serde(rename = "did")]
    pub done: Cleaned,
    /// The state of the next step.
    pub next: Option<Value>,
}

/// Creates the partitions for events that finish within a week. A day whose locks are not free is left to the
/// next cleanup: rows without a partition go to the default one.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn make_partitions(client: &impl Queryable) -> Result<()> {
    execute(client, &MAKE_PARTITIONS, &[]).await
}

/// Does the next step of a cleanup, or passes over it. A step waits at most 200 ms for a lock. If it does not
/// get the lock, [`Error::is_lock_timeout`] is true for the error, and nothing was changed.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed; otherwise the database's error.
pub async fn cleanup_step(
    client: &impl Queryable,
    state: &Value,
    skip: bool,
) -> Result<CleanupStep> {
    let step = document(client, &CLEANUP_STEP, &[state, &skip]).await;
    step.map_err(refused)?
        .ok_or_else(|| Error::Unreadable("cleanup_step: no row".to_owned()))
}

/// Returns the names of the log's partitions.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn partitions(client: &impl Queryable) -> Result<Vec<String>> {
    all(client, &LOG_PARTITIONS, &[]).await
}

/// Splits a time into whole days and the remaining seconds: "7 days" reads better than "168:00:00".
pub fn in_days(time: Duration) -> (i32, f64) {
    const DAY: u64 = 24 * 60 * 60;
    let days = time.as_secs() / DAY;
    let rest = time.saturating_sub(Duration::from_secs(days * DAY));
    (i32::try_from(days).unwrap_or(i32::MAX), rest.as_secs_f64())
}
