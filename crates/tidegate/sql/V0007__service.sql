-- Outside services that do not answer. Handlers name the service that they call; a call that the service has not answered is
-- reported here, for all drains. After so many in a row its circuit opens:
--
--   closed    it answers, as far as anybody knows
--   open      it does not. Kinds whose events have met it are left out of leases, until retry_at
--   probing   retry_at has come, and one worker tries one event. An answer closes, a failure opens again, for longer; of a
--             worker that says nothing another one takes over at retry_at
--   paused    by an operator, until it is resumed
--
-- Nothing of the events is written meanwhile, so that their order and their attempts stay as they are.

-- Opens after this many unanswered calls in a row.
CREATE FUNCTION tidegate.open_after() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 5;

-- What a drain must know: services that have not answered of late.
CREATE FUNCTION tidegate.troubled_services() RETURNS jsonb
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT jsonb_agg(jsonb_build_object(
               'service', s.service, 'state', s.state, 'answers', s.answers,
               'retry_in', extract(epoch FROM s.retry_at - clock_timestamp())))
      FROM tidegate.service AS s WHERE s.state <> 'closed' OR s.failures > 0
$$;

-- What a worker has learnt of a service since its last report: whether it answered (before the failures, if there are any),
-- how many calls in a row it has not answered since, the last one's code, when it wants to be asked again, and the kinds
-- of events that wait for it. `probed`: this is what became of the one event that was tried; with neither answer nor failure
-- it did not come to a call, and another one is tried.
CREATE FUNCTION tidegate.report_service(service text, worker uuid, answered boolean, failed integer, code text,
                                        retry_after double precision, kinds text[], probed boolean) RETURNS jsonb
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
    AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    known tidegate.service;
    next tidegate.service;
BEGIN
    IF coalesce(char_length(report_service.service), 0) NOT BETWEEN 1 AND 100 THEN
        RAISE EXCEPTION 'service: must have 1 to 100 characters, got %', coalesce(char_length(report_service.service), 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- What cannot be told in time is lost; so is what a prober has found, and another one follows.
    BEGIN
        INSERT INTO tidegate.service AS s (service) VALUES (report_service.service) ON CONFLICT DO NOTHING;
        SELECT s.* INTO STRICT known FROM tidegate.service AS s WHERE s.service = report_service.service FOR UPDATE;
    EXCEPTION WHEN lock_not_available THEN
        RETURN tidegate.troubled_services();
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
        IF known.state = 'probing' AND report_service.failed > 0
           OR next.failures >= tidegate.open_after() OR report_service.failed > 0 AND report_service.code = 'credentials' THEN
            next.state := 'open';
            -- One that flaps is left alone for longer and longer, too.
            next.holds := CASE WHEN known.state = 'probing' OR known.answered_at > instant - interval '2 minutes'
                               THEN least(known.holds + 1, 10) ELSE 0 END;
            next.retry_at := instant + make_interval(secs => greatest(
                least(5 * 2 ^ next.holds, 50) * (0.5 + random() / 2), least(coalesce(report_service.retry_after, 0), 3600)));
        ELSIF known.state = 'probing' AND NOT report_service.answered THEN
            next.state := 'open';
            next.retry_at := instant + interval '1 second';
        END IF;
    END IF;
    IF next.state <> known.state AND 'closed' IN (next.state, known.state) THEN
        next.since := instant;
    END IF;
    UPDATE tidegate.service AS s
       SET state = next.state, failures = next.failures, holds = next.holds, since = next.since, retry_at = next.retry_at,
           answers = next.answers, answered_at = next.answered_at, last_error = next.last_error, kinds = next.kinds
     WHERE s.service = report_service.service;
    RETURN tidegate.troubled_services();
END $$;

CREATE FUNCTION tidegate.set_service(action text, service text, state text, reason text, actor text) RETURNS jsonb
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known boolean := EXISTS (SELECT FROM tidegate.service AS s WHERE s.service = set_service.service);
    changed boolean;
BEGIN
    PERFORM tidegate.check_operator(set_service.reason, set_service.actor, true);
    IF coalesce(char_length(set_service.service), 0) NOT BETWEEN 1 AND 100 THEN
        RAISE EXCEPTION 'service: must have 1 to 100 characters, got %', coalesce(char_length(set_service.service), 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT known AND set_service.state = 'closed' THEN
        RAISE EXCEPTION 'service: must be one that has failed or was paused, got %', quote_literal(set_service.service)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO tidegate.service AS s (service) VALUES (set_service.service) ON CONFLICT DO NOTHING;
    UPDATE tidegate.service AS s
       SET state = set_service.state, failures = 0, holds = 0, since = clock_timestamp(), retry_at = NULL, prober = NULL
     WHERE s.service = set_service.service AND (s.state <> set_service.state OR s.failures > 0);
    changed := FOUND;
    INSERT INTO tidegate.audit (action, actor, filter, count, reason)
    VALUES (set_service.action, set_service.actor, jsonb_build_object('service', set_service.service), changed::integer, set_service.reason);
    RETURN jsonb_build_object('action', set_service.action, 'service', set_service.service, 'state', set_service.state, 'changed', changed,
                              'known', known);
END $$;

-- No handler calls the service, and events that would wait, until it is resumed.
CREATE FUNCTION tidegate.pause_service(service text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    AS $$
BEGIN
    RETURN tidegate.set_service('pause_service', pause_service.service, 'paused', pause_service.reason, pause_service.actor);
END $$;

-- Also for one that is open: what waits for it is tried at once.
CREATE FUNCTION tidegate.resume_service(service text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    AS $$
BEGIN
    RETURN tidegate.set_service('resume_service', resume_service.service, 'closed', resume_service.reason, resume_service.actor);
END $$;
