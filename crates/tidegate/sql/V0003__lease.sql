-- Leases of whole batches: taking, reading, starting, renewing, giving back, breaking.
--
-- Whoever changes anything locks the lease row first, event rows after it, several leases in the order of their tokens:
--
--   its worker works under it (leases more of its groups, ends events)      FOR KEY SHARE
--   its worker moves started_to or expires_at (starts, renews), or notes
--   that nothing of it is left                                              FOR NO KEY UPDATE (a plain UPDATE)
--   something leaves it without having ended (hand_back, requeue, sweep),
--   and its removal                                                         FOR UPDATE
--
-- So the worker's own statements run beside each other, and nobody takes an event away under a write of it.
--
-- Order in groups rests on one property that every statement keeps, and which unordered_leases() checks at any moment:
--
--   G  If a leased event has an earlier live event of its group, the same worker has leased that one too.
--
-- Everything that leaves a lease without having ended takes what stands behind it in its group along, out of all the
-- worker's leases, and is marked `stray` if it has a group. Delayed events with a group are strays from birth. A give-back
-- commits both at once, so in every snapshot such an event is either in a lease or a stray: nobody has to be told.
--
-- The settings of the functions are part of them: the plan kept is the one that knows no parameter, for the planner
-- prefers to plan anew; a plan made while the queue was empty would read all of it ever after; and what is forbidden
-- (`enable_seqscan`) costs so much that the rest would be compiled.

CREATE FUNCTION tidegate.ranges(ids bigint[]) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    -- The last number of all ends no range, and is nobody's id.
    RETURN coalesce((SELECT range_agg(int8range(i, i, '[]')) FROM unnest(ids) AS i WHERE i < 9223372036854775807), '{}');

-- Removes leases that are marked as ended. One that somebody has locked is left to a sweep.
CREATE FUNCTION tidegate.remove_ended(tokens uuid[]) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    AS $$
    DELETE FROM tidegate.lease AS l
     WHERE l.token = ANY (ARRAY(SELECT o.token FROM tidegate.lease AS o WHERE o.token = ANY (tokens) AND o.ended
                                   FOR UPDATE SKIP LOCKED))
$$;

