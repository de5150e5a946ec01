//! Looking without touching, and the registry of kinds.

use tokio_postgres::types::Type;

use super::Statement;

/// How much is left and how old the oldest is. Counts exactly up to 100,000 and falls back on the
/// planner's estimate beyond, because counting millions costs more than a whole tick. The count has also met the
/// lowest id: looking for it in the index would pass every dead entry once more (0.28 s behind 200,000, without 0.18 s).
pub static BACKLOG: Statement = Statement {
    name: "backlog",
    params: &[],
    text: "\
SELECT CASE WHEN counted.n < 100000 THEN counted.n
            ELSE greatest(counted.n, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'tidegate.event_queue'::regclass)) END,
       (SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint
          FROM tidegate.event_queue
         WHERE id = CASE WHEN counted.n < 100000 THEN counted.lowest
                         ELSE (SELECT id FROM tidegate.event_queue ORDER BY id LIMIT 1) END)
  FROM (SELECT count(*) AS n, min(id) AS lowest
          FROM (SELECT id FROM tidegate.event_queue LIMIT 100000) AS live) AS counted",
};

/// Live events of other kinds than these, of the first 100,000 that are met. Where nobody has registered another kind,
/// which is usual, none is looked at.
pub static OTHERS: Statement = Statement {
    name: "others",
    params: &[Type::TEXT_ARRAY],
    text: "\
SELECT q.kind, count(*)
  FROM (SELECT kind FROM tidegate.event_queue LIMIT 100000) AS q
 WHERE q.kind <> ALL ($1) AND EXISTS (SELECT FROM tidegate.event_kind AS k WHERE k.kind <> ALL ($1))
 GROUP BY q.kind ORDER BY 2 DESC, 1 LIMIT 20",
};

/// Figures by kind.
pub static STATS: Statement = Statement {
    name: "stats",
    params: &[],
    text: "SELECT to_jsonb(s)::text FROM tidegate.stats AS s ORDER BY s.kind",
};

/// Everything stored about one event, live or logged. `row_to_json` leaves the payload's text alone: of `1e131071`,
/// `to_jsonb` would make 131,072 digits, and of a payload of 2.5 KB a gigabyte.
pub static SHOW: Statement = Statement {
    name: "show",
    params: &[Type::INT8],
    text: "\
SELECT row_to_json(e)::text FROM (SELECT *, 'event_queue' AS \"in\" FROM tidegate.events WHERE id = $1) AS e
UNION ALL
SELECT row_to_json(l)::text FROM (SELECT *, 'event_log' AS \"in\" FROM tidegate.logged($1)) AS l",
};

/// One event as a job. A pending one is expected to end when the drain is woken next, every `$2`
/// seconds from its publish on, so that the time told never lies in the past.
pub static JOB: Statement = Statement {
    name: "job",
    params: &[Type::INT8, Type::FLOAT8],
    text: "\
SELECT jsonb_build_object('id', j.id, 'kind', j.kind, 'status', j.status, 'status_code', j.status_code,
                          'result', j.result, 'errors', j.errors,
                          'eta', to_char(coalesce(j.finished_at, j.created_at + make_interval(secs => $2)
                              * (1 + floor(greatest(0, extract(epoch FROM clock_timestamp() - j.created_at)) / $2)::float8))
                              AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))::text
  FROM tidegate.job($1) AS j",
};

/// What the whole queue's figures have beside the sums of their kinds. Times of the log are compared
/// with `statement_timestamp()`: `clock_timestamp()` may change from row to row, so no index serves it.
pub static OVERVIEW: Statement = Statement {
    name: "overview",
    params: &[],
    text: "\
SELECT (SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint
          FROM tidegate.event_queue ORDER BY id LIMIT 1),
       (SELECT count(*) FROM tidegate.blocked_groups),
       (SELECT count(*) FROM tidegate.event_log
         WHERE status <> 'COMPLETED' AND finished_at > statement_timestamp() - interval '1 day'),
       (SELECT count(*) FROM tidegate.event_log
         WHERE finished_at > statement_timestamp() - interval '1 minute')",
};

