-- The kinds that programs handle, and how events of a kind are handled if it differs from the defaults.
-- Publishers read the number of attempts from the policy. Drains read the rest, together with their leases.
-- The limit of events that run at the same time is the limit of a service with the name `kind:…`, which all
-- drains share.
CREATE FUNCTION @tidegate.register_kind(kind text, policy jsonb DEFAULT NULL, pulled boolean DEFAULT true) RETURNS void
    LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    wanted CONSTANT jsonb := jsonb_strip_nulls(policy);
BEGIN
    PERFORM @tidegate.refuse(CASE
        WHEN (kind ~ '^[a-z0-9_.-]{1,100}$') IS NOT TRUE
            THEN 'kind: must have 1 to 100 characters of a-z, 0-9, _, . and -, got ' || coalesce(quote_literal(kind), 'NULL')
        WHEN @tidegate.policy_refusal(coalesce(wanted, '{}')) IS NOT NULL THEN format('policy of %s: ', kind) || @tidegate.policy_refusal(wanted)
        WHEN wanted ? 'concurrency' AND char_length(kind) > 95
            THEN 'concurrency: must not be given for a kind of more than 95 characters, got ' || char_length(kind) END);
    INSERT INTO @tidegate.event_kind AS k (kind, targets) VALUES (kind, CASE WHEN pulled THEN '{}'::text[] END) ON CONFLICT DO NOTHING;
    UPDATE @tidegate.event_kind AS k SET policy = wanted WHERE k.kind = register_kind.kind AND k.policy <> wanted;
    IF FOUND THEN
        INSERT INTO @tidegate.service AS s (service, kinds, max_running)
        SELECT 'kind:' || kind, ARRAY[kind], (wanted->>'concurrency')::integer
         WHERE wanted ? 'concurrency' OR EXISTS (SELECT FROM @tidegate.service AS s WHERE s.service = 'kind:' || kind)
        ON CONFLICT (service) DO UPDATE SET kinds = excluded.kinds, max_running = excluded.max_running;
    END IF;
END $$;
COMMENT ON FUNCTION @tidegate.register_kind IS
    'Registers a kind, so that its events may be published; as the owner of the schema. kind: 1 to 100 characters of a-z, 0-9, _, '
    '. and -. policy: as in event_kind.policy; replaces the one before, null leaves it. pulled: false if a program handles a new kind.';
