-- Leases of whole batches: lease, read, start, renew, hand back and break.
--
-- Lock order: every function locks lease rows before event rows, and locks several leases in the order of
-- their tokens. Only drains lock leases, and only for a short time. Operators lock events, and note in
-- lease_cut which leases these have left. Whoever finds an event's row locked leaves this event, and the
-- earlier ones of its group, as they are, and goes on with the others.
--
--   FOR KEY SHARE       the worker uses its lease: it leases more events of its groups, or ends events
--   FOR NO KEY UPDATE   the worker changes its lease: it starts, renews, or marks it as ended
--   FOR UPDATE          an event leaves the lease without having ended (hand_back, sweep), or it is removed
--
-- So the worker's own statements can run at the same time, and no event leaves a lease while the lease's
-- worker writes to it. A handler's transaction locks no lease, because its commit may take long, and the
-- other events of the lease would wait for it. It locks the row of its event, which nobody then takes from
-- the lease, and looks at the lease once more when it has it.
--
-- Order in groups depends on one property. Every statement preserves it, and unordered_leases() can check it
-- at any time:
--
--   G  If a leased event has an earlier live event of its group, the same worker has leased that one too.
--
-- An event that leaves a lease without having ended takes along the later events of its group, from all
-- leases of the worker. Each of them that has a group is marked `stray`. A delayed event with a group is a
-- stray from the start. A give-back commits the removal and the mark together. In every snapshot such an
-- event is therefore either in a lease or a stray, and no other worker has to be notified.
--
-- The settings of the functions are necessary. `plan_cache_mode` keeps a generic plan, because the planner
-- prefers to plan every call anew. `enable_seqscan = off` prevents a plan made for an empty queue from
-- reading the whole table ever after; close_functions() adds `jit = off`. In LANGUAGE sql, a function that
-- Postgres cannot inline is planned in each transaction, so what drains call is in PL/pgSQL. Beside a long
-- transaction, the statistics say that few rows are left, while the indexes still have the dead ones. What a
-- lease holds is therefore sought range by range: a plain join may be planned from the side of the queue.
-- OFFSET 0 prevents that. `enable_sort = off` keeps a statement that wants the first few from sorting all of
-- a group, or all that is due.

-- Ids as a set of ranges.
CREATE FUNCTION @tidegate.ranges(ids bigint[]) RETURNS int8multirange
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    -- The maximum bigint cannot end a range, and is never the id of an event.
    RETURN coalesce((SELECT range_agg(int8range(i, i, '[]')) FROM unnest(ids) AS i WHERE i < 9223372036854775807), '{}');
END $$;

-- Removes leases that are marked as ended. A lease that another session has locked is left to a sweep.
CREATE FUNCTION @tidegate.remove_ended(tokens uuid[]) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    WITH removed AS (
        DELETE FROM @tidegate.lease AS l
         WHERE l.token = ANY (ARRAY(SELECT o.token FROM @tidegate.lease AS o WHERE o.token = ANY (tokens) AND o.ended
                                       FOR UPDATE SKIP LOCKED))
        RETURNING l.token)
    DELETE FROM @tidegate.lease_cut AS c USING removed AS r WHERE c.token = r.token;
END $$;

