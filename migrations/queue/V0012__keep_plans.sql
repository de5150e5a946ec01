-- The statements of the hot path as functions: a session plans each of them once and keeps the plan, also behind a
-- pooler, where a drain may prepare nothing. Planning took 1.1 ms of each lease and each finalize: a third of leasing
-- 100 events, three quarters of ending one in its handler's transaction.
--
-- The settings are part of each: the plan kept is the one that knows no parameter, for the planner prefers to
-- plan anew; a plan made while the queue was empty would read all of it ever after; and what is forbidden
-- (`enable_seqscan`) costs so much that the rest would be compiled. All run with the rights of their caller and leave the
-- search path alone: triggers that somebody has put on the tables find what they found before.

-- Looks at up to `page` ready events behind id `after` and takes up to `most` of them under `token`.
--
-- - `scan` locks candidates in id order and skips what others hold. MATERIALIZED, because a planner with stale
--   statistics may run an inlined subselect once per row and lease 41 rows for a limit of 2. FOR NO KEY UPDATE,
--   because FOR UPDATE also skips rows that a foreign-key check has touched.
--   The conditions stand inside a CASE, which the planner takes to pass every other row whatever it knows of them.
--   One by one, in a queue that was empty when its statistics were made, it multiplies them to next to nothing and
--   sorts the whole table instead of walking its index: a lease of 1,000 in 200,000 took 123 ms, with the CASE 9 ms.
-- - `cut` finds, with one probe per group of the chunk, the group's first live row that is not in the scan: locked,
--   leased, delayed or blocked by others. What stands behind it is not leased. Rows that this drain itself holds
--   (`held`) do not cut: they are ahead in its own group queue.
-- - Groups of which nothing could be leased are told, and the caller names those met before in `passed`: their other
--   rows are passed without a lock and a probe each.
-- - Where no event has a group, which the database sees before it looks for any, there is nothing to cut and to
--   choose: a twentieth less work.
-- - The lease's predicate stands in the scan and again in the update.
-- - Kinds that are registered but unknown to this program (`kinds`) or paused are left alone; a kind that nobody
--   registered passes, so that the drain can end it. (NOT IN and not <> ALL (ARRAY(...)): of the latter the planner
--   expects that nothing passes in a queue of one kind, and sorts the whole table instead of walking its index.)
-- - Expired and exhausted events are taken too, without counting an attempt, so that they end without a scan of
--   their own.
--
-- There is always at least one row, which carries how far the scan came.
CREATE FUNCTION tidegate.lease(
    after bigint, page bigint, token uuid, held uuid[], seconds double precision, kinds text[], moment timestamptz,
    most bigint, passed text[]
) RETURNS TABLE (scanned bigint, last_id bigint, blocked text[], id bigint, fate integer, kind text, payload jsonb,
                 group_key text, correlation_id text, attempts integer, max_attempts integer, created_at timestamptz,
                 expires_at timestamptz, progress jsonb, traceparent text)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH clock AS MATERIALIZED (
        SELECT coalesce(moment, clock_timestamp()) AS now
    ), scan AS MATERIALIZED (
        SELECT q.id, q.group_key,
               q.attempts >= q.max_attempts AS spent
          FROM tidegate.event_queue AS q
         WHERE NOT q.delayed
           AND q.id > after
           AND CASE WHEN q.available_at <= (SELECT now FROM clock)
                     AND (q.lease_expires_at IS NULL OR q.lease_expires_at <= (SELECT now FROM clock))
                     AND (q.lease_token IS NULL OR q.lease_token <> ALL (held))
                     AND q.kind NOT IN (SELECT k.kind FROM tidegate.event_kind AS k
                                         WHERE k.paused OR k.kind <> ALL (kinds))
                     AND (q.group_key IS NULL OR q.group_key NOT IN (SELECT b.group_key FROM unnest(passed) AS b(group_key)))
                    THEN true ELSE false END
         ORDER BY q.id
         LIMIT page
           FOR NO KEY UPDATE SKIP LOCKED
    ), cut AS MATERIALIZED (
        SELECT g.group_key, ahead.id, ahead.id < g.first AS blocks
          FROM (SELECT group_key, min(id) AS first, max(id) AS last FROM scan WHERE group_key IS NOT NULL GROUP BY group_key) AS g
         CROSS JOIN LATERAL (
               SELECT b.id
                 FROM tidegate.event_queue AS b
                WHERE b.group_key = g.group_key
                  AND b.id < g.last
                  AND (b.lease_token IS NULL OR b.lease_token <> ALL (held))
                  AND b.id NOT IN (SELECT id FROM scan)
                ORDER BY b.id
                LIMIT 1) AS ahead
    ), chosen AS MATERIALIZED (
        SELECT scan.id
          FROM scan
          LEFT JOIN cut USING (group_key)
         WHERE cut.id IS NULL OR scan.id < cut.id
         ORDER BY scan.id
         LIMIT most
    ), leased AS (
        UPDATE tidegate.event_queue AS q
           SET status = 'PROCESSING',
               attempts = q.attempts + CASE WHEN q.attempts < q.max_attempts
                              AND (q.expires_at IS NULL OR q.expires_at > (SELECT now FROM clock)) THEN 1 ELSE 0 END,
               processing_started_at = (SELECT now FROM clock),
               updated_at = (SELECT now FROM clock),
               lease_token = token,
               lease_expires_at = (SELECT now FROM clock) + make_interval(secs => seconds)
         WHERE q.id = ANY (CASE WHEN EXISTS (SELECT FROM scan WHERE group_key IS NOT NULL)
                                THEN ARRAY(SELECT id FROM chosen)
                                ELSE ARRAY(SELECT id FROM scan LIMIT most) END)
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
      LEFT JOIN leased ON true;
END $$;
REVOKE ALL ON FUNCTION tidegate.lease FROM PUBLIC;

-- Moves completed events that leave nothing but their rows to the log; tells how many were held and are there
-- now. Whose lease an event must be under is told by token and, from the second token on, by the first id
-- under it: ids come in order, and a batch holds few leases. Retention is looked up by kind only if there is a
-- kind with one of its own; a join would copy every row once more.
CREATE FUNCTION tidegate.complete(ids bigint[], tokens uuid[], firsts bigint[]) RETURNS bigint
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
DECLARE
    ended bigint;
BEGIN
    WITH gone AS (
        DELETE FROM tidegate.event_queue AS q
         WHERE q.id = ANY (ids) AND q.lease_token = tokens[1 + width_bucket(q.id, firsts)]
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
      FROM gone AS g;
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END $$;
REVOKE ALL ON FUNCTION tidegate.complete FROM PUBLIC;

-- The same for one event within the transaction of its handler, which must not commit if the lease is lost.
CREATE FUNCTION tidegate.complete_held(id bigint, token uuid) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF tidegate.complete(ARRAY[complete_held.id], ARRAY[complete_held.token], '{}') = 0 THEN
        RAISE EXCEPTION 'event %: the lease was lost', complete_held.id USING ERRCODE = 'TG001';
    END IF;
END $$;
REVOKE ALL ON FUNCTION tidegate.complete_held FROM PUBLIC;

-- Moves finished events to the log and publishes their follow-ups, in one statement: an event is never in both places
-- nor in neither, and follow-ups exist exactly if their parent ended (A14, A17). What does not come back was not ours
-- any more; when all of it was, only their number comes back, as a row for each costs 0.4 us an event. The two
-- functions are called only for rows that need them: Postgres cannot inline them, and a call costs more than the
-- rest of the row's move. `removed` is no join with `outcome`, also not for the planner, who sees none through a CASE:
-- while the queue is empty it would join the two by reading all of the queue's index.
CREATE FUNCTION tidegate.finalize(
    ids bigint[], tokens uuid[], statuses text[], error_lists text[], results text[], progresses text[],
    next_parent_ids bigint[], next_kinds text[], next_payloads text[], next_group_keys text[], next_dedup_keys text[],
    next_correlation_ids text[], next_delays double precision[], next_expires_ats timestamptz[],
    next_max_attempts integer[], next_expires_in double precision[], next_traceparents text[]
) RETURNS TABLE (published bigint, ended bigint, ended_ids bigint[], ended_tokens uuid[])
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH outcome AS MATERIALIZED (
        SELECT o.*, clock_timestamp() AS now
          FROM unnest(ids, tokens, statuses, error_lists, results, progresses)
               AS o(id, token, status, errors, result, progress)
    ), removed AS (
        DELETE FROM tidegate.event_queue AS q
         WHERE q.id = ANY (ids)
           AND CASE WHEN (q.id, q.lease_token) IN (SELECT o.id, o.token FROM outcome AS o) THEN true ELSE false END
        RETURNING q.*
    ), gone AS (
        SELECT q.*, o.status AS final_status, o.errors AS new_errors, o.result, o.progress AS new_progress, o.now
          FROM removed AS q
          JOIN outcome AS o ON o.id = q.id AND o.token = q.lease_token
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
          FROM unnest(next_parent_ids, next_kinds, next_payloads, next_group_keys, next_dedup_keys, next_correlation_ids,
                      next_delays, next_expires_ats, next_max_attempts, next_expires_in, next_traceparents) WITH ORDINALITY
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
           CASE WHEN count(*) < cardinality(ids) THEN array_agg(logged.id) END,
           CASE WHEN count(*) < cardinality(ids) THEN array_agg(logged.lease_token) END
      FROM logged;
END $$;
REVOKE ALL ON FUNCTION tidegate.finalize FROM PUBLIC;
