#!/usr/bin/env python3
"""Shows whether a worker that handles events by SQL keeps the queue's promises through its driver: `pip install "psycopg[binary]"`, then

    python conformance.py -- node adapter.mjs                           # a line for each check: PASS or FAIL; exit code 1 if one failed
    python conformance.py --only fenced,payloads -- node adapter.mjs    # some checks of checks.py

An adapter is a program around the worker's own code that calls SQL; adapter.py and adapter.mjs are two. Several run at once. Each reads
requests from its standard input, one JSON object a line, in ASCII, and answers each with one line. It ends when its input ends:

    {"call": "poll", "kinds": ["conformance"], "most": 2, "lease": "60 s"}    {"rows": [{"id": "7", "token": "…", "payload": "{…}", …}, …]}
    {"call": "begin"}                                                         {"rows": []}
    {"call": "finalize", "id": "7", "token": "…", "result": {"n": 1}}         {"error": {"sqlstate": "TG001", "message": "…"}}

The calls are poll, finalize, retry, extend, settle and publish, with the named arguments of the SQL functions, and begin, commit and
rollback. Outside of a transaction, each call commits by itself. Rows have the functions' columns. An id or a time is a string or a number;
a time names its zone, or counts from 1970. An array is an array. `payload` is a string with JSON: if the worker parses payloads, what it
has parsed, printed again. The session has the application_name that PGAPPNAME gives, as most drivers see to.

DATABASE_URL is the worker's login, with the roles tidegate_publish and tidegate_pull. OPERATOR_URL, or else DATABASE_URL, is a login that
looks at the results and cancels, with tidegate_operate. The queue's owner may be both. The events have two kinds of their own, which the
owner registers:

    SELECT tidegate.register_kind('conformance'), tidegate.register_kind('conformance_effect');

Nothing else is touched. Live events are cancelled at the end; ended ones stay in the log until their retention is over. Run it once at a
time in a database."""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time

import psycopg
from checks import CHECKS, EFFECT, KIND, KINDS, MARK, Broken, ids, same

LIMIT_S = 30


class Refused(Exception):
    """The adapter has answered with an error: its SQLSTATE and message."""


class Worker:
    """An adapter in its own process. Its time zone is an odd one, so that it shows if a time has lost its zone."""

    def __init__(self, command, number):
        self.name = f"conformance {os.getpid()} {number}"
        given = {"TZ": "Asia/Kathmandu", "PGTZ": "Asia/Kathmandu", "PGAPPNAME": self.name}
        self.process = subprocess.Popen(command, env={**os.environ, **given}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def send(self, call, **arguments):
        try:
            self.process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self):
        try:
            line = self.lines.get(timeout=LIMIT_S)
        except queue.Empty:
            raise Broken(f"the adapter has not answered within {LIMIT_S} s") from None
        if not line:
            self.lines.put("")
            raise Refused(None, "the adapter has ended")
        said = json.loads(line)
        if "error" in said:
            raise Refused(said["error"]["sqlstate"], said["error"]["message"])
        return said["rows"]

    def ask(self, call, *event, **arguments):
        self.send(call, **{name: one[name] for one in event for name in ("id", "token")}, **arguments)
        return self.answer()

    def poll(self, most=1, lease="60 s"):
        return self.ask("poll", kinds=[KIND], most=most, lease=lease)

    def take(self, **given):
        rows = self.poll(**given)
        same(1, len(rows), "the number of events that come")
        return rows[0]

    def poll_until(self, wanted):
        """Polls until these events have come, when a lease of somebody else must run out first."""
        ends, found = time.monotonic() + LIMIT_S, []
        while len(found) < len(wanted) and time.monotonic() < ends:
            found += self.poll(len(wanted))
            time.sleep(0.05)
        same(sorted(wanted), sorted(ids(found)), "the events that come again")
        return found

    def effect(self, event):
        """Stands for the worker's own writes: another event, published by its connection."""
        self.ask("publish", kind=EFFECT, payload={"of": str(event["id"])}, correlation_id=MARK)

    def end(self, event, wanted="COMPLETED", **arguments):
        same([[wanted]], [list(row.values()) for row in self.ask("finalize", event, **arguments)], "the answer of finalize")

    def handle(self, event, **arguments):
        self.ask("begin")
        self.effect(event)
        self.end(event, **arguments)
        self.ask("commit")

    def refused(self, wanted, call, *event, **arguments):
        """The call is refused, with this SQLSTATE if it is given."""
        try:
            got = self.ask(call, *event, **arguments)
        except Refused as refused:
            same(wanted or refused.args[0], refused.args[0], f"the SQLSTATE of {call}")
            return str(refused.args[1])
        raise Broken(f"{call}: must be refused, and answered {got}")

    def stores_nothing(self, event, sqlstate):
        """Works in a transaction, is refused at its end, and commits it nevertheless."""
        self.ask("begin")
        self.effect(event)
        self.refused(sqlstate, "finalize", event)
        self.commit_in_vain()

    def commit_in_vain(self):
        try:
            self.ask("commit")
        except Refused:
            pass


