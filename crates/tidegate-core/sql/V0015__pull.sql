-- Handling events by SQL, in any language: poll() leases, finalize() and retry() end an attempt, extend()
-- keeps the lease, settle() ends the attempts of several events. The leases are like those of drains, with
-- all their properties. The caller's lease is one token, and the token is also the lease's worker: a later
-- call needs to name nothing else, and knows only what the token proves.

-- Refuses lengths of a lease.
CREATE FUNCTION @tidegate.check_lease_time(lease interval) RETURNS void
    LANGUAGE sql AS $$
    SELECT @tidegate.refuse('lease: must be 1 second to 12 hours, got ' || coalesce(lease::text, 'NULL'))
      WHERE (lease BETWEEN interval '1 second' AND interval '12 hours') IS NOT TRUE
$$;

-- Ends those events of a lease that no handler may see, as a drain does: expired, out of attempts, of a kind
-- that nobody registered, or with something that the database cannot read. Marks the others as started.
-- Returns how many there are.
CREATE FUNCTION @tidegate.sort_out(token uuid, kinds text[], moment timestamptz) RETURNS bigint
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    ended record;
    one bigint;
    lost text;
    started bigint;
BEGIN
    SELECT array_agg(r.id) AS ids, array_agg('FAILED'::text) AS statuses, array_agg(false) AS rans,
           array_agg(jsonb_build_array(jsonb_build_object('handler', NULL, 'code', why.code, 'message', why.message,
                                                          'attempt', r.attempt - 1))::text) AS errors,
           array_agg(NULL::text) AS none
      INTO ended
      FROM @tidegate.in_hand(ARRAY[sort_out.token]) AS h
     CROSS JOIN LATERAL (SELECT q.id, q.kind, q.attempts + 1 AS attempt, q.max_attempts, q.lapses, q.expires_at
                           FROM @tidegate.event_queue AS q WHERE q.id = h.id OFFSET 0) AS r
     CROSS JOIN LATERAL (
           SELECT CASE WHEN r.kind <> ALL (kinds) THEN 'no_handler' WHEN r.expires_at <= moment THEN 'expired'
                       WHEN r.lapses = 0 THEN 'attempts_exhausted' ELSE 'abandoned' END,
                  CASE WHEN r.kind <> ALL (kinds) THEN format('nobody registered the kind %L', r.kind)
                       WHEN r.expires_at <= moment THEN 'not started before its deadline'
                       WHEN r.lapses = 0 THEN 'it has had as many attempts as it may have'
                       ELSE 'its worker went away on the last attempt' END) AS why(code, message)
     WHERE r.kind <> ALL (kinds) OR r.expires_at <= moment OR r.attempt > r.max_attempts OR r.lapses >= 10;
    IF ended.ids IS NOT NULL THEN
        PERFORM @tidegate.finalize_leased(sort_out.token, ended.ids, ended.statuses, ended.rans, ended.errors, ended.none, ended.none, true);
    END IF;
    BEGIN
        PERFORM sum(octet_length(r.payload::text)) FROM @tidegate.read_leased(sort_out.token, 0, 1000) AS r;
    EXCEPTION WHEN data_exception OR data_corrupted OR internal_error THEN
        FOR one IN SELECT h.id FROM @tidegate.in_hand(ARRAY[sort_out.token]) AS h ORDER BY h.id LOOP
            lost := @tidegate.drop_unreadable(one);
            PERFORM @tidegate.end_unreadable(sort_out.token, one, format('its %s cannot be read', lost)) WHERE lost <> '';
        END LOOP;
    END;
    SELECT max(h.id) INTO started FROM @tidegate.in_hand(ARRAY[sort_out.token]) AS h;
    UPDATE @tidegate.lease AS l SET started_to = started WHERE l.token = sort_out.token AND started IS NOT NULL;
    PERFORM @tidegate.close_lease(sort_out.token);
    RETURN (SELECT count(*) FROM @tidegate.in_hand(ARRAY[sort_out.token]) AS h);
END $$;

-- Marks a lease without events as ended, so that the next poll or sweep removes it.
CREATE FUNCTION @tidegate.close_lease(token uuid) RETURNS void
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE @tidegate.lease AS l SET ended = true, expires_at = least(l.expires_at, clock_timestamp())
     WHERE l.token = close_lease.token AND NOT EXISTS (
           -- Nested, as in complete().
           SELECT FROM unnest(l.ids) AS r
            WHERE EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id >= lower(r) AND q.id < upper(r) OFFSET 0));
