#!/usr/bin/env python3
"""`make unit`: runs tests with cargo-nextest, on one Postgres that lives as long as the run. `tests.py FILTER…` hands its arguments to
nextest, such as a part of a test's name, `--test drain`, or `-E 'test(/f7_/)'`. TIDEGATE_TEST_SERVER names another server, which is
then not started. POOLER=1 puts pgbouncer in transaction mode between the programs under test and the server.

`quick` runs what `make test` runs, and `heavy` the rest: see .config/nextest.toml. `newest` runs what may differ between versions of Postgres on the newest one, if it can be had and is not the usual one.

A test that is run by `cargo test` alone starts a Postgres of its own."""

import os
import subprocess
import sys
from contextlib import ExitStack

import local
import postgres
import stages
import tools

NEXTEST = "cargo-nextest==0.9.148"
# Statements and their plans, partitions, roles, and recovery from a crash. `make unit torture POSTGRES=18` runs all.
ON_NEWEST = "test(/^(queue|interleave|plans|cleanup|figures|roles|batch|wake)::/) | (binary(torture) & test(/lease/))"


def main():
    match sys.argv[1:]:
        case ["newest"]:
            return newest()
        case ["quick"]:
            return run("--profile", "quick")
        case ["heavy"]:
            return run("--profile", "quick", "--ignore-default-filter", "-E", "not default()")
        case words:
            return run(*words)


def newest():
    try:
        found = postgres.installation(postgres.WHEEL_MAJOR)
    except tools.Unavailable as missing:
        print(f"nothing was tried on Postgres {postgres.WHEEL_MAJOR}: {missing}")
        stages.note(f"postgres-{postgres.WHEEL_MAJOR}", "newest")
        return 0
    if found.binaries == postgres.installation().binaries:
        print(f"all tests ran on Postgres {postgres.WHEEL_MAJOR}")
        return 0
    os.environ["TIDEGATE_PG_MAJOR"] = str(postgres.WHEEL_MAJOR)
    return run("-E", ON_NEWEST)


def run(*words):
    nextest = tools.cargo_command(NEXTEST)
    with ExitStack() as started:
        environment = dict(os.environ)
        # Many tests wait for something, so three times as many of them run as there are cores.
        environment.setdefault("NEXTEST_TEST_THREADS", str(3 * (os.cpu_count() or 1)))
        if not environment.get("TIDEGATE_TEST_SERVER"):
            server = started.enter_context(local.postgres("--fast"))
            environment["TIDEGATE_TEST_SERVER"] = server["DATABASE_URL"]
        if environment.get("POOLER"):
            pooler = started.enter_context(local.pooler(environment["TIDEGATE_TEST_SERVER"]))
            environment["TIDEGATE_TEST_POOLER"] = pooler["DATABASE_URL"]
        command = [nextest, "nextest", "run", *local.cargo_flags(), "--workspace", *words]
        return subprocess.run([str(word) for word in command], env=environment).returncode


if __name__ == "__main__":
    local.run_script(main)
