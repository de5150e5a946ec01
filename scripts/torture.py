#!/usr/bin/env python3
"""`make torture`: runs all long tests that try to break a promise, for DURATION, with one verdict.

These are a larger search of the model's states (once, however long it takes), load, and rounds of killed workers and servers, which
get most of the time. Each part runs at least once, so the shortest run takes minutes. SEED=7 repeats the choices of the rounds.

`make fuzz` (`torture.py fuzz`): runs libFuzzer to find inputs that break a decoder, guided by code coverage. TARGET=name runs one
target of fuzz/targets.rs, otherwise all run in turn. SECONDS=600 runs longer than a minute each. It starts with the stored inputs
in tests/fuzz/corpus/, and stores what it finds in target/fuzz/. KEEP=10 adds ten of these to the corpus: those that reach most code
that no stored input reaches. A stable compiler is enough: LLVM provides the coverage marks, and Rust guards memory."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import local
from tools import PROJECT, Unavailable

UNITS = {"s": 1, "m": 60, "h": 3600}
# The share of the time that the model's search leaves.
LOAD = 0.15
KEPT = PROJECT / "tests" / "fuzz" / "corpus"
FOUND = PROJECT / "target" / "fuzz"
# People read a stored input, and every `cargo test` replays it.
KEPT_BYTES = 4096
MARKS = ["level=4", "inline-8bit-counters", "pc-table", "trace-compares"]
FLAGS = ["--cfg", "fuzzing", "-Cpasses=sancov-module", *(f"-Cllvm-args=-sanitizer-coverage-{mark}" for mark in MARKS), "-Cllvm-args=-simplifycfg-branch-fold-threshold=0"]


def main():
    return fuzz() if sys.argv[1:] == ["fuzz"] else torture()


def torture():
    ends = time.monotonic() + _seconds(os.environ.get("DURATION") or "5m")
    flags = local.cargo_flags()
    began = time.monotonic()
    # Builds now, so that this time does not count as test time.
    for built in (["-p", "tidegate", "--release", "--test", "model"], ["--test", "programs", "--test", "torture"]):
        _run(["cargo", "test", *flags, *built, "--no-run"], {}, must=True)
    ends += time.monotonic() - began
    kept = {"model": _run(["cargo", "test", *flags, "-p", "tidegate", "--release", "--test", "model", "--", "--ignored", "--nocapture"], {})}
    load = {"TIDEGATE_LOAD_DURATION": f"{max(0, ends - time.monotonic()) * LOAD:.0f}s"}
    kept["load"] = _run(["cargo", "test", *flags, "--test", "programs", "steady::", "--", "--nocapture"], load)
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


def _faults(flags, seconds):
    variables = {"TIDEGATE_TORTURE_DURATION": f"{seconds:.0f}s", "TIDEGATE_TORTURE_SEED": os.environ.get("SEED", "")}
    return _run(["cargo", "test", *flags, "--test", "torture"], variables)


def _run(command, variables, must=False):
    """Returns whether it succeeded."""
    shown = " ".join([*(f"{name}={value}" for name, value in variables.items() if value), *command])
    print(f"\n$ {shown}", flush=True)
    done = subprocess.run(command, env={**os.environ, **variables})
    if done.returncode != 0 and must:
        raise local.Failed(1)
    return done.returncode == 0


def fuzz():
    targets = [os.environ["TARGET"]] if os.environ.get("TARGET") else sorted(path.name for path in KEPT.iterdir())
    seconds, keep = int(os.environ.get("SECONDS") or 60), int(os.environ.get("KEEP") or 0)
    program = _build()
    broken = [target for target in targets if not _fuzz(program, target, seconds, keep)]
    if broken:
        print(f"broken: {' '.join(broken)}; the inputs are in {FOUND.relative_to(PROJECT)}/broken/", file=sys.stderr)
    return 1 if broken else 0


def _build():
    """With a target named, the coverage marks are in the program but not in its build scripts."""
    host = re.search(r"^host: (.+)$", local.output(["rustc", "-vV"]), re.MULTILINE)[1]
    command = ["cargo", "build", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target", host, "--target-dir", FOUND]
    environment = {**local.environment(), "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(FLAGS)}
    local.ran(command, env=environment)
    return FOUND / host / "debug" / "fuzz"


def _fuzz(program, target, seconds, keep):
    """Returns whether no breaking input was found."""
    print(f"\n{target}, {seconds} s", flush=True)
    kept, found, broken = KEPT / target, FOUND / "corpus" / target, FOUND / "broken" / target
    if not kept.is_dir():
        known = " ".join(sorted(path.name for path in KEPT.iterdir()))
        raise Unavailable(f"TARGET: must be one of {known}, got {target!r}")
    for folder in (found, broken):
        folder.mkdir(parents=True, exist_ok=True)
    environment = {**local.environment(), "TIDEGATE_FUZZ_TARGET": target}
    limits = [f"-max_total_time={seconds}", "-max_len=16384", "-timeout=10", f"-artifact_prefix={broken}/", "-verbosity=0", "-print_final_stats=1"]
    if subprocess.run([program, *limits, found, kept], env=environment).returncode != 0:
        return False
    if keep:
        _keep(program, environment, kept, found, keep)
    return True


def _keep(program, environment, kept, found, most):
    """libFuzzer selects as many inputs as are needed for the coverage, hundreds, and writes those first that reach most."""
    with tempfile.TemporaryDirectory(dir=FOUND) as chosen:
        shutil.copytree(kept, chosen, dirs_exist_ok=True)
        merge = ["-set_cover_merge=1", f"-max_len={KEPT_BYTES}", "-verbosity=0", chosen, found]
        local.ran([program, *merge], env=environment)
        new = [path for path in Path(chosen).iterdir() if not (kept / path.name).exists()]
        for path in sorted(new, key=lambda path: path.stat().st_mtime_ns)[:most]:
            shutil.copyfile(path, kept / path.name)


if __name__ == "__main__":
    local.run_script(main)
