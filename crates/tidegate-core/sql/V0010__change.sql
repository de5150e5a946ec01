-- Changes that operators make to live events, from one to a hundred thousand: cancel them, or reschedule
-- them.
--
-- Each call is one short transaction over up to `limit` events, lowest ids first, with its audit row. `next`
-- is the id behind which the same call continues, or null if no more events are left. To change many events,
-- repeat the call until then. Drains, producers and other operators continue in between.

CREATE TYPE @tidegate.selection AS (
    ids bigint[], kind text, dedup_key text, correlation_id text, group_key text, status text, created_since timestamptz,
    created_until timestamptz, after bigint, most integer
);
COMMENT ON TYPE @tidegate.selection IS 'Which live events an operator selects.';

-- Returns the next live events of a selection, and the common part of all reports: how many events there
-- are, of which kinds, where to continue, and what became of ids that were asked for but are not live
-- events.
--
-- Each call is planned anew, because a missing argument is no condition, and a given one may have an index.
CREATE FUNCTION @tidegate.select_live(s @tidegate.selection, OUT chosen bigint[], OUT report jsonb)
    LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    held int8multirange;
    next bigint;
    kinds jsonb;
    skipped jsonb := '[]';
BEGIN
    PERFORM @tidegate.refuse(CASE
        WHEN num_nonnulls(s.ids, s.kind, s.correlation_id, s.group_key) = 0
            THEN 'ids, kind, group_key, correlation_id: one of them must be given, got none'
        WHEN s.ids IS NOT NULL AND num_nonnulls(s.kind, s.dedup_key, s.correlation_id, s.group_key, s.status, s.created_since, s.created_until) > 0
            THEN 'ids: must be given without kind, dedup_key, correlation_id, group_key, status, created_since and created_until'
        WHEN s.dedup_key IS NOT NULL AND s.kind IS NULL
            THEN 'kind: must be given with dedup_key, because a deduplication key is unique within a kind, got none'
        WHEN s.status NOT IN ('PENDING', 'PROCESSING') THEN 'status: must be PENDING or PROCESSING, got ' || quote_literal(s.status)
        WHEN s.most NOT BETWEEN 1 AND 10000 THEN 'limit: must be 1 to 10000, got ' || s.most END);
    PERFORM @tidegate.check_ids(s.ids) WHERE s.ids IS NOT NULL;
    IF s.status IS NOT NULL THEN
        SELECT h.ids INTO held FROM @tidegate.held AS h;
    END IF;
    chosen := ARRAY(
        SELECT q.id FROM @tidegate.event_queue AS q
         WHERE (s.ids IS NULL OR q.id = ANY (s.ids))
           AND (s.kind IS NULL OR q.kind = s.kind)
           AND (s.dedup_key IS NULL OR q.dedup_key = s.dedup_key)
           AND (s.correlation_id IS NULL OR q.correlation_id = s.correlation_id)
           AND (s.group_key IS NULL OR q.group_key = s.group_key)
           AND (s.status IS NULL OR (q.id <@ held) = (s.status = 'PROCESSING'))
           AND (s.created_since IS NULL OR q.created_at >= s.created_since)
           AND (s.created_until IS NULL OR q.created_at < s.created_until)
           AND q.id > s.after
         -- Keys have no statistics. The planner would rather walk all ids than sort what the index finds.
         ORDER BY CASE WHEN s.correlation_id IS NULL THEN q.id ELSE q.id + 0 END LIMIT s.most);
    PERFORM @tidegate.require_kind(s.kind) WHERE cardinality(chosen) = 0 AND s.after = 0 AND s.kind IS NOT NULL;
    next := CASE WHEN cardinality(chosen) = s.most THEN chosen[s.most] END;
    SELECT coalesce(jsonb_object_agg(k.kind, k.events), '{}') INTO kinds
      FROM (SELECT q.kind, count(*) AS events FROM @tidegate.event_queue AS q WHERE q.id = ANY (chosen) GROUP BY q.kind) AS k;
    IF s.ids IS NOT NULL THEN
        skipped := @tidegate.not_live(ARRAY(
            SELECT u.id FROM unnest(s.ids) AS u(id)
             WHERE (u.id > s.after OR s.after = 0) AND (next IS NULL OR u.id <= next) AND u.id <> ALL (chosen)), '');
    END IF;
    report := jsonb_build_object('matched', cardinality(chosen), 'kinds', kinds, 'next', next, 'skipped', skipped);
