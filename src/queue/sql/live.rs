//! What producers and drains do: publish, lease, renew, finalize, retry, release.

use tokio_postgres::types::Type;

use super::Statement;

/// Looks at up to `$2` ready events behind id `$1` and takes up to `$8` of them under token `$3`.
///
/// - `scan` locks candidates in id order and skips what others hold. `MATERIALIZED`, because a
///   planner with stale statistics may run an inlined subselect once per row and lease 41 rows for
///   a limit of 2. `FOR NO KEY UPDATE`, because `FOR UPDATE` also skips rows that a foreign-key
///   check has touched.
///   The conditions stand inside a `CASE`, which the planner takes to pass every other row whatever it
///   knows of them. One by one, in a queue that was empty when its statistics were made, it multiplies
///   them to next to nothing and sorts the whole table instead of walking its index: a lease of 1,000 in
///   200,000 took 123 ms, with the `CASE` 9 ms.
/// - `cut` finds, with one probe per group of the chunk, the group's first live row that is not in
///   the scan: locked, leased, delayed or blocked by others. What stands behind it is not leased.
///   Rows that this drain itself holds (`$4`) do not cut: they are ahead in its own group queue.
/// - Groups of which nothing could be leased are told, and the caller names those met before in `$9`: their
///   other rows are passed without a lock and a probe each.
/// - Where no event has a group, which the database sees before it looks for any, there is nothing to cut
///   and to choose: a twentieth less work.
/// - The lease's predicate stands in the scan and again in the update.
/// - Kinds that are registered but unknown to this program (`$6`) or paused are left alone; a kind
///   that nobody registered passes, so that the drain can end it. (`NOT IN` and not `<> ALL (ARRAY(…))`:
///   of the latter the planner expects that nothing passes in a queue of one kind, and sorts the
///   whole table instead of walking its index.)
/// - Expired and exhausted events are taken too, without counting an attempt, so that they end
///   without a scan of their own.
///
/// There is always at least one row, which carries how far the scan came.
pub static LEASE: Statement = Statement {
    name: "lease",
    params: &[Type::INT8, Type::INT8, Type::UUID, Type::UUID_ARRAY, Type::FLOAT8, Type::TEXT_ARRAY, Type::TIMESTAMPTZ, Type::INT8, Type::TEXT_ARRAY],
    text: "\
WITH clock AS MATERIALIZED (
    SELECT coalesce($7, clock_timestamp()) AS now
), scan AS MATERIALIZED (
    SELECT q.id, q.group_key,
           q.attempts >= q.max_attempts AS spent
      FROM tidegate.event_queue AS q
     WHERE NOT q.delayed
       AND q.id > $1
       AND CASE WHEN q.available_at <= (SELECT now FROM clock)
                 AND (q.lease_expires_at IS NULL OR q.lease_expires_at <= (SELECT now FROM clock))
                 AND (q.lease_token IS NULL OR q.lease_token <> ALL ($4))
                 AND q.kind NOT IN (SELECT k.kind FROM tidegate.event_kind AS k
                                     WHERE k.paused OR k.kind <> ALL ($6))
                 AND (q.group_key IS NULL OR q.group_key NOT IN (SELECT b.group_key FROM unnest($9) AS b(group_key)))
                THEN true ELSE false END
     ORDER BY q.id
     LIMIT $2
       FOR NO KEY UPDATE SKIP LOCKED
), cut AS MATERIALIZED (
    SELECT g.group_key, ahead.id, ahead.id < g.first AS blocks
      FROM (SELECT group_key, min(id) AS first, max(id) AS last FROM scan WHERE group_key IS NOT NULL GROUP BY group_key) AS g
     CROSS JOIN LATERAL (
           SELECT b.id
             FROM tidegate.event_queue AS b
            WHERE b.group_key = g.group_key
              AND b.id < g.last
              AND (b.lease_token IS NULL OR b.lease_token <> ALL ($4))
              AND b.id NOT IN (SELECT id FROM scan)
            ORDER BY b.id
            LIMIT 1) AS ahead
), chosen AS MATERIALIZED (
    SELECT scan.id
      FROM scan
      LEFT JOIN cut USING (group_key)
     WHERE cut.id IS NULL OR scan.id < cut.id
     ORDER BY scan.id
     LIMIT $8
), leased AS (
    UPDATE tidegate.event_queue AS q
       SET status = 'PROCESSING',
           attempts = q.attempts + CASE WHEN q.attempts < q.max_attempts
                          AND (q.expires_at IS NULL OR q.expires_at > (SELECT now FROM clock)) THEN 1 ELSE 0 END,
           processing_started_at = (SELECT now FROM clock),
           updated_at = (SELECT now FROM clock),
           lease_token = $3,
           lease_expires_at = (SELECT now FROM clock) + make_interval(secs => $5)
     WHERE q.id = ANY (CASE WHEN EXISTS (SELECT FROM scan WHERE group_key IS NOT NULL)
                            THEN ARRAY(SELECT id FROM chosen)
                            ELSE ARRAY(SELECT id FROM scan LIMIT $8) END)
       AND (q.lease_expires_at IS NULL OR q.lease_expires_at <= (SELECT now FROM clock))
    RETURNING q.id,
              CASE WHEN q.expires_at <= (SELECT now FROM clock) THEN 1
                   WHEN q.id = ANY ((SELECT array_agg(id) FROM scan WHERE spent)::bigint[]) THEN 2
                   ELSE 0 END AS fate,
              q.kind, q.payload, q.group_key, q.correlation_id, q.attempts, q.max_attempts,
              q.created_at, q.expires_at, q.progress, q.traceparent)
