//! Statements of producers and drains: publish, lease, renew, complete, finalize, retry, release. Nearly all
//! of them call functions in the database (`sql/`). A session keeps the plans of these functions, although a
//! drain prepares no statements.

use tokio_postgres::types::Type;

use super::Statement;
use crate::lease::Lease;

/// Records a message from outside. Returns false if it was taken in before.
pub static RECEIVE: Statement = Statement {
    name: "receive",
    params: &[Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.receive($1, $2)",
};

/// Leases ready events; see the function for how. It always returns one row, which says how far the scan
/// came.
pub static LEASE: Statement = Statement {
    name: "lease",
    params: &[
        Type::UUID,
        Type::UUID,
        Type::UUID_ARRAY,
        Type::UUID_ARRAY,
        Type::FLOAT8,
        Type::TEXT_ARRAY,
        Type::INT8,
        Type::INT8,
        Type::INT4,
        Type::TEXT_ARRAY,
        Type::TEXT,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::INT8,
    ],
    text: "\
SELECT l.after, l.clear_to, l.as_of::text::bigint, l.low::text::bigint, l.taken, l.scanned, l.suspect, l.blocked,
       l.services::text
  FROM tidegate.lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::text::xid8, $15::text::xid8) AS l",
};

/// Removes the leases of worker `$1` that are marked as ended.
pub static REMOVE_ENDED: Statement = Statement {
    name: "remove_ended",
    params: &[Type::UUID_ARRAY],
    text: "SELECT tidegate.remove_ended($1)",
};

/// The events of lease `$1` after id `$2`, at most `$3`.
pub static READ_LEASED: Statement = Statement {
    name: "read_leased",
    params: &[Type::UUID, Type::INT8, Type::INT8],
    text: "\
SELECT id, fate, kind, payload, group_key, correlation_id, attempt, max_attempts, created_at, expires_at, progress, traceparent,
       started, replayed, expires_in, overdue
  FROM tidegate.read_leased($1, $2, $3)",
};

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

/// The events in hand under these lease tokens, in one snapshot.
pub static IN_HAND: Statement = Statement {
    name: "in_hand",
    params: &[Type::UUID_ARRAY],
    text: "SELECT * FROM tidegate.in_hand($1)",
};

/// Makes delayed events ready whose time has come, at most `$1` per call, earliest first. Returns the lowest
/// id, from which the next scan must start.
pub static PROMOTE: Statement = Statement {
    name: "promote",
    params: &[Type::INT8],
    text: "SELECT * FROM tidegate.promote($1)",
};

/// Breaks the leases of workers that have stopped responding, and those of worker `$1` that are not among
/// `$2`.
pub static SWEEP: Statement = Statement {
    name: "sweep",
    params: &[Type::UUID, Type::UUID_ARRAY],
    text: "SELECT s.broken, s.lowest, s.low::text::bigint FROM tidegate.sweep($1, $2) AS s",
};

/// Renews leases that are still held. A lease that is not returned is lost.
pub static RENEW: Statement = Statement {
    name: "renew",
    params: &[Type::UUID, Type::UUID_ARRAY, Type::FLOAT8],
    text: "SELECT * FROM tidegate.renew($1, $2, $3)",
};

/// Lowers the marks up to which handlers of leases may have started, where they are still the ones that `$3`
/// names.
pub static TAKE_BACK_STARTS: Statement = Statement {
    name: "take_back_starts",
    params: &[
        Type::UUID,
        Type::UUID_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
    ],
    text: "SELECT tidegate.take_back_starts($1, $2, $3, $4)",
};

/// Releases events that have not started, with their attempts restored.
pub static HAND_BACK: Statement = Statement {
    name: "hand_back",
    params: &[Type::UUID, Type::INT8_ARRAY, Type::UUID_ARRAY],
    text: "SELECT h.left_ids, h.busy_ids FROM tidegate.hand_back($1, $2, $3) AS h",
};

/// Moves completed events to the log if nothing else must be written for them, which is true of most events.
/// The ranges are passed as text.
pub static COMPLETE: Statement = Statement {
    name: "complete",
    params: &[
        Type::UUID_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::BOOL_ARRAY,
    ],
    text: "SELECT c.ended, c.cuts FROM tidegate.complete($1, $2::text[]::int8multirange[], $3, $4) AS c",
};

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

