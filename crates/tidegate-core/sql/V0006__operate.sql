-- Operations: replay, requeue, unblock, pause, resume and retire, and remarks on events. Each is one
-- function, so that its changes and its audit row are always in one transaction. The right to operate is the
-- right to execute the function: an operator needs no rights on the tables (SECURITY DEFINER).
--
-- An invalid argument raises an error. A valid call that finds nothing to do returns a report with the
-- reason, so that its audit row is kept.

-- Refuses an invalid reason or actor.
CREATE FUNCTION @tidegate.check_operator(reason text, actor text, reason_is_needed boolean) RETURNS void
    LANGUAGE sql AS $$
    SELECT @tidegate.refuse(CASE
        WHEN reason_is_needed AND btrim(coalesce(reason, ''), E' \t\r\n') = ''
            THEN 'reason: must be a text that says why, got ' || CASE WHEN reason IS NULL THEN 'none' ELSE 'a blank text' END
        WHEN char_length(reason) > 1000 THEN 'reason: must have at most 1000 characters, got ' || char_length(reason)
        WHEN char_length(actor) NOT BETWEEN 1 AND 200 THEN 'actor: must have 1 to 200 characters, got ' || char_length(actor) END)
$$;

-- Refuses invalid ids.
CREATE FUNCTION @tidegate.check_ids(ids bigint[]) RETURNS void
    LANGUAGE sql AS $$
    SELECT @tidegate.refuse(CASE
        WHEN coalesce(cardinality(ids), 0) NOT BETWEEN 1 AND 10000
            THEN 'ids: must be 1 to 10000 ids, got ' || coalesce(cardinality(ids), 0)
        WHEN array_position(ids, NULL) IS NOT NULL THEN 'ids: must be numbers, got NULL' END)
$$;

-- Writes an audit row about events.
CREATE FUNCTION @tidegate.record_action(action text, actor text, filter jsonb, ids bigint[], reason text) RETURNS void
    LANGUAGE sql AS $$
    INSERT INTO @tidegate.audit (action, actor, filter, ids, count, reason)
    VALUES (record_action.action, record_action.actor, jsonb_strip_nulls(record_action.filter),
            coalesce(record_action.ids, '{}'), coalesce(cardinality(record_action.ids), 0), record_action.reason)
$$;

-- Writes an audit row about something other than events.
CREATE FUNCTION @tidegate.record_change(action text, actor text, filter jsonb, count bigint, reason text) RETURNS void
    LANGUAGE sql AS $$
    INSERT INTO @tidegate.audit (action, actor, filter, count, reason)
    VALUES (record_change.action, record_change.actor, jsonb_strip_nulls(record_change.filter), record_change.count, record_change.reason)
$$;

-- Removes events from all leases, for a requeue. The only function that requeues events. The worker loses
-- the events, and with each one the later events of its group: it can write nothing about them any more
-- (lease_cut), and the next sweep takes them out of its leases. A started attempt counts. The event runs in
-- the next drain even if its attempts were used up. If its limit is already 1000, the maximum, one attempt
-- is returned to it.
CREATE FUNCTION @tidegate.end_leases(event_ids bigint[]) RETURNS TABLE (id bigint, past_deadline boolean)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found bigint[];
    taken jsonb;
BEGIN
    found := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (event_ids) ORDER BY q.id FOR NO KEY UPDATE);
    -- A separate statement, so that it sees leases that were being taken. No lease can take the events that
    -- we have locked.
    WITH held AS MATERIALIZED (
        SELECT q.id, q.group_key, l.token, l.worker, q.id <= l.started_to AS begun,
               q.id <= l.started_to AND q.attempts < q.max_attempts AS ran
          FROM @tidegate.event_queue AS q JOIN @tidegate.lease AS l ON l.ids @> q.id
         WHERE q.id = ANY (found)
           AND NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = l.token AND c.id = q.id)
    ), leaving AS (
        SELECT h.token, h.id, false AS behind, h.begun FROM held AS h
         UNION ALL
        SELECT behind.token, behind.id, true, false
          FROM (SELECT h.worker, h.group_key, min(h.id) AS id FROM held AS h WHERE h.group_key IS NOT NULL GROUP BY 1, 2) AS first
         CROSS JOIN LATERAL (
               SELECT l.token, q.id FROM @tidegate.event_queue AS q JOIN @tidegate.lease AS l ON l.ids @> q.id AND l.worker = first.worker
                WHERE q.group_key = first.group_key AND q.id > first.id OFFSET 0) AS behind
    ), cut AS (
        INSERT INTO @tidegate.lease_cut (token, id, behind, charged)
        SELECT l.token, l.id, bool_and(l.behind), bool_or(l.begun) FROM leaving AS l GROUP BY 1, 2 ORDER BY 1, 2 ON CONFLICT DO NOTHING)
    SELECT coalesce(jsonb_object_agg(h.id, true) FILTER (WHERE h.ran), '{}') INTO taken FROM held AS h;
    RETURN QUERY
    WITH now AS MATERIALIZED (
        SELECT q.id, least(q.attempts + (taken ? q.id::text)::int, 999) AS attempts FROM @tidegate.event_queue AS q WHERE q.id = ANY (found))
    UPDATE @tidegate.event_queue AS q
       SET available_at = least(q.available_at, clock_timestamp()), stray = true,
           attempts = now.attempts, max_attempts = greatest(q.max_attempts, now.attempts + 1)
      FROM now
     WHERE q.id = now.id
    RETURNING q.id, coalesce(q.expires_at <= clock_timestamp(), false);
