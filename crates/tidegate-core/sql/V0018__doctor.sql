-- The doctor: what may be wrong with a queue, and how to repair it. It changes nothing, and it may see what
-- its caller may see. What only a program knows is looked at by `tidegate doctor`: its settings, and whether
-- the schema is as it expects.

-- A duration in sentences for people, without its fractions: 1d 2h 3s.
CREATE FUNCTION @tidegate.time_in_words(span interval) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    RETURN coalesce(nullif(rtrim(regexp_replace(to_char(justify_hours(date_trunc('second', greatest(span, '0'))), 'FMDD"d" FMHH24"h" FMMI"m" FMSS"s"'),
                                                '\m0[dhms] ?', '', 'g')), ''), '0s');

-- The oldest ready event of those that a drain of these kinds could lease now. Looks at the first 10,000 of
-- these kinds that no delay hides, and at the first 1,000 whose delay is over: a drain must bring them back.
-- Of other and paused kinds, it passes a million at most, and none if it can lease no kind. An event that was
-- delayed is younger than its id says, so a hundred are compared.
CREATE FUNCTION @tidegate.oldest_ready(kinds text[]) RETURNS TABLE (id bigint, ready_for interval)
    LANGUAGE sql STABLE SET jit = off AS $$
    WITH open AS MATERIALIZED (
        SELECT k.kind FROM @tidegate.event_kind AS k
         WHERE k.kind = ANY (kinds) AND NOT k.paused
           AND NOT EXISTS (SELECT FROM @tidegate.service AS s WHERE s.state <> 'closed' AND k.kind = ANY (s.kinds))
    ), leased AS MATERIALIZED (
        SELECT coalesce(range_agg(l.ids), '{}') AS ids FROM @tidegate.lease AS l WHERE NOT l.ended
    )
    SELECT first.id, greatest(clock_timestamp() - first.available_at, '0')
      FROM ((SELECT q.id, q.available_at
               FROM (SELECT e.id, e.group_key, e.available_at
                       FROM (SELECT e.id, e.kind, e.group_key, e.available_at
                               FROM @tidegate.event_queue AS e WHERE NOT e.delayed ORDER BY e.id LIMIT 1000000) AS e
                      WHERE e.kind IN (SELECT kind FROM open) AND EXISTS (SELECT FROM open) ORDER BY e.id LIMIT 10000) AS q, leased
              WHERE q.available_at <= clock_timestamp() AND NOT (q.id <@ leased.ids)
                AND NOT EXISTS (SELECT FROM @tidegate.event_queue AS ahead
                                 WHERE ahead.group_key = q.group_key AND ahead.id < q.id)
              ORDER BY q.id LIMIT 100)
            UNION ALL
            (SELECT q.id, q.available_at
               FROM (SELECT e.id, e.kind, e.available_at FROM @tidegate.event_queue AS e
                      WHERE e.delayed AND e.available_at <= statement_timestamp() ORDER BY e.available_at LIMIT 1000) AS q
              WHERE q.kind IN (SELECT kind FROM open) ORDER BY q.available_at LIMIT 1)) AS first
     ORDER BY first.available_at LIMIT 1
$$;

-- Events that will pass their start-before deadline before they start (B13), by kind, soonest first, among
-- the 10,000 with the earliest deadlines. A drain that ends also counts them, and a million must not delay
-- it: this many take 0.05 s. An event counts in three cases:
--
-- - Its deadline is within five minutes. That leaves time to react, and five drains at one a minute have not
--   reached the event.
-- - It is delayed until after its deadline.
-- - Its turn comes after its deadline: more events of its kind have earlier deadlines than can finish by then
--   at the rate of the last five minutes. This test applies only to an event that has been ready for as long.
--   During that time there was always more to do than was done, so the rate is the capacity. The rate of a
--   queue that was empty at times shows how much was published, not how much it can do.
--
-- Events that have started do not count, and neither do events past their deadline, which are already lost.
-- If it needs a rate, it sums the figures of the minutes: counting the log took 200 ms at 10,000,000 rows, at
-- the end of each drain.
CREATE FUNCTION @tidegate.expiring() RETURNS TABLE (kind text, events bigint, first_deadline timestamptz)
    LANGUAGE sql STABLE SET jit = off AS $$
    WITH held AS MATERIALIZED (
        SELECT started FROM @tidegate.held
    ), first AS MATERIALIZED (
        SELECT q.kind, q.expires_at, q.available_at, extract(epoch FROM q.expires_at - statement_timestamp())::float8 AS seconds,
               NOT q.delayed AND q.available_at <= statement_timestamp() - interval '5 minutes' AS has_waited
          FROM @tidegate.event_queue AS q, held
         WHERE q.expires_at > statement_timestamp() AND NOT (q.id <@ held.started)
         ORDER BY q.expires_at LIMIT 10000
    ), span AS (
        SELECT @tidegate.figures_since(statement_timestamp() - interval '5 minutes') AS since
    ), finished AS MATERIALIZED (
        SELECT e.kind, sum(e.events)::float8 / extract(epoch FROM statement_timestamp() - span.since)::float8 AS per_second
          FROM span CROSS JOIN LATERAL @tidegate.ended(span.since) AS e
         WHERE EXISTS (SELECT FROM first WHERE has_waited AND seconds > 300)
         GROUP BY e.kind, span.since
    ), placed AS (
        SELECT f.*, row_number() OVER (PARTITION BY f.kind ORDER BY f.expires_at) AS place FROM first AS f
    )
    SELECT p.kind, count(*), min(p.expires_at)
      FROM placed AS p LEFT JOIN finished AS f USING (kind)
     WHERE p.seconds <= 300 OR p.available_at >= p.expires_at OR p.has_waited AND p.place > p.seconds * f.per_second
     GROUP BY p.kind
     ORDER BY min(p.expires_at), p.kind
