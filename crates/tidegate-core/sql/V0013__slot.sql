-- How many drains work at the same time, and how much work there is.

-- The number of allowed slots is the maximum number of drains, however often the function is invoked. If a
-- drain does not renew its slot in time, the slot becomes free at the same time as the drain's leases.
CREATE TABLE @tidegate.drain_slot (
    slot     integer     PRIMARY KEY,
    worker   uuid,
    name     text,
    until    timestamptz NOT NULL DEFAULT '-infinity',
    taken_at timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE @tidegate.drain_slot IS
    'Slots that limit how many drains run at the same time: a drain has one slot while it runs.';
COMMENT ON COLUMN @tidegate.drain_slot.slot IS 'The number of the slot, 1 to 1000.';
COMMENT ON COLUMN @tidegate.drain_slot.worker IS 'The drain that has the slot. Null: it is free.';
COMMENT ON COLUMN @tidegate.drain_slot.name IS
    'Where that drain runs: its host and process, its log stream, or what TIDEGATE_WORKER says. At most 200 characters.';
COMMENT ON COLUMN @tidegate.drain_slot.until IS 'When the slot becomes free, unless its drain renews it.';
COMMENT ON COLUMN @tidegate.drain_slot.taken_at IS 'When the drain took it.';

INSERT INTO @tidegate.drain_slot (slot) SELECT generate_series(1, 1000);

CREATE VIEW @tidegate.leases AS
SELECT l.token, l.worker, (SELECT s.name FROM @tidegate.drain_slot AS s WHERE s.worker = l.worker LIMIT 1) AS name, l.taken_at, l.renewed_at, l.expires_at, l.expires_at <= clock_timestamp() AS expired,
       in_hand.events, in_hand.started, in_hand.first_id, in_hand.last_id, l.cuts
  FROM @tidegate.lease AS l
 CROSS JOIN LATERAL (
       SELECT count(*) AS events, count(*) FILTER (WHERE q.id <= l.started_to) AS started,
              min(q.id) AS first_id, max(q.id) AS last_id
         FROM @tidegate.event_queue AS q
        WHERE q.id = ANY (ARRAY(SELECT generate_series(lower(r), upper(r) - 1) FROM unnest(l.ids) AS r LIMIT 10000))) AS in_hand
 WHERE NOT l.ended;
COMMENT ON VIEW @tidegate.leases IS 'Which worker holds which events, one row per lease.';
COMMENT ON COLUMN @tidegate.leases.name IS 'Where the worker runs: see drain_slot. Null: it is no drain, or another drain has taken its slot.';
COMMENT ON COLUMN @tidegate.leases.expired IS 'True: the lease has run out.';
COMMENT ON COLUMN @tidegate.leases.events IS 'How many events it still holds.';
COMMENT ON COLUMN @tidegate.leases.started IS 'How many of them a handler may be processing.';
COMMENT ON COLUMN @tidegate.leases.first_id IS 'The lowest of their ids.';
COMMENT ON COLUMN @tidegate.leases.last_id IS 'The highest of their ids.';

-- A start may arrive twice, but runs once.
CREATE TABLE @tidegate.drain_chain (
    -- The chain's id.
    chain  uuid        PRIMARY KEY,
    -- The number of the latest drain of the chain.
    hop    integer     NOT NULL,
    -- The worker id of that drain.
    worker uuid        NOT NULL,
    -- When that drain began.
    at     timestamptz NOT NULL
);
COMMENT ON TABLE @tidegate.drain_chain IS 'Chains of drains, in which one drain starts the next, and how far each chain has come.';

CREATE INDEX drain_chain_at ON @tidegate.drain_chain (at);

CREATE TABLE @tidegate.wake (
    -- Always true: there is only one row.
    one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
    -- When should_wake() last returned true.
    sent_at  timestamptz NOT NULL DEFAULT '-infinity',
    -- When a call of should_wake() was last recorded.
    asked_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE @tidegate.wake IS 'When a drain was last woken, in a single row. See should_wake().';

INSERT INTO @tidegate.wake DEFAULT VALUES;

-- Where the queue was when it was last migrated. A schema that is copied into another database, by pg_dump or
-- logical replication, brings this row along, and with it leases and slots of workers that work on the
-- original. A standby that takes over, and a server that is restored, are the same place.
CREATE TABLE @tidegate.home (
    -- Always true: there is only one row.
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The server's system identifier. Null if it does not tell.
    server   bigint,
    database oid     NOT NULL,
    -- The table event_queue.
    queue    oid     NOT NULL
);
COMMENT ON TABLE @tidegate.home IS 'Where the queue was when it was last migrated, in a single row.';

CREATE FUNCTION @tidegate.here(OUT server bigint, OUT database oid, OUT queue oid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
    database := (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());
    queue := '@tidegate.event_queue'::regclass;
    server := (SELECT c.system_identifier FROM pg_control_system() AS c);
EXCEPTION WHEN OTHERS THEN
    server := NULL;
END $$;
COMMENT ON FUNCTION @tidegate.here IS 'Where the queue is now.';

CREATE FUNCTION @tidegate.is_copy() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT NOT EXISTS (SELECT FROM @tidegate.home AS h, @tidegate.here() AS c
                        WHERE (h.server, h.database, h.queue) IS NOT DISTINCT FROM (c.server, c.database, c.queue));
$$;
COMMENT ON FUNCTION @tidegate.is_copy IS
    'Whether the queue was copied here and not migrated since. Its leases and slots are those of workers elsewhere.';

-- Refuses work in a copied queue. move_in() later deletes all leases: what was leased in the copy would be
-- leased a second time, and its groups would lose their order.
CREATE FUNCTION @tidegate.refuse_copy() RETURNS void
    LANGUAGE plpgsql AS $$
BEGIN
    IF @tidegate.is_copy() THEN
        RAISE EXCEPTION 'this queue was copied here, with leases of workers elsewhere: run `tidegate migrate` first'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;

-- Makes a copied queue a queue of this place. What workers hold elsewhere becomes void. No attempt is
-- charged: nothing was started here.
CREATE FUNCTION @tidegate.move_in() RETURNS boolean
    LANGUAGE plpgsql AS $$
BEGIN
    IF NOT @tidegate.is_copy() THEN
        RETURN false;
    END IF;
    DELETE FROM @tidegate.lease;
    DELETE FROM @tidegate.lease_cut;
    DELETE FROM @tidegate.service_place;
    DELETE FROM @tidegate.drain_chain;
    UPDATE @tidegate.drain_slot
       SET worker = NULL, name = NULL, until = '-infinity', taken_at = NULL
     WHERE worker IS NOT NULL;
    UPDATE @tidegate.wake SET sent_at = '-infinity', asked_at = '-infinity';
    INSERT INTO @tidegate.home (server, database, queue) SELECT c.server, c.database, c.queue FROM @tidegate.here() AS c
        ON CONFLICT (one) DO UPDATE SET server = excluded.server, database = excluded.database, queue = excluded.queue;
    RETURN true;
END $$;
COMMENT ON FUNCTION @tidegate.move_in IS
    'Makes leases, slots and starts void that were copied from elsewhere. Returns whether the queue was a copy. migrate calls it.';

-- The server's current position in the write-ahead log. Null if the server does not report it, as Aurora may
-- not.
CREATE FUNCTION @tidegate.wal_position() RETURNS bigint
    LANGUAGE plpgsql AS $$
BEGIN
    RETURN (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;

-- Returns whether a publisher should wake a drain: no running drain will check the queue again, and no drain
-- was woken within the last two seconds. Only one of several callers gets true. That caller starts a drain by
-- any available means.
--
-- Call it after the publish has committed, in a transaction of its own. Then no event is missed: a drain
-- looks a last time after it has given its slot back. A publisher that saw it in its slot has committed
-- before that.
CREATE FUNCTION @tidegate.should_wake() RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    is_awake CONSTANT boolean := EXISTS (SELECT FROM @tidegate.drain_slot AS s WHERE s.until > instant);
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'should_wake: must be called after the commit of the publish, in a transaction of its own'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- The time of the call is stored once every 15 minutes. It never waits: if another session has the row,
    -- this caller is told.
    UPDATE @tidegate.wake AS w SET sent_at = CASE WHEN is_awake THEN w.sent_at ELSE instant END, asked_at = instant
     WHERE w.one = (SELECT o.one FROM @tidegate.wake AS o
                      WHERE o.asked_at < instant - interval '15 minutes' AND is_awake
                         OR o.sent_at < instant - interval '2 seconds' AND NOT is_awake
                        FOR NO KEY UPDATE SKIP LOCKED);
    RETURN FOUND AND NOT is_awake;
END $$;
COMMENT ON FUNCTION @tidegate.should_wake IS
    'Returns whether a producer that has just published should start a drain: true at most once in two seconds, and only '
    'while no drain is at work. Call it after the COMMIT, in a separate transaction.';

-- Whether a drain of these kinds would find nothing to do. It needs no slot to know that: what is published
-- later wakes the next drain. Not while a woken drain is awaited, because only one that leaves a slot lets
-- publishers wake the next one.
CREATE FUNCTION @tidegate.is_idle(kinds text[]) RETURNS boolean
    LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN NOT (EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE NOT q.delayed)
             OR EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.delayed AND q.available_at <= instant)
             OR EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.delayed AND q.expires_at <= instant)
             OR EXISTS (SELECT FROM @tidegate.lease)
             OR EXISTS (SELECT FROM @tidegate.service AS s WHERE s.state <> 'closed')
             OR EXISTS (SELECT FROM @tidegate.schedule AS s WHERE NOT s.paused AND s.next_at <= instant AND s.kind = ANY (kinds))
             OR EXISTS (SELECT FROM @tidegate.wake AS w WHERE w.sent_at > '-infinity'));
END $$;

-- Takes the lowest free slot of the first `most` for this many seconds. Null: no slot is free. A slot that
-- another session is about to take is skipped. `idle`: there is nothing to do for a drain of these kinds, so
-- no slot is taken; never if `kinds` is null. `repeated`: another worker has already taken this hop of the
-- chain, so no slot is taken. `wakes`: publishers asked within the last hour whether to wake drains, so this
-- drain must look a last time after it has given the slot back.
CREATE FUNCTION @tidegate.take_slot(worker uuid, most integer, seconds double precision, chain uuid, hop integer, name text,
                                   kinds text[], OUT slot integer, OUT idle boolean, OUT repeated boolean, OUT wakes boolean)
    LANGUAGE plpgsql AS $$
DECLARE
    closed text;
BEGIN
    PERFORM @tidegate.refuse_copy();
    -- Tables whose rows are hidden from this login look empty.
    SELECT string_agg(format('ALTER TABLE @tidegate.%I DISABLE ROW LEVEL SECURITY;', c.relname), ' ' ORDER BY c.relname) INTO closed
      FROM pg_class AS c
     WHERE c.relnamespace = '@tidegate'::regnamespace AND c.relrowsecurity AND row_security_active(c.oid);
    IF closed IS NOT NULL THEN
        RAISE EXCEPTION 'row_security: must be off, because it hides events from drains: %', closed USING ERRCODE = 'insufficient_privilege';
    END IF;
    repeated := false;
    idle := kinds IS NOT NULL AND @tidegate.is_idle(kinds);
    IF idle THEN
        RETURN;
    END IF;
    wakes := EXISTS (SELECT FROM @tidegate.wake AS w WHERE w.asked_at > clock_timestamp() - interval '1 hour');
    IF hop > 0 THEN
        -- No start arrives more than a day late.
        DELETE FROM @tidegate.drain_chain AS c WHERE c.chain IN (
            SELECT o.chain FROM @tidegate.drain_chain AS o WHERE o.at < clock_timestamp() - interval '1 day'
             LIMIT 100 FOR UPDATE SKIP LOCKED);
        INSERT INTO @tidegate.drain_chain AS c VALUES (take_slot.chain, take_slot.hop, take_slot.worker, clock_timestamp())
            ON CONFLICT ON CONSTRAINT drain_chain_pkey
            DO UPDATE SET hop = excluded.hop, worker = excluded.worker, at = excluded.at
             -- The answer to an earlier try may have been lost.
             WHERE c.hop < excluded.hop OR c.hop = excluded.hop AND c.worker = excluded.worker;
        IF NOT FOUND THEN
            repeated := true;
            RETURN;
        END IF;
    END IF;
    UPDATE @tidegate.drain_slot AS s
       SET worker = take_slot.worker, name = left(take_slot.name, 200), taken_at = clock_timestamp(),
           until = clock_timestamp() + make_interval(secs => take_slot.seconds)
     WHERE s.slot = (SELECT f.slot FROM @tidegate.drain_slot AS f
                      WHERE f.slot <= take_slot.most AND (f.until <= clock_timestamp() OR f.worker = take_slot.worker)
                      ORDER BY f.worker IS DISTINCT FROM take_slot.worker, f.slot LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING s.slot INTO slot;
END $$;

-- Renews a drain's slot for this many seconds from now. Returns whether the drain still has it. If no other
-- running drain has a lower slot, and unless `most` is 0, it also returns how many events a drain of these
-- kinds could lease, up to `most`, and how many drains are working. It never waits: if another session has
-- locked the row, the slot is renewed next time.
CREATE FUNCTION @tidegate.keep_slot(slot integer, worker uuid, seconds double precision, kinds text[], most bigint,
                                   OUT ours boolean, OUT ready bigint, OUT at_work integer)
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @tidegate.drain_slot AS s
       SET until = clock_timestamp() + make_interval(secs => keep_slot.seconds)
     WHERE s.slot = (SELECT m.slot FROM @tidegate.drain_slot AS m
                      WHERE m.slot = keep_slot.slot AND m.worker = keep_slot.worker FOR NO KEY UPDATE SKIP LOCKED);
    ours := FOUND OR EXISTS (SELECT FROM @tidegate.drain_slot AS s WHERE s.slot = keep_slot.slot AND s.worker = keep_slot.worker);
    IF ours AND most > 0 AND NOT EXISTS (SELECT FROM @tidegate.drain_slot AS s
                                          WHERE s.slot < keep_slot.slot AND s.until > clock_timestamp()) THEN
        SELECT l.ready, l.at_work INTO ready, at_work FROM @tidegate.left_to_do(kinds, most) AS l;
    END IF;
END $$;

-- Frees the slot when the drain ends. It never waits, as above: a locked slot becomes free when its time is
-- up. From now on a publisher wakes the next drain.
CREATE FUNCTION @tidegate.leave_slot(slot integer, worker uuid) RETURNS void
    LANGUAGE sql AS $$
    UPDATE @tidegate.wake AS w SET sent_at = '-infinity'
     WHERE w.one = (SELECT o.one FROM @tidegate.wake AS o WHERE o.sent_at > '-infinity' FOR NO KEY UPDATE SKIP LOCKED);
    UPDATE @tidegate.drain_slot AS s
       SET worker = NULL, name = NULL, until = '-infinity', taken_at = NULL
     WHERE s.slot = (SELECT m.slot FROM @tidegate.drain_slot AS m
                      WHERE m.slot = leave_slot.slot AND m.worker = leave_slot.worker FOR NO KEY UPDATE SKIP LOCKED)
$$;

-- Returns how many events a drain for these kinds could lease now, up to `most`, and when the next ones
-- become ready. Events are not ready if they are scheduled, retried, or held back by their group, by a pause
-- of their kind or by an outside service. Events that another drain has leased are not counted. It also
-- returns how many drains are working. It reads the first 100,000 events that are not delayed, and the first
-- 1,000 that are.
CREATE FUNCTION @tidegate.left_to_do(kinds text[], most bigint, OUT ready bigint, OUT next_due_at timestamptz,
                                    OUT at_work integer)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    active CONSTANT int8multirange := coalesce((SELECT range_agg(l.ids) FROM @tidegate.lease AS l WHERE NOT l.ended), '{}');
    taken CONSTANT text[] := ARRAY(
        SELECT k.kind FROM @tidegate.event_kind AS k
         WHERE k.kind = ANY (left_to_do.kinds) AND NOT k.paused
           AND NOT EXISTS (SELECT FROM @tidegate.service AS s WHERE s.state <> 'closed' AND k.kind = ANY (s.kinds)));
BEGIN
    SELECT count(*) INTO at_work FROM @tidegate.drain_slot AS s WHERE s.until > instant;
    WITH first AS MATERIALIZED (
        SELECT f.id, f.group_key
          FROM (SELECT q.id, q.group_key, q.kind, q.available_at
                  FROM @tidegate.event_queue AS q WHERE NOT q.delayed ORDER BY q.id LIMIT 100000) AS f
         WHERE f.available_at <= instant AND f.kind = ANY (taken) AND NOT (f.id <@ active)
         ORDER BY f.id LIMIT most
    ), grouped AS (
        SELECT f.group_key, count(*) AS n, min(f.id) AS id FROM first AS f WHERE f.group_key IS NOT NULL GROUP BY f.group_key
    )
    SELECT (SELECT count(*) FROM first AS f WHERE f.group_key IS NULL)
         + coalesce((SELECT sum(g.n) FROM grouped AS g
                      -- OFFSET 0 forces one index lookup for each group.
                      WHERE NOT EXISTS (SELECT FROM @tidegate.event_queue AS q
                                         WHERE q.group_key = g.group_key AND q.id < g.id OFFSET 0)), 0)
      INTO ready;
    SELECT min(d.at) INTO next_due_at
      FROM (SELECT p.available_at AS at
              FROM (SELECT q.available_at, q.kind FROM @tidegate.event_queue AS q WHERE q.delayed ORDER BY q.available_at LIMIT 1000) AS p
             WHERE p.kind = ANY (taken)
            UNION ALL
            SELECT s.next_at FROM @tidegate.schedule AS s WHERE NOT s.paused AND s.kind = ANY (taken) AND s.next_at < 'infinity'
            UNION ALL
            -- If a worker dies, nobody else comes: one with a lease, or a drain that may just take one.
            SELECT l.expires_at FROM @tidegate.lease AS l WHERE NOT l.ended
            UNION ALL
            SELECT s.until FROM @tidegate.drain_slot AS s WHERE s.until > instant
            UNION ALL
            SELECT s.retry_at FROM @tidegate.service AS s WHERE s.state IN ('open', 'probing') AND s.kinds && left_to_do.kinds) AS d;
END $$;
COMMENT ON FUNCTION @tidegate.left_to_do IS
    'The work that a drain could do now. kinds: the kinds that it handles. most: where counting stops. Returns ready '
    '(events), next_due_at and at_work (drains).';

-- What the roles may do here; see roles.sql.
GRANT SELECT, UPDATE (worker, name, until, taken_at) ON @tidegate.drain_slot TO @tidegate_drain;
GRANT SELECT ON @tidegate.drain_slot TO @tidegate_operate, @tidegate_read;
GRANT SELECT ON @tidegate.leases TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT SELECT, UPDATE ON @tidegate.wake TO @tidegate_drain;
GRANT SELECT, INSERT, UPDATE, DELETE ON @tidegate.drain_chain TO @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.wal_position, @tidegate.refuse_copy, @tidegate.is_idle, @tidegate.take_slot, @tidegate.keep_slot,
    @tidegate.leave_slot TO @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.should_wake TO @tidegate_publish, @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.left_to_do, @tidegate.is_copy TO @tidegate_drain, @tidegate_operate, @tidegate_read;
