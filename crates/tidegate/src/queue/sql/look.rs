//! Read-only views of the queue, and the registry of kinds.

use super::statements;

statements! {
    /// The number of live events and the age of the oldest. Counts exactly up to 100,000. Beyond that it
    /// returns the planner's estimate, because counting millions takes longer than a whole tick. The count
    /// also finds the lowest id. A search in the index would pass every dead entry once more (with 200,000 of
    /// them 0.28 s, without 0.18 s).
    pub BACKLOG: "backlog" [] = "\
SELECT CASE WHEN counted.n < 100000 THEN counted.n
            ELSE greatest(counted.n, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'tidegate.event_queue'::regclass)) END,
       (SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint
          FROM tidegate.event_queue
         WHERE id = CASE WHEN counted.n < 100000 THEN counted.lowest
                         ELSE (SELECT id FROM tidegate.event_queue ORDER BY id LIMIT 1) END)
  FROM (SELECT count(*) AS n, min(id) AS lowest
          FROM (SELECT id FROM tidegate.event_queue LIMIT 100000) AS live) AS counted";

    /// Live events of kinds that are not in this list, among the first 100,000 rows. If no other kind is
    /// registered, which is usual, the statement reads no event.
    pub OTHERS: "others" [TEXT_ARRAY] = "\
SELECT q.kind, count(*)
  FROM (SELECT kind FROM tidegate.event_queue LIMIT 100000) AS q
 WHERE q.kind <> ALL ($1) AND EXISTS (SELECT FROM tidegate.event_kind AS k WHERE k.kind <> ALL ($1))
 GROUP BY q.kind ORDER BY 2 DESC, 1 LIMIT 20";

    /// Figures by kind.
    pub STATS: "stats" [] = "SELECT to_jsonb(s)::text FROM tidegate.stats AS s ORDER BY s.kind";

    /// Everything stored about one event, live or logged. `row_to_json` keeps the payload's text. `to_jsonb`
    /// would print `1e131071` as 131,072 digits, and turn a payload of 2.5 KB into a gigabyte.
    pub SHOW: "show" [INT8] = "\
SELECT row_to_json(e)::text FROM (SELECT *, 'event_queue' AS \"in\" FROM tidegate.events WHERE id = $1) AS e
UNION ALL
SELECT row_to_json(l)::text FROM (SELECT *, 'event_log' AS \"in\" FROM tidegate.logged($1)) AS l";

    /// One event as a job. A pending event is expected to end when a drain is next woken, every `$2` seconds
    /// from its publish on. Therefore the reported time is never in the past.
    pub JOB: "job" [INT8, FLOAT8] = "\
SELECT jsonb_build_object('id', j.id, 'kind', j.kind, 'status', j.status, 'status_code', j.status_code,
                          'result', j.result, 'errors', j.errors,
                          'eta', to_char(coalesce(j.finished_at, j.created_at + make_interval(secs => $2)
                              * (1 + floor(greatest(0, extract(epoch FROM clock_timestamp() - j.created_at)) / $2)::float8))
                              AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))::text
  FROM tidegate.job($1) AS j";

    /// The figures of the whole queue that are not sums over its kinds. Times of the log are compared with
    /// `statement_timestamp()`: `clock_timestamp()` may change from row to row, so it cannot use an index.
    pub OVERVIEW: "overview" [] = "\
SELECT (SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint
          FROM tidegate.event_queue ORDER BY id LIMIT 1),
       (SELECT count(*) FROM tidegate.blocked_groups),
       (SELECT count(*) FROM tidegate.event_log
         WHERE status <> 'COMPLETED' AND finished_at > statement_timestamp() - interval '1 day'),
       (SELECT count(*) FROM tidegate.event_log
         WHERE finished_at > statement_timestamp() - interval '1 minute')";

    /// Events that will pass their start-before deadline before they start (B13), by kind, soonest first,
    /// among the `$2` events with the earliest deadlines. `$1` is a window in seconds. An event counts in
    /// three cases:
    ///
    /// - Its deadline is within the window.
    /// - It is delayed until after its deadline.
    /// - Its turn comes after its deadline: more events of its kind have earlier deadlines than can finish by
    ///   then at the rate of the last window. This test applies only to an event that has been ready for a
    ///   whole window. During that time there was always more to do than was done, so the rate is the
    ///   capacity. The rate of a queue that was empty at times shows how much was published, not how much it
    ///   can do.
    ///
    /// Events that have started do not count, and neither do events past their deadline, which are already
    /// lost. The statement walks the index up to `$2` rows, with a million rows as with a thousand. If it
    /// needs a rate, it sums the figures of the window's minutes: counting the log took 200 ms at 10,000,000
    /// rows, at the end of each drain.
    pub EXPIRING: "expiring" [FLOAT8, INT8] = "\
WITH held AS MATERIALIZED (
    SELECT started FROM tidegate.held
), first AS MATERIALIZED (
    SELECT q.kind, q.expires_at, q.available_at, extract(epoch FROM q.expires_at - statement_timestamp())::float8 AS seconds,
           NOT q.delayed AND q.available_at <= statement_timestamp() - make_interval(secs => $1) AS has_waited
      FROM tidegate.event_queue AS q, held
     WHERE q.expires_at > statement_timestamp() AND NOT (q.id <@ held.started)
     ORDER BY q.expires_at LIMIT $2
), span AS (
    SELECT date_trunc('minute', statement_timestamp() - make_interval(secs => $1)) AS since
), finished AS MATERIALIZED (
    SELECT m.kind, sum(m.events)::float8 / extract(epoch FROM statement_timestamp() - span.since)::float8 AS per_second
      FROM span JOIN tidegate.minute_stats AS m ON m.minute >= span.since
     WHERE EXISTS (SELECT FROM first WHERE has_waited AND seconds > $1)
     GROUP BY m.kind, span.since
), placed AS (
    SELECT f.*, row_number() OVER (PARTITION BY f.kind ORDER BY f.expires_at) AS place FROM first AS f)
