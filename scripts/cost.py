#!/usr/bin/env python3
"""Part of `make check`: limits what the library costs a program that uses it without features: the number of crates it
needs, directly and in total, and the number of names in its documentation. Raise a limit only on purpose."""

import os
import re
import subprocess
import sys
from pathlib import Path

import local

# One of the names is for shared calls: Batch. Two are for what a migration stores: StoredSettings, Payloads.
DIRECT, TOTAL, NAMES = 17, 123, 52
LISTED = re.compile(r'<li><a href="[^"]+">[^<]+</a></li>')


def main():
    counts = {
        "direct crates": (len(crates("--depth", "1")), DIRECT),
        "crates in all": (len(crates()), TOTAL),
        "public names": (names(), NAMES),
    }
    for what, (count, most) in counts.items():
        print(f"tidegate without features: {count} {what}, at most {most}")
    wrong = [what for what, (count, most) in counts.items() if count > most]
    if wrong:
        print(f"too many: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


def crates(*options):
    """Returns the crates that the library is linked with."""
    command = ["cargo", "tree", "--locked", "--package", "tidegate", "--edges", "normal", "--prefix", "none", "--format", "{p}"]
    told = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True)
    if told.returncode != 0:
        raise local.Failed(1)
    return {tuple(line.split()[:2]) for line in told.stdout.splitlines() if line} - {("tidegate", "v0.1.0")}


def names():
    """Returns the names in the library's documentation."""
    target = Path("target/cost")
    command = ["cargo", "doc", "--locked", "--quiet", "--no-deps", "--package", "tidegate", "--target-dir", str(target)]
    if subprocess.run(command, env={**os.environ, "RUSTDOCFLAGS": "-D warnings"}).returncode != 0:
        raise local.Failed(1)
    return len(LISTED.findall((target / "doc" / "tidegate" / "all.html").read_text()))


if __name__ == "__main__":
    local.run_script(main)
