#!/usr/bin/env python3
"""Keeps what describes the schema equal to what the migrations produce.

`write` renews `crates/tidegate-core/sql/catalog.txt`, the lines by which `tidegate doctor` detects manual changes, the reference in
docs/reference/sql.md, which is made of the catalog's comments, and the programs that the guides show, which are files of examples/. For
people, it dumps the queue's and the application's schema to target/schema.sql. `check` compares both. A catalog describes the same schema differently by major version,
so all use the version of the wheel.

`suite`, `make unit SCHEMA=acme`, runs the integration tests on a queue in another schema, which SCHEMA names. The tests' own SQL names the
schema `tidegate`, so they run from a copy of the project in which it names the other one. The product in the copy is unchanged. Tests that are bound to
the name, some 60 of 900, are left out.

`snippets`, a stage of `make test-all`, runs the SQL of docs/guides/publish.md, and the programs of examples/sql/ and examples/pull/, each as a login
that may do just that. A language whose interpreter or driver cannot be had is left out, and noted where `make test` counts."""

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import local
import postgres
import stages
import tools
from tools import PROJECT, Unavailable

CATALOG = PROJECT / "crates/tidegate-core/sql/catalog.txt"
# The names of partitions contain dates. All partitions are created alike from the log itself.
DUMP = ("--schema-only", "--no-owner", "--exclude-table=tidegate.event_log_[0-9]*", "--file", "target/schema.sql")
PAGE = PROJECT / "docs" / "reference" / "sql.md"
PUBLISH, *_ = GUIDES = [PROJECT / "docs" / "guides" / name for name in ("publish.md", "any-language.md", "handlers.md", "existing-program.md")]
FOLDER, PULL = [PROJECT / "examples" / name for name in ("sql", "pull")]
DRIVERS = ("psycopg[binary]==3.3.9", "SQLAlchemy==2.1.9")
NODE_OLDEST = (18, 0)
RUN_LIMIT_S = 120
LANGUAGES = {"py": "python", "mjs": "js", "java": "java", "go": "go", "rb": "ruby", "php": "php", "toml": "toml", "yaml": "yaml", "tf": "hcl", "rs": "rust,ignore"}
REFERENCE = re.compile(r"(<!-- reference -->\n).*?(<!-- end of the reference -->)", re.DOTALL)
SHOWN = re.compile(r"(<!-- (examples/[^ ]+) -->\n\n)```[\w,]+\n.*?```\n", re.DOTALL)
LOGINS = (FOLDER / "logins.sql").read_text()
ROLES = ("publish", "pull", "read", "operate", "jobs")
READERS = ["read", "operate"]
# How the comment of a column ends that says nothing to a reader.
INTERNALLY = ("Internal.", "index of ready events.")
# What people look at by the verbs, and what only Tidegate's own programs, functions and views use: one line each in the reference.
INTERNAL = set("""
    all_events blocked cleanup_step default_max_attempts depths doctor_checks drain_run drain_slot ended event_contents event_log_default
    examine_kinds examine_server examine_store examine_work expiring figures_by_kind figures_since find_subject give_up_after has_nul held here home
    in_words is_copy job_status job_status_code job_status_number lease lease_cut left_to_do log_partitions logged minute_stats move_in offspring
    oldest_ready patience publish_batch publish_one queue_migrations record_publish refusal schedule service service_place takes_plaintext target
    targets time_in_words unmarked_events unordered_leases vacuum_holders waiting_behind
""".split())
# A table that people write to, and the view by which they read it.
WRITTEN = {"event_queue": "events"}
# The guide to publishing describes their arguments.
GUIDED = {"publish", "publish_many"}
# Columns of views and tables whose names say what their comments say.
NAMED = {
    "at_work": "handler note reported_at",
    "blocked_groups": "head_id head_kind attempts waiting",
    "daily_stats": "events attempts",
    "ends": "finished_at code",
    "jobs": "result finished_at",
    "leases": "worker taken_at renewed_at expired events first_id last_id",
    "services": "since failures answered_at last_error waiting",
    "stats": "processing completed completed_with_errors failed latency_p50_ms latency_p95_ms latency_p99_ms events paused",
    "audit": "id at count reason",
    "event_kind": "registered_at",
    "event_log": "forgotten_at",
}
# The page says these once for all functions.
SAID = re.compile(
    r"(?<=\. )(?:reason: the reason(?: for the audit, up to 1000 characters)?, (?:required|optional)\."
    r"|actor: the operator's name(?: for the audit, up to 200 characters)?\.|Returns a report(?: as an object)?\."
    r"|dry_run: (?:true reports what would be done and changes nothing|true only counts them|only report)\."
    r"|id: the event(?:'s id)?\.|kind: a registered kind\.|name: the schedule\.|service: its name(?:, 1 to 100 characters)?\.|group_key: the group\.) ?"
)
SHORT = {"timestamp with time zone": "timestamptz", " DEFAULT NULL": "?", " DEFAULT ": " = "}
BY_WHOM = re.compile(r"reason text\??, actor text\?")

