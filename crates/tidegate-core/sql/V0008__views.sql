-- Views for people: live events with their state for operators, jobs as a client of an HTTP interface sees
-- them, and events that are leased, stuck, blocked or slow.

-- An event is found in a set by binary search. Further sets are those that may have started or are stuck.
CREATE VIEW @tidegate.held AS
SELECT l.ids - c.ids AS ids, l.started - c.ids AS started, l.stuck - c.ids AS stuck
  FROM (SELECT coalesce(range_agg(ids), '{}') AS ids,
               coalesce(range_agg(ids * int8multirange(int8range(NULL, started_to, '(]'))), '{}') AS started,
               coalesce(range_agg(ids) FILTER (WHERE expires_at <= statement_timestamp()), '{}') AS stuck
          FROM @tidegate.lease) AS l,
       -- What operators have taken is no longer in hand.
       (SELECT coalesce(range_agg(int8range(id, id, '[]')), '{}') AS ids FROM @tidegate.lease_cut) AS c;
COMMENT ON VIEW @tidegate.held IS 'All leases together, as sets of ids; the other views use it.';
COMMENT ON COLUMN @tidegate.held.ids IS 'All leased ids.';
COMMENT ON COLUMN @tidegate.held.started IS 'The leased ids that a handler may be processing.';
COMMENT ON COLUMN @tidegate.held.stuck IS 'The leased ids whose worker has not renewed its lease in time.';

-- The state of an event depends on the lease that holds it. An attempt counts here as soon as it may have
-- started.
--
-- The view has two halves, so that a query for PROCESSING does not read the whole queue. With a join from the
-- queue to its leases, a million events were read to find the nine hundred of a stuck lease (13,300 pages;
-- 186 with two halves). The PENDING events are filtered outside of their half, so that this half stays a
-- plain table: its rows come in index order, and LIMIT stops the scan.
--
-- A lease's ids are listed, because the planner expects few rows of a list, but of a range a two-hundredth of
-- the queue: with ten leases and a million events it then compiled the plan, for 0.3 s. A lease has at most
-- 10,000 ids; without LIMIT the planner would expect ten times as many. Not a function, which is checked
-- against the reader: a right on the view alone would not be enough.
CREATE VIEW @tidegate.events AS
SELECT e.*
  FROM (SELECT q.id, q.kind, q.payload, q.group_key, q.dedup_key, q.correlation_id, 'PROCESSING' AS status,
               q.attempts + (q.id <= l.started_to AND q.attempts < q.max_attempts)::int AS attempts, q.max_attempts,
               q.available_at, q.expires_at, q.created_at, l.renewed_at AS updated_at, l.taken_at AS processing_started_at,
               l.token AS lease_token, l.expires_at AS lease_expires_at, q.last_error, q.errors,
               q.progress, q.parent_id, q.replay_of, q.delayed, q.traceparent, q.reported
          FROM @tidegate.lease AS l
          JOIN @tidegate.event_queue AS q ON q.id = ANY (ARRAY(SELECT generate_series(lower(r), upper(r) - 1) FROM unnest(l.ids) AS r LIMIT 10000))
         WHERE NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = l.token AND c.id = q.id)
        UNION ALL
        SELECT q.id, q.kind, q.payload, q.group_key, q.dedup_key, q.correlation_id, 'PENDING',
               q.attempts, q.max_attempts,
               q.available_at, q.expires_at, q.created_at, coalesce((q.errors->-1->>'at')::timestamptz, q.created_at), NULL,
               NULL, NULL, q.last_error, q.errors,
               q.progress, q.parent_id, q.replay_of, q.delayed, q.traceparent, NULL
          FROM @tidegate.event_queue AS q) AS e
 WHERE e.status = 'PROCESSING' OR NOT e.id <@ (SELECT ids FROM @tidegate.held);
COMMENT ON VIEW @tidegate.events IS
    'Live events with their state. An UPDATE of status to PENDING requeues an event. An UPDATE of available_at or '
    'expires_at reschedules it. A DELETE cancels it. Each of these writes an audit row.';
