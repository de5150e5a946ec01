-- How events of a kind are handled, if it differs from the defaults: what its program declares. Publishers
-- read the number of attempts from it. Drains read the rest, together with their leases. The limit of events
-- that run at the same time is the limit of a service with the name `kind:…`, which all drains share.

-- Stores the policies that a program declares. A declaration is complete, so values that are no longer
-- declared are removed.
CREATE FUNCTION @tidegate.declare_policies(kinds text[], policies text[]) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    declared record;
BEGIN
    PERFORM @tidegate.refuse(format('policy of %s: ', d.kind) || @tidegate.policy_refusal(d.policy::jsonb))
       FROM unnest(kinds, policies) AS d(kind, policy);
    FOR declared IN
        UPDATE @tidegate.event_kind AS k SET policy = d.policy::jsonb
          FROM unnest(kinds, policies) AS d(kind, policy)
         WHERE k.kind = d.kind AND k.policy <> d.policy::jsonb
        RETURNING k.kind, (k.policy->>'concurrency')::integer AS most
    LOOP
        IF declared.most IS NULL THEN
            UPDATE @tidegate.service AS s SET max_running = NULL WHERE s.service = 'kind:' || declared.kind AND s.max_running IS NOT NULL;
            CONTINUE;
        END IF;
        PERFORM @tidegate.refuse('concurrency: must not be given for a kind of more than 95 characters, got ' || char_length(declared.kind))
          WHERE char_length(declared.kind) > 95;
        INSERT INTO @tidegate.service AS s (service, kinds, max_running)
        VALUES ('kind:' || declared.kind, ARRAY[declared.kind], declared.most)
        ON CONFLICT (service) DO UPDATE SET kinds = excluded.kinds, max_running = excluded.max_running;
    END LOOP;
END $$;
