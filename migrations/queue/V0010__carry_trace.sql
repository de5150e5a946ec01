-- A trace crosses the queue: the W3C trace context that an event was published under is kept with it,
-- so that its handlers, whenever they run, continue the publisher's trace.
-- <https://www.w3.org/TR/trace-context/#traceparent-header>

ALTER TABLE tidegate.event_queue ADD COLUMN traceparent text
    CONSTRAINT traceparent_is_w3c CHECK (traceparent ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$');
ALTER TABLE tidegate.event_log ADD COLUMN traceparent text;

-- What to say of a malformed one, or null. Inlined, as refusal() is.
CREATE FUNCTION tidegate.trace_refusal(traceparent text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
                THEN 'traceparent: a W3C trace context such as 00-<32 hex digits>-<16 hex digits>-01 is allowed, got '
                     || left(traceparent, 60) END;

-- One parameter more; two functions of one name, of which both fit, would be ambiguous.
DROP FUNCTION tidegate.publish(text, jsonb, text, text, text, timestamptz, timestamptz, integer);
CREATE FUNCTION tidegate.publish(
    kind           text,
    payload        jsonb,
    group_key      text        DEFAULT NULL,
    dedup_key      text        DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    max_attempts   integer     DEFAULT NULL,
    traceparent    text        DEFAULT NULL
) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    refused text := coalesce(
        tidegate.refusal(publish.kind, publish.payload, publish.group_key, publish.dedup_key,
                         publish.correlation_id, publish.available_at, publish.expires_at, publish.max_attempts),
        tidegate.trace_refusal(publish.traceparent));
BEGIN
    IF refused IS NULL AND NOT EXISTS (SELECT FROM tidegate.event_kind AS k WHERE k.kind = publish.kind) THEN
        refused := tidegate.unregistered(publish.kind);
    END IF;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF publish.group_key IS NOT NULL THEN
        PERFORM tidegate.lock_groups(ARRAY[publish.group_key]);
    END IF;
    LOOP
        INSERT INTO tidegate.event_queue AS q
               (kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at, max_attempts,
                traceparent)
        VALUES (publish.kind, publish.payload, publish.group_key, publish.dedup_key, publish.correlation_id,
                coalesce(publish.available_at, clock_timestamp()), publish.expires_at,
                coalesce(publish.max_attempts, tidegate.default_max_attempts()), publish.traceparent)
        ON CONFLICT (kind, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
        RETURNING q.id INTO publish.id;
        IF FOUND THEN
            publish.created := true;
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT q.id INTO publish.id FROM tidegate.event_queue AS q
         WHERE q.kind = publish.kind AND q.dedup_key = publish.dedup_key;
        IF FOUND THEN
            publish.created := false;
            RETURN NEXT;
            RETURN;
        END IF;
        -- The first one ended between the two statements: this one is new after all.
    END LOOP;
END $$;

-- The batch behind publish_many, the Rust interface and the follow-ups of a finished event. Arrays
-- of one length, one element an event; the answer has the order of the arguments.
CREATE FUNCTION tidegate.publish_batch(
    kinds text[], payloads jsonb[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], parent_ids bigint[],
    traceparents text[]
) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    refused text;
    new_ids bigint[];
    missing record;
BEGIN
    SELECT format('event %s: %s', r.position, coalesce(
               tidegate.refusal(r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
                                r.available_at, r.expires_at, r.max_attempts),
               tidegate.trace_refusal(r.traceparent),
               tidegate.unregistered(r.kind))) INTO refused
      FROM unnest(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                  expires_ats, max_attempts_each, traceparents) WITH ORDINALITY
           AS r(kind, payload, group_key, dedup_key, correlation_id, available_at,
                expires_at, max_attempts, traceparent, position)
      LEFT JOIN tidegate.event_kind AS k ON k.kind = r.kind
     WHERE k.kind IS NULL
        OR tidegate.refusal(r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
                            r.available_at, r.expires_at, r.max_attempts) IS NOT NULL
        OR tidegate.trace_refusal(r.traceparent) IS NOT NULL
     ORDER BY r.position LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM tidegate.lock_groups(group_keys);

    SELECT array_agg(nextval('tidegate.event_queue_id_seq') ORDER BY n) INTO new_ids
      FROM generate_series(1, cardinality(kinds)) AS n;
    WITH inserted AS (
        INSERT INTO tidegate.event_queue AS q
               (id, kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                max_attempts, parent_id, traceparent)
        OVERRIDING SYSTEM VALUE
        SELECT r.id, r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
               coalesce(r.available_at, clock_timestamp()), r.expires_at,
               coalesce(r.max_attempts, tidegate.default_max_attempts()), r.parent_id, r.traceparent
          FROM unnest(new_ids, kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                      expires_ats, max_attempts_each, parent_ids, traceparents)
               AS r(id, kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                    max_attempts, parent_id, traceparent)
        ON CONFLICT (kind, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
        RETURNING q.id)
    SELECT array_agg(i.id) INTO new_ids
      FROM (SELECT CASE WHEN inserted.id IS NOT NULL THEN drawn.id END AS id
              FROM unnest(new_ids) WITH ORDINALITY AS drawn(id, position)
              LEFT JOIN inserted USING (id)
             ORDER BY drawn.position) AS i;

    -- A duplicate takes the id of the live event; a new statement, so that it sees one that a
    -- concurrent publisher has only just committed. If that one has ended meanwhile, publish anew.
    FOR missing IN
        SELECT n AS position FROM generate_series(1, cardinality(kinds)) AS n WHERE new_ids[n] IS NULL
    LOOP
        SELECT p.id, p.created INTO publish_batch.id, publish_batch.created
          FROM tidegate.publish(kinds[missing.position], payloads[missing.position],
               group_keys[missing.position], dedup_keys[missing.position],
               correlation_ids[missing.position], available_ats[missing.position],
               expires_ats[missing.position], max_attempts_each[missing.position], traceparents[missing.position]) AS p;
        -- Negative marks "not created" until the answer is built.
        new_ids[missing.position] := CASE WHEN publish_batch.created THEN publish_batch.id ELSE -publish_batch.id END;
    END LOOP;
    RETURN QUERY SELECT abs(n.id), n.id > 0 FROM unnest(new_ids) WITH ORDINALITY AS n(id, position) ORDER BY n.position;
END $$;

-- What programs call that were built before.
CREATE OR REPLACE FUNCTION tidegate.publish_rows(
    kinds text[], payloads jsonb[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], parent_ids bigint[]
) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT p.id, p.created
      FROM tidegate.publish_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                                  expires_ats, max_attempts_each, parent_ids, NULL) AS p
$$;

CREATE OR REPLACE FUNCTION tidegate.publish_many(events jsonb) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    allowed constant text[] := ARRAY['kind', 'payload', 'group_key', 'dedup_key', 'correlation_id',
                                     'available_at', 'expires_at', 'max_attempts', 'traceparent'];
    refused text;
BEGIN
    IF events IS NULL OR jsonb_typeof(events) <> 'array' THEN
        RAISE EXCEPTION 'events: a JSON array of objects is allowed, got %', coalesce(jsonb_typeof(events), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT CASE WHEN jsonb_typeof(e.event) <> 'object'
                THEN format('event %s: an object is allowed, got %s', e.position, jsonb_typeof(e.event))
                ELSE format('event %s: %I is no field of an event; allowed are: %s', e.position, bad.key,
                            array_to_string(allowed, ', '))
           END INTO refused
      FROM jsonb_array_elements(events) WITH ORDINALITY AS e(event, position)
      LEFT JOIN LATERAL (
            SELECT k.key FROM jsonb_object_keys(CASE WHEN jsonb_typeof(e.event) = 'object' THEN e.event END) AS k(key)
             WHERE k.key <> ALL (allowed) LIMIT 1) AS bad ON true
     WHERE jsonb_typeof(e.event) <> 'object' OR bad.key IS NOT NULL
     ORDER BY e.position LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    SELECT p.id, p.created
      FROM (SELECT array_agg(e.event->>'kind' ORDER BY e.position) AS kinds,
                   -- A JSON null and a missing payload are the same: no payload.
                   array_agg(nullif(e.event->'payload', 'null') ORDER BY e.position) AS payloads,
                   array_agg(e.event->>'group_key' ORDER BY e.position) AS group_keys,
                   array_agg(e.event->>'dedup_key' ORDER BY e.position) AS dedup_keys,
                   array_agg(e.event->>'correlation_id' ORDER BY e.position) AS correlation_ids,
                   array_agg((e.event->>'available_at')::timestamptz ORDER BY e.position) AS available_ats,
                   array_agg((e.event->>'expires_at')::timestamptz ORDER BY e.position) AS expires_ats,
                   array_agg((e.event->>'max_attempts')::integer ORDER BY e.position) AS max_attempts_each,
                   array_agg(NULL::bigint) AS parent_ids,
                   array_agg(e.event->>'traceparent' ORDER BY e.position) AS traceparents
              FROM jsonb_array_elements(events) WITH ORDINALITY AS e(event, position)
            HAVING count(*) > 0) AS a,
           tidegate.publish_batch(a.kinds, a.payloads, a.group_keys, a.dedup_keys, a.correlation_ids,
                                 a.available_ats, a.expires_ats, a.max_attempts_each, a.parent_ids, a.traceparents) AS p;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC;
