#!/usr/bin/env python3
"""Keeps what describes the schema equal to what the migrations produce.

`write` renews `crates/tidegate/sql/catalog.txt`, the lines by which `tidegate doctor` detects manual changes, and docs/reference/sql.md: its
reference is made of the catalog's comments, and its programs are files of examples/, as those of some guides. For people, it dumps the queue's and
the application's schema to target/schema/. `check` compares both. A catalog describes the same schema differently by major version,
so all use the version of the wheel.

`suite`, `make unit-schema`, runs the integration tests on a queue in another schema, which SCHEMA names. The tests' own SQL names the
schema `tidegate`, so they run from a copy of the project in which it names the other one. The product in the copy is unchanged.

`snippets`, `make snippets`, runs the SQL and the programs of docs/reference/sql.md, each as a login that may publish and nothing else. A
language whose interpreter or driver cannot be had is left out, and noted where `make test` counts."""

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

CATALOG = PROJECT / "crates/tidegate/sql/catalog.txt"
DUMPS = {
    # The names of partitions contain dates. All partitions are created alike from the log itself.
    Path("target/schema/queue.sql"): ["--schema=tidegate", "--exclude-table=tidegate.event_log_[0-9]*"],
    Path("target/schema/application.sql"): ["--exclude-schema=tidegate"],
}
PAGE = PROJECT / "docs" / "reference" / "sql.md"
FOLDER = PROJECT / "examples" / "sql"
GUIDES = [PROJECT / "docs" / "guides" / name for name in ("pull.md", "any-language.md", "handlers.md", "existing-program.md")]
PULL = PROJECT / "examples" / "pull"
DRIVERS = ("psycopg[binary]==3.3.9", "SQLAlchemy==2.1.9")
NODE_OLDEST = (18, 0)
RUN_LIMIT_S = 120
LANGUAGES = {"py": "python", "mjs": "js", "java": "java", "go": "go", "rb": "ruby", "php": "php", "toml": "toml", "yaml": "yaml", "tf": "hcl", "rs": "rust,ignore"}
REFERENCE = re.compile(r"(<!-- reference -->\n).*?(<!-- end of the reference -->)", re.DOTALL)
SHOWN = re.compile(r"(<!-- (examples/[^ ]+) -->\n\n)```[\w,]+\n.*?```\n", re.DOTALL)
LOGINS = (FOLDER / "logins.sql").read_text()
ROLES = ("publish", "pull", "read", "operate", "jobs")

RELATIONS, FUNCTIONS = (PROJECT / "scripts" / "reference.sql").read_text().rstrip().rstrip(";").split(";\n")


COPY = PROJECT / "target/in-schema"
# What Schema::written renames.
NAMES = re.compile(
    r"(?<![\w-])tidegate(?=\.(?!toml\b|rs\b)[a-z%']|_(?:publish|drain|pull|operate|read|jobs)\b)|(?<=')tidegate(?=')|(?<=SCHEMA )tidegate"
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
        if path.startswith(("tests/it/", "tests/golden/", "tests/support/")):
            content = NAMES.sub(name, content.decode()).encode()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(source, target)
    if not (COPY / ".tools").exists():
        (COPY / ".tools").symlink_to(PROJECT / ".tools")
    environment = {**os.environ, "TIDEGATE_SCHEMA": name, "CARGO_TARGET_DIR": str(COPY / "target")}
    return subprocess.run(["cargo", "test", *local.cargo_flags(), "--test", "it"], cwd=COPY, env=environment).returncode


def work(word):
    programs = local.build("--bin", "tidegate", "--example", "catalog")
    with local.postgres("--fast", "--major", str(postgres.WHEEL_MAJOR)) as variables:
        server = Server(variables["DATABASE_URL"])
        environment = {**local.environment(), **variables}
        local.output([programs / "tidegate", "--json", "migrate"], env=environment)
        made = {CATALOG: local.output([programs / "examples" / "catalog"], env=environment)}
        if word == "write":
            for file, parts in DUMPS.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                local.output([server.program("pg_dump"), "--schema-only", "--no-owner", "--file", file, *parts, server.url], env=environment)
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
    """The page with the files and the reference as they are now."""
    text = SHOWN.sub(_shown, PAGE.read_text())
    parts = ["### Views and tables\n", *map(_relation, json.loads(server.run(RELATIONS)))]
    parts += ["### Functions\n", *map(_function, json.loads(server.run(FUNCTIONS)))]
    return REFERENCE.sub(lambda found: "\n".join([found[1], *parts, found[2]]), text)


def _relation(relation):
    kind = {"v": "View", "S": "Sequence"}.get(relation["kind"], "Table")
    columns = relation["columns"]
    lines = [f"#### {kind} `tidegate.{relation['name']}`", "", relation["comment"], ""]
    lines += [f"- {text}" for text in _rights(columns, relation["delete"])]
    # A partition's columns are described with its table.
    if kind != "Sequence" and columns[0]["comment"]:
        bar = "\\|"
        lines += ["", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{column['name']}` | `{column['type']}` | {column['comment'].replace('|', bar)} |" for column in columns]
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


def _shown(found):
    file = PROJECT / found[2]
    return f"{found[1]}```{LANGUAGES[file.suffix[1:]]}\n{file.read_text()}```\n"


def _all_run(server):
    server.run("CREATE DATABASE page TEMPLATE postgres")
    for sql in re.findall(r"```sql\n(.*?)```\n", PAGE.read_text(), re.DOTALL):
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


def _runs(server, name, command, more):
    database = re.sub(r"\W", "_", name.name.lower())
    server.run(f"CREATE DATABASE {database} TEMPLATE postgres")
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