END $$;

-- The most skipped events that a report lists. The counts by reason include all of them.
CREATE FUNCTION @tidegate.listed_at_most() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 100;

-- What has become of ids that are not live events: a list of objects with id and reason.
CREATE FUNCTION @tidegate.not_live(ids bigint[], advice text) RETURNS jsonb
    LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('id', t.id, 'reason', t.reason) ORDER BY t.id), '[]')
      FROM (SELECT u.id, coalesce('ended as ' || min(l.status) || advice, 'unknown: neither in the queue nor in the log') AS reason
              FROM unnest(ids) AS u(id) LEFT JOIN @tidegate.event_log AS l ON l.id = u.id GROUP BY u.id) AS t
$$;

CREATE FUNCTION @tidegate.requeue(ids bigint[], reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    done bigint[];
    late bigint[];
    skipped jsonb;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.check_ids(ids);
    -- Everyone locks in the same order, but a deadlock with a user's own statements is still possible.
    FOR try IN 1..3 LOOP
        BEGIN
            SELECT coalesce(array_agg(e.id ORDER BY e.id), '{}'),
                   coalesce(array_agg(e.id ORDER BY e.id) FILTER (WHERE e.past_deadline), '{}') INTO done, late
              FROM @tidegate.end_leases(requeue.ids) AS e;
            EXIT;
        EXCEPTION WHEN deadlock_detected THEN
            IF try = 3 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    -- A separate statement, so that it sees the end of an event that was being finalized.
    skipped := @tidegate.not_live(ARRAY(SELECT unnest(requeue.ids) EXCEPT SELECT unnest(done)), '; use replay');
    PERFORM @tidegate.record_action('requeue', actor, jsonb_build_object('ids', ids), done, reason);
    RETURN jsonb_build_object('action', 'requeue', 'requeued', cardinality(done), 'ids', done, 'past_deadline', late,
        'skipped_count', jsonb_array_length(skipped),
        'skipped', jsonb_path_query_array(skipped, '$[0 to $last]', jsonb_build_object('last', @tidegate.listed_at_most() - 1)));
END $$;
COMMENT ON FUNCTION @tidegate.requeue IS
    'Breaks the leases of live events and makes them ready now, with at least one attempt left. ids: 1 to 10000 events. '
    'reason: the reason for the audit, up to 1000 characters, required. actor: the operator''s name for the audit, up to '
    '200 characters. Returns a report as an object.';

-- Returns the completed work of a finished event, for a replay that runs only the rest: handlers that
-- succeeded, and the steps of all handlers. A handler keeps its follow-ups only if they were not published.
-- They were published if a handler decided the end of the event, and were not if the system gave the event
-- up.
CREATE FUNCTION @tidegate.done_so_far(progress jsonb, status text, errors jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
    SELECT nullif(kept.handlers || kept.steps, '{}')
      FROM (SELECT coalesce((SELECT jsonb_build_object('handlers', jsonb_object_agg(h.key, CASE
                        WHEN done_so_far.status <> 'FAILED' OR done_so_far.errors->-1->>'code' = 'attempts_exhausted'
                        THEN h.value - 'emitted' ELSE h.value END))
                      FROM jsonb_each(done_so_far.progress->'handlers') AS h
                     WHERE coalesce(h.value->'faults', '[]') = '[]'
                    HAVING count(*) > 0), '{}') AS handlers,
                   CASE WHEN done_so_far.progress ? 'steps'
                        THEN jsonb_build_object('steps', done_so_far.progress->'steps') ELSE '{}' END AS steps) AS kept
$$;

-- Puts logged events back as new ones, behind all live events of their groups and in the order of their ids.
-- The groups are locked before ids are drawn (see lock_groups). Events that collide with a live event, by
-- deduplication key or as a second replay, are left out.
CREATE FUNCTION @tidegate.insert_replays(originals bigint[], failed_handlers_only boolean, expires_in interval)
    RETURNS TABLE (new_id bigint, original bigint)
    LANGUAGE plpgsql AS $$
DECLARE
    instant timestamptz;
    drawn bigint[];
BEGIN
    PERFORM @tidegate.lock_groups(ARRAY(
        SELECT DISTINCT l.group_key FROM @tidegate.event_log AS l WHERE l.id = ANY (originals)));
    instant := clock_timestamp();
    drawn := ARRAY(SELECT nextval('@tidegate.event_queue_id_seq') FROM generate_series(1, cardinality(originals)) AS n ORDER BY n);
    RETURN QUERY
    INSERT INTO @tidegate.event_queue AS q
    OVERRIDING SYSTEM VALUE
    SELECT r.*
      FROM unnest(drawn, originals) AS pair(new_id, id)
      JOIN @tidegate.event_log AS l ON l.id = pair.id
     CROSS JOIN LATERAL @tidegate.replay_row(
           l, pair.new_id, instant, CASE WHEN l.deadline <= instant AND expires_in IS NOT NULL THEN instant + expires_in ELSE l.deadline END,
           CASE WHEN failed_handlers_only THEN @tidegate.done_so_far(l.progress, l.status, l.errors) END) AS r
     ORDER BY l.id
    ON CONFLICT DO NOTHING
    RETURNING q.id, q.replay_of;
END $$;

-- Whether an audit row's ids were replayed.
CREATE FUNCTION @tidegate.made_replays(entry @tidegate.audit) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN entry.action = 'replay' OR entry.action = 'unblock' AND entry.filter->>'how' = 'skip';

-- Returns the events that a replay would take, and for all others that were asked for, the reason why not.
--
-- A filter must be safe to repeat: using the same time window twice must not run an event twice. It therefore
-- leaves out events that were already replayed, and events that are replays themselves and so entered an open
-- window by the first call. A replay proves that its original was replayed; after the replay's own retention
-- the audit proves it. It also leaves out events that an operator cancelled. `again` includes all three, but
-- takes only the original event of each lineage. `known` is the last audit row of a replay that the caller
-- saw before it waited for other sessions.
--
-- It is planned anew each time: a filter for dead letters then finds them by their own index, and not by a
-- look at every day.
CREATE FUNCTION @tidegate.replay_candidates(
    ids bigint[], kind text, status text, code text, since timestamptz, until timestamptz, again boolean,
    failed_handlers_only boolean, known bigint
) RETURNS TABLE (id bigint, event_kind text, group_key text, deadline timestamptz, finished_at timestamptz,
                 in_log boolean, obstacle text, obstructed_by bigint)
    LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT a.id, count(*) AS times FROM unnest(replay_candidates.ids) AS a(id) GROUP BY a.id
    ), matched AS MATERIALIZED (
        SELECT l.id, l.kind, l.group_key, l.dedup_key, l.status, l.errors, l.deadline, l.finished_at, l.replay_of, l.forgotten_at
          FROM @tidegate.event_log AS l
         WHERE (replay_candidates.ids IS NULL OR l.id = ANY (replay_candidates.ids))
           AND (replay_candidates.since IS NULL OR l.finished_at >= replay_candidates.since)
           AND (replay_candidates.until IS NULL OR l.finished_at < replay_candidates.until)
           AND (replay_candidates.kind IS NULL OR l.kind = replay_candidates.kind)
           AND (replay_candidates.status IS NULL OR l.status = replay_candidates.status)
           AND (replay_candidates.code IS NULL OR l.status <> 'COMPLETED' AND l.errors->-1->>'code' = replay_candidates.code)
    ), ended_replay AS (
        SELECT l.replay_of, max(l.id) AS id
          FROM @tidegate.event_log AS l WHERE l.replay_of IS NOT NULL GROUP BY l.replay_of
    ), audited AS (
        -- The margin of a day is for a clock that was set back.
        SELECT unnest(a.ids) AS id, bool_or(a.id > replay_candidates.known) AS just_now
          FROM @tidegate.audit AS a
         WHERE @tidegate.made_replays(a)
           AND (a.id > replay_candidates.known
                OR replay_candidates.ids IS NULL AND a.at >= replay_candidates.since - interval '1 day')
         GROUP BY 1
    ), judged AS (
        SELECT m.*, twin.id AS twin,
               coalesce(live.id, ended.id) AS replay,
               CASE WHEN live.id IS NOT NULL THEN 'its replay is live'
                    WHEN audited.just_now THEN 'another operator has just replayed it'
                    WHEN replay_candidates.ids IS NOT NULL THEN NULL
                    WHEN replay_candidates.again AND original.id IS NOT NULL THEN 'a replay whose original is selected, too'
                    WHEN replay_candidates.again THEN NULL
                    WHEN ended.id IS NOT NULL OR audited.id IS NOT NULL THEN 'replayed before'
                    WHEN m.replay_of IS NOT NULL THEN 'a replay itself'
                    WHEN m.errors->-1->>'code' = 'cancelled' AND m.errors->-1->>'handler' IS NULL THEN 'cancelled by an operator'
               END AS repeated,
               CASE WHEN m.forgotten_at IS NOT NULL THEN 'forgotten: its data is gone'
                    WHEN k.kind IS NULL THEN 'its kind is not registered'
                    WHEN replay_candidates.failed_handlers_only AND m.status = 'COMPLETED' THEN 'none of its handlers failed'
                    WHEN twin.id IS NOT NULL THEN 'a live event has its deduplication key'
               END AS unfit
          FROM matched AS m
          -- By their indexes, of which there is one row at most. A join would read the whole queue.
          LEFT JOIN LATERAL (SELECT q.id FROM @tidegate.event_queue AS q WHERE q.replay_of = m.id LIMIT 1) AS live ON true
          LEFT JOIN ended_replay AS ended ON ended.replay_of = m.id
          LEFT JOIN matched AS original ON original.id = m.replay_of
          LEFT JOIN audited ON audited.id = m.id
          LEFT JOIN @tidegate.event_kind AS k ON k.kind = m.kind
          LEFT JOIN LATERAL (SELECT q.id FROM @tidegate.event_queue AS q
                              WHERE q.kind = m.kind AND q.dedup_key = m.dedup_key LIMIT 1) AS twin ON true
    ), rivals AS (
        SELECT j.id, row_number() OVER (PARTITION BY j.kind, j.dedup_key ORDER BY j.id) AS position
          FROM judged AS j WHERE j.repeated IS NULL AND j.unfit IS NULL AND j.dedup_key IS NOT NULL
    )
    SELECT j.id, j.kind, j.group_key, j.deadline, j.finished_at, true,
           coalesce(j.repeated, j.unfit, CASE WHEN rivals.position > 1 THEN 'an earlier selected event has its deduplication key' END),
           CASE WHEN j.repeated IS NOT NULL THEN j.replay WHEN j.unfit IS NOT NULL THEN j.twin END
      FROM judged AS j LEFT JOIN rivals USING (id)
    UNION ALL
    SELECT asked.id, q.kind, NULL, NULL, NULL, false,
           CASE WHEN q.id IS NULL THEN 'unknown: neither in the queue nor in the log'
                ELSE 'live (' || CASE WHEN EXISTS (SELECT FROM @tidegate.lease AS h WHERE h.ids @> q.id) THEN 'PROCESSING' ELSE 'PENDING' END || '); use requeue' END, NULL
      FROM asked LEFT JOIN @tidegate.event_queue AS q ON q.id = asked.id
     WHERE asked.id NOT IN (SELECT m.id FROM matched AS m)
    UNION ALL
    SELECT asked.id, NULL, NULL, NULL, NULL, false, 'given more than once', NULL FROM asked WHERE asked.times > 1;
END $$;

-- Puts logged events back as new events, by ids, or by the time they ended (from since on, before until). A
-- dry run reports what would be done. It changes nothing, so it leaves no audit row. `code` selects dead
-- letters by the code of their last error: they have an index, and what completed needs no replay.
--
-- A report has the `digest` of the ids of the eligible events. A call with a digest replays exactly these
-- events or nothing: what a person saw in a dry run is what happens, even if other events have ended since.
--
-- A call changes at most 2000 groups, because each needs a lock, and a server with default settings has about
-- 7000 locks for all sessions. limit_reached reports that more events are left; the same call continues with
-- them.
CREATE FUNCTION @tidegate.replay(
    ids                  bigint[]    DEFAULT NULL,
    kind                 text        DEFAULT NULL,
    status               text        DEFAULT NULL,
    since                timestamptz DEFAULT NULL,
    until                timestamptz DEFAULT NULL,
    reason               text        DEFAULT NULL,
    actor                text        DEFAULT NULL,
    "limit"              bigint      DEFAULT 10000,
    dry_run              boolean     DEFAULT false,
    again                boolean     DEFAULT false,
    failed_handlers_only boolean     DEFAULT false,
    expires_in           interval    DEFAULT NULL,
    code                 text        DEFAULT NULL,
    digest               text        DEFAULT NULL
) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' SET jit = off AS $$
DECLARE
    most_groups constant integer := 2000;
    known bigint := (SELECT coalesce(max(a.id), 0) FROM @tidegate.audit AS a WHERE @tidegate.made_replays(a));
    report jsonb;
    chosen bigint[];
    passed bigint[];
    chosen_digest text;
    refused text;
    done bigint[] := '{}';
    made jsonb := '[]';
    collided bigint[] := '{}';
BEGIN
    replay."limit" := coalesce(replay."limit", 10000);
    replay.dry_run := coalesce(replay.dry_run, false);
    replay.again := coalesce(replay.again, false);
    replay.failed_handlers_only := coalesce(replay.failed_handlers_only, false);
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.refuse(CASE
        WHEN ids IS NOT NULL AND num_nonnulls(kind, status, code, since, until) > 0
            THEN 'ids: must not be given with a filter (kind, status, code, since, until), got both'
        WHEN ids IS NULL AND since IS NULL THEN 'ids, since: one of them must be given, got neither'
        WHEN NOT isfinite(since) THEN 'since: must be a finite time, got ' || since
        WHEN NOT isfinite(until) THEN 'until: must be a finite time, got ' || until
        WHEN until <= since THEN format('until: must be after since (%s), got %s', since, until)
        WHEN status NOT IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'FAILED')
            THEN format('status: must be COMPLETED, COMPLETED_WITH_ERRORS or FAILED, got %L', status)
        WHEN "limit" NOT BETWEEN 1 AND 100000 THEN 'limit: must be 1 to 100000, got ' || "limit"
        WHEN expires_in <= interval '0' OR expires_in > interval '3660 days'
            THEN 'expires_in: must be a time of at most ten years, got ' || expires_in END);
    PERFORM @tidegate.require_kind(kind) WHERE kind IS NOT NULL;
    PERFORM @tidegate.check_ids(ids) WHERE ids IS NOT NULL;
    IF NOT replay.dry_run THEN
        PERFORM @tidegate.one_at_a_time();
    END IF;
    WITH candidate AS MATERIALIZED (
        SELECT * FROM @tidegate.replay_candidates(replay.ids, replay.kind, replay.status, replay.code, replay.since, replay.until,
                                                 replay.again, replay.failed_handlers_only, known)
    ), fit AS (
        SELECT c.*, c.group_key IS NOT NULL AND row_number() OVER (PARTITION BY c.group_key ORDER BY c.id) = 1 AS opens_group
          FROM candidate AS c WHERE c.obstacle IS NULL
    ), counted AS (
        SELECT f.*, count(*) OVER before AS position, count(*) FILTER (WHERE f.opens_group) OVER before AS groups
          FROM fit AS f WINDOW before AS (ORDER BY f.id)
    ), taken AS MATERIALIZED (
        SELECT c.* FROM counted AS c WHERE c.position <= replay."limit" AND c.groups <= most_groups
    ), skipped AS (
        SELECT c.id, c.obstacle, c.obstructed_by, row_number() OVER (ORDER BY c.id) AS position
          FROM candidate AS c WHERE c.obstacle IS NOT NULL
    )
    SELECT jsonb_build_object(
               'matched', (SELECT count(*) FROM candidate AS c WHERE c.in_log),
               'eligible', (SELECT count(*) FROM taken),
               'limit_reached', (SELECT count(*) FROM taken) < (SELECT count(*) FROM fit),
               'kinds', (SELECT coalesce(jsonb_object_agg(k.event_kind, k.count), '{}')
                           FROM (SELECT t.event_kind, count(*) FROM taken AS t GROUP BY t.event_kind) AS k),
               'skipped_count', (SELECT count(*) FROM skipped),
               'skipped_reasons', (SELECT coalesce(jsonb_object_agg(s.obstacle, s.count), '{}')
                                     FROM (SELECT k.obstacle, count(*) FROM skipped AS k GROUP BY k.obstacle) AS s),
               'skipped', (SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                                      'id', s.id, 'reason', s.obstacle, 'by', s.obstructed_by)) ORDER BY s.id), '[]')
                             FROM skipped AS s WHERE s.position <= @tidegate.listed_at_most())),
           ARRAY(SELECT t.id FROM taken AS t ORDER BY t.id),
           ARRAY(SELECT t.id FROM taken AS t WHERE t.deadline <= clock_timestamp() ORDER BY t.id)
      INTO report, chosen, passed;
    IF replay.expires_in IS NULL AND cardinality(passed) > 0 THEN
        refused := format('expires_in: is needed, for the deadline of %s of these events has passed, such as of %s',
                          cardinality(passed), array_to_string(passed[1:10], ', '));
    END IF;
    chosen_digest := encode(sha256(convert_to(array_to_string(chosen, ','), 'UTF8')), 'hex');
    IF replay.digest <> chosen_digest THEN
        refused := 'digest: must match the eligible events, and these have changed since the dry run';
    END IF;
    report := report || jsonb_build_object('action', 'replay', 'dry_run', replay.dry_run, 'refused', refused, 'digest', chosen_digest,
        'passed_deadlines', jsonb_build_object('count', cardinality(passed), 'ids', passed[1:10]));
    IF replay.dry_run THEN
        RETURN report || jsonb_build_object('replayed', 0, 'events', made);
    END IF;
    IF refused IS NULL AND cardinality(chosen) > 0 THEN
        SELECT coalesce(array_agg(r.original ORDER BY r.original), '{}'),
               coalesce(jsonb_agg(jsonb_build_object('id', r.new_id, 'replay_of', r.original) ORDER BY r.original)
                        FILTER (WHERE r.position <= @tidegate.listed_at_most()), '[]')
          INTO done, made
          FROM (SELECT i.*, row_number() OVER (ORDER BY i.original) AS position
                  FROM @tidegate.insert_replays(chosen, replay.failed_handlers_only, replay.expires_in) AS i) AS r;
        -- Published or cleaned up between the two statements.
        collided := ARRAY(SELECT c FROM unnest(chosen) AS c EXCEPT SELECT d FROM unnest(done) AS d ORDER BY 1);
    END IF;
    PERFORM @tidegate.record_action('replay', actor, jsonb_build_object(
        'ids', ids, 'kind', kind, 'status', status, 'code', code, 'since', since,
        'until', until, 'limit', "limit", 'again', again, 'failed_handlers_only', failed_handlers_only,
        'expires_in', expires_in), done, reason);
    RETURN report || jsonb_build_object('replayed', cardinality(done), 'events', made)
        || CASE WHEN cardinality(collided) = 0 THEN '{}' ELSE @tidegate.with_collisions(report, collided) END;