-- Chooses the next ready events for lease(), behind `start`, and locks them. It runs with the settings of
-- lease(), which alone calls it.
--
-- `ids` is null if there is none. Then `last_id` is where the walk goes on; null at the end of the queue.
-- `scanned` is `most` if the walk goes on. `suspect`: the only one of `ids` is a suspect. `grouped`: one of
-- those met has a group. `young`: groups of events that are younger than the walk. `first_last`: the first
-- event on its last attempt.
CREATE FUNCTION @tidegate.choose(
    start bigint, most bigint, bytes bigint, passed_by text[], left_out text[], probes boolean, horizon integer, low xid8, due_at timestamptz,
    OUT ids bigint[], OUT keys text[], OUT last_id bigint, OUT scanned bigint, OUT suspect boolean, OUT grouped boolean, OUT young text[],
    OUT first_last bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    active int8multirange;
    upto CONSTANT bigint := CASE WHEN probes THEN 9223372036854775807 ELSE least(start, 9223372036854675807) + 100000 END;
    beyond bigint;
    sizes integer[];
    total bigint;
    first_suspect bigint;
    kept bigint;
BEGIN
    -- Find the events in leases.
    SELECT coalesce(range_agg(l.ids), '{}') INTO active FROM @tidegate.lease AS l WHERE l.born >= choose.low AND NOT l.ended;
    -- The scan locks the rows that it examines, in id order, and skips rows that others have locked. It uses
    -- FOR NO KEY UPDATE, because FOR UPDATE also skips rows that a foreign-key check has touched. It is a
    -- subselect of its own, because with stale statistics the planner may run an inlined one once per row.
    -- The conditions are inside a CASE, because the planner assumes that a CASE passes half of the rows,
    -- whatever the statistics say. For separate conditions it multiplies the estimates to almost zero, and
    -- then sorts the table instead of walking its index.
    SELECT count(*), max(s.id), array_agg(s.id), count(s.group_key) > 0, array_agg(s.group_key), array_agg(s.bytes),
           sum(s.bytes), min(s.id) FILTER (WHERE s.suspect), min(s.id) FILTER (WHERE s.last),
           array_agg(s.group_key) FILTER (WHERE s.young AND s.group_key IS NOT NULL)
      INTO scanned, last_id, ids, grouped, keys, sizes, total, first_suspect, first_last, young
      FROM (SELECT q.id, q.group_key, q.payload_bytes + coalesce(pg_column_size(q.progress), 0) AS bytes, q.lapses > 0 AS suspect,
                   q.attempts + 1 >= q.max_attempts AS last, age(q.xmin) <= horizon AS young
              FROM @tidegate.event_queue AS q
             WHERE NOT q.delayed AND q.id > start AND q.id <= upto
               AND CASE WHEN q.available_at <= due_at AND NOT (q.id <@ active)
                         AND (left_out IS NULL OR q.kind <> ALL (left_out))
                         -- A subselect is hashed. = ANY of a parameter is searched linearly.
                         AND (q.group_key IS NULL OR q.group_key NOT IN (SELECT unnest(passed_by))) THEN true ELSE false END
             ORDER BY q.id LIMIT most
               FOR NO KEY UPDATE SKIP LOCKED) AS s;
    IF scanned < most AND NOT probes THEN
        beyond := (SELECT q.id FROM @tidegate.event_queue AS q WHERE NOT q.delayed AND q.id > upto ORDER BY q.id LIMIT 1);
    END IF;
    IF scanned = 0 THEN
        last_id := beyond - 1;
        scanned := CASE WHEN beyond IS NOT NULL THEN most ELSE 0 END;
        RETURN;
    END IF;
    kept := scanned;
    suspect := coalesce(first_suspect = ids[1], false);
    IF suspect THEN
        kept := 1;
    ELSIF first_suspect IS NOT NULL THEN
        kept := array_position(ids, first_suspect) - 1;
    END IF;
    IF total > bytes THEN
        kept := least(kept, greatest(1, (SELECT count(*) FROM (SELECT sum(u.size) OVER (ORDER BY u.n) AS upto
                  FROM unnest(sizes) WITH ORDINALITY AS u(size, n)) AS r WHERE r.upto <= bytes)));
    END IF;
    IF kept < scanned THEN
        ids := ids[:kept];
        keys := keys[:kept];
        last_id := ids[kept];
    END IF;
    IF kept < scanned OR beyond IS NOT NULL THEN
        -- Return the full count, because the end of the queue is not reached yet.
        scanned := most;
    END IF;
END $$;

-- Says for lease() which of the chosen events, `page`, may be leased without breaking the order of a group:
-- `mine`. It runs with the settings of lease(), which alone calls it.
CREATE FUNCTION @tidegate.in_order(
    worker uuid, held uuid[], start bigint, ids bigint[], keys text[], young text[], page int8multirange,
    INOUT clear_to bigint, INOUT low xid8, OUT mine int8multirange, OUT blocked text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    last_id CONSTANT bigint := upper(page) - 1;
    locked uuid[];
    own int8multirange;
    others int8multirange;
    busy integer[];
    passed text[];
    first_passed bigint;
    strays boolean;
    doubtful text[];
BEGIN
    -- First lock our own leases, in a separate statement. From here on no event leaves them, and the next
    -- statement sees which events have left before. (If the next statement locked them itself, it would
    -- read a lease as it is after a give-back that its snapshot does not contain.)
    locked := ARRAY(SELECT l.token FROM @tidegate.lease AS l
                     WHERE l.token = ANY (held) AND l.worker = in_order.worker FOR KEY SHARE SKIP LOCKED);
    -- Read all facts from one snapshot.
    WITH own AS MATERIALIZED (
        SELECT l.token, l.ids - coalesce((SELECT range_agg(int8range(c.id, c.id, '[]')) FROM @tidegate.lease_cut AS c
                                           WHERE c.token = l.token), '{}') AS ids
          FROM @tidegate.lease AS l WHERE l.token = ANY (locked)
    ), live AS MATERIALIZED (
        SELECT l.token, l.ids, l.groups, l.born FROM @tidegate.lease AS l WHERE l.born >= in_order.low AND NOT l.ended
    ), sets AS MATERIALIZED (
        SELECT coalesce((SELECT range_agg(o.ids) FROM own AS o), '{}') AS own,
               coalesce((SELECT range_agg(l.ids) FROM live AS l), '{}') AS live
    )
    SELECT sets.own, sets.live - sets.own,
           least((SELECT min(born) FROM live), pg_snapshot_xmin(pg_current_snapshot())),
           (SELECT array_agg(h) FROM live AS l, unnest(l.groups) AS h WHERE l.token NOT IN (SELECT o.token FROM own AS o)),
           p.keys, p.first,
           EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.stray AND q.group_key IS NOT NULL
                      AND NOT (q.id <@ page) AND NOT (q.id <@ sets.own))
      INTO own, others, low, busy, passed, first_passed, strays
      FROM sets, LATERAL (
           SELECT array_agg(q.group_key) AS keys, min(q.id) AS first
             FROM @tidegate.event_queue AS q
            WHERE start <= clear_to AND NOT q.delayed AND NOT q.stray AND q.id > start AND q.id <= last_id
              -- Inside a CASE, as above.
              AND CASE WHEN q.group_key IS NOT NULL THEN true ELSE false END
              AND NOT (q.id <@ page) AND NOT (q.id <@ sets.live)) AS p;
    doubtful := CASE
        WHEN start > clear_to THEN ARRAY(SELECT DISTINCT k FROM unnest(keys) AS k WHERE k IS NOT NULL)
        WHEN busy IS NULL AND NOT strays THEN passed || young
        ELSE passed || young || ARRAY(
             SELECT DISTINCT k FROM unnest(keys) AS k
              WHERE hashtext(k) IN (SELECT unnest(busy))
                 -- OFFSET 0 forces one index lookup for each group, never a hash of all strays.
                 OR strays AND EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.stray AND q.group_key = k OFFSET 0)) END;
    mine := page - others;
    IF cardinality(doubtful) > 0 THEN
        -- The cut is the first event of each doubtful group that this worker does not hold. Later events
        -- are not leased. The comparison of rows needs the index of groups: one by id could pass all.
        WITH cut AS MATERIALIZED (
            SELECT d.key, ahead.id, ahead.id < d.first AS whole
              FROM (SELECT u.key, min(u.id) AS first, max(u.id) AS last
                      FROM unnest(ids, keys) AS u(id, key)
                     WHERE u.key IN (SELECT unnest(doubtful)) GROUP BY u.key) AS d
             CROSS JOIN LATERAL (
                   SELECT b.id FROM @tidegate.event_queue AS b
                    WHERE b.group_key IS NOT NULL AND (b.group_key, b.id) >= (d.key, 0) AND (b.group_key, b.id) <= (d.key, d.last)
                      AND NOT (b.id <@ own) AND NOT (b.id <@ mine)
                    ORDER BY b.group_key, b.id LIMIT 1) AS ahead
        )
        SELECT mine - coalesce(range_agg(int8range(u.id, u.id, '[]')), '{}'), least(min(u.id), first_passed),
               (SELECT array_agg(cut.key) FROM cut WHERE cut.whole)
          INTO mine, first_passed, blocked
          FROM unnest(ids, keys) AS u(id, key) JOIN cut ON cut.key = u.key AND u.id > cut.id AND u.id <@ mine;
    END IF;
    IF start <= clear_to THEN
        clear_to := greatest(clear_to, least(last_id, first_passed - 1));
    END IF;
END $$;

