#!/usr/bin/env python3
"""Counts what `make test` skipped because the machine lacks a requirement.

`forget` starts a new count, `note WHAT WHICH` adds to it (tests do the same), and `tell` prints it. TIDEGATE_EXPECTED lists
requirements that must be available, such as "pgbouncer tls": a skip because of one of them is an error.
"""

import collections
import os
import sys
from pathlib import Path

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


def forget():
    path = Path(os.environ["TIDEGATE_SKIPPED_TO"])
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    return 0


def tell():
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


def main():
    match sys.argv[1:]:
        case ["forget"]:
            return forget()
        case ["note", what, which] if what in KNOWN:
            return note(what, which)
        case ["tell"]:
            return tell()
    print(f"usage: {sys.argv[0]} forget|tell|note {'|'.join(KNOWN)} WHICH", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
