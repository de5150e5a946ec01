-- Changes that operators make to live events, from one to a hundred thousand: cancel them, or reschedule
-- them.
--
-- Each call is one short transaction over up to `limit` events, lowest ids first, with its audit row. `next`
-- is the id behind which the same call continues, or null if no more events are left. To change many events,
-- repeat the call until then. Drains, producers and other operators continue in between.

CREATE FUNCTION tidegate.check_selection(
    ids bigint[], kind text, dedup_key text, correlation_id text, group_key text, status text, since timestamptz,
    until timestamptz, "limit" integer
) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    refused text := CASE
        WHEN ids IS NULL AND kind IS NULL AND correlation_id IS NULL AND group_key IS NULL
            THEN 'ids, kind, group_key, correlation_id: one of them must be given, got none'
        WHEN ids IS NOT NULL AND num_nonnulls(kind, dedup_key, correlation_id, group_key, status, since, until) > 0
            THEN 'ids: must be given without kind, dedup_key, correlation_id, group_key, status, since and until'
        WHEN dedup_key IS NOT NULL AND kind IS NULL
            THEN 'kind: must be given with dedup_key, because a deduplication key is unique within a kind, got none'
        WHEN status NOT IN ('PENDING', 'PROCESSING')
            THEN 'status: must be PENDING or PROCESSING, got ' || quote_literal(status)
        WHEN "limit" NOT BETWEEN 1 AND 10000
            THEN 'limit: must be 1 to 10000, got ' || "limit"
    END;
BEGIN
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF ids IS NOT NULL THEN
        PERFORM tidegate.check_ids(ids);
    END IF;
END $$;
COMMENT ON FUNCTION tidegate.check_selection IS 'Refuses invalid arguments of cancel() and reschedule().';

-- Each call is planned anew, because a missing argument is no condition, and a given one may have an index.
CREATE FUNCTION tidegate.select_live(
    ids bigint[], kind text, dedup_key text, correlation_id text, group_key text, status text, since timestamptz,
    until timestamptz, after bigint, most integer
) RETURNS bigint[]
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET jit = off
    AS $$
#variable_conflict use_column
DECLARE
    held int8multirange;
BEGIN
    IF select_live.status IS NOT NULL THEN
        SELECT h.ids INTO held FROM tidegate.held AS h;
    END IF;
    RETURN ARRAY(
        SELECT q.id FROM tidegate.event_queue AS q
         WHERE (select_live.ids IS NULL OR q.id = ANY (select_live.ids))
           AND (select_live.kind IS NULL OR q.kind = select_live.kind)
           AND (select_live.dedup_key IS NULL OR q.dedup_key = select_live.dedup_key)
           AND (select_live.correlation_id IS NULL OR q.correlation_id = select_live.correlation_id)
           AND (select_live.group_key IS NULL OR q.group_key = select_live.group_key)
           AND (select_live.status IS NULL OR (q.id <@ held) = (select_live.status = 'PROCESSING'))
           AND (select_live.since IS NULL OR q.created_at >= select_live.since)
           AND (select_live.until IS NULL OR q.created_at < select_live.until)
           AND q.id > after
         ORDER BY q.id LIMIT most);
END $$;
COMMENT ON FUNCTION tidegate.select_live IS 'The next live events of a selection.';

-- Builds the common part of all reports: how many events there were, of which kinds, the first ids, where to
-- continue, and what became of ids that were asked for but are not live events.
CREATE FUNCTION tidegate.told_selection(
    ids bigint[], kind text, after bigint, most integer, chosen bigint[], kinds jsonb
) RETURNS jsonb
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    next CONSTANT bigint := CASE WHEN cardinality(chosen) = most THEN chosen[most] END;
    skipped jsonb := '[]';
