-- The producers' interface, the same from every language. It joins the caller's transaction.
--
-- Order inside a group is the order in which publishes commit. Ids alone do not give that: they are
-- drawn in one order and may be committed in the other. So a publish with a group takes a lock on
-- the group, held until its transaction ends, in a statement before the one that draws the id.
-- (A BEFORE INSERT trigger would be too late: the id is drawn before it runs.)

-- The first bad field of an event, as a message that names it and says what is allowed, or null.
-- One expression without a SET clause, so that Postgres inlines it: called as a function for each
-- event of a batch it took twice as long as the insert itself.
CREATE FUNCTION tidegate.refusal(
    kind text, payload jsonb, group_key text, dedup_key text, correlation_id text,
    available_at timestamptz, expires_at timestamptz, max_attempts integer
) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE
        WHEN kind IS NULL OR char_length(kind) NOT BETWEEN 1 AND 100
            THEN 'kind: 1 to 100 characters are allowed, got ' || coalesce(char_length(kind)::text, 'NULL')
        WHEN pg_column_size(payload) > 1048576
            THEN 'payload: at most 1048576 bytes are allowed, got ' || pg_column_size(payload)
        WHEN char_length(group_key) NOT BETWEEN 1 AND 200
            THEN 'group_key: 1 to 200 characters are allowed, got ' || char_length(group_key)
        WHEN char_length(dedup_key) NOT BETWEEN 1 AND 200
            THEN 'dedup_key: 1 to 200 characters are allowed, got ' || char_length(dedup_key)
        WHEN char_length(correlation_id) NOT BETWEEN 1 AND 200
            THEN 'correlation_id: 1 to 200 characters are allowed, got ' || char_length(correlation_id)
        WHEN NOT isfinite(available_at)
            THEN 'available_at: a finite time is allowed, got ' || available_at
        WHEN NOT isfinite(expires_at)
            THEN 'expires_at: a finite time is allowed, got ' || expires_at
        WHEN max_attempts NOT BETWEEN 1 AND 1000
            THEN 'max_attempts: 1 to 1000 is allowed, got ' || max_attempts
    END;

-- What to say of a kind that nobody registered.
CREATE FUNCTION tidegate.unregistered(kind text) RETURNS text
    LANGUAGE sql STABLE
    RETURN format('kind: %L is not registered; registered are: %s', kind,
                  coalesce((SELECT string_agg(k.kind, ', ' ORDER BY k.kind) FROM tidegate.event_kind AS k), 'none'));

-- One lock per group, in one order for everybody, so that two batches never wait for each other.
CREATE FUNCTION tidegate.lock_groups(group_keys text[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1414087749, hashed.key)
       FROM (SELECT DISTINCT hashtext(g) AS key FROM unnest(group_keys) AS g
              WHERE g IS NOT NULL ORDER BY key) AS hashed;
END $$;

CREATE FUNCTION tidegate.publish(
    kind           text,
    payload        jsonb,
    group_key      text        DEFAULT NULL,
    dedup_key      text        DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    max_attempts   integer     DEFAULT NULL
) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    refused text := tidegate.refusal(publish.kind, publish.payload, publish.group_key, publish.dedup_key,
        publish.correlation_id, publish.available_at, publish.expires_at, publish.max_attempts);
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
               (kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at, max_attempts)
        VALUES (publish.kind, publish.payload, publish.group_key, publish.dedup_key, publish.correlation_id,
                coalesce(publish.available_at, clock_timestamp()), publish.expires_at,
                coalesce(publish.max_attempts, tidegate.default_max_attempts()))
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
CREATE FUNCTION tidegate.publish_rows(
    kinds text[], payloads jsonb[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], parent_ids bigint[]
) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
               tidegate.unregistered(r.kind))) INTO refused
      FROM unnest(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                  expires_ats, max_attempts_each) WITH ORDINALITY
           AS r(kind, payload, group_key, dedup_key, correlation_id, available_at,
                expires_at, max_attempts, position)
      LEFT JOIN tidegate.event_kind AS k ON k.kind = r.kind
     WHERE k.kind IS NULL
        OR tidegate.refusal(r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
                            r.available_at, r.expires_at, r.max_attempts) IS NOT NULL
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
                max_attempts, parent_id)
        OVERRIDING SYSTEM VALUE
        SELECT r.id, r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
               coalesce(r.available_at, clock_timestamp()), r.expires_at,
               coalesce(r.max_attempts, tidegate.default_max_attempts()), r.parent_id
          FROM unnest(new_ids, kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                      expires_ats, max_attempts_each, parent_ids)
               AS r(id, kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                    max_attempts, parent_id)
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
        SELECT p.id, p.created INTO publish_rows.id, publish_rows.created
          FROM tidegate.publish(kinds[missing.position], payloads[missing.position],
               group_keys[missing.position], dedup_keys[missing.position],
               correlation_ids[missing.position], available_ats[missing.position],
               expires_ats[missing.position], max_attempts_each[missing.position]) AS p;
        -- Negative marks "not created" until the answer is built.
        new_ids[missing.position] := CASE WHEN publish_rows.created THEN publish_rows.id ELSE -publish_rows.id END;
    END LOOP;
    RETURN QUERY SELECT abs(n.id), n.id > 0 FROM unnest(new_ids) WITH ORDINALITY AS n(id, position) ORDER BY n.position;
END $$;

CREATE FUNCTION tidegate.publish_many(events jsonb) RETURNS TABLE (id bigint, created boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    allowed constant text[] := ARRAY['kind', 'payload', 'group_key', 'dedup_key', 'correlation_id',
                                     'available_at', 'expires_at', 'max_attempts'];
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
                   array_agg(NULL::bigint) AS parent_ids
              FROM jsonb_array_elements(events) WITH ORDINALITY AS e(event, position)
            HAVING count(*) > 0) AS a,
           tidegate.publish_rows(a.kinds, a.payloads, a.group_keys, a.dedup_keys, a.correlation_ids,
                                 a.available_ats, a.expires_ats, a.max_attempts_each, a.parent_ids) AS p;
END $$;
