#!/usr/bin/env python3
"""Removes one guard at a time from a copy of the project, and runs the test that must notice it.

It is an error if the test does not notice the removed guard, or if the text of a mutant is no longer in the source. Before the first
mutant, every named test runs on the unchanged copy and must pass. A mutant of SQL alone needs no build: the built programs hold the
text of each SQL file, and it is replaced there. The model of the protocol holds no code of ours and so no mutants: `cargo test --test
model` takes guards away from the model itself, as tests/it/scenes.rs does from the functions of the database. What it takes away is
not repeated here.
"""

import argparse
import json
import mmap
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from local import Failed, cargo_flags, environment, run_script
from tools import PROJECT

TABLE = PROJECT / "tests" / "mutants.toml"
BUILD_LIMIT_S = 900
RUN_LIMIT_S = 300


class Mutant:
    """A name, the test that must fail as a target and a name, and changes: file, exact text, its replacement, and how often the
    text occurs if not once. `proves`: the rows of docs/requirements.md whose promise it breaks."""

    def __init__(self, name, test, change, proves=()):
        self.name, self.test, self.changes, self.proves = name, tuple(test.split(" ", 1)), change, proves
        self.is_sql = all(one["file"].endswith(".sql") for one in change)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names, or rows such as B14; without any, all mutants")
    parser.add_argument("--texts", action="store_true", help="only see that every text is there")
    arguments = parser.parse_args()
    parts, mutants = arguments.names, [Mutant(**entry) for entry in tomllib.loads(TABLE.read_text())["mutant"]]
    chosen = [mutant for mutant in mutants if not parts or any(part in mutant.name or part in mutant.proves for part in parts)]
    if not chosen:
        print("no mutant has such a name; there are:", *(mutant.name for mutant in mutants), sep="\n  ", file=sys.stderr)
        return 2
    tree = PROJECT if arguments.texts else copy_of_project()
    # Check all texts first, so that a moved guard is reported before any mutant runs.
    for mutant in chosen:
        mutated(tree, mutant)
    if arguments.texts:
        print(f"the texts of all {len(chosen)} mutants are there")
        return 0
    for target in sorted({mutant.test[0] for mutant in chosen}):
        names = sorted({mutant.test[1] for mutant in chosen if mutant.test[0] == target})
        done = run(tree, target, build(tree, target)[-1], *names)
        if done.returncode != 0 or not re.search(f"{len(names)} passed", done.stdout):
            print(f"{done.stdout}\nwithout any mutant, one of these fails, or is not there: {', '.join(names)}", file=sys.stderr)
            return 1
    # Those of SQL first, because the others are built.
    survivors = [mutant.name for mutant in sorted(chosen, key=lambda one: (not one.is_sql, one.test[0])) if not is_noticed(tree, mutant)]
    shutil.rmtree(tree)
    if survivors:
        print("survived:", *survivors, sep="\n  ", file=sys.stderr)
        return 1
    print(f"all {len(chosen)} mutants were noticed")
    return 0


def copy_of_project():
    """Copies the files that git tracks or would add, as they are on disk. The copy is built in its own target folder,
    because cargo would otherwise use a mutant's program for the project's."""
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
    """Returns the files of a mutant, by path."""
    texts = {}
    for change in mutant.changes:
        path, there, times = change["file"], change["text"], change.get("times", 1)
        text = texts.get(path) or (tree / path).read_text()
        if text.count(there) != times:
            print(f"{mutant.name}: {path} holds this {text.count(there)} times, not {times}:\n{there}", file=sys.stderr)
            raise Failed(1)
        texts[path] = text.replace(there, change["instead"])
    return texts


def is_noticed(tree, mutant):
    texts, target = mutated(tree, mutant), mutant.test[0]
    sound = {path: (tree / path).read_text() for path in texts}
    programs = build(tree, target) if mutant.is_sql else []

    def put(there, instead):
        for path, text in instead.items():
            size = len(sound[path].encode())
            if mutant.is_sql:
                replace(programs, fitted(there[path], size), fitted(text, size))
            else:
                (tree / path).write_text(text)

    try:
        put(sound, texts)
        done = run(tree, target, (programs or build(tree, target))[-1], mutant.test[1])
    finally:
        put(texts, sound)
    reason = failure(done)
    print(f"noticed   {mutant.name}\n          {reason}" if reason else f"SURVIVED  {mutant.name}\n{done.stdout}", flush=True)
    return bool(reason)


def fitted(text, size):
    """Returns the text at this length: a longer one without its last comments, a shorter one with empty lines."""
    while len(text.encode()) > size:
        before, comment, behind = re.split(r"(?s)(.*\n) *(--[^\n]*)\n", text, maxsplit=1)[1:]
        text = before + behind
    return text.encode().ljust(size, b"\n")


def replace(programs, there, instead):
    """Replaces a text wherever these programs hold it."""
    places = 0
    for program in programs:
        with program.open("r+b") as file, mmap.mmap(file.fileno(), 0) as held:
            at = held.find(there)
            while at >= 0:
                held[at:at + len(instead)] = instead
                places, at = places + 1, held.find(there, at + len(instead))
    if places == 0:
        print(f"no program holds this text; target/mutants-build must be built anew:\n{there[:200]}", file=sys.stderr)
        raise Failed(1)


def failure(done):
    """Returns the line that says why a test failed, if one did, and not for want of a schema."""
    found = re.search(r"^.*(violation of |panicked at ).*$", done.stdout, re.MULTILINE)
    return found.group(0).strip()[:150] if done.returncode != 0 and found and "is migrated: " not in done.stdout else None


def build(tree, target):
    """Returns the programs of a test; its own comes last."""
    flags = ["--message-format=json-render-diagnostics", *cargo_flags()]
    chosen = {"lib": ["--lib"], "tidegate": ["-p", "tidegate", "--lib"]}.get(target, ["--test", target])
    variables = {**environment(), "CARGO_TARGET_DIR": str(PROJECT / "target" / "mutants-build")}
    done = subprocess.run(["cargo", "test", "--quiet", "--no-run", *flags, *chosen], cwd=tree, env=variables, text=True, timeout=BUILD_LIMIT_S,
                          stdout=subprocess.PIPE)
    if done.returncode != 0:
        print("a mutant does not compile", file=sys.stderr)
        raise Failed(1)
    made = [json.loads(line) for line in done.stdout.splitlines() if '"executable":"' in line]
    return [Path(one["executable"]) for one in sorted(made, key=lambda one: one["profile"]["test"])]


def run(tree, target, program, *names):
    folder = tree / "crates" / "tidegate" if target == "tidegate" else tree
    try:
        return subprocess.run([program, "--exact", *names], cwd=folder, env={**environment(), "RUST_BACKTRACE": "0"}, text=True,
                              timeout=RUN_LIMIT_S * len(names), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as over:
        told = (over.stdout or b"").decode(errors="replace")
        return subprocess.CompletedProcess(program, 1, f"{told}\nno end within {RUN_LIMIT_S} s")


if __name__ == "__main__":
    run_script(main)