-- Takes the next free events behind `after`, up to `most` of them and about `bytes` of payload, in id order, under `token`.
--
-- A walk is a row of such calls, from after = 0 to the end of the queue. Between them the caller keeps what the last one
-- answered: reached (`after`), clear_to, as_of, low. What they mean, and go on meaning whatever anybody does meanwhile:
--
--   as_of     Every transaction before it had ended when the walk began: the walk has seen what they wrote.
--   clear_to  Every event with a group and an id up to here that was written before as_of has ended, or is in some lease,
--             or is marked stray. (Property J.)
--   low       No lease that was taken before it is alive.
--
-- An event with a group is taken only if everything ahead of it in its group is taken by this call or is in a lease of this
-- worker that `held` names. To know that, its group is asked for in the index only if it is doubtful:
--
--   - it has an event in another's lease (by hash: too many, never too few),
--   - it has a stray that is not ours,
--   - one of its events was passed by this call and not taken: locked, paused, of an unknown kind,
--   - its event is younger than the walk, so that another may have come in behind the cursor (ids are drawn under the
--     group's lock, held until the commit: an older event has nothing ahead that the walk did not meet),
--   - the walk is not clear up to where the call starts.
--
-- No other lease can be under way unseen: what it takes it has locked, which we pass, and see as not taken.
--
-- Of events whose worker went away under them (lapses > 0) a call takes one, alone, and starts nothing of it (`suspect`). The
-- caller starts it when nothing else that it holds is between start and end, and leaves its token out of `held` here: what
-- stands behind it in its group waits. Of others the first `first_window` count as started: their attempt is charged if
-- their worker goes away.
--
-- Groups of which nothing could be taken are told (`blocked`); the caller may name those it has met in this walk in `passed_by`:
-- what else is theirs is passed without a lock. With `join` the walk goes on where the newest lease ended, so that drains
-- share one walk; a walk for a few of the kinds keeps apart (null): nobody goes on from it, either. Before a walk's start
-- goes `sweep`.
--
-- `over`: the worker's leases that are marked as ended. They are removed first.
--
-- `services`: what is known of services that have not answered of late, or whose calls are limited; null when there are
-- none. Kinds of those that are not to be called are left alone. With
-- `probe`, a service that is open and due, one event of its kinds is leased, for one worker (see report_service).
--
-- Kinds that are registered but unknown to this program (`kinds`) or paused are left alone; a kind that nobody registered
-- passes, so that the drain can end it. Expired and exhausted events are taken too, so that they end without a scan of
-- their own.
CREATE FUNCTION tidegate.lease(
    token uuid, worker uuid, held uuid[], over uuid[], seconds double precision, kinds text[], most bigint, bytes bigint,
    first_window integer, "join" boolean, passed_by text[], probe text,
    INOUT after bigint, INOUT clear_to bigint, INOUT as_of xid8, INOUT low xid8,
    OUT taken bigint, OUT scanned bigint, OUT suspect boolean, OUT blocked text[], OUT services jsonb
) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    have_policies boolean;
    newest record;
    start bigint;
    horizon integer;
    active int8multirange;
    left_out text[];
    ids bigint[];
    keys text[];
    sizes integer[];
    young text[];
    last_id bigint;
    total bigint;
    first_suspect bigint;
    grouped bigint;
    kept bigint;
    page int8multirange;
    mine int8multirange;
    locked uuid[];
    own int8multirange;
    others int8multirange;
    busy integer[];
    passed text[];
    first_passed bigint;
    strays boolean;
    doubtful text[];
    hashes integer[];
    held_kinds text[] := '{}';
    probed text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'transaction_isolation: read committed is needed, for each statement of a lease must see what was leased before it; got %',
            current_setting('transaction_isolation') USING ERRCODE = 'invalid_transaction_state';
    END IF;
    taken := 0;
    IF cardinality(over) > 0 THEN
        PERFORM tidegate.remove_ended(over);
    END IF;
    -- A server whose transactions are counted anew (a copy of the database behind the same name) knows nothing of ours.
    IF after = 0 OR as_of IS NULL OR clear_to IS NULL OR as_of > pg_snapshot_xmax(pg_current_snapshot()) THEN
        as_of := pg_snapshot_xmin(pg_current_snapshot());
        clear_to := 0;
    END IF;
    IF low IS NULL OR low > pg_snapshot_xmax(pg_current_snapshot()) THEN
        low := '0';
    END IF;

    -- What is in hand, and where the newest lease ended.
    SELECT coalesce(range_agg(l.ids), '{}') INTO active FROM tidegate.lease AS l WHERE l.born >= lease.low AND NOT l.ended;
    IF "join" AND after > 0 AND upper(active) > after + 1 THEN
        SELECT l.reached, l.clear_to, l.as_of INTO newest
          FROM tidegate.lease AS l WHERE l.born >= lease.low AND l.reached > lease.after AND NOT l.ended ORDER BY l.reached DESC LIMIT 1;
        IF FOUND THEN
            after := newest.reached;
            clear_to := newest.clear_to;
            as_of := newest.as_of;
        END IF;
    END IF;
    IF probe IS NOT NULL THEN
        UPDATE tidegate.service AS s
           SET state = 'probing', prober = lease.worker, retry_at = instant + make_interval(secs => seconds)
         WHERE s.service = (
               SELECT d.service FROM tidegate.service AS d
                WHERE d.service = probe AND d.state IN ('open', 'probing') AND d.retry_at <= instant AND d.kinds && lease.kinds
                  -- Whoever holds the row for long keeps no lease waiting.
                  FOR UPDATE SKIP LOCKED)
        RETURNING s.kinds, s.probe_id INTO probed, after;
        IF NOT FOUND THEN
            after := 0;
            services := tidegate.watched_services();
            RETURN;
        END IF;
        clear_to := 0;
        most := 1;
    END IF;
    IF EXISTS (SELECT FROM tidegate.service AS s WHERE tidegate.is_watched(s)) THEN
        services := tidegate.watched_services();
        held_kinds := ARRAY(SELECT k FROM tidegate.service AS s, unnest(s.kinds) AS k
                             WHERE s.state <> 'closed' AND s.service IS DISTINCT FROM probe);
    END IF;
    horizon := age(as_of::xid);
    start := after;
    SELECT array_agg(k.kind) FILTER (WHERE k.paused OR k.kind <> ALL (kinds) OR k.kind = ANY (held_kinds) OR k.kind <> ALL (probed)),
           coalesce(bool_or(k.policy <> '{}'), false)
      INTO left_out, have_policies FROM tidegate.event_kind AS k;
    IF have_policies AND services IS NULL THEN
        services := tidegate.watched_services();
    END IF;

    -- The scan locks what it looks at, in id order, and skips what others have locked. FOR NO KEY UPDATE, because FOR UPDATE
    -- also skips rows that a foreign-key check has touched. A subselect of its own, because a planner with stale statistics
    -- may run an inlined one once per row. The conditions stand inside a CASE, which the planner takes to pass every other row
    -- whatever it knows of them: one by one it multiplies them to next to nothing and sorts the table instead of
    -- walking its index.
    SELECT count(*), max(s.id), array_agg(s.id), count(s.group_key), array_agg(s.group_key), array_agg(s.payload_bytes),
           sum(s.payload_bytes), min(s.id) FILTER (WHERE s.suspect),
           array_agg(s.group_key) FILTER (WHERE s.young AND s.group_key IS NOT NULL)
      INTO scanned, last_id, ids, grouped, keys, sizes, total, first_suspect, young
      FROM (SELECT q.id, q.group_key, q.payload_bytes, q.lapses > 0 AS suspect, age(q.xmin) <= horizon AS young
              FROM tidegate.event_queue AS q
             WHERE NOT q.delayed AND q.id > start
               AND CASE WHEN q.available_at <= instant AND NOT (q.id <@ active)
                         AND (left_out IS NULL OR q.kind <> ALL (left_out))
                         -- A subselect is hashed; = ANY of a parameter is searched from end to end.
                         AND (q.group_key IS NULL OR q.group_key NOT IN (SELECT unnest(passed_by))) THEN true ELSE false END
             ORDER BY q.id LIMIT most
               FOR NO KEY UPDATE SKIP LOCKED) AS s;
    IF scanned = 0 THEN
        IF probe IS NOT NULL THEN
            -- Around; and where nothing is left to try, whoever comes next tries, and is enough to open it again.
            UPDATE tidegate.service AS s
               SET probe_id = 0, retry_at = instant, since = CASE WHEN s.probe_id > 0 THEN s.since ELSE instant END,
                   state = CASE WHEN s.probe_id > 0 THEN 'open' ELSE 'closed' END, failures = tidegate.open_after() - 1
             WHERE s.service = probe;
            services := tidegate.watched_services();
        END IF;
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
        -- Not the end of the queue: the caller must not take it for one.
        scanned := most;
    END IF;
    after := last_id;
    page := CASE WHEN last_id - ids[1] + 1 = kept THEN int8multirange(int8range(ids[1], last_id, '[]'))
                 ELSE tidegate.ranges(ids) END;

    IF grouped = 0 THEN
        -- What was leased between the first look and the scan is not ours; what we have locked cannot be any more.
        SELECT coalesce(range_agg(l.ids), '{}'), least(min(l.born), pg_snapshot_xmin(pg_current_snapshot()))
          INTO others, low FROM tidegate.lease AS l WHERE l.born >= lease.low AND NOT l.ended;
        mine := page - others;
        -- Inside a CASE, whether there is a group offers no index: the one of groups would be read from end to end.
        IF start <= clear_to AND NOT EXISTS (SELECT FROM tidegate.event_queue AS q
                WHERE NOT q.delayed AND q.id > start AND q.id <= last_id AND CASE WHEN q.group_key IS NOT NULL THEN true ELSE false END) THEN
            clear_to := greatest(clear_to, last_id);
        END IF;
    ELSE
        -- Our own leases are locked, in a statement of its own: nothing leaves them from here on, and what has left them
        -- before is seen by the next. (Locked by the statement that reads the facts, a lease is read as it is after a
        -- give-back that the rest of the facts does not know of yet.)
        locked := ARRAY(SELECT l.token FROM tidegate.lease AS l
                         WHERE l.token = ANY (held) AND l.worker = lease.worker FOR KEY SHARE SKIP LOCKED);
        -- The facts, all of one moment.
        WITH own AS MATERIALIZED (
            SELECT l.token, l.ids FROM tidegate.lease AS l WHERE l.token = ANY (locked)
        ), live AS MATERIALIZED (
            SELECT l.token, l.ids, l.groups, l.born FROM tidegate.lease AS l WHERE l.born >= lease.low AND NOT l.ended
        ), sets AS MATERIALIZED (
            SELECT coalesce((SELECT range_agg(o.ids) FROM own AS o), '{}') AS own,
                   coalesce((SELECT range_agg(l.ids) FROM live AS l), '{}') AS live
        )
        SELECT sets.own, sets.live - sets.own,
               least((SELECT min(born) FROM live), pg_snapshot_xmin(pg_current_snapshot())),
               (SELECT array_agg(h) FROM live AS l, unnest(l.groups) AS h WHERE l.token NOT IN (SELECT o.token FROM own AS o)),
               p.keys, p.first,
               EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.stray AND q.group_key IS NOT NULL
                          AND NOT (q.id <@ page) AND NOT (q.id <@ sets.own))
          INTO own, others, low, busy, passed, first_passed, strays
          FROM sets, LATERAL (
               SELECT array_agg(q.group_key) AS keys, min(q.id) AS first
                 FROM tidegate.event_queue AS q
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
                     -- OFFSET 0: asked by the index, group by group, and never by a hash of all strays.
                     OR strays AND EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.stray AND q.group_key = k OFFSET 0)) END;
        mine := page - others;
        IF cardinality(doubtful) > 0 THEN
            -- The cut: the first of each doubtful group that is not in our hands; what stands behind it stays.
            WITH cut AS MATERIALIZED (
                SELECT d.key, ahead.id, ahead.id < d.first AS whole
                  FROM (SELECT u.key, min(u.id) AS first, max(u.id) AS last
                          FROM unnest(ids, keys) AS u(id, key)
                         WHERE u.key IN (SELECT unnest(doubtful)) GROUP BY u.key) AS d
                 CROSS JOIN LATERAL (
                       SELECT b.id FROM tidegate.event_queue AS b
                        WHERE b.group_key = d.key AND b.id <= d.last AND NOT (b.id <@ own) AND NOT (b.id <@ mine)
                        ORDER BY b.id LIMIT 1) AS ahead
            )
            SELECT mine - coalesce(range_agg(int8range(u.id, u.id, '[]')), '{}'), least(min(u.id), first_passed),
                   (SELECT array_agg(cut.key) FROM cut WHERE cut.whole)
              INTO mine, first_passed, blocked
              FROM unnest(ids, keys) AS u(id, key) JOIN cut ON cut.key = u.key AND u.id > cut.id AND u.id <@ mine;
        END IF;
        IF start <= clear_to THEN
            clear_to := greatest(clear_to, least(last_id, first_passed - 1));
        END IF;
    END IF;

    IF probe IS NOT NULL THEN
        UPDATE tidegate.service AS s
           SET probe_id = last_id, state = CASE WHEN isempty(mine) THEN 'open' ELSE 'probing' END,
               retry_at = CASE WHEN isempty(mine) THEN instant + interval '1 second' ELSE s.retry_at END
         WHERE s.service = probe;
        services := tidegate.watched_services();
    END IF;
    IF isempty(mine) THEN
        suspect := NULL;
        RETURN;
    END IF;
    IF mine = page THEN
        taken := kept;
        hashes := CASE WHEN grouped > 0 THEN ARRAY(SELECT DISTINCT hashtext(k) FROM unnest(keys) AS k WHERE k IS NOT NULL) END;
    ELSE
        SELECT count(*), array_agg(DISTINCT hashtext(u.key)) FILTER (WHERE u.key IS NOT NULL) INTO taken, hashes
          FROM unnest(ids, keys) AS u(id, key) WHERE u.id <@ mine;
    END IF;
    INSERT INTO tidegate.lease (token, worker, ids, started_to, groups, taken_at, renewed_at, expires_at, reached, clear_to, as_of)
    VALUES (token, worker, mine,
            CASE WHEN suspect OR first_window = 0 THEN 0
                 WHEN mine = page THEN ids[least(first_window, kept)]
                 ELSE (SELECT max(w.id) FROM (SELECT u.id FROM unnest(ids) AS u(id) WHERE u.id <@ mine
                        ORDER BY u.id LIMIT first_window) AS w) END,
            hashes, instant, instant, instant + make_interval(secs => seconds),
            -- Of what is ready before the end of a walk for a few kinds most was passed.
            CASE WHEN "join" IS NULL THEN 0 ELSE after END, clear_to, as_of);