END $$;
COMMENT ON FUNCTION @tidegate.replay IS
    'Publishes finished events again, as new events with replay_of. Selects them by ids (1 to 10000), or by a filter: since '
    '(ended at this time or later; required), until (ended before), kind, status (COMPLETED, COMPLETED_WITH_ERRORS or '
    'FAILED). reason: the reason for the audit, up to 1000 characters, required. actor: the operator''s name for the audit, '
    'up to 200 characters. limit: the most events, 1 to 100000. dry_run: true reports what would be done and changes '
    'nothing. again: includes events that were replayed or cancelled. failed_handlers_only: skips handlers that had succeeded. '
    'expires_in: a new deadline, counted from now, for events whose own deadline has passed; at most 3660 days. code: only '
    'dead letters whose last error has this code. digest: replays nothing unless exactly the events of the dry run with this '
    'digest are eligible. Returns a report as an object; limit_reached: call again for the rest.';

-- A replay's report with the events that collided.
CREATE FUNCTION @tidegate.with_collisions(report jsonb, collided bigint[]) RETURNS jsonb
    LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'skipped_count', (report->>'skipped_count')::bigint + cardinality(collided),
        'skipped_reasons', (report->'skipped_reasons') || jsonb_build_object('overtaken by a publish or by the cleanup', cardinality(collided)),
        'skipped', (SELECT (report->'skipped') || coalesce(jsonb_agg(jsonb_build_object(
                        'id', c, 'reason', 'overtaken by a publish or by the cleanup')), '[]')
                      FROM unnest(collided[1:@tidegate.listed_at_most()]) AS c))