SELECT reach.scanned, reach.last_id, reach.blocked,
       leased.id, leased.fate, leased.kind, leased.payload, leased.group_key, leased.correlation_id,
       leased.attempts, leased.max_attempts, leased.created_at, leased.expires_at, leased.progress,
       leased.traceparent
  FROM (SELECT count(*) AS scanned, max(id) AS last_id,
               (SELECT array_agg(group_key) FROM cut WHERE blocks) AS blocked FROM scan) AS reach
  LEFT JOIN leased ON true",
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
/// for the database than [`FINALIZE`]'s, which pairs arrays.
///
/// Whose lease an event must be under is told by token and, from the second token on, by the first id under
/// it: ids come in order, and a batch holds few leases. Retention is looked up by kind only if there is a
/// kind with one of its own; a join would copy every row once more.
pub static COMPLETE: Statement = Statement {
    name: "complete",
    params: &[Type::INT8_ARRAY, Type::UUID_ARRAY, Type::INT8_ARRAY],
    text: "\
WITH gone AS (
    DELETE FROM tidegate.event_queue AS q
     WHERE q.id = ANY ($1) AND q.lease_token = ($2)[1 + width_bucket(q.id, $3)]
    RETURNING q.*)
INSERT INTO tidegate.event_log
       (id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts,
        errors, progress, created_at, processing_started_at, finished_at, expires_at,
        deadline, lease_token, parent_id, replay_of, traceparent)
SELECT g.id, g.kind, g.payload, g.group_key, g.dedup_key, g.correlation_id, 'COMPLETED', g.attempts,
       g.max_attempts, g.errors, g.progress, g.created_at, g.processing_started_at, statement_timestamp(),
       statement_timestamp() + CASE WHEN EXISTS (SELECT FROM tidegate.event_kind
                                                  WHERE retention_completed <> '30 days')
            THEN coalesce((SELECT k.retention_completed FROM tidegate.event_kind AS k WHERE k.kind = g.kind), '30 days')
            ELSE '30 days' END,
       g.expires_at, g.lease_token, g.parent_id, g.replay_of, g.traceparent
  FROM gone AS g",
};