$$;

-- What has kept vacuum from its work for longer than this, and how to end each. Dead rows accumulate as long
-- as a transaction is open, and a drain of one minute makes millions. A replication slot stores no time: a
-- queue of a hundred events per second makes a million transactions in three hours.
CREATE FUNCTION @tidegate.vacuum_holders(open_for interval DEFAULT '10 minutes', behind bigint DEFAULT 1000000)
    RETURNS TABLE (finding text, remedy text)
    LANGUAGE sql STABLE AS $$
    SELECT format('session %s of %s, %s, has had a transaction open for %s', a.pid, coalesce(a.usename, 'nobody'), coalesce(a.state, 'unknown'),
                  @tidegate.time_in_words(statement_timestamp() - a.xact_start)),
           format('SELECT pg_terminate_backend(%s);', a.pid)
      FROM pg_stat_activity AS a
     WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.xact_start <= statement_timestamp() - open_for
       AND a.pid <> pg_backend_pid() AND a.backend_type IN ('client backend', 'walsender', 'background worker')
    UNION ALL
    SELECT format('transaction %L is prepared and has waited for its end for %s', p.gid, @tidegate.time_in_words(statement_timestamp() - p.prepared)),
           format('ROLLBACK PREPARED %L;', p.gid)
      FROM pg_prepared_xacts AS p
     WHERE p.prepared <= statement_timestamp() - open_for
    UNION ALL
    SELECT format('replication slot %s, %s, is %s transactions behind', s.slot_name, CASE WHEN s.active THEN 'in use' ELSE 'not in use' END,
                  greatest(age(s.xmin), age(s.catalog_xmin))),
           format('SELECT pg_drop_replication_slot(%L);', s.slot_name)
      FROM pg_replication_slots AS s
     WHERE greatest(age(s.xmin), age(s.catalog_xmin)) > behind
$$;

