//! Statements about the slots of drains, and about the work that is left.

use super::statements;

statements! {
    /// Takes one of the first `$2` slots for `$3` seconds, as hop `$5` of chain `$4`.
    pub TAKE_SLOT: "take_slot" [UUID, INT4, FLOAT8, UUID, INT4] =
        "SELECT t.slot, t.repeated, t.wakes, tidegate.wal_position(), t.soon FROM tidegate.take_slot($1, $2, $3, $4, $5) AS t";

    /// Keeps a slot for another `$3` seconds, and reports the drain's rate.
    pub KEEP_SLOT: "keep_slot" [INT4, UUID, FLOAT8, FLOAT8] =
        "SELECT k.ours, k.first FROM tidegate.keep_slot($1, $2, $3, $4) AS k";

    /// Reports that the drain looks for events one last time, or that it continues after all.
    pub CLOSE_SLOT: "close_slot" [INT4, UUID, BOOL] = "SELECT tidegate.close_slot($1, $2, $3)";

    /// Whether a producer that has just published should start a drain.
    pub SHOULD_WAKE: "should_wake" [] = "SELECT tidegate.should_wake()";

    /// Frees a slot.
    pub LEAVE_SLOT: "leave_slot" [INT4, UUID] = "SELECT tidegate.leave_slot($1, $2)";

    /// Records a drain that ends, with its report.
    pub NOTE_RUN: "note_run" [UUID, TEXT] = "SELECT tidegate.note_run($1, $2::json)";

    /// The number of events that a drain could lease now, counted up to `$2`, and the next time when there
    /// will be more. A time that is overdue counts as now.
    pub LEFT_TO_DO: "left_to_do" [TEXT_ARRAY, INT8] = "\
SELECT l.ready, CASE WHEN l.next_due_at < 'infinity' THEN
           to_char(greatest(l.next_due_at, clock_timestamp()) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') END,
       l.at_work, l.unrated, l.rate
  FROM tidegate.left_to_do($1, $2) AS l";

    /// The server's current position in the write-ahead log.
    pub WAL_POSITION: "wal_position" [] = "SELECT tidegate.wal_position()";
}
