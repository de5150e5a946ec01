//! The report of a cleanup.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::queue::retention::{Done, DroppedPartition};

/// Why a cleanup ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CleanupStop {
    /// Nothing is left to do, except what was skipped because of locks.
    #[default]
    Done,
    /// The time ran out, or a stop signal came.
    BudgetSpent,
}

/// What a cleanup did or, in a dry run, would have done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "cleanup")]
#[non_exhaustive]
pub struct CleanupReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// How many partitions were created ahead.
    pub partitions_made: u64,
    /// How many rows moved into them from the default partition.
    pub rows_moved: u64,
    /// How many days have too many rows in the default partition. These rows are deleted in batches.
    pub left_to_default: u64,
    /// How many live events ended as FAILED because their start-before deadline had passed.
    pub expired: u64,
    /// How many live events ended as FAILED because a worker had abandoned their last attempt.
    pub abandoned: u64,
    /// How many live events ended as FAILED because they had waited for a service for too long.
    #[serde(default)]
    pub given_up: u64,
    /// How many partitions were dropped.
    pub partitions_dropped: u64,
    /// How many rows were dropped with them.
    pub rows_dropped: u64,
    /// The dropped partitions, with their numbers of rows.
    pub dropped: Vec<DroppedPartition>,
    /// How many expired rows were deleted in batches.
    pub rows_deleted: u64,
    /// How many messages from outside were forgotten, because they were taken in long ago.
    #[serde(default)]
    pub messages_forgotten: u64,
    /// How many rows of the program's own tables were removed because their retention is over, by table.
    #[serde(default)]
    pub records: BTreeMap<String, u64>,
    /// How often a step did not get a lock in time.
    pub lock_timeouts: u64,
    /// How many steps were left to the next run because of that.
    pub skipped: u64,
    /// How many milliseconds it took.
    pub elapsed_ms: u64,
    /// How many milliseconds it was allowed to take.
    pub budget_ms: u64,
    /// Why it ended.
    pub stop_reason: CleanupStop,
}

impl CleanupReport {
    /// Adds what a step did.
    pub(super) fn add(&mut self, step: Done) {
        let count = |ids: Vec<i64>| u64::try_from(ids.len()).unwrap_or(u64::MAX);
        self.partitions_made += step.partitions_made;
        self.rows_moved += step.rows_moved;
        self.left_to_default += step.left_to_default;
        self.expired += count(step.expired);
        self.abandoned += count(step.abandoned);
        self.given_up += count(step.given_up);
        if let Some(dropped) = step.dropped {
            self.partitions_dropped += 1;
            self.rows_dropped += dropped.rows;
            self.dropped.push(dropped);
        }
        self.rows_deleted += step.rows_deleted;
        self.messages_forgotten += step.messages_forgotten;
    }
}
