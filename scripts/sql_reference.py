"""The reference part of docs/sql.md, made of the catalog: what the roles of producers and people may use, by the comments
of the migrations in crates/tidegate/sql."""

import json
import re

ROLES = ("publish", "read", "operate", "jobs")

RELATIONS = """
WITH role AS (SELECT r AS short, 'tidegate_' || r AS name FROM unnest(string_to_array('%s', ' ')) AS r),
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
                         FROM attribute AS a WHERE a.attrelid = c.oid)) ORDER BY c.relkind = 'v' DESC, c.relname)
  FROM pg_class AS c
 WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND (NOT c.relispartition OR c.relname = 'event_log_default')
   AND (c.relname !~ '_migrations$' OR c.relname = 'queue_migrations')
   AND EXISTS (SELECT FROM role WHERE has_any_column_privilege(role.name, c.oid, 'SELECT, INSERT, UPDATE')
                   OR has_table_privilege(role.name, c.oid, 'DELETE'))
""" % " ".join(ROLES)

FUNCTIONS = """
WITH role AS (SELECT r AS short, 'tidegate_' || r AS name FROM unnest(string_to_array('%s', ' ')) AS r)
SELECT json_agg(json_build_object(
           'name', p.proname, 'arguments', pg_get_function_arguments(p.oid), 'result', pg_get_function_result(p.oid),
           'comment', obj_description(p.oid, 'pg_proc'), 'who', f.who) ORDER BY p.proname)
  FROM pg_proc AS p
 CROSS JOIN LATERAL (SELECT json_agg(role.short) AS who FROM role WHERE has_function_privilege(role.name, p.oid, 'EXECUTE')) AS f
 WHERE p.pronamespace = 'tidegate'::regnamespace AND f.who IS NOT NULL
""" % " ".join(ROLES)


def made(query):
    """The text, by what `query` answers: the one value of an SQL query."""
    parts = ["### Views and tables\n"]
    parts += [_relation(relation) for relation in json.loads(query(RELATIONS))]
    parts += ["### Functions\n"]
    parts += [_function(function) for function in json.loads(query(FUNCTIONS))]
    return "\n".join(parts)


def _relation(relation):
    kind = {"v": "View", "S": "Sequence"}.get(relation["kind"], "Table")
    columns = relation["columns"]
    lines = [f"#### {kind} `tidegate.{relation['name']}`", "", relation["comment"], ""]
    lines += [f"- {text}" for text in _rights(columns, relation["delete"])]
    # A partition's columns are described with its table.
    if kind != "Sequence" and columns[0]["comment"]:
        lines += ["", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{column['name']}` | `{column['type']}` | {_cell(column['comment'])} |" for column in columns]
    return "\n".join(lines) + "\n"


def _rights(columns, delete):
    """Who may do what, with the columns where it is not all of them."""
    for right in ("SELECT", "INSERT", "UPDATE"):
        for role in ROLES:
            allowed = [column["name"] for column in columns if role in column["rights"][right]]
            if allowed:
                yield f"`tidegate_{role}` may `{right}` {_which(columns, allowed)}"
    for role in delete:
        yield f"`tidegate_{role}` may `DELETE`"


def _which(columns, allowed):
    missing = [column["name"] for column in columns if column["name"] not in allowed]
    if not missing:
        return "all columns"
    if len(missing) < len(allowed):
        return "all columns but " + _listed(missing)
    return _listed(allowed)


def _listed(names):
    names = [f"`{name}`" for name in names]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _function(function):
    arguments = re.sub(r"::[a-z ]+(\[\])?", "", function["arguments"])
    arguments = arguments.replace("timestamp with time zone", "timestamptz")
    result = function["result"].replace("timestamp with time zone", "timestamptz")
    who = _listed([f"tidegate_{role}" for role in function["who"]])
    text = f"`tidegate.{function['name']}({arguments})` returns `{result}`. For {who}."
    return f"#### `{function['name']}`\n\n{text}\n\n{function['comment']}\n"


def _cell(text):
    return text.replace("|", "\\|")
