//! What producers and drains do: publish, lease, renew, finalize, retry, release. The hottest are functions in the
//! database (`migrations/queue`): a session keeps their plans, though a drain prepares nothing.

use tokio_postgres::types::Type;

use super::Statement;
use crate::event::Lease;

/// Looks at up to `$2` ready events behind id `$1` and takes up to `$8` of them under token `$3`; the function says
/// how, and what `$10` to `$12` spare it. There is always at least one row, which carries how far the scan came.
pub static LEASE: Statement = Statement {
    name: "lease",
    params: &[
        Type::INT8,
        Type::INT8,
        Type::UUID,
        Type::UUID_ARRAY,
        Type::FLOAT8,
        Type::TEXT_ARRAY,
        Type::TIMESTAMPTZ,
        Type::INT8,
        Type::TEXT_ARRAY,
        Type::INT8,
        Type::INT8,
        Type::TEXT_ARRAY,
    ],
    text: "SELECT * FROM tidegate.lease_page($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
};

/// Gives back what a lease took whose answer was lost: the rows under token `$3` among the `$2`
/// behind id `$1`. Only those whose attempt was certainly counted; the others lapse.
pub static RECLAIM: Statement = Statement {
    name: "reclaim",
    params: &[Type::INT8, Type::INT8, Type::UUID],
    text: "\
WITH near AS MATERIALIZED (
    SELECT id FROM tidegate.event_queue
     WHERE NOT delayed AND id > $1
     ORDER BY id
     LIMIT $2)
UPDATE tidegate.event_queue AS q
   SET status = 'PENDING', lease_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp(),
       attempts = q.attempts - 1
 WHERE q.id = ANY (ARRAY(SELECT id FROM near))
   AND q.lease_token = $3
   AND q.attempts BETWEEN 1 AND q.max_attempts - 1
   AND (q.expires_at IS NULL OR q.expires_at > q.processing_started_at)",
};

/// Brings delayed events whose time has come back among the ready; up to `$1` at a time, earliest
/// first. Tells the lowest id, from which the next scan must start. The time is a subselect, which the
/// index takes as its bound: compared with the volatile function itself, every delayed row is looked at
/// (26 ms for 100,000, at each lease).
pub static PROMOTE: Statement = Statement {
    name: "promote",
    params: &[Type::INT8, Type::TIMESTAMPTZ],
    text: "\
WITH due AS MATERIALIZED (
    SELECT id FROM tidegate.event_queue
     WHERE delayed AND available_at <= (SELECT coalesce($2, clock_timestamp()))
     ORDER BY available_at
     LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
    UPDATE tidegate.event_queue AS q SET delayed = false
     WHERE q.id = ANY (ARRAY(SELECT id FROM due))
    RETURNING q.id)
SELECT count(*), min(id) FROM promoted",
};

/// Prolongs leases still held. What does not come back is lost.
pub static RENEW: Statement = Statement {
    name: "renew",
    params: &[Type::INT8_ARRAY, Type::UUID_ARRAY, Type::FLOAT8],
    text: "\
UPDATE tidegate.event_queue AS q
   SET lease_expires_at = clock_timestamp() + make_interval(secs => $3), updated_at = clock_timestamp()
  FROM unnest($1, $2) AS held(id, token)
 WHERE q.id = held.id AND q.lease_token = held.token
RETURNING held.id, held.token",
};

/// Moves completed events that leave nothing but their rows to the log: most events, and a third less work
/// for the database than [`FINALIZE`]'s, which pairs arrays. How many were held and are there now comes back.
pub static COMPLETE: Statement = Statement {
    name: "complete",
    params: &[Type::INT8_ARRAY, Type::UUID_ARRAY, Type::INT8_ARRAY],
    text: "SELECT tidegate.complete($1, $2, $3)",
};

/// The SQLSTATE of [`complete_and_commit`] for a lease that is not held.
pub(crate) const NOT_HELD: &str = "TG001";

/// Ends one event in its handler's transaction and commits that, in one round trip. The database comes to
/// the commit only if the lease was held.
pub(crate) fn complete_and_commit(lease: Lease) -> String {
    format!(
        "SELECT tidegate.complete_held({}, '{}'); COMMIT",
        lease.id, lease.token
    )
}

