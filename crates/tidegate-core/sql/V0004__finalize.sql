-- Ending events, and returning them to the queue after an attempt. Every write goes through the lease row. An
-- event that has left the lease is not changed, and neither is one that an operator has taken from it
-- (lease_cut). An operator locks the event's row before he commits, so a write that waited for this row looks
-- at lease_cut once more when it has it.

-- Appends new errors to errors. Each gets the time at which it was stored. Null appends nothing.
CREATE FUNCTION @tidegate.append_errors(errors jsonb, added jsonb, at timestamptz) RETURNS jsonb
    LANGUAGE sql STABLE
    RETURN CASE WHEN added IS NULL THEN errors
                ELSE errors || (SELECT coalesce(jsonb_agg(e || jsonb_build_object('at', at)), '[]')
                                  FROM jsonb_array_elements(added) AS e) END;

-- Merges two progresses. If both have an entry, the added one wins. Null adds nothing.
CREATE FUNCTION @tidegate.merge_progress(progress jsonb, added jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN added IS NULL THEN progress
                WHEN progress IS NULL THEN added
                ELSE jsonb_build_object(
                     'handlers', coalesce(progress->'handlers', '{}') || coalesce(added->'handlers', '{}'),
                     'steps', coalesce(progress->'steps', '{}') || coalesce(added->'steps', '{}'))
                     || CASE WHEN progress ? 'deferred' OR added ? 'deferred' THEN jsonb_build_object(
                     'deferred', coalesce(progress->'deferred', '{}') || coalesce(added->'deferred', '{}')) ELSE '{}' END
                     || (progress - ARRAY['handlers', 'steps', 'deferred']) || (added - ARRAY['handlers', 'steps', 'deferred']) END;

-- Moves events that completed without results or follow-ups to the log. It also starts more events of leases,
-- and marks leases without events in hand as ended. Each array has one element for each lease, in the order
-- of the tokens, which is also the lock order:
--
--   done    the completed events, as ranges; other ids in these ranges do no harm
--   upto    handlers of events up to this id are about to start; null changes nothing
--   over    the worker holds no event of this lease any more. The lease is not marked as ended if it still
--           contains an event: a free event without a mark would be lost to the order of its group.
--
-- It waits for the row of an event for 250 ms at most. The caller then ends the events by finalize_leased(),
-- which leaves those that another session has locked.
--
-- Returns two numbers for each lease: how many of the events that it held are now in the log, and `cuts`,
-- which is how often events were taken away from the lease, or null if the lease is gone. If a worker sees a
-- new cut, or an event that was no longer held, it must read all of its leases again before it starts another
-- event. The later events of that group have left too, from any of its leases.
CREATE FUNCTION @tidegate.complete(tokens uuid[], done int8multirange[], upto bigint[], over boolean[],
                                  OUT ended bigint[], OUT cuts integer[])
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
    SET lock_timeout = '250ms'
    AS $$
#variable_conflict use_column
DECLARE
    -- Looked up once, not for each event. Usually no kind has its own retention.
    own_retention CONSTANT boolean := EXISTS (SELECT FROM @tidegate.event_kind WHERE retention_completed <> '30 days');
    instant CONSTANT timestamptz := clock_timestamp();
    -- Computed once: adding days to a time needs the time zone.
    usual_expiry CONSTANT timestamptz := instant + interval '30 days';
    bounds CONSTANT double precision[] := @tidegate.latency_bounds();
    lease record;
    gone record;
BEGIN
    IF EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = ANY (tokens)) THEN
        -- The worker learns of it before it starts another event: `cuts` changes. Not in a handler's
        -- transaction, which could keep the leases locked for long.
        IF array_remove(upto, NULL) <> '{}' THEN
            PERFORM @tidegate.apply_cuts();
        END IF;
        done := ARRAY(SELECT u.done - @tidegate.cuts_of(u.token) FROM unnest(tokens, done) WITH ORDINALITY AS u(token, done, n) ORDER BY u.n);
    END IF;
    FOR n IN 1 .. cardinality(tokens) LOOP
        IF over[n] THEN
            SELECT l.ids, l.taken_at, l.cuts INTO lease FROM @tidegate.lease AS l WHERE l.token = tokens[n] FOR NO KEY UPDATE;
        ELSIF upto[n] IS NOT NULL THEN
            UPDATE @tidegate.lease AS l SET started_to = greatest(l.started_to, upto[n]) WHERE l.token = tokens[n]
            RETURNING l.ids, l.taken_at, l.cuts INTO lease;
        ELSE
            SELECT l.ids, l.taken_at, l.cuts INTO lease FROM @tidegate.lease AS l WHERE l.token = tokens[n] FOR KEY SHARE;
        END IF;
        cuts[n] := lease.cuts;
        ended[n] := 0;
        IF lease.ids IS NOT NULL AND NOT isempty(done[n]) THEN
            WITH gone AS (
                DELETE FROM @tidegate.event_queue AS q USING unnest(lease.ids * done[n]) AS r
                 WHERE q.id >= lower(r) AND q.id < upper(r) RETURNING q.*
            ), logged AS (
                INSERT INTO @tidegate.event_log
                SELECT r.*
                  FROM gone AS g
                 CROSS JOIN LATERAL (
                       SELECT CASE WHEN own_retention
                                   THEN instant + coalesce((SELECT k.retention_completed FROM @tidegate.event_kind AS k WHERE k.kind = g.kind), '30 days')
                                   ELSE usual_expiry END AS until) AS kept
                 CROSS JOIN LATERAL @tidegate.log_row(g::@tidegate.event_queue, 'COMPLETED', g.attempts + 1, g.errors, NULL, g.progress,
                                                     lease.taken_at, instant, kept.until, tokens[n]) AS r
            -- From the removed rows, not from RETURNING of the insert: that costs twice as much.
            ), counted AS (
                SELECT g.kind, width_bucket(tstzrange_subdiff(g.created_at, instant), bounds) AS bucket, count(*) AS events,
                       sum(g.attempts + 1) AS attempts,
                       sum(tstzrange_subdiff(instant, g.created_at)) FILTER (WHERE isfinite(g.created_at)) AS latency
                  FROM gone AS g GROUP BY 1, 2)
            SELECT array_agg(c.kind) AS kinds, array_agg('COMPLETED'::text) AS statuses, array_agg(c.bucket) AS buckets,
                   array_agg(c.events) AS events, array_agg(c.attempts) AS attempts, array_agg(c.latency) AS latencies,
                   coalesce(sum(c.events), 0)::bigint AS total
              INTO gone FROM counted AS c;
            ended[n] := gone.total;
            PERFORM @tidegate.add_figures(gone.kinds, gone.statuses, gone.buckets, gone.events, gone.attempts, gone.latencies);
        END IF;
        -- Nested, so that no plan begins at the queue.
        IF over[n] AND lease.ids IS NOT NULL AND NOT EXISTS (
            SELECT FROM unnest(lease.ids - done[n]) AS r
             WHERE EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id >= lower(r) AND q.id < upper(r) OFFSET 0)) THEN
            UPDATE @tidegate.lease AS l SET ended = true WHERE l.token = tokens[n];
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = ANY (tokens)) THEN
        PERFORM @tidegate.refuse_new_cuts(tokens, done);
    END IF;
