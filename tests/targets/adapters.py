"""Runs examples/conformance as its readers do. Its two adapters keep every promise. And each check fails with an adapter that is broken in
one place: a check that cannot fail would show nothing."""

import queue
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import local
import schema
import tools

FOLDER = tools.PROJECT / "examples" / "conformance"
PROGRAM = FOLDER / "conformance.py"
COMMANDS = {lacking: command for _, lacking, command in schema.SNIPPETS}
DRIVERS = {".py": "psycopg", ".mjs": "node-postgres"}
LOGINS = """
CREATE ROLE conforming LOGIN IN ROLE tidegate_publish, tidegate_pull;
CREATE ROLE watching LOGIN IN ROLE tidegate_operate;
INSERT INTO tidegate.event_kind (kind) VALUES ('conformance'), ('conformance_effect')"""
# Ids that no double holds.
FAR = f"SELECT setval('tidegate.event_queue_id_seq', {2**53 + 4})"
AT_ONCE = 4
LIMIT_S = 300
LIVE = "SELECT count(*) FROM tidegate.event_queue"
FOREIGN = "SELECT tidegate.publish('conformance', NULL, correlation_id => 'of somebody else')"

CALL = '    return connection.execute(f"SELECT * FROM tidegate.{call}({names})", values).fetchall()\n'
IN_SAVEPOINT = f"    with connection.transaction():\n    {CALL}"
SWALLOWED = f"    try:\n        with connection.transaction():\n        {CALL}" + """\
    except psycopg.Error as error:
        if error.sqlstate != "TG001":
            raise
        return [{"finalize": "COMPLETED"}]
"""
AGAIN = f"    global last\n{CALL.replace('return', 'rows =')}" + """\
    if call == "poll":
        last = rows = rows or globals().get("last", [])
    return rows
"""
CONNECT = 'connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, row_factory=psycopg.rows.dict_row)\n'
ELSEWHERE = f'    if call == "finalize":\n        {CONNECT}{CALL}'
RECONNECTED = f"    try:\n    {CALL}    except psycopg.OperationalError:\n        {CONNECT}    {CALL}"
BESIDE = """\
    for event in arguments.pop("follow_ups", []):
        connection.execute("SELECT tidegate.publish(%s, %s, correlation_id => 'conformance')", [event["kind"], Jsonb(event["payload"])])
    names = """
HEAD = "const asJson"

# What the adapter does wrong, in which one, its text and what stands in its place; which checks must fail, and which others pass.
BROKEN = [
    ("hands its last events out again", "adapter.py", CALL, AGAIN, "one_holder", "together numbers"),
    ("leaves the transaction of a poll open", "adapter.py", "autocommit=True", "autocommit=False", "committed", "numbers"),
    ("turns the order around", "adapter.py", ".fetchall()\n", ".fetchall()[::-1]\n", "order", "together"),
    ("ends events over another connection", "adapter.py", CALL, ELSEWHERE, "together refused", "committed"),
    ("tells a refusal, and commits what came before", "adapter.py", CALL, IN_SAVEPOINT, "fenced cancelled", "together"),
    ("swallows TG001, and commits", "adapter.py", CALL, SWALLOWED, "fenced refused cancelled", "together"),
    ("takes each commit for done", "adapter.py", 'done.statusmessage == "ROLLBACK"', "False", "refused", "together cancelled"),
    ("begins no transactions", "adapter.py", "connection.execute(call)", 'connection.execute("SELECT")', "together killed cut", "committed"),
    ("connects again within a transaction", "adapter.py", CALL, RECONNECTED, "cut", "together"),
    ("publishes follow-ups by itself", "adapter.py", "    names = ", BESIDE, "twice", "together"),
    ("tells no errors", "adapter.py", "in arguments)", 'in arguments if name != "error")', "attempts", "retries"),
    ("charges each retry", "adapter.py", "in arguments)", 'in arguments if name != "charged")', "retries", "attempts"),
    ("takes arrays as texts", "adapter.mjs", HEAD, f"pg.types.setTypeParser(1016, String);\n{HEAD}", "order extended settled cancelled", "together"),
    ("sends arrays as arrays", "adapter.mjs", "JSON.stringify(value) : value", "value : value", "settled stored", "retries"),
    ("speaks Latin 1", "adapter.py", "autocommit=True,", 'autocommit=True, client_encoding="latin1",', "payloads", "numbers"),
    ("parses numbers as doubles", "adapter.mjs", "(text) => text);", "(text) => JSON.stringify(JSON.parse(text)));", "numbers", "payloads"),
    ("takes ids as doubles", "adapter.mjs", HEAD, f"pg.types.setTypeParser(20, Number);\n{HEAD}", "numbered", "times"),
    ("drops the zones of times", "adapter.py", "value.isoformat()", "value.replace(tzinfo=None).isoformat()", "retries extended times", "together"),
    ("stores JSON in a text", "adapter.py", "Jsonb(value) if", 'Jsonb(json.dumps(value) if name == "result" else value) if', "stored", "together"),
]


