-- How many drains work at once, and what there is for them to do.

-- So many drains may work at once at most as there are slots up to the number that is allowed: each has one while it runs,
-- however often one function is invoked. A slot whose drain has said nothing until then is free again, when its leases are.
CREATE TABLE tidegate.drain_slot (
    slot     integer     PRIMARY KEY,
    worker   uuid,
    until    timestamptz NOT NULL DEFAULT '-infinity',
    taken_at timestamptz,
    -- Events that its drain ends in a second; null until that is known.
    rate     float8,
    -- Its drain has found nothing and looks a last time: who publishes from now on wakes another one.
    closing  boolean     NOT NULL DEFAULT false
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
INSERT INTO tidegate.drain_slot (slot) SELECT generate_series(1, 1000);

-- How far a chain of drains has come, each of which starts the next. A start may arrive twice, and runs once.
CREATE TABLE tidegate.drain_chain (
    chain  uuid        PRIMARY KEY,
    hop    integer     NOT NULL,
    worker uuid        NOT NULL,
    at     timestamptz NOT NULL
);
CREATE INDEX drain_chain_at ON tidegate.drain_chain (at);

-- When drains were woken last, and when it was last asked whether one should be; one row.
CREATE TABLE tidegate.wake (
    one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
    sent_at  timestamptz NOT NULL DEFAULT '-infinity',
    asked_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
INSERT INTO tidegate.wake DEFAULT VALUES;

-- How far the server has written its log ahead; null where it does not tell, as Aurora may not.
CREATE FUNCTION tidegate.wal_position() RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RETURN (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;

-- Whether who has just published should wake a drain: none is at work that will still look, and nobody has woken one within two
-- seconds. True is said to one of those who ask; who is told so starts a drain, by whatever way there is.
--
-- To be asked behind the publish's COMMIT, in a transaction of its own. No event is missed so: a drain says that it closes before it
-- looks a last time, so who saw it at work has committed before that look.
CREATE FUNCTION tidegate.should_wake() RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    is_awake CONSTANT boolean := EXISTS (SELECT FROM tidegate.drain_slot AS s WHERE s.until > instant AND NOT s.closing);
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'should_wake: must be asked when what was published is committed, in a transaction of its own'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- That it is asked is noted once in a quarter of an hour. Waits for nobody: who has the row is told.
    UPDATE tidegate.wake AS w SET sent_at = CASE WHEN is_awake THEN w.sent_at ELSE instant END, asked_at = instant
     WHERE w.one = (SELECT o.one FROM tidegate.wake AS o
                      WHERE o.asked_at < instant - interval '15 minutes' AND is_awake
                         OR o.sent_at < instant - interval '2 seconds' AND NOT is_awake
                        FOR NO KEY UPDATE SKIP LOCKED);
    RETURN FOUND AND NOT is_awake;
END $$;

-- Takes a slot for so many seconds, the lowest of the first `most` that is free. Null: none is. One that somebody else is about to
-- take is passed. `repeated`: this hop of the chain has been taken by another worker, so nothing is. `wakes`: publishers have asked
-- within an hour whether to wake drains, so they must be told before this one ends. `soon`: none is free, but a drain that has one has
-- said that it closes. Whoever published since then counts on the caller and on nobody else, so the caller asks again.
CREATE FUNCTION tidegate.take_slot(worker uuid, most integer, seconds double precision, chain uuid, hop integer,
                                   OUT slot integer, OUT repeated boolean, OUT wakes boolean, OUT soon boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    repeated := false;
    soon := false;
    wakes := EXISTS (SELECT FROM tidegate.wake AS w WHERE w.asked_at > clock_timestamp() - interval '1 hour');
    IF hop > 0 THEN
        -- No start is a day late.
        DELETE FROM tidegate.drain_chain AS c WHERE c.chain IN (
            SELECT o.chain FROM tidegate.drain_chain AS o WHERE o.at < clock_timestamp() - interval '1 day'
             LIMIT 100 FOR UPDATE SKIP LOCKED);
        INSERT INTO tidegate.drain_chain AS c VALUES (take_slot.chain, take_slot.hop, take_slot.worker, clock_timestamp())
            ON CONFLICT ON CONSTRAINT drain_chain_pkey
            DO UPDATE SET hop = excluded.hop, worker = excluded.worker, at = excluded.at
             -- The answer to an earlier try may have been lost.
             WHERE c.hop < excluded.hop OR c.hop = excluded.hop AND c.worker = excluded.worker;
        IF NOT FOUND THEN
            repeated := true;
            RETURN;
        END IF;
    END IF;
    UPDATE tidegate.drain_slot AS s
       SET worker = take_slot.worker, taken_at = clock_timestamp(), rate = NULL, closing = false,
           until = clock_timestamp() + make_interval(secs => take_slot.seconds)
     WHERE s.slot = (SELECT f.slot FROM tidegate.drain_slot AS f
                      WHERE f.slot <= take_slot.most AND (f.until <= clock_timestamp() OR f.worker = take_slot.worker)
                      ORDER BY f.worker IS DISTINCT FROM take_slot.worker, f.slot LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING s.slot INTO slot;
    IF NOT FOUND THEN
        soon := EXISTS (SELECT FROM tidegate.drain_slot AS s WHERE s.slot <= take_slot.most AND s.closing AND s.until > clock_timestamp());
    END IF;
END $$;

-- The drain is at work, and ends so many events in a second: its slot holds for so many seconds from now. Tells whether it still
-- has it, and whether no drain at work has a lower one. Waits for nobody: a row that somebody keeps locked is prolonged the
-- next time.
CREATE FUNCTION tidegate.keep_slot(slot integer, worker uuid, seconds double precision, rate double precision,
                                   OUT ours boolean, OUT first boolean)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    UPDATE tidegate.drain_slot AS s
       SET until = clock_timestamp() + make_interval(secs => keep_slot.seconds), rate = keep_slot.rate
     WHERE s.slot = (SELECT m.slot FROM tidegate.drain_slot AS m
                      WHERE m.slot = keep_slot.slot AND m.worker = keep_slot.worker FOR NO KEY UPDATE SKIP LOCKED);
    ours := FOUND OR EXISTS (SELECT FROM tidegate.drain_slot AS s WHERE s.slot = keep_slot.slot AND s.worker = keep_slot.worker);
    first := ours AND NOT EXISTS (SELECT FROM tidegate.drain_slot AS s
                                   WHERE s.slot < keep_slot.slot AND s.until > clock_timestamp());
END $$;

-- The drain has found nothing and will look a last time, or has found something after all. Tells whether that is known now: a row
-- that somebody keeps locked is left alone.
CREATE FUNCTION tidegate.close_slot(slot integer, worker uuid, closing boolean) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    UPDATE tidegate.drain_slot AS s SET closing = close_slot.closing
     WHERE s.slot = (SELECT m.slot FROM tidegate.drain_slot AS m
                      WHERE m.slot = close_slot.slot AND m.worker = close_slot.worker FOR NO KEY UPDATE SKIP LOCKED);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Who publishes now wakes the next one, however short ago this one was woken.
    UPDATE tidegate.wake AS w SET sent_at = '-infinity'
     WHERE close_slot.closing AND w.one = (SELECT o.one FROM tidegate.wake AS o WHERE o.sent_at > '-infinity' FOR NO KEY UPDATE SKIP LOCKED);
    RETURN true;
END $$;

-- The drain ends. Waits for nobody, as above: the slot is free in time. Who publishes now wakes the next one.
CREATE FUNCTION tidegate.leave_slot(slot integer, worker uuid) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp
    AS $$
    UPDATE tidegate.wake AS w SET sent_at = '-infinity'
     WHERE w.one = (SELECT o.one FROM tidegate.wake AS o WHERE o.sent_at > '-infinity' FOR NO KEY UPDATE SKIP LOCKED);
    UPDATE tidegate.drain_slot AS s
       SET worker = NULL, until = '-infinity', taken_at = NULL, rate = NULL, closing = false
     WHERE s.slot = (SELECT m.slot FROM tidegate.drain_slot AS m
                      WHERE m.slot = leave_slot.slot AND m.worker = leave_slot.worker FOR NO KEY UPDATE SKIP LOCKED)
$$;

-- What a drain for these kinds could take now, up to `most`, and when there will be more next: what is planned, retried or
-- held back by its group, its kind's pause or an outside service is not ready, and what another drain has in hand is not
-- left. And how many drains are at work on it, of how many it is not known how fast they are, and how many events the others end
-- in a second together. Looks at the first 100,000 events that are not planned and the first 1,000 that are.
CREATE FUNCTION tidegate.left_to_do(kinds text[], most bigint, OUT ready bigint, OUT next_due_at timestamptz,
                                    OUT at_work integer, OUT unrated integer, OUT rate double precision)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    active CONSTANT int8multirange := coalesce((SELECT range_agg(l.ids) FROM tidegate.lease AS l WHERE NOT l.ended), '{}');
    taken CONSTANT text[] := ARRAY(
        SELECT k.kind FROM tidegate.event_kind AS k
         WHERE k.kind = ANY (left_to_do.kinds) AND NOT k.paused
           AND NOT EXISTS (SELECT FROM tidegate.service AS s WHERE s.state <> 'closed' AND k.kind = ANY (s.kinds)));
BEGIN
    SELECT count(*), count(*) FILTER (WHERE s.rate IS NULL), coalesce(sum(s.rate), 0) INTO at_work, unrated, rate
      FROM tidegate.drain_slot AS s WHERE s.until > instant;
    WITH first AS MATERIALIZED (
        SELECT f.id, f.group_key
          FROM (SELECT q.id, q.group_key, q.kind, q.available_at
                  FROM tidegate.event_queue AS q WHERE NOT q.delayed ORDER BY q.id LIMIT 100000) AS f
         WHERE f.available_at <= instant AND f.kind = ANY (taken) AND NOT (f.id <@ active)
         ORDER BY f.id LIMIT most
    ), grouped AS (
        SELECT f.group_key, count(*) AS n, min(f.id) AS id FROM first AS f WHERE f.group_key IS NOT NULL GROUP BY f.group_key
    )
    SELECT (SELECT count(*) FROM first AS f WHERE f.group_key IS NULL)
         + coalesce((SELECT sum(g.n) FROM grouped AS g
                      -- OFFSET 0: asked group by group, by the index.
                      WHERE NOT EXISTS (SELECT FROM tidegate.event_queue AS q
                                         WHERE q.group_key = g.group_key AND q.id < g.id OFFSET 0)), 0)
      INTO ready;
    SELECT min(d.at) INTO next_due_at
      FROM (SELECT p.available_at AS at
              FROM (SELECT q.available_at, q.kind FROM tidegate.event_queue AS q WHERE q.delayed ORDER BY q.available_at LIMIT 1000) AS p
             WHERE p.kind = ANY (taken) AND p.available_at < tidegate.unreleased()
            UNION ALL
            SELECT s.next_at FROM tidegate.schedule AS s WHERE NOT s.paused AND s.kind = ANY (taken) AND s.next_at < 'infinity'
            UNION ALL
            SELECT s.retry_at FROM tidegate.service AS s WHERE s.state IN ('open', 'probing') AND s.kinds && left_to_do.kinds) AS d;
END $$;