/// Events that will pass their deadline before they are started (B13), by kind, the soonest first; of the `$2` events whose
/// deadlines come first. `$1` is a window in seconds. An event is one of them
///
/// - if its deadline comes within the window;
/// - if it is put off until after its deadline;
/// - if its turn comes after its deadline: if there are more of its kind before it, by their deadlines, than are finished by
///   then at the rate of the last window. That is asked only of an event that has been ready for a whole window: for as long
///   there has been more to do than was done, so what was done is what can be. The rate of a queue that was empty at times
///   tells how much was published, and nothing of how much it can do.
///
/// What has started is none of them, and what is past its deadline is lost already. The index is walked as far as `$2`, with
/// a million rows as with a thousand; the log is asked only where there is a rate to be known.
pub static EXPIRING: Statement = Statement {
    name: "expiring",
    params: &[Type::FLOAT8, Type::INT8],
    text: "\
WITH held AS MATERIALIZED (
    SELECT started FROM tidegate.held
), first AS MATERIALIZED (
    SELECT q.kind, q.expires_at, q.available_at, extract(epoch FROM q.expires_at - statement_timestamp())::float8 AS seconds,
           NOT q.delayed AND q.available_at <= statement_timestamp() - make_interval(secs => $1) AS has_waited
      FROM tidegate.event_queue AS q, held
     WHERE q.expires_at > statement_timestamp() AND NOT (q.id <@ held.started)
     ORDER BY q.expires_at LIMIT $2
), finished AS MATERIALIZED (
    SELECT l.kind, count(*) / $1 AS per_second
      FROM tidegate.event_log AS l
     WHERE l.finished_at > statement_timestamp() - make_interval(secs => $1)
       AND EXISTS (SELECT FROM first WHERE has_waited AND seconds > $1)
     GROUP BY l.kind
), placed AS (
    SELECT f.*, row_number() OVER (PARTITION BY f.kind ORDER BY f.expires_at) AS place FROM first AS f)
SELECT jsonb_build_object('kind', p.kind, 'events', count(*), 'first_deadline', min(p.expires_at))::text
  FROM placed AS p LEFT JOIN finished AS f USING (kind)
 WHERE p.seconds <= $1 OR p.available_at >= p.expires_at OR p.has_waited AND p.place > p.seconds * f.per_second
 GROUP BY p.kind
 ORDER BY min(p.expires_at), p.kind",
};

/// What a live view asks at every tick: how old the oldest event is, and how many finished between
/// `$1` and a moment ago. That moment, which is the next tick's `$1`, is half a second back, so
/// that a finalize under way now is counted then.
pub static PULSE: Statement = Statement {
    name: "pulse",
    params: &[Type::TIMESTAMPTZ],
    text: "\
SELECT clock.settled,
       (SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint
          FROM tidegate.event_queue ORDER BY id LIMIT 1),
       (SELECT count(*) FROM tidegate.event_log
         WHERE finished_at > $1 AND finished_at <= statement_timestamp() - interval '500 ms')
  FROM (SELECT statement_timestamp() - interval '500 ms' AS settled) AS clock",
};

/// How far handlers say that they have come.
pub static AT_WORK: Statement = Statement {
    name: "at_work",
    params: &[Type::INT8],
    text: "SELECT to_jsonb(w)::text FROM (SELECT id, kind, handler, part, note FROM tidegate.at_work ORDER BY id LIMIT $1) AS w",
};

