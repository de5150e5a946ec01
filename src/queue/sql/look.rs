//! Looking without touching, and the registry of kinds.

use tokio_postgres::types::Type;

use super::Statement;

/// How much is left and how old the oldest is. Counts exactly up to 100,000 and falls back on the
/// planner's estimate beyond, because counting millions costs more than a whole tick.
pub static BACKLOG: Statement = Statement {
    name: "backlog",
    params: &[],
    text: "\
SELECT CASE WHEN counted.n < 100000 THEN counted.n
            ELSE greatest(counted.n, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'tidegate.event_queue'::regclass)) END,
       (SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint
          FROM tidegate.event_queue ORDER BY id LIMIT 1)
  FROM (SELECT count(*) AS n FROM (SELECT FROM tidegate.event_queue LIMIT 100000) AS live) AS counted",
};

/// Figures by kind.
pub static STATS: Statement = Statement {
    name: "stats",
    params: &[],
    text: "SELECT to_jsonb(s)::text FROM tidegate.stats AS s ORDER BY s.kind",
};

/// Everything stored about one event, live or logged.
pub static SHOW: Statement = Statement {
    name: "show",
    params: &[Type::INT8],
    text: "\
SELECT (to_jsonb(q) || jsonb_build_object('in', 'event_queue'))::text FROM tidegate.event_queue AS q WHERE id = $1
UNION ALL
SELECT (to_jsonb(l) || jsonb_build_object('in', 'event_log'))::text FROM tidegate.event_log AS l WHERE id = $1",
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
  FROM tidegate.jobs AS j
 WHERE j.id = $1",
};

/// Newest events first, live and logged, filtered by status and kind.
pub static LIST: Statement = Statement {
    name: "list",
    params: &[Type::TEXT, Type::TEXT, Type::INT8],
    text: "\
SELECT to_jsonb(e)::text
  FROM (SELECT * FROM (
            SELECT id, kind, status, attempts, group_key, correlation_id, created_at, NULL::timestamptz AS finished_at,
                   last_error
              FROM tidegate.event_queue
             WHERE ($1::text IS NULL OR status = $1) AND ($2::text IS NULL OR kind = $2)
             ORDER BY id DESC LIMIT $3) AS live
        UNION ALL
        SELECT * FROM (
            SELECT id, kind, status, attempts, group_key, correlation_id, created_at, finished_at,
                   concat_ws(': ', errors->-1->>'code', errors->-1->>'message') AS last_error
              FROM tidegate.event_log
             WHERE ($1::text IS NULL OR status = $1) AND ($2::text IS NULL OR kind = $2)
             ORDER BY id DESC LIMIT $3) AS logged
         ORDER BY id DESC LIMIT $3) AS e",
};

/// Registers the kinds of a program; what an operator edited stays.
pub static REGISTER_KINDS: Statement = Statement {
    name: "register_kinds",
    params: &[Type::TEXT_ARRAY],
    text: "\
INSERT INTO tidegate.event_kind (kind) SELECT unnest($1) ON CONFLICT (kind) DO NOTHING",
};

/// Those of some kinds that are not registered.
pub static UNREGISTERED: Statement = Statement {
    name: "unregistered",
    params: &[Type::TEXT_ARRAY],
    text: "\
SELECT k.kind FROM unnest($1) AS k(kind)
 WHERE NOT EXISTS (SELECT FROM tidegate.event_kind AS e WHERE e.kind = k.kind) ORDER BY k.kind",
};

/// All of this file.
pub static ALL: &[&Statement] = &[
    &BACKLOG,
    &STATS,
    &SHOW,
    &JOB,
    &LIST,
    &REGISTER_KINDS,
    &UNREGISTERED,
];
