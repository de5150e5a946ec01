-- The state of outside services. A handler names the service that it calls. If a call gets no answer, the
-- worker reports this here, for all drains. After a number of such failures in a row, the circuit of the
-- service opens:
--
--   closed    it answers, as far as is known
--   open      it does not answer. Kinds whose events call it are not leased until retry_at
--   probing   retry_at has passed, and one worker tries one event. An answer closes the circuit, a failure
--             opens it again, for longer. If the worker reports nothing, another one takes over at retry_at
--   paused    by an operator, until it is resumed
--
-- The events themselves are not written in the meantime, so their order and their attempts do not change.
-- But no event waits for ever: give_up() ends those that have waited for longer than their kind allows.
--
-- Calls can also be limited, over all drains: how many run at the same time (`max_running`), and how many
-- start per second (`per_second`). A worker claims places and starts for a few events, leases as many events
-- of the service's kinds, and returns what it does not use. If a worker dies, its places become free when its
-- leases expire.

-- The number of consecutive unanswered calls that opens a service.
CREATE FUNCTION @tidegate.open_after() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 5;

-- Refuses an invalid name of a service.
CREATE FUNCTION @tidegate.check_service(service text) RETURNS void
    LANGUAGE sql AS $$
    SELECT @tidegate.refuse('service: must have 1 to 100 characters, got ' || coalesce(char_length(service), 0))
      WHERE coalesce(char_length(service), 0) NOT BETWEEN 1 AND 100
$$;

-- Whether a service's calls are limited.
CREATE FUNCTION @tidegate.is_limited(s @tidegate.service) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN s.max_running IS NOT NULL OR s.per_second IS NOT NULL;

-- Whether a service has failed recently, or has not answered since an operator resumed it.
CREATE FUNCTION @tidegate.is_troubled(s @tidegate.service) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN s.state <> 'closed' OR s.failures > 0
        -- The limit of a kind (kind:NAME) is no service that could answer.
        OR NOT coalesce(s.answered_at >= s.since, false) AND NOT starts_with(s.service, 'kind:');

-- Whether drains must know of a service.
CREATE FUNCTION @tidegate.is_watched(s @tidegate.service) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN @tidegate.is_troubled(s) OR @tidegate.is_limited(s);

-- Returns what a drain must know: services that failed recently and services with limits, with the kinds of
-- events that call them, and the policies of kinds. Null if there is nothing to know.
CREATE FUNCTION @tidegate.watched_services() RETURNS jsonb
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_agg(w.known) FROM (
        SELECT jsonb_build_object(
               'service', s.service, 'state', s.state, 'troubled', @tidegate.is_troubled(s), 'answers', s.answers,
               'retry_in', extract(epoch FROM s.retry_at - clock_timestamp()),
               'limited', CASE WHEN @tidegate.is_limited(s) THEN jsonb_build_object(
                   'running', s.max_running IS NOT NULL, 'starts', s.per_second IS NOT NULL, 'kinds', s.kinds) END) AS known
          FROM @tidegate.service AS s WHERE @tidegate.is_watched(s)
        UNION ALL
        SELECT jsonb_build_object('kind', k.kind, 'policy', k.policy) FROM @tidegate.event_kind AS k WHERE k.policy <> '{}') AS w);
END $$;