END $$;

-- The worker is notified at its next renewal, its writes about the events are refused, and an attempt that
-- may have begun (`begun`) counts. `missed` are events that another session had locked at this moment; call
-- again for them. A dry run leaves no audit row.
CREATE FUNCTION @tidegate.cancel(
    ids            bigint[]    DEFAULT NULL,
    kind           text        DEFAULT NULL,
    dedup_key      text        DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    group_key      text        DEFAULT NULL,
    status         text        DEFAULT NULL,
    created_since  timestamptz DEFAULT NULL,
    created_until  timestamptz DEFAULT NULL,
    reason         text        DEFAULT NULL,
    actor          text        DEFAULT NULL,
    "limit"        integer     DEFAULT 1000,
    after          bigint      DEFAULT 0,
    dry_run        boolean     DEFAULT false
) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    s CONSTANT @tidegate.selection := ROW(ids, kind, dedup_key, correlation_id, group_key, status, created_since, created_until,
                                         coalesce(after, 0), coalesce("limit", 1000));
    asked CONSTANT jsonb := to_jsonb(s) - ARRAY['ids', 'most'] || jsonb_build_object('after', nullif(s.after, 0));
    report jsonb;
    chosen bigint[];
    done bigint[];
    begun bigint[];
    missed bigint[] := '{}';
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    SELECT l.chosen, l.report INTO chosen, report FROM @tidegate.select_live(s) AS l;
    IF coalesce(cancel.dry_run, false) THEN
        done := chosen;
        begun := ARRAY(SELECT u.id FROM unnest(chosen) AS u(id) WHERE EXISTS (
                           SELECT FROM @tidegate.lease AS l WHERE l.ids @> u.id AND u.id <= l.started_to));
    ELSE
        SELECT e.ended, e.begun, e.missed INTO done, begun, missed
          FROM @tidegate.end_live(chosen, 'cancelled', 'cancelled by an operator: ' || cancel.reason) AS e;
        PERFORM @tidegate.record_action('cancel', actor, asked, done, reason);
    END IF;
    -- A dry run lists all events, so that a digest can be made of them.
    RETURN report || jsonb_build_object('changed', cardinality(done),
                                        'ids', CASE WHEN dry_run THEN done ELSE done[1:@tidegate.listed_at_most()] END,
                                        'begun', cardinality(begun), 'missed', missed);
END $$;
COMMENT ON FUNCTION @tidegate.cancel IS
    'Ends live events FAILED with the code cancelled, even while a worker holds them. Selects them by ids (1 to 10000), or '
    'by kind, correlation_id or group_key, or by a dedup_key with its kind; narrowed by status (PENDING or PROCESSING), '
    'created_since and created_until (the time of the publish). reason: the reason, required. actor: the operator''s name. limit: the most '
    'events in this call. after: only ids above this; the report''s next is the value for the next call. dry_run: true '
    'reports what would be done, with all ids, and changes nothing. Returns a report as an object.';

-- Reschedules waiting events, or changes their deadline. An `available_at` in the past means now, also for
-- events that wait for another attempt. Events that a worker has leased are not changed (`in_hand`), because
-- the worker would not notice. An event of a group is not changed if it would block its group for longer than
-- a publisher may (`too_late`). `past_deadline` counts events whose deadline passes before they start; they
-- will end as expired.
--
-- No lease is locked: an event that is in no lease while its row is locked cannot be leased.
CREATE FUNCTION @tidegate.reschedule(
    ids            bigint[]    DEFAULT NULL,
    kind           text        DEFAULT NULL,
    dedup_key      text        DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    group_key      text        DEFAULT NULL,
    status         text        DEFAULT NULL,
    created_since  timestamptz DEFAULT NULL,
    created_until  timestamptz DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    no_deadline    boolean     DEFAULT false,
    reason         text        DEFAULT NULL,
    actor          text        DEFAULT NULL,
    "limit"        integer     DEFAULT 1000,
    after          bigint      DEFAULT 0,
    dry_run        boolean     DEFAULT false
) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    s CONSTANT @tidegate.selection := ROW(ids, kind, dedup_key, correlation_id, group_key, status, created_since, created_until,
                                         coalesce(after, 0), coalesce("limit", 1000));
    asked CONSTANT jsonb := to_jsonb(s) - ARRAY['ids', 'most'] || jsonb_build_object('after', nullif(s.after, 0),
        'available_at', available_at, 'expires_at', expires_at, 'no_deadline', nullif(no_deadline, false));
    report jsonb;
    asked_for bigint[];
    chosen bigint[];
    missed bigint[] := '{}';
    held bigint[];
    late bigint[];
    done bigint[];
    past bigint[];