END $$;
COMMENT ON FUNCTION @tidegate.complete IS 'Moves completed events of leases to the log.';

-- Returns the ids that operators have taken from a lease.
CREATE FUNCTION @tidegate.cuts_of(token uuid) RETURNS int8multirange
    LANGUAGE sql STABLE AS $$
    SELECT coalesce(range_agg(int8range(c.id, c.id, '[]')), '{}') FROM @tidegate.lease_cut AS c WHERE c.token = cuts_of.token
$$;

-- Rolls back the ends of events that an operator took while they were being ended. The caller tries again.
CREATE FUNCTION @tidegate.refuse_new_cuts(tokens uuid[], done int8multirange[]) RETURNS void
    LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM unnest(tokens, done) AS u(token, done)
                 JOIN @tidegate.lease_cut AS c ON c.token = u.token AND c.id <@ u.done) THEN
        RAISE EXCEPTION 'an operator has just taken one of these events' USING ERRCODE = 'lock_not_available';
    END IF;
END $$;

-- Moves one completed event to the log, within its handler's transaction. For one event without what a batch
-- needs, because every handler's transaction waits for it: half the time of complete(). The transaction must
-- not commit if the lease is lost. Whether the event has left the lease, or an operator has taken it, is
-- looked up when its row is locked: whoever did so has committed by then, and nobody can any more.
CREATE FUNCTION @tidegate.complete_held(id bigint, token uuid) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET lock_timeout = '250ms'
    AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    gone record;
