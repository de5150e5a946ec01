-- Figures that are available without counting the log: events that ended in each minute, and the drains that
-- have run.

-- There is no unique key: if a flush finds its row locked, it adds another row and does not wait, however
-- long a handler keeps its transaction open. No value is ever subtracted.
CREATE TABLE @tidegate.minute_stats (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    minute     timestamptz NOT NULL,
    kind       text        NOT NULL,
    status     text        NOT NULL,
    within_ms  bigint,
    events     bigint      NOT NULL,
    attempts   bigint      NOT NULL,
    latency_ms bigint      NOT NULL,
    code       text,
    last_id    bigint
-- Rows of the current minute change with every flush. Free space on their pages avoids index updates.
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
COMMENT ON TABLE @tidegate.minute_stats IS
    'How many events ended, by minute, kind, status, code and latency. Written in the transaction that ends the events. Several '
    'rows may have the same key, so always sum them. Minutes older than two hours are merged into hours, and hours older '
    'than two days into days. Kept for ever.';
COMMENT ON COLUMN @tidegate.minute_stats.id IS 'The row''s id, without further meaning.';
COMMENT ON COLUMN @tidegate.minute_stats.minute IS 'The start of the minute, hour or day (UTC) in which the events ended.';
COMMENT ON COLUMN @tidegate.minute_stats.kind IS 'The kind of the events; (unregistered) for all kinds that nobody has registered.';
COMMENT ON COLUMN @tidegate.minute_stats.status IS 'How they ended: COMPLETED, COMPLETED_WITH_ERRORS or FAILED. PUT_OFF: the log has them as COMPLETED, but they only published an event that does the work later.';
COMMENT ON COLUMN @tidegate.minute_stats.within_ms IS
    'The latency bucket: the events ended within this many milliseconds after their publish, but not within the next '
    'smaller bound. The bounds are 50, 250, 1000, 5000, 30000, 120000, 600000 and 3600000. Null: later than all bounds.';
COMMENT ON COLUMN @tidegate.minute_stats.events IS 'The number of events.';
COMMENT ON COLUMN @tidegate.minute_stats.attempts IS 'The sum of their attempts.';
COMMENT ON COLUMN @tidegate.minute_stats.latency_ms IS 'The sum of their times from publish to end, in milliseconds.';
COMMENT ON COLUMN @tidegate.minute_stats.code IS
    'The code of their last error; empty if they had none. (other): further codes, when a kind has had 50 in this hour. Null: '
    'COMPLETED or PUT_OFF.';
COMMENT ON COLUMN @tidegate.minute_stats.last_id IS 'The highest id of those with a code, as an example. Null: they have none.';

CREATE VIEW @tidegate.daily_stats AS
SELECT (minute AT TIME ZONE 'UTC')::date AS day, kind, status, least(sum(events), 1e17)::bigint AS events,
       least(sum(attempts), 1e17)::bigint AS attempts, least(sum(latency_ms), 1e17)::bigint AS latency_ms
  FROM @tidegate.minute_stats
 GROUP BY 1, 2, 3;
COMMENT ON VIEW @tidegate.daily_stats IS
    'The number of events that have ever ended, by UTC day. Includes events that the log no longer holds.';
COMMENT ON COLUMN @tidegate.daily_stats.day IS 'The UTC day on which they ended.';

CREATE INDEX minute_stats_minute ON @tidegate.minute_stats (minute, kind, status);

CREATE INDEX minute_stats_code ON @tidegate.minute_stats (kind, minute, code) WHERE code IS NOT NULL;

-- Returns the bounds of the latency buckets as negative seconds. width_bucket() of a negative latency over
-- them is its bucket: 8 for at most 50 ms, 0 for more than an hour. tstzrange_subdiff() is the cheapest way
-- to get a difference in seconds, because date_part() parses the name of its field for each row.
CREATE FUNCTION @tidegate.latency_bounds() RETURNS double precision[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN '{-3600,-600,-120,-30,-5,-1,-0.25,-0.05}'::double precision[];

-- The codes of ended events as the figures have them: of a kind at most 50 in an hour, or about as many if
-- several sessions end events at once, because a handler can make up any number of codes.
CREATE FUNCTION @tidegate.counted_codes(kinds text[], codes text[]) RETURNS text[]
    LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN (WITH ended AS MATERIALIZED (
        SELECT coalesce(k.kind, '(unregistered)') AS kind, u.code, u.n
          FROM unnest(kinds, codes) WITH ORDINALITY AS u(kind, code, n) LEFT JOIN @tidegate.event_kind AS k ON k.kind = u.kind
    ), ranked AS (
        SELECT r.kind, r.code, row_number() OVER (PARTITION BY r.kind ORDER BY bool_and(r.is_new), r.code) AS rank
          FROM (SELECT e.kind, e.code, true AS is_new FROM ended AS e WHERE e.code IS NOT NULL
                UNION ALL
                SELECT m.kind, m.code, false FROM @tidegate.minute_stats AS m
                 WHERE m.kind = ANY (ARRAY(SELECT e.kind FROM ended AS e WHERE e.code IS NOT NULL)) AND m.code <> '(other)'
                   AND m.minute >= date_trunc('hour', statement_timestamp(), 'UTC')) AS r
         GROUP BY r.kind, r.code
    )
    SELECT array_agg(CASE WHEN r.rank > 50 THEN '(other)' ELSE e.code END ORDER BY e.n) FROM ended AS e LEFT JOIN ranked AS r USING (kind, code));
END $$;

-- Adds sums of ended events to the figures of this minute, one element for each kind, status, bucket and
-- code. Latencies are sums in seconds. Null arrays add nothing. SECURITY DEFINER: a role that may end events
-- may change the figures only through these functions.
--
-- A statistic never makes an end fail. Therefore absurd numbers are cut here, before any arithmetic can
-- overflow, and sums stop growing at 10^17. Nothing else in this function can fail because of its arguments.
-- An exception block would cost each end a subtransaction. Kinds that nobody has registered are counted under
-- one name: a publisher can make up any number of kinds.
CREATE FUNCTION @tidegate.add_figures(kinds text[], statuses text[], buckets integer[], events bigint[], attempts bigint[], latencies double precision[],
                                     codes text[] DEFAULT NULL, last_ids bigint[] DEFAULT NULL)
    RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    now CONSTANT timestamptz := date_trunc('minute', clock_timestamp());
    bounds CONSTANT bigint[] := ARRAY[NULL, 3600000, 600000, 120000, 30000, 5000, 1000, 250, 50];
BEGIN
    IF kinds IS NULL THEN
        RETURN;
    END IF;
    IF codes IS NOT NULL THEN
        codes := @tidegate.counted_codes(kinds, codes);
    END IF;
    WITH sums AS MATERIALIZED (
        SELECT coalesce(k.kind, '(unregistered)') AS kind, e.status, e.code, bounds[least(greatest(e.bucket, 0), 8) + 1] AS within_ms,
               -- Of a kind at most a million events in a call, with a thousand attempts and a hundred million
               -- seconds each.
               least(sum(least(greatest(e.events, 0), 1000000)::integer), 1000000) AS events,
               least(sum(least(greatest(e.attempts, 0), 1000000000)::integer), 1000000000) AS attempts,
               round(least(sum(least(greatest(e.latency, 0), 1e14)), 1e14) * 1000)::bigint AS latency_ms, max(e.last_id) AS last_id
          FROM unnest(kinds, statuses, buckets, add_figures.events, add_figures.attempts, latencies, codes, last_ids)
               AS e(kind, status, bucket, events, attempts, latency, code, last_id)
          LEFT JOIN @tidegate.event_kind AS k ON k.kind = e.kind
         WHERE e.status IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED', 'PUT_OFF')
         GROUP BY 1, 2, 3, 4
    ), placed AS MATERIALIZED (
        SELECT s.*, row.id
          FROM sums AS s
          LEFT JOIN LATERAL (
               SELECT m.id FROM @tidegate.minute_stats AS m
                WHERE m.minute = now AND m.kind = s.kind AND m.status = s.status AND m.within_ms IS NOT DISTINCT FROM s.within_ms
                  AND m.code IS NOT DISTINCT FROM s.code
                LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS row ON true
    ), added AS (
        UPDATE @tidegate.minute_stats AS m
           SET events = least(m.events, 100000000000000000) + p.events,
               attempts = least(m.attempts, 100000000000000000) + p.attempts,
               latency_ms = least(m.latency_ms, 100000000000000000) + p.latency_ms,
               last_id = greatest(m.last_id, p.last_id)
          FROM placed AS p WHERE m.id = p.id)
    INSERT INTO @tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms, code, last_id)
    SELECT now, p.kind, p.status, p.within_ms, p.events, p.attempts, p.latency_ms, p.code, p.last_id FROM placed AS p WHERE p.id IS NULL;
END $$;

-- Adds events that a transaction has ended at `instant` to the figures of this minute. Null arrays add
-- nothing. complete() does not call it: it ends thousands of events a second, and groups them in its own
-- statement in a third of the time.
CREATE FUNCTION @tidegate.count_ended(kinds text[], statuses text[], attempts integer[], created_ats timestamptz[], instant timestamptz,
                                     codes text[], ids bigint[])
    RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET jit = off AS $$
#variable_conflict use_column
DECLARE
    bounds CONSTANT double precision[] := @tidegate.latency_bounds();
BEGIN
    PERFORM @tidegate.add_figures(array_agg(g.kind), array_agg(g.status), array_agg(g.bucket), array_agg(g.events), array_agg(g.attempts),
                                 array_agg(g.latency), CASE WHEN count(g.code) > 0 THEN array_agg(g.code) END, array_agg(g.last_id))
       FROM (SELECT e.kind, e.status, e.code, width_bucket(tstzrange_subdiff(e.created_at, instant), bounds) AS bucket, count(*) AS events,
                    sum(e.attempts) AS attempts,
                    sum(tstzrange_subdiff(instant, e.created_at)) FILTER (WHERE isfinite(e.created_at)) AS latency,
                    max(e.id) FILTER (WHERE e.code IS NOT NULL) AS last_id
               FROM (SELECT u.kind, u.status, u.attempts, u.created_at, u.id,
                            CASE WHEN u.status IN ('FAILED', 'COMPLETED_WITH_ERRORS') THEN left(coalesce(u.code, ''), 200) END AS code
                       FROM unnest(kinds, statuses, count_ended.attempts, created_ats, codes, ids)
                            AS u(kind, status, attempts, created_at, code, id)) AS e
              GROUP BY 1, 2, 3, 4) AS g;
END $$;

-- Adds one event that a transaction has completed at `instant`, in half the time of count_ended(). A kind
-- that is not registered has no row of this name to find.
CREATE FUNCTION @tidegate.count_completed(kind text, attempts integer, created_at timestamptz, instant timestamptz) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    now CONSTANT timestamptz := date_trunc('minute', clock_timestamp());
    within CONSTANT bigint := (ARRAY[NULL, 3600000, 600000, 120000, 30000, 5000, 1000, 250, 50]::bigint[])
        [width_bucket(tstzrange_subdiff(created_at, instant), @tidegate.latency_bounds()) + 1];
    latency CONSTANT bigint :=
        CASE WHEN isfinite(created_at) THEN least(greatest(tstzrange_subdiff(instant, created_at), 0), 1e14) * 1000 ELSE 0 END;
BEGIN
    UPDATE @tidegate.minute_stats AS m
       SET events = least(m.events, 100000000000000000) + 1,
           attempts = least(m.attempts, 100000000000000000) + greatest(count_completed.attempts, 0),
           latency_ms = least(m.latency_ms, 100000000000000000) + latency
     WHERE m.id = (SELECT f.id FROM @tidegate.minute_stats AS f
                    WHERE f.minute = now AND f.kind = count_completed.kind AND f.status = 'COMPLETED'
                      AND f.within_ms IS NOT DISTINCT FROM within
                    LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        RETURN;
    END IF;
    IF kind <> '(unregistered)' AND NOT EXISTS (SELECT FROM @tidegate.event_kind AS k WHERE k.kind = count_completed.kind) THEN
        PERFORM @tidegate.count_completed('(unregistered)', attempts, created_at, instant);
    ELSE
        INSERT INTO @tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
        VALUES (now, kind, 'COMPLETED', within, 1, greatest(attempts, 0), latency);
    END IF;
END $$;

-- Merges old rows of minute_stats into hours and days, and forgets drains of more than a week ago. It never
-- waits: a locked row is merged next time.
CREATE FUNCTION @tidegate.fold_figures(most integer) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    unit text;
    folded bigint;
    total bigint := 0;
BEGIN
    FOREACH unit IN ARRAY ARRAY['hour', 'day'] LOOP
        WITH old AS MATERIALIZED (
            SELECT m.id FROM @tidegate.minute_stats AS m
             WHERE m.minute < date_trunc(unit, instant - CASE unit WHEN 'hour' THEN interval '2 hours' ELSE interval '2 days' END, 'UTC')
               AND m.minute <> date_trunc(unit, m.minute, 'UTC')
             LIMIT most FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM @tidegate.minute_stats AS m WHERE m.id IN (SELECT o.id FROM old AS o)
            RETURNING date_trunc(unit, m.minute, 'UTC') AS start, m.kind, m.status, m.within_ms, m.events, m.attempts, m.latency_ms,
                      m.code, m.last_id
        ), ranked AS (
            -- An hour has few codes, but a day may have many.
            SELECT g.start, g.kind, g.code, row_number() OVER (PARTITION BY g.start, g.kind ORDER BY sum(g.events) DESC) AS rank
              FROM gone AS g WHERE g.code <> '(other)' GROUP BY 1, 2, 3
        ), kept AS (
            INSERT INTO @tidegate.minute_stats (minute, kind, status, within_ms, code, events, attempts, latency_ms, last_id)
            SELECT g.start, g.kind, g.status, g.within_ms, CASE WHEN r.rank > 50 THEN '(other)' ELSE g.code END,
                   least(sum(g.events), 100000000000000000), least(sum(g.attempts), 100000000000000000),
                   least(sum(g.latency_ms), 100000000000000000), max(g.last_id)
              FROM gone AS g LEFT JOIN ranked AS r USING (start, kind, code) GROUP BY 1, 2, 3, 4, 5)
        SELECT count(*) INTO folded FROM gone;
        total := total + folded;
    END LOOP;
    DELETE FROM @tidegate.drain_run AS r
     WHERE r.ctid = ANY (ARRAY(SELECT o.ctid FROM @tidegate.drain_run AS o WHERE o.ended_at < instant - interval '7 days' LIMIT most));
    GET DIAGNOSTICS folded = ROW_COUNT;
    RETURN greatest(total, folded);
END $$;

-- The start of the row of minute_stats in which a time lies: its minute, hour or day, as fold_figures()
-- merges them. What is counted from there on are all events that have ended since, and a few more.
CREATE FUNCTION @tidegate.figures_since(since timestamptz) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN date_trunc(CASE WHEN since > statement_timestamp() - interval '2 hours' THEN 'minute'
                           WHEN since > statement_timestamp() - interval '2 days' THEN 'hour' ELSE 'day' END, since, 'UTC');
COMMENT ON FUNCTION @tidegate.figures_since IS
    'The start of the minute, hour or day from which the figures count: minutes up to two hours ago, hours up to two days ago, '
    'then days. since: a time.';

-- The state of the queue is counted here, once: live events, groups that wait, and what has ended. Views,
-- verbs, the doctor, the console and Prometheus read these functions, each of which has a bound.

-- Live events of each kind, and how many are in which state: the first of these that applies. The walk by id
-- costs what it counts. If a queue is only a little larger, the planner would rather read and sort all of it.
-- The state of an event is computed once, as its group: in the filter of each count, it took twice as long.
CREATE FUNCTION @tidegate.depths(most bigint DEFAULT 100000) RETURNS TABLE (
    kind text, events bigint, running bigint, paused bigint, waiting_for_service bigint, ready bigint, retrying bigint,
    planned bigint, delayed bigint, stuck bigint, max_attempts_used integer, oldest timestamptz, ready_since timestamptz
) LANGUAGE sql STABLE SECURITY DEFINER ROWS 20 SET enable_seqscan = off SET enable_sort = off AS $$
    WITH held AS MATERIALIZED (
        SELECT h.ids, h.stuck FROM @tidegate.held AS h
    ), live AS (
        SELECT q.kind,
               CASE WHEN q.id <@ held.ids THEN 'running'
                    WHEN q.kind = ANY (held_up.paused) THEN 'paused'
                    WHEN q.kind = ANY (held_up.down) THEN 'waiting_for_service'
                    WHEN NOT q.delayed OR q.available_at <= statement_timestamp() THEN 'ready'
                    WHEN q.attempts > 0 THEN 'retrying'
                    ELSE 'planned' END AS state,
               count(*) AS events, count(*) FILTER (WHERE q.delayed) AS delayed, count(*) FILTER (WHERE q.id <@ held.stuck) AS stuck,
               max(q.attempts) AS attempts, min(q.created_at) AS created_at, min(greatest(q.available_at, q.created_at)) AS since
          FROM (SELECT e.id, e.kind, e.delayed, e.attempts, e.available_at, e.created_at
                  FROM @tidegate.event_queue AS e ORDER BY e.id LIMIT most) AS q
         CROSS JOIN held
         CROSS JOIN (SELECT ARRAY(SELECT k.kind FROM @tidegate.event_kind AS k WHERE k.paused) AS paused,
                            ARRAY(SELECT unnest(s.kinds) FROM @tidegate.service AS s WHERE s.state <> 'closed') AS down) AS held_up
         GROUP BY 1, 2
    )
    SELECT coalesce(k.kind, '(unregistered)'), sum(l.events)::bigint,
           coalesce(sum(l.events) FILTER (WHERE l.state = 'running'), 0)::bigint,
           coalesce(sum(l.events) FILTER (WHERE l.state = 'paused'), 0)::bigint,
           coalesce(sum(l.events) FILTER (WHERE l.state = 'waiting_for_service'), 0)::bigint,
           coalesce(sum(l.events) FILTER (WHERE l.state = 'ready'), 0)::bigint,
           coalesce(sum(l.events) FILTER (WHERE l.state = 'retrying'), 0)::bigint,
           coalesce(sum(l.events) FILTER (WHERE l.state = 'planned'), 0)::bigint,
           coalesce(sum(l.delayed) FILTER (WHERE l.state <> 'running'), 0)::bigint,
           sum(l.stuck)::bigint, max(l.attempts), min(l.created_at), min(l.since) FILTER (WHERE l.state = 'ready')
      FROM live AS l LEFT JOIN @tidegate.event_kind AS k USING (kind) GROUP BY k.kind
$$;
COMMENT ON FUNCTION @tidegate.depths IS
    'The live events of each kind, among those with the lowest ids: all, and how many are running (leased), paused (their kind), '
    'waiting_for_service, ready, retrying or planned; the first that applies. delayed counts those that are not leased and '
    'were set aside until a time. stuck ones belong to workers that have not renewed their leases. Kinds that nobody has '
    'registered share the name (unregistered). most: how many events are counted.';

-- The groups come first, then the first event of each and the one behind it, so that the planner has nothing
-- to choose. Ready events are only read while a service is not called.
CREATE FUNCTION @tidegate.blocked(most bigint DEFAULT 10000) RETURNS TABLE (
    group_key text, head_id bigint, head_kind text, attempts integer, max_attempts integer, available_at timestamptz,
    last_error text, created_at timestamptz
) LANGUAGE sql STABLE SECURITY DEFINER ROWS 100 SET enable_seqscan = off AS $$
    WITH down AS MATERIALIZED (
        SELECT ARRAY(SELECT unnest(s.kinds) FROM @tidegate.service AS s WHERE s.state <> 'closed') AS kinds
    )
    SELECT head.group_key, head.id, head.kind, head.attempts, head.max_attempts, head.available_at, head.last_error, head.created_at
      FROM (SELECT d.group_key
              FROM (SELECT e.group_key FROM @tidegate.event_queue AS e WHERE e.delayed ORDER BY e.available_at LIMIT most) AS d
             WHERE d.group_key IS NOT NULL
            UNION
            SELECT f.group_key
              FROM (SELECT r.kind, r.group_key FROM @tidegate.event_queue AS r
                     WHERE NOT r.delayed AND (SELECT w.kinds <> '{}' FROM down AS w) ORDER BY r.id LIMIT most) AS f
             WHERE f.group_key IS NOT NULL AND f.kind = ANY ((SELECT w.kinds FROM down AS w)::text[])) AS held_up
     CROSS JOIN down
     CROSS JOIN LATERAL (SELECT h.* FROM @tidegate.event_queue AS h WHERE h.group_key = held_up.group_key ORDER BY h.id LIMIT 1) AS head
     CROSS JOIN LATERAL (SELECT FROM @tidegate.event_queue AS n WHERE n.group_key = head.group_key AND n.id > head.id ORDER BY n.id LIMIT 1) AS next
     WHERE head.delayed OR head.kind = ANY (down.kinds)
$$;
COMMENT ON FUNCTION @tidegate.blocked IS
    'The rows of blocked_groups without what costs a look at each group, and all of them. most: how many delayed events are looked '
    'at, those that are due first; and how many ready ones while a service is not called.';

CREATE FUNCTION @tidegate.waiting_behind(group_key text, id bigint) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT count(*) FROM (SELECT FROM @tidegate.event_queue AS q
                           WHERE q.group_key = waiting_behind.group_key AND q.id > waiting_behind.id LIMIT 1000) AS behind
$$;
COMMENT ON FUNCTION @tidegate.waiting_behind IS
    'How many events wait behind one, counted up to 1,000. group_key: its group. id: the event.';

CREATE VIEW @tidegate.blocked_groups AS
SELECT b.*, @tidegate.waiting_behind(b.group_key, b.head_id) AS waiting, @tidegate.why(b.head_id) AS why
  FROM (SELECT * FROM @tidegate.blocked() ORDER BY head_id LIMIT 250) AS b;
COMMENT ON VIEW @tidegate.blocked_groups IS
    'Groups whose first event waits for a retry, a planned time or a service while others wait behind it: the 250 that wait '
    'longest, among the 10,000 delayed events due first and, while a service is not called, the first 10,000 ready events.';
COMMENT ON COLUMN @tidegate.blocked_groups.head_id IS 'Its first event.';
COMMENT ON COLUMN @tidegate.blocked_groups.head_kind IS 'The kind of that event.';
COMMENT ON COLUMN @tidegate.blocked_groups.attempts IS 'How many attempts that event has had.';
COMMENT ON COLUMN @tidegate.blocked_groups.waiting IS 'How many events wait behind it, counted up to 1,000.';
COMMENT ON COLUMN @tidegate.blocked_groups.why IS 'What that event waits for: see why().';

-- The body is BEGIN ATOMIC, which needs no search_path, so that Postgres inlines it.
CREATE FUNCTION @tidegate.ended(since timestamptz) RETURNS SETOF @tidegate.minute_stats
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT m.* FROM @tidegate.minute_stats AS m WHERE m.minute >= @tidegate.figures_since(since) AND m.status <> 'PUT_OFF';
END;
COMMENT ON FUNCTION @tidegate.ended IS
    'What was counted of the events that have ended since a time: the rows of minute_stats from the minute, hour or day in which '
    'it lies, without those that were put off. since: a time.';

-- A statistic of the last hour costs what its figures cost, whatever the size of the log. Percentiles need
-- the log: of the events that ended in this hour, 100,000 are enough.
--
-- The block range index finds them. This does not work with clock_timestamp(), which changes from row to
-- row, so that no index can be used. With ten million rows in the log, reading the last hour took 0.7 s with
-- it and 0.02 s with statement_timestamp().
CREATE FUNCTION @tidegate.figures_by_kind() RETURNS TABLE (
    kind text, pending bigint, processing bigint, delayed bigint, max_attempts_used integer, oldest_age_ms bigint,
    completed bigint, completed_with_errors bigint, failed bigint, attempts_per_event double precision,
    latency_p50_ms bigint, latency_p95_ms bigint, latency_p99_ms bigint, failure_rate double precision, events bigint,
    stuck bigint, paused boolean
) LANGUAGE sql STABLE SECURITY DEFINER ROWS 20 SET jit = off AS $$
WITH finished AS (
    SELECT e.kind,
           least(coalesce(sum(e.events) FILTER (WHERE e.status = 'COMPLETED'), 0), 1e17)::bigint AS completed,
           least(coalesce(sum(e.events) FILTER (WHERE e.status = 'COMPLETED_WITH_ERRORS'), 0), 1e17)::bigint AS completed_with_errors,
           least(coalesce(sum(e.events) FILTER (WHERE e.status = 'FAILED'), 0), 1e17)::bigint AS failed,
           round(sum(e.attempts) / nullif(sum(e.events), 0), 2)::float8 AS attempts_per_event,
           round(coalesce(sum(e.events) FILTER (WHERE e.status <> 'COMPLETED'), 0) / nullif(sum(e.events), 0), 4)::float8 AS failure_rate
      FROM @tidegate.ended(statement_timestamp() - interval '1 hour') AS e
     GROUP BY e.kind
), latest AS (
    SELECT coalesce(k.kind, '(unregistered)') AS kind,
           -- Takes any two times, unlike a minus.
           percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY tstzrange_subdiff(l.finished_at, l.created_at)) AS latency
      FROM (SELECT e.kind, e.created_at, e.finished_at FROM @tidegate.event_log AS e
             WHERE e.finished_at > statement_timestamp() - interval '1 hour'
               -- Without an attempt: put off, and nothing was done.
               AND (e.attempts > 0 OR e.status <> 'COMPLETED')
             LIMIT 100000) AS l
      LEFT JOIN @tidegate.event_kind AS k ON k.kind = l.kind
     GROUP BY 1
)
SELECT kind,
       coalesce(live.events - live.running - live.delayed, 0) AS pending,
       coalesce(live.running, 0) AS processing,
       coalesce(live.delayed, 0) AS delayed,
       coalesce(live.max_attempts_used, 0) AS max_attempts_used,
       (extract(epoch FROM clock_timestamp() - live.oldest) * 1000)::bigint AS oldest_age_ms,
       coalesce(finished.completed, 0) AS completed,
       coalesce(finished.completed_with_errors, 0) AS completed_with_errors,
       coalesce(finished.failed, 0) AS failed,
       finished.attempts_per_event,
       (latest.latency[1] * 1000)::bigint AS latency_p50_ms,
       (latest.latency[2] * 1000)::bigint AS latency_p95_ms,
       (latest.latency[3] * 1000)::bigint AS latency_p99_ms,
       finished.failure_rate,
       coalesce(live.events, 0) AS events,
       coalesce(live.stuck, 0) AS stuck,
       coalesce(event_kind.paused, false) AS paused
  FROM @tidegate.event_kind
  FULL JOIN @tidegate.depths() AS live USING (kind)
  FULL JOIN finished USING (kind)
  FULL JOIN latest USING (kind)
$$;
COMMENT ON FUNCTION @tidegate.figures_by_kind IS 'The rows of the view stats.';

CREATE VIEW @tidegate.stats AS SELECT * FROM @tidegate.figures_by_kind();
COMMENT ON VIEW @tidegate.stats IS
    'One row per kind: the live events, of the 100,000 with the lowest ids, and the results of those that ended since the minute '
    'that began an hour ago.';
COMMENT ON COLUMN @tidegate.stats.kind IS 'The kind of event; (unregistered) for all kinds that nobody has registered.';
COMMENT ON COLUMN @tidegate.stats.pending IS 'Events that are ready and not leased.';
COMMENT ON COLUMN @tidegate.stats.processing IS 'Leased events.';
COMMENT ON COLUMN @tidegate.stats.delayed IS 'Events that wait for their time, a retry, or other events.';
COMMENT ON COLUMN @tidegate.stats.max_attempts_used IS 'The most attempts that any live event has had.';
COMMENT ON COLUMN @tidegate.stats.oldest_age_ms IS
    'Milliseconds since the oldest live event was published. Null: there are no live events.';
COMMENT ON COLUMN @tidegate.stats.completed IS 'Events that ended COMPLETED within the last hour.';
COMMENT ON COLUMN @tidegate.stats.completed_with_errors IS 'Events that ended COMPLETED_WITH_ERRORS within the last hour.';
COMMENT ON COLUMN @tidegate.stats.failed IS 'Events that ended FAILED within the last hour.';
COMMENT ON COLUMN @tidegate.stats.attempts_per_event IS 'The mean number of attempts of the events that ended within the last hour.';
COMMENT ON COLUMN @tidegate.stats.latency_p50_ms IS 'The median of their times from publish to end, of at most 100,000, in milliseconds.';
COMMENT ON COLUMN @tidegate.stats.latency_p95_ms IS 'The 95th percentile of their times from publish to end, in milliseconds.';
COMMENT ON COLUMN @tidegate.stats.latency_p99_ms IS 'The 99th percentile of their times from publish to end, in milliseconds.';
COMMENT ON COLUMN @tidegate.stats.failure_rate IS 'The share of them that did not end COMPLETED, 0 to 1.';
COMMENT ON COLUMN @tidegate.stats.events IS 'All live events of the kind: pending, processing and delayed.';
COMMENT ON COLUMN @tidegate.stats.stuck IS 'Leased events whose worker has not renewed its lease in time.';
COMMENT ON COLUMN @tidegate.stats.paused IS 'True: drains do not lease events of the kind.';

-- The queue is counted once for all services, and not at all while all are called.
CREATE VIEW @tidegate.services AS
WITH live AS MATERIALIZED (
    SELECT q.kind, count(*) AS events, min(q.created_at) AS oldest
      FROM (SELECT e.kind, e.created_at FROM @tidegate.event_queue AS e ORDER BY e.id LIMIT 100000) AS q GROUP BY q.kind)
SELECT s.service, s.state, s.since, s.failures, s.retry_at, s.answered_at, s.last_error, s.kinds, s.max_running, s.per_second,
       (SELECT coalesce(sum(p.places), 0) FROM @tidegate.service_place AS p
         WHERE p.service = s.service AND p.until >= clock_timestamp()) AS places,
       w.waiting, w.oldest
  FROM @tidegate.service AS s
 CROSS JOIN LATERAL (SELECT coalesce(sum(l.events), 0)::bigint AS waiting, min(l.oldest) AS oldest FROM live AS l
                      WHERE s.state <> 'closed' AND l.kind = ANY (s.kinds)) AS w;
COMMENT ON VIEW @tidegate.services IS 'Outside services that handlers call and that have failed, are limited, or were paused.';
COMMENT ON COLUMN @tidegate.services.places IS 'How many of its places workers hold now.';
COMMENT ON COLUMN @tidegate.services.waiting IS 'How many of the 100,000 events with the lowest ids wait for it.';
COMMENT ON COLUMN @tidegate.services.oldest IS 'When the oldest of them was published. Null: none waits.';

CREATE TABLE @tidegate.drain_run (
    worker      uuid        NOT NULL,
    started_at  timestamptz NOT NULL,
    ended_at    timestamptz NOT NULL,
    stop_reason text        NOT NULL,
    report      json        NOT NULL
);
COMMENT ON TABLE @tidegate.drain_run IS
    'Drains of the last week that ran to their end. A drain that was killed or that found no slot has no row.';
COMMENT ON COLUMN @tidegate.drain_run.worker IS 'The drain''s id in leases and slots.';
COMMENT ON COLUMN @tidegate.drain_run.started_at IS 'When it began.';
COMMENT ON COLUMN @tidegate.drain_run.ended_at IS 'When it ended.';
COMMENT ON COLUMN @tidegate.drain_run.stop_reason IS 'Why it ended, such as queue_empty or budget_spent; failed if it failed, with the error in its report.';
COMMENT ON COLUMN @tidegate.drain_run.report IS 'Its report.';

CREATE INDEX drain_run_ended_at ON @tidegate.drain_run (ended_at);

-- Stores the report of a drain that is ending. The commit does not wait for the disk, because a row lost in a
-- crash does no harm.
CREATE FUNCTION @tidegate.note_run(worker uuid, report json) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO @tidegate.drain_run
    SELECT note_run.worker, instant - make_interval(secs => (report->>'elapsed_ms')::double precision / 1000), instant,
           coalesce(report->>'stop_reason', 'failed'), report
     WHERE report IS NOT NULL;
END $$;

-- What the roles may do here; see roles.sql.
GRANT SELECT ON @tidegate.minute_stats TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT SELECT ON @tidegate.drain_run, @tidegate.daily_stats TO @tidegate_operate, @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.count_ended, @tidegate.count_completed, @tidegate.add_figures,
    @tidegate.latency_bounds, @tidegate.note_run TO @tidegate_drain;
GRANT SELECT ON @tidegate.services TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT SELECT ON @tidegate.stats, @tidegate.blocked_groups TO @tidegate_operate, @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.depths, @tidegate.figures_since, @tidegate.ended TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.blocked, @tidegate.figures_by_kind, @tidegate.waiting_behind TO @tidegate_operate, @tidegate_read;
