-- Figures that nobody has to count the log for: what ended in each minute, and the drains that have run.

-- What ended, by minute, kind, status and latency. `within_ms` is the upper bound of a latency from publish to end; null is
-- beyond the last bound. Written in the transaction that ends the events, so the sums are exact.
--
-- There is no unique key: a flush that finds its row locked adds another one and waits for nobody, however long a handler keeps its
-- transaction open. So readers always sum. The cleanup folds minutes older than two hours into hours, and hours older
-- than two days into days; `minute` is then where the hour or day begins (UTC). Nothing is ever subtracted.
CREATE TABLE tidegate.minute_stats (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    minute     timestamptz NOT NULL,
    kind       text        NOT NULL,
    status     text        NOT NULL,
    within_ms  bigint,
    events     bigint      NOT NULL,
    attempts   bigint      NOT NULL,
    latency_ms bigint      NOT NULL
-- Rows of this minute change with every flush: room on their page keeps that out of the indexes.
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX minute_stats_minute ON tidegate.minute_stats (minute, kind, status);

-- Which bucket a latency belongs to, counted from 0.
CREATE FUNCTION tidegate.latency_bucket(latency_ms bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN width_bucket(latency_ms, '{51,251,1001,5001,30001,120001,600001,3600001}'::bigint[]);

-- Adds events that a transaction has ended at `instant` to the figures of this minute; no event, null, adds nothing.
-- SECURITY DEFINER: whoever may end events may add to the figures by this way alone.
CREATE FUNCTION tidegate.count_ended(kinds text[], statuses text[], attempts integer[], created_ats timestamptz[], instant timestamptz)
    RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
        SET enable_seqscan = off SET jit = off
    AS $$
#variable_conflict use_column
DECLARE
    now CONSTANT timestamptz := date_trunc('minute', clock_timestamp());
    bounds CONSTANT bigint[] := '{50,250,1000,5000,30000,120000,600000,3600000}';
BEGIN
    IF kinds IS NULL THEN
        RETURN;
    END IF;
    WITH ended AS (
        SELECT t.kind, t.status, bounds[tidegate.latency_bucket(t.ms) + 1] AS within_ms, count(*) AS events, sum(t.attempts) AS attempts,
               sum(t.ms) AS latency_ms
          FROM (SELECT e.kind, e.status, e.attempts, tidegate.latency_ms(e.created_at, instant) AS ms
                  FROM unnest(kinds, statuses, count_ended.attempts, created_ats) AS e(kind, status, attempts, created_at) OFFSET 0) AS t
         GROUP BY 1, 2, 3
    ), placed AS MATERIALIZED (
        SELECT e.*, row.id FROM ended AS e
          LEFT JOIN LATERAL (
               SELECT m.id FROM tidegate.minute_stats AS m
                WHERE m.minute = now AND m.kind = e.kind AND m.status = e.status AND m.within_ms IS NOT DISTINCT FROM e.within_ms
                LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS row ON true
    ), added AS (
        UPDATE tidegate.minute_stats AS m
           SET events = m.events + p.events, attempts = m.attempts + p.attempts, latency_ms = m.latency_ms + p.latency_ms
          FROM placed AS p WHERE m.id = p.id)
    INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
    SELECT now, p.kind, p.status, p.within_ms, p.events, p.attempts, p.latency_ms FROM placed AS p WHERE p.id IS NULL;
END $$;

-- Folds up to `most` rows of minutes and hours that are long over into hours and days, and tells how many rows that were.
-- Waits for nobody: a row that is locked is folded the next time.
CREATE FUNCTION tidegate.fold_figures(most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    unit text;
    folded bigint;
    total bigint := 0;
BEGIN
    FOREACH unit IN ARRAY ARRAY['hour', 'day'] LOOP
        WITH old AS MATERIALIZED (
            SELECT m.id FROM tidegate.minute_stats AS m
             WHERE m.minute < date_trunc(unit, instant - CASE unit WHEN 'hour' THEN interval '2 hours' ELSE interval '2 days' END, 'UTC')
               AND m.minute <> date_trunc(unit, m.minute, 'UTC')
             LIMIT most FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM tidegate.minute_stats AS m WHERE m.id IN (SELECT o.id FROM old AS o)
            RETURNING date_trunc(unit, m.minute, 'UTC') AS start, m.kind, m.status, m.within_ms, m.events, m.attempts, m.latency_ms
        ), kept AS (
            INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
            SELECT g.start, g.kind, g.status, g.within_ms, sum(g.events), sum(g.attempts), sum(g.latency_ms)
              FROM gone AS g GROUP BY 1, 2, 3, 4)
        SELECT count(*) INTO folded FROM gone;
        total := total + folded;
    END LOOP;
    RETURN total;
END $$;

-- Drains that came to their end, with their reports. One that was killed has no row here.
CREATE TABLE tidegate.drain_run (
    worker      uuid        NOT NULL,
    started_at  timestamptz NOT NULL,
    ended_at    timestamptz NOT NULL,
    stop_reason text        NOT NULL,
    report      json        NOT NULL
);
CREATE INDEX drain_run_ended_at ON tidegate.drain_run (ended_at);

-- Notes a drain that ends now. Its commit waits for no disk: a note that a crash takes along is no loss.
CREATE FUNCTION tidegate.note_run(worker uuid, report json) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO tidegate.drain_run
    SELECT note_run.worker, instant - make_interval(secs => (report->>'elapsed_ms')::double precision / 1000), instant,
           report->>'stop_reason', report
     WHERE report IS NOT NULL;
END $$;

-- Forgets drains that ended more than a week ago, `most` of them at a time.
CREATE FUNCTION tidegate.forget_runs(most integer) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    WITH gone AS (
        DELETE FROM tidegate.drain_run AS r
         WHERE r.ctid = ANY (ARRAY(SELECT o.ctid FROM tidegate.drain_run AS o
                                    WHERE o.ended_at < clock_timestamp() - interval '7 days' LIMIT most))
        RETURNING 1)
    SELECT count(*) FROM gone
$$;