END $$;

-- The events of a lease behind id `after`, the first `most` of them: all at once, as the lease was bounded by bytes; or fewer
-- and fewer, to find the one that cannot be read. Fate 0 is to run, 1 has expired, 2 has spent its attempts.
CREATE FUNCTION tidegate.read_leased(token uuid, after bigint, most bigint)
    RETURNS TABLE (id bigint, fate integer, kind text, payload json, group_key text, correlation_id text, attempt integer,
                   max_attempts integer, created_at timestamptz, expires_at timestamptz, progress jsonb, traceparent text,
                   started boolean, replayed boolean)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT q.id, CASE WHEN q.expires_at <= l.taken_at THEN 1 WHEN q.attempts >= q.max_attempts THEN 2 ELSE 0 END,
           q.kind, q.payload, q.group_key, q.correlation_id, q.attempts + 1, q.max_attempts, q.created_at, q.expires_at,
           q.progress, q.traceparent, q.id <= l.started_to, q.replay_of IS NOT NULL
      FROM tidegate.lease AS l
     CROSS JOIN LATERAL unnest(l.ids * int8multirange(int8range(after, NULL, '()'))) AS r
      JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
     WHERE l.token = read_leased.token
     LIMIT most;
END $$;

-- What is in hand under these tokens, all of one moment: read lease by lease, an event that leaves between two reads would
-- seem to be ahead of nothing. A lease without a row here is lost or empty.
CREATE FUNCTION tidegate.in_hand(tokens uuid[]) RETURNS TABLE (token uuid, cuts integer, started_to bigint, id bigint)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    AS $$
    SELECT l.token, l.cuts, l.started_to, q.id
      FROM tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
      JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
     WHERE l.token = ANY (in_hand.tokens)