/// Moves finished events to the log and publishes their follow-ups, in one statement: an event is
/// never in both places nor in neither, and follow-ups exist exactly if their parent ended (A14, A17).
/// What does not come back was not ours any more; when all of it was, only their number comes back,
/// as a row for each costs the database alone
/// 0.4 µs an event. The two functions are called only for rows that
/// need them: Postgres cannot inline them, and a call costs more than the rest of the row's move.
pub static FINALIZE: Statement = Statement {
    name: "finalize",
    params: &[Type::INT8_ARRAY, Type::UUID_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::FLOAT8_ARRAY, Type::TIMESTAMPTZ_ARRAY, Type::INT4_ARRAY, Type::FLOAT8_ARRAY, Type::TEXT_ARRAY],
    text: "\
WITH outcome AS MATERIALIZED (
    SELECT o.*, clock_timestamp() AS now
      FROM unnest($1, $2, $3, $4, $5, $6) AS o(id, token, status, errors, result, progress)
), gone AS (
    DELETE FROM tidegate.event_queue AS q
     USING outcome AS o
     WHERE q.id = o.id AND q.lease_token = o.token
    RETURNING q.*, o.status AS final_status, o.errors AS new_errors, o.result, o.progress AS new_progress, o.now
), logged AS (
    INSERT INTO tidegate.event_log
           (id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts,
            errors, result, progress, created_at, processing_started_at, finished_at, expires_at,
            deadline, lease_token, parent_id, replay_of, traceparent)
    SELECT g.id, g.kind, g.payload, g.group_key, g.dedup_key, g.correlation_id, g.final_status, g.attempts,
           g.max_attempts, CASE WHEN g.new_errors IS NULL THEN g.errors
                ELSE tidegate.append_errors(g.errors, g.new_errors::jsonb, g.now) END,
           g.result::jsonb,
           CASE WHEN g.new_progress IS NULL THEN g.progress
                ELSE tidegate.merge_progress(g.progress, g.new_progress::jsonb) END,
           g.created_at,
           g.processing_started_at, g.now,
           g.now + CASE WHEN g.final_status = 'COMPLETED' THEN coalesce(k.retention_completed, '30 days')
                        ELSE coalesce(k.retention_failed, '90 days') END,
           g.expires_at, g.lease_token, g.parent_id, g.replay_of, g.traceparent
      FROM gone AS g
      LEFT JOIN tidegate.event_kind AS k USING (kind)
    RETURNING id, lease_token
), follow_ups AS (
    SELECT array_agg(f.kind ORDER BY f.position) AS kinds,
           array_agg(f.payload::jsonb ORDER BY f.position) AS payloads,
           array_agg(f.group_key ORDER BY f.position) AS group_keys,
           array_agg(f.dedup_key ORDER BY f.position) AS dedup_keys,
           array_agg(coalesce(f.correlation_id, g.correlation_id) ORDER BY f.position) AS correlation_ids,
           array_agg(g.now + make_interval(secs => f.delay) ORDER BY f.position) AS available_ats,
           array_agg(coalesce(f.expires_at, g.now + make_interval(secs => f.expires_in)) ORDER BY f.position) AS expires_ats,
           array_agg(f.max_attempts ORDER BY f.position) AS max_attempts,
           array_agg(g.id ORDER BY f.position) AS parent_ids,
           array_agg(coalesce(f.traceparent, g.traceparent) ORDER BY f.position) AS traceparents
      FROM unnest($7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) WITH ORDINALITY
           AS f(parent_id, kind, payload, group_key, dedup_key, correlation_id, delay, expires_at,
                max_attempts, expires_in, traceparent, position)
      JOIN gone AS g ON g.id = f.parent_id
    HAVING count(*) > 0
), published AS (
    SELECT count(*) FILTER (WHERE p.created) AS created
      FROM follow_ups AS f,
           tidegate.publish_batch(f.kinds, f.payloads, f.group_keys, f.dedup_keys, f.correlation_ids,
                                  f.available_ats, f.expires_ats, f.max_attempts, f.parent_ids,
                                  f.traceparents) AS p)
SELECT (SELECT created FROM published), count(*),
       CASE WHEN count(*) < cardinality($1) THEN array_agg(logged.id) END,
       CASE WHEN count(*) < cardinality($1) THEN array_agg(logged.lease_token) END
  FROM logged",
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
