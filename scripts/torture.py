#!/usr/bin/env python3
"""`make torture`: runs all long tests that try to break a promise, for DURATION, with one verdict.

These are a larger search of the model's states (once, however long it takes), random scripts compared with a sequential
model, load, and rounds of killed workers and servers, which get most of the time. Each part runs at least once, so the
shortest run takes minutes. SEED=7 repeats the choices of the scripts and the rounds.
"""

import os
import re
import subprocess
import sys
import time

import local
from pypi import Unavailable

UNITS = {"s": 1, "m": 60, "h": 3600}
# Shares of the time that the model's search leaves.
SCRIPTS, LOAD = 0.15, 0.15
# Cases in one start of the tests: enough that the start does not matter, and few enough to keep to the time.
CASES = 300


def main():
    ends = time.monotonic() + _seconds(os.environ.get("DURATION") or "5m")
    flags = local.cargo_flags()
    began = time.monotonic()
    # Builds now, so that this time does not count as test time.
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
    """Runs as many scripts as there is time for. The seed is that of the first one."""
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
    """Returns whether it succeeded. Shows its output always, or only if it failed."""
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
