-- How events of a kind are handled, where that is not as usual: what its program declares, and field by field what an operator
-- says instead. Publishers read of it how many attempts an event has, drains the rest, with their leases; so many at once are
-- the limit of a service of the name `kind:…`, which all drains share.

-- What programs declare of kinds: all that they declare, so that what one declares no more is gone.
CREATE FUNCTION tidegate.declare_policies(kinds text[], policies text[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong record;
    changed text;
BEGIN
    SELECT d.kind, tidegate.policy_refusal(d.policy::jsonb) AS why INTO wrong
      FROM unnest(kinds, policies) AS d(kind, policy)
     WHERE tidegate.policy_refusal(d.policy::jsonb) IS NOT NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'policy of %: %', wrong.kind, wrong.why USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR changed IN
        UPDATE tidegate.event_kind AS k
           SET declared = d.policy::jsonb,
               overridden = CASE WHEN d.policy::jsonb ? 'batch' THEN k.overridden
                                 ELSE k.overridden - ARRAY['batch', 'batch_within_ms'] END
          FROM unnest(kinds, policies) AS d(kind, policy)
         WHERE k.kind = d.kind AND k.declared <> d.policy::jsonb
        RETURNING k.kind
    LOOP
        PERFORM tidegate.limit_kind(changed);
    END LOOP;
END $$;

-- Has the limit of the service that stands for a kind be what its policy says.
CREATE FUNCTION tidegate.limit_kind(kind text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    most CONSTANT integer := (SELECT (k.policy->>'concurrency')::integer FROM tidegate.event_kind AS k WHERE k.kind = limit_kind.kind);
BEGIN
    IF most IS NULL THEN
        UPDATE tidegate.service AS s SET max_running = NULL WHERE s.service = 'kind:' || limit_kind.kind AND s.max_running IS NOT NULL;
        RETURN;
    END IF;
    IF char_length(limit_kind.kind) > 95 THEN
        RAISE EXCEPTION 'concurrency: must not be given for a kind of more than 95 characters, got %', char_length(limit_kind.kind)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO tidegate.service AS s (service, kinds, max_running)
    VALUES ('kind:' || limit_kind.kind, ARRAY[limit_kind.kind], most)
    ON CONFLICT (service) DO UPDATE SET kinds = excluded.kinds, max_running = excluded.max_running;
END $$;

-- What an operator says of a kind: a field that is null is again as the program declares it, one that is not there stays. No
-- field at all changes nothing and leaves no audit row.
CREATE FUNCTION tidegate.set_policy(kind text, policy jsonb, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    AS $$
DECLARE
    refused CONSTANT text := tidegate.policy_refusal(jsonb_strip_nulls(set_policy.policy));
    known tidegate.event_kind;
    next jsonb;
BEGIN
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION '%', refused USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF set_policy.policy <> '{}' THEN
        PERFORM tidegate.check_operator(set_policy.reason, set_policy.actor, true);
    END IF;
    SELECT k.* INTO known FROM tidegate.event_kind AS k WHERE k.kind = set_policy.kind FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION '%', tidegate.unregistered(set_policy.kind) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- So many would run at once, each on its own, where handlers share no call.
    IF jsonb_strip_nulls(set_policy.policy) ?| ARRAY['batch', 'batch_within_ms'] AND NOT known.declared ? 'batch' THEN
        RAISE EXCEPTION 'batch: must be of a kind whose program declares one, % is handled one by one', set_policy.kind
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    next := jsonb_strip_nulls(known.overridden || set_policy.policy);
    IF set_policy.policy <> '{}' THEN
        UPDATE tidegate.event_kind AS k SET overridden = next WHERE k.kind = set_policy.kind AND k.overridden <> next;
        PERFORM tidegate.limit_kind(set_policy.kind);
        INSERT INTO tidegate.audit (action, actor, filter, count, reason)
        VALUES ('policy', set_policy.actor, jsonb_build_object('kind', set_policy.kind, 'policy', set_policy.policy),
                (next <> known.overridden)::integer, set_policy.reason);
    END IF;
    RETURN jsonb_build_object('action', 'policy', 'kind', set_policy.kind, 'changed', next <> known.overridden,
                              'declared', known.declared, 'overridden', next, 'policy', known.declared || next);
END $$;