END $$;

-- What a poll does besides its lease. Its transaction may stay open for as long as the caller works, so it
-- locks only what the caller could take itself: ended leases of pollers, one lease whose poller has died, and
-- as many delayed events as are wanted. Drains do the rest.
CREATE FUNCTION @tidegate.prepare_poll(kinds text[], most integer, now timestamptz) RETURNS void
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    moment CONSTANT timestamptz := coalesce(prepare_poll.now, clock_timestamp());
    callable CONSTANT text[] := ARRAY(
        SELECT k.kind FROM @tidegate.event_kind AS k
         WHERE k.kind = ANY (kinds) AND NOT k.paused
           AND NOT EXISTS (SELECT FROM @tidegate.service AS s WHERE s.state <> 'closed' AND k.kind = ANY (s.kinds)));
    dead uuid[];
BEGIN
    PERFORM @tidegate.remove_ended(ARRAY(SELECT l.token FROM @tidegate.lease AS l WHERE l.worker = l.token AND l.ended LIMIT 100));
    -- A lease with an event of these kinds, or without any event left.
    dead := ARRAY(SELECT l.token FROM @tidegate.lease AS l
                   WHERE l.worker = l.token AND NOT l.ended AND l.expires_at <= moment
                     AND coalesce((SELECT bool_or(q.kind = ANY (callable)) FROM unnest(l.ids) AS r
                                    CROSS JOIN LATERAL (SELECT e.kind FROM @tidegate.event_queue AS e
                                                         WHERE e.id >= lower(r) AND e.id < upper(r) OFFSET 0) AS q), true)
                   ORDER BY l.expires_at LIMIT 1 FOR UPDATE SKIP LOCKED);
    IF dead <> '{}' THEN
        PERFORM @tidegate.break_leases(dead, true);
    END IF;
    PERFORM @tidegate.promote(most, prepare_poll.now, callable);
END $$;

-- Leases step by step, until a step brings something to handle or the walk has reached the end of the queue.
-- A step locks the events that it looks at. If it leases only some of them, it is undone, so that others may
-- have the rest before the caller commits, and the next one looks at fewer.
CREATE FUNCTION @tidegate.poll(kinds text[], most integer DEFAULT 1, lease interval DEFAULT '60 seconds', now timestamptz DEFAULT NULL)
    RETURNS TABLE (id bigint, token uuid, kind text, payload json, group_key text, correlation_id text, attempt integer,
                   max_attempts integer, created_at timestamptz, expires_at timestamptz, lease_expires_at timestamptz,
                   idempotency_key text, traceparent text, progress jsonb)
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    -- When to stop, if all events so far were blocked. Each step passes twice as many of them.
    until CONSTANT timestamptz := clock_timestamp() + interval '500 milliseconds';
    seconds CONSTANT double precision := extract(epoch FROM poll.lease);
    page integer := most;
    lease_token uuid;
    passed_by text[] := '{}';
    before record;
    step record;
