//! Statements of producers and drains: publish, lease, renew, complete, finalize, retry, release. Nearly all
//! of them call functions in the database (`sql/`). A session keeps the plans of these functions, although a
//! drain prepares no statements.

use super::statements;
use crate::lease::Lease;

statements! {
    /// Records a message from outside. Returns false if it was taken in before.
    pub RECEIVE: "receive" [TEXT, TEXT] = "SELECT tidegate.receive($1, $2)";

    /// Leases ready events; see the function for how. It always returns one row, which says how far the scan
    /// came.
    pub LEASE: "lease" [
        UUID, UUID, UUID_ARRAY, UUID_ARRAY, FLOAT8, TEXT_ARRAY, INT8,
        INT8, INT4, TEXT_ARRAY, TEXT, INT8, INT8, INT8, INT8
    ] = "\
SELECT l.after, l.clear_to, l.as_of::text::bigint, l.low::text::bigint, l.taken, l.scanned, l.suspect, l.blocked,
       l.services::text
  FROM tidegate.lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::text::xid8, $15::text::xid8) AS l";

    /// Removes the leases of worker `$1` that are marked as ended.
    pub REMOVE_ENDED: "remove_ended" [UUID_ARRAY] = "SELECT tidegate.remove_ended($1)";

    /// The events of lease `$1` after id `$2`, at most `$3`.
    pub READ_LEASED: "read_leased" [UUID, INT8, INT8] = "\
SELECT id, fate, kind, payload, group_key, correlation_id, attempt, max_attempts, created_at, expires_at, progress, traceparent,
       started, replayed, expires_in, overdue
  FROM tidegate.read_leased($1, $2, $3)";

    /// The events in hand under these lease tokens, in one snapshot.
    pub IN_HAND: "in_hand" [UUID_ARRAY] = "SELECT * FROM tidegate.in_hand($1)";

    /// Makes delayed events ready whose time has come, at most `$1` per call, earliest first. Returns the
    /// lowest id, from which the next scan must start.
    pub PROMOTE: "promote" [INT8] = "SELECT * FROM tidegate.promote($1)";

    /// Breaks the leases of workers that have stopped responding, and those of worker `$1` that are not among
    /// `$2`.
    pub SWEEP: "sweep" [UUID, UUID_ARRAY] =
        "SELECT s.broken, s.lowest, s.low::text::bigint FROM tidegate.sweep($1, $2) AS s";

    /// Renews leases that are still held. A lease that is not returned is lost.
    pub RENEW: "renew" [UUID, UUID_ARRAY, FLOAT8] = "SELECT * FROM tidegate.renew($1, $2, $3)";

    /// Lowers the marks up to which handlers of leases may have started, where they are still the ones that
    /// `$3` names.
    pub TAKE_BACK_STARTS: "take_back_starts" [UUID, UUID_ARRAY, INT8_ARRAY, INT8_ARRAY] =
        "SELECT tidegate.take_back_starts($1, $2, $3, $4)";

    /// Releases events that have not started, with their attempts restored.
    pub HAND_BACK: "hand_back" [UUID, INT8_ARRAY, UUID_ARRAY] =
        "SELECT h.left_ids, h.busy_ids FROM tidegate.hand_back($1, $2, $3) AS h";

    /// Moves completed events to the log if nothing else must be written for them, which is true of most
    /// events. The ranges are passed as text.
    pub COMPLETE: "complete" [UUID_ARRAY, TEXT_ARRAY, INT8_ARRAY, BOOL_ARRAY] =
        "SELECT c.ended, c.cuts FROM tidegate.complete($1, $2::text[]::int8multirange[], $3, $4) AS c";

    /// Moves finished events of a lease to the log and publishes their follow-ups. An event that is not
    /// returned was no longer held by this drain, or is busy.
    pub FINALIZE: "finalize" [
        UUID, INT8_ARRAY, TEXT_ARRAY, BOOL_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, BOOL, INT8_ARRAY,
        TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, FLOAT8_ARRAY, TIMESTAMPTZ_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT_ARRAY
    ] = "\
SELECT f.ended_ids, f.busy_ids, f.published, f.cuts
  FROM tidegate.finalize($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) AS f";

    /// Ends event `$2` of lease `$1` without reading its payload.
    pub END_UNREADABLE: "end_unreadable" [UUID, INT8, TEXT] = "SELECT tidegate.end_unreadable($1, $2, $3)";

    /// Puts events back for another attempt after a delay, with the progress so far.
    pub RETRY: "retry" [
        UUID, INT8_ARRAY, UUID_ARRAY, BOOL_ARRAY,
        FLOAT8_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY
    ] = "SELECT r.left_ids, r.busy_ids FROM tidegate.retry($1, $2, $3, $4, $5, $6, $7, $8, $9) AS r";

    /// Saves a step's result or a handler's end for an event that is still held.
    pub SAVE_PROGRESS: "save_progress" [INT8, UUID, TEXT] = "SELECT tidegate.save_progress($1, $2, $3)";

    /// Records the progress that a handler reports for an event that is still held.
    pub REPORT_PROGRESS: "report_progress" [INT8, UUID, TEXT, FLOAT8, TEXT] =
        "SELECT tidegate.report_progress($1, $2, $3, $4, $5)";

    /// The leases of this list that finished their event. This settles a finalize whose answer was lost.
    pub LOGGED_UNDER: "logged_under" [INT8_ARRAY, UUID_ARRAY] = "SELECT * FROM tidegate.logged_under($1, $2)";

    /// Publishes one event.
    pub PUBLISH_ONE: "publish_one" [
        TEXT, TEXT, TEXT, TEXT, TEXT,
        FLOAT8, TIMESTAMPTZ, INT4, FLOAT8, TEXT, TEXT
    ] = "\
SELECT p.id, p.created, p.status, p.attempts, p.replaced
  FROM tidegate.publish_one($1, $2::text::json, $3, $4, $5, clock_timestamp() + make_interval(secs => $6),
                        coalesce($7, clock_timestamp() + make_interval(secs => $9)), $8, $10, $11) AS p";

    /// Publishes a batch; see the function for the order of locks and ids.
    pub PUBLISH: "publish" [
        TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
        FLOAT8_ARRAY, TIMESTAMPTZ_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT_ARRAY
    ] = "\
SELECT p.id, p.created, p.status, p.attempts, false AS replaced
  FROM tidegate.publish_batch($1, $2::text[]::json[], $3, $4, $5,
       ARRAY(SELECT clock_timestamp() + make_interval(secs => d.delay)
               FROM unnest($6) WITH ORDINALITY AS d(delay, position) ORDER BY d.position),
       ARRAY(SELECT coalesce(e.at, clock_timestamp() + make_interval(secs => e.within))
               FROM unnest($7, $9) WITH ORDINALITY AS e(at, within, position) ORDER BY e.position),
       $8, $10) AS p";
}