BEGIN
    WITH lease AS MATERIALIZED (
        SELECT l.taken_at FROM @tidegate.lease AS l WHERE l.token = complete_held.token AND l.ids @> complete_held.id
    ), gone AS (
        DELETE FROM @tidegate.event_queue AS q USING lease WHERE q.id = complete_held.id RETURNING q.*
    ), logged AS (
        INSERT INTO @tidegate.event_log
        SELECT r.*
          FROM gone AS g
         CROSS JOIN lease AS l
          LEFT JOIN @tidegate.event_kind AS k ON k.kind = g.kind
         CROSS JOIN LATERAL @tidegate.log_row(g::@tidegate.event_queue, 'COMPLETED', g.attempts + 1, g.errors, NULL, g.progress,
                                             l.taken_at, instant, instant + coalesce(k.retention_completed, '30 days'),
                                             complete_held.token) AS r)
    SELECT g.kind, g.attempts + 1 AS attempts, g.created_at INTO gone FROM gone AS g;
    IF gone.kind IS NULL
       OR NOT EXISTS (SELECT FROM @tidegate.lease AS l WHERE l.token = complete_held.token AND l.ids @> complete_held.id)
       OR EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = complete_held.token AND c.id = complete_held.id) THEN
        RAISE EXCEPTION 'event %: the lease was lost', complete_held.id USING ERRCODE = 'TG001';
    END IF;
    PERFORM @tidegate.count_completed(gone.kind, gone.attempts, gone.created_at, instant);
END $$;

-- The groups of a list to which another transaction is publishing. Locks the slots of all other groups. It
-- gets in line for a moment, because most producers commit at once, and a group with many of them is never
-- free otherwise. A producer may hold the slot of a group as long as it likes: only events of that group wait
-- for it.
CREATE FUNCTION @tidegate.busy_groups(group_keys text[]) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
    busy text[];
BEGIN
    WITH asked AS (
        SELECT DISTINCT u.key, @tidegate.mutex_slot(u.key) AS slot FROM unnest(group_keys) AS u(key) WHERE u.key IS NOT NULL
    ), locked AS MATERIALIZED (
        SELECT m.slot FROM @tidegate.mutex AS m WHERE m.slot = ANY (ARRAY(SELECT a.slot FROM asked AS a))
         ORDER BY m.slot FOR UPDATE SKIP LOCKED
    )
    SELECT coalesce(array_agg(a.key), '{}') INTO busy
      FROM asked AS a WHERE NOT EXISTS (SELECT FROM locked AS l WHERE l.slot = a.slot);
    IF busy <> '{}' THEN
        BEGIN
            PERFORM @tidegate.lock_groups(busy);
            busy := '{}';
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            NULL;
        END;
    END IF;
    RETURN busy;
END $$;

-- Which of these events cannot end now: another transaction has their row, or is publishing to the group of a
-- follow-up, for longer than a moment. The rows of the others are locked. It runs with the settings of
-- finalize_leased(), which alone calls it.
CREATE FUNCTION @tidegate.busy_ends(event_ids bigint[], leased int8multirange, follow_ups @tidegate.follow_ups)
    RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    free bigint[];
    busy text[];
    busy_ids bigint[] := '{}';
BEGIN
    free := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q
                   WHERE q.id = ANY (event_ids) AND q.id <@ leased FOR UPDATE SKIP LOCKED);
    IF cardinality(free) < cardinality(event_ids) THEN
        busy_ids := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q
                           WHERE q.id = ANY (event_ids) AND q.id <@ leased AND q.id <> ALL (free));
    END IF;
    IF busy_ids <> '{}' THEN
        -- Mostly the scan of another lease, which is over in a moment.
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            PERFORM FROM @tidegate.event_queue AS q WHERE q.id = ANY (busy_ids) ORDER BY q.id FOR UPDATE;
            busy_ids := '{}';
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            NULL;
        END;
        PERFORM set_config('lock_timeout', '1s', true);
    END IF;
    IF cardinality(follow_ups.group_keys) > 0 THEN
        busy := @tidegate.busy_groups(follow_ups.group_keys);
        busy_ids := busy_ids || ARRAY(
            SELECT DISTINCT f.parent_id FROM unnest(follow_ups.parent_ids, follow_ups.group_keys) AS f(parent_id, group_key)
             WHERE f.group_key = ANY (busy));
    END IF;
    IF busy_ids <> '{}' THEN
        -- Nothing later of their groups ends before them.
        busy_ids := busy_ids || ARRAY(
            SELECT q.id FROM @tidegate.event_queue AS q
              JOIN (SELECT b.group_key, min(b.id) AS first FROM @tidegate.event_queue AS b
                     WHERE b.id = ANY (busy_ids) AND b.group_key IS NOT NULL GROUP BY b.group_key) AS held
                ON held.group_key = q.group_key
             WHERE q.id = ANY (event_ids) AND q.id > held.first AND q.id <> ALL (busy_ids));
    END IF;
    RETURN busy_ids;