$$;

-- The worker is alive: its leases hold for so many seconds from now. Tells those that it still has, and how often
-- something was taken from each.
CREATE FUNCTION tidegate.renew(worker uuid, tokens uuid[], seconds double precision) RETURNS TABLE (token uuid, cuts integer)
    LANGUAGE sql SET search_path = pg_catalog, pg_temp
    AS $$
    UPDATE tidegate.lease AS l
       SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => renew.seconds)
     WHERE l.token = ANY (renew.tokens) AND l.worker = renew.worker
    RETURNING l.token, l.cuts
$$;

-- Events leave their worker's leases without having ended, and with each what stands behind it in its group there. Tells all
-- that left. `under`: the lease of each, which must hold it: the same worker may have leased the event anew since.
-- `ran`: those of what stands behind that have been started all the same, for what was ahead of them had ended and was not
-- written; they have had an attempt. `taken_away`: by somebody else than the worker, who must notice. Nobody but the
-- worker knows then what was started behind, so all that may have been is charged, and may have one attempt more.
CREATE FUNCTION tidegate.hand_back(worker uuid, wanted bigint[], under uuid[] DEFAULT NULL, ran bigint[] DEFAULT '{}',
                                   taken_away boolean DEFAULT false)
    RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
#variable_conflict use_column
DECLARE
    own int8multirange;
    leaving bigint[];
    hole int8multirange;
