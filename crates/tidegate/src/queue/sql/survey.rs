//! Views for people who watch a queue of any size. Each statement reads a bounded number of rows. Only
//! [`CONTENT`] reads payloads.

use super::statements;

statements! {
    /// The rights of this login: to read payloads, and to act.
    pub RIGHTS: "rights" [] = "\
SELECT has_column_privilege('tidegate.event_queue', 'payload', 'SELECT')
           AND has_column_privilege('tidegate.event_log', 'payload', 'SELECT'),
       NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'
           AND EXISTS (SELECT FROM pg_proc AS p
                        WHERE p.pronamespace = 'tidegate'::regnamespace AND p.proname = 'replay'
                          AND has_function_privilege(p.oid, 'EXECUTE')),
       current_user::text, current_database()::text";

    /// Live events by kind, among the first `$1` rows. Kinds that are not registered share one name.
    pub DEPTHS: "depths" [INT8] = "\
WITH held AS MATERIALIZED (SELECT ids, stuck FROM tidegate.held)
SELECT jsonb_build_object('kind', coalesce(k.kind, '(unregistered)'), 'events', count(*),
           'processing', count(*) FILTER (WHERE q.id <@ held.ids),
           'delayed', count(*) FILTER (WHERE q.delayed AND NOT (q.id <@ held.ids)),
           'stuck', count(*) FILTER (WHERE q.id <@ held.stuck),
           'oldest', min(q.created_at))::text
  FROM (SELECT id, kind, delayed, created_at FROM tidegate.event_queue LIMIT $1) AS q CROSS JOIN held
  LEFT JOIN tidegate.event_kind AS k ON k.kind = q.kind
 GROUP BY k.kind ORDER BY k.kind";

    /// Groups whose first event holds back other events, at most `$1`. Only the first `$2` delayed events of
    /// groups are checked. Waiting events are counted up to 1,000.
    pub BLOCKED: "blocked" [INT8, INT8] = "\
SELECT to_jsonb(b)::text
  FROM (SELECT head.group_key, head.id AS head_id, head.kind AS head_kind, head.attempts, head.max_attempts,
               head.available_at, head.last_error, head.created_at,
               (SELECT count(*) FROM (SELECT FROM tidegate.event_queue AS behind
                                       WHERE behind.group_key = head.group_key AND behind.id > head.id LIMIT 1000) AS first) AS waiting
          FROM (SELECT id, kind, group_key, attempts, max_attempts, available_at, last_error, created_at
                  FROM tidegate.event_queue WHERE delayed AND group_key IS NOT NULL ORDER BY available_at LIMIT $2) AS head
         WHERE NOT EXISTS (SELECT FROM tidegate.event_queue AS ahead
                            WHERE ahead.group_key = head.group_key AND ahead.id < head.id)
           AND EXISTS (SELECT FROM tidegate.event_queue AS behind
                        WHERE behind.group_key = head.group_key AND behind.id > head.id)
         ORDER BY head.id LIMIT $1) AS b";

    /// The live events of a group in order, at most `$2`.
    pub GROUP: "group_events" [TEXT, INT8] = "\
WITH held AS MATERIALIZED (SELECT ids, started FROM tidegate.held)
SELECT to_jsonb(g)::text
  FROM (SELECT q.id, q.kind, CASE WHEN q.id <@ held.ids THEN 'PROCESSING' ELSE 'PENDING' END AS status,
               q.attempts + (q.id <@ held.started AND q.attempts < q.max_attempts)::int AS attempts, q.max_attempts,
               q.group_key, q.correlation_id, q.created_at, q.available_at, q.delayed, NULL::timestamptz AS finished_at, q.last_error
          FROM tidegate.event_queue AS q, held
         WHERE q.group_key = $1 ORDER BY q.id LIMIT $2) AS g";

    /// Services without the number of waiting events, because counting these would read the queue once per
    /// service.
    pub SERVICE_STATES: "service_states" [] = "\
SELECT jsonb_build_object('service', s.service, 'state', s.state, 'since', s.since, 'failures', s.failures, 'retry_at', s.retry_at,
           'answered_at', s.answered_at, 'last_error', s.last_error, 'kinds', s.kinds, 'max_running', s.max_running,
           'per_second', s.per_second, 'waiting', 0, 'oldest', NULL,
           'places', (SELECT coalesce(sum(p.places), 0) FROM tidegate.service_place AS p
                       WHERE p.service = s.service AND p.until >= statement_timestamp()))::text
  FROM tidegate.service AS s ORDER BY s.state = 'closed', s.since, s.service LIMIT 1000";

    /// Dead letters of the last `$1` seconds by kind, status and error code, among the latest `$3`. `$2`
    /// selects a kind.
    pub DEAD: "dead" [FLOAT8, TEXT, INT8] = "\
SELECT jsonb_build_object('kind', d.kind, 'status', d.status, 'code', d.code, 'events', count(*),
           'first', min(d.finished_at), 'last', max(d.finished_at), 'last_id', max(d.id),
           'message', (array_agg(left(d.last_error, 300) ORDER BY d.finished_at DESC))[1])::text
  FROM (SELECT e.id, e.kind, e.status, split_part(coalesce(e.last_error, ''), ': ', 1) AS code, e.last_error, e.finished_at
          FROM tidegate.ends AS e
         WHERE e.status <> 'COMPLETED' AND e.finished_at > statement_timestamp() - make_interval(secs => $1)
           AND ($2::text IS NULL OR e.kind = $2)
         ORDER BY e.finished_at DESC LIMIT $3) AS d
 GROUP BY d.kind, d.status, d.code ORDER BY count(*) DESC, d.kind, d.code LIMIT 200";

    /// One event without its content, live or finished. If a copied database used an id twice, the live event
    /// wins.
    pub EVENT: "event" [INT8] = "\
SELECT to_jsonb(e)::text
  FROM (SELECT 'event_queue' AS \"in\", id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts,
               available_at, expires_at AS deadline, created_at, processing_started_at, NULL::timestamptz AS finished_at,
               NULL::timestamptz AS kept_until, lease_expires_at, last_error, parent_id, replay_of, delayed
          FROM tidegate.events WHERE id = $1
        UNION ALL
        SELECT 'event_log', l.id, l.kind, l.group_key, l.dedup_key, l.correlation_id, l.status, l.attempts, l.max_attempts,
               NULL, l.deadline, l.created_at, l.processing_started_at, l.finished_at,
               l.expires_at, NULL, e.last_error, l.parent_id, l.replay_of, false
          FROM tidegate.event_log AS l JOIN tidegate.ends AS e ON e.id = l.id AND e.finished_at = l.finished_at
         WHERE l.id = $1 AND e.id = $1) AS e
 ORDER BY e.\"in\" DESC, e.finished_at DESC LIMIT 1";

    /// The content of one event as stored text, so that numbers are not rounded.
    pub CONTENT: "content" [INT8] = "\
SELECT c.payload, c.result, c.progress, c.errors, c.traceparent
  FROM (SELECT 1 AS place, q.payload::text, NULL::text AS result, q.progress::text, q.errors::text, q.traceparent
          FROM tidegate.event_queue AS q WHERE q.id = $1
        UNION ALL
        SELECT 2, l.payload::text, l.result::text, l.progress::text, l.errors::text, l.traceparent
          FROM tidegate.event_log AS l WHERE l.id = $1) AS c
 ORDER BY c.place LIMIT 1";

    /// The progress that the running handler of one event reports.
    pub WORK: "work" [INT8] = "SELECT to_jsonb(w)::text FROM tidegate.at_work AS w WHERE w.id = $1";

    /// Audit entries, latest first: below the id `$1`, of the operator `$2` and the action `$3`, at most
    /// `$4`. An entry can name a hundred thousand events; the first ten are returned.
    pub AUDIT: "audit" [INT8, TEXT, TEXT, INT8] = "\
SELECT to_jsonb(a)::text
  FROM (SELECT id, at, session_user_name, actor, action, filter - 'ids' AS filter, ids[1:10] AS ids, count, reason
          FROM tidegate.audit
         WHERE ($1::bigint IS NULL OR id < $1) AND ($2::text IS NULL OR actor = $2) AND ($3::text IS NULL OR action = $3)
         ORDER BY id DESC LIMIT $4) AS a";

    /// Registered kinds with policy and retention.
    pub KINDS: "kinds" [] = "\
SELECT jsonb_build_object('kind', k.kind, 'paused', k.paused, 'registered_at', k.registered_at,
           'retention_completed', k.retention_completed::text, 'retention_failed', k.retention_failed::text,
           'declared', k.declared, 'overridden', k.overridden, 'policy', k.policy)::text
  FROM tidegate.event_kind AS k ORDER BY k.kind LIMIT 1000";

    /// The log's partitions with the planner's estimates, the first to expire first.
    pub LOG_PARTITIONS: "partition_sizes" [] = "\
SELECT jsonb_build_object('partition', c.relname, 'holds', pg_get_expr(c.relpartbound, c.oid),
           'rows', nullif(greatest(c.reltuples, -1), -1)::bigint, 'bytes', pg_total_relation_size(c.oid))::text
  FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'tidegate.event_log'::regclass ORDER BY c.relname LIMIT 500";

    /// Finished events of the last `$1` seconds by status, in steps of `$2` seconds. `$3` selects a kind.
    pub COURSE: "course" [FLOAT8, FLOAT8, TEXT] = "\
SELECT (extract(epoch FROM f.minute) / $2)::bigint, f.status, least(sum(f.events), 1e17)::bigint, least(sum(f.latency_ms), 1e17)::bigint
  FROM (SELECT date_bin(make_interval(secs => $2), m.minute, timestamptz 'epoch') AS minute, m.status, m.events, m.latency_ms
          FROM tidegate.minute_stats AS m
         WHERE m.minute > statement_timestamp() - make_interval(secs => $1) AND ($3::text IS NULL OR m.kind = $3)) AS f
 GROUP BY 1, 2 ORDER BY 1, 2";

    /// Finished events of the last `$1` seconds by kind, status and latency bucket.
    pub ENDED: "ended" [FLOAT8] = "\
SELECT m.kind, m.status, m.within_ms, least(sum(m.events), 1e17)::bigint, least(sum(m.attempts), 1e17)::bigint,
       least(sum(m.latency_ms), 1e17)::bigint
  FROM tidegate.minute_stats AS m
 WHERE m.minute > statement_timestamp() - make_interval(secs => $1)
 GROUP BY m.kind, m.status, m.within_ms ORDER BY m.kind, m.status, m.within_ms";

    /// The latest finished drains, at most `$1`.
    pub DRAINS: "drains" [INT8] = "\
SELECT jsonb_build_object('worker', r.worker, 'started_at', r.started_at, 'ended_at', r.ended_at, 'stop_reason', r.stop_reason,
           'report', r.report)::text
  FROM tidegate.drain_run AS r ORDER BY r.ended_at DESC LIMIT $1";
}