-- Leases the next free events behind `after` under `token`, in id order: up to `most` events and about
-- `bytes` of payload and progress, which counts as it is stored. It looks at the next 100,000 ids, so that a
-- call is short even if it may lease none of a million events. Only if `scanned` is less than `most`, the end
-- of the queue is reached.
--
-- A walk is a sequence of such calls, from after = 0 to the end of the queue. Between calls the caller keeps
-- the results of the last call: reached (`after`), clear_to, as_of and low. Whatever other sessions do in the
-- meantime, these statements stay true:
--
--   as_of     Every earlier transaction had ended when the walk began, so the walk has seen all its writes.
--   clear_to  Every event with a group, an id up to this one, and a last write before as_of, has ended, is in
--             a lease, or is marked stray. (Property J.)
--   low       No lease that was taken before this transaction is still live.
--
-- An event with a group is leased only if every earlier live event of its group is leased by this call or is
-- in a lease of this worker that `held` names. The function looks up a group in the index only if one of
-- these conditions makes the group doubtful:
--
-- - An event of the group is in a lease of another worker. (Compared by hash: too many groups may match,
--   never too few.)
-- - The group has a stray that this worker does not hold.
-- - This call passed an event of the group without leasing it, because it was locked, paused, or of an
--   unknown kind.
-- - The event is younger than the walk, so another one may have been inserted behind the cursor. (Ids are
--   drawn under the group's lock, which is held until commit. An older event therefore has no predecessor
--   that the walk did not meet.)
-- - The walk is not clear up to the start of the call.
--
-- No lease of another worker can be missed while it is being taken. That worker has locked its events, so
-- this call passes them and sees that it did not lease them.
--
-- If the worker of an event died (lapses > 0), a call leases that event alone and does not start it
-- (`suspect`). The caller starts it when no other event that it holds is running. The caller omits its token
-- from `held` here, so later events of its group wait. Of other events, the first `first_window` count as
-- started: if their worker dies, their attempt is charged. An event on its last attempt ends this window,
-- because being charged would be its end: the worker starts it when it has a place for it.
--
-- `blocked` returns the groups of which no event could be leased. The caller may pass the groups that it met
-- in this walk as `passed_by`: their other events are then skipped without a lock. The caller runs `sweep`
-- before the start of a walk.
--
-- `over`: leases of the worker that are marked as ended. They are removed first, and what operators have
-- taken leaves its leases.
--
-- `services`: the state of services that failed recently or have limits. Null if there are none. Kinds of
-- services that must not be called are not leased. `probe` names an open service that is due for a new try:
-- one event of its kinds is leased, by one worker only (see report_service).
--
-- Kinds that are registered but unknown to this program (`kinds`), and paused kinds, are not leased. A kind
-- that no program registered is leased, so that the drain can end its events. Expired and exhausted events
-- are leased too, so that they end without a scan of their own. `due` is the time of a test: it decides what
-- is ready, and when the lease runs out.
--
-- A poller is a worker with one lease, whose token is its worker. Its transaction is its caller's, and may
-- stay open for as long as the caller works. It therefore takes no event out of a lease of another worker.
CREATE FUNCTION @tidegate.lease(
    token uuid, worker uuid, held uuid[], over uuid[], seconds double precision, kinds text[], most bigint, bytes bigint,
    first_window integer, passed_by text[], probe text,
    INOUT after bigint, INOUT clear_to bigint, INOUT as_of xid8, INOUT low xid8, due timestamptz DEFAULT NULL,
    OUT taken bigint, OUT scanned bigint, OUT suspect boolean, OUT blocked text[], OUT services jsonb
) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off
    SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    due_at CONSTANT timestamptz := coalesce(lease.due, instant);
    have_policies boolean;
    start bigint;
    left_out text[];
    chosen record;
    page int8multirange;
    mine int8multirange;
    hashes integer[];
    held_kinds text[] := '{}';
    probed text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'transaction_isolation: must be read committed, because each statement of a lease must see earlier leases, got %',
            current_setting('transaction_isolation') USING ERRCODE = 'invalid_transaction_state',
                  HINT = format('ALTER ROLE %I SET default_transaction_isolation = ''read committed''', session_user);
    END IF;
    taken := 0;
    PERFORM @tidegate.apply_cuts() WHERE worker <> token AND EXISTS (SELECT FROM @tidegate.lease_cut);
    PERFORM @tidegate.remove_ended(over) WHERE cardinality(over) > 0;
    -- The server may count transactions differently from before, for example if it is a copy of the database
    -- behind the same name. The kept values are then meaningless, so the walk starts again.
    IF after = 0 OR as_of IS NULL OR clear_to IS NULL OR as_of > pg_snapshot_xmax(pg_current_snapshot()) THEN
        as_of := pg_snapshot_xmin(pg_current_snapshot());
        clear_to := 0;
    END IF;
    IF low IS NULL OR low > pg_snapshot_xmax(pg_current_snapshot()) THEN
        low := '0';
    END IF;

    IF probe IS NOT NULL THEN
        SELECT p.probed, p.after INTO probed, after FROM @tidegate.begin_probe(probe, worker, kinds, seconds) AS p;
        IF probed IS NULL THEN
            services := @tidegate.watched_services();
            RETURN;
        END IF;
        clear_to := 0;
        most := 1;
    END IF;
    held_kinds := ARRAY(SELECT k FROM @tidegate.service AS s, unnest(s.kinds) AS k
                         WHERE s.state <> 'closed' AND s.service IS DISTINCT FROM probe);
    start := after;
    SELECT array_agg(k.kind) FILTER (WHERE k.paused OR k.kind <> ALL (kinds) OR k.kind = ANY (held_kinds) OR k.kind <> ALL (probed)),
           coalesce(bool_or(k.policy <> '{}'), false)
      INTO left_out, have_policies FROM @tidegate.event_kind AS k;

    SELECT * INTO chosen FROM @tidegate.choose(start, most, bytes, passed_by, left_out, probe IS NOT NULL, age(as_of::xid), low, due_at);
    -- After the choice: of an event that went back because of a service, the worker knows that the service
    -- failed.
    IF have_policies OR EXISTS (SELECT FROM @tidegate.service AS s WHERE @tidegate.is_watched(s)) THEN
        services := @tidegate.watched_services();
    END IF;
    scanned := chosen.scanned;
    after := chosen.last_id;
    IF chosen.ids IS NULL THEN
        IF after IS NULL AND probe IS NOT NULL THEN
            PERFORM @tidegate.end_probes(probe);
            services := @tidegate.watched_services();
        END IF;
        after := coalesce(after, start);
        RETURN;
    END IF;
    suspect := chosen.suspect;
    page := CASE WHEN after - chosen.ids[1] + 1 = cardinality(chosen.ids) THEN int8multirange(int8range(chosen.ids[1], after, '[]'))
                 ELSE @tidegate.ranges(chosen.ids) END;
    IF chosen.grouped THEN
        SELECT o.mine, o.blocked, o.clear_to, o.low INTO mine, blocked, clear_to, low
          FROM @tidegate.in_order(worker, held, start, chosen.ids, chosen.keys, chosen.young, page, clear_to, low) AS o;
    ELSE
        -- Events leased between the first look and the scan are not ours. Events that we have locked cannot
        -- be leased any more.
        SELECT page - coalesce(range_agg(l.ids), '{}'), least(min(l.born), pg_snapshot_xmin(pg_current_snapshot()))
          INTO mine, low FROM @tidegate.lease AS l WHERE l.born >= lease.low AND NOT l.ended;
        -- The condition on the group is inside a CASE, so that the planner cannot use the index of groups,
        -- which it would read completely.
        IF start <= clear_to AND NOT EXISTS (SELECT FROM @tidegate.event_queue AS q
                WHERE NOT q.delayed AND q.id > start AND q.id <= after AND CASE WHEN q.group_key IS NOT NULL THEN true ELSE false END) THEN
            clear_to := greatest(clear_to, after);
        END IF;
    END IF;

    IF probe IS NOT NULL THEN
        PERFORM @tidegate.note_probe(probe, after, isempty(mine));
        services := @tidegate.watched_services();
    END IF;
    IF isempty(mine) THEN
        suspect := NULL;
        RETURN;
    END IF;
    IF mine = page THEN
        taken := cardinality(chosen.ids);
        hashes := CASE WHEN chosen.grouped THEN ARRAY(SELECT DISTINCT hashtext(k) FROM unnest(chosen.keys) AS k WHERE k IS NOT NULL) END;
    ELSE
        SELECT count(*), array_agg(DISTINCT hashtext(u.key)) FILTER (WHERE u.key IS NOT NULL) INTO taken, hashes
          FROM unnest(chosen.ids, chosen.keys) AS u(id, key) WHERE u.id <@ mine;
    END IF;
    INSERT INTO @tidegate.lease (token, worker, ids, started_to, groups, taken_at, renewed_at, expires_at, clear_to, as_of)
    VALUES (token, worker, mine,
            CASE WHEN suspect OR first_window = 0 THEN 0
                 ELSE least(chosen.first_last - 1,
                      CASE WHEN mine = page THEN chosen.ids[least(first_window, taken)]
                           ELSE (SELECT max(w.id) FROM (SELECT u.id FROM unnest(chosen.ids) AS u(id) WHERE u.id <@ mine
                                  ORDER BY u.id LIMIT first_window) AS w) END) END,
            hashes, instant, instant, due_at + make_interval(secs => seconds), clear_to, as_of);