class Queue:
    """The workers, and what the database says."""

    def __init__(self, command):
        self.command, self.workers = command, {}
        # Nothing is prepared, for the sake of poolers.
        self.mine, self.operator = (psycopg.connect(os.environ.get(name) or os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=None)
                                    for name in ("DATABASE_URL", "OPERATOR_URL"))

    def __getitem__(self, number):
        if number not in self.workers:
            self.workers[number] = Worker(self.command, number)
        return self.workers[number]

    def publish(self, **options):
        names = "".join(f", {name} => %({name})s" for name in options)
        sql = f"SELECT id FROM tidegate.publish('{KIND}', NULL, correlation_id => '{MARK}'{names})"
        return self.mine.execute(sql, options).fetchone()[0]

    def publish_text(self, text):
        sql = "INSERT INTO tidegate.event_queue (kind, payload, correlation_id) VALUES (%s, %s, %s) RETURNING id"
        return self.mine.execute(sql, [KIND, text, MARK]).fetchone()[0]

    def all(self, sql, *values):
        return self.operator.execute(sql, values).fetchall()

    def live(self, column, id):
        return self.all(f"SELECT {column} FROM tidegate.events WHERE id = %s", id)[0][0]

    def stored(self, *of):
        """How these events have ended, with their attempts, and whose effects there are."""
        ends = self.all("SELECT status, attempts FROM tidegate.event_log WHERE id = ANY (%s) ORDER BY id", list(of))
        return ends, sorted(int(one) for [one] in self.all("SELECT payload->>'of' FROM tidegate.events WHERE kind = %s", EFFECT))

    def cancel(self, **which):
        names = ", ".join(f"{name} => %({name})s" for name in which)
        self.operator.execute(f"SELECT tidegate.cancel({names}, reason => 'a check has ended')", which)

    def count(self, own):
        sql = "SELECT count(*) FROM tidegate.events WHERE kind = ANY (%s) AND (correlation_id IS NOT DISTINCT FROM %s) = %s"
        return self.all(sql, KINDS, MARK, own)[0][0]

    def clean(self, stop=True):
        while stop and self.workers:
            self.workers.popitem()[1].kill()
        ends = time.monotonic() + LIMIT_S
        while self.count(True) and time.monotonic() < ends:
            for kind in KINDS:
                self.cancel(kind=kind, correlation_id=MARK)


def problem(check, q):
    try:
        check(q)
    except (Broken, Refused) as error:
        return error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"the adapter's answer is not as it must be: {error!r}"


def reason(q):
    """Why nothing may be done in this queue."""
    # Asked of the function, because the owner of a queue without roles may do it, too.
    allowed = "SELECT has_function_privilege(p.oid, 'EXECUTE') FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n"
    if q.all(f"{allowed} ON n.oid = pronamespace WHERE nspname = 'tidegate' AND proname = 'cancel'") != [(True,)]:
        return "the login of OPERATOR_URL, or else of DATABASE_URL, must own the queue or have the role tidegate_operate"
    if q.all("SELECT count(*) FROM tidegate.event_kind WHERE kind = ANY (%s)", KINDS) != [(2,)]:
        return f"the kinds {' and '.join(KINDS)} must be registered: the head of {sys.argv[0]} says how"
    if count := q.count(False):
        return f"the queue has {count} live events of the kinds {' and '.join(KINDS)} that are not of these checks; nothing was done"


def main():
    known = {check.__name__: check for check in CHECKS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=f"checks: {', '.join(known)}")
    parser.add_argument("--only", metavar="CHECK,…", default=",".join(known))
    parser.add_argument("command", nargs="+", help="starts an adapter; write -- in front of it")
    given = parser.parse_args()
    if unknown := [name for name in given.only.split(",") if name not in known]:
        parser.error(f"--only: must be of {', '.join(known)}, got {', '.join(unknown)}")
    q, failed = Queue(given.command), []
    if why := reason(q):
        print(why, file=sys.stderr)
        return 2
    try:
        q.clean()
        for check in [known[name] for name in given.only.split(",")]:
            wrong = problem(check, q)
            failed += [check.__name__] if wrong else []
            print(f"{'FAIL' if wrong else 'PASS'} {check.__name__}: {check.__doc__}" + (f"\n     {wrong}" if wrong else ""), flush=True)
            q.clean(stop=bool(wrong))
    finally:
        q.clean()
    print(f"failed: {', '.join(failed)}" if failed else "every promise is kept")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