-- The checks of the server. As in all examine_…(), a check has a row for each thing that it finds: none if
-- all is well, or one with the state ok and a text of its own. A new check needs a line in
-- the list of all checks, too.
CREATE FUNCTION @tidegate.examine_server(wanted text) RETURNS TABLE (state text, finding text, remedy text)
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- Settings with another value than a queue needs, and what changes each where it is set. `SET` comes
    -- first where the value would refuse the change.
    RETURN QUERY
    SELECT w.state, format('%s is %s%s', s.name, s.setting, w.effect),
           concat(CASE WHEN w.value <> 'on' THEN format(E'SET %s = %s;\n', s.name, w.value) END,
                  format('ALTER ' || CASE s.source WHEN 'database' THEN 'DATABASE %1$I' WHEN 'user' THEN 'ROLE %2$I'
                                                   WHEN 'database user' THEN 'ROLE %2$I IN DATABASE %1$I' ELSE 'SYSTEM' END || ' SET %3$s = %4$s;',
                         current_database(), current_user, s.name, w.value),
                  CASE WHEN w.value = 'on' THEN E'\nSELECT pg_reload_conf();' END)
      FROM (VALUES ('writable', 'default_transaction_read_only', 'off', 'problem', ': nothing can be published or finished'),
                   ('isolation', 'default_transaction_isolation', '''read committed''', 'warning',
                    ': drains and verbs begin their own transactions, but poll() and cleanups by SQL are refused'),
                   ('durability', 'fsync', 'on', 'problem', NULL), ('durability', 'full_page_writes', 'on', 'problem', NULL),
                   ('durability', 'synchronous_commit', 'on', 'problem', NULL), ('autovacuum', 'autovacuum', 'on', 'problem', NULL),
                   ('autovacuum', 'track_counts', 'on', 'problem', NULL)) AS w(name, setting, value, state, effect)
      JOIN pg_settings AS s ON s.name = w.setting
     WHERE w.name = wanted AND CASE w.value WHEN 'on' THEN s.setting = 'off' ELSE s.setting <> trim(w.value, '''') END
     ORDER BY s.name;
    IF wanted = 'writable' THEN
        RETURN QUERY SELECT 'problem', 'this server is a standby: let DATABASE_URL name the primary', NULL WHERE pg_is_in_recovery();
    ELSIF wanted = 'rights' THEN RETURN QUERY
        -- A function in such a schema can make other logins run it.
        SELECT 'warning', quote_ident(n.nspname), format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC;', n.nspname)
          FROM pg_namespace AS n
         WHERE has_schema_privilege('public', n.oid, 'CREATE')
           AND (n.nspname IN ('public', '@tidegate')
                -- Not current_schemas(), because this function has a path of its own.
                OR n.nspname IN (SELECT CASE trim(p, ' "') WHEN '$user' THEN current_user ELSE trim(p, ' "') END
                                   FROM pg_settings AS s, string_to_table(s.reset_val, ',') AS p WHERE s.name = 'search_path'))
         ORDER BY 2;
    ELSIF wanted = 'roles' THEN RETURN QUERY
        SELECT 'warning', format('%s (%s)', quote_ident(d.datname), string_agg(DISTINCT quote_ident(r.rolname), ', ')),
               format(E'GRANT CONNECT ON DATABASE %1$I TO each_login_of_this_queue;\nREVOKE CONNECT ON DATABASE %1$I FROM PUBLIC;', current_database())
          FROM pg_database AS own
          JOIN pg_shdepend AS here ON here.dbid = own.oid AND here.deptype = 'a' AND here.refclassid = 'pg_authid'::regclass
           AND here.classid = 'pg_namespace'::regclass AND here.objid = '@tidegate'::regnamespace
          JOIN pg_roles AS r ON r.oid = here.refobjid AND starts_with(r.rolname, '@tidegate' || '_')
          JOIN pg_shdepend AS there ON there.refobjid = r.oid AND there.refclassid = here.refclassid AND there.deptype = 'a'
          JOIN pg_database AS d ON d.oid = there.dbid AND d.oid <> own.oid
         WHERE own.datname = current_database() AND has_database_privilege('public', own.oid, 'CONNECT')
         GROUP BY d.datname ORDER BY d.datname;
    ELSIF wanted = 'autovacuum' THEN RETURN QUERY
        SELECT 'problem', format('%s is off for %s', given.option, c.oid::regclass), format('ALTER TABLE %s RESET (%s);', c.oid::regclass, given.option)
          FROM pg_class AS c
          LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid
         CROSS JOIN LATERAL (VALUES (c.reloptions, 'autovacuum_enabled'), (t.reloptions, 'toast.autovacuum_enabled')) AS given(options, option)
         WHERE c.relnamespace = '@tidegate'::regnamespace AND c.relkind = 'r'
           AND EXISTS (SELECT FROM unnest(given.options) AS o WHERE o ~* '^autovacuum_enabled=(off|f|n|0)')
         ORDER BY 2;
    ELSIF wanted = 'sessions' THEN RETURN QUERY
        -- A query is shown without its values.
        SELECT 'warning', format('session %s of %s %s for %s%s%s', s.pid, coalesce(s.usename, 'nobody'), s.what,
                                 @tidegate.time_in_words(statement_timestamp() - s.since), s.behind,
                                 ': ' || nullif(left(regexp_replace(regexp_replace(s.query, '''[^'']*''', '''…''', 'g'), '[[:space:]]+', ' ', 'g'), 100), '')),
               format('SELECT pg_terminate_backend(%s);', s.culprit)
          FROM (SELECT a.pid, a.usename, a.query, a.pid AS culprit, '' AS behind, 'has been ' || a.state AS what, a.state_change AS since
                  FROM pg_stat_activity AS a
                 WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%' AND a.pid <> pg_backend_pid()
                UNION ALL
                SELECT a.pid, a.usename, a.query, coalesce((pg_blocking_pids(a.pid))[1], a.pid),
                       ' behind session ' || (pg_blocking_pids(a.pid))[1], 'has waited for a lock', l.since
                  FROM (SELECT k.pid, min(k.waitstart) AS since FROM pg_locks AS k WHERE NOT k.granted GROUP BY k.pid) AS l
                  JOIN pg_stat_activity AS a ON a.pid = l.pid AND a.datname = current_database()) AS s
         WHERE s.since <= statement_timestamp() - interval '1 minute'
         ORDER BY s.since LIMIT 10;
    ELSIF wanted = 'vacuum horizon' THEN RETURN QUERY
        SELECT 'warning', 'dead rows cannot be removed: ' || string_agg(h.finding, '; '), string_agg(h.remedy, E'\n')
          FROM @tidegate.vacuum_holders() AS h HAVING count(*) > 0
        UNION ALL
        SELECT 'warning', 'this role does not see what other roles'' sessions do', format('GRANT pg_monitor TO %I;', current_user)
         WHERE NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE');
    END IF;
END $$;

-- The checks of what is stored, and of where.
CREATE FUNCTION @tidegate.examine_store(wanted text) RETURNS TABLE (state text, finding text, remedy text)
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF wanted = 'place' THEN RETURN QUERY
        SELECT 'problem', 'this queue was copied here; its leases and slots are those of workers elsewhere, and hold up events', 'tidegate migrate'
         WHERE @tidegate.is_copy();
    ELSIF wanted = 'ids' THEN RETURN QUERY
        -- A copy of a database may contain the events, but not the current value of the sequence.
        SELECT 'problem', format('new events get ids that older events already have: %s was drawn last, and %s is stored', s.last_value, stored.highest),
               'tidegate migrate'
          FROM @tidegate.event_queue_id_seq AS s,
               (SELECT greatest((SELECT max(q.id) FROM @tidegate.event_queue AS q), (SELECT max(l.id) FROM @tidegate.event_log AS l)) AS highest) AS stored
         WHERE s.last_value < stored.highest;
    ELSIF wanted = 'log partitions' THEN RETURN QUERY
        -- For each retention, the days from now to two days ahead: a new day may begin between two checks,
        -- and a daily cleanup may be late once.
        SELECT DISTINCT 'warning', to_char(needed.day, 'YYYYMMDD'), 'tidegate cleanup'
          FROM (SELECT ((clock_timestamp() AT TIME ZONE 'UTC') + r.retention)::date + ahead.days AS day
                  FROM @tidegate.event_kind AS k
                 CROSS JOIN LATERAL (VALUES (k.retention_completed), (k.retention_failed)) AS r(retention)
                 CROSS JOIN generate_series(0, 2) AS ahead(days)) AS needed
         WHERE NOT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = '@tidegate.event_log'::regclass
                              AND i.inhrelid = to_regclass('@tidegate.event_log_' || to_char(needed.day, 'YYYYMMDD')))
         ORDER BY 2;
    ELSIF wanted = 'log expiry' THEN RETURN QUERY
        -- A daily cleanup has failed twice, and is not just late.
        SELECT 'warning', c.relname::text, 'tidegate cleanup'
          FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
         WHERE i.inhparent = '@tidegate.event_log'::regclass AND c.relname ~ '^event_log_[0-9]{8}$'
           AND substr(c.relname, 11) < to_char((clock_timestamp() AT TIME ZONE 'UTC')::date - 2, 'YYYYMMDD')
         ORDER BY 2;
    ELSIF wanted = 'log default' THEN RETURN QUERY
        -- A number above 100,000 makes no difference to what must be done.
        SELECT 'warning', format('%s rows%s in the default partition, where each is deleted by itself when it expires', count(*),
                                 CASE WHEN count(*) = 100000 THEN ' or more' END), 'tidegate cleanup'
          FROM (SELECT FROM @tidegate.event_log_default LIMIT 100000) AS stray HAVING count(*) > 0;
    ELSIF wanted = 'locks' THEN RETURN QUERY
        -- Users, dashboards and scrapes: five may read at once. A statement that finds no room for one more
        -- lock fails, even a publish or a drain. The remedy makes twice the room, because the log will have
        -- more days later.
        SELECT 'warning', format('a query of the whole log takes %s locks, and the server has room for %s: when 5 run at once, publishes and drains '
                                 'fail with "out of shared memory"', n.locks, n.each * n.sessions),
               format('ALTER SYSTEM SET max_locks_per_transaction = %s; -- and restart the server', n.locks * 10 / n.sessions + 1)
          FROM (SELECT (SELECT count(*) + sum((SELECT count(*) FROM pg_index AS i WHERE i.indrelid = t.relid))
                          FROM pg_partition_tree('@tidegate.event_log') AS t)::bigint AS locks,
                       current_setting('max_locks_per_transaction')::bigint AS each,
                       current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint AS sessions) AS n
         WHERE n.locks * 5 > n.each * n.sessions;
    ELSIF wanted = 'bloat' THEN RETURN QUERY
        -- Ten times the number at which autovacuum should begin; then it does not keep up. Or two pages for
        -- each row, so that a scan reads mostly empty space: rows are at most two kibibytes, because Postgres
        -- stores longer values elsewhere, and pages are filled to one half. A small table is read fast.
        SELECT v.state, format('%s; last autovacuum: %s', v.finding, coalesce(@tidegate.in_words(s.last_autovacuum), 'never')), v.remedy
          FROM pg_stat_all_tables AS s, pg_relation_size(s.relid) AS bytes,
               LATERAL (VALUES
                   (s.n_dead_tup > 200000 AND s.n_dead_tup > s.n_live_tup, 'warning',
                    format('%s dead rows in event_queue beside %s live ones', s.n_dead_tup, s.n_live_tup), 'VACUUM (VERBOSE) @tidegate.event_queue;'),
                   (bytes > 64 * 1024 * 1024 AND bytes / greatest(s.n_live_tup, 1) > 16 * 1024, 'warning',
                    format('event_queue has %s MiB for %s live rows; the repair locks the queue for a moment', bytes / 1024 / 1024, s.n_live_tup),
                    'VACUUM FULL @tidegate.event_queue;'),
                   (true, 'ok', format('%s live and %s dead rows in %s MiB', s.n_live_tup, s.n_dead_tup, bytes / 1024 / 1024), NULL)) AS v(holds, state, finding, remedy)
         WHERE s.relid = '@tidegate.event_queue'::regclass AND v.holds LIMIT 1;
    END IF;
END $$;

-- The checks of the work in progress.
CREATE FUNCTION @tidegate.examine_work(wanted text, kinds text[]) RETURNS TABLE (state text, finding text, remedy text)
    LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    IF wanted = 'leases' THEN RETURN QUERY
        -- The next drain takes an event whose lease has run out, and drains are woken about every minute. No
        -- Lambda function runs longer than fifteen minutes, so none works longer on what it has leased.
        WITH leased AS MATERIALIZED (
            SELECT q.id, l.taken_at, l.expires_at
              FROM @tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
              JOIN @tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r))
        SELECT v.state, v.finding, v.remedy
          FROM (SELECT count(*) FILTER (WHERE expires_at <= statement_timestamp() - interval '5 minutes') AS overdue,
                       count(*) FILTER (WHERE expires_at > statement_timestamp()) AS running,
                       statement_timestamp() - min(taken_at) FILTER (WHERE expires_at > statement_timestamp()) AS longest,
                       (SELECT id FROM leased WHERE expires_at > statement_timestamp() ORDER BY taken_at, id LIMIT 1) AS id FROM leased) AS n,
               LATERAL (VALUES
                   (n.overdue > 0, 'problem', format('%s leases ran out more than 5m ago and no drain has taken their events since', n.overdue), 'tidegate drain'),
                   (n.longest > interval '15 minutes', 'warning',
                    format('event %s has been worked on for %s, its lease renewed', n.id, @tidegate.time_in_words(n.longest)), 'tidegate show ' || n.id),
                   (true, 'ok', format('%s running%s', n.running, ', the longest for ' || @tidegate.time_in_words(n.longest)), NULL)) AS v(holds, state, finding, remedy)
         WHERE v.holds LIMIT 1;
    ELSIF wanted = 'order of groups' THEN RETURN QUERY
        -- States that no statement of the queue can produce (see V0003__lease.sql). If there are any, its
        -- tables were changed by hand, or there is a bug. Up to five of each.
        SELECT 'problem', format('event %s of group %s', d.id, to_json(d.group_key)),
               format('tidegate requeue --id %s --reason disorder', string_agg(d.id::text, ' ') OVER ())
          FROM (SELECT u.id, u.group_key FROM @tidegate.unordered_leases(5) AS u
                UNION ALL
                SELECT m.id, m.group_key FROM @tidegate.unmarked_events(5) AS m) AS d;
    ELSIF wanted = 'drains' THEN RETURN QUERY
        -- Three and ten wake-ups of a drain at one a minute. If events are ready and none ends for so long,
        -- nothing handles them.
        SELECT v.state, format('event %s has been ready for %s%s', o.id, @tidegate.time_in_words(o.ready_for), v.finding), v.remedy
          FROM @tidegate.oldest_ready(coalesce(kinds, ARRAY(SELECT k.kind FROM @tidegate.event_kind AS k WHERE k.targets IS DISTINCT FROM '{}'))) AS o,
               LATERAL (VALUES
                   (o.ready_for >= interval '3 minutes'
                    AND NOT EXISTS (SELECT FROM @tidegate.event_log AS l WHERE l.finished_at > statement_timestamp() - interval '3 minutes'),
                    'problem', ', and nothing has ended in 3m: no drain runs, or none gets on', 'tidegate drain'),
                   (o.ready_for >= interval '10 minutes', 'warning', ': drains run, but not long or often enough', 'tidegate drain --budget 5m')) AS v(holds, state, finding, remedy)
         WHERE v.holds LIMIT 1;
    ELSIF wanted = 'failures' THEN RETURN QUERY
        -- A share of few dead letters is no share of anything.
        SELECT v.state, format('of %s events that ended in the last hour, %s failed and %s were rejected', n.ended, n.failed, n.dead - n.failed),
               CASE WHEN v.state <> 'ok' THEN 'tidegate failures --since 1h' END
          FROM (SELECT coalesce(sum(m.events), 0) AS ended, coalesce(sum(m.events) FILTER (WHERE m.status = 'FAILED'), 0) AS failed,
                       coalesce(sum(m.events) FILTER (WHERE m.status <> 'COMPLETED'), 0) AS dead
                  FROM @tidegate.ended(statement_timestamp() - interval '1 hour') AS m) AS n,
               LATERAL (SELECT CASE WHEN n.failed >= greatest(10, n.ended * 0.25) THEN 'problem'
                                    WHEN n.dead >= greatest(10, n.ended * 0.05) THEN 'warning' ELSE 'ok' END AS state) AS v;
    ELSIF wanted = 'pulled kinds' THEN RETURN QUERY
        -- A poll leaves no trace beyond its lease, so one that takes nothing is not seen.
        SELECT 'warning', format('event %s has been ready for %s: nobody polls its kind, or not often enough', o.id, @tidegate.time_in_words(o.ready_for)),
               'tidegate show ' || o.id
          FROM @tidegate.oldest_ready(ARRAY(SELECT k.kind FROM @tidegate.event_kind AS k WHERE k.targets = '{}')) AS o
         WHERE o.ready_for >= interval '1 hour';
    ELSIF wanted = 'deadlines' THEN RETURN QUERY
        SELECT 'warning', format('%s events will pass their deadline before they are started: %s; the first at %s', sum(e.events),
                                 string_agg(format('%s (%s)', e.kind, e.events), ', '), @tidegate.in_words(min(e.first_deadline))),
               'tidegate drain --budget 5m'
          FROM @tidegate.expiring() AS e HAVING count(*) > 0;
    ELSIF wanted = 'groups' THEN RETURN QUERY
        -- With the default backoff of at most ten minutes and five attempts, a first event has ended within
        -- an hour.
        SELECT 'warning', format('%s groups wait behind a first event older than 1h, such as group %s', count(*),
                                 to_json((array_agg(b.group_key ORDER BY b.head_id))[1])), 'tidegate blocked-groups'
          FROM @tidegate.blocked() AS b
         WHERE b.created_at <= statement_timestamp() - interval '1 hour' HAVING count(*) > 0;
    ELSIF wanted = 'schedules' THEN RETURN QUERY
        -- Late by as many wake-ups of a drain as fit into fifteen minutes.
        SELECT 'warning', s.name || ': ' ||
               CASE WHEN s.problem IS NOT NULL THEN s.problem
                    WHEN k.kind IS NULL THEN 'its kind ' || s.kind || ' is not registered'
                    WHEN s.last_at > statement_timestamp() THEN 'its last slot is in the future: the clock was set back'
                    ELSE 'its slot has been due since ' || @tidegate.in_words(s.next_at) END,
               CASE WHEN s.problem IS NULL AND k.kind IS NOT NULL AND coalesce(s.last_at <= statement_timestamp(), true) THEN 'tidegate drain'
                    ELSE format('tidegate schedule %s --resume --reason mended', s.name) END
          FROM @tidegate.schedule AS s LEFT JOIN @tidegate.event_kind AS k USING (kind)
         WHERE NOT s.paused AND NOT coalesce(k.paused, false)
           AND (s.problem IS NOT NULL OR k.kind IS NULL OR s.last_at > statement_timestamp()
                OR isfinite(s.next_at) AND s.next_at <= statement_timestamp() - interval '15 minutes')
         ORDER BY s.name LIMIT 10;
    END IF;
END $$;

-- The checks of kinds, and of the services that they need.
CREATE FUNCTION @tidegate.examine_kinds(wanted text, kinds text[]) RETURNS TABLE (state text, finding text, remedy text)
    LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    IF wanted = 'kinds' THEN RETURN QUERY
        SELECT 'problem', 'this queue belongs to another program, with the kinds '
                          || array_to_string((array_agg(k.kind ORDER BY k.kind))[:5] || CASE WHEN count(*) > 5 THEN '…' END, ', '),
               'run doctor with that program; `migrate --share` lets both use the queue'
          FROM @tidegate.event_kind AS k HAVING NOT bool_or(k.kind = ANY (kinds)) AND cardinality(kinds) > 0;
        IF FOUND THEN
            RETURN;
        END IF;
        RETURN QUERY
        SELECT 'problem', 'this program''s kinds are not registered: ' || string_agg(u.kind, ', ' ORDER BY u.kind), 'tidegate migrate'
          FROM unnest(kinds) AS u(kind) WHERE NOT EXISTS (SELECT FROM @tidegate.event_kind AS k WHERE k.kind = u.kind) HAVING count(*) > 0;
        -- Events of a registered kind that a program does not know wait for the program that does. Those that
        -- are only pulled belong to no program.
        RETURN QUERY
        SELECT CASE WHEN s.is_known THEN 'warning' ELSE 'problem' END,
               CASE WHEN s.is_known THEN 'events of kinds that only another program handles: '
                    ELSE 'the next drain fails events of kinds that nobody registered: ' END || string_agg(format('%s (%s)', s.kind, s.events), ', ' ORDER BY s.kind),
               CASE WHEN s.is_known THEN 'tidegate list --kind ' || min(s.kind)
                    ELSE string_agg(format('INSERT INTO @tidegate.event_kind (kind) VALUES (%L);', s.kind), E'\n' ORDER BY s.kind) END
          FROM (SELECT live.kind, live.events, k.kind IS NOT NULL AS is_known
                  FROM (SELECT q.kind, count(*) AS events FROM (SELECT e.kind FROM @tidegate.event_queue AS e LIMIT 100000) AS q GROUP BY q.kind) AS live
                  LEFT JOIN @tidegate.event_kind AS k USING (kind)
                 WHERE k.kind IS NULL OR live.kind <> ALL (kinds) AND k.targets IS DISTINCT FROM '{}') AS s
         GROUP BY s.is_known ORDER BY 1;
        RETURN QUERY
        SELECT 'warning', 'target ' || t.target || ' has had no event since it was declared', 'tidegate-relay try FILE ' || coalesce(min(k.kind), 'KIND') || ' PAYLOAD'
          FROM @tidegate.target AS t LEFT JOIN @tidegate.event_kind AS k ON t.target = ANY (k.targets)
         WHERE t.since <= statement_timestamp() - interval '1 day'
         GROUP BY t.target
        HAVING NOT EXISTS (SELECT FROM @tidegate.minute_stats AS m WHERE m.kind = ANY (array_agg(k.kind)) AND m.minute >= min(t.since))
         ORDER BY t.target;
    ELSIF wanted = 'paused kinds' THEN RETURN QUERY
        SELECT 'warning', format('%s (%s)', d.kind, d.events), 'tidegate resume ' || d.kind
          FROM (SELECT q.kind, count(*) AS events FROM (SELECT e.kind FROM @tidegate.event_queue AS e ORDER BY e.id LIMIT 100000) AS q
                 WHERE q.kind IN (SELECT k.kind FROM @tidegate.event_kind AS k WHERE k.paused) GROUP BY q.kind) AS d
         ORDER BY d.kind;
    ELSIF wanted = 'services' THEN RETURN QUERY
        -- A service that is down for two hours needs an operator, and so does one that refuses our
        -- credentials.
        SELECT CASE WHEN s.state <> 'paused' AND (s.since < clock_timestamp() - interval '2 hours' OR s.last_error = 'credentials') THEN 'problem' ELSE 'warning' END,
               CASE WHEN s.state = 'paused' THEN format('%s has been paused for %s (%s events wait)', s.service, d.lasted, s.waiting)
                    ELSE format('%s has not answered for %s (%s; %s events wait%s)', s.service, d.lasted, s.last_error, s.waiting,
                                ', the first ends FAILED in ' || @tidegate.time_in_words(first.ends_in)) END,
               format('tidegate service %s --resume --reason recovered', s.service)
          FROM @tidegate.services AS s, @tidegate.time_in_words(clock_timestamp() - s.since) AS d(lasted),
               LATERAL (SELECT min(greatest(s.since, coalesce(q.waits_since, q.available_at)) - clock_timestamp() + @tidegate.patience(k.policy)) AS ends_in
                          FROM (SELECT e.kind, e.waits_since, e.available_at FROM @tidegate.event_queue AS e ORDER BY e.id LIMIT 10000) AS q
                          JOIN @tidegate.event_kind AS k USING (kind)
                         WHERE s.state <> 'paused' AND q.kind = ANY (s.kinds) AND NOT k.paused) AS first
         WHERE s.state <> 'closed'
         ORDER BY s.since, s.service;
    ELSIF wanted = 'limits of pulls' THEN RETURN QUERY
        -- Of kinds that are only pulled, or that a program holds events of.
        SELECT 'warning', k.kind, 'tidegate services'
          FROM @tidegate.event_kind AS k
         WHERE EXISTS (SELECT FROM @tidegate.service AS s WHERE k.kind = ANY (s.kinds) AND num_nonnulls(s.max_running, s.per_second) > 0)
           AND (k.targets = '{}' OR k.kind IN (
               SELECT q.kind FROM @tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
                 JOIN @tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
                WHERE l.token = l.worker AND NOT l.ended))
         ORDER BY k.kind;
    END IF;
END $$;

-- The checks in the order of the report, first the basis: what each says if it finds nothing, and how it
-- begins if it does.
CREATE FUNCTION @tidegate.doctor_checks() RETURNS TABLE (name text, well text, wrong text)
    LANGUAGE sql IMMUTABLE AS $$
    VALUES ('writable', 'transactions may write', ''),
           ('isolation', 'transactions see what was committed before each of their statements', ''),
           ('durability', 'what was committed survives a crash of the server', 'a crash of the server loses events that were acknowledged: '),
           ('rights', 'nobody makes things in a schema of others', 'every login may make functions, which others then run as their own, in '),
           ('roles', 'nobody from another database of this server has them here',
            'who has one of these roles for another database may connect here, and has it here, too: '),
           ('place', 'the queue is where it was migrated', ''),
           ('ids', 'no event has an id above the last one drawn', ''),
           ('kinds', 'all are registered, and no event has another', ''),
           ('log partitions', 'there for today''s events and those of the next 2 days',
            'rows go to the default partition, which cannot be dropped, because there is none for those that expire on '),
           ('log expiry', 'no partition is left that should be gone', 'all rows expired more than 2 days ago, so no cleanup has run since: '),
           ('log default', 'no row is in the default partition', ''),
           ('locks', 'there is room for five queries of the whole log at once', ''),
           ('leases', '', ''),
           ('order of groups', 'every group is leased in its order', 'out of the order of its group: '),
           ('drains', 'no event has been ready for 10m', ''),
           ('failures', '', ''),
           ('pulled kinds', 'no event has been ready for 1h', ''),
           ('deadlines', 'no waiting event will pass its deadline within 5m or before its turn', ''),
           ('groups', 'none has been blocked for 1h', ''),
           ('paused kinds', 'none has events waiting', 'events wait: '),
           ('services', 'all that were called have answered', ''),
           ('limits of pulls', 'none has a limit', 'programs poll for kinds with limits, which only drains keep: '),
           ('schedules', 'none is stopped or late', ''),
           ('bloat', 'the server collects no statistics', ''),
           ('autovacuum', 'on, for every table of the queue', ''),
           ('sessions', 'none has been idle in a transaction or waited for a lock for 1m', ''),
           ('vacuum horizon', 'nothing keeps vacuum from removing dead rows', '')
$$;

-- A check that fails, for example because a permission is missing, says so and stops no other one. None waits
-- for a lock for long.
CREATE FUNCTION @tidegate.doctor(kinds text[] DEFAULT NULL, wanted text DEFAULT NULL)
    RETURNS TABLE (name text, state text, finding text, remedy text)
    LANGUAGE plpgsql STABLE SET jit = off SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    of_check record;
BEGIN
    FOR of_check IN SELECT * FROM @tidegate.doctor_checks() AS c WHERE c.name = coalesce(wanted, c.name) LOOP
        BEGIN
            RETURN QUERY
            SELECT of_check.name, coalesce(min(f.state), 'ok'), coalesce(of_check.wrong || string_agg(f.finding, '; '), of_check.well),
                   string_agg(DISTINCT f.remedy, E'\n')
              FROM (SELECT * FROM @tidegate.examine_server(of_check.name)
                    UNION ALL SELECT * FROM @tidegate.examine_store(of_check.name)
                    UNION ALL SELECT * FROM @tidegate.examine_work(of_check.name, kinds)
                    UNION ALL SELECT * FROM @tidegate.examine_kinds(of_check.name, kinds)) AS f;
        EXCEPTION WHEN OTHERS THEN
            RETURN QUERY SELECT of_check.name, 'warning', 'could not be checked: ' || SQLERRM, NULL::text;
        END;
    END LOOP;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'wanted: must be the name of a check, got %', wanted USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
COMMENT ON FUNCTION @tidegate.doctor IS
    'Examines the queue: for each check its state (ok, warning or problem), what it found, and what to run. kinds: those that a '
    'program handles; left out, those that any program has registered. wanted: the name of one check; left out, all.';

COMMENT ON FUNCTION @tidegate.time_in_words IS 'A duration for people. span: the duration.';
COMMENT ON FUNCTION @tidegate.in_words IS 'A time for people, in UTC. at: the time.';
COMMENT ON FUNCTION @tidegate.oldest_ready IS 'The oldest event that a drain could lease now. kinds: those that it handles.';
COMMENT ON FUNCTION @tidegate.vacuum_holders IS
    'What keeps vacuum from its work. open_for: transactions that have been open for so long. behind: replication slots that are '
    'so many transactions behind.';
COMMENT ON FUNCTION @tidegate.examine_server IS 'Checks of doctor(). wanted: the name of the check.';
COMMENT ON FUNCTION @tidegate.examine_store IS 'Checks of doctor(). wanted: the name of the check.';
COMMENT ON FUNCTION @tidegate.examine_work IS 'Checks of doctor(). wanted: the name of the check. kinds: as of doctor().';
COMMENT ON FUNCTION @tidegate.examine_kinds IS 'Checks of doctor(). wanted: the name of the check. kinds: as of doctor().';

-- What the roles may do here; see roles.sql. Each check has its caller's rights.
GRANT EXECUTE ON FUNCTION @tidegate.doctor, @tidegate.doctor_checks, @tidegate.examine_server, @tidegate.examine_store,
    @tidegate.examine_work, @tidegate.examine_kinds, @tidegate.vacuum_holders, @tidegate.oldest_ready,
    @tidegate.expiring, @tidegate.time_in_words, @tidegate.in_words TO @tidegate_drain, @tidegate_operate, @tidegate_read;

SELECT @tidegate.close_functions('@tidegate');
