#!/usr/bin/env python3
"""`make fuzz`: runs libFuzzer to find inputs that break a decoder, guided by code coverage.

TARGET=name runs one target of fuzz/targets.rs, otherwise all run in turn. SECONDS=600 runs longer than a minute each. It starts
with the stored inputs in tests/fuzz/corpus/, and stores what it finds in target/fuzz/. KEEP=10 adds ten of these to the
corpus: those that reach most code that no stored input reaches. A stable compiler is enough: LLVM provides the coverage
marks, and Rust guards memory.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import local
from pypi import PROJECT, Unavailable

KEPT = PROJECT / "tests" / "fuzz" / "corpus"
FOUND = PROJECT / "target" / "fuzz"
# People read a stored input, and every `cargo test` replays it.
KEPT_BYTES = 4096
MARKS = ["level=4", "inline-8bit-counters", "pc-table", "trace-compares"]
FLAGS = ["--cfg", "fuzzing", "-Cpasses=sancov-module", *(f"-Cllvm-args=-sanitizer-coverage-{mark}" for mark in MARKS),
         "-Cllvm-args=-simplifycfg-branch-fold-threshold=0"]


def main():
    targets = [os.environ["TARGET"]] if os.environ.get("TARGET") else sorted(path.name for path in KEPT.iterdir())
    seconds, keep = _number("SECONDS", 60, 1), _number("KEEP", 0, 0)
    program = _build()
    broken = [target for target in targets if not _fuzz(program, target, seconds, keep)]
    if broken:
        print(f"broken: {' '.join(broken)}; the inputs are in {FOUND.relative_to(PROJECT)}/broken/", file=sys.stderr)
    return 1 if broken else 0


def _number(name, default, least):
    text = os.environ.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        raise Unavailable(f"{name}: must be {least} to 999999, got {text!r}")
    return int(text)


def _build():
    """With a target named, the coverage marks are in the program but not in its build scripts."""
    told = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, check=True, text=True).stdout
    host = re.search(r"^host: (.+)$", told, re.MULTILINE)[1]
    command = ["cargo", "build", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target", host, "--target-dir", FOUND]
    environment = {**local.environment(), "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(FLAGS)}
    if subprocess.run([str(part) for part in command], env=environment).returncode != 0:
        raise local.Failed(1)
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
    limits = [f"-max_total_time={seconds}", "-max_len=16384", "-timeout=10", f"-artifact_prefix={broken}/", "-verbosity=0",
              "-print_final_stats=1"]
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
        if subprocess.run([program, *merge], env=environment).returncode != 0:
            raise local.Failed(1)
        new = [path for path in Path(chosen).iterdir() if not (kept / path.name).exists()]
        for path in sorted(new, key=lambda path: path.stat().st_mtime_ns)[:most]:
            shutil.copyfile(path, kept / path.name)


if __name__ == "__main__":
    local.run_script(main)
