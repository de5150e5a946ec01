#!/usr/bin/env python3
"""`make test`: `run STAGE…` runs the given stages one after the other, and prints the current stage, how long each took, and what
was skipped because the machine lacks a requirement. Each stage is a target of the Makefile, so `make STAGE` runs a failed one
again. The first failure ends the run.

`note WHAT WHICH` adds to the count of what was skipped; tests do the same. TIDEGATE_EXPECTED lists requirements that must be
available, such as "pgbouncer tls": a skip because of one of them is an error."""

import collections
import os
import re
import subprocess
import sys
import time
from pathlib import Path

MAKEFILE = Path(__file__).resolve().parent.parent / "Makefile"
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


def descriptions():
    """Returns the description of each target in `make help`, up to its first semicolon."""
    return dict(re.findall(r"^([a-z-]+):.*## ([^;\n]*)", MAKEFILE.read_text(), re.MULTILINE))


def spent(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def run(stages):
    count = Path(os.environ["TIDEGATE_SKIPPED_TO"])
    count.parent.mkdir(exist_ok=True)
    count.write_text("")
    told, began, times = descriptions(), time.monotonic(), []
    unknown = [stage for stage in stages if stage not in told]
    if unknown or not stages:
        print(f"stages: must be targets of the Makefile, got {unknown or 'none'}", file=sys.stderr)
        return 2
    for number, stage in enumerate(stages, 1):
        print(f"\n=== {number} of {len(stages)}: {stage}: {told[stage]} ({spent(time.monotonic() - began)} so far)", flush=True)
        since = time.monotonic()
        code = subprocess.run(["make", "--no-print-directory", stage]).returncode
        times.append((stage, time.monotonic() - since))
        if code != 0:
            print(f"\n=== {stage} failed; `make {stage}` runs it alone", file=sys.stderr)
            return code
    print(f"\n=== all {len(stages)} stages passed in {spent(time.monotonic() - began)}")
    print("\n".join(f"    {stage:14} {spent(seconds):>12}" for stage, seconds in times))
    return skipped()


def main():
    match sys.argv[1:]:
        case ["run", *stages]:
            return run(stages)
        case ["note", what, which] if what in KNOWN:
            return note(what, which)
    print(f"usage: {sys.argv[0]} run STAGE… | note {'|'.join(KNOWN)} WHICH", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