class Databases:
    """Copies of a migrated database, since the checks of one run at a time in each."""

    def __init__(self, relay):
        self.relay, self.free = relay, queue.LifoQueue()
        relay.database.run("CREATE DATABASE conformance")
        relay.run("migrate", "--roles", DATABASE_URL=self.at("conformance"))
        owner = local.Database(self.at("conformance"))
        for sql in [*LOGINS.strip().split(";\n"), FAR]:
            owner.run(sql)
        owner.connection.close()
        for number in range(AT_ONCE):
            relay.database.run(f"CREATE DATABASE conformance_{number} TEMPLATE conformance")
            owner = local.Database(self.at(f"conformance_{number}"))
            owner.run("SELECT tidegate.move_in()")
            self.free.put((f"conformance_{number}", owner))

    def at(self, database, user="postgres"):
        place = urlsplit(self.relay.environment["DATABASE_URL"])
        return place._replace(netloc=f"{user}@{place.hostname}:{place.port}", path=f"/{database}").geturl()

    def command(self, adapter):
        return COMMANDS[DRIVERS[adapter.suffix]](adapter, None)[0]

    def run(self, adapter, *only):
        """Returns the exit code, which checks have passed and failed, and all that was said."""
        database, owner = self.free.get()
        try:
            _, driver = COMMANDS["psycopg"](None, None)
            command = self.command(adapter)
            logins = {"DATABASE_URL": self.at(database, "conforming"), "OPERATOR_URL": self.at(database, "watching")}
            words = [sys.executable, PROGRAM, *(["--only", ",".join(only)] if only else []), "--", *command]
            variables = {**local.environment(), **driver, **logins}
            done = subprocess.run([str(word) for word in words], env=variables, capture_output=True, text=True, timeout=LIMIT_S)
            said = done.stdout + done.stderr
            assert done.returncode == 2 or owner.holds(LIVE) == 0, f"live events are left\n{said}"
            passed, failed = (set(re.findall(rf"^{verdict} (\w+):", done.stdout, re.MULTILINE)) for verdict in ("PASS", "FAIL"))
            return done.returncode, passed, failed, said
        finally:
            self.free.put((database, owner))


def conformance(relay):
    """The adapters of examples/conformance keep every promise, and each check fails with an adapter that is broken in one place."""
    checks = set(re.findall(r"^CHECKS = \[(.*?)\]", (FOLDER / "checks.py").read_text(), re.MULTILINE | re.DOTALL)[0].replace(",", " ").split())
    assert checks == {check for *_, fail, _ in BROKEN for check in fail.split()}, "for each check there is an adapter with which it fails"
    databases, whole = Databases(relay), [FOLDER / name for name in ("adapter.mjs", "adapter.py")]
    for adapter in whole:
        # Installs its driver before several runs look for it.
        databases.command(adapter)
    refuses(databases)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        kept = [pool.submit(databases.run, adapter) for adapter in whole]
        broken = [pool.submit(breaks, databases, number, relay.room, *one) for number, one in enumerate(BROKEN)]
    wrong = [run.result() for run in broken if run.result()]
    for adapter, run in zip(whole, kept):
        code, passed, failed, said = run.result()
        wrong += [] if (code, passed, failed) == (0, checks, set()) else [f"{adapter.name}\n{said}"]
    assert not wrong, "\n".join(wrong)


def refuses(databases):
    """Where others have live events of these kinds, nothing is done."""
    # The last one that was given back is the next one.
    database, owner = databases.free.get()
    owner.run(FOREIGN)
    databases.free.put((database, owner))
    code, passed, failed, said = databases.run(FOLDER / "adapter.py")
    assert (code, passed, failed, owner.holds(LIVE)) == (2, set(), set(), 1) and "1 live events" in said, said
    owner.run("DELETE FROM tidegate.event_queue")


def breaks(databases, number, room, what, file, text, other, fail, well):
    source = (FOLDER / file).read_text()
    assert source.count(text) == 1, f"{file} must have {text!r} once"
    adapter = room / f"broken-{number}{Path(file).suffix}"
    adapter.write_text(source.replace(text, other))
    code, passed, failed, said = databases.run(adapter, *fail.split(), *well.split())
    if (code, failed, passed) != (1, set(fail.split()), set(well.split())):
        return f"{file}, which {what}, must fail {fail}, and nothing else\n{said}"
