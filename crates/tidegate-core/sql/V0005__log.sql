-- Retention: how finished events leave the log.
--
-- The log is partitioned by the UTC day on which its rows expire. A partition is created before the first
-- event finishes into it, and dropped as a whole after its day. Rows that expire on the current day, and rows
-- in the default partition, are deleted in batches.
--
-- Measured on Postgres 15 (2 cores, fsync on) with 1,000,000 rows of 313 MB including indexes: Dropping their
-- partition takes 0.2 s. Deleting them in batches of 10,000 takes 1.2 s, and a vacuum must follow. With 100
-- partitions, the first finalize of a new connection takes 0.7 to 1.2 ms longer than with only the default
-- partition (3.2 against 2.5 ms). The second finalize takes 0.6 ms in both cases.
--
-- Counts outlive the rows (B23): the transaction that ends events adds them to minute_stats, which the
-- cleanup does not touch.
--
-- cleanup_step() does one step of a cleanup, in one short transaction. It runs as the owner (SECURITY
-- DEFINER), so a role that may run a cleanup needs no rights on the tables, and each step writes its audit
-- row together with the removal. A step waits at most 200 ms for a lock, because finalizes queue up behind a
-- step that waits for the log. Only one step runs at a time, whoever starts it, because it locks slot -1 of
-- `mutex`. Two steps can therefore not deadlock on rows.
--
-- `now` can only name an earlier time than the database's clock, so no caller can delete rows that have not
-- expired.

-- The partitions of the log, as in the catalog. The bounds are null for the default partition.
-- (If pg_get_expr receives the oid of a table, Postgres opens the table and waits for its locks.)
CREATE FUNCTION @tidegate.log_partitions() RETURNS TABLE (partition text, lower_bound timestamptz, upper_bound timestamptz)
    LANGUAGE sql STABLE SECURITY DEFINER SET datestyle = 'ISO' AS $$
    SELECT c.relname::text,
           CASE WHEN b.bound <> 'DEFAULT' THEN
                coalesce(substring(b.bound FROM 'FROM [(]''([^'']+)''[)]')::timestamptz, '-infinity') END,
           CASE WHEN b.bound <> 'DEFAULT' THEN
                coalesce(substring(b.bound FROM 'TO [(]''([^'']+)''[)]')::timestamptz, 'infinity') END
      FROM pg_inherits AS i
      JOIN pg_class AS c ON c.oid = i.inhrelid
     CROSS JOIN LATERAL pg_get_expr(c.relpartbound, 0) AS b(bound)
     WHERE i.inhparent = '@tidegate.event_log'::regclass
       AND c.relnamespace = '@tidegate'::regnamespace
       AND c.relkind = 'r'
       AND b.bound IS NOT NULL
$$;
COMMENT ON FUNCTION @tidegate.log_partitions IS 'The partitions of the log, with their bounds.';

