#!/usr/bin/env python3
"""Removes one guard at a time from a copy of the project, and runs the test that must notice it.

It is an error if the test does not notice the removed guard, or if the text of a mutant is no longer in the source. Before the first
mutant, every named test runs on the unchanged copy and must pass. The model of the protocol holds no code of ours and so no mutants:
`cargo test --test model` takes guards away from the model itself, as tests/it/scenes.rs does from the functions of the database. What
it takes away is not repeated here.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib

from local import Failed, cargo_flags, environment, run_script
from tools import PROJECT

TABLE = PROJECT / "tests" / "mutants.toml"
BUILD_LIMIT_S = 900
RUN_LIMIT_S = 300


class Mutant:
    """A name, the test that must fail as a target and a name, and changes: file, exact text, its replacement, and how often the
    text occurs if not once."""

    def __init__(self, name, test, change):
        self.name, self.test, self.changes = name, tuple(test.split(" ", 1)), change


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; without any, all mutants")
    parser.add_argument("--texts", action="store_true", help="only see that every text is there")
    arguments = parser.parse_args()
    parts, mutants = arguments.names, [Mutant(**entry) for entry in tomllib.loads(TABLE.read_text())["mutant"]]
    chosen = [mutant for mutant in mutants if not parts or any(part in mutant.name for part in parts)]
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
    for test in sorted({mutant.test for mutant in chosen}):
        build(tree, test)
        done = run(tree, test)
        if done.returncode != 0 or not re.search("[1-9][0-9]* passed", done.stdout):
            print(f"{done.stdout}\nwithout any mutant, {' '.join(test)} fails, or is not there", file=sys.stderr)
            return 1
    survivors = [mutant.name for mutant in chosen if not is_noticed(tree, mutant)]
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
    sound = {path: (tree / path).read_text() for path in {change["file"] for change in mutant.changes}}
    try:
        for path, text in mutated(tree, mutant).items():
            (tree / path).write_text(text)
        build(tree, mutant.test)
        done = run(tree, mutant.test)
    finally:
        for path, text in sound.items():
            (tree / path).write_text(text)
    reason = failure(done)
    print(f"noticed   {mutant.name}\n          {reason}" if reason else f"SURVIVED  {mutant.name}\n{done.stdout}", flush=True)
    return bool(reason)


def failure(done):
    """Returns the line that says why a test failed, if one did, and not for want of a build."""
    found = re.search(r"^.*(violation of |panicked at ).*$", done.stdout, re.MULTILINE)
    return found.group(0).strip()[:150] if done.returncode != 0 and found else None


def build(tree, test):
    if cargo(tree, BUILD_LIMIT_S, test[0], "--no-run").returncode != 0:
        print("a mutant does not compile", file=sys.stderr)
        raise Failed(1)


def run(tree, test):
    return cargo(tree, RUN_LIMIT_S, test[0], "--", "--exact", test[1], capture=True)


def cargo(tree, limit, target, *arguments, capture=False):
    chosen = {"lib": ["--lib"], "tidegate": ["-p", "tidegate", "--lib"]}.get(target, ["--test", target])
    command = ["cargo", "test", "--quiet", *cargo_flags(), *chosen, *arguments]
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
