-- Forgetting a person: the content of events about the person leaves the queue and the log. What happened,
-- when, and how it ended stays, for the figures and the audit.
--
-- A forgotten event keeps its id, kind, status, attempts, times and lineage, and the code, handler, attempt
-- and time of each error. Payload, result, progress, the texts of errors and the keys (group, deduplication,
-- correlation) are removed. The next vacuum removes what Postgres keeps in old row versions. Write-ahead logs
-- and backups keep theirs until they are deleted.

-- Errors without their messages.
CREATE FUNCTION @tidegate.wordless(errors jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_agg(e.entry - 'details' || '{"message": "forgotten"}' ORDER BY e.position), '[]')
      FROM jsonb_array_elements(wordless.errors) WITH ORDINALITY AS e(entry, position)
$$;

-- To find all events of a person, the caller asks for each partition, because an index on groups would cost
-- every finalize more than these searches cost. Each is a short statement with the locks of one table.
CREATE FUNCTION @tidegate.find_subject(partition text, groups text[], correlation_ids text[]) RETURNS SETOF bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
    IF find_subject.partition IS NULL THEN
        RETURN QUERY
        SELECT q.id FROM @tidegate.event_queue AS q WHERE q.group_key = ANY (find_subject.groups)
        UNION
        SELECT q.id FROM @tidegate.event_queue AS q WHERE q.correlation_id = ANY (find_subject.correlation_ids);
    -- Does not use log_partitions(), because each call of it returns all partitions.
    ELSIF EXISTS (SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                   WHERE i.inhparent = '@tidegate.event_log'::regclass AND c.relname = find_subject.partition
                     AND c.relnamespace = '@tidegate'::regnamespace) THEN
        RETURN QUERY EXECUTE format(
            'SELECT l.id FROM ONLY @tidegate.%I AS l WHERE l.group_key = ANY ($1) OR l.correlation_id = ANY ($2)',
            find_subject.partition) USING find_subject.groups, find_subject.correlation_ids;
    END IF;
END $$;
COMMENT ON FUNCTION @tidegate.find_subject IS
    'Ids of events about a person, in the queue or in one partition of the log. partition: its name; null for the queue. '
    'groups: group keys. correlation_ids: correlation ids.';

CREATE FUNCTION @tidegate.offspring(ids bigint[], after bigint, most integer) RETURNS SETOF bigint
    LANGUAGE sql STABLE AS $$
    SELECT c.id
      FROM (SELECT q.id FROM @tidegate.event_queue AS q WHERE q.parent_id = ANY (offspring.ids)
            UNION SELECT q.id FROM @tidegate.event_queue AS q WHERE q.replay_of = ANY (offspring.ids)
            UNION SELECT l.id FROM @tidegate.event_log AS l WHERE l.parent_id = ANY (offspring.ids) AND l.forgotten_at IS NULL
            UNION SELECT l.id FROM @tidegate.event_log AS l WHERE l.replay_of = ANY (offspring.ids) AND l.forgotten_at IS NULL) AS c
     WHERE c.id > offspring.after AND c.id <> ALL (offspring.ids)
     ORDER BY c.id LIMIT offspring.most
$$;
COMMENT ON FUNCTION @tidegate.offspring IS
    'Ids of follow-ups and replays of these events that are not forgotten yet. ids: the events. after: only ids above this. '
    'most: the most ids.';

-- Removes keys from the arguments of earlier actions: these groups and correlation ids, and the keys of
-- these events, wherever an action of an operator has named them. Each key is one search in the index of
-- such entries, however long the audit is.
CREATE FUNCTION @tidegate.forget_arguments(ids bigint[], groups text[], correlation_ids text[]) RETURNS void
    LANGUAGE sql SET enable_seqscan = off AS $$
    UPDATE @tidegate.audit AS a SET filter = @tidegate.without_keys(a.filter)
      FROM (SELECT jsonb_build_object('group_key', g) AS filter FROM unnest(forget_arguments.groups) AS g
            UNION
            SELECT jsonb_build_object('correlation_id', c) FROM unnest(forget_arguments.correlation_ids) AS c
            UNION
            SELECT k.filter
              FROM @tidegate.event_log AS l
             CROSS JOIN LATERAL (VALUES (CASE WHEN l.group_key IS NOT NULL THEN jsonb_build_object('group_key', l.group_key) END),
                                        (CASE WHEN l.correlation_id IS NOT NULL
                                              THEN jsonb_build_object('correlation_id', l.correlation_id) END),
                                        (CASE WHEN l.dedup_key IS NOT NULL
                                              THEN jsonb_build_object('kind', l.kind, 'dedup_key', l.dedup_key) END)) AS k(filter)
             WHERE l.id = ANY (forget_arguments.ids) AND k.filter IS NOT NULL) AS named
     WHERE a.filter ?| ARRAY['group_key', 'dedup_key', 'correlation_id'] AND a.filter @> named.filter
$$;