COMMENT ON COLUMN @tidegate.events.status IS 'PENDING: it waits. PROCESSING: a worker has leased it.';
COMMENT ON COLUMN @tidegate.events.attempts IS 'Attempts so far, including one that may be running.';
COMMENT ON COLUMN @tidegate.events.updated_at IS 'The time of the last lease renewal, the latest error, or the publish.';
COMMENT ON COLUMN @tidegate.events.processing_started_at IS 'When its lease was taken. Null: it is not leased.';
COMMENT ON COLUMN @tidegate.events.lease_token IS 'The lease that holds it. Null: it is not leased.';
COMMENT ON COLUMN @tidegate.events.lease_expires_at IS 'When that lease runs out if it is not renewed. Null: it is not leased.';
COMMENT ON COLUMN @tidegate.events.reported IS
    'The progress that the running handler reports. Null: none, or the event is not leased.';

CREATE VIEW @tidegate.at_work AS
SELECT q.id, q.kind, q.reported->>'handler' AS handler, (q.reported->>'part')::double precision AS part,
       q.reported->>'note' AS note, (q.reported->>'at')::timestamptz AS reported_at
  FROM @tidegate.lease AS l
  JOIN @tidegate.event_queue AS q ON q.id = ANY (ARRAY(SELECT generate_series(lower(r), upper(r) - 1) FROM unnest(l.ids) AS r LIMIT 10000))
 WHERE q.id <= l.started_to AND q.reported IS NOT NULL;
COMMENT ON VIEW @tidegate.at_work IS 'The progress that running handlers report for their events.';
COMMENT ON COLUMN @tidegate.at_work.handler IS 'The handler that reports.';
COMMENT ON COLUMN @tidegate.at_work.part IS 'The part that is done, 0 to 1.';
COMMENT ON COLUMN @tidegate.at_work.note IS 'The handler''s note about it.';
COMMENT ON COLUMN @tidegate.at_work.reported_at IS 'When the handler reported it.';

-- Trigger of the view events: an UPDATE requeues or reschedules. `update events set status = 'PENDING' where
-- id = …` (D14) leaves the same audit row as any other requeue. SECURITY DEFINER: a right on the view is
-- enough.
CREATE FUNCTION @tidegate.update_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    allowed constant text[] := ARRAY['status', 'available_at', 'expires_at', 'max_attempts'];
    changed jsonb := '{"via": "events"}';
    requeues boolean;
    same record := NEW;
BEGIN
    same.status := OLD.status;
    same.available_at := OLD.available_at;
    same.expires_at := OLD.expires_at;
    same.max_attempts := OLD.max_attempts;
    PERFORM @tidegate.refuse(CASE
        -- Byte by byte: json has no equality, and what it may hold, jsonb may not.
        WHEN same *<> OLD
            THEN 'events: only status, available_at, expires_at and max_attempts may be updated'
        WHEN NEW.status IS DISTINCT FROM 'PENDING' AND NEW.status IS DISTINCT FROM OLD.status
            THEN 'events.status: must be PENDING (requeue), got ' || coalesce(NEW.status, 'NULL') END);
    SELECT changed || coalesce(jsonb_object_agg(n.key, n.value), '{}') INTO changed
      FROM jsonb_each(jsonb_build_object('available_at', NEW.available_at, 'expires_at', NEW.expires_at, 'max_attempts', NEW.max_attempts)) AS n
      JOIN jsonb_each(jsonb_build_object('available_at', OLD.available_at, 'expires_at', OLD.expires_at, 'max_attempts', OLD.max_attempts)) AS o
        ON o.key = n.key AND o.value <> n.value;
    -- Changing another column of a waiting event does not requeue it.
    requeues := NEW.status = 'PENDING' AND (OLD.status <> 'PENDING' OR NOT changed ?| allowed);
    PERFORM @tidegate.check_group_delay(NEW.group_key, NEW.available_at) WHERE changed ? 'available_at';
    IF requeues THEN
        PERFORM @tidegate.end_leases(ARRAY[OLD.id]);
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    ELSIF changed ?| ARRAY['available_at', 'expires_at'] THEN
        -- As when an operator changes its start.
        PERFORM FROM @tidegate.event_queue AS q WHERE q.id = OLD.id FOR NO KEY UPDATE;
        IF EXISTS (SELECT FROM @tidegate.held AS h WHERE h.ids @> OLD.id) THEN
            PERFORM @tidegate.refuse(format('events.status: must be set to PENDING (requeue) together with available_at and expires_at, because a worker holds event %s, got PROCESSING', OLD.id));
        END IF;
    END IF;
    IF changed ?| allowed THEN
        UPDATE @tidegate.event_queue AS q
           SET available_at = CASE WHEN changed ? 'available_at' THEN NEW.available_at ELSE q.available_at END,
               waits_since = CASE WHEN NOT changed ? 'available_at' THEN q.waits_since END,
               expires_at = NEW.expires_at, stray = q.stray OR q.group_key IS NOT NULL,
               max_attempts = CASE WHEN requeues THEN greatest(NEW.max_attempts, q.attempts + 1) ELSE NEW.max_attempts END
         WHERE q.id = OLD.id;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    -- Does not use record_action, because a deadline that was removed is a null that must be recorded.
    INSERT INTO @tidegate.audit (action, filter, ids, count)
    VALUES (CASE WHEN requeues THEN 'requeue' ELSE 'update' END, changed, ARRAY[OLD.id], 1);
    RETURN NEW;