END $$;

-- Moves finished events of a lease to the log and publishes their follow-ups. `rans` states whether a
-- handler ended the event: an event that expired or was given up has used no attempt. `waits`: this is a
-- handler's transaction. It locks no lease, and waits if another transaction is publishing to the group of a
-- follow-up. Otherwise the event stays unchanged and is named in `busy_ids` if that lasts for longer than a
-- moment, as are events whose row another transaction has locked for as long. `ended_ids` are now in the log.
-- All others were no longer held.
--
-- A follow-up with a deduplication key may wait for a transaction that publishes the same key, for at most
-- one second.
CREATE FUNCTION @tidegate.finalize_leased(
    token uuid, ids bigint[], statuses text[], rans boolean[], error_lists text[], results text[], progresses text[], waits boolean,
    follow_ups @tidegate.follow_ups DEFAULT NULL,
    OUT ended_ids bigint[], OUT busy_ids bigint[], OUT published bigint, OUT cuts integer
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    lease record;
    instant CONSTANT timestamptz := clock_timestamp();
    put record;
BEGIN
    ended_ids := '{}';
    busy_ids := '{}';
    published := 0;
    IF NOT statuses <@ ARRAY['COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED'] THEN
        RAISE EXCEPTION 'status: must be COMPLETED, COMPLETED_WITH_ERRORS or FAILED' USING ERRCODE = 'check_violation';
    END IF;
    IF NOT waits THEN
        PERFORM FROM @tidegate.lease AS l WHERE l.token = finalize_leased.token FOR KEY SHARE;
    END IF;
    SELECT l.ids, l.taken_at, l.cuts INTO lease FROM @tidegate.lease AS l WHERE l.token = finalize_leased.token;
    cuts := lease.cuts;
    IF lease.ids IS NULL THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = finalize_leased.token) THEN
        lease.ids := lease.ids - @tidegate.cuts_of(finalize_leased.token);
    END IF;
    IF NOT waits THEN
        busy_ids := @tidegate.busy_ends(finalize_leased.ids, lease.ids, follow_ups);
    END IF;
    -- What became of an event is looked up by its place in the lists. A join with their rows compared each
    -- with each, because Postgres expects few.
    WITH gone AS (
        DELETE FROM @tidegate.event_queue AS q
         WHERE q.id = ANY (finalize_leased.ids) AND q.id <> ALL (busy_ids) AND q.id <@ lease.ids
        RETURNING q AS event, array_position(finalize_leased.ids, q.id) AS n
    ), logged AS (
        INSERT INTO @tidegate.event_log
        SELECT r.*
          FROM gone AS g
          LEFT JOIN @tidegate.event_kind AS k ON k.kind = (g.event).kind
         CROSS JOIN LATERAL @tidegate.log_row(
               g.event, statuses[g.n], (g.event).attempts + rans[g.n]::int,
               -- Postgres plans these functions again in each call, so it calls them only where they add.
               CASE WHEN error_lists[g.n] IS NULL THEN (g.event).errors
                    ELSE @tidegate.append_errors((g.event).errors, error_lists[g.n]::jsonb, instant) END,
               results[g.n]::jsonb,
               CASE WHEN progresses[g.n] IS NULL THEN (g.event).progress
                    ELSE @tidegate.merge_progress((g.event).progress, progresses[g.n]::jsonb) END, lease.taken_at, instant,
               instant + CASE WHEN statuses[g.n] = 'COMPLETED' THEN coalesce(k.retention_completed, '30 days')
                              ELSE coalesce(k.retention_failed, '90 days') END, finalize_leased.token) AS r
        RETURNING id, kind, status, attempts, created_at, errors->-1->>'code' AS code
    ), put AS (
        SELECT @tidegate.publish_follow_ups(follow_ups, instant, p.ids, p.correlation_ids, p.traceparents) AS published
          FROM (SELECT array_agg((g.event).id) AS ids, array_agg((g.event).correlation_id) AS correlation_ids,
                       array_agg((g.event).traceparent) AS traceparents
                  FROM gone AS g WHERE cardinality(follow_ups.parent_ids) > 0 HAVING count(*) > 0) AS p)
    SELECT array_agg(l.id) AS ended, (SELECT p.published FROM put AS p) AS published,
           array_agg(l.kind) AS kinds, array_agg(l.attempts) AS attempts, array_agg(l.created_at) AS created_ats,
           array_agg(CASE WHEN l.status = 'COMPLETED' AND NOT rans[array_position(finalize_leased.ids, l.id)] THEN 'PUT_OFF'
                          ELSE l.status END) AS statuses,
           array_agg(l.code) AS codes
      INTO put FROM logged AS l;
    ended_ids := coalesce(put.ended, '{}');
    PERFORM @tidegate.count_ended(put.kinds, put.statuses, put.attempts, put.created_ats, instant, put.codes, put.ended);
    published := coalesce(put.published, 0);
    -- The rows are locked, so nothing leaves the lease any more. What has left since it was read, another
    -- worker may have.
    IF ended_ids <> '{}' AND NOT EXISTS (SELECT FROM @tidegate.lease AS l WHERE l.token = finalize_leased.token AND l.ids @> @tidegate.ranges(ended_ids)) THEN
        RAISE EXCEPTION 'lease %: it was lost', token USING ERRCODE = 'TG001';
    END IF;
    IF EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = finalize_leased.token) THEN
        PERFORM @tidegate.refuse_new_cuts(ARRAY[finalize_leased.token], ARRAY[@tidegate.ranges(ended_ids)]);
    END IF;