/// The column positions of [`READ_LEASED`].
pub(crate) mod leased {
    pub(crate) const ID: usize = 0;
    pub(crate) const FATE: usize = 1;
    pub(crate) const KIND: usize = 2;
    pub(crate) const PAYLOAD: usize = 3;
    pub(crate) const GROUP_KEY: usize = 4;
    pub(crate) const CORRELATION_ID: usize = 5;
    pub(crate) const ATTEMPT: usize = 6;
    pub(crate) const MAX_ATTEMPTS: usize = 7;
    pub(crate) const CREATED_AT: usize = 8;
    pub(crate) const EXPIRES_AT: usize = 9;
    pub(crate) const PROGRESS: usize = 10;
    pub(crate) const TRACEPARENT: usize = 11;
    pub(crate) const STARTED: usize = 12;
    pub(crate) const REPLAYED: usize = 13;
    pub(crate) const EXPIRES_IN: usize = 14;
    pub(crate) const OVERDUE: usize = 15;
}

/// The SQLSTATE of [`complete_and_commit`] if the lease is not held.
pub(crate) const NOT_HELD: &str = "TG001";

/// Ends one event in its handler's transaction and commits, in one round trip. The commit runs only if the
/// lease was held.
pub(crate) fn complete_and_commit(lease: Lease) -> String {
    format!(
        "SELECT tidegate.complete_held({}, '{}'); COMMIT",
        lease.id, lease.token
    )
}