/// Moves finished events to the log and publishes their follow-ups. What does not come back was not ours any
/// more; when all of it was, only their number comes back.
pub static FINALIZE: Statement = Statement {
    name: "finalize",
    params: &[
        Type::INT8_ARRAY,
        Type::UUID_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
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
SELECT * FROM tidegate.finalize($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
};

/// Puts events back for another attempt after a delay, with what they have done so far.
pub static RETRY: Statement = Statement {
    name: "retry",
    params: &[
        Type::INT8_ARRAY,
        Type::UUID_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
    ],
    text: "\
UPDATE tidegate.event_queue AS q
   SET status = 'PENDING', lease_token = NULL, lease_expires_at = NULL,
       available_at = clock_timestamp() + make_interval(secs => o.delay),
       updated_at = clock_timestamp(),
       last_error = o.last_error,
       errors = tidegate.append_errors(q.errors, o.errors::jsonb, clock_timestamp()),
       progress = tidegate.merge_progress(q.progress, o.progress::jsonb)
  FROM unnest($1, $2, $3, $4, $5, $6) AS o(id, token, delay, last_error, errors, progress)
 WHERE q.id = o.id AND q.lease_token = o.token
RETURNING o.id, o.token",
};

/// Gives back events that were never started, with their attempt (decision 9).
pub static RELEASE: Statement = Statement {
    name: "release",
    params: &[Type::INT8_ARRAY, Type::UUID_ARRAY, Type::INT4_ARRAY],
    text: "\
UPDATE tidegate.event_queue AS q
   SET status = 'PENDING', lease_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp(),
       attempts = q.attempts - o.counted,
       processing_started_at = CASE WHEN q.attempts > o.counted THEN q.processing_started_at END
  FROM unnest($1, $2, $3) AS o(id, token, counted)
 WHERE q.id = o.id AND q.lease_token = o.token
RETURNING o.id, o.token",
};

/// Keeps a step's result or a handler's end with an event that is still held.
pub static SAVE_PROGRESS: Statement = Statement {
    name: "save_progress",
    params: &[Type::INT8, Type::UUID, Type::TEXT],
    text: "\
UPDATE tidegate.event_queue
   SET progress = tidegate.merge_progress(progress, $3::jsonb), updated_at = clock_timestamp()
 WHERE id = $1 AND lease_token = $2
RETURNING id",
};

/// Which of these leases finished their event: settles a finalize whose answer was lost.
pub static LOGGED_UNDER: Statement = Statement {
    name: "logged_under",
    params: &[Type::INT8_ARRAY, Type::UUID_ARRAY],
    text: "\
SELECT held.id, held.token FROM unnest($1, $2) AS held(id, token)
  JOIN tidegate.event_log AS l ON l.id = held.id AND l.lease_token = held.token",
};

/// Where an event is: `live`, `logged` or no row.
pub static WHEREABOUTS: Statement = Statement {
    name: "whereabouts",
    params: &[Type::INT8],
    text: "\
SELECT 'live' FROM tidegate.event_queue WHERE id = $1
UNION ALL
SELECT 'logged' FROM tidegate.event_log WHERE id = $1",
};

/// Publishes one event.
pub static PUBLISH_ONE: Statement = Statement {
    name: "publish_one",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::FLOAT8, Type::TIMESTAMPTZ, Type::INT4, Type::FLOAT8, Type::TEXT],
    text: "\
SELECT p.id, p.created
  FROM tidegate.publish($1, $2::text::jsonb, $3, $4, $5, clock_timestamp() + make_interval(secs => $6),
                        coalesce($7, clock_timestamp() + make_interval(secs => $9)), $8, $10) AS p",
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
SELECT p.id, p.created
  FROM tidegate.publish_batch($1, $2::text[]::jsonb[], $3, $4, $5,
       ARRAY(SELECT clock_timestamp() + make_interval(secs => d.delay)
               FROM unnest($6) WITH ORDINALITY AS d(delay, position) ORDER BY d.position),
       ARRAY(SELECT coalesce(e.at, clock_timestamp() + make_interval(secs => e.within))
               FROM unnest($7, $9) WITH ORDINALITY AS e(at, within, position) ORDER BY e.position),
       $8, '{}', $10) AS p",
};

/// All of this file.
pub static ALL: &[&Statement] = &[
    &LEASE,
    &RECLAIM,
    &PROMOTE,
    &RENEW,
    &COMPLETE,
    &FINALIZE,
    &RETRY,
    &RELEASE,
    &SAVE_PROGRESS,
    &LOGGED_UNDER,
    &WHEREABOUTS,
    &PUBLISH_ONE,
    &PUBLISH,
];