BEGIN
    reschedule.no_deadline := coalesce(reschedule.no_deadline, false);
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.refuse(CASE
        WHEN available_at IS NULL AND expires_at IS NULL AND NOT no_deadline
            THEN 'available_at, expires_at, no_deadline: one of them must be given, got none'
        WHEN expires_at IS NOT NULL AND no_deadline THEN 'no_deadline: must be false with expires_at, got true'
        WHEN NOT isfinite(available_at) THEN 'available_at: must be a finite time, got ' || available_at
        WHEN NOT isfinite(expires_at) THEN 'expires_at: must be a finite time, got ' || expires_at END);
    SELECT l.chosen, l.report INTO chosen, report FROM @tidegate.select_live(s) AS l;
    IF NOT coalesce(reschedule.dry_run, false) THEN
        -- A call that changes many events never waits, as in end_live().
        asked_for := chosen;
        IF cardinality(chosen) = 1 THEN
            chosen := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = chosen[1] FOR NO KEY UPDATE);
        ELSE
            chosen := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (chosen) FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
        missed := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (asked_for) AND q.id <> ALL (chosen) ORDER BY q.id);
    END IF;
    -- A separate statement, so that it sees every lease that was taken first.
    held := ARRAY(SELECT u.id FROM unnest(chosen) AS u(id), @tidegate.held AS h WHERE h.ids @> u.id ORDER BY u.id);
    late := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q
                   WHERE q.id = ANY (chosen) AND q.id <> ALL (held) AND q.group_key IS NOT NULL
                     AND reschedule.available_at > statement_timestamp() + @tidegate.max_group_delay());
    done := ARRAY(SELECT u.id FROM unnest(chosen) AS u(id) WHERE u.id <> ALL (held) AND u.id <> ALL (late) ORDER BY u.id);
    past := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q
                   WHERE q.id = ANY (done) AND NOT reschedule.no_deadline
                     AND coalesce(reschedule.expires_at, q.expires_at)
                         <= greatest(coalesce(reschedule.available_at, q.available_at), clock_timestamp())
                   ORDER BY q.id);
    IF NOT coalesce(reschedule.dry_run, false) THEN
        UPDATE @tidegate.event_queue AS q
           SET available_at = coalesce(reschedule.available_at, q.available_at),
               waits_since = CASE WHEN reschedule.available_at IS NULL THEN q.waits_since END,
               expires_at = CASE WHEN reschedule.no_deadline THEN NULL ELSE coalesce(reschedule.expires_at, q.expires_at) END,
               stray = q.stray OR q.group_key IS NOT NULL
         WHERE q.id = ANY (done);
        PERFORM @tidegate.record_action('reschedule', actor, asked, done, reason);
    END IF;
    RETURN report || jsonb_build_object('changed', cardinality(done),
        'ids', CASE WHEN dry_run THEN done ELSE done[1:@tidegate.listed_at_most()] END,
        'missed', missed, 'in_hand', cardinality(held), 'in_hand_ids', held[1:@tidegate.listed_at_most()],
        'too_late', cardinality(late), 'too_late_ids', late[1:@tidegate.listed_at_most()],
        'past_deadline', cardinality(past), 'past_deadline_ids', past[1:@tidegate.listed_at_most()]);
END $$;
COMMENT ON FUNCTION @tidegate.reschedule IS
    'Sets another start or deadline for waiting events. Selects them by ids, kind, dedup_key, correlation_id, group_key, '
    'status, created_since and created_until as in cancel(). available_at: the new start; a time in the past means now. expires_at: the new '
    'deadline. no_deadline: true removes it. reason: the reason, required. actor: the operator''s name. limit, after and '
    'dry_run as in cancel(). Leased events are not changed and are counted as in_hand. Returns a report as an object.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.cancel, @tidegate.reschedule TO @tidegate_operate;