END $$;
COMMENT ON FUNCTION @tidegate.lease IS 'Leases the next ready events to a worker. The definition describes the protocol.';

-- Returns the events of a lease behind id `after`, in id order, at most `most` of them. Usually it returns
-- all of them, because the lease is limited by bytes. To find an event that cannot be read, the caller asks
-- for fewer and fewer.
--
-- `fate`: 0 is to be run, 1 has expired, 2 is abandoned (the worker of its last attempt went away, or ten
-- workers in a row did, because its publisher may have allowed a thousand attempts), and 3 has used up its
-- attempts. `expires_in` is the time from the lease to the deadline, in seconds. `overdue`: the event had its
-- first error longer ago than an event of a group may be planned ahead. If nobody here can read it then, it
-- must not hold its group any longer.
CREATE FUNCTION @tidegate.read_leased(token uuid, after bigint, most bigint)
    RETURNS TABLE (id bigint, fate integer, kind text, payload json, group_key text, correlation_id text, attempt integer,
                   max_attempts integer, created_at timestamptz, expires_at timestamptz, progress jsonb, traceparent text,
                   started boolean, replayed boolean, expires_in double precision, overdue boolean)
    LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT q.id, CASE WHEN q.expires_at <= l.taken_at THEN 1
                      WHEN q.attempts >= q.max_attempts OR q.lapses >= 10 THEN 2 + (q.lapses = 0)::int ELSE 0 END,
           q.kind, q.payload, q.group_key, q.correlation_id, q.attempts + 1, q.max_attempts, q.created_at, q.expires_at,
           q.progress, q.traceparent, q.id <= l.started_to, q.replay_of IS NOT NULL,
           extract(epoch FROM q.expires_at - l.taken_at)::double precision,
           q.group_key IS NOT NULL AND q.last_error IS NOT NULL
               AND coalesce((q.errors->0->>'at')::timestamptz < l.taken_at - @tidegate.max_group_delay(), false)
      FROM @tidegate.lease AS l
     CROSS JOIN LATERAL unnest(l.ids * int8multirange(int8range(after, NULL, '()'))) AS r
     CROSS JOIN LATERAL (SELECT e.* FROM @tidegate.event_queue AS e WHERE e.id >= lower(r) AND e.id < upper(r) ORDER BY e.id OFFSET 0) AS q
     WHERE l.token = read_leased.token
     LIMIT most;
END $$;

-- The events in hand under these leases, in one snapshot. If the leases were read one by one, an event that
-- leaves between two reads would seem to have no later events. A lease without a row here is lost or empty.
CREATE FUNCTION @tidegate.in_hand(tokens uuid[]) RETURNS TABLE (token uuid, cuts integer, started_to bigint, id bigint)
    LANGUAGE sql STABLE SET enable_seqscan = off SET enable_sort = off AS $$
    SELECT l.token, l.cuts, l.started_to, q.id
      FROM @tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
     CROSS JOIN LATERAL (SELECT e.* FROM @tidegate.event_queue AS e WHERE e.id >= lower(r) AND e.id < upper(r) ORDER BY e.id OFFSET 0) AS q
     WHERE l.token = ANY (in_hand.tokens)
       AND NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = l.token AND c.id = q.id)
$$;

-- Renews the leases of a live worker for this many seconds from now. Returns the leases that it still holds,
-- and how often events were taken away from each. A worker is dead when none of its leases was renewed in
-- time, so it renews all of them in one statement.
CREATE FUNCTION @tidegate.renew(worker uuid, tokens uuid[], seconds double precision) RETURNS TABLE (token uuid, cuts integer)
    LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
