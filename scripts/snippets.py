#!/usr/bin/env python3
"""Keeps docs/sql.md true. What it shows of other languages are the files of examples/sql/, which run here on a Postgres of their
own, each as a login that may publish and nothing else; its SQL runs too; and its reference is made of the catalog's comments.

`write` puts the files and the reference into the page, `check` compares and runs. A language whose interpreter or driver cannot
be had is left out, and noted where `make test` counts (scripts/skips.py).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import debian
import local
import npm
import postgres
import pypi
import skips
import sql_reference
from pypi import PROJECT, Unavailable

PAGE = PROJECT / "docs" / "sql.md"
FOLDER = PROJECT / "examples" / "sql"
DRIVERS = ("psycopg[binary]==3.3.9", "SQLAlchemy==2.1.9")
NODE_OLDEST = (18, 0)
RUN_LIMIT_S = 120
LANGUAGES = {"py": "python", "mjs": "js", "java": "java", "go": "go", "rb": "ruby", "php": "php"}
REFERENCE = re.compile(r"(<!-- reference -->\n).*?(<!-- end of the reference -->)", re.DOTALL)
SHOWN = re.compile(r"(<!-- (examples/sql/[^ ]+) -->\n\n)```\w+\n.*?```\n", re.DOTALL)
# What people and programs of the page's SQL may do, and what the snippets may.
LOGINS = """
CREATE ROLE shop LOGIN IN ROLE tidegate_publish;
CREATE ROLE somebody LOGIN IN ROLE tidegate_publish, tidegate_read, tidegate_operate, tidegate_jobs;
CREATE TABLE orders (id bigint PRIMARY KEY);
GRANT INSERT ON orders TO shop;
GRANT SELECT, INSERT ON orders TO somebody;
INSERT INTO tidegate.event_kind (kind) VALUES ('order_placed'), ('order_paid');
"""
# The same of every snippet, in the order of the publishes.
STORED = """
SELECT concat_ws(' ', q.kind, q.payload::jsonb, coalesce(q.group_key, '-'), coalesce(q.dedup_key, '-'), q.delayed)
  FROM tidegate.event_queue AS q, orders AS o WHERE o.id = 7 ORDER BY q.id
