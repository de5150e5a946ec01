#!/usr/bin/env python3
"""Removes one guard at a time from a copy of the project and runs the experiment that must notice.

A guard that is gone without anybody noticing is an error, and so is a mutant whose text is not in the source any more.
Before the first mutant every experiment that is named runs on the copy as it is: they must be green there.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from local import Failed, cargo_flags, environment, run_script
from pypi import PROJECT

PUBLISH = "migrations/queue/V0010__carry_trace.sql"
PUBLISH_BATCH = "migrations/queue/V0014__publish_keys_faster.sql"
HOT = "migrations/queue/V0012__keep_plans.sql"
LEASE = "migrations/queue/V0015__know_clear_groups.sql"
RETENTION = "migrations/queue/V0006__keep_retention.sql"
BUILD_LIMIT_S = 900
RUN_LIMIT_S = 300

KILLED = "events_of_killed_workers_are_handled_once_more_and_in_order"
DIES = "a_worker_that_dies_at_a_set_point_costs_an_attempt_and_no_more"
FROZEN = "a_worker_frozen_beyond_its_lease_changes_nothing_when_it_goes_on"
TICKS = "ten_ticks_at_once_start_each_event_once"
ORDER = "a_groups_order_is_that_of_its_commits_however_two_publishers_race"
LOST = "a_group_waits_for_its_event_that_a_lost_lease_has_taken"
CLEANUP = "cleanup_replay_and_requeue_beside_finalizes_touch_only_what_they_may"


class Mutant:
    """A name, the experiment that must fail, and replacements: file, exact text, what stands in its place, how often
    the text is there."""

    def __init__(self, name, experiment, *replacements):
        self.name, self.experiment, self.replacements = name, experiment, replacements


MUTANTS = [
    Mutant("finalize does not look at the token", FROZEN,
           (HOT, "           AND CASE WHEN (q.id, q.lease_token) IN (SELECT o.id, o.token FROM outcome AS o)"
                 " THEN true ELSE false END\n", "", 1),
           (HOT, "          JOIN outcome AS o ON o.id = q.id AND o.token = q.lease_token\n",
            "          JOIN outcome AS o ON o.id = q.id\n", 1),
           (HOT, "WHERE q.id = ANY (ids) AND q.lease_token = tokens[1 + width_bucket(q.id, firsts)]\n",
            "WHERE q.id = ANY (ids)\n", 1)),
    # Either of the two keeps a lease from being taken away; one must be gone for the other to matter.
    Mutant("lease: neither lock nor outer recheck", TICKS,
           (LEASE, "             LIMIT page\n               FOR NO KEY UPDATE SKIP LOCKED)", "             LIMIT page)", 1),
           (LEASE, "LIMIT most) END)\n"
                   "           AND (q.lease_expires_at IS NULL OR q.lease_expires_at <= instant)\n",
            "LIMIT most) END)\n", 1)),
    Mutant("lease: groups are not cut", KILLED,
           (LEASE, "                                              WHERE cut.id IS NULL OR scan.id < cut.id\n", "", 1)),
    Mutant("lease: spent attempts are run all the same", DIES,
           (LEASE, "q.attempts >= q.max_attempts AS spent,\n", "false AS spent,\n", 1)),
    Mutant("lease: expired leases are not taken over", DIES,
           (LEASE, "AND (q.lease_expires_at IS NULL OR q.lease_expires_at <= instant)\n"
                   "                         AND (q.lease_token",
            "AND q.lease_expires_at IS NULL\n                         AND (q.lease_token", 1)),
    Mutant("lease: tried again under the token of the try that was lost", LOST,
           ("src/drain/leaser.rs", "        request.token = Uuid::new_v4();\n",
            "        if request.token.is_nil() {\n            request.token = Uuid::new_v4();\n        }\n", 1)),
    Mutant("cleanup does not look at leases", CLEANUP,
           (RETENTION, "                         AND (q.lease_expires_at IS NULL OR q.lease_expires_at <= moment)\n", "", 1),
           (RETENTION, "               AND (q.lease_expires_at IS NULL OR q.lease_expires_at <= moment)\n", "", 1)),
    Mutant("cleanup does not look at attempts and deadlines", CLEANUP,
           (RETENTION, "(q.expires_at <= moment OR q.attempts >= q.max_attempts)\n", "true\n", 2)),
    Mutant("publish does not lock the group", ORDER,
           (PUBLISH, "        PERFORM tidegate.lock_groups(ARRAY[publish.group_key]);\n", "        NULL;\n", 1),
           (PUBLISH_BATCH, "    PERFORM tidegate.lock_groups(group_keys);\n", "", 1)),
    # A lock that comes too late: the ids are drawn, and others may commit between.
    Mutant("publish_batch draws ids before it locks", ORDER,
           (PUBLISH_BATCH, "    PERFORM tidegate.lock_groups(group_keys);\n", "", 1),
           (PUBLISH_BATCH, "    RETURN ids;\n", "    PERFORM tidegate.lock_groups(group_keys);\n    RETURN ids;\n", 1)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; without any, all mutants")
    parts = parser.parse_args().names
    chosen = [mutant for mutant in MUTANTS if not parts or any(part in mutant.name for part in parts)]
    if not chosen:
        print("no mutant has such a name; there are:", *(mutant.name for mutant in MUTANTS), sep="\n  ", file=sys.stderr)
        return 2
    tree = copy_of_project()
    # All texts first: whoever has moved a guard need not wait for the mutants before it.
    for mutant in chosen:
        mutated(tree, mutant)
    build(tree)
    for experiment in sorted({mutant.experiment for mutant in chosen}):
        done = run(tree, experiment)
        if done.returncode != 0:
            print(f"{done.stdout}\nwithout any mutant, {experiment} fails", file=sys.stderr)
            return 1
    survivors = [mutant.name for mutant in chosen if not is_killed(tree, mutant)]
    shutil.rmtree(tree)
    if survivors:
        print("survived:", *survivors, sep="\n  ", file=sys.stderr)
        return 1
    print(f"all {len(chosen)} mutants were noticed")
    return 0


def copy_of_project():
    """What git knows or would add, as it is on disk. It is built in a target folder of its own: cargo would take a
    mutant's program for the project's."""
    tree = PROJECT / "target" / "mutants"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=PROJECT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (PROJECT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, tree / name)
    return tree


def mutated(tree, mutant):
    """The files of a mutant, by path."""
    texts = {}
    for path, there, instead, count in mutant.replacements:
        text = texts.get(path) or (tree / path).read_text()
        if text.count(there) != count:
            print(f"{mutant.name}: {path} holds this {text.count(there)} times, not {count}:\n{there}", file=sys.stderr)
            raise Failed(1)
        texts[path] = text.replace(there, instead)
    return texts


def is_killed(tree, mutant):
    sound = {path: (tree / path).read_text() for path, *_ in mutant.replacements}
    try:
        for path, text in mutated(tree, mutant).items():
            (tree / path).write_text(text)
        build(tree)
        done = run(tree, mutant.experiment)
    finally:
        for path, text in sound.items():
            (tree / path).write_text(text)
    found = re.search(r"^.*violation of .*$", done.stdout, re.MULTILINE)
    if done.returncode == 0 or not found:
        print(f"SURVIVED  {mutant.name}\n{done.stdout}", flush=True)
        return False
    print(f"noticed   {mutant.name}\n          {found.group(0).strip()[:150]}", flush=True)
    return True


def build(tree):
    if cargo(tree, BUILD_LIMIT_S, "--no-run").returncode != 0:
        print("a mutant does not compile", file=sys.stderr)
        raise Failed(1)


def run(tree, experiment):
    return cargo(tree, RUN_LIMIT_S, "--", "--exact", experiment, capture=True)


def cargo(tree, limit, *arguments, capture=False):
    command = ["cargo", "test", "--quiet", *cargo_flags(), "--test", "torture", *arguments]
    variables = {**environment(), "CARGO_TARGET_DIR": str(PROJECT / "target" / "mutants-build"), "RUST_BACKTRACE": "0"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if capture else {}
    try:
        return subprocess.run(command, cwd=tree, env=variables, text=True, timeout=limit, **options)
    except subprocess.TimeoutExpired as over:
        told = over.stdout or b""
        told = told.decode(errors="replace") if isinstance(told, bytes) else told
        return subprocess.CompletedProcess(command, 1, f"{told}\nno end within {limit} s")


if __name__ == "__main__":
    run_script(main)
