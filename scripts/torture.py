#!/usr/bin/env python3
"""`make torture`: everything that looks for a broken promise, in its long form, for DURATION, with one verdict.

A wider search of the model's states (once, however long it takes), random scripts against a sequential model, load,
and rounds of killed workers and servers, which get most of the time. Each is begun at least once, so that the shortest
run takes minutes. SEED=7 repeats the choices of the scripts and of the rounds.
"""

import os
import re
import subprocess
import sys
import time

import local
from pypi import Unavailable

UNITS = {"s": 1, "m": 60, "h": 3600}
# Of the time that the model's search has left.
SCRIPTS, LOAD = 0.15, 0.15
# One start of the tests: long enough for the start not to count, short enough for the time to be kept.
CASES = 300


def main():
    ends = time.monotonic() + _seconds(os.environ.get("DURATION") or "5m")
    flags = local.cargo_flags()
    began = time.monotonic()
    # What is built now is not time spent on looking.
    for built in (["--release", "--test", "model"], ["--test", "it", "--test", "torture"]):
        _run(["cargo", "test", *flags, *built, "--no-run"], {}, must=True)
    ends += time.monotonic() - began
    kept = {"model": _model(flags)}
    left = max(0, ends - time.monotonic())
    kept["scripts"] = _scripts(flags, left * SCRIPTS)
    kept["load"] = _load(flags, left * LOAD)
    kept["faults"] = _faults(flags, max(0, ends - time.monotonic()))
    broken = [part for part, is_kept in kept.items() if not is_kept]
    told = f"BROKEN, see above: {' '.join(broken)}" if broken else "every promise was kept"
    print(f"\nverdict of {', '.join(kept)}: {told}", flush=True)
    return 1 if broken else 0


def _seconds(text):
    parts = re.findall("([0-9]+)([smh])", text)
    if "".join(number + unit for number, unit in parts) != text:
        raise Unavailable(f"DURATION: must be a time such as 90s, 10m or 8h, got {text!r}")
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def _model(flags):
    return _run(["cargo", "test", *flags, "--release", "--test", "model", "--", "--ignored", "--nocapture"], {})


def _scripts(flags, seconds):
    """As many as there is time for; a seed is that of the first."""
    until, seed, scripts = time.monotonic() + seconds, os.environ.get("SEED"), 0
    while True:
        variables = {"PROPTEST_CASES": str(CASES)}
        if seed:
            variables["PROPTEST_RNG_SEED"] = str(int(seed) + scripts)
        if not _run(["cargo", "test", *flags, "--test", "it", "script::i1_i7"], variables, quiet=True):
            return False
        scripts += CASES
        if time.monotonic() >= until:
            print(f"scripts: {scripts}, every one as the model says", flush=True)
            return True


def _load(flags, seconds):
    command = ["cargo", "test", *flags, "--test", "it", "steady::", "--", "--nocapture"]
    return _run(command, {"TIDEGATE_LOAD_DURATION": f"{seconds:.0f}s"})


def _faults(flags, seconds):
    variables = {"TIDEGATE_TORTURE_DURATION": f"{seconds:.0f}s", "TIDEGATE_TORTURE_SEED": os.environ.get("SEED", "")}
    return _run(["cargo", "test", *flags, "--test", "torture"], variables)


def _run(command, variables, quiet=False, must=False):
    """Whether it went well; what it says is shown, or only when it did not."""
    shown = " ".join([*(f"{name}={value}" for name, value in variables.items() if value), *command])
    print(f"\n$ {shown}", flush=True)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if quiet else {}
    done = subprocess.run(command, env={**os.environ, **variables}, **options)
    if done.returncode != 0 and quiet:
        print(done.stdout)
    if done.returncode != 0 and must:
        raise local.Failed(1)
    return done.returncode == 0


if __name__ == "__main__":
    local.run_script(main)