RELATIONS, FUNCTIONS = (PROJECT / "scripts" / "reference.sql").read_text().rstrip().rstrip(";").split(";\n")


COPY = PROJECT / "target/in-schema"
MARKED = "here_is_the_queue"
# Where the tests' own SQL names the schema.
NAMES = re.compile(
    r"(?<![\w-])tidegate(?=\.(?!toml\b|rs\b)[a-z%'{]|_(?:publish|drain|pull|operate|read|jobs)\b)|(?<=')tidegate(?=')|(?<=SCHEMA )tidegate"
)

# Integration tests; those of other folders name no schema.
TESTS = re.compile(r"(crates/[\w-]+/)?tests/(?!(fuzz|model|targets|torture)/)")

# They send the library's SQL as it is written, compare texts in which the name is not the schema's, or are about names themselves.
NAME_BOUND = (
    "plans::", "roles::", "otel::", "prometheus::", "golden::", "queues::", "network::i1_a_server_that_turns",
    "network::i1_i8_sessions", "operate::d13_the_documented", "operate::d14_the_documented", "figures::absurd", "cleanup::a_made",
    "seal::a_new_key", "starter::with_a", "upgrade::a_program_on_a_schema_that", "why::a_group_behind",
)


def main():
    return local.chosen({"suite": suite, **{word: lambda word=word: work(word) for word in ("write", "check", "snippets")}})


def suite():
    name = os.environ.get("SCHEMA", "acme")
    for path in local.output(["git", "ls-files", "--cached", "--others", "--exclude-standard"]).splitlines():
        source, target = PROJECT / path, COPY / path
        if not source.is_file():
            continue
        content = source.read_bytes()
        if TESTS.match(path):
            content = NAMES.sub(name, content.decode()).encode()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(source, target)
    if not (COPY / ".tools").exists():
        (COPY / ".tools").symlink_to(PROJECT / ".tools")
    chosen = f"kind(test) & not binary(/^(torture|model)$/) & not test(/^({'|'.join(NAME_BOUND)})/)"
    environment = {**os.environ, "TIDEGATE_SCHEMA": name, "CARGO_TARGET_DIR": str(COPY / "target")}
    return subprocess.run([sys.executable, COPY / "scripts" / "tests.py", "-E", chosen], env=environment).returncode


def work(word):
    programs = local.build("--bin", "tidegate", "--example", "catalog")
    with local.postgres("--fast", "--major", str(postgres.WHEEL_MAJOR)) as variables:
        server = Server(variables["DATABASE_URL"])
        environment = {**local.environment(), **variables}
        made = {CATALOG: _catalog(server, programs, environment)}
        local.output([programs / "tidegate", "--json", "migrate"], env=environment)
        if word == "write":
            local.output([server.program("pg_dump"), *DUMP, server.url], env=environment)
        # The roles are not part of the catalog.
        local.output([programs / "tidegate", "--json", "migrate", "--roles"], env=environment)
        if word == "snippets":
            server.run(LOGINS)
            return _all_run(server)
        made |= {PAGE: _page(server), **{guide: SHOWN.sub(_shown, guide.read_text()) for guide in GUIDES}}
        if word == "check":
            return int(any([differs(file, text) for file, text in made.items()]))
        for file, text in made.items():
            file.write_text(text)
    return 0


def _catalog(server, programs, environment):
    """The lines of a queue in a schema whose name stands nowhere else, with the mark in its place."""
    server.run("CREATE DATABASE marked")
    environment = {**environment, "DATABASE_URL": server.at("marked"), "TIDEGATE_SCHEMA": MARKED}
    local.output([programs / "tidegate", "--json", "migrate"], env=environment)
    return local.output([programs / "examples" / "catalog"], env=environment).replace(MARKED, "@tidegate")


def differs(file, made):
    committed, name = file.read_text(), str(file.relative_to(PROJECT))
    if made == committed:
        print(f"{name} is what the migrations make")
        return False
    sys.stderr.writelines(difflib.unified_diff(committed.splitlines(True), made.splitlines(True), name, "the migrated schema"))
    print(f"{name} is out of date: run `make schema` and review the difference", file=sys.stderr)
    return True


