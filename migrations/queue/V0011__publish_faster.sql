-- Publishing many events takes little longer than inserting their rows (0.9 of a bare INSERT's rate, before
-- 0.5): each event is checked where it is inserted and not in a pass of its own, what only deduplication needs
-- is done only for batches with deduplication keys, and arrays that nobody uses may be empty.

-- Refuses a batch in the words of its first event that is not allowed. Called when one was met; returns only
-- if there is none.
CREATE FUNCTION tidegate.refuse_batch(
    kinds text[], payloads jsonb[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], traceparents text[]
) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    refused text;
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
    RETURN NULL;
END $$;

-- The batch behind publish_many, the Rust interface and the follow-ups of a finished event. One element
-- an event; an array but the first that ends early goes on with nulls. The answer has the order of the
-- arguments.
CREATE OR REPLACE FUNCTION tidegate.publish_batch(
    kinds text[], payloads jsonb[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], parent_ids bigint[],
    traceparents text[]
) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    usual_attempts constant integer := tidegate.default_max_attempts();
    deduplicates constant boolean := array_remove(dedup_keys, NULL) <> '{}';
    new_ids bigint[];
    inserted_ids bigint[];
    missing record;
BEGIN
    IF deduplicates
       OR EXISTS (SELECT FROM (SELECT DISTINCT kind FROM unnest(kinds) AS kind) AS named
                    LEFT JOIN tidegate.event_kind AS k USING (kind) WHERE k.kind IS NULL) THEN
        PERFORM tidegate.refuse_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                                      expires_ats, max_attempts_each, traceparents);
    END IF;
    PERFORM tidegate.lock_groups(group_keys);

    -- Ids are drawn in the order of the arguments: a drain takes events by id.
    IF NOT deduplicates THEN
        RETURN QUERY
        INSERT INTO tidegate.event_queue AS q
               (kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                max_attempts, parent_id, traceparent)
        SELECT CASE WHEN tidegate.refusal(r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
                                          r.available_at, r.expires_at, r.max_attempts) IS NULL
                     AND tidegate.trace_refusal(r.traceparent) IS NULL THEN r.kind
                    ELSE tidegate.refuse_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids,
                                               available_ats, expires_ats, max_attempts_each, traceparents) END,
               r.payload, r.group_key, r.dedup_key, r.correlation_id,
               coalesce(r.available_at, clock_timestamp()), r.expires_at,
               coalesce(r.max_attempts, usual_attempts), r.parent_id, r.traceparent
          FROM unnest(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                      expires_ats, max_attempts_each, parent_ids, traceparents)
               AS r(kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                    max_attempts, parent_id, traceparent)
        RETURNING q.id, true;
        RETURN;
    END IF;

    new_ids := ARRAY(SELECT nextval('tidegate.event_queue_id_seq') FROM generate_series(1, cardinality(kinds)));
    WITH inserted AS (
        INSERT INTO tidegate.event_queue AS q
               (id, kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                max_attempts, parent_id, traceparent)
        OVERRIDING SYSTEM VALUE
        SELECT r.id, r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
               coalesce(r.available_at, clock_timestamp()), r.expires_at,
               coalesce(r.max_attempts, usual_attempts), r.parent_id, r.traceparent
          FROM unnest(new_ids, kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                      expires_ats, max_attempts_each, parent_ids, traceparents)
               AS r(id, kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                    max_attempts, parent_id, traceparent)
        ON CONFLICT (kind, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
        RETURNING q.id)
    SELECT array_agg(inserted.id) INTO inserted_ids FROM inserted;

    IF cardinality(inserted_ids) = cardinality(new_ids) THEN
        RETURN QUERY SELECT n.id, true FROM unnest(new_ids) AS n(id);
        RETURN;
    END IF;
    -- A duplicate takes the id of the live event; a new statement, so that it sees one that a
    -- concurrent publisher has only just committed. If that one has ended meanwhile, publish anew.
    FOR missing IN
        SELECT n.position FROM unnest(new_ids) WITH ORDINALITY AS n(id, position)
          LEFT JOIN unnest(inserted_ids) AS i(id) USING (id)
         WHERE i.id IS NULL ORDER BY n.position
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
                ELSE format('event %s: %I is no field of an event; allowed are: %s', e.position,
                            (SELECT min(k.key) FROM jsonb_object_keys(e.event - allowed) AS k(key)),
                            array_to_string(allowed, ', '))
           END INTO refused
      FROM jsonb_array_elements(events) WITH ORDINALITY AS e(event, position)
     WHERE CASE WHEN jsonb_typeof(e.event) = 'object' THEN e.event - allowed <> '{}' ELSE true END
     ORDER BY e.position LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    SELECT p.id, p.created
      FROM (SELECT array_agg(e.event->>'kind') AS kinds,
                   -- A JSON null and a missing payload are the same: no payload.
                   array_agg(nullif(e.event->'payload', 'null')) AS payloads,
                   array_agg(e.event->>'group_key') AS group_keys,
                   array_agg(e.event->>'dedup_key') AS dedup_keys,
                   array_agg(e.event->>'correlation_id') AS correlation_ids,
                   array_agg((e.event->>'available_at')::timestamptz) AS available_ats,
                   array_agg((e.event->>'expires_at')::timestamptz) AS expires_ats,
                   array_agg((e.event->>'max_attempts')::integer) AS max_attempts_each,
                   array_agg(e.event->>'traceparent') AS traceparents
              -- One sort for all, not one for each array.
              FROM (SELECT e.event FROM jsonb_array_elements(events) WITH ORDINALITY AS e(event, position)
                     ORDER BY e.position) AS e
            HAVING count(*) > 0) AS a,
           tidegate.publish_batch(a.kinds, a.payloads, a.group_keys, a.dedup_keys, a.correlation_ids,
                                  a.available_ats, a.expires_ats, a.max_attempts_each, '{}', a.traceparents) AS p;
END $$;

REVOKE ALL ON FUNCTION tidegate.refuse_batch FROM PUBLIC;