BEGIN
    PERFORM @tidegate.refuse(CASE
        WHEN coalesce(cardinality(poll.kinds), 0) NOT BETWEEN 1 AND 100
            THEN 'kinds: must be 1 to 100 kinds, got ' || coalesce(cardinality(poll.kinds), 0)
        WHEN array_position(poll.kinds, NULL) IS NOT NULL THEN 'kinds: must be names of kinds, got NULL'
        WHEN (poll.most BETWEEN 1 AND 1000) IS NOT TRUE THEN 'most: must be 1 to 1000, got ' || coalesce(poll.most::text, 'NULL')
        WHEN NOT isfinite(poll.now) THEN 'now: must be a finite time, got ' || poll.now END);
    PERFORM @tidegate.check_lease_time(poll.lease);
    PERFORM @tidegate.require_kind(k) FROM unnest(poll.kinds) AS k;
    IF poll.now IS NOT NULL AND NOT @tidegate.is_owner() THEN
        RAISE EXCEPTION 'now: must be given only by the owner of the schema, for tests' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM @tidegate.refuse_copy();
    PERFORM @tidegate.prepare_poll(poll.kinds, poll.most, poll.now);
    SELECT 0::bigint AS after, NULL::bigint AS clear_to, NULL::xid8 AS as_of, NULL::xid8 AS low INTO step;
    LOOP
        lease_token := gen_random_uuid();
        before := step;
        BEGIN
            SELECT l.* INTO step
              FROM @tidegate.lease(lease_token, lease_token, '{}', '{}', seconds, poll.kinds, page, 10485760, page, passed_by, NULL,
                                  before.after, before.clear_to, before.as_of, before.low, poll.now) AS l;
            passed_by := passed_by || step.blocked;
            IF step.taken = 0 OR step.taken < step.scanned OR step.taken > poll.most THEN
                RAISE EXCEPTION USING ERRCODE = 'TG005';
            END IF;
        EXCEPTION WHEN SQLSTATE 'TG005' THEN
            IF step.taken > 0 THEN
                page := least(step.taken, poll.most);
                step := before;
                CONTINUE;
            END IF;
        END;
        EXIT WHEN step.taken > 0 AND @tidegate.sort_out(lease_token, poll.kinds, coalesce(poll.now, clock_timestamp())) > 0;
        IF step.scanned < page OR clock_timestamp() > until THEN
            RETURN;
        END IF;
        page := least(page * 2, 1000);
    END LOOP;
    RETURN QUERY
    SELECT q.id, lease_token, q.kind, q.payload, q.group_key, q.correlation_id, q.attempts + 1, q.max_attempts, q.created_at, q.expires_at,
           l.expires_at, format('tidegate-%s-%s', q.id, (extract(epoch FROM q.created_at) * 1000000)::bigint), q.traceparent, q.progress
      FROM @tidegate.lease AS l CROSS JOIN LATERAL @tidegate.in_hand(ARRAY[l.token]) AS h
     CROSS JOIN LATERAL (SELECT e.* FROM @tidegate.event_queue AS e WHERE e.id = h.id OFFSET 0) AS q
     WHERE l.token = lease_token ORDER BY q.id;
END $$;
COMMENT ON FUNCTION @tidegate.poll IS
    'Leases the next ready events, lowest id first, for a program that handles events by SQL. Commit before the work begins. '
    'kinds: 1 to 100 registered kinds. most: the most events, 1 to 1000. lease: how long they are leased, 1 second to 12 hours. '
    'now: the time that decides what is due, what has expired and which poller has died, and from which the lease runs; for '
    'tests, and only for the owner of the schema. Returns one row per event, none if nothing is ready. token: the lease, which '
    'the later calls name. attempt: the number of this attempt. lease_expires_at: end the events by then, or call extend(). '
    'idempotency_key: the same for every attempt. progress: what earlier attempts stored.';

-- Locks the lease of an event for its end, and returns the event. Null values if the lease does not hold it.
CREATE FUNCTION @tidegate.pulled(id bigint, token uuid) RETURNS @tidegate.event_queue
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    event @tidegate.event_queue;
    ahead bigint;
BEGIN
    PERFORM FROM @tidegate.lease AS l
      WHERE l.token = pulled.token AND l.worker = pulled.token AND l.ids @> pulled.id FOR KEY SHARE;
    IF FOUND THEN
        SELECT q.* INTO event FROM @tidegate.event_queue AS q
         WHERE q.id = pulled.id AND NOT q.id <@ @tidegate.cuts_of(pulled.token);
        SELECT min(q.id) INTO ahead
          FROM @tidegate.in_hand(ARRAY[pulled.token]) AS h JOIN @tidegate.event_queue AS q ON q.id = h.id
         WHERE q.group_key = event.group_key AND q.id < event.id;
        IF ahead IS NOT NULL THEN
            RAISE EXCEPTION 'event %: event % of its group comes first', pulled.id, ahead USING ERRCODE = 'TG004';
        END IF;
    END IF;
    RETURN event;
END $$;

-- Refuses an end under a lease that does not hold the event any more.
CREATE FUNCTION @tidegate.refuse_lost(id bigint, token uuid) RETURNS void
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM @tidegate.refuse(CASE
        WHEN id IS NULL THEN 'id: must be the id of an event, got NULL'
        WHEN token IS NULL THEN 'token: must be the token of a lease, got NULL'
        WHEN NOT EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id = refuse_lost.id)
             AND NOT EXISTS (SELECT FROM @tidegate.logged(refuse_lost.id))
            THEN format('id: must be the id of an event, got %s, which is neither in the queue nor in the log', id) END);
    RAISE EXCEPTION 'event %: the lease was lost', id USING ERRCODE = 'TG001';
