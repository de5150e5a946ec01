#!/usr/bin/env python3
"""`make unit`: runs tests with cargo-nextest, on one Postgres that lives as long as the run. `tests.py FILTER…` hands its arguments to
nextest, such as a part of a test's name, `--test drain`, or `-E 'test(/f7_/)'`. TIDEGATE_TEST_SERVER names another server, which is
then not started. POOLER=1 puts pgbouncer in transaction mode between the programs under test and the server.

A test that is run by `cargo test` alone starts a Postgres of its own."""

import os
import subprocess
import sys
from contextlib import ExitStack

import local
import tools

NEXTEST = "cargo-nextest==0.9.148"


def main():
    nextest = tools.cargo_command(NEXTEST)
    with ExitStack() as started:
        environment = dict(os.environ)
        # Many tests wait for something, so twice as many of them run as there are cores.
        environment.setdefault("NEXTEST_TEST_THREADS", str(2 * (os.cpu_count() or 1)))
        if not environment.get("TIDEGATE_TEST_SERVER"):
            server = started.enter_context(local.postgres("--fast"))
            environment["TIDEGATE_TEST_SERVER"] = server["DATABASE_URL"]
        if environment.get("POOLER"):
            pooler = started.enter_context(local.pooler(environment["TIDEGATE_TEST_SERVER"]))
            environment["TIDEGATE_TEST_POOLER"] = pooler["DATABASE_URL"]
        command = [nextest, "nextest", "run", *local.cargo_flags(), *(sys.argv[1:] or ["--workspace"])]
        return subprocess.run([str(word) for word in command], env=environment).returncode


if __name__ == "__main__":
    local.run_script(main)
