-- Periodic events: events that are published again and again, at times called slots.
--
-- A slot is a point in time at which a schedule publishes its event. A program computes the next slot,
-- because this needs a cron expression and a table of time zones. The slot is stored, so that finding due
-- schedules is one comparison with the database's clock. The stored slot also prevents publishing a slot
-- twice: the transaction that publishes also moves it on.

CREATE TABLE @tidegate.schedule (
    id            bigint      GENERATED ALWAYS AS IDENTITY UNIQUE,
    name          text        PRIMARY KEY,
    keeper        text        NOT NULL,
    kind          text        NOT NULL,
    payload       json,
    cron          text,
    every         interval,
    time_zone     text        NOT NULL DEFAULT 'UTC',
    group_key     text,
    start_within  interval,
    catch_up      text        NOT NULL DEFAULT 'last',
    paused        boolean     NOT NULL DEFAULT false,
    since         timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at       timestamptz NOT NULL DEFAULT '-infinity',
    last_at       timestamptz,
    last_event_id bigint,
    fired_at      timestamptz,
    problem       text,
    -- Increases with each change, so that results computed from an earlier definition are not used.
    revision      bigint      NOT NULL DEFAULT 1,
    CONSTRAINT name_is_1_to_100_plain_characters CHECK (name ~ '^[A-Za-z0-9._-]{1,100}$'),
    CONSTRAINT keeper_is_1_to_200_characters CHECK (char_length(keeper) BETWEEN 1 AND 200),
    CONSTRAINT payload_is_at_most_64_kib CHECK (octet_length(payload::text) <= 65536),
    CONSTRAINT cron_or_every CHECK (num_nonnulls(cron, every) = 1),
    CONSTRAINT catch_up_is_none_last_or_all CHECK (catch_up IN ('none', 'last', 'all'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500);
COMMENT ON TABLE @tidegate.schedule IS 'Periodic events: each row is published at its slots, at fixed times or intervals.';
COMMENT ON COLUMN @tidegate.schedule.id IS 'A number for internal use.';
COMMENT ON COLUMN @tidegate.schedule.name IS 'The name of the schedule: 1 to 100 letters, digits, ''.'', ''_'' and ''-''.';
COMMENT ON COLUMN @tidegate.schedule.keeper IS 'The program that declares the schedule.';
COMMENT ON COLUMN @tidegate.schedule.kind IS 'The kind of event that it publishes.';
COMMENT ON COLUMN @tidegate.schedule.payload IS 'The payload of each event, at most 65536 bytes. Null: none.';
COMMENT ON COLUMN @tidegate.schedule.cron IS 'The cron expression of its slots. Null if every is given.';
COMMENT ON COLUMN @tidegate.schedule.every IS 'The time between two slots. Null if cron is given.';
COMMENT ON COLUMN @tidegate.schedule.time_zone IS 'The time zone of the cron expression, such as Europe/Berlin.';
COMMENT ON COLUMN @tidegate.schedule.group_key IS 'The group of its events. Null: none.';
COMMENT ON COLUMN @tidegate.schedule.start_within IS
    'The deadline of each event after its slot: later, it no longer starts. Null: no deadline.';
COMMENT ON COLUMN @tidegate.schedule.catch_up IS 'Which missed slots are published: none, the last one, or all.';
COMMENT ON COLUMN @tidegate.schedule.paused IS 'True: the schedule publishes no events.';
COMMENT ON COLUMN @tidegate.schedule.since IS
    'Slots up to this time are past: the time when the schedule was created, changed or resumed.';
COMMENT ON COLUMN @tidegate.schedule.next_at IS 'The next slot. -infinity: the next drain computes it. infinity: there is none.';
COMMENT ON COLUMN @tidegate.schedule.last_at IS 'The latest slot for which an event was published.';
COMMENT ON COLUMN @tidegate.schedule.last_event_id IS 'The id of that event.';
COMMENT ON COLUMN @tidegate.schedule.fired_at IS 'When that event was published.';
COMMENT ON COLUMN @tidegate.schedule.problem IS 'Why the schedule stands still. Null: there is no problem.';
COMMENT ON COLUMN @tidegate.schedule.revision IS 'Counts the changes of the definition.';

CREATE INDEX schedule_due ON @tidegate.schedule (next_at) WHERE NOT paused;

-- Creates or changes a schedule that a program declares. Published events are not changed, a pause remains,
-- and the next slot is the first one from now on. Cron expressions and time zones are read by programs, which
-- have a calendar. If a program cannot read one, the schedule stops, and `problem` contains the reason.
CREATE FUNCTION @tidegate.put_schedule(
    keeper text, name text, kind text, payload json, cron text, every interval, time_zone text, group_key text,
    start_within interval, catch_up text
) RETURNS void
    LANGUAGE plpgsql SET lock_timeout = '20s' AS $$
BEGIN
    PERFORM @tidegate.refuse(CASE
        WHEN name !~ '^[A-Za-z0-9._-]{1,100}$'
            THEN format('name: must have 1 to 100 letters, digits, ''.'', ''_'' and ''-'', got %L', left(name, 200))
        WHEN char_length(cron) > 200 THEN 'cron: must have 1 to 200 characters, got ' || char_length(cron)
        WHEN extract(epoch FROM every) NOT BETWEEN 1 AND 366 * 86400 THEN 'every: must be 1 second to 366 days, got ' || every
        WHEN every IS NOT NULL AND time_zone <> 'UTC'
            THEN format('time_zone: must not be given with every, because its slots do not depend on one, got %L', time_zone)
        WHEN extract(epoch FROM start_within) NOT BETWEEN 1 AND 366 * 86400
            THEN 'start_within: must be 1 second to 366 days, got ' || start_within
        WHEN octet_length(payload::text) > 65536
            THEN 'payload: must have at most 65536 bytes in a schedule, got ' || octet_length(payload::text)
        ELSE @tidegate.refusal(kind, payload::text, group_key, NULL, NULL, NULL, NULL, NULL, NULL) END);
    PERFORM @tidegate.require_kind(kind);
    INSERT INTO @tidegate.schedule AS s (keeper, name, kind, payload, cron, every, time_zone, group_key, start_within, catch_up)
    VALUES (keeper, name, kind, payload, cron, every, time_zone, group_key, start_within, catch_up)
    ON CONFLICT ON CONSTRAINT schedule_pkey DO UPDATE
       SET kind = excluded.kind, payload = excluded.payload, cron = excluded.cron, every = excluded.every,
           time_zone = excluded.time_zone, group_key = excluded.group_key, start_within = excluded.start_within,
           catch_up = excluded.catch_up, since = clock_timestamp(), next_at = '-infinity', problem = NULL,
           revision = s.revision + 1
     WHERE s.keeper = excluded.keeper;
    PERFORM @tidegate.refuse(format('name: must be unique in the queue, got %s, which %s keeps', put_schedule.name,
        (SELECT s.keeper FROM @tidegate.schedule AS s WHERE s.name = put_schedule.name))) WHERE NOT FOUND;
    PERFORM @tidegate.record_action('set_schedule', NULL, jsonb_build_object(
        'name', name, 'keeper', keeper, 'kind', kind, 'cron', cron, 'every', every,
        'time_zone', time_zone, 'catch_up', catch_up), NULL, 'the program declares it');
END $$;

-- Removes a schedule that its program no longer declares.
CREATE FUNCTION @tidegate.drop_schedule(keeper text, name text) RETURNS void
    LANGUAGE sql SET lock_timeout = '20s' AS $$
    WITH dropped AS (DELETE FROM @tidegate.schedule AS s WHERE s.keeper = drop_schedule.keeper AND s.name = drop_schedule.name RETURNING s.*)
    SELECT @tidegate.record_action('remove_schedule', NULL, jsonb_build_object(
               'name', d.name, 'keeper', d.keeper, 'kind', d.kind, 'last_at', d.last_at), NULL, 'the program declares it no longer')
      FROM dropped AS d
$$;

-- Pauses or resumes a schedule. Slots during a pause are skipped.
CREATE FUNCTION @tidegate.switch_schedule(name text, pauses boolean, reason text, actor text) RETURNS jsonb
    LANGUAGE plpgsql SET lock_timeout = '20s' AS $$
DECLARE
    found_one @tidegate.schedule;
    changes boolean;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    SELECT s.* INTO found_one FROM @tidegate.schedule AS s WHERE s.name = switch_schedule.name FOR UPDATE;
    PERFORM @tidegate.refuse(format('name: must be the name of a schedule, got %s', name)) WHERE NOT FOUND;
    -- Resuming also repairs a schedule that stopped, or one that fired by a fast clock that has been set back
    -- since.
    changes := found_one.paused <> pauses
        OR NOT pauses AND (found_one.problem IS NOT NULL OR found_one.last_at > clock_timestamp());
    IF changes THEN
        UPDATE @tidegate.schedule AS s
           SET paused = pauses, revision = s.revision + 1, problem = NULL,
               since = CASE WHEN pauses THEN s.since ELSE clock_timestamp() END,
               next_at = CASE WHEN pauses THEN s.next_at ELSE '-infinity' END
         WHERE s.name = switch_schedule.name;
    END IF;
    PERFORM @tidegate.record_action(CASE WHEN pauses THEN 'pause_schedule' ELSE 'resume_schedule' END, actor,
                                   jsonb_build_object('name', name), NULL, reason);
    RETURN jsonb_build_object('action', 'schedule', 'name', found_one.name, 'change', CASE WHEN pauses THEN 'paused' ELSE 'resumed' END,
                              'changed', changes, 'paused', pauses);
END $$;

CREATE FUNCTION @tidegate.pause_schedule(name text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN @tidegate.switch_schedule(name, true, reason, actor);
COMMENT ON FUNCTION @tidegate.pause_schedule IS
    'Pauses a periodic event. name: the schedule. reason: the reason, required. actor: the operator''s name.';

CREATE FUNCTION @tidegate.resume_schedule(name text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN @tidegate.switch_schedule(name, false, reason, actor);
COMMENT ON FUNCTION @tidegate.resume_schedule IS
    'Resumes a periodic event after pause_schedule(). Slots that were missed are skipped. name: the schedule. reason: the '
    'reason, required. actor: the operator''s name.';

-- Returns the name of a slot, which is the event's deduplication key and correlation id. Handlers recognize
-- the slot by this name, and a search for it finds all events that descend from the slot.
CREATE FUNCTION @tidegate.slot_name(name text, slot timestamptz) RETURNS text
    LANGUAGE sql STABLE
    RETURN 'schedule:' || name || '@' || to_char(slot AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');

-- Works for a paused schedule, too. An event is published at most once a second.
CREATE FUNCTION @tidegate.run_schedule(name text, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
#variable_conflict use_column
DECLARE
    asked @tidegate.schedule;
    slot constant timestamptz := date_trunc('second', clock_timestamp());
    event bigint;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    SELECT s.* INTO asked FROM @tidegate.schedule AS s WHERE s.name = run_schedule.name;
    PERFORM @tidegate.refuse(format('name: must be the name of a schedule, got %s', name)) WHERE NOT FOUND;
    SELECT p.id INTO event
      FROM @tidegate.publish_one(asked.kind, asked.payload::text, asked.group_key, @tidegate.slot_name(asked.name, slot),
                                @tidegate.slot_name(asked.name, slot), NULL, slot + asked.start_within, NULL, NULL) AS p;
    PERFORM @tidegate.record_action('run_schedule', actor, jsonb_build_object('name', asked.name), ARRAY[event], reason);
    RETURN jsonb_build_object('action', 'schedule', 'name', asked.name, 'change', 'run', 'changed', true, 'paused', asked.paused, 'event_id', event);
END $$;
COMMENT ON FUNCTION @tidegate.run_schedule IS
    'Publishes a periodic event now, and does not change its slots. name: the schedule. reason: the reason, required. '
    'actor: the operator''s name.';

-- Fires the schedules that a drain has found due, each in its own step: [{"id", "revision", "from", "slots",
-- "next", "problem"}], times in seconds since 1970. `from` is the next slot that the drain has read, or null
-- if there was none, and `next` is the new one. If two drains found the same slot due, the second one finds
-- a different slot stored. No step waits long: it skips a row that another session is changing, and a group
-- whose publish lock another session holds. After one other wait, it leaves the rest to the next call.
-- Returns the result of each schedule that was not skipped.
CREATE FUNCTION @tidegate.fire_schedules(firings jsonb) RETURNS TABLE (id bigint, published bigint, refused text)
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
#variable_conflict use_column
DECLARE
    f record;
    s @tidegate.schedule;
    fired record;
    waited boolean := false;
BEGIN
    FOR f IN SELECT (e.firing->>'id')::bigint AS id, (e.firing->>'revision')::bigint AS revision,
                    coalesce(to_timestamp((e.firing->>'from')::float8), '-infinity') AS came_from,
                    coalesce(to_timestamp((e.firing->>'next')::float8), 'infinity') AS next_at,
                    e.firing->>'problem' AS problem,
                    ARRAY(SELECT to_timestamp(slot::float8) FROM jsonb_array_elements_text(e.firing->'slots') AS slot) AS slots
               FROM jsonb_array_elements(firings) WITH ORDINALITY AS e(firing, position) ORDER BY e.position
    LOOP
        EXIT WHEN waited;
        fire_schedules.id := f.id;
        fire_schedules.published := 0;
        fire_schedules.refused := NULL;
        BEGIN
            SELECT t.* INTO s FROM @tidegate.schedule AS t
             WHERE t.id = f.id AND t.revision = f.revision AND t.next_at = f.came_from AND NOT t.paused
               FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            IF f.slots <> '{}' AND s.group_key IS NOT NULL THEN
                PERFORM FROM @tidegate.mutex AS m WHERE m.slot = @tidegate.mutex_slot(s.group_key) FOR UPDATE SKIP LOCKED;
                -- If the row is missing, publish_one() reports it.
                CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM @tidegate.mutex AS m WHERE m.slot = @tidegate.mutex_slot(s.group_key));
            END IF;
            SELECT count(*) AS published, max(p.id) AS last_id, max(u.slot) AS last_slot INTO fired
              FROM unnest(f.slots) WITH ORDINALITY AS u(slot, position)
             CROSS JOIN LATERAL @tidegate.publish_one(s.kind, s.payload::text, s.group_key, @tidegate.slot_name(s.name, u.slot),
                                                     @tidegate.slot_name(s.name, u.slot), NULL, u.slot + s.start_within,
                                                     NULL, NULL) AS p;
            UPDATE @tidegate.schedule AS t
               SET next_at = f.next_at, problem = f.problem, last_at = coalesce(fired.last_slot, t.last_at),
                   last_event_id = coalesce(fired.last_id, t.last_event_id),
                   fired_at = CASE WHEN fired.last_id IS NULL THEN t.fired_at ELSE clock_timestamp() END
             WHERE t.id = f.id;
            fire_schedules.published := fired.published;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                waited := true;
                CONTINUE;
            WHEN invalid_parameter_value THEN
                -- The publish has refused a field of the schedule. It will do so again, so the schedule stops
                -- and stores the reason.
                UPDATE @tidegate.schedule AS t SET next_at = 'infinity', problem = SQLERRM
                 WHERE t.id = (SELECT k.id FROM @tidegate.schedule AS k WHERE k.id = f.id AND k.revision = f.revision
                                  FOR UPDATE SKIP LOCKED);
                fire_schedules.refused := SQLERRM;
            WHEN OTHERS THEN
                -- A refusal by a trigger or a full disk may be temporary.
                fire_schedules.refused := SQLERRM;
        END;
        RETURN NEXT;
    END LOOP;
END $$;

-- What the roles may do here; see roles.sql. A login that fires schedules cannot change what they publish.
GRANT SELECT (id, name, keeper, kind, cron, every, time_zone, group_key, start_within, catch_up, paused, since,
    next_at, last_at, last_event_id, fired_at, problem, revision) ON @tidegate.schedule
   TO @tidegate_drain, @tidegate_read;
GRANT SELECT ON @tidegate.schedule TO @tidegate_operate;
GRANT EXECUTE ON FUNCTION @tidegate.fire_schedules TO @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.pause_schedule, @tidegate.resume_schedule, @tidegate.run_schedule TO @tidegate_operate;