BEGIN
    -- A worker that leases nothing more learns in this way of what was taken from it.
    IF EXISTS (SELECT FROM @tidegate.lease_cut) THEN
        PERFORM @tidegate.apply_cuts(CASE WHEN tokens = ARRAY[worker] THEN worker END);
    END IF;
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT l.token FROM @tidegate.lease AS l WHERE l.token = ANY (renew.tokens) AND l.worker = renew.worker
         ORDER BY l.token FOR NO KEY UPDATE)
    UPDATE @tidegate.lease AS l
       SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => renew.seconds)
      FROM held WHERE l.token = held.token
    RETURNING l.token, l.cuts;
END $$;

-- Lowers the mark up to which handlers of a lease may have started, if it is still `seen`. Only the lease's
-- worker may do so: it has not started these events, and raises the mark again before it does.
CREATE FUNCTION @tidegate.take_back_starts(worker uuid, tokens uuid[], seen bigint[], started_to bigint[]) RETURNS uuid[]
    LANGUAGE sql SET lock_timeout = '250ms' AS $$
    WITH asked AS MATERIALIZED (
        SELECT l.token, a.started_to
          FROM unnest(tokens, seen, take_back_starts.started_to) AS a(token, seen, started_to)
          JOIN @tidegate.lease AS l ON l.token = a.token AND l.worker = take_back_starts.worker AND l.started_to = a.seen
         ORDER BY l.token FOR NO KEY UPDATE OF l
    ), lowered AS (
        UPDATE @tidegate.lease AS l SET started_to = a.started_to FROM asked AS a WHERE l.token = a.token RETURNING l.token)
    SELECT coalesce(array_agg(l.token), '{}') FROM lowered AS l
$$;

-- Removes events from the worker's leases without ending them. With each event, the later events of its group
-- in these leases leave too. `left_ids` are all events that left. `under` names the lease of each event, and
-- this lease must still hold it, because the same worker may have leased the event again since. `ran` names
-- later events that were already started: the earlier event had ended, but its end was not written yet. They
-- have used an attempt. `taken_away`: another session takes the events, and the worker must notice. Only the
-- worker knows which later events it has started. Therefore each one that may have been started is charged an
-- attempt, and its limit is raised by one.
--
-- It waits for no event. `busy_ids` are events that stay, because another session has locked them or a later
-- event of their group.
CREATE FUNCTION @tidegate.hand_back(worker uuid, wanted bigint[], under uuid[] DEFAULT NULL, ran bigint[] DEFAULT '{}',
                                   taken_away boolean DEFAULT false, OUT left_ids bigint[], OUT busy_ids bigint[])
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
    SET lock_timeout = '250ms'
    AS $$
#variable_conflict use_column
DECLARE
    own int8multirange;
    hole int8multirange;
    grouped bigint[];
BEGIN
    PERFORM FROM @tidegate.lease AS l WHERE l.worker = hand_back.worker ORDER BY l.token FOR UPDATE;
    -- A separate statement, so that it also sees a lease that was being taken while we waited for the first
    -- lock.
    SELECT coalesce(range_agg(l.ids), '{}') INTO own FROM @tidegate.lease AS l WHERE l.worker = hand_back.worker;
    IF under IS NOT NULL THEN
        wanted := ARRAY(SELECT u.id FROM unnest(wanted, under) AS u(id, token)
                          JOIN @tidegate.lease AS l ON l.token = u.token AND l.worker = hand_back.worker WHERE l.ids @> u.id
                           -- What an operator has taken leaves by apply_cuts(), which knows whether it was
                           -- charged.
                           AND (taken_away OR NOT EXISTS (
                                SELECT FROM @tidegate.lease_cut AS c WHERE c.token = u.token AND c.id = u.id)));
    END IF;
    -- Start from the first given event of each group, and find the later events with a subselect of its own.
    -- With a join, a plan made for an empty queue walks the index of all groups.
    WITH given AS MATERIALIZED (
        SELECT q.id, q.group_key FROM @tidegate.event_queue AS q WHERE q.id = ANY (wanted) AND q.id <@ own
    ), leaving AS MATERIALIZED (
        SELECT g.id, false AS grouped FROM given AS g WHERE g.group_key IS NULL
         UNION ALL
        SELECT behind.id, true
          FROM (SELECT g.group_key, min(g.id) AS id FROM given AS g WHERE g.group_key IS NOT NULL GROUP BY g.group_key) AS first
         CROSS JOIN LATERAL (SELECT b.id FROM @tidegate.event_queue AS b
                              WHERE b.group_key = first.group_key AND b.id >= first.id AND b.id <@ own OFFSET 0) AS behind)
    SELECT coalesce(array_agg(l.id), '{}'), coalesce(array_agg(l.id) FILTER (WHERE l.grouped), '{}')
      INTO left_ids, grouped FROM leaving AS l;
    busy_ids := @tidegate.locked_with_earlier(grouped);
    left_ids := ARRAY(SELECT u.id FROM unnest(left_ids) AS u(id) WHERE u.id <> ALL (busy_ids));
    hole := @tidegate.ranges(left_ids);
    IF taken_away THEN
        ran := ARRAY(SELECT u.id FROM unnest(left_ids) AS u(id)
                       JOIN @tidegate.lease AS l ON l.worker = hand_back.worker AND l.ids @> u.id WHERE u.id <= l.started_to);
    END IF;
    -- What an operator has taken, and leaves now behind another event: its worker does not count it as its
    -- own any more.
    ran := ARRAY(SELECT r FROM unnest(ran) AS r WHERE r <> ALL (wanted)) || ARRAY(
        SELECT c.id FROM @tidegate.lease_cut AS c
          JOIN @tidegate.lease AS l ON l.token = c.token AND l.worker = hand_back.worker AND l.ids @> c.id AND c.id <= l.started_to
         WHERE NOT taken_away AND NOT c.charged AND c.id = ANY (left_ids) AND c.id <> ALL (ran));
    IF taken_away THEN
        -- A separate statement, because a worker that hands back events has no right to change max_attempts.
        UPDATE @tidegate.event_queue AS q SET max_attempts = least(1000, q.max_attempts + 1)
         WHERE q.id = ANY (ran) AND q.id = ANY (left_ids) AND q.attempts < q.max_attempts;
    END IF;
    UPDATE @tidegate.event_queue AS q
       SET stray = true, attempts = q.attempts + (q.id = ANY (ran) AND q.attempts < q.max_attempts)::int
     WHERE q.id = ANY (left_ids) AND CASE WHEN q.group_key IS NOT NULL THEN NOT q.stray OR q.id = ANY (ran) ELSE false END;
    PERFORM @tidegate.shrink_leases(ARRAY(SELECT l.token FROM @tidegate.lease AS l
                                          WHERE l.worker = hand_back.worker AND l.ids && hole), hole, taken_away);