BEGIN
    IF cardinality(chosen) = 0 AND after = 0 AND told_selection.kind IS NOT NULL
       AND NOT EXISTS (SELECT FROM tidegate.event_kind AS k WHERE k.kind = told_selection.kind) THEN
        RAISE EXCEPTION '%', tidegate.unregistered(told_selection.kind) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF told_selection.ids IS NOT NULL THEN
        WITH rest AS (
            SELECT DISTINCT u.id FROM unnest(told_selection.ids) AS u(id)
             WHERE (u.id > after OR after = 0) AND (next IS NULL OR u.id <= next) AND u.id <> ALL (chosen)
        ), told AS (
            SELECT rest.id, coalesce('ended as ' || min(l.status), 'unknown: neither in the queue nor in the log') AS reason
              FROM rest LEFT JOIN tidegate.event_log AS l ON l.id = rest.id GROUP BY rest.id)
        SELECT coalesce(jsonb_agg(jsonb_build_object('id', t.id, 'reason', t.reason) ORDER BY t.id), '[]') INTO skipped FROM told AS t;
    END IF;
    RETURN jsonb_build_object('matched', cardinality(chosen), 'kinds', kinds, 'next', next, 'skipped', skipped);
END $$;
COMMENT ON FUNCTION tidegate.told_selection IS 'The report of cancel() and reschedule().';

CREATE FUNCTION tidegate.count_kinds(ids bigint[]) RETURNS jsonb
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT coalesce(jsonb_object_agg(k.kind, k.events), '{}')
      FROM (SELECT q.kind, count(*) AS events FROM tidegate.event_queue AS q WHERE q.id = ANY (count_kinds.ids) GROUP BY q.kind) AS k
$$;
COMMENT ON FUNCTION tidegate.count_kinds IS 'Counts events by kind.';

-- The worker is notified at its next renewal, its writes about the events are refused, and an attempt that
-- may have begun (`begun`) counts. `missed` are events that another session had locked at this moment; call
-- again for them. A dry run leaves no audit row.
CREATE FUNCTION tidegate.cancel(
    ids            bigint[]    DEFAULT NULL,
    kind           text        DEFAULT NULL,
    dedup_key      text        DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    group_key      text        DEFAULT NULL,
    status         text        DEFAULT NULL,
    since          timestamptz DEFAULT NULL,
    until          timestamptz DEFAULT NULL,
    reason         text        DEFAULT NULL,
    actor          text        DEFAULT NULL,
    "limit"        integer     DEFAULT 1000,
    after          bigint      DEFAULT 0,
    dry_run        boolean     DEFAULT false
) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    AS $$
DECLARE
    asked CONSTANT jsonb := jsonb_build_object('kind', kind, 'dedup_key', dedup_key, 'correlation_id', correlation_id,
        'group_key', group_key, 'status', status, 'since', since, 'until', until, 'after', nullif(after, 0));
    report jsonb;
    chosen bigint[];
    done bigint[];
    begun bigint[];
    missed bigint[] := '{}';
BEGIN
    cancel."limit" := coalesce(cancel."limit", 1000);
    cancel.after := coalesce(cancel.after, 0);
    PERFORM tidegate.check_operator(cancel.reason, cancel.actor, true);
    PERFORM tidegate.check_selection(cancel.ids, cancel.kind, cancel.dedup_key, cancel.correlation_id, cancel.group_key,
                                     cancel.status, cancel.since, cancel.until, cancel."limit");
    chosen := tidegate.select_live(cancel.ids, cancel.kind, cancel.dedup_key, cancel.correlation_id, cancel.group_key,
                                   cancel.status, cancel.since, cancel.until, cancel.after, cancel."limit");
    report := tidegate.told_selection(cancel.ids, cancel.kind, cancel.after, cancel."limit", chosen, tidegate.count_kinds(chosen));
    IF coalesce(cancel.dry_run, false) THEN
        done := chosen;
        begun := ARRAY(SELECT u.id FROM unnest(chosen) AS u(id) WHERE EXISTS (
                           SELECT FROM tidegate.lease AS l WHERE l.ids @> u.id AND u.id <= l.started_to));
    ELSE
        SELECT e.ended, e.begun, e.missed INTO done, begun, missed
          FROM tidegate.end_live(chosen, 'cancelled', 'cancelled by an operator: ' || cancel.reason) AS e;
        PERFORM tidegate.record_action('cancel', cancel.actor, asked, done, cancel.reason);
    END IF;
    -- A dry run lists all events, so that a digest can be made of them.
    RETURN report || jsonb_build_object('changed', cardinality(done),
                                        'ids', CASE WHEN cancel.dry_run THEN done ELSE done[1:tidegate.listed_at_most()] END,
                                        'begun', cardinality(begun), 'missed', missed);
