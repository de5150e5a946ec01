-- Where the events of programs without handlers of their own go: targets, which tidegate-relay calls. Its
-- file is stored here by `tidegate-relay migrate --targets FILE`, so all drains have the same one. A drain
-- reads it when it starts, and keeps what it has read until it ends.

CREATE TABLE @tidegate.target (
    -- Also the name of the service and of the handler.
    target      text        PRIMARY KEY CHECK (target ~ '^[a-z0-9_-]{1,90}$'),
    address     jsonb       NOT NULL CHECK (jsonb_typeof(address) = 'object'),
    -- As last declared. What is in force is in `service`, where an operator may change it.
    max_running integer,
    per_second  float8,
    since       timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE @tidegate.target IS
    'The targets that tidegate-relay calls with events: Lambda functions, URLs, queues, buses. Written by its migrate alone.';
COMMENT ON COLUMN @tidegate.target.target IS 'The name of the target, and of its service: 1 to 90 of a-z, 0-9, - and _.';
COMMENT ON COLUMN @tidegate.target.address IS 'How it is called: an object with one of lambda, https, sqs and eventbridge, and its options.';
COMMENT ON COLUMN @tidegate.target.max_running IS 'The declared limit of events at once, which services shows. Null: none.';
COMMENT ON COLUMN @tidegate.target.per_second IS 'The declared limit of starts per second. Null: none.';
COMMENT ON COLUMN @tidegate.target.since IS 'When it was last declared otherwise than before.';

ALTER TABLE @tidegate.event_kind ADD COLUMN targets text[];
COMMENT ON COLUMN @tidegate.event_kind.targets IS
    'The targets that tidegate-relay calls with the events of this kind, in order; empty if they are only pulled. Null: its '
    'file does not name this kind.';

-- The declared targets and their kinds, as declare_targets() takes them.
CREATE FUNCTION @tidegate.targets() RETURNS jsonb
    LANGUAGE sql STABLE
    RETURN jsonb_build_object(
        'targets', (SELECT coalesce(jsonb_object_agg(t.target, jsonb_strip_nulls(jsonb_build_object(
                               'address', t.address, 'limit', t.max_running, 'per_second', t.per_second))), '{}')
                      FROM @tidegate.target AS t),
        'kinds', (SELECT coalesce(jsonb_object_agg(k.kind, jsonb_build_object('targets', k.targets, 'policy', k.policy)), '{}')
                    FROM @tidegate.event_kind AS k WHERE k.targets IS NOT NULL));
COMMENT ON FUNCTION @tidegate.targets IS
    'The targets of tidegate-relay and the kinds of events that go to them, as they were declared: {"targets": {name: '
    '{address, limit, per_second}}, "kinds": {kind: {targets, policy}}}.';

-- Replaces all targets, and registers their kinds. A kind that is not declared any more stays registered, and
-- its events wait. Returns what differs from before, by path. The limits of a service are set when those of
-- its target change, so an operator's limits last until then. Not granted to anybody: the owner alone decides
-- where payloads go.
CREATE FUNCTION @tidegate.declare_targets(file jsonb, actor text) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    before CONSTANT jsonb := @tidegate.targets();
    named CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(file->'kinds'));
    difference jsonb;
BEGIN
    PERFORM @tidegate.register_kind(k, file->'kinds'->k->'policy', false) FROM unnest(named) AS k;
    UPDATE @tidegate.event_kind AS k
       SET targets = d.targets
      FROM (SELECT e.kind, CASE WHEN e.kind = ANY (named)
                                THEN ARRAY(SELECT jsonb_array_elements_text(file->'kinds'->e.kind->'targets')) END AS targets
              FROM @tidegate.event_kind AS e) AS d
     WHERE d.kind = k.kind AND k.targets IS DISTINCT FROM d.targets;
    DELETE FROM @tidegate.target AS t WHERE NOT file->'targets' ? t.target;
    INSERT INTO @tidegate.target AS t (target, address, max_running, per_second)
    SELECT d.key, d.value->'address', (d.value->>'limit')::integer, (d.value->>'per_second')::float8
      FROM jsonb_each(file->'targets') AS d
    ON CONFLICT (target) DO UPDATE
       SET address = excluded.address, max_running = excluded.max_running, per_second = excluded.per_second, since = clock_timestamp()
     WHERE (t.address, t.max_running, t.per_second) IS DISTINCT FROM (excluded.address, excluded.max_running, excluded.per_second);

    INSERT INTO @tidegate.service AS s (service, max_running, per_second)
    SELECT coalesce(b.key, a.target), a.max_running, a.per_second
      FROM jsonb_each(before->'targets') AS b FULL JOIN @tidegate.target AS a ON a.target = b.key
     WHERE (a.max_running, a.per_second) IS DISTINCT FROM ((b.value->>'limit')::integer, (b.value->>'per_second')::float8)
    ON CONFLICT (service) DO UPDATE
       SET max_running = excluded.max_running, per_second = excluded.per_second, next_start = '-infinity';
    -- A kind that now goes elsewhere does not wait for this service any more.
    UPDATE @tidegate.service AS s
       SET kinds = w.kinds
      FROM (SELECT o.service,
                   ARRAY(SELECT k FROM unnest(o.kinds) AS k WHERE k <> ALL (named) AND NOT before->'kinds' ? k
                          UNION SELECT k.kind FROM @tidegate.event_kind AS k WHERE o.service = ANY (k.targets) ORDER BY 1) AS kinds
              FROM @tidegate.service AS o WHERE before->'targets' ? o.service OR file->'targets' ? o.service) AS w
     WHERE w.service = s.service AND s.kinds <> w.kinds;

    SELECT jsonb_object_agg(coalesce(b.path, a.path), jsonb_strip_nulls(jsonb_build_object('before', b.value, 'after', a.value)))
      INTO difference
      FROM (SELECT p.key || '.' || e.key AS path, e.value FROM jsonb_each(before) AS p, jsonb_each(p.value) AS e) AS b
      FULL JOIN (SELECT p.key || '.' || e.key AS path, e.value FROM jsonb_each(@tidegate.targets()) AS p, jsonb_each(p.value) AS e) AS a
        USING (path)
     WHERE a.value IS DISTINCT FROM b.value;
    INSERT INTO @tidegate.audit (action, actor, filter, count, reason)
    SELECT 'targets', declare_targets.actor, difference, (SELECT count(*) FROM jsonb_object_keys(difference)), 'migrate'
     WHERE difference IS NOT NULL;
    RETURN coalesce(difference, '{}');
END $$;

-- What the roles may do here; see roles.sql.
GRANT SELECT ON @tidegate.target TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.targets TO @tidegate_drain, @tidegate_operate, @tidegate_read;