BEGIN
    PERFORM FROM tidegate.lease AS l WHERE l.worker = hand_back.worker ORDER BY l.token FOR UPDATE;
    -- A statement of its own: a lease that was under way when we began to wait for the first lock is seen, too.
    SELECT coalesce(range_agg(l.ids), '{}') INTO own FROM tidegate.lease AS l WHERE l.worker = hand_back.worker;
    IF under IS NOT NULL THEN
        wanted := ARRAY(SELECT u.id FROM unnest(wanted, under) AS u(id, token)
                          JOIN tidegate.lease AS l ON l.token = u.token AND l.worker = hand_back.worker WHERE l.ids @> u.id);
    END IF;
    -- Of each group the first, and by a subselect of its own what stands behind it: joined, a plan that is kept from an empty
    -- queue walks the index of all groups.
    WITH given AS MATERIALIZED (
        SELECT q.id, q.group_key FROM tidegate.event_queue AS q WHERE q.id = ANY (wanted) AND q.id <@ own
    )
    SELECT ARRAY(SELECT g.id FROM given AS g
                  UNION
                 SELECT behind.id
                   FROM (SELECT g.group_key, min(g.id) AS id FROM given AS g WHERE g.group_key IS NOT NULL GROUP BY g.group_key) AS first
                  CROSS JOIN LATERAL (SELECT b.id FROM tidegate.event_queue AS b
                                       WHERE b.group_key = first.group_key AND b.id > first.id AND b.id <@ own OFFSET 0) AS behind)
      INTO leaving;
    hole := tidegate.ranges(leaving);
    IF taken_away THEN
        ran := ARRAY(SELECT u.id FROM unnest(leaving) AS u(id)
                       JOIN tidegate.lease AS l ON l.worker = hand_back.worker AND l.ids @> u.id WHERE u.id <= l.started_to);
    END IF;
    ran := ARRAY(SELECT r FROM unnest(ran) AS r WHERE r <> ALL (wanted));
    IF taken_away THEN
        -- A statement of its own: a worker that hands back has no right to it.
        UPDATE tidegate.event_queue AS q SET max_attempts = least(1000, q.max_attempts + 1)
         WHERE q.id = ANY (ran) AND q.attempts < q.max_attempts;
    END IF;
    UPDATE tidegate.event_queue AS q
       SET stray = true, attempts = q.attempts + (q.id = ANY (ran) AND q.attempts < q.max_attempts)::int
     WHERE q.id = ANY (leaving) AND CASE WHEN q.group_key IS NOT NULL THEN NOT q.stray OR q.id = ANY (ran) ELSE false END;
    -- (Not `ids <@ hole`: a GiST index misses multiranges with gaps there, Postgres 15.)
    DELETE FROM tidegate.lease AS l WHERE l.worker = hand_back.worker AND isempty(l.ids - hole);
    UPDATE tidegate.lease AS l SET ids = l.ids - hole, cuts = l.cuts + taken_away::int
     WHERE l.worker = hand_back.worker AND l.ids && hole;
    RETURN leaving;