END $$;

-- Empties the columns of an event that the database cannot read, for example because a TOAST chunk is lost: a
-- move to the log would read them. Returns their names. SECURITY DEFINER is needed, because otherwise
-- the drain role would need the right to change payloads. It changes nothing that can be read.
CREATE FUNCTION @tidegate.drop_unreadable(id bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
    lost text[] := '{}';
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['payload', 'progress', 'errors', 'last_error', 'reported'] LOOP
        BEGIN
            EXECUTE format('SELECT length(q.%I::text) FROM @tidegate.event_queue AS q WHERE q.id = $1', name) USING drop_unreadable.id;
        EXCEPTION WHEN data_exception OR data_corrupted OR internal_error THEN
            lost := lost || name;
        END;
    END LOOP;
    IF lost = '{}' THEN
        RETURN '';
    END IF;
    EXECUTE format('UPDATE @tidegate.event_queue SET %s WHERE id = $1', (SELECT string_agg(format('%I = DEFAULT', l), ', ') FROM unnest(lost) AS l))
      USING drop_unreadable.id;
    RETURN array_to_string(lost, ', ');
END $$;
COMMENT ON FUNCTION @tidegate.drop_unreadable IS 'Empties the columns of an event that the database cannot read, and returns their names.';

-- Ends an event that cannot be read FAILED, with what can be read of it.
CREATE FUNCTION @tidegate.end_unreadable(token uuid, id bigint, message text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET lock_timeout = '250ms' AS $$
BEGIN
    PERFORM @tidegate.drop_unreadable(end_unreadable.id);
    RETURN (SELECT cardinality(f.ended_ids) > 0 FROM @tidegate.finalize_leased(
        end_unreadable.token, ARRAY[end_unreadable.id], ARRAY['FAILED'], ARRAY[false],
        ARRAY[jsonb_build_array(jsonb_build_object('handler', NULL, 'code', 'unreadable', 'message', end_unreadable.message,
                                                   'attempt', 0))::text],
        ARRAY[NULL::text], ARRAY[NULL::text], false) AS f);
END $$;

-- Returns events to the queue for a later try, with the progress they have made. Events that are no longer
-- under their tokens are left unchanged, because the worker may have leased them again. `charged`: an
-- attempt has ended normally, so the event is no longer suspected of killing its worker. `left_ids` are all
-- events that left the worker's leases, including later events of the same groups. It waits for no event:
-- `busy_ids` stay, because another session has locked them or a later event of their group. An event of a
-- group is not put off for longer than a publisher may plan it.
CREATE FUNCTION @tidegate.retry_leased(worker uuid, ids bigint[], tokens uuid[], charged boolean[], delays double precision[], last_errors text[],
                               error_lists text[], progresses text[], ran bigint[] DEFAULT '{}',
                               OUT left_ids bigint[], OUT busy_ids bigint[])
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET lock_timeout = '250ms'
    AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    held bigint[];
    free bigint[];
BEGIN
    PERFORM FROM @tidegate.lease AS l WHERE l.worker = retry_leased.worker ORDER BY l.token FOR UPDATE;
    held := ARRAY(SELECT o.id FROM unnest(retry_leased.ids, tokens) AS o(id, token)
                    JOIN @tidegate.lease AS l ON l.token = o.token AND l.worker = retry_leased.worker AND l.ids @> o.id
                   WHERE NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = o.token AND c.id = o.id));
    free := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (held) FOR NO KEY UPDATE SKIP LOCKED);
    SELECT h.left_ids, h.busy_ids INTO left_ids, busy_ids FROM @tidegate.hand_back(retry_leased.worker, free, ran => retry_leased.ran) AS h;
    busy_ids := busy_ids || ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (held) AND q.id <> ALL (free));
    UPDATE @tidegate.event_queue AS q
       SET attempts = q.attempts + o.charged::int, lapses = CASE WHEN o.charged THEN 0 ELSE q.lapses END, stray = true,
           available_at = instant + CASE WHEN q.group_key IS NULL THEN make_interval(secs => o.delay)
                                         ELSE least(make_interval(secs => o.delay), @tidegate.max_group_delay()) END, last_error = coalesce(o.last_error, q.last_error),
           -- An event that is put off repeatedly for the same reason adds no further errors.
           errors = CASE WHEN NOT o.charged AND q.last_error = o.last_error THEN q.errors
                         ELSE @tidegate.append_errors(q.errors, o.errors::jsonb, instant) END,
           progress = @tidegate.merge_progress(q.progress, o.progress::jsonb),
           -- Only an attempt that a service has put off goes on with the wait.
           waits_since = CASE WHEN NOT o.charged AND o.progress::jsonb ? 'deferred' THEN coalesce(q.waits_since, instant) END
      FROM unnest(retry_leased.ids, retry_leased.charged, delays, last_errors, error_lists, progresses)
           AS o(id, charged, delay, last_error, errors, progress)
     WHERE q.id = o.id AND q.id = ANY (free) AND q.id = ANY (left_ids);
