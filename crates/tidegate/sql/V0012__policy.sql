-- How events of a kind are handled, if it differs from the defaults: the values that its program declares,
-- each of which an operator may override. Publishers read the number of attempts from it. Drains read the
-- rest, together with their leases. The limit of events that run at the same time is the limit of a service
-- with the name `kind:…`, which all drains share.

-- Stores the policies that a program declares. A declaration is complete, so values that are no longer
-- declared are removed.
CREATE FUNCTION tidegate.declare_policies(kinds text[], policies text[]) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    changed text;
BEGIN
    PERFORM tidegate.refuse(format('policy of %s: ', d.kind) || tidegate.policy_refusal(d.policy::jsonb))
       FROM unnest(kinds, policies) AS d(kind, policy);
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

-- Sets the limit of a kind to that of its policy.
CREATE FUNCTION tidegate.limit_kind(kind text) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT integer := (SELECT (k.policy->>'concurrency')::integer FROM tidegate.event_kind AS k WHERE k.kind = limit_kind.kind);
BEGIN
    IF most IS NULL THEN
        UPDATE tidegate.service AS s SET max_running = NULL WHERE s.service = 'kind:' || limit_kind.kind AND s.max_running IS NOT NULL;
        RETURN;
    END IF;
    PERFORM tidegate.refuse('concurrency: must not be given for a kind of more than 95 characters, got ' || char_length(kind))
      WHERE char_length(kind) > 95;
    INSERT INTO tidegate.service AS s (service, kinds, max_running)
    VALUES ('kind:' || limit_kind.kind, ARRAY[limit_kind.kind], most)
    ON CONFLICT (service) DO UPDATE SET kinds = excluded.kinds, max_running = excluded.max_running;
END $$;

-- A missing field is not changed. A call without fields leaves no audit row.
CREATE FUNCTION tidegate.set_policy(kind text, policy jsonb, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    known tidegate.event_kind;
    next jsonb;
BEGIN
    PERFORM tidegate.refuse(tidegate.policy_refusal(jsonb_strip_nulls(policy)));
    PERFORM tidegate.check_operator(reason, actor, true) WHERE policy <> '{}';
    PERFORM tidegate.require_kind(kind);
    SELECT k.* INTO known FROM tidegate.event_kind AS k WHERE k.kind = set_policy.kind FOR NO KEY UPDATE;
    -- If the handlers of a kind do not share calls, a batch would only run that many events at the same time,
    -- each on its own.
    PERFORM tidegate.refuse(format('batch: must not be given for %s, because its program handles its events one by one', kind))
      WHERE jsonb_strip_nulls(policy) ?| ARRAY['batch', 'batch_within_ms'] AND NOT known.declared ? 'batch';
    next := jsonb_strip_nulls(known.overridden || set_policy.policy);
    IF set_policy.policy <> '{}' THEN
        UPDATE tidegate.event_kind AS k SET overridden = next WHERE k.kind = set_policy.kind AND k.overridden <> next;
        PERFORM tidegate.limit_kind(kind);
        INSERT INTO tidegate.audit (action, actor, filter, count, reason)
        VALUES ('policy', set_policy.actor, jsonb_build_object('kind', set_policy.kind, 'policy', set_policy.policy),
                (next <> known.overridden)::integer, set_policy.reason);
    END IF;
    RETURN jsonb_build_object('action', 'policy', 'kind', kind, 'changed', next <> known.overridden,
                              'declared', known.declared, 'overridden', next, 'policy', known.declared || next);
END $$;
COMMENT ON FUNCTION tidegate.set_policy IS
    'Sets how events of a kind are handled, in place of what the program declares. kind: a registered kind. policy: an '
    'object with some of max_attempts, handler_timeout_ms, backoff_ms, backoff_max_ms, concurrency, batch, '
    'batch_within_ms and give_up_after_ms; a field that is null returns to the declared value; {} changes nothing. reason: the reason, required '
    'for a change. actor: the operator''s name. Returns declared, overridden and policy.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION tidegate.set_policy TO tidegate_operate;
