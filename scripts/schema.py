#!/usr/bin/env python3
"""Maintains `crates/tidegate/sql/catalog.txt`, the lines by which `tidegate doctor` detects manual changes of the schema.

`write` regenerates it from the migrations, and dumps the queue's and the application's schema to target/schema/ for people.
`check` compares it. It describes the same schema differently by major version, so both always use the version of the wheel.
"""

import difflib
import os
import subprocess
import sys
from pathlib import Path

import local
import postgres

CATALOG = Path("crates/tidegate/sql/catalog.txt")
DUMPS = {
    # The names of partitions contain dates. All partitions are created alike from the log itself.
    Path("target/schema/queue.sql"): ["--schema=tidegate", "--exclude-table=tidegate.event_log_[0-9]*"],
    Path("target/schema/application.sql"): ["--exclude-schema=tidegate"],
}


def main():
    if sys.argv[1:] not in (["write"], ["check"]):
        print(f"usage: {sys.argv[0]} write|check", file=sys.stderr)
        return 2
    programs = local.build("--bin", "tidegate", "--example", "catalog")
    with local.postgres("--fast", "--major", str(postgres.WHEEL_MAJOR)) as variables:
        environment = {**local.environment(), **variables}
        run([programs / "tidegate", "--json", "migrate"], environment)
        made = run([programs / "examples" / "catalog"], environment)
        if sys.argv[1] == "check":
            return compare(made)
        CATALOG.write_text(made)
        # An older pg_dump refuses a newer server.
        program = postgres.installation(postgres.WHEEL_MAJOR).program("pg_dump")
        if not os.access(program, os.X_OK):
            raise postgres.Unavailable(f"{program} is missing: install the Postgres client programs of the same version")
        for file, parts in DUMPS.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            run([program, "--schema-only", "--no-owner", "--file", file, *parts, variables["DATABASE_URL"]], environment)
    return 0


def run(command, environment):
    told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if told.returncode != 0:
        raise local.Failed(1)
    return told.stdout


def compare(made):
    committed = CATALOG.read_text()
    if made == committed:
        print(f"{CATALOG} is what the migrations make")
        return 0
    lines = difflib.unified_diff(committed.splitlines(True), made.splitlines(True), str(CATALOG), "the migrated schema")
    sys.stderr.writelines(lines)
    print(f"{CATALOG} is out of date: run `make schema` and review the difference", file=sys.stderr)
    return 1


if __name__ == "__main__":
    local.run_script(main)