END $$;

-- What goes before a walk: breaks the leases of workers of which one has expired, all of a worker's or none, and gives back
-- what is under the caller's name and not in `held`, whose answer was lost. Of what is broken, the events that may have been
-- started have lost an attempt, and run alone next time. It reads every version of every lease; nothing else does. Tells the
-- lowest id that came free, and from which transaction on leases may be alive.
CREATE FUNCTION tidegate.sweep(worker uuid, held uuid[], OUT broken bigint, OUT lowest bigint, OUT low xid8)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    dead uuid;
    locked bigint;
    l record;
BEGIN
    broken := 0;
    FOR l IN SELECT o.token, o.ids FROM tidegate.lease AS o
              WHERE o.worker = sweep.worker AND o.token <> ALL (held) ORDER BY o.token FOR UPDATE SKIP LOCKED LOOP
        UPDATE tidegate.event_queue AS q SET stray = true
          FROM unnest(l.ids) AS r
         WHERE q.id >= lower(r) AND q.id < upper(r) AND CASE WHEN q.group_key IS NOT NULL THEN NOT q.stray ELSE false END;
        DELETE FROM tidegate.lease AS o WHERE o.token = l.token;
        broken := broken + 1;
        lowest := least(lowest, lower(l.ids));
    END LOOP;
    FOR dead IN SELECT DISTINCT o.worker FROM tidegate.lease AS o
                 WHERE o.expires_at <= instant AND o.worker IS DISTINCT FROM sweep.worker LOOP
        SELECT count(*) INTO locked
          FROM (SELECT FROM tidegate.lease AS o WHERE o.worker = dead AND o.expires_at <= instant FOR UPDATE SKIP LOCKED) AS t;
        CONTINUE WHEN locked = 0;
        -- A statement of its own: it sees what the worker has taken before the first had locked.
        SELECT count(*) INTO locked FROM (SELECT FROM tidegate.lease AS o WHERE o.worker = dead FOR UPDATE SKIP LOCKED) AS t;
        CONTINUE WHEN locked < (SELECT count(*) FROM tidegate.lease AS o WHERE o.worker = dead);
        BEGIN
            FOR l IN SELECT o.token, o.ids, o.started_to, o.taken_at FROM tidegate.lease AS o WHERE o.worker = dead LOOP
                UPDATE tidegate.event_queue AS q
                   SET attempts = q.attempts + ran.ran::int, lapses = q.lapses + ran.ran::int, stray = true,
                       last_error = CASE WHEN ran.ran THEN 'lapsed: its worker went away' ELSE q.last_error END,
                       errors = CASE WHEN ran.ran THEN q.errors || jsonb_build_array(jsonb_build_object('handler', NULL,
                                'code', 'lapsed', 'message', 'its worker went away', 'attempt', q.attempts + 1, 'at', instant))
                                ELSE q.errors END
                  FROM unnest(l.ids) AS r
                  JOIN tidegate.event_queue AS e ON e.id >= lower(r) AND e.id < upper(r)
                 CROSS JOIN LATERAL (SELECT e.id <= l.started_to AND e.attempts < e.max_attempts
                                            AND (e.expires_at IS NULL OR e.expires_at > l.taken_at) AS ran) AS ran
                 WHERE q.id = e.id AND (ran.ran OR q.group_key IS NOT NULL);
                DELETE FROM tidegate.lease AS o WHERE o.token = l.token;
                broken := broken + 1;
                lowest := least(lowest, lower(l.ids));
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            -- A trigger of somebody's, say, refuses one of its events. Nobody else may have to wait for it.
            RAISE WARNING 'the leases of worker % cannot be broken: %', dead, SQLERRM;
        END;
    END LOOP;
    SELECT least(min(o.born), pg_snapshot_xmin(pg_current_snapshot())) INTO low FROM tidegate.lease AS o;