/// Newest events first, live and logged; each filter that is null lets everything pass. They are
/// constants to the planner, for nothing is prepared: those that are null cost nothing, the others
/// find their index. What was created since a time has also finished since, which the log's block
/// range index tells.
///
/// `$1` status, `$2` kind, `$3` limit, `$4` group, `$5` correlation, `$6` before this id, `$7` or
/// `$8` seconds ago: created since, `$9` or `$10` seconds ago: created before.
pub static LIST: Statement = Statement {
    name: "list",
    params: &[
        Type::TEXT, Type::TEXT, Type::INT8, Type::TEXT, Type::TEXT, Type::INT8, Type::TIMESTAMPTZ,
        Type::FLOAT8, Type::TIMESTAMPTZ, Type::FLOAT8,
    ],
    text: "\
WITH held AS MATERIALIZED (SELECT * FROM tidegate.held)
SELECT to_jsonb(e)::text
  FROM (SELECT * FROM (
            SELECT id, kind, CASE WHEN id <@ held.ids THEN 'PROCESSING' ELSE 'PENDING' END AS status,
                   attempts + (id <@ held.started AND attempts < max_attempts)::int AS attempts, group_key, correlation_id,
                   created_at, NULL::timestamptz AS finished_at, last_error
              FROM tidegate.event_queue, held
             WHERE ($1::text IS NULL OR $1 = 'PENDING' AND NOT (id <@ held.ids)
                    OR $1 = 'PROCESSING' AND id >= lower(held.ids) AND id < upper(held.ids) AND id <@ held.ids)
               AND ($2::text IS NULL OR kind = $2)
               AND ($4::text IS NULL OR group_key = $4) AND ($5::text IS NULL OR correlation_id = $5)
               AND ($6::bigint IS NULL OR id < $6)
               AND (coalesce($7, statement_timestamp() - make_interval(secs => $8)) IS NULL
                    OR created_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8)))
               AND (coalesce($9, statement_timestamp() - make_interval(secs => $10)) IS NULL
                    OR created_at < coalesce($9, statement_timestamp() - make_interval(secs => $10)))
             ORDER BY id DESC LIMIT $3) AS live
        UNION ALL
        SELECT * FROM (
            SELECT id, kind, status, attempts, group_key, correlation_id, created_at, finished_at,
                   last_error
              FROM tidegate.ends
             WHERE ($1::text IS NULL OR $1 NOT IN ('PENDING', 'PROCESSING') AND status = $1) AND ($2::text IS NULL OR kind = $2)
               AND ($4::text IS NULL OR group_key = $4) AND ($5::text IS NULL OR correlation_id = $5)
               AND ($6::bigint IS NULL OR id < $6)
               AND (coalesce($7, statement_timestamp() - make_interval(secs => $8)) IS NULL
                    OR (created_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8))
                        AND finished_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8))))
               AND (coalesce($9, statement_timestamp() - make_interval(secs => $10)) IS NULL
                    OR created_at < coalesce($9, statement_timestamp() - make_interval(secs => $10)))
             ORDER BY id DESC LIMIT $3) AS logged
         ORDER BY id DESC LIMIT $3) AS e",
};

/// An event's kin, each as an object: its ancestors, nearest first, then what came of it, then the rest of the family, at
/// most `$2` in all.
pub static LINEAGE: Statement = Statement {
    name: "lineage",
    params: &[Type::INT8, Type::INT8],
    text: "SELECT l::text FROM tidegate.lineage($1, $2) AS l",
};

/// Groups whose first event holds the others back, the one that has waited longest first.
pub static BLOCKED_GROUPS: Statement = Statement {
    name: "blocked_groups",
    params: &[Type::INT8],
    text: "SELECT to_jsonb(b)::text FROM tidegate.blocked_groups AS b ORDER BY b.head_id LIMIT $1",
};

/// Who holds what, the one that has held something longest first.
pub static LEASES: Statement = Statement {
    name: "leases",
    params: &[Type::INT8],
    text: "SELECT to_jsonb(l)::text FROM tidegate.leases AS l ORDER BY l.taken_at, l.token LIMIT $1",
};

/// Registers the kinds of a program; what an operator edited stays.
pub static REGISTER_KINDS: Statement = Statement {
    name: "register_kinds",
    params: &[Type::TEXT_ARRAY],
    text: "\
INSERT INTO tidegate.event_kind (kind) SELECT unnest($1) ON CONFLICT (kind) DO NOTHING",
};

/// What a program says of its kinds.
pub static DECLARE_POLICIES: Statement = Statement {
    name: "declare_policies",
    params: &[Type::TEXT_ARRAY, Type::TEXT_ARRAY],
    text: "SELECT tidegate.declare_policies($1, $2)",
};

/// Those of some kinds that are not registered.
pub static UNREGISTERED: Statement = Statement {
    name: "unregistered",
    params: &[Type::TEXT_ARRAY],
    text: "\
SELECT k.kind FROM unnest($1) AS k(kind)
 WHERE NOT EXISTS (SELECT FROM tidegate.event_kind AS e WHERE e.kind = k.kind) ORDER BY k.kind",
};

/// The kinds that programs have registered.
pub static REGISTERED: Statement = Statement {
    name: "registered",
    params: &[],
    text: "SELECT k.kind FROM tidegate.event_kind AS k ORDER BY k.kind",
};

/// All of this file.
#[cfg(feature = "internals")]
pub static ALL: &[&Statement] = &[
    &BACKLOG,
    &OTHERS,
    &STATS,
    &OVERVIEW,
    &EXPIRING,
    &PULSE,
    &AT_WORK,
    &SHOW,
    &JOB,
    &LIST,
    &LINEAGE,
    &BLOCKED_GROUPS,
    &LEASES,
    &REGISTER_KINDS,
    &DECLARE_POLICIES,
    &UNREGISTERED,
    &REGISTERED,
];