END $$;

CREATE TRIGGER events_update INSTEAD OF UPDATE ON @tidegate.events
    FOR EACH ROW EXECUTE FUNCTION @tidegate.update_event();

-- Trigger of the view events: a DELETE cancels.
CREATE FUNCTION @tidegate.delete_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
BEGIN
    IF cardinality((@tidegate.end_live(ARRAY[OLD.id], 'cancelled', 'cancelled by an operator: deleted from the view events')).ended) = 0 THEN
        RETURN NULL;
    END IF;
    INSERT INTO @tidegate.audit (action, filter, ids, count) VALUES ('cancel', '{"via": "events"}', ARRAY[OLD.id], 1);
    RETURN OLD;
END $$;

CREATE TRIGGER events_delete INSTEAD OF DELETE ON @tidegate.events
    FOR EACH ROW EXECUTE FUNCTION @tidegate.delete_event();

CREATE FUNCTION @tidegate.job_status(status text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE status WHEN 'COMPLETED' THEN 'processed' WHEN 'COMPLETED_WITH_ERRORS' THEN 'failed' ELSE 'failed_with_error' END;
COMMENT ON FUNCTION @tidegate.job_status IS
    'The status of a job. status: COMPLETED, COMPLETED_WITH_ERRORS or FAILED, as in the log. Returns processed, failed or '
    'failed_with_error.';

CREATE FUNCTION @tidegate.job_status_number(status text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE status WHEN 'COMPLETED' THEN 1 WHEN 'COMPLETED_WITH_ERRORS' THEN 2 ELSE 3 END;
COMMENT ON FUNCTION @tidegate.job_status_number IS
    'The status of a job as a number. status: as in the log. Returns 1 processed, 2 failed, 3 failed_with_error.';

CREATE FUNCTION @tidegate.job_status_code(status text, errors jsonb) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE status
               WHEN 'COMPLETED' THEN 200
               WHEN 'COMPLETED_WITH_ERRORS'
                    THEN CASE WHEN errors->-1->>'code' ~ '^4[0-9][0-9]$' THEN (errors->-1->>'code')::integer ELSE 409 END
               ELSE 500 END;
COMMENT ON FUNCTION @tidegate.job_status_code IS
    'The status of a job as an HTTP status. status and errors: as in the log. Returns 200, 4xx or 500.';

CREATE VIEW @tidegate.jobs AS
SELECT id, kind, 'pending'::text AS status, 0 AS status_number, NULL::integer AS status_code,
       correlation_id, group_key, errors, NULL::jsonb AS result, created_at, NULL::timestamptz AS finished_at
  FROM @tidegate.event_queue
UNION ALL
SELECT id, kind, @tidegate.job_status(status), @tidegate.job_status_number(status), @tidegate.job_status_code(status, errors),
       correlation_id, group_key, errors, result, created_at, finished_at
  FROM @tidegate.event_log;
COMMENT ON VIEW @tidegate.jobs IS
    'Live and finished events, in the form for clients of an HTTP interface. Use job() to read one event by its id, because '
    'a scan of the view reads the whole log.';
COMMENT ON COLUMN @tidegate.jobs.status IS 'pending, processed, failed or failed_with_error.';
COMMENT ON COLUMN @tidegate.jobs.status_number IS '0 pending, 1 processed, 2 failed, 3 failed_with_error.';
COMMENT ON COLUMN @tidegate.jobs.status_code IS
    'An HTTP status: 200 processed; 4xx failed, from the last error''s code or else 409; 500 failed_with_error. Null: '
    'pending.';
COMMENT ON COLUMN @tidegate.jobs.finished_at IS 'When it ended. Null: it is live.';

-- For a role that may read the state of a job and nothing else. While an event is live, its id belongs to
-- this event, even if a copy of the database has drawn the same id again.
CREATE FUNCTION @tidegate.job(id bigint) RETURNS SETOF @tidegate.jobs
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    WITH live AS MATERIALIZED (
        SELECT q.id, q.kind, 'pending'::text, 0, NULL::integer, q.correlation_id, q.group_key, q.errors, NULL::jsonb,
               q.created_at, NULL::timestamptz
          FROM @tidegate.event_queue AS q WHERE q.id = job.id
    )
    SELECT * FROM live
    UNION ALL
    SELECT l.id, l.kind, @tidegate.job_status(l.status), @tidegate.job_status_number(l.status),
           @tidegate.job_status_code(l.status, l.errors), l.correlation_id, l.group_key, l.errors, l.result, l.created_at, l.finished_at
      FROM @tidegate.logged(job.id) AS l WHERE NOT EXISTS (SELECT FROM live)
$$;
COMMENT ON FUNCTION @tidegate.job IS
    'The state of one event: a row of the view jobs, or no row if there is no such event. id: the event''s id.';

-- What holds a live event up, and until when: its own time, that of the first event of its group, or the next
-- try of a service that one of them waits for.
CREATE FUNCTION @tidegate.due_at(id bigint) RETURNS timestamptz
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT greatest(q.available_at, head.available_at, (
               SELECT max(s.retry_at) FROM @tidegate.service AS s
                WHERE s.state IN ('open', 'probing') AND s.kinds && ARRAY[q.kind, head.kind]))
      FROM @tidegate.event_queue AS q
      LEFT JOIN LATERAL (SELECT h.kind, h.available_at FROM @tidegate.event_queue AS h
                          WHERE h.group_key = q.group_key AND h.id < q.id ORDER BY h.id LIMIT 1) AS head ON true
     WHERE q.id = due_at.id
$$;
COMMENT ON FUNCTION @tidegate.due_at IS
    'When a live event may start at the earliest: the next try of a service that does not answer counts, and what the first '
    'event of its group waits for. Null if it is not live. id: the event''s id.';

-- A time in sentences for people.
CREATE FUNCTION @tidegate.in_words(at timestamptz) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"');

-- Since when something has been paused, and by whom, as far as the latest 1000 pauses and resumptions tell.
-- subject: what the audit names, such as {"kind": …}.
CREATE FUNCTION @tidegate.pause_in_words(pause text, resume text, subject jsonb) RETURNS text
    LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN a.action = pause THEN format(' since %s by %s', @tidegate.in_words(a.at), coalesce(a.actor, a.session_user_name)) END
      FROM ((SELECT * FROM @tidegate.audit WHERE action = pause ORDER BY id DESC LIMIT 1000)
            UNION ALL
            (SELECT * FROM @tidegate.audit WHERE action = resume ORDER BY id DESC LIMIT 1000)) AS a
     WHERE a.filter @> subject AND a.count > 0
     ORDER BY a.id DESC LIMIT 1
$$;

-- What a live event does at this moment, without its group, as the end of a sentence that begins with the
-- event. If several things hold it up, the one is named that must change before the others matter: first
-- what needs an operator, then what ends last.
CREATE FUNCTION @tidegate.state_in_words(id bigint) RETURNS text
    LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    event record;
    held record;
    known record;
    service record;
    run record;
BEGIN
    -- Not the payload: it may be unreadable.
    SELECT q.kind, q.attempts, q.max_attempts, q.lapses, q.available_at, q.expires_at, split_part(q.last_error, ':', 1) AS code
      INTO event FROM @tidegate.event_queue AS q WHERE q.id = state_in_words.id;
    SELECT l.expires_at, l.expires_at <= instant AS has_run_out, state_in_words.id <= l.started_to AS has_started,
           CASE WHEN l.token = l.worker THEN 'a program that polled it' ELSE 'worker ' || l.worker END AS worker
      INTO held FROM @tidegate.lease AS l
     WHERE l.ids @> state_in_words.id AND NOT l.ended
       AND NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = l.token AND c.id = state_in_words.id);
    IF held.has_run_out THEN
        RETURN format('is leased by %s, which stopped responding: its lease ran out at %s, and the next drain takes the event back',
                      held.worker, @tidegate.in_words(held.expires_at));
    ELSIF held.has_started THEN
        RETURN format('is being handled now, attempt %s of %s, by %s, whose lease runs until %s',
                      least(event.attempts + 1, event.max_attempts), event.max_attempts, held.worker, @tidegate.in_words(held.expires_at));
    ELSIF held.worker IS NOT NULL THEN
        RETURN format('is leased by %s until %s and has not started', held.worker, @tidegate.in_words(held.expires_at));
    ELSIF event.expires_at <= instant THEN
        RETURN format('has passed its deadline, %s: the next drain ends it FAILED with the code expired', @tidegate.in_words(event.expires_at));
    END IF;

    SELECT k.paused, k.targets = '{}' AS is_pulled INTO known FROM @tidegate.event_kind AS k WHERE k.kind = event.kind;
    IF known.paused THEN
        RETURN format('waits because its kind %s is paused', event.kind)
            || coalesce(@tidegate.pause_in_words('pause', 'resume', jsonb_build_object('kind', event.kind)), '');
    END IF;
    SELECT s.service, s.state, s.since, s.retry_at, s.last_error INTO service FROM @tidegate.service AS s
     WHERE s.state <> 'closed' AND event.kind = ANY (s.kinds) ORDER BY s.state <> 'paused', s.retry_at DESC LIMIT 1;
    IF service.state = 'paused' THEN
        RETURN format('waits because the service %s is paused', service.service)
            || coalesce(@tidegate.pause_in_words('pause_service', 'resume_service', jsonb_build_object('service', service.service)), '');
    ELSIF service.service IS NOT NULL AND greatest(service.retry_at, instant) >= event.available_at THEN
        RETURN format('waits for the service %s, which has been down since %s%s and is tried %s', service.service,
                      @tidegate.in_words(service.since), ' (' || service.last_error || ')',
                      CASE WHEN service.state = 'probing' THEN 'now' WHEN service.retry_at <= instant THEN 'by the next drain'
                           ELSE 'again at ' || @tidegate.in_words(service.retry_at) END);
    ELSIF event.available_at > instant AND event.code IS NULL THEN
        RETURN 'waits for its planned time, ' || @tidegate.in_words(event.available_at);
    ELSIF event.available_at > instant THEN
        RETURN format('waits for attempt %s of %s, which is due at %s, because the last one ended with %s',
                      event.attempts + 1, event.max_attempts, @tidegate.in_words(event.available_at), event.code);
    ELSIF known IS NULL THEN
        RETURN format('is of the kind %s, which nobody has registered: the next drain ends it FAILED with the code no_handler', event.kind);
    ELSIF known.is_pulled THEN
        RETURN format('is ready: its kind %s is only pulled, and no program has polled for it', event.kind);
    END IF;

    SELECT CASE WHEN s.service = 'kind:' || event.kind THEN 'its kind' ELSE 'the service ' || s.service END AS name,
           s.per_second, s.next_start, s.max_running, p.places >= s.max_running AS is_full
      INTO service FROM @tidegate.service AS s
     CROSS JOIN LATERAL (SELECT sum(p.places) AS places FROM @tidegate.service_place AS p
                          WHERE p.service = s.service AND p.until >= instant) AS p
     WHERE event.kind = ANY (s.kinds) AND (p.places >= s.max_running OR s.per_second IS NOT NULL AND s.next_start > instant)
     ORDER BY s.service LIMIT 1;
    IF service.is_full THEN
        RETURN format('waits because %s may run %s at once, and as many run', service.name, service.max_running);
    ELSIF service.name IS NOT NULL THEN
        RETURN format('waits because %s may start %s per second, the next at %s', service.name, service.per_second,
                      @tidegate.in_words(service.next_start));
    END IF;
    SELECT r.started_at, r.ended_at, r.stop_reason INTO run FROM @tidegate.drain_run AS r ORDER BY r.ended_at DESC LIMIT 1;
    RETURN 'is ready' || CASE WHEN event.lapses > 0 THEN ' and will run alone, because its last worker stopped responding' ELSE '' END
        || CASE WHEN EXISTS (SELECT FROM @tidegate.drain_slot AS s WHERE s.until > instant) THEN ': a drain is at work and takes it in its turn'
                WHEN run IS NULL THEN ': the next drain takes it, and none has ended within the last week'
                WHEN run.ended_at <= event.available_at THEN ': the next drain takes it, and none has run since ' || @tidegate.in_words(run.ended_at)
                WHEN run.stop_reason = 'queue_empty' AND run.started_at > event.available_at
                     AND NOT EXISTS (SELECT FROM @tidegate.service AS s WHERE event.kind = ANY (s.kinds) AND s.since > run.started_at)
                     -- An operator may have released it since.
                     AND coalesce((SELECT a.at <= run.started_at FROM @tidegate.audit AS a ORDER BY a.id DESC LIMIT 1), true)
                THEN format(', but the drain that ended at %s left it: perhaps no program that runs handles its kind %s', @tidegate.in_words(run.ended_at), event.kind)
                ELSE format(': the next drain takes it, and the last one ended at %s with %s', @tidegate.in_words(run.ended_at), run.stop_reason) END;
END $$;

CREATE FUNCTION @tidegate.why(id bigint) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    event record;
    ended record;
    head bigint;
    state text;
BEGIN
    SELECT q.group_key, q.expires_at INTO event FROM @tidegate.event_queue AS q WHERE q.id = why.id;
    IF FOUND THEN
        SELECT h.id INTO head FROM @tidegate.event_queue AS h
         WHERE h.group_key = event.group_key AND h.id < why.id ORDER BY h.id LIMIT 1;
        state := @tidegate.state_in_words(coalesce(head, why.id));
        RETURN format('It %s%s%s.', 'waits behind event ' || head || ' of its group, which ', state,
                      CASE WHEN event.expires_at > clock_timestamp() AND (head IS NOT NULL OR state NOT LIKE 'is being handled%')
                           THEN '; it ends FAILED unless it starts by ' || @tidegate.in_words(event.expires_at) END);
    END IF;
    SELECT l.status, l.finished_at, l.attempts, l.errors->-1->>'code' AS code INTO ended FROM @tidegate.logged(why.id) AS l;
    PERFORM @tidegate.refuse(format('id: must be the id of an event, got %s, which is neither in the queue nor in the log',
                                   coalesce(why.id::text, 'NULL')))
      WHERE ended IS NULL;
    RETURN format('It ended %s at %s after %s attempt%s%s.', ended.status, @tidegate.in_words(ended.finished_at), ended.attempts,
                  CASE WHEN ended.attempts <> 1 THEN 's' END,
                  CASE WHEN ended.status <> 'COMPLETED' THEN ' with the code ' || ended.code END);
END $$;
COMMENT ON FUNCTION @tidegate.why IS
    'Why an event has not ended, in one sentence: what it waits for and until when, or who handles it. What must change first '
    'is named. Of an ended event it says how it ended. Times are in UTC. id: the event''s id, live or finished.';

CREATE VIEW @tidegate.ends AS
SELECT id, kind, status, attempts, max_attempts, group_key, correlation_id, created_at, finished_at,
       nullif(concat_ws(': ', errors->-1->>'code', errors->-1->>'message'), '') AS last_error, errors->-1->>'code' AS code
  FROM @tidegate.event_log;
COMMENT ON VIEW @tidegate.ends IS
    'The log without content: how each event ended, with its last error. Bound finished_at: no index has its order.';
COMMENT ON COLUMN @tidegate.ends.last_error IS 'Code and message of its last error. Null: it had none.';
COMMENT ON COLUMN @tidegate.ends.code IS 'The code of its last error. Null: it had none.';

-- Whoever reads one event reads these two views. `events`, `ends` and the lists of the verbs name their own
-- columns.
CREATE VIEW @tidegate.all_events AS
SELECT id, 'event_queue' AS "in", kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, available_at,
       expires_at AS deadline, created_at, updated_at, processing_started_at, lease_token, lease_expires_at,
       NULL::timestamptz AS finished_at, NULL::timestamptz AS kept_until, NULL::timestamptz AS forgotten_at, last_error, parent_id,
       replay_of, delayed
  FROM @tidegate.events
UNION ALL
SELECT id, 'event_log', kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, NULL,
       deadline, created_at, NULL, processing_started_at, lease_token, NULL,
       finished_at, expires_at, forgotten_at, nullif(concat_ws(': ', errors->-1->>'code', errors->-1->>'message'), ''), parent_id,
       replay_of, false
  FROM @tidegate.event_log;
COMMENT ON VIEW @tidegate.all_events IS
    'Live and finished events in one form, without their content. In a copied database two events may have one id: the live one, '
    'or else the one that finished last, is meant by it.';

CREATE VIEW @tidegate.event_contents AS
SELECT id, NULL::timestamptz AS finished_at, payload, NULL::jsonb AS result, progress, errors, traceparent, reported FROM @tidegate.events
UNION ALL
SELECT id, finished_at, payload, result, progress, errors, traceparent, NULL FROM @tidegate.event_log;
COMMENT ON COLUMN @tidegate.all_events."in" IS 'Its table: event_queue of a live event, event_log of a finished one.';
COMMENT ON COLUMN @tidegate.all_events.kept_until IS 'The end of its retention. Null: it is live.';
COMMENT ON VIEW @tidegate.event_contents IS 'The content of live and finished events.';

CREATE VIEW @tidegate.stuck_events AS
SELECT id, kind, group_key, attempts, max_attempts, processing_started_at, updated_at, lease_expires_at,
       clock_timestamp() - lease_expires_at AS overdue
  FROM @tidegate.events
 WHERE status = 'PROCESSING' AND lease_expires_at <= clock_timestamp();
COMMENT ON VIEW @tidegate.stuck_events IS
    'Leased events whose worker has not renewed its lease in time. The next drain releases them.';
COMMENT ON COLUMN @tidegate.stuck_events.updated_at IS 'When the worker last renewed the lease.';
COMMENT ON COLUMN @tidegate.stuck_events.overdue IS 'How long ago that was.';

-- What the roles may do here; see roles.sql. A view's functions run with the reader's rights.
GRANT SELECT ON @tidegate.events TO @tidegate_drain;
GRANT SELECT, UPDATE (status, available_at, expires_at, max_attempts), DELETE ON @tidegate.events TO @tidegate_operate;
GRANT SELECT (id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, available_at, expires_at,
    created_at, updated_at, processing_started_at, lease_token, lease_expires_at, last_error, parent_id, replay_of,
    delayed) ON @tidegate.events TO @tidegate_read;
GRANT SELECT ON @tidegate.ends, @tidegate.all_events, @tidegate.held, @tidegate.at_work TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT SELECT ON @tidegate.event_contents TO @tidegate_drain, @tidegate_operate;
GRANT SELECT ON @tidegate.stuck_events TO @tidegate_operate, @tidegate_read;
GRANT SELECT ON @tidegate.jobs TO @tidegate_operate;
GRANT SELECT (id, kind, status, status_number, status_code, correlation_id, group_key, created_at, finished_at) ON
    @tidegate.jobs TO @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.job, @tidegate.due_at TO @tidegate_drain, @tidegate_operate, @tidegate_jobs;
GRANT EXECUTE ON FUNCTION @tidegate.why TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.job_status, @tidegate.job_status_number, @tidegate.job_status_code
   TO @tidegate_operate, @tidegate_read;