END $$;

-- Delayed events whose time has come are ready again, up to `most` at a time, earliest first. Tells the lowest id, from which
-- the next scan must start. The time is a subselect, which the index takes as its bound: compared with the volatile
-- function itself, every delayed row is looked at (26 ms for 100,000).
CREATE FUNCTION tidegate.promote(most bigint, OUT promoted bigint, OUT lowest bigint)
    LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
    AS $$
    WITH due AS MATERIALIZED (
        SELECT id FROM tidegate.event_queue WHERE delayed AND available_at <= (SELECT clock_timestamp())
         ORDER BY available_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED
    ), ready AS (
        UPDATE tidegate.event_queue AS q SET delayed = false WHERE q.id = ANY (ARRAY(SELECT id FROM due)) RETURNING q.id)
    SELECT count(*), min(id) FROM ready
$$;

-- Property G, as a question: leased events that have an earlier live event of their group which the same worker does not
-- hold, up to `most`. There are none, ever.
CREATE FUNCTION tidegate.unordered_leases(most bigint DEFAULT 10)
    RETURNS TABLE (id bigint, group_key text, worker uuid, ahead bigint, ahead_worker uuid)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
    AS $$
    WITH held AS MATERIALIZED (
        SELECT q.id, q.group_key, l.worker
          FROM tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
          JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
         WHERE q.group_key IS NOT NULL
    )
    SELECT h.id, h.group_key, h.worker, ahead.id, o.worker
      FROM held AS h
     CROSS JOIN LATERAL (SELECT q.id FROM tidegate.event_queue AS q
                          WHERE q.group_key = h.group_key AND q.id < h.id ORDER BY q.id DESC LIMIT 1) AS ahead
      LEFT JOIN held AS o ON o.id = ahead.id
     WHERE o.worker IS DISTINCT FROM h.worker
     LIMIT most
$$;

-- Property J, as a question: events with a group that a walk has passed, and that have neither ended nor are in a lease nor
-- are marked, up to `most`. There are none, ever. (An event that was written anew since counts as young, and is left out.)
CREATE FUNCTION tidegate.unmarked_events(most bigint DEFAULT 10) RETURNS TABLE (id bigint, group_key text, worker uuid)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
    AS $$
    SELECT q.id, q.group_key, l.worker
      FROM tidegate.lease AS l
      JOIN tidegate.event_queue AS q ON q.id <= l.clear_to AND q.group_key IS NOT NULL AND NOT q.stray
                                    AND age(q.xmin) > age(l.as_of::xid)
     WHERE NOT l.ended AND NOT EXISTS (SELECT FROM tidegate.lease AS h WHERE h.ids @> q.id)
     LIMIT most
$$;
