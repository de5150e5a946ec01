#!/usr/bin/env python3
"""`make run`: publishes and drains sample events on a fresh machine, with a Postgres that is removed afterwards.

If DATABASE_URL is set, it uses that database and starts none.
"""

import os
from contextlib import ExitStack

import local


def main():
    examples = ("services", "publish_forms", "publish_checks", "publish_jobs")
    programs = local.build("--bin", "tidegate", *(word for name in examples for word in ("--example", name)))
    tidegate = programs / "tidegate"
    with ExitStack() as started:
        environment = dict(os.environ)
        if not environment.get("DATABASE_URL"):
            environment.update(started.enter_context(local.postgres()))
            print(f"A throwaway Postgres for this run: {environment['DATABASE_URL']}")
        environment.update(started.enter_context(local.services(programs)))
        local.step("The schema", [tidegate, "migrate"], environment)
        local.step("Publish what the forms system publishes", [programs / "examples" / "publish_forms"], environment)
        local.step("Receive what may ask for AI checks", [programs / "examples" / "publish_checks"], environment)
        local.step("Publish a sample of medical jobs", [programs / "examples" / "publish_jobs"], environment)
        local.step("Drain the queue", [tidegate, "drain", "--budget", "20s", "--linger", "2s"], environment)
        local.step("What the queue holds and has held", [tidegate, "status"], environment)
        local.step("The events, newest first", [tidegate, "list", "--limit", "50"], environment)
    return 0


if __name__ == "__main__":
    local.run_script(main)