END $$;
COMMENT ON FUNCTION @tidegate.hand_back IS 'Removes events from a worker''s leases without ending them.';

-- Of these events: those that another session has locked, and the earlier ones of their groups. All others
-- are locked for this session, so that it can change them without a wait. An event that is gone counts as
-- free.
CREATE FUNCTION @tidegate.locked_with_earlier(event_ids bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    ours bigint[];
    busy bigint[];
BEGIN
    IF event_ids = '{}' THEN
        RETURN event_ids;
    END IF;
    ours := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (event_ids) FOR NO KEY UPDATE SKIP LOCKED);
    busy := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (event_ids) AND q.id <> ALL (ours));
    IF busy = '{}' THEN
        RETURN busy;
    END IF;
    RETURN busy || @tidegate.earlier_of(event_ids, busy);
END $$;

-- Returns those of the events that come before one of later in its group.
CREATE FUNCTION @tidegate.earlier_of(event_ids bigint[], later bigint[]) RETURNS bigint[]
    LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT ARRAY(
        SELECT q.id FROM @tidegate.event_queue AS q
          JOIN (SELECT b.group_key, max(b.id) AS last FROM @tidegate.event_queue AS b
                 WHERE b.id = ANY (later) AND b.group_key IS NOT NULL GROUP BY b.group_key) AS held ON held.group_key = q.group_key
         WHERE q.id = ANY (event_ids) AND q.id <= held.last AND q.id <> ALL (later))
$$;

-- Takes ids out of leases, and removes leases that have no others.
CREATE FUNCTION @tidegate.shrink_leases(tokens uuid[], hole int8multirange, taken_away boolean) RETURNS void
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM @tidegate.lease_cut AS c WHERE c.token = ANY (tokens) AND c.id <@ hole;
    DELETE FROM @tidegate.lease AS l WHERE l.token = ANY (tokens) AND l.ids <@ hole;
    UPDATE @tidegate.lease AS l SET ids = l.ids - hole, cuts = l.cuts + taken_away::int WHERE l.token = ANY (tokens);
END $$;

-- Returns the lowest id that became free. Events that another session has locked, and leases that are in use
-- for longer than a moment, are left to the next call. With `poller`, only the lease of this poller is
-- touched.
CREATE FUNCTION @tidegate.apply_cuts(poller uuid DEFAULT NULL) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms' SET enable_seqscan = off
    AS $$
DECLARE
    owner uuid;
    follows boolean;
    cut record;
    freed record;
    lowest bigint;
BEGIN
    FOR owner IN SELECT DISTINCT l.worker FROM @tidegate.lease_cut AS c JOIN @tidegate.lease AS l ON l.token = c.token
                  WHERE l.worker = coalesce(poller, l.worker) ORDER BY 1 LOOP
        BEGIN
            PERFORM FROM @tidegate.lease AS l WHERE l.worker = owner ORDER BY l.token FOR UPDATE;
            -- Then those behind an event that has ended since. Each statement sees what another session has
            -- done before we had the locks.
            FOREACH follows IN ARRAY ARRAY[false, true] LOOP
                -- The worker may have started them since they were taken.
                WITH begun AS MATERIALIZED (
                    SELECT c.token, q.id FROM @tidegate.lease_cut AS c
                      JOIN @tidegate.lease AS l ON l.token = c.token AND l.worker = owner AND l.ids @> c.id AND c.id <= l.started_to
                      JOIN @tidegate.event_queue AS q ON q.id = c.id
                     WHERE c.behind = follows AND NOT c.charged
                       FOR NO KEY UPDATE OF q SKIP LOCKED
                ), charged AS (
                    UPDATE @tidegate.event_queue AS q
                       SET attempts = least(q.attempts + 1, 999), max_attempts = least(1000, greatest(q.max_attempts, q.attempts + 2))
                      FROM begun AS b WHERE q.id = b.id)
                UPDATE @tidegate.lease_cut AS c SET charged = true FROM begun AS b WHERE c.token = b.token AND c.id = b.id;
                SELECT array_agg(c.id) AS ids, array_agg(c.token) AS tokens INTO cut
                  FROM @tidegate.lease_cut AS c JOIN @tidegate.lease AS l ON l.token = c.token AND l.worker = owner
                 WHERE c.behind = follows;
                CONTINUE WHEN cut.ids IS NULL;
                SELECT h.* INTO freed FROM @tidegate.hand_back(owner, cut.ids, cut.tokens, taken_away => true) AS h;
                lowest := least(lowest, (SELECT min(f) FROM unnest(freed.left_ids) AS f));
            END LOOP;
            -- The worker learns of what has ended, too.
            UPDATE @tidegate.lease AS l SET cuts = l.cuts + 1
             WHERE l.worker = owner AND EXISTS (
                   SELECT FROM @tidegate.lease_cut AS c
                    WHERE c.token = l.token AND NOT EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id = c.id));
            DELETE FROM @tidegate.lease_cut AS c USING @tidegate.lease AS l
             WHERE l.token = c.token AND l.worker = owner
               AND (NOT l.ids @> c.id OR NOT EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id = c.id));
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE <> '55P03' AND SQLSTATE <> '40P01' THEN
                RAISE WARNING 'events cannot be taken from the leases of worker %: %', owner, SQLERRM;
            END IF;
        END;
    END LOOP;
    IF poller IS NULL THEN
        -- Those whose lease is gone.
        DELETE FROM @tidegate.lease_cut AS c WHERE NOT EXISTS (SELECT FROM @tidegate.lease AS l WHERE l.token = c.token);
    END IF;
    RETURN lowest;
END $$;
COMMENT ON FUNCTION @tidegate.apply_cuts IS 'Takes the events in lease_cut out of their leases, and tells the workers.';