END $$;

-- Errors as a caller gives them, in the form in which they are stored: a hundred at most, with messages and
-- details as long as those of Rust's handlers may be.
CREATE FUNCTION @tidegate.pulled_errors(errors jsonb, attempt integer) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    stored jsonb;
BEGIN
    PERFORM @tidegate.refuse('errors: must be an array of objects, got ' || coalesce(jsonb_typeof(errors), 'NULL'))
      WHERE jsonb_typeof(errors) IS DISTINCT FROM 'array';
    PERFORM @tidegate.refuse(format('errors: must be objects with code, message and details, got %s at %s', left(e.error::text, 60), e.position))
       FROM jsonb_array_elements(errors) WITH ORDINALITY AS e(error, position)
      WHERE CASE WHEN jsonb_typeof(e.error) = 'object'
                 THEN e.error - ARRAY['details', 'message', 'code'] <> '{}'
                      OR coalesce(jsonb_typeof(e.error->'code'), 'string') <> 'string'
                      OR coalesce(jsonb_typeof(e.error->'message'), 'string') <> 'string' ELSE true END
      ORDER BY e.position;
    SELECT coalesce(jsonb_agg(jsonb_build_object(
               'handler', 'pull', 'code', left(coalesce(e.error->>'code', 'failed'), 200),
               'message', left(coalesce(e.error->>'message', ''), 2000), 'attempt', attempt)
           || CASE WHEN NOT e.error ? 'details' THEN '{}'
                   WHEN octet_length((e.error->'details')::text) > 16384
                   THEN jsonb_build_object('details', jsonb_build_object('left_out_bytes', octet_length((e.error->'details')::text)))
                   ELSE jsonb_build_object('details', e.error->'details') END ORDER BY e.position), '[]') INTO stored
      FROM jsonb_array_elements(errors) WITH ORDINALITY AS e(error, position) WHERE e.position <= 100;
    RETURN stored || CASE WHEN jsonb_array_length(errors) <= 100 THEN '[]' ELSE jsonb_build_array(jsonb_build_object(
        'handler', 'pull', 'code', 'further', 'message', format('%s more errors', jsonb_array_length(errors) - 100), 'attempt', attempt)) END;
END $$;

-- The number of the present attempt at an event.
CREATE FUNCTION @tidegate.attempt_of(id bigint) RETURNS integer
    LANGUAGE sql STABLE AS $$
    SELECT q.attempts + 1 FROM @tidegate.event_queue AS q WHERE q.id = attempt_of.id
$$;

-- Ends a pulled event, with its follow-ups. `already`: it had ended under this lease.
CREATE FUNCTION @tidegate.end_pulled(id bigint, token uuid, given_status text, errors jsonb, result jsonb, follow_ups jsonb,
                                    OUT status text, OUT already boolean)
    LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    event CONSTANT @tidegate.event_queue := @tidegate.pulled(id, token);
    a record;
BEGIN
    PERFORM @tidegate.refuse('result: must have at most 1048576 bytes, got ' || octet_length(result::text))
      WHERE octet_length(result::text) > 1048576;
    status := given_status;
    already := event.id IS NULL OR cardinality((SELECT f.ended_ids FROM @tidegate.finalize_leased(
        token, ARRAY[event.id], ARRAY[status], ARRAY[true], ARRAY[errors::text], ARRAY[result::text], ARRAY[NULL::text], true) AS f)) = 0;
    IF already THEN
        -- Perhaps by another session at this moment.
        SELECT max(l.status) INTO status FROM @tidegate.logged(end_pulled.id) AS l WHERE l.lease_token = end_pulled.token;
        PERFORM @tidegate.refuse_lost(id, token) WHERE status IS NULL;
        RETURN;
    END IF;
    IF follow_ups IS DISTINCT FROM '[]' THEN
        SELECT e.* INTO a FROM @tidegate.events_of(follow_ups, 'follow_ups') AS e;
        PERFORM FROM @tidegate.publish_children(
            a.kinds, a.payloads, a.group_keys, a.dedup_keys,
            ARRAY(SELECT coalesce(c.id, event.correlation_id) FROM unnest(a.correlation_ids) WITH ORDINALITY AS c(id, n) ORDER BY c.n),
            a.available_ats, a.expires_ats, a.max_attempts_each, array_fill(event.id, ARRAY[cardinality(a.kinds)]),
            ARRAY(SELECT coalesce(t.parent, event.traceparent) FROM unnest(a.traceparents) WITH ORDINALITY AS t(parent, n) ORDER BY t.n));
    END IF;
    PERFORM @tidegate.close_lease(token);