"""
WANTED = [
    'order_placed {"skus": ["a-1", "b-2"], "order_id": 7} customer-3 order-7 f',
    'order_placed {"order_id": 8} - - f',
    'order_paid {"order_id": 8} - - t',
]
TOLD = "event 1 new\nevent 2 new\nevent 3 new\nrefused: kind: 'order_plcaed' is not registered; registered are: "


def main():
    if sys.argv[1:] not in (["write"], ["check"]):
        print(f"usage: {sys.argv[0]} write|check", file=sys.stderr)
        return 2
    programs = local.build("--bin", "tidegate")
    with local.postgres("--fast") as variables:
        server = Server(variables["DATABASE_URL"])
        environment = {**local.environment(), **variables}
        migrate = [programs / "tidegate", "--json", "migrate", "--roles"]
        if subprocess.run(migrate, env=environment, stdout=subprocess.DEVNULL).returncode != 0:
            raise local.Failed(1)
        page = _page(server)
        if sys.argv[1] == "write":
            PAGE.write_text(page)
            return 0
        if page != PAGE.read_text():
            print(f"{PAGE.relative_to(PROJECT)} is out of date: run `python3 scripts/snippets.py write` and review the difference",
                  file=sys.stderr)
            return 1
        server.run(LOGINS)
        return _all_run(server)


class Server:
    """One server with a database that is copied for each snippet."""

    def __init__(self, url):
        self.url = url
        self.program = postgres.installation().program("psql")
        if not os.access(self.program, os.X_OK):
            raise Unavailable(f"{self.program} is missing: install the Postgres client programs of the same version")

    def run(self, sql, database=None, user=None):
        """What psql prints, bare."""
        command = [self.program, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1",
                   "--file", "-", self.at(database, user)]
        done = subprocess.run(command, input=sql, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{sql.strip()}\n{done.stderr.strip()}", file=sys.stderr)
            raise local.Failed(1)
        return done.stdout.strip()

    def at(self, database=None, user=None):
        url = urlsplit(self.url)
        return url._replace(netloc=f"{user or url.username}@{url.hostname}:{url.port}", path=f"/{database or 'postgres'}",
                            query="sslmode=disable").geturl()

    def variables(self, database):
        """Where the snippets find it, each in the way of its driver."""
        url = urlsplit(self.url)
        return {"DATABASE_URL": self.at(database, "shop"), "PGHOST": url.hostname, "PGPORT": str(url.port), "PGUSER": "shop",
                "PGDATABASE": database, "JDBC_URL": f"jdbc:postgresql://{url.hostname}:{url.port}/{database}?user=shop"}


def _page(server):
    """The page with the files and the reference as they are now."""
    text = SHOWN.sub(_shown, PAGE.read_text())
    unseen = [file.name for file in sorted(FOLDER.iterdir()) if file.suffix[1:] in LANGUAGES and f"<!-- examples/sql/{file.name} -->" not in text]
    if unseen:
        print(f"{PAGE.relative_to(PROJECT)} does not show {', '.join(unseen)}", file=sys.stderr)
        raise local.Failed(1)
    reference = sql_reference.made(server.run)
    return REFERENCE.sub(lambda found: f"{found[1]}\n{reference}\n{found[2]}", text)


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
                arguments, more = command(FOLDER / name, Path(room))
                failed += not _runs(server, name, arguments, more)
        except Unavailable as error:
            print(f"left out: {name}: {error}")
            skips.note(lacking, name)
    return int(failed > 0)


def _runs(server, name, command, more):
    database = re.sub(r"\W", "_", name.lower())
    server.run(f"CREATE DATABASE {database} TEMPLATE postgres")
    environment = {**local.environment(), **server.variables(database), **more}
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    stored = server.run(STORED, database).splitlines()
    if done.returncode == 0 and done.stdout.startswith(TOLD) and stored == WANTED:
        print(f"{name} publishes what it says")
        return True
    print(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}stored:\n" + "\n".join(stored), file=sys.stderr)
    return False


def _python(file, _):
    return [sys.executable, file], {"PYTHONPATH": str(pypi.install(*DRIVERS, dependencies=True))}


def _node(file, _):
    node, program = npm.programs(NODE_OLDEST)
    # Node looks for packages beside the file; the lock file's name tells one set of them from another.
    folder = pypi.TOOLS / "node-postgres"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FOLDER / "package-lock.json"
    if not (folder / "node_modules" / "pg").is_dir() or (folder / lock.name).read_bytes() != lock.read_bytes():
        for part in ("package.json", lock.name):
            shutil.copyfile(FOLDER / part, folder / part)
        npm.install(program, folder)
    shutil.copyfile(file, folder / file.name)
    return [*node, folder / file.name], {}


def _java(file, _):
    java = shutil.which("java")
    if not java or not shutil.which("javac"):
        raise Unavailable("java and javac are missing: install a JDK")
    jars = sorted(debian.unpacked("libpostgresql-jdbc-java").glob("usr/share/java/postgresql*.jar"))
    if not jars:
        raise Unavailable("libpostgresql-jdbc-java holds no driver")
    return [java, "-cp", jars[0], file], {}


def _ruby(file, _):
    if (found := shutil.which("ruby")) and subprocess.run([found, "-rpg", "-e", "0"], capture_output=True).returncode == 0:
        return [found, file], {}
    roots = [debian.unpacked("ruby", ("ruby3",)), debian.unpacked("ruby-pg", ("libruby", "libpq"))]
    ruby = next(iter(sorted(roots[0].glob("usr/bin/ruby3*"))), None)
    library = ":".join(str(path) for root in roots for path in sorted(root.glob("usr/lib/*-linux-gnu")))
    folders = [path for root in roots for pattern in ("usr/lib/ruby/[0-9]*", "usr/lib/ruby/vendor_ruby", "usr/lib/ruby/vendor_ruby/[0-9]*",
               "usr/lib/*/ruby/[0-9]*", "usr/lib/*/ruby/vendor_ruby/[0-9]*") for path in sorted(root.glob(pattern))]
    variables = {"LD_LIBRARY_PATH": library, "RUBYLIB": ":".join(str(path) for path in folders)}
    command = [str(ruby), "--disable-gems"]
    _try([*command, "-rpg", "-rjson", "-e", "0"], variables)
    return [*command, file], variables


def _php(file, room):
    if (found := shutil.which("php")) and b"pdo_pgsql" in subprocess.run([found, "-m"], capture_output=True).stdout:
        return [found, file], {}
    # The packages without a version in their names depend on those of the version that the release has.
    program, driver = debian.unpacked("php-cli", ("-cli",)), debian.unpacked("php-pgsql", ("-pgsql",))
    version = next((found[0] for path in program.glob("usr/bin/php[0-9]*") if (found := re.search(r"[0-9.]+$", path.name))), "")
    common = debian.unpacked(f"php{version}-common", ())
    php = program / "usr" / "bin" / f"php{version}"
    extensions = room / "extensions"
    extensions.mkdir()
    for root in (common, driver):
        for library in root.glob("usr/lib/php/*/*.so"):
            (extensions / library.name).symlink_to(library)
    command = [php, "-n", "-d", f"extension_dir={extensions}", "-d", "extension=pdo", "-d", "extension=pdo_pgsql"]
    _try([*command, "-r", "new ReflectionExtension('pdo_pgsql');"], {})
    return [*command, file], {}


def _go(file, room):
    # Debian's Go takes half a gigabyte: only the machine's own.
    go = shutil.which("go")
    if not go:
        raise Unavailable("go is missing: install Go")
    packages = debian.unpacked("golang-github-lib-pq-dev") / "usr" / "share" / "gocode"
    shutil.copyfile(file, room / "main.go")
    variables = {"GO111MODULE": "off", "GOPATH": str(packages), "GOCACHE": str(room / "cache"), "GOFLAGS": ""}
    _try([go, "build", "-o", room / "publish", room / "main.go"], variables)
    return [room / "publish"], {}


def _try(command, variables):
    """Whether what was unpacked runs on this machine."""
    try:
        done = subprocess.run([str(part) for part in command], env={**os.environ, **variables}, capture_output=True, text=True)
    except OSError as error:
        raise Unavailable(str(error)) from error
    if done.returncode != 0:
        raise Unavailable((done.stderr.strip().splitlines() or ["it does not start"])[-1])


SNIPPETS = [
    ("psycopg_publish.py", "psycopg", _python),
    ("sqlalchemy_publish.py", "psycopg", _python),
    ("node_publish.mjs", "node-postgres", _node),
    ("JdbcPublish.java", "jdbc", _java),
    ("publish.go", "lib-pq", _go),
    ("publish.rb", "ruby-pg", _ruby),
    ("publish.php", "pdo-pgsql", _php),
]

if __name__ == "__main__":
    local.run_script(main)
