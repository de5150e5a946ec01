#!/usr/bin/env python3
"""Removes one guard at a time from a copy of the project, and runs the test that must notice it.

It is an error if the test does not notice the removed guard, or if the text of a mutant is no longer in the source. Before the first
mutant, every named test runs on the unchanged copy and must pass. A mutant of SQL alone needs no build: the built programs hold the
text of each SQL file, and it is replaced there. What `queue scenes::` and the model take away themselves is not repeated here.
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

from local import Failed, cargo_flags, environment, output, run_script
from tools import PROJECT

TABLE = PROJECT / "tests" / "mutants.toml"
BUILT = PROJECT / "target" / "mutants-build"
RUN_LIMIT_S = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names, or rows such as B14; without any, all mutants")
    parser.add_argument("--texts", action="store_true", help="only see that every text is there")
    arguments = parser.parse_args()
    parts, mutants = arguments.names, tomllib.loads(TABLE.read_text())["mutant"]
    chosen = [one for one in mutants if not parts or any(part in one["name"] or part in one.get("proves", []) for part in parts)]
    if not chosen:
        print("no mutant has such a name; there are:", *(mutant["name"] for mutant in mutants), sep="\n  ", file=sys.stderr)
        return 2
    tree = PROJECT if arguments.texts else copy_of_project()
    # Check all texts first, so that a moved guard is reported before any mutant runs.
    for mutant in chosen:
        mutated(tree, mutant)
    if arguments.texts:
        print(f"the texts of all {len(chosen)} mutants are there")
        return 0
    tests = sorted({tuple(mutant["test"].split()) for mutant in chosen})
    for target in sorted({target for target, _ in tests}):
        names = [name for of, name in tests if of == target]
        for some in [[name] for name in names] if target == "torture" else [names]:  # which takes one at a time
            if (done := run(build(tree, target)[-1], *some)).returncode != 0 or f" {len(some)} passed" not in done.stdout:
                print(f"{done.stdout}\nwithout any mutant, one of these fails, or is not there: {', '.join(some)}", file=sys.stderr)
                return 1
    # Those of SQL first, because each of the others is built.
    chosen.sort(key=lambda mutant: (not is_sql(mutant), mutant["test"].split()[0]))
    survivors = [mutant["name"] for mutant in chosen if not is_noticed(tree, mutant)]
    shutil.rmtree(tree)
    if survivors:
        print("survived:", *survivors, sep="\n  ", file=sys.stderr)
        return 1
    print(f"all {len(chosen)} mutants were noticed")
    return 0


def copy_of_project():
    """Copies the files that git tracks or would add, as they are on disk. The copy is built in its own target folder, because cargo
    would otherwise use a mutant's program for the project's. Its files are new, because cargo would otherwise use the last mutant's."""
    tree = PROJECT / "target" / "mutants"
    shutil.rmtree(tree, ignore_errors=True)
    for name in output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split("\0"):
        if (PROJECT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, tree / name)
    return tree


def mutated(tree, mutant):
    """Returns the files of a mutant, by path."""
    texts = {}
    for change in mutant["change"]:
        path, there, times = change["file"], change["text"], change.get("times", 1)
        text = texts.get(path) or (tree / path).read_text()
        if text.count(there) != times:
            print(f"{mutant['name']}: {path} holds this {text.count(there)} times, not {times}:\n{there}", file=sys.stderr)
            raise Failed(1)
        texts[path] = text.replace(there, change["instead"])
    return texts


def is_sql(mutant):
    return all(change["file"].endswith(".sql") for change in mutant["change"])


def is_noticed(tree, mutant):
    texts, (target, name) = mutated(tree, mutant), mutant["test"].split()
    sound = {path: (tree / path).read_text() for path in texts}
    programs = build(tree, target) if is_sql(mutant) else []

    def put(there, instead):
        for path, text in instead.items():
            if programs:
                size = len(sound[path].encode())
                replace(programs, fitted(there[path], size), fitted(text, size))
            else:
                (tree / path).write_text(text)

    try:
        put(sound, texts)
        done = run((programs or build(tree, target))[-1], name)
    finally:
        put(texts, sound)
    reason = failure(done)
    print(f"noticed   {mutant['name']}\n          {reason}" if reason else f"SURVIVED  {mutant['name']}\n{done.stdout}", flush=True)
    return reason


def fitted(text, size):
    """Returns the text at this length: a longer one without its last comments, a shorter one with empty lines."""
    while len(text.encode()) > size and "\n--" in text:
        text = re.sub(r"(?s)(.*\n)--[^\n]*\n", r"\1", text, count=1)
    return text.encode().ljust(size, b"\n")


def replace(programs, there, instead):
    """Replaces a text wherever these programs hold it."""
    places = 0
    for program, _ in programs:
        with open(program, "r+b") as file, mmap.mmap(file.fileno(), 0) as held:
            while (at := held.find(there)) >= 0:
                held[at:at + len(there)] = instead
                places += 1
    if places == 0:
        print(f"no program holds a sound text; remove {BUILT}", file=sys.stderr)
        raise Failed(1)


def failure(done):
    """Returns the line that says why a test failed or never ended, if so, and not for want of a schema."""
    found = re.search(r"^.*(violation of |panicked at |no end within ).*$", done.stdout, re.MULTILINE)
    return found.group(0).strip()[:150] if done.returncode != 0 and found and "is migrated: " not in done.stdout else None


def build(tree, target):
    """Returns the programs of a test, each with the folder of its crate; its own comes last."""
    of_crate = ["-p", target, "--lib"] if (tree / "crates" / target).is_dir() else ["--workspace", "--test", target]
    flags = ["--quiet", "--no-run", "--target-dir", BUILT, "--message-format=json-render-diagnostics", *cargo_flags()]
    told = output(["cargo", "test", *flags, *(["--lib"] if target == "lib" else of_crate)], cwd=tree, env=environment()).splitlines()
    made = [json.loads(line) for line in told if '"executable":"' in line]
    return [(one["executable"], Path(one["manifest_path"]).parent) for one in sorted(made, key=lambda one: one["profile"]["test"])]


def run(built, *names):
    try:
        return subprocess.run([built[0], "--exact", *names], cwd=built[1], env={**environment(), "RUST_BACKTRACE": "0"}, text=True,
                              timeout=RUN_LIMIT_S * len(names), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as over:
        told = (over.stdout or b"").decode(errors="replace")
        return subprocess.CompletedProcess(built, 1, f"{told}\nno end within {RUN_LIMIT_S} s")


if __name__ == "__main__":
    run_script(main)