-- Forgets the content of these events, at most 1,000 of them. An empty list is also recorded in the audit.
-- Live events are first cancelled, even if a worker holds them. Descendants must be forgotten before, because
-- they are found through these events. These events in turn are found by their keys. `offspring` returns the
-- first 1,000 descendants that appeared since.
--
-- A handler that is working on a cancelled event (`in_hand`) continues. It cannot write anything about it to
-- the queue, but its changes to other tables are its own. The audit stores the ids, but not the person they
-- were about: the keys of these events leave it, and so do `groups` and `correlation_ids`, whose events may
-- have left the log before.
CREATE FUNCTION @tidegate.forget(ids bigint[], reason text, actor text DEFAULT NULL, dry_run boolean DEFAULT false,
                                groups text[] DEFAULT '{}', correlation_ids text[] DEFAULT '{}') RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
#variable_conflict use_column
DECLARE
    live bigint[];
    held bigint[];
    missed bigint[] := '{}';
    logged bigint[];
    before bigint[];
    further bigint[];
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.refuse('ids: must be at most 1000 numbers, got ' || coalesce(cardinality(ids)::text, 'NULL'))
      WHERE coalesce(cardinality(ids), -1) NOT BETWEEN 0 AND 1000 OR array_position(ids, NULL) IS NOT NULL;
    IF NOT coalesce(forget.dry_run, false) THEN
        -- A replay would copy the payload, and a cleanup step would wait for these rows.
        PERFORM @tidegate.one_at_a_time();
    END IF;
    IF coalesce(forget.dry_run, false) THEN
        live := ARRAY(SELECT q.id FROM @tidegate.event_queue AS q WHERE q.id = ANY (forget.ids) ORDER BY q.id);
        held := ARRAY(SELECT u.id FROM unnest(live) AS u(id) WHERE EXISTS (
                          SELECT FROM @tidegate.lease AS l WHERE l.ids @> u.id AND u.id <= l.started_to));
    ELSE
        SELECT e.ended, e.begun, e.missed INTO live, held, missed
          FROM @tidegate.end_live(forget.ids, 'cancelled', 'forgotten') AS e;
    END IF;
    -- A separate statement, so that it sees events that just ended, whether we or their workers ended them.
    SELECT coalesce(array_agg(l.id ORDER BY l.id) FILTER (WHERE l.forgotten_at IS NULL), '{}'),
           coalesce(array_agg(l.id ORDER BY l.id) FILTER (WHERE l.forgotten_at IS NOT NULL), '{}')
      INTO logged, before FROM @tidegate.event_log AS l WHERE l.id = ANY (forget.ids);
    -- Events that were being leased at this moment must be passed again, like descendants that appeared
    -- since.
    further := missed || ARRAY(SELECT o FROM @tidegate.offspring(forget.ids, 0, 1000) AS o);
    IF NOT coalesce(forget.dry_run, false) THEN
        PERFORM @tidegate.forget_arguments(logged, groups, correlation_ids);
        DELETE FROM @tidegate.note AS n WHERE n.event_id = ANY (forget.ids);
        UPDATE @tidegate.event_log AS l
           SET payload = NULL, result = NULL, progress = NULL, errors = @tidegate.wordless(l.errors), group_key = NULL,
               dedup_key = NULL, correlation_id = NULL, forgotten_at = clock_timestamp()
         WHERE l.id = ANY (logged);
        PERFORM @tidegate.record_action('forget', actor, NULL, logged, reason);
    END IF;
    RETURN jsonb_build_object(
        'cancelled', cardinality(live), 'in_hand', cardinality(held),
        'forgotten', cardinality(ARRAY(SELECT unnest(logged) UNION SELECT unnest(live))),
        'before', cardinality(before),
        'unknown', (SELECT count(DISTINCT u.id) FROM unnest(forget.ids) AS u(id)
                     WHERE u.id <> ALL (live) AND u.id <> ALL (logged) AND u.id <> ALL (before)
                       AND u.id <> ALL (missed)),
        'offspring', further);
END $$;
COMMENT ON FUNCTION @tidegate.forget IS
    'Removes the content of events about a person; live events are cancelled first. ids: at most 1000 events. reason: the '
    'reason, required. actor: the operator''s name. dry_run: true reports what would be done and changes nothing. groups, '
    'correlation_ids: further keys that leave the audit. Returns a '
    'report; its offspring are follow-ups and replays of these events that are not forgotten yet.';

-- What a program's own tables hold about people. The program declares functions of its own that remove it.
-- Only forget_subject() and cleanup_step() call them, with the owner's rights: whoever may forget needs no
-- right on the tables, nobody chooses what has expired, and each removal is in the audit.
CREATE TABLE @tidegate.subject (
    subject text PRIMARY KEY,
    forget  text NOT NULL
);
COMMENT ON TABLE @tidegate.subject IS 'Whom forget_subject() can forget in the tables of programs. Set by declare_subject().';
COMMENT ON COLUMN @tidegate.subject.subject IS 'The kind of person or thing, such as customer.';
COMMENT ON COLUMN @tidegate.subject.forget IS 'The function that removes its data.';