END $$;

-- Saves the finished handlers and steps of a leased event. Returns whether the event is still held.
CREATE FUNCTION @tidegate.save_progress(id bigint, token uuid, progress text) RETURNS boolean
    LANGUAGE plpgsql SET enable_seqscan = off SET lock_timeout = '1s' AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM @tidegate.event_queue AS q WHERE q.id = save_progress.id FOR NO KEY UPDATE;
    -- A separate statement, so that it also sees what left the lease before we had the event's row.
    IF NOT EXISTS (SELECT FROM @tidegate.lease AS l WHERE l.token = save_progress.token AND save_progress.id <@ l.ids) THEN
        RETURN false;
    END IF;
    UPDATE @tidegate.event_queue AS q SET progress = @tidegate.merge_progress(q.progress, save_progress.progress::jsonb)
     WHERE q.id = save_progress.id
       AND NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = save_progress.token AND c.id = save_progress.id);
    RETURN FOUND;
END $$;

-- Records the progress that a handler reports. Returns false if the event is no longer held. It never waits
-- for a row that another session has locked, because the next report comes in a second.
CREATE FUNCTION @tidegate.report_progress(id bigint, token uuid, handler text, part double precision, note text) RETURNS boolean
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM @tidegate.lease AS l WHERE l.token = report_progress.token AND report_progress.id <@ l.ids FOR KEY SHARE SKIP LOCKED;
    IF EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = report_progress.token AND c.id = report_progress.id) THEN
        RETURN false;
    ELSIF NOT FOUND THEN
        RETURN EXISTS (SELECT FROM @tidegate.lease AS l WHERE l.token = report_progress.token AND report_progress.id <@ l.ids);
    END IF;
    UPDATE @tidegate.event_queue AS q
       SET reported = jsonb_build_object('handler', report_progress.handler, 'part', part, 'note', note, 'at', clock_timestamp())
     WHERE q.id = (SELECT o.id FROM @tidegate.event_queue AS o WHERE o.id = report_progress.id FOR NO KEY UPDATE SKIP LOCKED);
    -- A cancelled event is still in its lease, but no longer in the queue.
    RETURN FOUND OR EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id = report_progress.id);
END $$;

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.cuts_of, @tidegate.refuse_new_cuts, @tidegate.complete, @tidegate.complete_held,
    @tidegate.busy_groups, @tidegate.busy_ends, @tidegate.finalize_leased, @tidegate.drop_unreadable, @tidegate.end_unreadable,
    @tidegate.retry_leased, @tidegate.save_progress, @tidegate.report_progress, @tidegate.append_errors, @tidegate.merge_progress TO @tidegate_drain;
