#!/usr/bin/env python3
"""`make test` and `make test-all`: runs stages one after the other, and prints the current stage, how long each took, and what was
skipped because the machine lacks a requirement. `test` are the stages that show that the software works, `rest` all others, and a
name is one stage. The first failure ends the run.

`measure` prints how long `make test` takes in a new clone without anything compiled or installed, and how long a release build of
the function takes on the same machine: their ratio can be compared between machines.

`note WHAT WHICH` adds to the count of what was skipped; tests do the same. TIDEGATE_EXPECTED lists requirements that must be
available, such as "pgbouncer tls": a skip because of one of them is an error."""

import collections
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import PROJECT

# What a newcomer runs: the command of each stage, and what it shows.
TEST = {
    "check": ("make check", "format, lints, requirements, links and references of the handbook"),
    "unit": ("python3 scripts/tests.py quick", "unit and integration tests, the model, workers that die and servers that crash"),
    "starter": ("python3 scripts/starter.py", "a new project of `tidegate new` tests, runs and drains"),
}
# What CI runs after it.
REST = {
    "run": ("make run", "what a newcomer sees first"),
    "heavy": ("python3 scripts/tests.py heavy", "all other experiments of the fault suite, the largest searches of the model"),
    "project": ("python3 scripts/starter.py whole", "its function, its console, its template, and what the compiler says of mistakes"),
    "doc": ("make doc", "documentation without warnings, its examples, the public names of the library"),
    "deny": ("python3 scripts/release.py deny", "licences, sources and security advisories of the dependencies"),
    "newest": ("python3 scripts/tests.py newest", "what may differ between versions, on the newest Postgres"),
    "schema": ("make schema CHECK=1", "catalog.txt, the SQL reference and the programs in the guides are up to date"),
    "lambda": ("make lambda", "the function under `cargo lambda watch`, with every file of events/"),
    "tutorial": ("python3 scripts/starter.py tutorial", "the commands of docs/tutorial.md"),
    "api": ("python3 scripts/interop.py api", "the HTTP interface matches its OpenAPI document"),
    "console": ("python3 scripts/console.py", "the web console in a browser; `scripts/console.py --shots` also writes its images"),
    "snippets": ("python3 scripts/schema.py snippets", "the SQL and the programs of the guide to publishing"),
    "targets": ("python3 tests/targets/run.py", "handlers in other languages, as functions and URLs and by SQL, the recipes, files for clusters"),
    "metrics": ("python3 scripts/interop.py metrics", "promtool reads the metrics and tests the alert rules"),
    "collector": ("python3 scripts/interop.py collector", "an OpenTelemetry collector understands the traces"),
    "template": ("python3 scripts/template.py", "what a deployment would create, twice, and when its alarms ring"),
}
STAGES = {**TEST, **REST}
GROUPS = {"test": TEST, "rest": REST}
# The requirements that may be missing.
KNOWN = {
    "pgbouncer": "a pooler", "libfaketime": "clocks that are set", "tls": "a Postgres with TLS", "disk": "the right to mount a small disk",
    "postgres-18": "the newest Postgres", "advisories": "RustSec's database on GitHub",
    "psycopg": "the Postgres drivers of Python", "node-postgres": "Node and its Postgres driver", "jdbc": "a JDK and its Postgres driver",
    "lib-pq": "Go and its Postgres driver", "ruby-pg": "Ruby and its Postgres driver", "pdo-pgsql": "PHP and its Postgres driver", "promtool": "Prometheus's promtool", "collector": "an OpenTelemetry collector (Rotel)",
    "chromium": "a browser"}


def note(what, which):
    """Without a count, nothing is recorded: a person who runs one target alone reads its output."""
    path = os.environ.get("TIDEGATE_SKIPPED_TO")
    if path:
        with open(path, "a") as file:
            file.write(f"{what}\t{which}\n")


def skipped():
    lines = Path(os.environ["TIDEGATE_SKIPPED_TO"]).read_text().splitlines()
    counted = collections.defaultdict(set)
    for line in lines:
        what, _, which = line.partition("\t")
        counted[what].add(which)
    expected = set(os.environ.get("TIDEGATE_EXPECTED", "").split())
    unknown = sorted((expected | counted.keys()) - KNOWN.keys())
    if unknown:
        print(f"TIDEGATE_EXPECTED: must be of {', '.join(KNOWN)}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    for what, which in sorted(counted.items()):
        print(f"left out for want of {KNOWN[what]} ({what}): {len(which)}: {', '.join(sorted(which))}")
    if not counted:
        print("nothing was left out")
    missing = sorted(expected & counted.keys())
    if missing:
        print(f"expected to be here, and missing: {', '.join(missing)}", file=sys.stderr)
    return int(bool(missing))


def spent(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def run(names):
    chosen = [stage for name in names for stage in GROUPS.get(name, [name])]
    unknown = [stage for stage in chosen if stage not in STAGES]
    if unknown or not chosen:
        print(f"stages: must be of {', '.join(STAGES)}, got {', '.join(unknown) or 'none'}", file=sys.stderr)
        return 2
    count = Path(os.environ["TIDEGATE_SKIPPED_TO"])
    count.parent.mkdir(exist_ok=True)
    count.write_text("")
    began, times = time.monotonic(), []
    for number, stage in enumerate(chosen, 1):
        command, shows = STAGES[stage]
        print(f"\n=== {number} of {len(chosen)}: {stage}: {shows} ({spent(time.monotonic() - began)} so far)", flush=True)
        since = time.monotonic()
        code = subprocess.run(command, shell=True).returncode
        times.append((stage, time.monotonic() - since))
        if code != 0:
            print(f"\n=== {stage} failed; `make test-all STAGES={stage}` runs it alone", file=sys.stderr)
            return code
    print(f"\n=== all {len(chosen)} stages passed in {spent(time.monotonic() - began)}")
    print("\n".join(f"    {stage:14} {spent(seconds):>12}" for stage, seconds in times))
    return skipped()


def measure():
    with tempfile.TemporaryDirectory() as room:
        clone, release = Path(room) / "clone", ["cargo", "build", "--locked", "--release", "--bin", "tidegate-function"]
        subprocess.run(["git", "clone", "--quiet", PROJECT, clone], check=True)
        taken = []
        for command, target in (["make", "test"], "target"), (release, "release"):
            since = time.monotonic()
            subprocess.run(command, cwd=clone, env={**os.environ, "CARGO_TARGET_DIR": str(clone / target)}, check=True)
            taken.append(time.monotonic() - since)
    print(f"\nmake test from nothing: {spent(taken[0])}; a release build of the function: {spent(taken[1])}; ratio {taken[0] / taken[1]:.1f}")


def main():
    match sys.argv[1:]:
        case ["measure"]:
            return measure()
        case ["run", *names]:
            return run(names)
        case ["note", what, which] if what in KNOWN:
            return note(what, which)
    print(f"usage: {sys.argv[0]} run test|rest|STAGE… | measure | note {'|'.join(KNOWN)} WHICH", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