CREATE TABLE @tidegate.records (
    expire text     PRIMARY KEY,
    kept   interval NOT NULL
);
COMMENT ON TABLE @tidegate.records IS 'How long programs keep rows of their own tables. Set by declare_retention().';
COMMENT ON COLUMN @tidegate.records.expire IS 'The function that removes older rows.';
COMMENT ON COLUMN @tidegate.records.kept IS 'How long they are kept, a day or more.';

-- What `tidegate migrate` and migrations of programs call; as the owner alone.
CREATE FUNCTION @tidegate.declare_subject(subject text, forget text) RETURNS void
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM @tidegate.refuse(format('forget: must be a function (id text, dry_run boolean), got %s', coalesce(declare_subject.forget, 'NULL')))
      WHERE to_regprocedure(declare_subject.forget || '(text, boolean)') IS NULL;
    INSERT INTO @tidegate.subject AS s VALUES (declare_subject.subject, declare_subject.forget) ON CONFLICT DO NOTHING;
    -- Another program's data must not be left out from now on.
    PERFORM @tidegate.refuse(format('subject: must be a name that is not taken, got %s, which %s forgets', s.subject, s.forget))
       FROM @tidegate.subject AS s WHERE s.subject = declare_subject.subject AND s.forget <> declare_subject.forget;
END $$;
COMMENT ON FUNCTION @tidegate.declare_subject IS
    'Declares how a program''s tables forget somebody. subject: such as customer. forget: the name of a function (id text, '
    'dry_run boolean) that removes or counts the data and returns an object: tables, the rows by table; groups and '
    'correlation_ids, of its events.';

CREATE FUNCTION @tidegate.declare_retention(expire text, kept interval) RETURNS void
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM @tidegate.refuse(CASE
        WHEN to_regprocedure(declare_retention.expire || '(timestamptz, integer, boolean)') IS NULL
            THEN format('expire: must be a function (until timestamptz, most integer, dry_run boolean), got %s',
                        coalesce(declare_retention.expire, 'NULL'))
        WHEN declare_retention.kept NOT BETWEEN '1 day' AND interval '36600 days'
            THEN 'kept: must be 1 to 36600 days, got ' || declare_retention.kept END);
    DELETE FROM @tidegate.records AS r WHERE r.expire = declare_retention.expire AND declare_retention.kept IS NULL;
    INSERT INTO @tidegate.records AS r
    SELECT declare_retention.expire, declare_retention.kept WHERE declare_retention.kept IS NOT NULL
        ON CONFLICT (expire) DO UPDATE SET kept = excluded.kept;
END $$;
COMMENT ON FUNCTION @tidegate.declare_retention IS
    'Declares how long a program keeps rows. expire: the name of a function (until timestamptz, most integer, dry_run boolean) '
    'that removes about most older rows, or counts all, and returns an object of rows by table; cleanups repeat it. kept: 1 to '
    '36600 days; null: for ever.';

-- Calls the program's function for a step of a cleanup.
CREATE FUNCTION @tidegate.expire_records(expire text, now timestamptz, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    removed jsonb;
BEGIN
    EXECUTE format('SELECT %s($1, $2, $3)', expire) INTO removed
      USING expire_records.now - (SELECT r.kept FROM @tidegate.records AS r WHERE r.expire = expire_records.expire), most, dry_run;
    RETURN removed;
END $$;

CREATE FUNCTION @tidegate.forget_subject(subject text, id text, reason text, actor text DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    known CONSTANT text := (SELECT string_agg(s.subject, ', ' ORDER BY s.subject) FROM @tidegate.subject AS s);
    with_function CONSTANT text := (SELECT s.forget FROM @tidegate.subject AS s WHERE s.subject = forget_subject.subject);
    removed jsonb;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.refuse(CASE
        WHEN known IS NULL THEN 'subject: must not be given, because no program keeps anything of anybody in tables'
        WHEN with_function IS NULL THEN format('subject: must be one of %s, got %s', known, coalesce(to_json(subject)::text, 'NULL'))
        WHEN coalesce(id, '') = '' THEN 'subject: must have an id' END);
    EXECUTE format('SELECT %s($1, $2)', with_function) INTO removed USING id, coalesce(dry_run, false);
    PERFORM @tidegate.record_change('forget', actor, jsonb_build_object('subject', subject, 'tables', removed->'tables'),
                (SELECT sum(t.rows::bigint) FROM jsonb_each_text(removed->'tables') AS t(name, rows))::bigint, reason)
      WHERE NOT coalesce(dry_run, false);
    RETURN removed;
END $$;
COMMENT ON FUNCTION @tidegate.forget_subject IS
    'Removes what programs'' tables hold about somebody. First forget() the events of the groups and correlation_ids that a dry '
    'run returns. subject: one of the table subject. id: who. reason: required, without the name. actor: the operator''s name. '
    'dry_run: true changes nothing. Returns an object with also tables, the rows by table.';

-- What the roles may do here; see roles.sql.
GRANT EXECUTE ON FUNCTION @tidegate.forget, @tidegate.forget_subject, @tidegate.find_subject, @tidegate.offspring TO @tidegate_operate;
GRANT SELECT ON @tidegate.subject, @tidegate.records TO @tidegate_operate, @tidegate_read;