/// Moves finished events of a lease to the log and publishes their follow-ups. An event that is not returned
/// was no longer held by this drain, or is busy.
pub static FINALIZE: Statement = Statement {
    name: "finalize",
    params: &[
        Type::UUID,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BOOL,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::INT4_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TEXT_ARRAY,
    ],
    text: "\
SELECT f.ended_ids, f.busy_ids, f.published, f.cuts
  FROM tidegate.finalize($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) AS f",
};

/// Ends event `$2` of lease `$1` without reading its payload.
pub static END_UNREADABLE: Statement = Statement {
    name: "end_unreadable",
    params: &[Type::UUID, Type::INT8, Type::TEXT],
    text: "SELECT tidegate.end_unreadable($1, $2, $3)",
};

/// Puts events back for another attempt after a delay, with the progress so far.
pub static RETRY: Statement = Statement {
    name: "retry",
    params: &[
        Type::UUID,
        Type::INT8_ARRAY,
        Type::UUID_ARRAY,
        Type::BOOL_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
    ],
    text: "SELECT r.left_ids, r.busy_ids FROM tidegate.retry($1, $2, $3, $4, $5, $6, $7, $8, $9) AS r",
};

/// Saves a step's result or a handler's end for an event that is still held.
pub static SAVE_PROGRESS: Statement = Statement {
    name: "save_progress",
    params: &[Type::INT8, Type::UUID, Type::TEXT],
    text: "SELECT tidegate.save_progress($1, $2, $3)",
};

/// Records the progress that a handler reports for an event that is still held.
pub static REPORT_PROGRESS: Statement = Statement {
    name: "report_progress",
    params: &[Type::INT8, Type::UUID, Type::TEXT, Type::FLOAT8, Type::TEXT],
    text: "SELECT tidegate.report_progress($1, $2, $3, $4, $5)",
};

/// The leases of this list that finished their event. This settles a finalize whose answer was lost.
pub static LOGGED_UNDER: Statement = Statement {
    name: "logged_under",
    params: &[Type::INT8_ARRAY, Type::UUID_ARRAY],
    text: "SELECT * FROM tidegate.logged_under($1, $2)",
};

/// Publishes one event.
pub static PUBLISH_ONE: Statement = Statement {
    name: "publish_one",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::FLOAT8, Type::TIMESTAMPTZ, Type::INT4, Type::FLOAT8, Type::TEXT, Type::TEXT],
    text: "\
SELECT p.id, p.created, p.status, p.attempts, p.replaced
  FROM tidegate.publish_one($1, $2::text::json, $3, $4, $5, clock_timestamp() + make_interval(secs => $6),
                        coalesce($7, clock_timestamp() + make_interval(secs => $9)), $8, $10, $11) AS p",
};

/// Publishes a batch; see the function for the order of locks and ids.
pub static PUBLISH: Statement = Statement {
    name: "publish",
    params: &[
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::INT4_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TEXT_ARRAY,
    ],
    text: "\
SELECT p.id, p.created, p.status, p.attempts, false AS replaced
  FROM tidegate.publish_batch($1, $2::text[]::json[], $3, $4, $5,
       ARRAY(SELECT clock_timestamp() + make_interval(secs => d.delay)
               FROM unnest($6) WITH ORDINALITY AS d(delay, position) ORDER BY d.position),
       ARRAY(SELECT coalesce(e.at, clock_timestamp() + make_interval(secs => e.within))
               FROM unnest($7, $9) WITH ORDINALITY AS e(at, within, position) ORDER BY e.position),
       $8, $10) AS p",
};

/// All statements of this file.
pub static ALL: &[&Statement] = &[
    &RECEIVE,
    &LEASE,
    &REMOVE_ENDED,
    &READ_LEASED,
    &IN_HAND,
    &PROMOTE,
    &SWEEP,
    &RENEW,
    &TAKE_BACK_STARTS,
    &HAND_BACK,
    &COMPLETE,
    &FINALIZE,
    &END_UNREADABLE,
    &RETRY,
    &SAVE_PROGRESS,
    &REPORT_PROGRESS,
    &LOGGED_UNDER,
    &PUBLISH_ONE,
    &PUBLISH,
];