$$;

-- Ends live events by an operator's decision, whichever worker holds them. It does not write the lease token
-- to the log, where the token would tell the worker that the end was its own. The worker learns of the end
-- from the next sweep (lease_cut). Returns the events that have `ended`, those of them that a handler may
-- have been running (`begun`, whose attempt counts), and those that were `missed`. A call that ends one
-- event waits for its lock. A call that ends many never waits, because everything it has locked would wait
-- too.
CREATE FUNCTION @tidegate.end_live(event_ids bigint[], code text, message text,
                                  OUT ended bigint[], OUT begun bigint[], OUT missed bigint[])
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found bigint[];
BEGIN
    IF cardinality(event_ids) = 1 THEN
        found := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = event_ids[1] FOR UPDATE);
    ELSE
        found := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (event_ids) FOR UPDATE SKIP LOCKED);
    END IF;
    SELECT e.ended, e.begun INTO ended, begun FROM @tidegate.end_locked(found, code, message) AS e;
    missed := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (event_ids) ORDER BY q.id);
END $$;

CREATE FUNCTION @tidegate.unblock(group_key text, how text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    head record;
    acted boolean := false;
    new_id bigint;
    refused text;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.refuse(CASE
        WHEN coalesce(char_length(group_key), 0) NOT BETWEEN 1 AND 200
            THEN 'group_key: must have 1 to 200 characters, got ' || coalesce(char_length(group_key)::text, 'NULL')
        WHEN how IS NULL OR how NOT IN ('retry', 'skip', 'cancel')
            THEN 'how: must be retry, skip or cancel, got ' || coalesce(quote_literal(how), 'NULL') END);
    IF unblock.how = 'skip' THEN
        PERFORM @tidegate.one_at_a_time();
    END IF;
    PERFORM @tidegate.lock_groups(ARRAY[group_key]);
    SELECT q.id, q.expires_at <= clock_timestamp() AS past_deadline, q.available_at INTO head
      FROM @tidegate.event_queue AS q WHERE q.group_key = unblock.group_key ORDER BY q.id LIMIT 1;
    IF head.id IS NULL THEN
        refused := format('group %L has no live events', unblock.group_key);
    ELSIF unblock.how = 'skip' AND head.past_deadline THEN
        refused := format('how: must be retry or cancel, for the deadline of event %s has passed, got skip', head.id);
    ELSIF unblock.how = 'retry' THEN
        acted := EXISTS (SELECT FROM @tidegate.end_leases(ARRAY[head.id]));
    ELSIF unblock.how = 'cancel' THEN
        acted := cardinality((@tidegate.end_live(ARRAY[head.id], 'cancelled', 'cancelled by an operator: ' || unblock.reason)).ended) > 0;
    ELSE
        acted := cardinality((@tidegate.end_live(ARRAY[head.id], 'skipped', 'put behind its group by an operator')).ended) > 0;
        IF acted THEN
            SELECT r.new_id INTO STRICT new_id FROM @tidegate.insert_replays(ARRAY[head.id], true, NULL) AS r;
            -- What was planned, or waits for its next attempt, keeps its time.
            UPDATE @tidegate.event_queue AS q SET available_at = head.available_at
             WHERE q.replay_of = head.id AND head.available_at > clock_timestamp();
        END IF;
    END IF;
    IF NOT acted THEN
        refused := coalesce(refused, format(CASE WHEN EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id = head.id)
            THEN 'event %s is being leased at this moment; try again' ELSE 'event %s has just ended' END, head.id));
    END IF;
    PERFORM @tidegate.record_action('unblock', actor, jsonb_build_object('group_key', group_key, 'how', how),
                                   CASE WHEN acted THEN ARRAY[head.id] END, reason);
    RETURN jsonb_build_object('action', 'unblock', 'group_key', group_key, 'how', how,
                              'id', CASE WHEN acted THEN head.id END, 'new_id', new_id, 'refused', refused);