class Server:
    """One server with a database that is copied for each snippet."""

    def __init__(self, url):
        self.url = url

    def program(self, name):
        program = postgres.installation(postgres.WHEEL_MAJOR).program(name)
        if not os.access(program, os.X_OK):
            raise Unavailable(f"{program} is missing: install the Postgres client programs of the same version")
        return program

    def run(self, sql, database=None, user=None):
        """What psql prints, bare."""
        command = [self.program("psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1", "--file", "-", self.at(database, user)]
        done = subprocess.run(command, input=sql, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{sql.strip()}\n{done.stderr.strip()}", file=sys.stderr)
            raise local.Failed(1)
        return done.stdout.strip()

    def at(self, database=None, user=None):
        url = urlsplit(self.url)
        return url._replace(netloc=f"{user or url.username}@{url.hostname}:{url.port}", path=f"/{database or 'postgres'}", query="sslmode=disable").geturl()

    def variables(self, database):
        """Where the snippets find it, each in the way of its driver."""
        url = urlsplit(self.url)
        return {"DATABASE_URL": self.at(database, "shop"), "PGHOST": url.hostname, "PGPORT": str(url.port), "PGUSER": "shop",
                "PGDATABASE": database, "JDBC_URL": f"jdbc:postgresql://{url.hostname}:{url.port}/{database}?user=shop"}


def _page(server):
    """The page with the reference as it is now."""
    relations, functions = [json.loads(server.run(query)) for query in (RELATIONS, FUNCTIONS)]
    seen = {}
    parts = ["## Views and tables\n", *[_relation(one, seen) for one in relations if one["name"] not in INTERNAL]]
    others = _listed([one["name"] for one in relations if one["name"] in INTERNAL])
    parts += [f"### Other tables and views\n\nThe verbs show what these hold, and psql's `\\d+` describes them: {others}.\n"]
    parts += ["## Functions"]
    called = [one for one in functions if one["name"] not in INTERNAL]
    for roles in sorted({tuple(one["who"]) for one in called}, key=lambda roles: (ROLES.index(roles[0]), roles)):
        parts += [f"\n### For {_listed([f'tidegate_{role}' for role in roles])}\n"]
        parts += [_function(one) for one in called if tuple(one["who"]) == roles]
    return REFERENCE.sub(lambda found: "\n".join([found[1], *parts, found[2]]), PAGE.read_text())


def _relation(relation, seen):
    """A view or table. Columns that an earlier one describes in the same words, or whose names say all, are only named."""
    kind, columns = "View" if relation["kind"] == "v" else "Table", relation["columns"]
    known, named, internal, rows = {}, [], [], []
    for column in columns:
        name, meaning = column["name"], column["comment"]
        first = seen.setdefault((name, column["type"], meaning), relation["name"])
        if first != relation["name"]:
            known.setdefault(first, []).append(name)
        elif meaning.endswith(INTERNALLY):
            internal.append(name)
        elif name in NAMED.get(relation["name"], "").split():
            named.append(f"`{name}` {_short(column['type'])}")
        else:
            rows.append(f"- `{name}` {_short(column['type'])}: {meaning}")
    if view := WRITTEN.get(relation["name"]):
        known, named, internal, rows = {}, [], [], [f"Read the view `{view}`."]
    rows += [f"- {', '.join(named)}"] if named else []
    rows += [f"- {_listed(names)}: as in `{first}`." for first, names in known.items()]
    rows += [f"- {_listed(internal)}: internal."] if internal else []
    about = " ".join([relation["comment"], *_rights(columns, relation["delete"])])
    return "\n".join([f"### {kind} `{relation['name']}`\n", f"{about}\n", *rows, ""])


def _rights(columns, delete):
    """Who may do what, if it is not that readers and operators may read all columns."""
    for right in ("SELECT", "INSERT", "UPDATE"):
        for role in ROLES:
            allowed = [column["name"] for column in columns if role in column["rights"][right]]
            if allowed and not (right == "SELECT" and role in READERS and len(allowed) == len(columns)):
                yield f"`tidegate_{role}` may `{right}` {_which(columns, allowed)}."
    for role in delete:
        yield f"`tidegate_{role}` may `DELETE`."


def _which(columns, allowed):
    missing = [column["name"] for column in columns if column["name"] not in allowed]
    return f"all but {_listed(missing)}" if len(missing) < len(allowed) else _listed(allowed)


def _listed(names):
    names = [f"`{name}`" for name in names]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _short(text):
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text


def _first(text):
    return text.split(". ")[0].rstrip(".") + "."


def _function(function):
    arguments = BY_WHOM.sub("…", _short(re.sub(r"::[a-z ]+(\[\])?", "", function["arguments"])))
    result = _short(function["result"]).replace("TABLE", "rows ").replace("SETOF ", "rows of ")
    report = result == "jsonb" and function["who"] == ["operate"]
    back = "" if report or result in ("record", "void") else f" → `{result}`"
    text = _first(function["comment"]) if function["name"] in GUIDED else SAID.sub("", function["comment"] + " ").strip()
    return f"- `{function['name']}({arguments})`{back}: {text}"


def _shown(found):
    file = PROJECT / found[2]
    return f"{found[1]}```{LANGUAGES[file.suffix[1:]]}\n{file.read_text()}```\n"


def _all_run(server):
    _copied(server, "page")
    for sql in re.findall(r"```sql\n(.*?)```\n", PUBLISH.read_text(), re.DOTALL):
        server.run(sql, "page", "somebody")
    failed = 0
    for name, lacking, command in SNIPPETS:
        try:
            with tempfile.TemporaryDirectory(prefix="snippet-") as room:
                arguments, more = command(name, Path(room))
                failed += not _runs(server, name, arguments, more)
        except Unavailable as error:
            print(f"left out: {name}: {error}")
            stages.note(lacking, name.name)
    return int(failed > 0)


def _copied(server, database):
    """Copies the migrated database, and makes the queue in it at home."""
    server.run(f"CREATE DATABASE {database} TEMPLATE postgres")
    server.run("SELECT tidegate.move_in()", database)


def _runs(server, name, command, more):
    database = re.sub(r"\W", "_", name.name.lower())
    _copied(server, database)
    before, query, rows, told = (name.parent / part for part in ("before.sql", "stored.sql", "stored.txt", "told.txt"))
    server.run(before.read_text() if before.exists() else "", database)
    environment = {**local.environment(), **server.variables(database), **more}
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    stored = server.run(query.read_text(), database)
    if done.returncode == 0 and done.stdout.startswith(told.read_text()) and stored == rows.read_text().strip():
        print(f"{name.name} does what it says")
        return True
    print(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}stored:\n{stored}", file=sys.stderr)
    return False


def _python(file, _):
    return [sys.executable, file], {"PYTHONPATH": str(tools.install(*DRIVERS, dependencies=True))}


def _node(file, _):
    node, program = tools.node(NODE_OLDEST)
    # Node looks for packages beside the file; the lock file's name tells one set of them from another.
    folder = tools.TOOLS / "node-postgres"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FOLDER / "package-lock.json"
    if not (folder / "node_modules" / "pg").is_dir() or (folder / lock.name).read_bytes() != lock.read_bytes():
        for part in ("package.json", lock.name):
            shutil.copyfile(FOLDER / part, folder / part)
        tools.npm(program, folder, "ci")
    shutil.copyfile(file, folder / file.name)
    return [*node, folder / file.name], {}


def _java(file, _):
    java = _machines("java", "--version")
    _machines("javac", "--version")
    jars = sorted(tools.debian("libpostgresql-jdbc-java").glob("usr/share/java/postgresql*.jar"))
    if not jars:
        raise Unavailable("libpostgresql-jdbc-java holds no driver")
    return [java, "-cp", jars[0], file], {}


def _ruby(file, _):
    return [_machines("ruby", "-rpg", "-e", "0"), file], {}


def _php(file, _):
    return [_machines("php", "-r", "new ReflectionExtension('pdo_pgsql');"), file], {}


def _go(file, room):
    go = _machines("go", "version")
    packages = tools.debian("golang-github-lib-pq-dev") / "usr" / "share" / "gocode"
    shutil.copyfile(file, room / "main.go")
    variables = {"GO111MODULE": "off", "GOPATH": str(packages), "GOCACHE": str(room / "cache"), "GOFLAGS": ""}
    _try([go, "build", "-o", room / "publish", room / "main.go"], variables)
    return [room / "publish"], {}


def _machines(program, *arguments):
    """Returns the machine's own program, if it runs with these arguments."""
    found = shutil.which(program)
    if not found:
        raise Unavailable(f"{program} is missing: install it")
    _try([found, *arguments], {})
    return found


def _try(command, variables):
    done = subprocess.run([str(part) for part in command], env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(tools.last_line(done.stderr))


SNIPPETS = [
    (FOLDER / "psycopg_publish.py", "psycopg", _python),
    (FOLDER / "sqlalchemy_publish.py", "psycopg", _python),
    (FOLDER / "node_publish.mjs", "node-postgres", _node),
    (FOLDER / "JdbcPublish.java", "jdbc", _java),
    (FOLDER / "publish.go", "lib-pq", _go),
    (FOLDER / "publish.rb", "ruby-pg", _ruby),
    (FOLDER / "publish.php", "pdo-pgsql", _php),
    (PULL / "worker.py", "psycopg", _python),
    (PULL / "worker.mjs", "node-postgres", _node),
]

if __name__ == "__main__":
    local.run_script(main)