END $$;

CREATE FUNCTION @tidegate.finalize(id bigint, token uuid, errors jsonb DEFAULT '[]', result jsonb DEFAULT NULL, follow_ups jsonb DEFAULT '[]')
    RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN (SELECT e.status
      FROM @tidegate.pulled_errors(coalesce(finalize.errors, '[]'), @tidegate.attempt_of(finalize.id)) AS stored,
           @tidegate.end_pulled(finalize.id, finalize.token, CASE WHEN stored = '[]' THEN 'COMPLETED' ELSE 'COMPLETED_WITH_ERRORS' END,
                               stored, finalize.result, coalesce(finalize.follow_ups, '[]')) AS e);
END $$;
COMMENT ON FUNCTION @tidegate.finalize IS
    'Ends an event of poll() in the caller''s transaction. id and token: as poll() returned them. errors: none, and it ends '
    'COMPLETED; or an array of objects with code, message and details, and it ends COMPLETED_WITH_ERRORS. result: stored in '
    'the log, at most 1048576 bytes. follow_ups: events to publish, as for publish_many(). Returns the status. The same call '
    'again returns the same and changes nothing. If the lease was lost, it raises TG001, so that nothing of the transaction '
    'stays; an id of no event raises 22023.';

-- The delay after this number of attempts, as drains compute it: the kind's backoff, doubled with each
-- further attempt, of which the upper half is random.
CREATE FUNCTION @tidegate.backoff(kind text, attempts integer, random double precision) RETURNS interval
    LANGUAGE sql STABLE AS $$
    SELECT make_interval(secs => least(coalesce((k.policy->>'backoff_ms')::double precision, 1000) * 2 ^ least(greatest(attempts - 1, 0), 31),
                                       coalesce((k.policy->>'backoff_max_ms')::double precision, 600000)) / 1000
                                 * (0.5 + backoff.random / 2))
      FROM (SELECT backoff.kind) AS asked(kind) LEFT JOIN @tidegate.event_kind AS k ON k.kind = asked.kind
$$;

-- An event may be snoozed (`charged` is false) 1,000 times. After that, a snooze is charged as a failed
-- attempt.
CREATE FUNCTION @tidegate.retry(id bigint, token uuid, error jsonb DEFAULT NULL, delay interval DEFAULT NULL, charged boolean DEFAULT true,
                               OUT status text, OUT attempts integer, OUT available_at timestamptz, OUT left_too bigint[])
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    event CONSTANT @tidegate.event_queue := @tidegate.pulled(id, token);
    snoozes CONSTANT integer := coalesce((event.progress->'snoozed'->>'times')::integer, 0);
    fault CONSTANT jsonb := coalesce(error, CASE WHEN retry.charged THEN '{}'::jsonb END);
    stored jsonb;
    counts boolean;
    back record;