END $$;
COMMENT ON FUNCTION @tidegate.unblock IS
    'Acts on the first live event of a group, which holds back the other events. group_key: the group. how: retry makes the '
    'event ready now, cancel ends it, skip ends it and publishes it again after the others. reason: the reason, required. '
    'actor: the operator''s name. Returns a report as an object.';

-- Pauses or resumes a kind. A lease skips a paused kind. Events that are already leased finish normally.
CREATE FUNCTION @tidegate.set_paused(action text, kind text, paused boolean, reason text, actor text) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    changed boolean;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, false);
    PERFORM @tidegate.require_kind(kind);
    UPDATE @tidegate.event_kind AS k SET paused = set_paused.paused
     WHERE k.kind = set_paused.kind AND k.paused <> set_paused.paused;
    changed := FOUND;
    PERFORM @tidegate.record_change(action, actor, jsonb_build_object('kind', kind), changed::int, reason);
    RETURN jsonb_build_object('action', action, 'kind', kind, 'paused', paused, 'changed', changed);
END $$;

CREATE FUNCTION @tidegate.pause(kind text, reason text DEFAULT NULL, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    RETURN @tidegate.set_paused('pause', kind, true, reason, actor);
COMMENT ON FUNCTION @tidegate.pause IS
    'Pauses a kind: drains no longer lease its events, but they can still be published. kind: a registered kind. reason: '
    'the reason, optional. actor: the operator''s name. Returns a report as an object.';

CREATE FUNCTION @tidegate.resume(kind text, reason text DEFAULT NULL, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    RETURN @tidegate.set_paused('resume', kind, false, reason, actor);
COMMENT ON FUNCTION @tidegate.resume IS
    'Resumes a kind after pause(). kind: a registered kind. reason: the reason, optional. actor: the operator''s name. '
    'Returns a report as an object.';

-- An event of this kind that is being published at this moment is not noticed. The next drain ends it as
-- FAILED with `no_handler`, and it can be replayed from there.
CREATE FUNCTION @tidegate.retire(kind text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    most CONSTANT integer := 10000;
    live integer;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.require_kind(kind);
    DELETE FROM @tidegate.event_kind AS k WHERE k.kind = retire.kind;
    SELECT count(*) INTO live FROM (SELECT FROM @tidegate.event_queue AS q WHERE q.kind = retire.kind LIMIT most) AS found;
    PERFORM @tidegate.refuse(format('kind: %L must have no live events, and has %s', kind,
                                   CASE WHEN live = most THEN most || ' or more' ELSE live::text END)) WHERE live > 0;
    -- If a program registers the kind again, no old limit applies.
    UPDATE @tidegate.service AS s SET max_running = NULL WHERE s.service = 'kind:' || retire.kind AND s.max_running IS NOT NULL;
    PERFORM @tidegate.record_change('retire', actor, jsonb_build_object('kind', kind), 1, reason);
    RETURN jsonb_build_object('action', 'retire', 'kind', kind);
END $$;
COMMENT ON FUNCTION @tidegate.retire IS
    'Unregisters a kind that no program handles any more; refused while the kind has live events. kind: a registered kind. '
    'reason: the reason, required. actor: the operator''s name.';

-- The event must exist and must not be visible to others yet, so that an operator cannot put their name to
-- the events of a producer.
CREATE FUNCTION @tidegate.record_publish(id bigint, reason text, actor text DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    published record;
    -- A savepoint has a number of its own, above that of its transaction. What we see of one that is under
    -- way is ours.
    ours CONSTANT bigint := pg_current_xact_id()::text::bigint;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    SELECT q.kind, q.group_key INTO published FROM @tidegate.event_queue AS q
     WHERE q.id = record_publish.id
       AND CASE WHEN q.xmin::text::bigint >= ours & 4294967295
                THEN pg_xact_status((ours - (ours & 4294967295) + q.xmin::text::bigint)::text::xid8) = 'in progress' END;
    PERFORM @tidegate.refuse('id: must be an event that this transaction has published, got ' || coalesce(id::text, 'NULL')) WHERE NOT FOUND;
    PERFORM @tidegate.record_action('publish', actor,
        jsonb_build_object('kind', published.kind, 'group_key', published.group_key), ARRAY[id], reason);
END $$;
COMMENT ON FUNCTION @tidegate.record_publish IS
    'Records in the audit that an operator has published the event id by hand, with a reason and the name of the actor. '
    'Call it in the transaction that publishes.';

-- The audit says who wrote a remark on which event, and why. It never says what the remark is.
CREATE FUNCTION @tidegate.note(id bigint, "text" text, reason text, actor text DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    found boolean;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.refuse('text: must have 1 to 1000 characters, got ' || coalesce(char_length(btrim("text", E' \t\r\n'))::text, 'NULL'))
      WHERE coalesce(char_length(btrim("text", E' \t\r\n')), 0) = 0 OR char_length("text") > 1000;
    found := EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id = note.id) OR EXISTS (SELECT FROM @tidegate.logged(note.id));
    IF NOT coalesce(note.dry_run, false) THEN
        INSERT INTO @tidegate.note (event_id, actor, "text") SELECT note.id, note.actor, note."text" WHERE found;
        PERFORM @tidegate.record_action('note', actor, jsonb_build_object('id', id), CASE WHEN found THEN ARRAY[id] END, reason);
    END IF;
    RETURN jsonb_build_object('action', 'note', 'dry_run', coalesce(dry_run, false), 'id', id, 'refused',
                              CASE WHEN NOT found THEN format('id: there is no event %s', id) END);
END $$;
COMMENT ON FUNCTION @tidegate.note IS
    'Writes a remark on an event, live or finished. id: the event. text: the remark, 1 to 1000 characters. reason: the reason, '
    'required. actor: the operator''s name. dry_run: only report. Returns a report as an object.';

CREATE FUNCTION @tidegate.notes(id bigint) RETURNS TABLE (at timestamptz, actor text, "text" text)
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT n.at, n.actor, n."text"
      FROM (SELECT w.* FROM @tidegate.note AS w WHERE w.event_id = notes.id ORDER BY w.id DESC LIMIT 100) AS n
     ORDER BY n.id
$$;
COMMENT ON FUNCTION @tidegate.notes IS 'The latest 100 remarks on an event, oldest first. id: the event.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.replay, @tidegate.requeue, @tidegate.pause, @tidegate.resume, @tidegate.retire,
    @tidegate.unblock, @tidegate.note, @tidegate.record_publish TO @tidegate_operate;
GRANT EXECUTE ON FUNCTION @tidegate.notes TO @tidegate_drain, @tidegate_operate, @tidegate_read;