-- An event that may have been started loses an attempt if it is `charged`, and runs alone the next time.
CREATE FUNCTION @tidegate.lapse(tokens uuid[], event_ids bigint[], charged boolean) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
    AS $$
    UPDATE @tidegate.event_queue AS q
       SET attempts = q.attempts + ran.ran::int, lapses = q.lapses + ran.ran::int, stray = true,
           last_error = CASE WHEN ran.ran THEN 'lapsed: its worker went away' ELSE q.last_error END,
           errors = CASE WHEN ran.ran THEN q.errors || jsonb_build_array(jsonb_build_object('handler', NULL,
                    'code', 'lapsed', 'message', 'its worker went away', 'attempt', q.attempts + 1, 'at', clock_timestamp()))
                    ELSE q.errors END
      FROM unnest(event_ids) AS u(id)
      JOIN @tidegate.event_queue AS e ON e.id = u.id
      JOIN @tidegate.lease AS l ON l.token = ANY (tokens) AND l.ids @> u.id
     CROSS JOIN LATERAL (SELECT lapse.charged AND e.id <= l.started_to AND e.attempts < e.max_attempts
                                AND (e.expires_at IS NULL OR e.expires_at > l.taken_at)
                                AND NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c
                                                 WHERE c.token = l.token AND c.id = e.id AND c.charged) AS ran) AS ran
     WHERE q.id = e.id AND (ran.ran OR q.group_key IS NOT NULL)
$$;
COMMENT ON FUNCTION @tidegate.lapse IS 'Returns events of leases that break to the queue, and charges those that may have started.';

-- Breaks leases of one worker, whose rows the caller has locked. An event that another session has locked, or
-- that cannot be changed, stays in its lease, with the earlier ones of its group. A later call takes it.
-- Returns the lowest id that became free.
CREATE FUNCTION @tidegate.break_leases(tokens uuid[], charged boolean) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
    AS $$
DECLARE
    live CONSTANT bigint[] := ARRAY(
        SELECT q.id FROM @tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
         CROSS JOIN LATERAL (SELECT e.* FROM @tidegate.event_queue AS e WHERE e.id >= lower(r) AND e.id < upper(r) OFFSET 0) AS q
         WHERE l.token = ANY (tokens));
    stay bigint[] := @tidegate.locked_with_earlier(live);
    leaving bigint[] := ARRAY(SELECT u.id FROM unnest(live) AS u(id) WHERE u.id <> ALL (stay));
    held int8multirange;
    one bigint;
BEGIN
    BEGIN
        PERFORM @tidegate.lapse(tokens, leaving, charged);
    EXCEPTION WHEN OTHERS THEN
        -- For example, a user's trigger refuses one of them. Latest first: an event that cannot be changed
        -- then keeps the earlier ones of its group.
        FOREACH one IN ARRAY ARRAY(SELECT u.id FROM unnest(leaving) AS u(id) ORDER BY u.id DESC) LOOP
            CONTINUE WHEN one = ANY (stay);
            BEGIN
                PERFORM @tidegate.drop_unreadable(one);
                PERFORM @tidegate.lapse(tokens, ARRAY[one], charged);
            EXCEPTION WHEN OTHERS THEN
                RAISE WARNING 'event % cannot leave its broken lease: %', one, SQLERRM;
                stay := stay || one || @tidegate.earlier_of(leaving, ARRAY[one]);
            END;
        END LOOP;
    END;
    held := @tidegate.ranges(stay);
    SELECT coalesce(range_agg(l.ids), '{}') - held INTO held FROM @tidegate.lease AS l WHERE l.token = ANY (tokens);
    PERFORM @tidegate.shrink_leases(tokens, held, false);
    RETURN lower(held);
END $$;
COMMENT ON FUNCTION @tidegate.break_leases IS 'Breaks leases of one worker, except for events that another session has locked.';

-- Runs before a walk. It breaks the leases of dead workers. A worker is dead when the leases with which it
-- works have all expired: it has renewed none of them. (One alone may expire while the worker lives: it knows
-- nothing of a lease whose answer was lost. An ended lease is not renewed.) The function also gives back
-- leases of the calling worker that `held` does not name, because the answer of that call was lost, and takes
-- out of leases what operators have taken. In a broken lease, each event that may have been started loses an
-- attempt, and runs alone the next time. This function reads every version of every lease row; no other
-- function does. It returns the lowest id that became free, and the first transaction whose leases may be
-- live.
CREATE FUNCTION @tidegate.sweep(worker uuid, held uuid[], OUT broken bigint, OUT lowest bigint, OUT low xid8)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
    SET lock_timeout = '100ms'
    AS $$
#variable_conflict use_column
DECLARE
    dead uuid;
    tokens uuid[];
BEGIN
    broken := 0;
    tokens := ARRAY(SELECT o.token FROM @tidegate.lease AS o
                     WHERE o.worker = sweep.worker AND o.token <> ALL (sweep.held)
                       -- Its worker may have started what an operator has taken from it, and does not count
                       -- it as its own any more.
                       AND NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = o.token)
                     ORDER BY o.token FOR UPDATE SKIP LOCKED);
    IF tokens <> '{}' THEN
        lowest := least(lowest, @tidegate.break_leases(tokens, false));
        broken := cardinality(tokens);
    END IF;
    FOR dead IN SELECT d FROM @tidegate.dead_workers() AS d WHERE d IS DISTINCT FROM sweep.worker LOOP
        tokens := ARRAY(SELECT o.token FROM @tidegate.lease AS o WHERE o.worker = dead FOR UPDATE SKIP LOCKED);
        -- A separate statement, so that it sees leases that the worker took or renewed before the first
        -- statement locked.
        CONTINUE WHEN tokens = '{}' OR cardinality(tokens) < (SELECT count(*) FROM @tidegate.lease AS o WHERE o.worker = dead)
                   OR NOT EXISTS (SELECT FROM @tidegate.dead_workers() AS d WHERE d = dead);
        BEGIN
            lowest := least(lowest, @tidegate.break_leases(tokens, true));
            broken := broken + cardinality(tokens);
        EXCEPTION WHEN OTHERS THEN
            -- This must not block the leases of other workers.
            RAISE WARNING 'the leases of worker % cannot be broken: %', dead, SQLERRM;
        END;
    END LOOP;
    -- Last, because it locks the leases of live workers.
    IF EXISTS (SELECT FROM @tidegate.lease_cut) THEN
        lowest := least(lowest, @tidegate.apply_cuts());
    END IF;
    SELECT least(min(o.born), pg_snapshot_xmin(pg_current_snapshot())) INTO low FROM @tidegate.lease AS o;
END $$;
COMMENT ON FUNCTION @tidegate.sweep IS 'Breaks leases that their workers have not renewed in time.';

-- Returns the workers with leases of which none was renewed in time. An ended lease is not renewed, and
-- counts only if the worker has no other.
CREATE FUNCTION @tidegate.dead_workers() RETURNS SETOF uuid
    LANGUAGE plpgsql SET jit = off AS $$