SELECT jsonb_build_object('kind', p.kind, 'events', count(*), 'first_deadline', min(p.expires_at))::text
  FROM placed AS p LEFT JOIN finished AS f USING (kind)
 WHERE p.seconds <= $1 OR p.available_at >= p.expires_at OR p.has_waited AND p.place > p.seconds * f.per_second
 GROUP BY p.kind
 ORDER BY min(p.expires_at), p.kind";

    /// Events, live and logged, newest first. A filter that is null matches all events. Nothing is prepared,
    /// so the planner sees the filters as constants: null filters cost nothing, and the others use their
    /// index. An event that was created after a time also finished after it, so the log's block range index
    /// applies.
    ///
    /// `$1` status, `$2` kind, `$3` limit, `$4` group, `$5` correlation id, `$6` only lower ids, `$7` or `$8`
    /// seconds ago: created at or after, `$9` or `$10` seconds ago: created before, `$11` only higher ids,
    /// which bounds the search.
    pub LIST: "list" [TEXT, TEXT, INT8, TEXT, TEXT, INT8, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, INT8] = "\
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
               AND ($11::bigint IS NULL OR id > $11)
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
               AND ($11::bigint IS NULL OR id > $11)
               AND (coalesce($7, statement_timestamp() - make_interval(secs => $8)) IS NULL
                    OR (created_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8))
                        AND finished_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8))))
               AND (coalesce($9, statement_timestamp() - make_interval(secs => $10)) IS NULL
                    OR created_at < coalesce($9, statement_timestamp() - make_interval(secs => $10)))
             ORDER BY id DESC LIMIT $3) AS logged
         ORDER BY id DESC LIMIT $3) AS e";

    /// How far back a search reaches: the first id that it does not reach, and when that event was created.
    /// The search looks at the newest `$4` live events (if `$2`) and the newest `$4` finished ones (if `$3`)
    /// below the id `$1`. There is no row if it reaches all events. Only the indexes of the ids are walked.
    pub SEARCH_FLOOR: "search_floor" [INT8, BOOL, BOOL, INT8] = "\
WITH floor AS MATERIALIZED (
    SELECT greatest((SELECT id FROM tidegate.event_queue WHERE $2 AND ($1::bigint IS NULL OR id < $1)
                      ORDER BY id DESC OFFSET $4 LIMIT 1),
                    (SELECT id FROM tidegate.ends WHERE $3 AND ($1::bigint IS NULL OR id < $1)
                      ORDER BY id DESC OFFSET $4 LIMIT 1)) AS id)
SELECT floor.id, to_char((SELECT created_at FROM tidegate.event_queue WHERE id = floor.id
                          UNION ALL SELECT created_at FROM tidegate.ends WHERE id = floor.id LIMIT 1)
                         AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')
  FROM floor WHERE floor.id IS NOT NULL";

    /// The family of an event, each member as an object: its ancestors, nearest first, then its descendants,
    /// then the rest of the family; at most `$2` in all.
    pub LINEAGE: "lineage" [INT8, INT8] = "SELECT l::text FROM tidegate.lineage($1, $2) AS l";

    /// Registers the kinds of a program. Operators' changes stay.
    pub REGISTER_KINDS: "register_kinds" [TEXT_ARRAY] = "\
INSERT INTO tidegate.event_kind (kind) SELECT unnest($1) ON CONFLICT (kind) DO NOTHING";

    /// Stores the policies that a program declares.
    pub DECLARE_POLICIES: "declare_policies" [TEXT_ARRAY, TEXT_ARRAY] =
        "SELECT tidegate.declare_policies($1, $2)";

    /// The kinds of this list that are not registered.
    pub UNREGISTERED: "unregistered" [TEXT_ARRAY] = "\
SELECT k.kind FROM unnest($1) AS k(kind)
 WHERE NOT EXISTS (SELECT FROM tidegate.event_kind AS e WHERE e.kind = k.kind) ORDER BY k.kind";

    /// The kinds that programs have registered.
    pub REGISTERED: "registered" [] = "SELECT k.kind FROM tidegate.event_kind AS k ORDER BY k.kind";
}
