-- A column of a view or table that another one has, too, is described there, unless it has a description
-- here.
DO $$
DECLARE
    same record;
BEGIN
    FOR same IN
        SELECT a.attrelid::regclass AS object, a.attname AS name, col_description(b.attrelid, b.attnum) AS text
          FROM (VALUES ('event_log', 'event_queue'), ('events', 'event_queue'), ('at_work', 'event_queue'),
                       ('blocked_groups', 'event_queue'), ('leases', 'lease'), ('services', 'service'),
                       ('daily_stats', 'minute_stats'),
                       ('jobs', 'event_log'), ('jobs', 'event_queue'), ('ends', 'event_log'), ('ends', 'event_queue'),
                       ('all_events', 'events'), ('all_events', 'event_log'), ('all_events', 'event_queue'),
                       ('event_contents', 'events'), ('event_contents', 'event_log'), ('event_contents', 'event_queue'),
                       ('stuck_events', 'events'), ('stuck_events', 'event_queue')) AS pair(object, source)
          JOIN pg_attribute AS a ON a.attrelid = ('@tidegate.' || pair.object)::regclass AND a.attnum > 0
          JOIN pg_attribute AS b ON b.attrelid = ('@tidegate.' || pair.source)::regclass AND b.attname = a.attname
         WHERE col_description(a.attrelid, a.attnum) IS NULL AND col_description(b.attrelid, b.attnum) IS NOT NULL
         -- The closer one wins.
         ORDER BY pair.source = 'event_queue' DESC
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', same.object, same.name, same.text);
    END LOOP;
END $$;

-- Creates a role that is missing, and marks it. Roles belong to the whole server: another database may be
-- faster, and has then marked the role, too. What exists without the mark is of somebody else, who would get
-- the queue's rights. Two schemas never have roles of the same name, so the mark names no schema.
CREATE FUNCTION @tidegate.make_role(role text) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    mark CONSTANT text := 'Made by tidegate migrate';
BEGIN
    BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXECUTE format('COMMENT ON ROLE %I IS %L', role, mark);
        END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;
    END;
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role AND shobj_description(r.oid, 'pg_authid') = mark) THEN
        RAISE EXCEPTION 'role %: must be a role that `tidegate migrate` has made; use another TIDEGATE_SCHEMA, unless an administrator says %',
            role, format('COMMENT ON ROLE %I IS %L', role, mark) USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;

-- Closes the functions of a schema, at the end of the files that make or replace some. No login has rights
-- that it was not granted, and no function looks a name up where its caller has placed another one. (A body
-- of RETURN looked its names up when it was made. A setting would keep it from being inlined.) What has no
-- comment is no interface.
--
-- A function that steers the planner does not compile its plans: the penalty of `enable_seqscan = off` makes
-- the cheapest plan look so expensive that Postgres would compile it, for longer than it runs.
CREATE FUNCTION @tidegate.close_functions(schema text) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    f pg_proc;
BEGIN
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', schema);
    FOR f IN SELECT * FROM pg_proc AS p WHERE p.pronamespace = schema::regnamespace AND p.prokind = 'f' LOOP
        IF f.prosqlbody IS NULL THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', f.oid::regprocedure);
        END IF;
        IF f.proconfig::text ~ 'enable_|plan_cache_mode' THEN
            EXECUTE format('ALTER FUNCTION %s SET jit = off', f.oid::regprocedure);
        END IF;
        IF obj_description(f.oid, 'pg_proc') IS NULL THEN
            EXECUTE format('COMMENT ON FUNCTION %s IS %L', f.oid::regprocedure, 'Internal: see its definition.');
        END IF;
    END LOOP;
END $$;

SELECT @tidegate.close_functions('@tidegate');