END $$;
COMMENT ON FUNCTION tidegate.cancel IS
    'Ends live events FAILED with the code cancelled, even while a worker holds them. Selects them by ids (1 to 10000), or '
    'by kind, correlation_id or group_key, or by a dedup_key with its kind; narrowed by status (PENDING or PROCESSING), '
    'since and until (the time of the publish). reason: the reason, required. actor: the operator''s name. limit: the most '
    'events in this call. after: only ids above this; the report''s next is the value for the next call. dry_run: true '
    'reports what would be done, with all ids, and changes nothing. Returns a report as an object.';

-- Reschedules waiting events, or changes their deadline. An `available_at` in the past means now, also for
-- events that wait for another attempt. Events that a worker has leased are not changed (`in_hand`), because
-- the worker would not notice. An event of a group is not changed if it would block its group for longer than
-- a publisher may (`too_late`). `past_deadline` counts events whose deadline passes before they start; they
-- will end as expired.
--
-- No lease is locked: an event that is in no lease while its row is locked cannot be leased.
CREATE FUNCTION tidegate.reschedule(
    ids            bigint[]    DEFAULT NULL,
    kind           text        DEFAULT NULL,
    dedup_key      text        DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    group_key      text        DEFAULT NULL,
    status         text        DEFAULT NULL,
    since          timestamptz DEFAULT NULL,
    until          timestamptz DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    no_deadline    boolean     DEFAULT false,
    reason         text        DEFAULT NULL,
    actor          text        DEFAULT NULL,
    "limit"        integer     DEFAULT 1000,
    after          bigint      DEFAULT 0,
    dry_run        boolean     DEFAULT false
) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    AS $$
DECLARE
    asked CONSTANT jsonb := jsonb_build_object('kind', kind, 'dedup_key', dedup_key, 'correlation_id', correlation_id,
        'group_key', group_key, 'status', status, 'since', since, 'until', until, 'available_at', available_at,
        'expires_at', expires_at, 'no_deadline', nullif(no_deadline, false), 'after', nullif(after, 0));
    refused text;
    report jsonb;
    asked_for bigint[];
    chosen bigint[];
    missed bigint[] := '{}';
    held bigint[];
    late bigint[];
    done bigint[];
    past bigint[];