-- Stores what a worker has learned about a service since its last report. The arguments say whether the
-- service answered (before the failures, if there are any), how many calls in a row have failed since, and
-- the code of the last failure. They also say when the service wants to be called again, and which kinds of
-- events wait for it. `probed`: the report is about the one event that was tried. If it contains neither an
-- answer nor a failure, no call was made, and another event is tried. `uncalled` is the kind of that event
-- if its handlers ended without a call: a deployment may have gone round the service. The kind no longer
-- waits for the service, until an event of it calls the service again.
CREATE FUNCTION @tidegate.report_service(service text, worker uuid, answered boolean, failed integer, code text,
                                        retry_after double precision, kinds text[], probed boolean, uncalled text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    known @tidegate.service;
    next @tidegate.service;
BEGIN
    PERFORM @tidegate.check_service(service);
    -- A report that cannot be written in time is lost. If it was the result of a probe, another probe
    -- follows.
    BEGIN
        INSERT INTO @tidegate.service AS s (service) VALUES (report_service.service) ON CONFLICT DO NOTHING;
        SELECT s.* INTO STRICT known FROM @tidegate.service AS s WHERE s.service = report_service.service FOR UPDATE;
    EXCEPTION WHEN lock_not_available THEN
        RETURN @tidegate.watched_services();
    END;
    next := known;
    next.kinds := ARRAY(SELECT DISTINCT k FROM unnest(known.kinds || report_service.kinds) AS k ORDER BY k);
    IF report_service.failed > 0 THEN
        next.last_error := report_service.code;
    END IF;
    IF known.state = 'closed' OR known.state = 'probing' AND known.prober = report_service.worker AND report_service.probed THEN
        IF report_service.answered THEN
            next.answers := known.answers + 1;
            next.answered_at := instant;
            next.failures := 0;
            next.state := 'closed';
        END IF;
        next.failures := next.failures + report_service.failed;
        IF report_service.failed > 0
           AND (known.state = 'probing' OR next.failures >= @tidegate.open_after() OR report_service.code = 'credentials') THEN
            next.state := 'open';
            -- The pauses of a service that flaps also grow longer.
            next.holds := CASE WHEN known.state = 'probing' OR known.answered_at > instant - interval '2 minutes'
                               THEN least(known.holds + 1, 10) ELSE 0 END;
            next.retry_at := instant + make_interval(secs => greatest(
                least(5 * 2 ^ next.holds, 50) * (0.5 + random() / 2), least(coalesce(report_service.retry_after, 0), 3600)));
        ELSIF known.state = 'probing' AND NOT report_service.answered THEN
            next.state := 'open';
            next.retry_at := instant + interval '1 second';
            IF report_service.uncalled IS NOT NULL THEN
                next.kinds := array_remove(next.kinds, report_service.uncalled);
                next.retry_at := instant;
                IF next.kinds = '{}' THEN
                    -- Nobody waits for it. The next event calls it, and one failure is enough to open it
                    -- again.
                    next.state := 'closed';
                    next.failures := @tidegate.open_after() - 1;
                END IF;
            END IF;
        END IF;
    END IF;
    IF next.state <> known.state AND 'closed' IN (next.state, known.state) THEN
        next.since := instant;
    END IF;
    UPDATE @tidegate.service AS s
       SET state = next.state, failures = next.failures, holds = next.holds, since = next.since, retry_at = next.retry_at,
           answers = next.answers, answered_at = next.answered_at, last_error = next.last_error, kinds = next.kinds
     WHERE s.service = report_service.service;
    RETURN @tidegate.watched_services();
END $$;

-- Lets a worker try a service with one event of the service's kinds (`probed`), the next one after `after`.
-- Null if the service is not to be tried now, or if another session has its row, which must not delay a
-- lease.
CREATE FUNCTION @tidegate.begin_probe(service text, worker uuid, kinds text[], seconds double precision, OUT probed text[], OUT after bigint)
    LANGUAGE plpgsql AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
BEGIN
    UPDATE @tidegate.service AS s
       SET state = 'probing', prober = begin_probe.worker, retry_at = instant + make_interval(secs => seconds)
     WHERE s.service = (SELECT d.service FROM @tidegate.service AS d
                         WHERE d.service = begin_probe.service AND d.state IN ('open', 'probing') AND d.retry_at <= instant
                           AND d.kinds && begin_probe.kinds FOR UPDATE SKIP LOCKED)
    RETURNING s.kinds, s.probe_id INTO probed, after;
    after := coalesce(after, 0);
END $$;

-- Records that the probe has come to this event. `is_missed`: it could not be leased, so another one is tried
-- in a second.
CREATE FUNCTION @tidegate.note_probe(service text, id bigint, is_missed boolean) RETURNS void
    LANGUAGE sql AS $$
    UPDATE @tidegate.service AS s
       SET probe_id = note_probe.id, state = CASE WHEN is_missed THEN 'open' ELSE 'probing' END,
           retry_at = CASE WHEN is_missed THEN clock_timestamp() + interval '1 second' ELSE s.retry_at END
     WHERE s.service = note_probe.service
$$;

-- Records that the probe has reached the end of the queue, so that it starts again. If it began at the start,
-- no event is left to try, and the service closes: the next event calls it, and one failure is enough to open
-- it again.
CREATE FUNCTION @tidegate.end_probes(service text) RETURNS void
    LANGUAGE sql AS $$
    UPDATE @tidegate.service AS s
       SET probe_id = 0, retry_at = clock_timestamp(), since = CASE WHEN s.probe_id > 0 THEN s.since ELSE clock_timestamp() END,
           state = CASE WHEN s.probe_id > 0 THEN 'open' ELSE 'closed' END, failures = @tidegate.open_after() - 1
     WHERE s.service = end_probes.service
$$;

CREATE FUNCTION @tidegate.give_up_after() RETURNS interval
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN interval '7 days';
COMMENT ON FUNCTION @tidegate.give_up_after IS
    'How long an event waits for an outside service that does not answer, before it ends FAILED with the code service_down. '
    'Set by `tidegate migrate` from TIDEGATE_GIVE_UP_AFTER; a kind may have its own time in its policy.';

-- How long events of a kind wait for a service.
CREATE FUNCTION @tidegate.patience(policy jsonb) RETURNS interval
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce((policy->>'give_up_after_ms')::bigint * interval '1 ms', @tidegate.give_up_after());
COMMENT ON FUNCTION @tidegate.patience IS 'How long events wait for a service that does not answer. policy: that of their kind.';

-- Kinds whose events have waited for a service for longer than they may, and how long that is. A service that
-- an operator has paused does not count, and neither does a paused kind: the operator decides when its events
-- go on.
CREATE FUNCTION @tidegate.outages(now timestamptz) RETURNS TABLE (kind text, service text, patience interval)
    LANGUAGE sql STABLE AS $$
    SELECT DISTINCT ON (k.kind) k.kind, s.service, @tidegate.patience(k.policy)
      FROM @tidegate.service AS s
      JOIN @tidegate.event_kind AS k ON k.kind = ANY (s.kinds) AND NOT k.paused
     WHERE s.state IN ('open', 'probing') AND s.since <= outages.now - @tidegate.patience(k.policy)
     ORDER BY k.kind, s.since
$$;

-- Ends ready events FAILED that have waited for a service for longer than their kind allows, in no lease: at
-- most `most` among the next `page` ready events with ids above `after`, up to `upto`. An event waits since
-- the first of its attempts in a row that have found a service down. One that has had no attempt waits since
-- it was due. The service has not answered for as long, either: outages() sees to that.
CREATE FUNCTION @tidegate.give_up(
    after bigint, upto bigint, page integer, most integer, published_before timestamptz DEFAULT NULL, dry_run boolean DEFAULT false,
    now timestamptz DEFAULT NULL, OUT ended bigint[]
) LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    moment CONSTANT timestamptz := least(give_up.now, clock_timestamp());
    held int8multirange;
    chosen bigint[];
    outage record;
BEGIN
    ended := '{}';
    IF NOT EXISTS (SELECT FROM @tidegate.outages(moment)) THEN
        RETURN;
    END IF;
    SELECT coalesce(range_agg(l.ids), '{}') INTO held FROM @tidegate.lease AS l;
    chosen := ARRAY(
        SELECT q.id
          FROM (SELECT e.id, e.kind, e.available_at, e.waits_since, e.created_at FROM @tidegate.event_queue AS e
                 WHERE NOT e.delayed AND e.id > after AND e.id <= upto ORDER BY e.id LIMIT page) AS q
          JOIN @tidegate.outages(moment) AS o ON o.kind = q.kind
         WHERE coalesce(q.waits_since, q.available_at) <= moment - o.patience AND NOT q.id <@ held
           AND (published_before IS NULL OR q.created_at <= published_before)
         ORDER BY q.id LIMIT most);
    IF dry_run OR chosen = '{}' THEN
        ended := chosen;
        RETURN;
    END IF;
    chosen := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (chosen) ORDER BY q.id FOR NO KEY UPDATE SKIP LOCKED);
    -- A separate statement, so that it sees leases that were being taken. No lease can take the events that
    -- we have locked.
    SELECT coalesce(range_agg(l.ids), '{}') INTO held FROM @tidegate.lease AS l;
    FOR outage IN SELECT o.service, o.patience, array_agg(q.id ORDER BY q.id) AS ids
                    FROM @tidegate.event_queue AS q JOIN @tidegate.outages(moment) AS o ON o.kind = q.kind
                   WHERE q.id = ANY (chosen) AND NOT q.id <@ held GROUP BY 1, 2 LOOP
        ended := ended || (@tidegate.end_locked(outage.ids, 'service_down',
                               format('%s has not answered for %s', outage.service, outage.patience))).ended;
    END LOOP;
