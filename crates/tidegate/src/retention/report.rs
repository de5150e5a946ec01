//! What a cleanup answers, and a change of retention.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::queue::retention::KindRetention;

/// Why a cleanup ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CleanupStop {
    /// Nothing is left to do but what was skipped because of locks.
    #[default]
    Done,
    /// Time was up, or a stop signal came.
    BudgetSpent,
}

/// What a cleanup did or, when it was dry, would have done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "cleanup")]
#[non_exhaustive]
pub struct CleanupReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Partitions made ahead.
    pub partitions_made: u64,
    /// Rows that moved into them from the default partition.
    pub rows_moved: u64,
    /// Days of which too many rows are in the default partition; they are deleted in batches.
    pub left_to_default: u64,
    /// Live events ended FAILED because their start-before deadline had passed.
    pub expired: u64,
    /// Live events ended FAILED because their last attempt had been abandoned by a worker.
    pub abandoned: u64,
    /// Partitions counted, so that they can be dropped in no time.
    pub partitions_sealed: u64,
    /// Partitions dropped.
    pub partitions_dropped: u64,
    /// Rows that went with them.
    pub rows_dropped: u64,
    /// The partitions dropped, with their rows.
    pub dropped: Vec<DroppedPartition>,
    /// Expired rows deleted in batches.
    pub rows_deleted: u64,
    /// Messages from outside that were taken in long ago, and are no longer remembered.
    #[serde(default)]
    pub messages_forgotten: u64,
    /// Rows of the program's own tables that were kept for long enough, by table.
    #[serde(default)]
    pub records: BTreeMap<String, u64>,
    /// How often a step waited for a lock in vain.
    pub lock_timeouts: u64,
    /// Steps left to the next run because of that.
    pub skipped: u64,
    /// How long the run took.
    pub elapsed_ms: u64,
    /// How long it was allowed to take.
    pub budget_ms: u64,
    /// Why it ended.
    pub stop_reason: CleanupStop,
}

/// A day's finished events, gone at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DroppedPartition {
    /// The partition's table.
    pub partition: String,
    /// Its rows.
    pub rows: u64,
}

/// How long finished events are kept, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "retention")]
#[non_exhaustive]
pub struct KindsReport {
    /// All kinds, or the one asked for.
    pub kinds: Vec<KindRetention>,
}

/// What a change of retention did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "retention")]
#[non_exhaustive]
pub struct RetentionReport {
    /// The kind as it is now.
    pub kinds: Vec<KindRetention>,
    /// What became of events that had finished already, if they were to follow.
    pub redated: Option<RedateReport>,
}

/// What became of finished events when a retention was applied to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RedateReport {
    /// Rows with a new expiry.
    pub rows: u64,
    /// How often a step waited for a lock in vain.
    pub lock_timeouts: u64,
    /// Steps given up because of that.
    pub skipped: u64,
    /// How long it took.
    pub elapsed_ms: u64,
    /// How long it was allowed to take.
    pub budget_ms: u64,
    /// Why it ended.
    pub stop_reason: CleanupStop,
}