BEGIN
    left_too := '{}';
    IF event.id IS NULL THEN
        SELECT l.status, l.attempts INTO status, attempts FROM @tidegate.logged(retry.id) AS l WHERE l.lease_token = retry.token;
        PERFORM @tidegate.refuse_lost(id, token) WHERE status IS NULL;
        RETURN;
    END IF;
    PERFORM @tidegate.refuse(CASE
        WHEN retry.charged IS NULL THEN 'charged: must be true or false, got NULL'
        WHEN delay < interval '0' OR delay > interval '36500 days' THEN 'delay: must be 0 to 36500 days, got ' || delay END);
    counts := retry.charged OR snoozes >= 1000;
    IF NOT retry.charged AND counts THEN
        stored := @tidegate.pulled_errors('[{"code": "snoozed_too_often"}]', event.attempts + 1);
    ELSE
        stored := @tidegate.pulled_errors(CASE WHEN fault IS NULL THEN '[]' ELSE jsonb_build_array(fault) END, event.attempts + 1);
    END IF;
    IF counts AND event.attempts + 1 >= event.max_attempts THEN
        status := (@tidegate.end_pulled(id, token, 'FAILED', stored || jsonb_build_object(
            'handler', NULL, 'code', 'attempts_exhausted', 'attempt', event.attempts + 1,
            'message', format('gave up after attempt %s of %s', event.attempts + 1, event.max_attempts)), NULL, '[]')).status;
        attempts := event.attempts + 1;
        RETURN;
    END IF;
    SELECT r.left_ids, r.busy_ids INTO back
      FROM @tidegate.retry_leased(
               token, ARRAY[event.id], ARRAY[token], ARRAY[counts],
               ARRAY[extract(epoch FROM coalesce(delay, @tidegate.backoff(event.kind, event.attempts + 1, random())))::double precision],
               ARRAY[CASE WHEN retry.charged THEN concat_ws(': ', stored->0->>'code', nullif(stored->0->>'message', '')) END],
               ARRAY[CASE WHEN retry.charged THEN stored END::text],
               ARRAY[CASE WHEN NOT counts THEN jsonb_build_object('snoozed', jsonb_build_object(
                   'times', snoozes + 1, 'why', coalesce(stored->0->>'message', ''))) END::text]) AS r;
    IF event.id <> ALL (back.left_ids) THEN
        RAISE EXCEPTION 'event %: another session has locked it, or a later event of its group; try again', event.id
            USING ERRCODE = 'lock_not_available';
    END IF;
    SELECT 'PENDING', q.attempts, q.available_at INTO status, attempts, available_at FROM @tidegate.event_queue AS q WHERE q.id = event.id;
    left_too := array_remove(back.left_ids, event.id);
    PERFORM @tidegate.close_lease(token);
END $$;
COMMENT ON FUNCTION @tidegate.retry IS
    'Returns an event of poll() to the queue for another attempt. id and token: as poll() returned them. error: an object with '
    'code, message and details. delay: until the next attempt; null for the kind''s backoff, or else 1 second, doubled each '
    'time, up to 10 minutes. charged: false for an event that is not ready yet; it keeps its attempt, at most 1000 times. '
    'Returns status: PENDING, or FAILED if that was the last attempt, or how it had ended under this lease; attempts, available_at, and left_too: later events of '
    'the group that left the lease, too. Stop their work. A lost lease raises TG001.';

CREATE FUNCTION @tidegate.extend(token uuid, lease interval DEFAULT '60 seconds', OUT lease_expires_at timestamptz, OUT held bigint[])
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
    PERFORM @tidegate.check_lease_time(extend.lease);
    PERFORM FROM @tidegate.renew(token, ARRAY[token], extract(epoch FROM extend.lease)::double precision);
    held := ARRAY(SELECT h.id FROM @tidegate.in_hand(ARRAY[extend.token]) AS h ORDER BY h.id);
    SELECT l.expires_at INTO lease_expires_at FROM @tidegate.lease AS l WHERE l.token = extend.token AND l.worker = extend.token;
    IF lease_expires_at IS NULL OR held = '{}' THEN
        RAISE EXCEPTION 'token: the lease holds no event any more' USING ERRCODE = 'TG001';
    END IF;
END $$;
COMMENT ON FUNCTION @tidegate.extend IS
    'Keeps a lease of poll() for longer. token: the lease. lease: how long from now, 1 second to 12 hours. Returns '
    'lease_expires_at, and held: the events that it still holds. An operator may have taken or cancelled the others: stop '
    'their work. If it holds none, it raises TG001.';

