-- What docs/reference/sql.md tells of views and tables.
WITH role AS (SELECT r AS short, 'tidegate_' || r AS name FROM unnest(string_to_array('publish pull read operate jobs', ' ')) AS r),
attribute AS (
    SELECT a.attrelid, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod) AS type, col_description(a.attrelid, a.attnum) AS comment,
           (SELECT json_object_agg(p.right_to, p.who) FROM (
                SELECT p AS right_to, coalesce(json_agg(role.short) FILTER (WHERE has_column_privilege(role.name, a.attrelid, a.attnum, p)), '[]') AS who
                  FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS p CROSS JOIN role GROUP BY p) AS p) AS rights
      FROM pg_attribute AS a WHERE a.attnum > 0 AND NOT a.attisdropped)
SELECT json_agg(json_build_object(
           'name', c.relname, 'kind', c.relkind, 'comment', obj_description(c.oid, 'pg_class'),
           'delete', (SELECT coalesce(json_agg(role.short), '[]') FROM role WHERE has_table_privilege(role.name, c.oid, 'DELETE')),
           'columns', (SELECT json_agg(json_build_object('name', a.attname, 'type', a.type, 'comment', a.comment, 'rights', a.rights) ORDER BY a.attnum)
                         FROM attribute AS a WHERE a.attrelid = c.oid)) ORDER BY c.relkind = 'v' DESC, c.relname = 'events' DESC, c.relname)
  FROM pg_class AS c
 WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND (NOT c.relispartition OR c.relname = 'event_log_default')
   AND (c.relname !~ '_migrations$' OR c.relname = 'queue_migrations')
   AND EXISTS (SELECT FROM role WHERE has_any_column_privilege(role.name, c.oid, 'SELECT, INSERT, UPDATE')
                   OR has_table_privilege(role.name, c.oid, 'DELETE'));

-- What it tells of functions.
WITH role AS (SELECT r AS short, 'tidegate_' || r AS name FROM unnest(string_to_array('publish pull read operate jobs', ' ')) AS r)
SELECT json_agg(json_build_object(
           'name', p.proname, 'arguments', pg_get_function_arguments(p.oid), 'result', pg_get_function_result(p.oid),
           'comment', obj_description(p.oid, 'pg_proc'), 'who', f.who) ORDER BY p.proname)
  FROM pg_proc AS p
 CROSS JOIN LATERAL (SELECT json_agg(role.short) AS who FROM role WHERE has_function_privilege(role.name, p.oid, 'EXECUTE')) AS f
 WHERE p.pronamespace = 'tidegate'::regnamespace AND f.who IS NOT NULL;