BEGIN
    reschedule."limit" := coalesce(reschedule."limit", 1000);
    reschedule.after := coalesce(reschedule.after, 0);
    reschedule.no_deadline := coalesce(reschedule.no_deadline, false);
    PERFORM tidegate.check_operator(reschedule.reason, reschedule.actor, true);
    PERFORM tidegate.check_selection(reschedule.ids, reschedule.kind, reschedule.dedup_key, reschedule.correlation_id,
                                     reschedule.group_key, reschedule.status, reschedule.since, reschedule.until,
                                     reschedule."limit");
    refused := CASE
        WHEN reschedule.available_at IS NULL AND reschedule.expires_at IS NULL AND NOT reschedule.no_deadline
            THEN 'available_at, expires_at, no_deadline: one of them must be given, got none'
        WHEN reschedule.expires_at IS NOT NULL AND reschedule.no_deadline THEN 'no_deadline: must be false with expires_at, got true'
        WHEN NOT isfinite(reschedule.available_at) THEN 'available_at: must be a finite time, got ' || reschedule.available_at
        WHEN NOT isfinite(reschedule.expires_at) THEN 'expires_at: must be a finite time, got ' || reschedule.expires_at
    END;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    chosen := tidegate.select_live(reschedule.ids, reschedule.kind, reschedule.dedup_key, reschedule.correlation_id,
                                   reschedule.group_key, reschedule.status, reschedule.since, reschedule.until,
                                   reschedule.after, reschedule."limit");
    report := tidegate.told_selection(reschedule.ids, reschedule.kind, reschedule.after, reschedule."limit", chosen,
                                      tidegate.count_kinds(chosen));
    IF NOT coalesce(reschedule.dry_run, false) THEN
        -- A call that changes many events never waits, as in end_live().
        asked_for := chosen;
        IF cardinality(chosen) = 1 THEN
            chosen := ARRAY(SELECT q.id FROM tidegate.event_queue AS q WHERE q.id = chosen[1] FOR NO KEY UPDATE);
        ELSE
            chosen := ARRAY(SELECT q.id FROM tidegate.event_queue AS q WHERE q.id = ANY (chosen) FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
        missed := ARRAY(SELECT q.id FROM tidegate.event_queue AS q WHERE q.id = ANY (asked_for) AND q.id <> ALL (chosen) ORDER BY q.id);
    END IF;
    -- A separate statement, so that it sees every lease that was taken first.
    held := ARRAY(SELECT u.id FROM unnest(chosen) AS u(id), tidegate.held AS h WHERE h.ids @> u.id ORDER BY u.id);
    late := ARRAY(SELECT q.id FROM tidegate.event_queue AS q
                   WHERE q.id = ANY (chosen) AND q.id <> ALL (held) AND q.group_key IS NOT NULL
                     AND reschedule.available_at > statement_timestamp() + tidegate.max_group_delay());
    done := ARRAY(SELECT u.id FROM unnest(chosen) AS u(id) WHERE u.id <> ALL (held) AND u.id <> ALL (late) ORDER BY u.id);
    past := ARRAY(SELECT q.id FROM tidegate.event_queue AS q
                   WHERE q.id = ANY (done) AND NOT reschedule.no_deadline
                     AND coalesce(reschedule.expires_at, q.expires_at)
                         <= greatest(coalesce(reschedule.available_at, q.available_at), clock_timestamp())
                   ORDER BY q.id);
    IF NOT coalesce(reschedule.dry_run, false) THEN
        UPDATE tidegate.event_queue AS q
           SET available_at = coalesce(reschedule.available_at, q.available_at),
               expires_at = CASE WHEN reschedule.no_deadline THEN NULL ELSE coalesce(reschedule.expires_at, q.expires_at) END,
               stray = q.stray OR q.group_key IS NOT NULL
         WHERE q.id = ANY (done);
        PERFORM tidegate.record_action('reschedule', reschedule.actor, asked, done, reschedule.reason);
    END IF;
    RETURN report || jsonb_build_object('changed', cardinality(done),
        'ids', CASE WHEN reschedule.dry_run THEN done ELSE done[1:tidegate.listed_at_most()] END,
        'missed', missed, 'in_hand', cardinality(held), 'in_hand_ids', held[1:tidegate.listed_at_most()],
        'too_late', cardinality(late), 'too_late_ids', late[1:tidegate.listed_at_most()],
        'past_deadline', cardinality(past), 'past_deadline_ids', past[1:tidegate.listed_at_most()]);
END $$;
COMMENT ON FUNCTION tidegate.reschedule IS
    'Sets another start or deadline for waiting events. Selects them by ids, kind, dedup_key, correlation_id, group_key, '
    'status, since and until as in cancel(). available_at: the new start; a time in the past means now. expires_at: the new '
    'deadline. no_deadline: true removes it. reason: the reason, required. actor: the operator''s name. limit, after and '
    'dry_run as in cancel(). Leased events are not changed and are counted as in_hand. Returns a report as an object.';
