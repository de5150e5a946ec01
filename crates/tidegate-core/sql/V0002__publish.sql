-- The producers' interface, the same for every language. It joins the caller's transaction.
--
-- The order inside a group is the order in which publishes commit. Ids alone do not give this order, because
-- transactions may commit in a different order from the one in which they drew their ids. So a publish with a
-- group locks the group until its transaction ends. It does so in a statement before the one that draws the
-- id. (A BEFORE INSERT trigger would be too late: the id is drawn before it runs.)

-- Whether JSON text has the escape of a NUL character, which no text column can store: u0000 after a
-- backslash that is not itself escaped. Nearly all texts have none, and the first condition finds that out.
CREATE FUNCTION @tidegate.has_nul(payload text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN position('\u0000' IN payload) > 0 AND payload ~ '(^|[^\\])(\\\\)*\\u0000';
COMMENT ON FUNCTION @tidegate.has_nul IS 'Whether the JSON text payload contains a NUL character.';

-- The settings that a migration stores are not IMMUTABLE: sessions would then go on with the value that each
-- had when they first published.
CREATE FUNCTION @tidegate.takes_plaintext() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN true;
COMMENT ON FUNCTION @tidegate.takes_plaintext IS
    'Whether payloads may be published unsealed. Set by `tidegate migrate` from TIDEGATE_PAYLOADS.';

-- The first invalid field of an event, as a message that names the field and says what it must be. Null if
-- all are valid. It is one expression without a SET clause, so that Postgres inlines it. As a function call
-- for each event of a batch, it took twice as long as the insert itself. It needs no search_path, because its
-- names were resolved when it was created.
CREATE FUNCTION @tidegate.refusal(
    kind text, payload text, group_key text, dedup_key text, correlation_id text,
    available_at timestamptz, expires_at timestamptz, max_attempts integer, traceparent text
) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE
        WHEN kind IS NULL OR char_length(kind) NOT BETWEEN 1 AND 100
            THEN 'kind: must have 1 to 100 characters, got ' || coalesce(char_length(kind)::text, 'NULL')
        WHEN octet_length(payload) > 1048576
            THEN 'payload: must have at most 1048576 bytes, got ' || octet_length(payload)
        WHEN @tidegate.has_nul(payload)
            THEN 'payload: must have no \u0000'
        -- The exact form of a seal, as programs write it. What only begins like one may be plaintext.
        -- Comparing the beginning first halves the cost: 5 us for a short payload, 5 ms for one of a
        -- megabyte.
        WHEN NOT @tidegate.takes_plaintext()
             AND NOT (starts_with(payload, '{"tidegate_sealed":{"v":1,"key":"')
                      AND substr(payload, 34) ~ '^[A-Za-z0-9._-]+","wrapped":"[A-Za-z0-9+/]+","data":"[A-Za-z0-9+/]+={0,2}"\}\}$')
            THEN 'payload: must be sealed, because this queue takes no plaintext (TIDEGATE_PAYLOADS=sealed)'
        WHEN char_length(group_key) NOT BETWEEN 1 AND 200
            THEN 'group_key: must have 1 to 200 characters, got ' || char_length(group_key)
        WHEN char_length(dedup_key) NOT BETWEEN 1 AND 200
            THEN 'dedup_key: must have 1 to 200 characters, got ' || char_length(dedup_key)
        WHEN char_length(correlation_id) NOT BETWEEN 1 AND 200
            THEN 'correlation_id: must have 1 to 200 characters, got ' || char_length(correlation_id)
        WHEN NOT isfinite(available_at)
            THEN 'available_at: must be a finite time, got ' || available_at
        WHEN NOT isfinite(expires_at)
            THEN 'expires_at: must be a finite time, got ' || expires_at
        WHEN max_attempts NOT BETWEEN 1 AND 1000
            THEN 'max_attempts: must be 1 to 1000, got ' || max_attempts
        WHEN traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
            THEN 'traceparent: must be a W3C trace context such as 00-<32 hex digits>-<16 hex digits>-01, got '
                 || left(traceparent, 60)
    END;
COMMENT ON FUNCTION @tidegate.refusal IS
    'What is wrong with an event to publish; null if nothing is. kind, payload (as text), group_key, dedup_key, correlation_id, '
    'available_at, expires_at, max_attempts and traceparent as in publish(). A plain INSERT needs it.';

-- A call that waits for another transaction goes on if that one rolls back. The maximum lengths of both names
-- together fit into an index row.
--
-- Not for publishers: all callers share the names, and whoever records a message first makes the others pass
-- over it. Names for each login would be no cure, because a program whose login changes, as with a rotated
-- secret, would take in its messages again.
CREATE FUNCTION @tidegate.receive(source text, message_id text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM @tidegate.refuse(CASE
        WHEN coalesce(octet_length(source), 0) NOT BETWEEN 1 AND 1000
            THEN 'source: must have 1 to 1000 bytes, got ' || coalesce(octet_length(source)::text, 'NULL')
        WHEN coalesce(octet_length(message_id), 0) NOT BETWEEN 1 AND 500
            THEN 'message_id: must have 1 to 500 bytes, got ' || coalesce(octet_length(message_id)::text, 'NULL') END);
    INSERT INTO @tidegate.received (source, message_id) VALUES (receive.source, receive.message_id)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION @tidegate.receive IS
    'Records a message from outside in the caller''s transaction, so that it is taken in once. source: where it comes from, '
    '1 to 1000 bytes. message_id: its id there, 1 to 500 bytes. Returns true if it is new, false if it was recorded within '
    'the last 15 days. Waits for another transaction that records the same message. All logins that may call it share the '
    'names of messages, so publishers may not.';

-- The error text for a kind that is not registered.
CREATE FUNCTION @tidegate.unregistered(kind text) RETURNS text
    LANGUAGE sql STABLE
    RETURN format('kind: %L is not registered; registered are: %s', kind,
                  coalesce((SELECT string_agg(k.kind, ', ' ORDER BY k.kind) FROM @tidegate.event_kind AS k), 'none'));

-- Refuses a kind that is not registered.
CREATE FUNCTION @tidegate.require_kind(kind text) RETURNS void
    LANGUAGE sql STABLE AS $$
    SELECT @tidegate.refuse(@tidegate.unregistered(require_kind.kind))
     WHERE NOT EXISTS (SELECT FROM @tidegate.event_kind AS k WHERE k.kind = require_kind.kind)
$$;

-- Marks what is delayed. Refuses a plain INSERT or COPY with the messages of publish(), and measures the
-- payload. It runs before the constraints, because their failure prints the row into the server's log,
-- including the beginning of the payload. The functions that publish have already done these two, and say so
-- in `kind_known`, which other publishers cannot write. A replay publishes what is stored: what may not be
-- published any more stays as it is, and no event keeps the others of a set from their replay.
--
-- One lookup serves all rows of a kind in a transaction, because a lookup for each row would double the
-- server's cost of a COPY. The setting @tidegate.registered_kind holds the last kind that was found, until
-- the transaction ends. Any login may set it. That only lets an event into the queue that the next drain ends
-- as FAILED with `no_handler`.
CREATE FUNCTION @tidegate.check_insert() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    refused text;
BEGIN
    IF NOT NEW.kind_known OR NEW.payload_bytes IS NULL THEN
        NEW.payload_bytes := coalesce(octet_length(NEW.payload::text), 0);
        refused := coalesce(@tidegate.refusal(NEW.kind, NEW.payload::text, NEW.group_key, NEW.dedup_key, NEW.correlation_id,
                                             NEW.available_at, NEW.expires_at, NEW.max_attempts, NEW.traceparent),
                            @tidegate.state_refusal(NEW.payload_bytes, NEW.attempts, NEW.lapses, NEW.waits_since, NEW.errors));
        IF refused IS NOT NULL THEN
            PERFORM @tidegate.refuse(refused);
        END IF;
        IF NOT NEW.kind_known AND NEW.kind IS DISTINCT FROM current_setting('@tidegate.registered_kind', true) THEN
            PERFORM @tidegate.require_kind(NEW.kind);
            PERFORM set_config('@tidegate.registered_kind', NEW.kind, true);
        END IF;
    END IF;
    NEW.delayed := NEW.available_at > clock_timestamp();
    NEW.stray := NEW.stray OR NEW.delayed;
    RETURN NEW;
END $$;

-- One trigger, because Postgres reads and plans the condition again for each statement. With refusal() in it,
-- a publish took three times as long.
CREATE TRIGGER event_queue_check
    BEFORE INSERT ON @tidegate.event_queue
    FOR EACH ROW WHEN (NOT NEW.kind_known OR NEW.payload_bytes IS NULL OR NEW.available_at > clock_timestamp())
    EXECUTE FUNCTION @tidegate.check_insert();

-- What is wrong with the columns that only the queue itself writes; null if nothing is. No sum of the numbers
-- leaves its type.
CREATE FUNCTION @tidegate.state_refusal(payload_bytes integer, attempts integer, lapses integer, waits_since timestamptz, errors jsonb)
    RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE
        WHEN payload_bytes > 1048576 THEN 'payload_bytes: must be at most 1048576, got ' || payload_bytes
        WHEN attempts NOT BETWEEN 0 AND 1000000 THEN 'attempts: must be 0 to 1000000, got ' || attempts
        WHEN lapses NOT BETWEEN 0 AND 1000000 THEN 'lapses: must be 0 to 1000000, got ' || lapses
        WHEN NOT isfinite(waits_since) THEN 'waits_since: must be a finite time, got ' || waits_since
        WHEN jsonb_typeof(errors) <> 'array' THEN 'errors: must be a JSON array, got ' || jsonb_typeof(errors)
    END;

-- Refuses a change with the messages of publish(), and keeps delayed in step with available_at. It does not
-- read the payload, which would double the cost of a retry of a large one: replace_waiting() has checked it.
CREATE FUNCTION @tidegate.check_change() RETURNS trigger
    LANGUAGE plpgsql AS $$
DECLARE
    refused CONSTANT text := coalesce(@tidegate.refusal(NEW.kind, NULL, NEW.group_key, NEW.dedup_key, NEW.correlation_id,
                                                       NEW.available_at, NEW.expires_at, NEW.max_attempts, NEW.traceparent),
                                      @tidegate.state_refusal(NEW.payload_bytes, NEW.attempts, NEW.lapses, NEW.waits_since, NEW.errors));
BEGIN
    IF refused IS NOT NULL THEN
        PERFORM @tidegate.refuse(refused);
    END IF;
    IF NEW.available_at <> OLD.available_at THEN
        NEW.delayed := NEW.available_at > clock_timestamp();
    END IF;
    NEW.stray := NEW.stray OR NEW.delayed;
    RETURN NEW;
END $$;

CREATE TRIGGER event_queue_change
    BEFORE UPDATE OF kind, payload_bytes, group_key, dedup_key, correlation_id, attempts, lapses, max_attempts, delayed, stray,
                     available_at, expires_at, errors, waits_since, traceparent
    ON @tidegate.event_queue FOR EACH ROW EXECUTE FUNCTION @tidegate.check_change();

-- A jsonb value as the text that is stored. Numbers are printed in full: a small value may become a large
-- text, even one that no database field can hold.
CREATE FUNCTION @tidegate.printed(payload jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN payload::text;
EXCEPTION WHEN program_limit_exceeded OR out_of_memory THEN
    RAISE EXCEPTION 'payload: must have at most 1048576 bytes, got more than 1 GB with its numbers written out'
        USING ERRCODE = 'invalid_parameter_value';
END $$;

-- Locks groups for a publish. Makes publishes to a group commit in the order of their ids.
CREATE FUNCTION @tidegate.lock_groups(group_keys text[]) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    slots constant integer[] := ARRAY(SELECT DISTINCT @tidegate.mutex_slot(g) FROM unnest(group_keys) AS g WHERE g IS NOT NULL);
BEGIN
    IF slots <> '{}' THEN
        PERFORM @tidegate.lock_slots(slots);
    END IF;
END $$;

-- Refuses a batch with the message of its first invalid event. It is called if an invalid event was found,
-- and returns only if there is none.
CREATE FUNCTION @tidegate.refuse_batch(
    kinds text[], payloads text[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], traceparents text[]
) RETURNS text
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM @tidegate.refuse(format('event %s: ', r.position) || coalesce(
                @tidegate.refusal(r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
                                 r.available_at, r.expires_at, r.max_attempts, r.traceparent),
                CASE WHEN k.kind IS NULL THEN @tidegate.unregistered(r.kind) END))
       FROM unnest(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                   expires_ats, max_attempts_each, traceparents) WITH ORDINALITY
            AS r(kind, payload, group_key, dedup_key, correlation_id, available_at,
                 expires_at, max_attempts, traceparent, position)
       LEFT JOIN @tidegate.event_kind AS k ON k.kind = r.kind
      ORDER BY r.position;
    RETURN NULL;
END $$;

-- Replaces the live event with the same key if it waits and no handler has seen it. The work of handlers
-- under its idempotency keys, and its attempts, belong to the old payload. Returns whether it replaced the
-- event. Id, group, publish time, parent and place in line stay. A replay stays as its operator created it.
--
-- The function does not lock a leased event, because the event's end would wait for this transaction.
CREATE FUNCTION @tidegate.replace_waiting(
    kind text, payload text, group_key text, dedup_key text, correlation_id text, available_at timestamptz,
    expires_at timestamptz, max_attempts integer, traceparent text
) RETURNS boolean
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    first record;
BEGIN
    SELECT q.id, q.group_key, EXISTS (SELECT FROM @tidegate.lease AS l WHERE l.ids @> q.id) AS held INTO first
      FROM @tidegate.event_queue AS q WHERE q.kind = replace_waiting.kind AND q.dedup_key = replace_waiting.dedup_key;
    IF FOUND AND first.group_key IS DISTINCT FROM replace_waiting.group_key THEN
        RAISE EXCEPTION 'group_key: must be the group of the live event % with this deduplication key, because a replaced event keeps its place, got %',
            first.id, coalesce(replace_waiting.group_key, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF first.id IS NULL OR first.held THEN
        RETURN false;
    END IF;
    BEGIN
        PERFORM FROM @tidegate.event_queue AS q WHERE q.id = first.id FOR NO KEY UPDATE;
        -- A separate statement, so that it sees a concurrent lease.
        UPDATE @tidegate.event_queue AS q
           SET payload = replace_waiting.payload::json, payload_bytes = coalesce(octet_length(replace_waiting.payload), 0),
               correlation_id = replace_waiting.correlation_id,
               expires_at = replace_waiting.expires_at, traceparent = replace_waiting.traceparent,
               max_attempts = replace_waiting.max_attempts,
               -- A ready event keeps its time: nobody who knows its key puts it off, and no index gets a new
               -- entry. One of a group waits no longer than it might have from its publish on.
               available_at = CASE WHEN NOT q.delayed THEN q.available_at
                                   ELSE least(coalesce(replace_waiting.available_at, instant), CASE WHEN q.group_key IS NOT NULL
                                              THEN q.created_at + @tidegate.max_group_delay() END) END
         WHERE q.id = first.id AND q.attempts = 0 AND q.lapses = 0 AND q.progress IS NULL AND q.last_error IS NULL
           AND q.replay_of IS NULL AND NOT EXISTS (SELECT FROM @tidegate.lease AS l WHERE l.ids @> q.id);
        IF NOT FOUND THEN
            -- Rolls back the lock on an event that was not replaced.
            RAISE EXCEPTION USING ERRCODE = 'TG003';
        END IF;
        RETURN true;
    EXCEPTION WHEN SQLSTATE 'TG003' THEN
        RETURN false;
    END;
END $$;

-- A new event is PENDING without attempts. For a duplicate, it returns the current state of the first event,
-- and `replaced` if `on_duplicate` is replace and the event could be replaced.
CREATE FUNCTION @tidegate.publish_one(
    kind text, payload text, group_key text, dedup_key text, correlation_id text, available_at timestamptz,
    expires_at timestamptz, max_attempts integer, traceparent text, on_duplicate text DEFAULT 'keep',
    OUT id bigint, OUT created boolean, OUT status text, OUT attempts integer, OUT replaced boolean
) LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    refused text;
BEGIN
    refused := @tidegate.refusal(publish_one.kind, publish_one.payload, publish_one.group_key, publish_one.dedup_key,
                                publish_one.correlation_id, publish_one.available_at, publish_one.expires_at,
                                publish_one.max_attempts, publish_one.traceparent);
    SELECT coalesce(publish_one.max_attempts, (k.policy->>'max_attempts')::integer, @tidegate.default_max_attempts())
      INTO publish_one.max_attempts FROM @tidegate.event_kind AS k WHERE k.kind = publish_one.kind;
    IF refused IS NULL AND NOT FOUND THEN
        refused := @tidegate.unregistered(publish_one.kind);
    END IF;
    IF publish_one.on_duplicate IS DISTINCT FROM 'keep' THEN
        refused := coalesce(refused, CASE
            WHEN publish_one.on_duplicate IS DISTINCT FROM 'replace'
                THEN 'on_duplicate: must be keep or replace, got ' || coalesce(quote_literal(publish_one.on_duplicate), 'NULL')
            WHEN publish_one.dedup_key IS NULL THEN 'dedup_key: must be given with on_duplicate replace, got NULL' END);
    END IF;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    replaced := false;
    IF publish_one.group_key IS NOT NULL THEN
        PERFORM @tidegate.check_group_delay(publish_one.group_key, publish_one.available_at);
        -- Does the same as lock_slots, without the cost of a call.
        PERFORM FROM @tidegate.mutex AS m WHERE m.slot = @tidegate.mutex_slot(publish_one.group_key) FOR UPDATE;
        IF NOT FOUND THEN
            PERFORM @tidegate.lock_groups(ARRAY[publish_one.group_key]);
        END IF;
    END IF;
    LOOP
        INSERT INTO @tidegate.event_queue AS q
               (kind, payload, payload_bytes, group_key, dedup_key, correlation_id, available_at, expires_at, max_attempts,
                traceparent, kind_known)
        VALUES (publish_one.kind, publish_one.payload::json, coalesce(octet_length(publish_one.payload), 0), publish_one.group_key, publish_one.dedup_key,
                publish_one.correlation_id, coalesce(publish_one.available_at, clock_timestamp()), publish_one.expires_at,
                publish_one.max_attempts, publish_one.traceparent, true)
        ON CONFLICT (kind, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
        RETURNING q.id INTO publish_one.id;
        IF FOUND THEN
            publish_one.created := true;
            publish_one.status := 'PENDING';
            publish_one.attempts := 0;
            RETURN;
        END IF;
        IF publish_one.on_duplicate = 'replace' THEN
            replaced := @tidegate.replace_waiting(
                publish_one.kind, publish_one.payload, publish_one.group_key, publish_one.dedup_key, publish_one.correlation_id,
                publish_one.available_at, publish_one.expires_at, publish_one.max_attempts, publish_one.traceparent);
        END IF;
        -- The same states as in the view events.
        SELECT q.id, CASE WHEN l.token IS NULL THEN 'PENDING' ELSE 'PROCESSING' END,
               q.attempts + (q.id <= coalesce(l.started_to, 0) AND q.attempts < q.max_attempts)::int
          INTO publish_one.id, publish_one.status, publish_one.attempts
          FROM @tidegate.event_queue AS q LEFT JOIN @tidegate.lease AS l ON l.ids @> q.id
         WHERE q.kind = publish_one.kind AND q.dedup_key = publish_one.dedup_key;
        IF FOUND THEN
            publish_one.created := false;
            RETURN;
        END IF;
        -- The first event ended between the two statements, so this one is new after all.
    END LOOP;
END $$;
COMMENT ON FUNCTION @tidegate.publish_one IS
    'Publishes one event for publish() and the Rust library. kind, payload (JSON as text, stored unchanged), group_key, '
    'dedup_key, correlation_id, available_at, expires_at, max_attempts, traceparent and on_duplicate as in publish().';

-- The first event of a group holds up the whole group.
CREATE FUNCTION @tidegate.max_group_delay() RETURNS interval
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN interval '30 days';
COMMENT ON FUNCTION @tidegate.max_group_delay IS
    'How far ahead an event of a group may be planned. Set by `tidegate migrate` from TIDEGATE_MAX_GROUP_DELAY.';

-- Refuses an event of a group that is planned too far ahead.
CREATE FUNCTION @tidegate.check_group_delay(group_key text, available_at timestamptz) RETURNS void
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF group_key IS NOT NULL AND available_at > statement_timestamp() + @tidegate.max_group_delay() AND isfinite(available_at) THEN
        PERFORM @tidegate.refuse(format('available_at: must be within %s for an event of a group, because it blocks its group until then, got %s',
                                       @tidegate.max_group_delay(), available_at));
    END IF;
END $$;

-- What is wrong with a delay; null if nothing is. One expression, like refusal().
CREATE FUNCTION @tidegate.delay_refusal(delay interval, available_at timestamptz, group_key text) RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE
        WHEN available_at IS NOT NULL THEN 'delay: must not be given together with available_at'
        WHEN delay < interval '0' OR delay > interval '36500 days' THEN 'delay: must be 0 to 36500 days, got ' || delay
        WHEN group_key IS NOT NULL AND delay > @tidegate.max_group_delay()
            THEN format('delay: must be at most %s for an event of a group, because it blocks its group until then, got %s',
                        @tidegate.max_group_delay(), delay)
    END;

-- The time at which a delay ends, or an error.
CREATE FUNCTION @tidegate.available_after(delay interval, available_at timestamptz, group_key text) RETURNS timestamptz
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @tidegate.refuse(@tidegate.delay_refusal(delay, available_at, group_key));
    RETURN clock_timestamp() + delay;
END $$;

CREATE FUNCTION @tidegate.publish(
    kind           text,
    payload        jsonb,
    group_key      text        DEFAULT NULL,
    dedup_key      text        DEFAULT NULL,
    correlation_id text        DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,
    expires_at     timestamptz DEFAULT NULL,
    max_attempts   integer     DEFAULT NULL,
    traceparent    text        DEFAULT NULL,
    on_duplicate   text        DEFAULT 'keep',
    delay          interval    DEFAULT NULL
) RETURNS TABLE (id bigint, created boolean, status text, attempts integer, replaced boolean)
    -- Not LANGUAGE sql, which would be planned again for each call.
    LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.id, p.created, p.status, p.attempts, p.replaced
      FROM @tidegate.publish_one(publish.kind, @tidegate.printed(publish.payload), publish.group_key, publish.dedup_key,
                                publish.correlation_id,
                                CASE WHEN publish.delay IS NULL THEN publish.available_at
                                     ELSE @tidegate.available_after(publish.delay, publish.available_at, publish.group_key) END,
                                publish.expires_at, publish.max_attempts, publish.traceparent, publish.on_duplicate) AS p;
END $$;
COMMENT ON FUNCTION @tidegate.publish IS
    'Publishes one event in the caller''s transaction, and returns one row. kind: a registered kind. payload: JSON, at most '
    '1048576 bytes as text, without \u0000; null for none. group_key: 1 to 200 characters; events of a group run one after '
    'the other, and the call waits for other transactions that publish to the group. dedup_key: 1 to 200 characters; while '
    'an event of the kind with this key is live, no new event is stored and that event is returned. correlation_id: 1 to '
    '200 characters; it is copied to the log. available_at: the earliest start. expires_at: the deadline for the start; '
    'after it, the event ends FAILED with the code expired. max_attempts: 1 to 1000; null for the kind''s number, or else '
    'the queue''s default. traceparent: a W3C trace context. on_duplicate: keep, or replace, which overwrites payload and '
    'times of a waiting event with the dedup_key. delay: the earliest start as a time from now, 0 to 36500 days; not '
    'together with available_at. With a group_key, max_group_delay() limits both. Returns id, created (false: a duplicate), '
    'status and attempts of the stored event, and replaced. An invalid argument raises SQLSTATE 22023 and names the field.';

-- The numbers of attempts in the policies of kinds. Null if there are none.
CREATE FUNCTION @tidegate.own_attempts() RETURNS jsonb
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(k.kind, k.policy->'max_attempts') FROM @tidegate.event_kind AS k WHERE k.policy ? 'max_attempts');
END $$;

-- Inserts a batch in the order of the arguments, with ids in that order, because a drain leases events by
-- id. Refuses the whole batch if an event is invalid or a deduplication key is taken.
CREATE FUNCTION @tidegate.insert_batch(
    kinds text[], payloads text[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], parent_ids bigint[],
    traceparents text[]
) RETURNS bigint[]
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    usual_attempts constant integer := @tidegate.default_max_attempts();
    -- By kind, for kinds with a policy of their own.
    own_attempts constant jsonb := @tidegate.own_attempts();
    ids bigint[];
BEGIN
    WITH inserted AS (
        INSERT INTO @tidegate.event_queue AS q
               (kind, payload, payload_bytes, group_key, dedup_key, correlation_id, available_at, expires_at,
                max_attempts, parent_id, traceparent, kind_known)
        SELECT CASE WHEN @tidegate.refusal(r.kind, r.payload, r.group_key, r.dedup_key, r.correlation_id,
                                          r.available_at, r.expires_at, r.max_attempts, r.traceparent) IS NULL THEN r.kind
                    ELSE @tidegate.refuse_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids,
                                               available_ats, expires_ats, max_attempts_each, traceparents) END,
               r.payload::json, coalesce(octet_length(r.payload), 0), r.group_key, r.dedup_key, r.correlation_id,
               coalesce(r.available_at, clock_timestamp()), r.expires_at,
               coalesce(r.max_attempts, (own_attempts->>r.kind)::integer, usual_attempts), r.parent_id, r.traceparent, true
          FROM unnest(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                      expires_ats, max_attempts_each, parent_ids, traceparents)
               AS r(kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                    max_attempts, parent_id, traceparent)
        RETURNING q.id)
    SELECT array_agg(inserted.id) INTO ids FROM inserted;
    RETURN ids;
END $$;

-- Publishes a batch whose events may have parents. For the batches of publish_batch and the follow-ups of a
-- finished event. A login that may only publish cannot set a parent. Each array has one element per event.
-- All arrays except the first may be shorter, and are filled with nulls. The answer has the order of the
-- arguments. It is arrays, because a thousand rows took a tenth of the time. A negative id is that of a live
-- event with the same key. Without those, `statuses` and `attempts` are null: all are PENDING and had none.
CREATE FUNCTION @tidegate.publish_children(
    kinds text[], payloads text[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], parent_ids bigint[],
    traceparents text[], OUT ids bigint[], OUT statuses text[], OUT attempts integer[]
) LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    usual_attempts integer;
    own_attempts jsonb;
    new_ids bigint[];
    inserted_ids bigint[];
    answer record;
BEGIN
    -- Nearly all batches are of one kind.
    IF EXISTS (SELECT FROM (SELECT DISTINCT kind FROM unnest(array_remove(kinds, kinds[1]) || kinds[1:1]) AS kind) AS named
                 LEFT JOIN @tidegate.event_kind AS k USING (kind) WHERE k.kind IS NULL) THEN
        PERFORM @tidegate.refuse_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                                      expires_ats, max_attempts_each, traceparents);
    END IF;
    IF cardinality(available_ats) > 0 AND cardinality(group_keys) > 0 THEN
        PERFORM @tidegate.check_group_delay(e.group_key, e.available_at)
           FROM unnest(group_keys, available_ats) AS e(group_key, available_at)
          WHERE e.group_key IS NOT NULL AND e.available_at IS NOT NULL;
    END IF;
    PERFORM @tidegate.lock_groups(group_keys);

    IF coalesce(array_remove(dedup_keys, NULL), '{}') = '{}' THEN
        ids := @tidegate.insert_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                                     expires_ats, max_attempts_each, parent_ids, traceparents);
        RETURN;
    END IF;
    -- One subtransaction for the whole batch, and only for a batch with keys.
    BEGIN
        ids := @tidegate.insert_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                                     expires_ats, max_attempts_each, parent_ids, traceparents);
        RETURN;
    EXCEPTION WHEN unique_violation THEN
        -- An invalid event may follow the duplicate.
        PERFORM @tidegate.refuse_batch(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                                      expires_ats, max_attempts_each, traceparents);
    END;

    -- The first event with a key may end between the insert, which leaves the duplicate out, and the look for
    -- that event. A new event would then come behind later events of this batch, so the whole batch is
    -- inserted again.
    usual_attempts := @tidegate.default_max_attempts();
    own_attempts := @tidegate.own_attempts();
    FOR try IN 1..1000 LOOP
        BEGIN
            new_ids := ARRAY(SELECT nextval('@tidegate.event_queue_id_seq') FROM generate_series(1, cardinality(kinds)));
            WITH inserted AS (
                INSERT INTO @tidegate.event_queue AS q
                       (id, kind, payload, payload_bytes, group_key, dedup_key, correlation_id, available_at, expires_at,
                        max_attempts, parent_id, traceparent, kind_known)
                OVERRIDING SYSTEM VALUE
                SELECT r.id, r.kind, r.payload::json, coalesce(octet_length(r.payload), 0), r.group_key, r.dedup_key, r.correlation_id,
                       coalesce(r.available_at, clock_timestamp()), r.expires_at,
                       coalesce(r.max_attempts, (own_attempts->>r.kind)::integer, usual_attempts), r.parent_id, r.traceparent, true
                  FROM unnest(new_ids, kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats,
                              expires_ats, max_attempts_each, parent_ids, traceparents)
                       AS r(id, kind, payload, group_key, dedup_key, correlation_id, available_at, expires_at,
                            max_attempts, parent_id, traceparent)
                ON CONFLICT (kind, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING
                RETURNING q.id)
            SELECT array_agg(inserted.id) INTO inserted_ids FROM inserted;
            -- A new statement, so that it sees an event that a concurrent publisher has just committed. The
            -- same states as in the view events.
            SELECT array_agg(coalesce(i.id, -q.id) ORDER BY n.position) AS ids,
                   array_agg(CASE WHEN l.token IS NULL THEN 'PENDING' ELSE 'PROCESSING' END ORDER BY n.position) AS statuses,
                   array_agg(coalesce(q.attempts + (q.id <= l.started_to AND q.attempts < q.max_attempts)::int, q.attempts, 0)
                             ORDER BY n.position) AS attempts,
                   bool_and(coalesce(i.id, q.id) IS NOT NULL) AS complete
              INTO answer
              FROM unnest(new_ids, kinds, dedup_keys) WITH ORDINALITY AS n(id, kind, dedup_key, position)
              LEFT JOIN unnest(inserted_ids) AS i(id) ON i.id = n.id
              LEFT JOIN @tidegate.event_queue AS q ON i.id IS NULL AND q.kind = n.kind AND q.dedup_key = n.dedup_key
              LEFT JOIN @tidegate.lease AS l ON l.ids @> q.id;
            EXIT WHEN answer.complete;
            RAISE EXCEPTION USING ERRCODE = 'TG003';
        EXCEPTION WHEN SQLSTATE 'TG003' THEN
            answer := NULL;
        END;
    END LOOP;
    IF answer IS NULL THEN
        RAISE EXCEPTION 'dedup_key: events with these keys end faster than others are published'
            USING ERRCODE = 'serialization_failure';
    END IF;
    ids := answer.ids;
    statuses := answer.statuses;
    attempts := answer.attempts;
END $$;

-- The follow-ups of a batch of ends, one array a column. All arrays except the first two may be shorter.
-- `delays` and `expires_in` are seconds from the end.
CREATE TYPE @tidegate.follow_ups AS (
    parent_ids bigint[], kinds text[], payloads text[], group_keys text[], dedup_keys text[], correlation_ids text[],
    delays double precision[], expires_ats timestamptz[], max_attempts_each integer[], expires_in double precision[],
    traceparents text[]
);

-- Publishes those follow-ups whose parents have ended: `ended`, with what their follow-ups inherit. Returns
-- how many are new.
CREATE FUNCTION @tidegate.publish_follow_ups(
    follow_ups @tidegate.follow_ups, instant timestamptz, ended bigint[], ended_correlation_ids text[], ended_traceparents text[]
) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    put record;
BEGIN
    SELECT array_agg(f.kind ORDER BY f.position) AS kinds,
           array_agg(f.payload ORDER BY f.position) AS payloads,
           array_agg(f.group_key ORDER BY f.position) AS group_keys,
           array_agg(f.dedup_key ORDER BY f.position) AS dedup_keys,
           array_agg(coalesce(f.correlation_id, p.correlation_id) ORDER BY f.position) AS correlation_ids,
           array_agg(instant + make_interval(secs => f.delay) ORDER BY f.position) AS available_ats,
           array_agg(coalesce(f.expires_at, instant + make_interval(secs => f.expires_in)) ORDER BY f.position) AS expires_ats,
           array_agg(f.max_attempts ORDER BY f.position) AS max_attempts,
           array_agg(p.id ORDER BY f.position) AS parent_ids,
           array_agg(coalesce(f.traceparent, p.traceparent) ORDER BY f.position) AS traceparents
      INTO put
      FROM unnest(follow_ups.parent_ids, follow_ups.kinds, follow_ups.payloads, follow_ups.group_keys, follow_ups.dedup_keys,
                  follow_ups.correlation_ids, follow_ups.delays, follow_ups.expires_ats, follow_ups.max_attempts_each,
                  follow_ups.expires_in, follow_ups.traceparents) WITH ORDINALITY
           AS f(parent_id, kind, payload, group_key, dedup_key, correlation_id, delay, expires_at, max_attempts, expires_in,
                traceparent, position)
      JOIN unnest(ended, ended_correlation_ids, ended_traceparents) AS p(id, correlation_id, traceparent) ON p.id = f.parent_id;
    RETURN (SELECT count(*) FILTER (WHERE i > 0)
              FROM @tidegate.publish_children(put.kinds, put.payloads, put.group_keys, put.dedup_keys, put.correlation_ids, put.available_ats,
                                             put.expires_ats, put.max_attempts, put.parent_ids, put.traceparents) AS p, unnest(p.ids) AS i
             WHERE put.kinds IS NOT NULL);
END $$;

-- Like publish_children(), for events without parents.
CREATE FUNCTION @tidegate.publish_batch(
    kinds text[], payloads text[], group_keys text[], dedup_keys text[], correlation_ids text[],
    available_ats timestamptz[], expires_ats timestamptz[], max_attempts_each integer[], traceparents text[],
    OUT ids bigint[], OUT statuses text[], OUT attempts integer[]
) LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    SELECT p.ids, p.statuses, p.attempts INTO ids, statuses, attempts
      FROM @tidegate.publish_children(kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats, expires_ats,
                                     max_attempts_each, '{}', traceparents) AS p;
END $$;
COMMENT ON FUNCTION @tidegate.publish_batch IS
    'Publishes a batch for publish_many() and the Rust library, with one array per field and one element per event. All '
    'arrays except the first may be shorter; missing elements are null. kinds, payloads, group_keys, dedup_keys, '
    'correlation_ids, available_ats, expires_ats, max_attempts_each and traceparents have the same meaning as the fields of '
    'publish(). Returns one row: ids, negative for a duplicate, and statuses and attempts, null if there is no duplicate.';

-- When an event of publish_many() with a delay may start. The delay is a number of seconds or the text of an
-- interval.
CREATE FUNCTION @tidegate.available_at_of(given jsonb, planned timestamptz, group_key text, "position" bigint) RETURNS timestamptz
    LANGUAGE plpgsql AS $$
DECLARE
    is_number CONSTANT boolean := jsonb_typeof(given) = 'number';
    delay interval;
    refused text;
BEGIN
    IF jsonb_typeof(given) = 'string' THEN
        BEGIN
            delay := (given #>> '{}')::interval;
        EXCEPTION WHEN data_exception THEN
            NULL;
        END;
    ELSIF is_number AND given::numeric BETWEEN 0 AND 3153600000 THEN
        delay := make_interval(secs => given::double precision);
    END IF;
    refused := CASE WHEN is_number AND delay IS NULL
                    THEN 'delay: must be 0 to 3153600000 seconds (36500 days), got ' || left(given::text, 60)
                    WHEN delay IS NULL
                    THEN 'delay: must be a number of seconds or an interval such as "90 seconds", got ' || left(given::text, 60)
                    ELSE @tidegate.delay_refusal(delay, planned, group_key) END;
    PERFORM @tidegate.refuse(format('event %s: ', "position") || refused);
    RETURN clock_timestamp() + delay;
END $$;

-- The events of a JSON array, as one array a field. `field` is the name of the argument in errors.
CREATE FUNCTION @tidegate.events_of(
    events jsonb, field text, OUT kinds text[], OUT payloads text[], OUT group_keys text[], OUT dedup_keys text[],
    OUT correlation_ids text[], OUT available_ats timestamptz[], OUT expires_ats timestamptz[], OUT max_attempts_each integer[],
    OUT traceparents text[]
) LANGUAGE plpgsql AS $$
DECLARE
    allowed constant text[] := ARRAY['kind', 'payload', 'group_key', 'dedup_key', 'correlation_id',
                                     'available_at', 'delay', 'expires_at', 'max_attempts', 'traceparent'];
BEGIN
    IF events IS NULL OR jsonb_typeof(events) <> 'array' THEN
        PERFORM @tidegate.refuse(format('%s: must be a JSON array of objects, got %s', field, coalesce(jsonb_typeof(events), 'NULL')));
    END IF;
    PERFORM @tidegate.refuse(r.refused)
       FROM (SELECT CASE
                WHEN jsonb_typeof(e.event) <> 'object' THEN format('event %s: must be an object, got %s', e.position, jsonb_typeof(e.event))
                WHEN e.event - allowed <> '{}'
                    THEN format('event %s: %I is no field of an event, which must be one of %s', e.position,
                                (SELECT min(k.key) FROM jsonb_object_keys(e.event - allowed) AS k(key)), array_to_string(allowed, ', ')) END
               FROM jsonb_array_elements(events) WITH ORDINALITY AS e(event, position)) AS r(refused)
      WHERE r.refused IS NOT NULL;
    SELECT array_agg(e.kind),
           -- A JSON null means the same as a missing payload.
           array_agg(e.payload::text), array_agg(e.group_key), array_agg(e.dedup_key), array_agg(e.correlation_id),
           array_agg(CASE WHEN e.delay IS NULL THEN e.available_at
                          ELSE @tidegate.available_at_of(e.delay, e.available_at, e.group_key, e.ordinality) END),
           array_agg(e.expires_at), array_agg(e.max_attempts), array_agg(e.traceparent)
      INTO kinds, payloads, group_keys, dedup_keys, correlation_ids, available_ats, expires_ats, max_attempts_each, traceparents
      -- In the order of the array, and in half the time of a look for each field.
      FROM ROWS FROM (jsonb_to_recordset(events) AS (
               kind text, payload jsonb, group_key text, dedup_key text, correlation_id text, available_at timestamptz,
               delay jsonb, expires_at timestamptz, max_attempts integer, traceparent text)) WITH ORDINALITY AS e;
EXCEPTION WHEN program_limit_exceeded OR out_of_memory THEN
    RAISE EXCEPTION 'payload: must have at most 1048576 bytes, got more than 1 GB with its numbers written out'
        USING ERRCODE = 'invalid_parameter_value';
END $$;

CREATE FUNCTION @tidegate.publish_many(events jsonb) RETURNS TABLE (id bigint, created boolean, status text, attempts integer)
    LANGUAGE sql SECURITY DEFINER AS $$
    SELECT abs(u.id), u.id > 0, coalesce(u.status, 'PENDING'), coalesce(u.attempts, 0)
      FROM @tidegate.events_of(publish_many.events, 'events') AS a,
           @tidegate.publish_batch(coalesce(a.kinds, '{}'), a.payloads, a.group_keys, a.dedup_keys, a.correlation_ids,
                                  a.available_ats, a.expires_ats, a.max_attempts_each, a.traceparents) AS p,
           unnest(p.ids, p.statuses, p.attempts) AS u(id, status, attempts)
$$;
COMMENT ON FUNCTION @tidegate.publish_many IS
    'Publishes a batch in the caller''s transaction, all events or none, and returns one row per event in the order of the '
    'array. events: a JSON array of objects with the keys kind, payload, group_key, dedup_key, correlation_id, '
    'available_at, delay, expires_at, max_attempts and traceparent, with the same meaning as in publish(). A key that is '
    'missing or null is not set. delay is a number of seconds or the text of an interval. Returns id, created, status and '
    'attempts. An invalid event raises SQLSTATE 22023 and names its position in the array, from 1, and the field.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.publish, @tidegate.publish_one, @tidegate.publish_many, @tidegate.publish_batch,
    @tidegate.takes_plaintext, @tidegate.refusal, @tidegate.has_nul TO @tidegate_publish, @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.publish_children, @tidegate.publish_follow_ups, @tidegate.max_group_delay, @tidegate.receive,
    @tidegate.state_refusal TO @tidegate_drain;
