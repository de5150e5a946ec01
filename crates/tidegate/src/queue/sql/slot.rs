//! Statements about the slots of drains, and about the work that is left.

use tokio_postgres::types::Type;

use super::Statement;

/// Takes one of the first `$2` slots for `$3` seconds, as hop `$5` of chain `$4`.
pub static TAKE_SLOT: Statement = Statement {
    name: "take_slot",
    params: &[Type::UUID, Type::INT4, Type::FLOAT8, Type::UUID, Type::INT4],
    text: "SELECT t.slot, t.repeated, t.wakes, tidegate.wal_position(), t.soon FROM tidegate.take_slot($1, $2, $3, $4, $5) AS t",
};

/// Keeps a slot for another `$3` seconds, and reports the drain's rate.
pub static KEEP_SLOT: Statement = Statement {
    name: "keep_slot",
    params: &[Type::INT4, Type::UUID, Type::FLOAT8, Type::FLOAT8],
    text: "SELECT k.ours, k.first FROM tidegate.keep_slot($1, $2, $3, $4) AS k",
};

/// Reports that the drain looks for events one last time, or that it continues after all.
pub static CLOSE_SLOT: Statement = Statement {
    name: "close_slot",
    params: &[Type::INT4, Type::UUID, Type::BOOL],
    text: "SELECT tidegate.close_slot($1, $2, $3)",
};

/// Whether a producer that has just published should start a drain.
pub static SHOULD_WAKE: Statement = Statement {
    name: "should_wake",
    params: &[],
    text: "SELECT tidegate.should_wake()",
};

/// Frees a slot.
pub static LEAVE_SLOT: Statement = Statement {
    name: "leave_slot",
    params: &[Type::INT4, Type::UUID],
    text: "SELECT tidegate.leave_slot($1, $2)",
};

/// Records a drain that ends, with its report.
pub static NOTE_RUN: Statement = Statement {
    name: "note_run",
    params: &[Type::UUID, Type::TEXT],
    text: "SELECT tidegate.note_run($1, $2::json)",
};

/// The number of events that a drain could lease now, counted up to `$2`, and the next time when there will
/// be more. A time that is overdue counts as now.
pub static LEFT_TO_DO: Statement = Statement {
    name: "left_to_do",
    params: &[Type::TEXT_ARRAY, Type::INT8],
    text: "\
SELECT l.ready, CASE WHEN l.next_due_at < 'infinity' THEN
           to_char(greatest(l.next_due_at, clock_timestamp()) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') END,
       l.at_work, l.unrated, l.rate
  FROM tidegate.left_to_do($1, $2) AS l",
};

/// The server's current position in the write-ahead log.
pub static WAL_POSITION: Statement = Statement {
    name: "wal_position",
    params: &[],
    text: "SELECT tidegate.wal_position()",
};

/// All statements of this file.
pub static ALL: &[&Statement] = &[
    &TAKE_SLOT,
    &KEEP_SLOT,
    &CLOSE_SLOT,
    &SHOULD_WAKE,
    &WAL_POSITION,
    &LEAVE_SLOT,
    &NOTE_RUN,
    &LEFT_TO_DO,
];