-- Makes concurrent replays, and steps of a cleanup, wait for each other, as long as the caller's
-- lock_timeout allows. After that, the caller's statements must see everything that was committed before.
-- Only this isolation level guarantees that.
CREATE FUNCTION @tidegate.one_at_a_time() RETURNS void
    LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'transaction_isolation: must be READ COMMITTED, got %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = format('ALTER ROLE %I SET default_transaction_isolation = ''read committed''', session_user);
    END IF;
    PERFORM @tidegate.lock_slots('{-1}');
END $$;

-- The columns of the log, as text. For moving rows between partitions. A partition may have its columns in
-- another order.
CREATE FUNCTION @tidegate.log_columns(prefix text) RETURNS text
    LANGUAGE sql STABLE AS $$
    SELECT string_agg(prefix || quote_ident(attname), ', ' ORDER BY attnum)
      FROM pg_attribute
     WHERE attrelid = '@tidegate.event_log'::regclass AND attnum > 0 AND NOT attisdropped
$$;

-- The result of a query on one table. A query of the whole log locks all partitions and their indexes until
-- its transaction ends. With a year of partitions, a few simultaneous readers need more locks than the
-- server has. This function holds the locks of only one table at a time, the queue or one partition: a block
-- that fails releases the locks that it took. The result is JSON, which does not depend on the table any
-- more.
CREATE FUNCTION @tidegate.found_in(place text, query text, ids bigint[], most bigint) RETURNS json
    LANGUAGE plpgsql STABLE AS $$
DECLARE
    found json;
BEGIN
    EXECUTE format(query, place) INTO found USING ids, most;
    RAISE EXCEPTION USING ERRCODE = 'TG002';
EXCEPTION
    WHEN SQLSTATE 'TG002' THEN
        RETURN found;
    -- The partition expired and was dropped in the meantime.
    WHEN undefined_table THEN
        RETURN NULL;
END $$;

-- The partitions of the log. The last one first.
CREATE FUNCTION @tidegate.log_places() RETURNS SETOF name
    LANGUAGE sql STABLE AS $$
    SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
     WHERE i.inhparent = '@tidegate.event_log'::regclass AND c.relnamespace = '@tidegate'::regnamespace
     ORDER BY c.relname DESC
$$;

-- Looks first in the partitions that contain events which have just completed.
CREATE FUNCTION @tidegate.logged(id bigint) RETURNS SETOF @tidegate.event_log
    LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
DECLARE
    just_ended CONSTANT text := 'event_log_' || to_char(statement_timestamp() AT TIME ZONE 'UTC'
        + coalesce((SELECT min(k.retention_completed) FROM @tidegate.event_kind AS k), '30 days'), 'YYYYMMDD');
    -- The row as text, not as JSON: a payload with half of a surrogate pair can be stored, but not be taken
    -- out of other JSON.
    query CONSTANT text := 'SELECT to_json(ROW(' || @tidegate.log_columns('l.')
        || ')::text) FROM @tidegate.%I AS l WHERE l.id = ANY ($1) LIMIT $2';
    place text;
    found json;
    event @tidegate.event_log;
BEGIN
    FOR place IN SELECT p FROM @tidegate.log_places() AS p ORDER BY p > just_ended, p DESC LOOP
        found := @tidegate.found_in(place, query, ARRAY[logged.id], 1);
        IF found IS NOT NULL THEN
            event := (found #>> '{}')::@tidegate.event_log;
            RETURN NEXT event;
            RETURN;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION @tidegate.logged IS
    'A finished event, as a row of event_log; no row if it is not there. id: the event''s id. Reads one partition at a time.';

-- Returns which of these leases have finished their event, for a worker that lost the answer to an end. It
-- looks at one partition at a time (see found_in), and stops when it has found all events that are not live.
-- It starts with the days on which events that end now expire, and with yesterday's.
CREATE FUNCTION @tidegate.logged_under(ids bigint[], tokens uuid[]) RETURNS TABLE (id bigint, token uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    query CONSTANT text := 'SELECT json_agg(json_build_array(l.id, l.lease_token)) FROM @tidegate.%I AS l WHERE l.id = ANY ($1)';
    likely CONSTANT text[] := ARRAY(
        SELECT 'event_log_' || to_char(statement_timestamp() AT TIME ZONE 'UTC' + used.retention - earlier.days * interval '1 day', 'YYYYMMDD')
          FROM (SELECT k.retention_completed FROM @tidegate.event_kind AS k
                 UNION SELECT k.retention_failed FROM @tidegate.event_kind AS k
                 UNION VALUES (interval '30 days'), (interval '90 days')) AS used(retention),
               generate_series(0, 1) AS earlier(days));
    missing bigint[] := ARRAY(SELECT u.id FROM unnest(logged_under.ids) AS u(id)
                               WHERE NOT EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.id = u.id));
    place text;
    found json;
BEGIN
    FOR place IN SELECT p FROM @tidegate.log_places() AS p ORDER BY p = ANY (likely) DESC, p DESC LOOP
        EXIT WHEN missing = '{}';
        found := @tidegate.found_in(place, query, missing, 0);
        CONTINUE WHEN found IS NULL;
        missing := ARRAY(SELECT u.id FROM unnest(missing) AS u(id)
                          WHERE u.id NOT IN (SELECT (f ->> 0)::bigint FROM json_array_elements(found) AS f));
        RETURN QUERY
        SELECT held.id, held.token FROM unnest(logged_under.ids, logged_under.tokens) AS held(id, token)
          JOIN json_array_elements(found) AS f ON (f ->> 0)::bigint = held.id AND (f ->> 1)::uuid = held.token;
    END LOOP;
END $$;

-- Whether the log has a partition for rows that expire on this day.
CREATE FUNCTION @tidegate.has_log_partition(day date) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM @tidegate.log_partitions() AS p
                    WHERE p.lower_bound < (day + 1)::timestamp AT TIME ZONE 'UTC' AND p.upper_bound > day::timestamp AT TIME ZONE 'UTC')
$$;

-- The days that need a partition: the days on which events expire that finish within a week, for each
-- retention in use. The days between them and the end of the longest retention are not included.
CREATE FUNCTION @tidegate.missing_log_days(now timestamptz DEFAULT NULL) RETURNS SETOF date
    LANGUAGE sql STABLE AS $$
    WITH wanted AS MATERIALIZED (
        SELECT DISTINCT ahead.day::date
          FROM (SELECT least(missing_log_days.now, clock_timestamp()) AS now) AS clock,
               (SELECT retention_completed FROM @tidegate.event_kind
                 UNION SELECT retention_failed FROM @tidegate.event_kind) AS used(retention),
               LATERAL (SELECT clock.now + used.retention AS first) AS until,
               LATERAL generate_series((until.first AT TIME ZONE 'UTC')::date,
                                       ((until.first + interval '7 days') AT TIME ZONE 'UTC')::date,
                                       interval '1 day') AS ahead(day))
    SELECT w.day FROM wanted AS w
     WHERE NOT tstzrange(w.day::timestamp AT TIME ZONE 'UTC', (w.day + 1)::timestamp AT TIME ZONE 'UTC')
               && (SELECT coalesce(range_agg(tstzrange(p.lower_bound, p.upper_bound)), '{}')
                     FROM @tidegate.log_partitions() AS p WHERE p.lower_bound IS NOT NULL)
     ORDER BY 1
$$;

-- Creates the partition of a day. It creates a separate table and then attaches it. This blocks neither
-- inserts into other partitions nor reads, while CREATE … PARTITION OF locks the whole log. Rows of this day
-- in the default partition are moved. If there are more than 10,000, the day is left to the default
-- partition. Attaching reads the default partition under its lock: 0.3 s for a million rows. This takes no
-- time if a cleanup runs at least once a week, because the default partition then stays almost empty. No
-- event expires later than the longest retention, so the function refuses later days: a role that may run a
-- cleanup cannot fill the catalog with partitions.
CREATE FUNCTION @tidegate.make_log_partition(day date, dry_run boolean DEFAULT false, OUT outcome text, OUT moved bigint)
    LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
    name constant text := 'event_log_' || to_char(day, 'YYYYMMDD');
    first constant timestamptz := day::timestamp AT TIME ZONE 'UTC';
    until constant timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    today constant date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
BEGIN
    PERFORM @tidegate.refuse(format('day: must be %s to %s, got %s', today - 3668, today + 3668, coalesce(day::text, 'NULL')))
      WHERE day IS NULL OR day NOT BETWEEN today - 3668 AND today + 3668;
    moved := 0;
    IF @tidegate.has_log_partition(day) THEN
        outcome := 'there';
        RETURN;
    END IF;
    SELECT count(*) INTO moved FROM (SELECT FROM @tidegate.event_log_default AS d
                                      WHERE d.expires_at >= first AND d.expires_at < until LIMIT 10001) AS waiting;
    -- A table with this name that is not a partition was detached by a user.
    outcome := CASE WHEN to_regclass(format('@tidegate.%I', name)) IS NOT NULL OR moved > 10000 THEN 'left_to_default' ELSE 'made' END;
    IF dry_run OR outcome <> 'made' THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE @tidegate.%I (LIKE @tidegate.event_log INCLUDING ALL)', name);
    PERFORM @tidegate.keep_out_of_statistics(format('@tidegate.%I', name)::regclass);
    -- Lock in the order in which a finalize locks.
    LOCK TABLE ONLY @tidegate.event_log IN SHARE UPDATE EXCLUSIVE MODE;
    LOCK TABLE ONLY @tidegate.event_log_default IN ACCESS EXCLUSIVE MODE;
    EXECUTE format(
        'WITH moved AS (
             DELETE FROM @tidegate.event_log_default AS d WHERE d.expires_at >= $1 AND d.expires_at < $2 RETURNING d.*)
         INSERT INTO @tidegate.%I (%s) SELECT %s FROM moved',
        name, @tidegate.log_columns(''), @tidegate.log_columns('moved.')) USING first, until;
    GET DIAGNOSTICS moved = ROW_COUNT;
    EXECUTE format('ALTER TABLE @tidegate.event_log ATTACH PARTITION @tidegate.%I FOR VALUES FROM (%L) TO (%L)',
                   name, first, until);
END $$;

-- Returns the position in a partition where a step that began at `since` ends: `pages` pages further, so
-- that a step is short even if it finds little. Null at the end of the partition.
CREATE FUNCTION @tidegate.step_end(partition text, since tid, pages bigint DEFAULT 8192) RETURNS tid
    LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN place.next < pg_relation_size(to_regclass(format('@tidegate.%I', partition)))
                                / current_setting('block_size')::bigint
                THEN format('(%s,0)', place.next)::tid END
      FROM (SELECT (since::text::point)[0]::bigint + step_end.pages AS next) AS place
$$;

-- How many rows of a partition have expired.
CREATE FUNCTION @tidegate.count_expired(partition text, now timestamptz) RETURNS bigint
    LANGUAGE plpgsql STABLE SET enable_seqscan = on AS $$
DECLARE
    expired bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM ONLY @tidegate.%I WHERE expires_at <= $1', partition) INTO expired USING now;
    RETURN expired;
END $$;

-- Drops a partition after its last row has expired. The expiry is read from the partition's bound in the
-- catalog. Only the last statement locks the log itself, until its commit. The remarks on its events go,
-- too. Returns the number of rows, or null if nothing was dropped: the partition does not exist or has not
-- expired.
CREATE FUNCTION @tidegate.drop_log_partition(partition text, now timestamptz DEFAULT NULL, OUT dropped bigint)
    LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
#variable_conflict use_column
DECLARE
    moment constant timestamptz := least(drop_log_partition.now, clock_timestamp());
    target constant text := drop_log_partition.partition;
BEGIN
    IF NOT EXISTS (SELECT FROM @tidegate.log_partitions() AS p WHERE p.partition = target AND p.upper_bound <= moment) THEN
        RETURN;
    END IF;
    -- From here on no session can insert. Reads continue.
    EXECUTE format('LOCK TABLE ONLY @tidegate.%I IN SHARE ROW EXCLUSIVE MODE', target);
    -- Of more than a gigabyte, what the last vacuum has counted, because a step must be short.
    SELECT CASE WHEN pg_relation_size(c.oid) > 1073741824 AND c.reltuples > 0 THEN c.reltuples
                ELSE @tidegate.count_expired(target, moment) END
      INTO dropped FROM pg_class AS c WHERE c.oid = format('@tidegate.%I', target)::regclass;
    EXECUTE format('DELETE FROM @tidegate.note AS n WHERE EXISTS (SELECT FROM ONLY @tidegate.%I AS l WHERE l.id = n.event_id)', target);
    EXECUTE format('DROP TABLE @tidegate.%I', target);
END $$;

-- Deletes expired rows of one partition, at most `batch`, and the remarks on their events. It walks by
-- physical position (a TID range scan), so that later steps do not read deleted rows again. Returns where the
-- next step begins, or null at the end.
CREATE FUNCTION @tidegate.delete_expired(
    partition text, since text DEFAULT NULL, batch integer DEFAULT 10000, now timestamptz DEFAULT NULL, OUT deleted bigint, OUT next text
) LANGUAGE plpgsql SET lock_timeout = '200ms' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    moment constant timestamptz := least(delete_expired.now, clock_timestamp());
    target constant text := delete_expired.partition;
    start constant tid := coalesce(delete_expired.since, '(0,0)')::tid;
    stop tid;
    last tid;
BEGIN
    stop := @tidegate.step_end(target, start);
    EXECUTE format(
        'WITH doomed AS MATERIALIZED (
             SELECT l.ctid AS place
               FROM ONLY @tidegate.%1$I AS l
              WHERE l.ctid > $1 AND l.ctid < $2 AND l.expires_at <= $3
              LIMIT $4
                FOR UPDATE SKIP LOCKED
         ), gone AS (
             DELETE FROM ONLY @tidegate.%1$I AS l
              WHERE l.ctid = ANY (ARRAY(SELECT place FROM doomed)) AND l.expires_at <= $3
             RETURNING l.id
         ), unnoted AS (
             DELETE FROM @tidegate.note AS n USING gone WHERE n.event_id = gone.id)
         SELECT (SELECT count(*) FROM gone),
                CASE WHEN (SELECT count(*) FROM doomed) = $4 THEN (SELECT max(place) FROM doomed) END', target)
       INTO deleted, last
      USING start, coalesce(stop, '(4294967295,65535)'::tid), moment, delete_expired.batch::bigint;
    next := coalesce(last, stop)::text;
END $$;

-- Removes messages that receive() recorded more than 15 days ago. SQS keeps a message for at most two weeks,
-- and Lambda repeats an unacknowledged message within hours.
CREATE FUNCTION @tidegate.forget_received(batch integer, dry_run boolean, now timestamptz) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    until constant timestamptz := forget_received.now - interval '15 days';
    forgotten bigint;
BEGIN
    IF dry_run THEN
        RETURN (SELECT count(*) FROM @tidegate.received AS r WHERE r.received_at <= until);
    END IF;
    DELETE FROM @tidegate.received AS r
     WHERE r.ctid = ANY (ARRAY(SELECT o.ctid FROM @tidegate.received AS o WHERE o.received_at <= until LIMIT batch FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;

-- Ends events as FAILED that the caller has locked, outside of any drain. What the database cannot read of an
-- event is lost; an event that cannot be ended stays. `begun` are those that a handler may have been running;
-- their attempt counts.
CREATE FUNCTION @tidegate.end_locked(event_ids bigint[], code text, message text, OUT ended bigint[], OUT begun bigint[])
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    middle CONSTANT integer := cardinality(event_ids) / 2;
    half record;
    lost text;
BEGIN
    ended := '{}';
    begun := '{}';
    IF event_ids = '{}' THEN
        RETURN;
    END IF;
    BEGIN
        SELECT e.ended, e.begun INTO ended, begun FROM @tidegate.end_at_once(event_ids, code, message) AS e;
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN
            RAISE;
        WHEN OTHERS THEN
            IF middle = 0 THEN
                BEGIN
                    lost := @tidegate.drop_unreadable(event_ids[1]);
                    SELECT e.ended, e.begun INTO ended, begun
                      FROM @tidegate.end_at_once(event_ids, code, format('%s (its %s cannot be read)', message, lost)) AS e;
                EXCEPTION WHEN OTHERS THEN
                    RAISE WARNING 'event % cannot be ended: %', event_ids[1], SQLERRM;
                END;
            ELSE
                SELECT e.ended, e.begun INTO half FROM @tidegate.end_locked(event_ids[:middle], code, message) AS e;
                SELECT half.ended || e.ended, half.begun || e.begun INTO ended, begun
                  FROM @tidegate.end_locked(event_ids[middle + 1:], code, message) AS e;
            END IF;
    END;
END $$;

-- Ends events as FAILED that the caller has locked, all or none.
CREATE FUNCTION @tidegate.end_at_once(event_ids bigint[], code text, message text, OUT ended bigint[], OUT begun bigint[])
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
BEGIN
    WITH gone AS (
        DELETE FROM @tidegate.event_queue AS q WHERE q.id = ANY (event_ids) RETURNING q.*
    ), told AS (
        SELECT g.id, l.token, l.taken_at, coalesce(g.id <= l.started_to, false) AS begun,
               least(g.attempts + coalesce(g.id <= l.started_to, false)::int, g.max_attempts) AS attempts
          FROM gone AS g LEFT JOIN @tidegate.lease AS l
            ON l.ids @> g.id AND NOT EXISTS (SELECT FROM @tidegate.lease_cut AS c WHERE c.token = l.token AND c.id = g.id)
    ), cut AS (
        INSERT INTO @tidegate.lease_cut (token, id)
        SELECT t.token, t.id FROM told AS t WHERE t.token IS NOT NULL ORDER BY 1, 2 ON CONFLICT DO NOTHING
    ), logged AS (
        INSERT INTO @tidegate.event_log
        SELECT r.*
          FROM gone AS g
          JOIN told AS t ON t.id = g.id
          LEFT JOIN @tidegate.event_kind AS k ON k.kind = g.kind
         CROSS JOIN LATERAL @tidegate.log_row(
               g::@tidegate.event_queue, 'FAILED', t.attempts, @tidegate.append_errors(g.errors, jsonb_build_array(jsonb_build_object(
                   'handler', NULL, 'code', code, 'message', message, 'attempt', t.attempts)), instant),
               NULL, g.progress, t.taken_at, instant, instant + coalesce(k.retention_failed, '90 days'), NULL) AS r
        RETURNING id, kind, status, attempts, created_at
    ), counted AS (
        SELECT @tidegate.count_ended(array_agg(l.kind), array_agg(l.status), array_agg(l.attempts), array_agg(l.created_at), instant,
                                    array_fill(code, ARRAY[count(*)::integer]), array_agg(l.id))
          FROM logged AS l)
    SELECT coalesce(array_agg(t.id ORDER BY t.id), '{}'), coalesce(array_agg(t.id ORDER BY t.id) FILTER (WHERE t.begun), '{}')
      INTO ended, begun FROM told AS t WHERE EXISTS (SELECT FROM counted);
END $$;

-- Ends live events that no drain would pass to a handler any more: their deadline has passed, their attempts
-- are used up, or they have waited for a service for too long, and they are in no live lease. They move to
-- the log with the same codes as in a drain. The function first breaks the leases of dead workers, which may
-- use up an attempt. A step ends at most `page` of each; `last_id` is null at the end.
--
-- Deadlines have an index. Exhausted events have none, because it would be written for every event: they are
-- sought among the 100,000 lowest ids. A drain ends those that it meets, wherever they are. A walk through
-- all of a million events took a hundred steps, and a second, to find nothing.
CREATE FUNCTION @tidegate.sweep_events(
    after bigint, page integer DEFAULT 10000, older_than interval DEFAULT '0', dry_run boolean DEFAULT false,
    actor text DEFAULT NULL, now timestamptz DEFAULT NULL, OUT expired bigint[], OUT abandoned bigint[], OUT given_up bigint[], OUT last_id bigint
) LANGUAGE plpgsql SET lock_timeout = '200ms' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    moment constant timestamptz := least(sweep_events.now, clock_timestamp());
    cutoff constant timestamptz := moment - older_than;
    -- Of what a dry run finds, nothing leaves the queue.
    most constant integer := CASE WHEN dry_run THEN 1000000 ELSE page END;
    held int8multirange;
    due bigint[];
    exhausted bigint[];
    is_full boolean;
    upto bigint;
BEGIN
    given_up := '{}';
    IF NOT dry_run THEN
        PERFORM @tidegate.sweep(NULL, '{}');
    END IF;
    SELECT coalesce(range_agg(l.ids), '{}') INTO held FROM @tidegate.lease AS l
     WHERE NOT dry_run OR l.worker NOT IN (SELECT d FROM @tidegate.dead_workers() AS d);
    due := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q
                  WHERE q.expires_at <= moment AND NOT (q.id <@ held) AND q.created_at <= cutoff
                  ORDER BY q.expires_at LIMIT most);
    exhausted := ARRAY(
        SELECT q.id
          FROM (SELECT e.id, e.attempts, e.max_attempts, e.created_at FROM @tidegate.event_queue AS e ORDER BY e.id LIMIT 100000) AS q
         WHERE q.attempts + (dry_run AND q.id <@ (SELECT h.started FROM @tidegate.held AS h))::int >= q.max_attempts
           AND NOT (q.id <@ held) AND q.created_at <= cutoff
         LIMIT most);
    is_full := page IN (cardinality(due), cardinality(exhausted));
    due := due || exhausted;
    IF NOT dry_run THEN
        due := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q
                      WHERE q.id = ANY (due) ORDER BY q.id FOR NO KEY UPDATE SKIP LOCKED);
        -- A separate statement, so that it sees leases that were being taken. No lease can take the events
        -- that we have locked.
        SELECT coalesce(range_agg(l.ids), '{}') INTO held FROM @tidegate.lease AS l;
    END IF;
    SELECT coalesce(array_agg(q.id ORDER BY q.id) FILTER (WHERE q.expires_at <= moment), '{}'),
           coalesce(array_agg(q.id ORDER BY q.id) FILTER (WHERE (q.expires_at <= moment) IS NOT TRUE), '{}') INTO expired, abandoned
      FROM @tidegate.event_queue AS q
     WHERE q.id = ANY (due) AND (dry_run OR NOT (q.id <@ held) AND (q.expires_at <= moment OR q.attempts >= q.max_attempts)
           AND q.created_at <= cutoff);
    IF NOT dry_run THEN
        expired := (@tidegate.end_locked(expired, 'expired', 'not started before its deadline')).ended;
        exhausted := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (abandoned) AND q.lapses = 0 ORDER BY q.id);
        abandoned := (@tidegate.end_locked(ARRAY(SELECT a FROM unnest(abandoned) AS a WHERE a <> ALL (exhausted)), 'abandoned',
                                          'its worker went away on the last attempt')).ended
                     || (@tidegate.end_locked(exhausted, 'attempts_exhausted', 'it has had as many attempts as it may have')).ended;
    END IF;
    -- What could not be ended comes first again. If it is all that there is, the next run tries it.
    last_id := CASE WHEN is_full AND NOT dry_run AND expired || abandoned <> '{}' THEN after END;
    IF EXISTS (SELECT FROM @tidegate.outages(moment)) THEN
        upto := (SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id > after ORDER BY q.id OFFSET page - 1 LIMIT 1);
        given_up := @tidegate.give_up(after, coalesce(upto, 9223372036854775807), page, page, cutoff, dry_run, moment);
        last_id := coalesce(upto, last_id);
    END IF;
    IF NOT dry_run THEN
        PERFORM @tidegate.record_action('cleanup', actor, jsonb_build_object('step', 'sweep', 'now', moment, 'cutoff', cutoff),
                                       expired || abandoned || given_up, NULL) WHERE expired || abandoned || given_up <> '{}';
    END IF;
END $$;

CREATE FUNCTION @tidegate.set_retention(
    kind text, completed interval DEFAULT NULL, failed interval DEFAULT NULL, reason text DEFAULT NULL,
    actor text DEFAULT NULL
) RETURNS TABLE (retention_completed interval, retention_failed interval)
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    before record;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.require_kind(kind);
    PERFORM @tidegate.refuse(CASE
        WHEN completed IS NULL AND failed IS NULL THEN 'retention: completed, failed or both must be given, got neither'
        WHEN completed NOT BETWEEN '0' AND interval '3660 days' THEN 'completed: must be 0 to 3660 days, got ' || completed
        WHEN failed NOT BETWEEN '0' AND interval '3660 days' THEN 'failed: must be 0 to 3660 days, got ' || failed END);
    SELECT k.retention_completed, k.retention_failed INTO before
      FROM @tidegate.event_kind AS k WHERE k.kind = set_retention.kind FOR UPDATE;
    UPDATE @tidegate.event_kind AS k
       SET retention_completed = coalesce(completed, k.retention_completed),
           retention_failed = coalesce(failed, k.retention_failed)
     WHERE k.kind = set_retention.kind
    RETURNING k.retention_completed, k.retention_failed INTO retention_completed, retention_failed;
    PERFORM @tidegate.record_change('set_retention', actor, jsonb_build_object('kind', kind,
        'completed', jsonb_build_object('from', before.retention_completed, 'to', retention_completed),
        'failed', jsonb_build_object('from', before.retention_failed, 'to', retention_failed)), 1, reason);
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION @tidegate.set_retention IS
    'Sets how long finished events of a kind are kept; applies to events that end from now on. kind: a registered kind. '
    'completed and failed: 0 to 3660 days; null leaves the value. reason: the reason, required. actor: the operator''s name.';

-- Whether the owner of the schema has logged in, who may say in tests what time it is.
CREATE FUNCTION @tidegate.is_owner() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN pg_has_role(session_user, (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = '@tidegate'), 'USAGE');

-- Does the next step. The state that a call returns in `next` is the argument of the next call; with null,
-- all is done. The first state has the options. `stages` are the stages that are left, and each walks over
-- items: days without a partition, partitions, functions of the program, or a single item that is the stage
-- itself. `at` is the item of the last step. `since` is set if there is more to do for it, and says where to
-- go on.
--
-- A step that fails changes nothing. The caller may try it again, or pass over its item with `skip`.
CREATE FUNCTION @tidegate.cleanup_step(state jsonb DEFAULT '{}', skip boolean DEFAULT false) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' SET enable_seqscan = off AS $$
DECLARE
    dry_run constant boolean := coalesce((state->>'dry_run')::boolean, false);
    moment constant timestamptz := least((state->>'now')::timestamptz, clock_timestamp());
    batch constant integer := coalesce((state->>'batch')::integer, 10000);
    actor constant text := state->>'actor';
    stages jsonb := coalesce(state->'stages', '["make", "sweep", "drop", "delete", "forget", "records", "fold"]');
    reached text := state->>'at';
    since text := state->>'since';
    stage text;
    item text;
    made record;
    gone bigint;
    did jsonb := '{}';
BEGIN
    PERFORM @tidegate.check_operator(NULL, actor, false);
    -- No run lasts longer, and of past days nobody needs a partition.
    IF moment < clock_timestamp() - interval '1 day' AND NOT @tidegate.is_owner() THEN
        RAISE EXCEPTION 'now: must be at most a day ago, except for the owner of the schema, for tests' USING ERRCODE = 'insufficient_privilege';
    END IF;
    LOOP
        stage := stages->>0;
        -- Nobody waits for the program's own functions, however long they take.
        IF NOT dry_run AND NOT skip AND stage NOT IN ('sweep', 'records', 'fold') THEN
            PERFORM @tidegate.one_at_a_time();
        END IF;
        item := CASE
            WHEN stage = 'make' THEN (SELECT min(d)::text FROM @tidegate.missing_log_days(moment) AS d WHERE reached IS NULL OR d > reached::date)
            WHEN stage IN ('drop', 'delete') THEN (
                SELECT min(p.partition) FROM @tidegate.log_partitions() AS p
                 WHERE (reached IS NULL OR p.partition > reached OR p.partition = reached AND since IS NOT NULL)
                   AND CASE stage WHEN 'drop' THEN p.upper_bound <= moment
                                  ELSE coalesce(p.lower_bound <= moment AND NOT (dry_run AND p.upper_bound <= moment), true) END)
            WHEN stage = 'records' THEN (SELECT min(r.expire) FROM @tidegate.records AS r
                                          WHERE reached IS NULL OR r.expire > reached OR r.expire = reached AND since IS NOT NULL)
            WHEN reached IS NULL OR since IS NOT NULL THEN stage END;
        EXIT WHEN item IS NOT NULL OR stage IS NULL;
        stages := stages - 0;
        reached := NULL;
        since := NULL;
    END LOOP;
    IF skip OR stage IS NULL THEN
        since := NULL;
    ELSIF stage = 'make' THEN
        made := @tidegate.make_log_partition(item::date, dry_run);
        did := CASE made.outcome WHEN 'made' THEN jsonb_build_object('partitions_made', 1, 'rows_moved', made.moved)
                                 WHEN 'left_to_default' THEN '{"left_to_default": 1}' ELSE '{}' END;
    ELSIF stage = 'sweep' THEN
        SELECT s.last_id, jsonb_build_object('expired', s.expired, 'abandoned', s.abandoned, 'given_up', s.given_up) INTO since, did
          FROM @tidegate.sweep_events(coalesce(since, '-9223372036854775808')::bigint, batch,
                                     make_interval(secs => coalesce((state->>'older_than')::double precision, 0)), dry_run, actor, moment) AS s;
    ELSIF stage = 'drop' THEN
        gone := CASE WHEN dry_run THEN @tidegate.count_expired(item, moment) ELSE @tidegate.drop_log_partition(item, moment) END;
        did := CASE WHEN gone IS NULL THEN '{}' ELSE jsonb_build_object('dropped', jsonb_build_object('partition', item, 'rows', gone)) END;
    ELSIF stage = 'delete' AND dry_run THEN
        did := jsonb_build_object('rows_deleted', @tidegate.count_expired(item, moment));
    ELSIF stage = 'delete' THEN
        SELECT d.deleted, d.next INTO gone, since FROM @tidegate.delete_expired(item, since, batch, moment) AS d;
        did := jsonb_build_object('rows_deleted', gone);
    ELSIF stage = 'forget' THEN
        gone := @tidegate.forget_received(batch, dry_run, moment);
        since := CASE WHEN gone >= batch AND NOT dry_run THEN 'more' END;
        did := jsonb_build_object('messages_forgotten', gone);
    ELSIF stage = 'records' THEN
        did := jsonb_build_object('records', @tidegate.expire_records(item, moment, batch, dry_run));
        gone := (SELECT sum(t.rows::bigint) FROM jsonb_each_text(did->'records') AS t(name, rows));
        since := CASE WHEN gone > 0 AND NOT dry_run THEN 'more' END;
    ELSIF stage = 'fold' THEN
        since := CASE WHEN NOT dry_run AND @tidegate.fold_figures(batch) >= batch THEN 'more' END;
    END IF;
    IF gone > 0 AND NOT dry_run THEN
        PERFORM @tidegate.record_change('cleanup', actor, jsonb_build_object(
            'step', stage, 'partition', CASE WHEN stage IN ('drop', 'delete') THEN item END, 'tables', did->'records', 'now', moment),
            gone, NULL);
    END IF;
    -- The caller learns of the end without a further call.
    IF item = stage AND since IS NULL THEN
        stages := stages - 0;
        item := NULL;
    END IF;
    RETURN jsonb_build_object('did', did, 'next', CASE WHEN stages <> '[]' THEN
               state || jsonb_build_object('stages', stages, 'at', item, 'since', since, 'now', moment) END);
END $$;
COMMENT ON FUNCTION @tidegate.cleanup_step IS
    'Does the next step of a cleanup, and returns what it did, as an object with did and next. state: an object with options '
    'at first, then next of the last call, until next is null. The options are batch (the most rows of a step, 1 to '
    '100000), older_than (end live events only if they were published at least this many seconds ago), dry_run (report what '
    'would be done), actor (the operator''s name), stages, and now (an earlier time to use as the present; more than a day ago '
    'only for the owner of the schema, for tests). skip: true passes over the step.';

CREATE FUNCTION @tidegate.cleanup(budget interval DEFAULT '1 second', options jsonb DEFAULT '{}') RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() + budget;
    step jsonb := jsonb_build_object('next', options);
    did jsonb := '[]';
BEGIN
    PERFORM @tidegate.refuse('budget: must be 100 milliseconds to 1 minute, got ' || coalesce(budget::text, 'NULL'))
      WHERE (budget BETWEEN interval '100 ms' AND interval '1 minute') IS NOT TRUE;
    LOOP
        BEGIN
            step := @tidegate.cleanup_step(step->'next');
            did := did || coalesce((SELECT jsonb_object_agg(d.key, d.value) FROM jsonb_each(step->'did') AS d
                                     WHERE d.value NOT IN ('0', '[]', '{}')), '[]');
        EXCEPTION WHEN OTHERS THEN
            did := did || jsonb_build_object('passed_over', SQLERRM);
            step := @tidegate.cleanup_step(step->'next', true);
        END;
        -- A dropped partition locks the log until the end of the transaction: no further step may keep it.
        EXIT WHEN step->'next' = 'null' OR step->'did' ? 'dropped' OR clock_timestamp() >= until;
    END LOOP;
    RETURN jsonb_build_object('did', did, 'finished', step->'next' = 'null');
END $$;
COMMENT ON FUNCTION @tidegate.cleanup IS
    'Does a cleanup, or a part of it, in one transaction; for a timer where no drain runs. It also breaks the leases of dead workers '
    'and ends events whose deadline has passed. budget: when to stop, 100 milliseconds to 1 minute. options: those of cleanup_step(). '
    'Returns an object with did, what the steps did or why one was passed over, and finished: false if the next call has more to do.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.logged TO @tidegate_drain, @tidegate_operate;
GRANT EXECUTE ON FUNCTION @tidegate.logged_under TO @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.set_retention, @tidegate.log_partitions, @tidegate.cleanup_step, @tidegate.cleanup TO @tidegate_operate;