CREATE FUNCTION @tidegate.settle(token uuid, outcomes jsonb) RETURNS TABLE (id bigint, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    allowed CONSTANT text[] := ARRAY['id', 'verdict', 'errors', 'after', 'result', 'follow_ups'];
    one jsonb;
    verdict text;
    errors jsonb;
    back record;
    is_busy boolean := false;
BEGIN
    PERFORM @tidegate.refuse('outcomes: must be an array of 1 to 1000 objects, got ' || coalesce(jsonb_typeof(outcomes), 'NULL'))
      WHERE CASE WHEN jsonb_typeof(outcomes) = 'array' THEN jsonb_array_length(outcomes) NOT BETWEEN 1 AND 1000 ELSE true END;
    PERFORM @tidegate.refuse(format('outcome %s: ', o.position) || CASE
               WHEN jsonb_typeof(o.one) <> 'object' THEN 'must be an object, got ' || jsonb_typeof(o.one)
               WHEN o.one - allowed <> '{}' THEN 'must have no fields but ' || array_to_string(allowed, ', ') || ', got '
                                                 || (SELECT min(k) FROM jsonb_object_keys(o.one - allowed) AS k)
               WHEN coalesce(o.one->>'id', '') !~ '^[0-9]{1,18}$' THEN 'id: must be the id of an event, got ' || coalesce(o.one->>'id', 'none')
               WHEN o.one->>'verdict' NOT IN ('done', 'retry', 'reject', 'snooze', 'release')
                    THEN 'verdict: must be done, retry, reject, snooze or release, got ' || quote_literal(o.one->>'verdict')
               WHEN o.one ? 'after' AND CASE WHEN jsonb_typeof(o.one->'after') = 'number'
                                             THEN (o.one->>'after')::numeric NOT BETWEEN 0 AND 86400 ELSE true END
                    THEN 'after: must be 0 to 86400 seconds, got ' || left(o.one->>'after', 40) END)
       FROM jsonb_array_elements(outcomes) WITH ORDINALITY AS o(one, position) ORDER BY o.position;
    -- In the order of the ids, so that the events of a group end in their order.
    FOR one IN SELECT o FROM jsonb_array_elements(outcomes) AS o ORDER BY (o->>'id')::bigint LOOP
        id := (one->>'id')::bigint;
        verdict := coalesce(one->>'verdict', 'done');
        errors := coalesce(nullif(nullif(one->'errors', '[]'), 'null'), CASE WHEN verdict = 'reject' THEN '[{"code": "rejected"}]' ELSE '[]' END::jsonb);
        BEGIN
            IF verdict IN ('done', 'reject') THEN
                SELECT CASE WHEN e.already THEN 'already' ELSE 'ended' END INTO outcome
                  FROM @tidegate.pulled_errors(errors, @tidegate.attempt_of(id)) AS stored,
                       @tidegate.end_pulled(id, settle.token, CASE WHEN stored = '[]' THEN 'COMPLETED' ELSE 'COMPLETED_WITH_ERRORS' END,
                                           stored, one->'result', coalesce(one->'follow_ups', '[]')) AS e;
            ELSIF verdict = 'release' THEN
                PERFORM @tidegate.refuse_lost(id, settle.token) WHERE (@tidegate.pulled(id, settle.token)).id IS NULL;
                SELECT h.* INTO back FROM @tidegate.hand_back(settle.token, ARRAY[id], ARRAY[settle.token]) AS h;
                outcome := CASE WHEN id = ANY (back.left_ids) THEN 'released' ELSE 'lost' END;
                PERFORM @tidegate.close_lease(settle.token);
            ELSE
                SELECT CASE r.status WHEN 'PENDING' THEN 'retried' WHEN 'FAILED' THEN 'failed' ELSE 'already' END INTO outcome
                  FROM @tidegate.retry(id, settle.token, errors->0, make_interval(secs => (one->>'after')::double precision),
                                      verdict = 'retry') AS r;
            END IF;
        EXCEPTION
            WHEN SQLSTATE 'TG001' THEN
                outcome := 'lost';
            WHEN lock_not_available OR deadlock_detected THEN
                outcome := 'busy';
                is_busy := true;
            -- Perhaps the event in front of it is busy.
            WHEN SQLSTATE 'TG004' THEN
                IF NOT is_busy THEN
                    RAISE;
                END IF;
                outcome := 'busy';
        END;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION @tidegate.settle IS
    'Ends or returns several events of one poll(). token: the lease. outcomes: an array of 1 to 1000 objects with id, verdict '
    '(done, retry, reject, snooze or release; without it done), errors (as for finalize(); with done they mean reject), after '
    '(seconds until the next attempt, at most 86400), result and follow_ups. Returns for each id what became of it: ended, '
    'already, retried, failed (that was its last attempt), released, lost, or busy: another session has locked it, so settle it '
    'again. Events that are not named stay leased.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.poll, @tidegate.finalize, @tidegate.retry, @tidegate.extend, @tidegate.settle TO @tidegate_pull;