END $$;

-- Pauses or resumes a service.
CREATE FUNCTION @tidegate.set_service(action text, service text, state text, reason text, actor text) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    known boolean := EXISTS (SELECT FROM @tidegate.service AS s WHERE s.service = set_service.service);
    changed boolean;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.check_service(service);
    PERFORM @tidegate.refuse(format('service: must be a service that has failed or was paused, got %L', service))
      WHERE NOT known AND state = 'closed';
    INSERT INTO @tidegate.service AS s (service) VALUES (set_service.service) ON CONFLICT DO NOTHING;
    UPDATE @tidegate.service AS s
       SET state = set_service.state, failures = 0, holds = 0, since = clock_timestamp(), retry_at = NULL, prober = NULL
     WHERE s.service = set_service.service AND (s.state <> set_service.state OR s.failures > 0);
    changed := FOUND;
    PERFORM @tidegate.record_change(action, actor, jsonb_build_object('service', service), changed::int, reason);
    RETURN jsonb_build_object('action', action, 'service', service, 'state', state, 'changed', changed, 'known', known);
END $$;

CREATE FUNCTION @tidegate.pause_service(service text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    RETURN @tidegate.set_service('pause_service', service, 'paused', reason, actor);
COMMENT ON FUNCTION @tidegate.pause_service IS
    'Stops all calls of an outside service; its events wait. service: its name, 1 to 100 characters. reason: the reason, '
    'required. actor: the operator''s name.';

CREATE FUNCTION @tidegate.resume_service(service text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    RETURN @tidegate.set_service('resume_service', service, 'closed', reason, actor);
COMMENT ON FUNCTION @tidegate.resume_service IS
    'Resumes a service after pause_service(). If the service does not answer, it is tried again at once. service: its name. '
    'reason: the reason, required. actor: the operator''s name.';

-- Claims places and starts: `running` is how many events of the service the worker runs, `wanted` is for how
-- many more it wants a place, and `starts` is how many starts it wants. A negative number of starts returns
-- starts. The result is how many places the worker now has, including those of running events, and the
-- starts that it may use. The first start is after `first_in` seconds, and each further one is `apart`
-- seconds after the one before. Starts are given for at most one second ahead. Values that are not limited
-- are null. All values are null if another session is claiming at this moment.
CREATE FUNCTION @tidegate.claim_service(service text, worker uuid, running integer, wanted integer, starts integer,
                                       seconds double precision,
                                       OUT places integer, OUT starting integer, OUT first_in double precision, OUT apart double precision)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    known @tidegate.service;
    mine integer;
    others bigint;
    first timestamptz;
BEGIN
    SELECT s.* INTO known FROM @tidegate.service AS s WHERE s.service = claim_service.service FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM @tidegate.service_place AS p
     WHERE p.service = claim_service.service AND (p.until < instant OR p.worker = claim_service.worker AND running + wanted <= 0);
    SELECT coalesce(sum(p.places) FILTER (WHERE p.worker <> claim_service.worker), 0),
           coalesce(sum(p.places) FILTER (WHERE p.worker = claim_service.worker), 0)
      INTO others, mine FROM @tidegate.service_place AS p WHERE p.service = claim_service.service;
    IF known.max_running IS NOT NULL THEN
        -- Running events keep their places, even if the limit was lowered.
        places := greatest(least(running + wanted, known.max_running - others), least(running, mine), 0);
        IF places > 0 THEN
            INSERT INTO @tidegate.service_place AS p (service, worker, places, until)
            VALUES (claim_service.service, claim_service.worker, claim_service.places, instant + make_interval(secs => seconds))
            ON CONFLICT (service, worker) DO UPDATE SET places = excluded.places, until = excluded.until;
        END IF;
    END IF;
    IF known.per_second IS NOT NULL THEN
        apart := 1 / known.per_second;
        first := greatest(known.next_start, instant);
        first_in := extract(epoch FROM first - instant);
        starting := CASE WHEN starts <= 0 THEN 0
                         ELSE least(starts, CASE WHEN known.max_running IS NOT NULL THEN places - running END,
                                    floor((1 - first_in) * known.per_second) + 1) END;
        starting := greatest(starting, 0);
        IF starting > 0 OR starts < 0 THEN
            UPDATE @tidegate.service AS s SET next_start = first + make_interval(secs => CASE WHEN starts < 0 THEN starts ELSE starting END * apart)
             WHERE s.service = claim_service.service;
        END IF;
    END IF;
END $$;

CREATE FUNCTION @tidegate.limit_service(service text, max_running integer, per_second double precision, reason text,
                                       actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    known boolean := EXISTS (SELECT FROM @tidegate.service AS s WHERE s.service = limit_service.service);
    made @tidegate.service;
    changed boolean;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.check_service(service);
    PERFORM @tidegate.refuse(CASE
        WHEN max_running NOT BETWEEN 0 AND 10000
            THEN 'max_running: must be 1 to 10000, or 0 for any number, got ' || max_running
        WHEN per_second <> 0 AND NOT per_second BETWEEN 0.0001 AND 10000
            THEN 'per_second: must be 0.0001 to 10000, or 0 for any number, got ' || per_second
        WHEN num_nonnulls(max_running, per_second) = 0
            THEN 'max_running, per_second: one of them must be given, got neither' END);
    INSERT INTO @tidegate.service AS s (service) VALUES (limit_service.service) ON CONFLICT DO NOTHING;
    UPDATE @tidegate.service AS s
       SET max_running = nullif(coalesce(limit_service.max_running, s.max_running), 0),
           per_second = nullif(coalesce(limit_service.per_second, s.per_second), 0),
           -- The next start was computed for the old rate and is no longer valid.
           next_start = '-infinity'
     WHERE s.service = limit_service.service
       AND (coalesce(s.max_running, 0) <> coalesce(limit_service.max_running, s.max_running, 0)
            OR coalesce(s.per_second, 0) <> coalesce(limit_service.per_second, s.per_second, 0));
    changed := FOUND;
    SELECT s.* INTO STRICT made FROM @tidegate.service AS s WHERE s.service = limit_service.service;
    -- Does not use record_change, because a limit that was removed is a null that must be recorded.
    INSERT INTO @tidegate.audit (action, actor, filter, count, reason)
    VALUES ('limit_service', limit_service.actor,
            jsonb_build_object('service', made.service, 'max_running', made.max_running, 'per_second', made.per_second),
            changed::integer, limit_service.reason);
    RETURN jsonb_build_object('action', 'limit_service', 'service', made.service, 'state', made.state, 'changed', changed, 'known', known,
                              'max_running', made.max_running, 'per_second', made.per_second);
END $$;
COMMENT ON FUNCTION @tidegate.limit_service IS
    'Limits the calls of an outside service, over all drains. service: its name. max_running: the most events at once, 1 to '
    '10000; 0 removes the limit, null leaves it unchanged. per_second: the most starts per second, 0.0001 to 10000; 0 and '
    'null as for max_running. reason: the reason, required. actor: the operator''s name.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.open_after, @tidegate.is_limited, @tidegate.is_troubled, @tidegate.is_watched,
    @tidegate.watched_services, @tidegate.check_service, @tidegate.report_service, @tidegate.begin_probe, @tidegate.note_probe,
    @tidegate.end_probes, @tidegate.claim_service, @tidegate.give_up
   TO @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.patience, @tidegate.give_up_after TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.pause_service, @tidegate.resume_service, @tidegate.limit_service TO @tidegate_operate;