BEGIN
    RETURN QUERY SELECT l.worker FROM @tidegate.lease AS l GROUP BY l.worker
    HAVING coalesce(max(l.expires_at) FILTER (WHERE NOT l.ended), max(l.expires_at)) <= clock_timestamp();
END $$;

-- Whether no live event of its group precedes an event.
CREATE FUNCTION @tidegate.is_first(event @tidegate.event_queue) RETURNS boolean
    LANGUAGE sql STABLE SET enable_seqscan = off
    RETURN event.group_key IS NULL OR NOT EXISTS (
        SELECT FROM @tidegate.event_queue AS q WHERE q.group_key = event.group_key AND q.id < event.id);

-- Makes delayed events ready whose time has come, or whose deadline has passed, up to `most` at a time,
-- earliest first. Returns the lowest id, from which the next scan must start. The time is a subselect, so
-- that the index can use it as a bound. Compared with the volatile function itself, every delayed row would
-- be read (26 ms for 100,000). With `kinds`, only those of these kinds that no event of their group precedes:
-- what a poller could take at once.
CREATE FUNCTION @tidegate.promote(most bigint, now timestamptz DEFAULT NULL, kinds text[] DEFAULT NULL,
                                 OUT promoted bigint, OUT lowest bigint)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
    due CONSTANT bigint[] := ARRAY(
        SELECT q.id FROM @tidegate.event_queue AS q
         WHERE q.delayed AND q.available_at <= (SELECT coalesce(promote.now, clock_timestamp()))
           AND CASE WHEN kinds IS NULL THEN true ELSE q.kind = ANY (kinds) AND @tidegate.is_first(q) END
         ORDER BY q.available_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED);
    late CONSTANT bigint[] := ARRAY(
        SELECT q.id FROM @tidegate.event_queue AS q
         WHERE q.delayed AND q.expires_at <= (SELECT coalesce(promote.now, clock_timestamp())) AND q.id <> ALL (due)
           AND CASE WHEN kinds IS NULL THEN true ELSE q.kind = ANY (kinds) AND @tidegate.is_first(q) END
         ORDER BY q.expires_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED);
    one bigint;
BEGIN
    promoted := 0;
    IF due || late = '{}' THEN
        RETURN;
    END IF;
    BEGIN
        UPDATE @tidegate.event_queue AS q SET delayed = false WHERE q.id = ANY (due);
        UPDATE @tidegate.event_queue AS q SET available_at = clock_timestamp() WHERE q.id = ANY (late);
        SELECT count(*), min(u) INTO promoted, lowest FROM unnest(due || late) AS u;
    EXCEPTION WHEN OTHERS THEN
        -- For example, a user's trigger refuses one of them.
        FOREACH one IN ARRAY due || late LOOP
            BEGIN
                UPDATE @tidegate.event_queue AS q SET delayed = false, available_at = least(q.available_at, clock_timestamp())
                 WHERE q.id = one;
                promoted := promoted + 1;
                lowest := least(lowest, one);
            EXCEPTION WHEN OTHERS THEN
                RAISE WARNING 'event % cannot be made ready: %', one, SQLERRM;
            END;
        END LOOP;
    END;
END $$;

-- Property G.
CREATE FUNCTION @tidegate.unordered_leases(most bigint DEFAULT 10)
    RETURNS TABLE (id bigint, group_key text, worker uuid, ahead bigint, ahead_worker uuid)
    LANGUAGE sql STABLE SECURITY DEFINER SET jit = off AS $$
    WITH held AS MATERIALIZED (
        SELECT q.id, q.group_key, l.worker,
               EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = l.token AND c.id = q.id) AS taken
          FROM @tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
          JOIN @tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
         WHERE q.group_key IS NOT NULL
    )
    SELECT h.id, h.group_key, h.worker, ahead.id, o.worker
      FROM held AS h
     CROSS JOIN LATERAL (SELECT q.id FROM @tidegate.event_queue AS q
                          WHERE q.group_key = h.group_key AND q.id < h.id ORDER BY q.id DESC LIMIT 1) AS ahead
      LEFT JOIN held AS o ON o.id = ahead.id
     -- What an operator has taken leaves the lease with the next sweep, and what was leased behind it leaves
     -- with it.
     WHERE o.worker IS DISTINCT FROM h.worker AND NOT h.taken
     LIMIT most
$$;
COMMENT ON FUNCTION @tidegate.unordered_leases IS
    'Checks the order within groups: leased events with an earlier live event of their group that the same worker does not hold. '
    'There should be none. most: the most rows.';

-- Property J. These events have a group, are in no lease and are not marked. An event that was rewritten
-- since counts as young, and is left out. Only the 100,000 lowest ids are looked at, so that it costs the
-- same beside a queue of any size: an event that is lost stays, until it is among them.
CREATE FUNCTION @tidegate.unmarked_events(most bigint DEFAULT 10) RETURNS TABLE (id bigint, group_key text, worker uuid)
    LANGUAGE sql STABLE SECURITY DEFINER SET jit = off AS $$
    SELECT q.id, q.group_key, l.worker
      FROM (SELECT e.id, e.group_key, e.stray, age(e.xmin) AS age FROM @tidegate.event_queue AS e ORDER BY e.id LIMIT 100000) AS q
      JOIN @tidegate.lease AS l ON q.id <= l.clear_to AND q.age > age(l.as_of::xid)
     WHERE q.group_key IS NOT NULL AND NOT q.stray AND NOT l.ended AND NOT EXISTS (SELECT FROM @tidegate.lease AS h WHERE h.ids @> q.id)
     LIMIT most
$$;
COMMENT ON FUNCTION @tidegate.unmarked_events IS
    'Checks the order within groups: events that a drain''s walk has passed and lost. There should be none. most: rows.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.ranges, @tidegate.remove_ended, @tidegate.choose, @tidegate.in_order, @tidegate.lease, @tidegate.read_leased,
    @tidegate.in_hand, @tidegate.renew, @tidegate.take_back_starts, @tidegate.hand_back, @tidegate.locked_with_earlier,
    @tidegate.earlier_of, @tidegate.shrink_leases, @tidegate.apply_cuts, @tidegate.lapse, @tidegate.break_leases,
    @tidegate.dead_workers, @tidegate.sweep, @tidegate.is_first, @tidegate.promote TO @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.unordered_leases, @tidegate.unmarked_events TO @tidegate_operate, @tidegate_read;
