#!/usr/bin/env python3
"""Part of `make check`: what no compiler notices. `requirements write` puts the names of tests into tests/requirements.md.

No circles: modules of a crate, and those of each folder in it, do not import each other in a cycle. Modules are the files and
folders directly under a folder, including everything in them. Only `crate::` and `super::` paths count, except in tests. A crate's
lib.rs or main.rs and a folder's mod.rs may name everything, because they are the entry points.

Each requirement of tests/requirements.md has a test. Its name begins with the id: f7_…, e2_e3_…. And a mutant of tests/mutants.toml
takes out what the requirement promises, which such a test notices. No id is made up, and no page or mutant names a test that does not
exist.

`features`, a nightly run: each crate has no warning with each of its features alone.

`cost`: the library costs a program that uses it without features so many crates and public names at most. Raise a limit only on
purpose."""

import os
import re
import sys
import tomllib
from pathlib import Path

import local
import tools
from tools import PROJECT as ROOT

CARGO_HACK = "cargo-hack==0.6.45"
# By convention, everything after `#[cfg(test)]` in a file is its tests.
TESTS = re.compile(r"^#\[cfg\(.*\btest\b.*\)\]\s*\n(?:pub(?:\(crate\))? )?mod \w+ \{", re.MULTILINE)
COMMENT = re.compile(r"//.*")
# In these, `super::` is the file itself.
INLINE = re.compile(r"^(?:pub(?:\([\w:]+\))? )?mod \w+ \{.*?^\}", re.MULTILINE | re.DOTALL)
IMPORTED = r"(\{[^;]*?\}|\w+)"
PAGE = ROOT / "tests" / "requirements.md"
MUTANTS = ROOT / "tests" / "mutants.toml"
SOURCES = ["src", "crates", "tests"]
ROW = re.compile(r"^- \*\*([A-F]\d+)\*\* (.+) \((.*)\)$", re.MULTILINE)
TEST = re.compile(r"\bfn ((?:[a-fi]\d+_)+\w+)\(")
IDS = re.compile(r"(?:[a-fi]\d+_)+")
# The format of citations in comments: (B13), (E2, E3).
CITED = re.compile(r"\(((?:[A-F]\d+(?:, )?)+)\)")
# The pages that name tests, such as `roles::what_people_type_…`.
NAMING = [ROOT / "docs" / name for name in ("contributors/threats.md", "concepts/reliability.md")]
NAMED = re.compile(r"`(?:[a-z/_]+::)?([a-z0-9]+(?:_[a-z0-9]+){3,})`")
# Requirements that are proven by something else than a test with that name.
OTHERWISE = {
    # What it promises is that something does not compile, which no mutant can take out.
    "E6": "`compile_fail` in `dispatch.rs`",
}
# One of the names is for shared calls: Batch. Two are for what a migration stores: StoredSettings, Payloads. Three are for queues in
# schemas of other names: Client, Transaction, Schema.
DIRECT, TOTAL, NAMES = 14, 123, 86
LISTED = re.compile(r'<li><a href="[^"]+">[^<]+</a></li>')


def main():
    match sys.argv[1:]:
        case []:
            wrong = circles() + requirements()
        case ["requirements", "write"]:
            tests, _ = proofs()
            PAGE.write_text(ROW.sub(lambda row: f"- **{row[1]}** {row[2]} ({proof(row[1], tests)})", PAGE.read_text()))
            return 0
        case ["cost"]:
            wrong = cost()
        case ["features"]:
            local.ran([tools.cargo_command(CARGO_HACK), *"hack clippy --each-feature --workspace --lib --bins --locked -- -D warnings".split()])
            return 0
        case _:
            sys.exit(f"usage: {sys.argv[0]} [cost | features | requirements write]")
    return local.verdict(wrong, "nothing is wrong that no compiler notices")


def code_of(file):
    """Returns the source without tests and comments."""
    text = file.read_text()
    tests = TESTS.search(text)
    return COMMENT.sub("", text[:tests.start()] if tests else text)


def modules(folder):
    """Returns the folder's modules, each with its files."""
    found = {}
    for file in sorted(folder.rglob("*.rs")):
        first = file.relative_to(folder).parts[0].removesuffix(".rs")
        if first not in ("lib", "main", "bin", "mod"):
            found.setdefault(first, []).append(file)
    return found


def imports(files, names, folder, source):
    """Returns the modules of the folder that these files name."""
    found = set()
    inner = "".join(f"{part}::" for part in folder.relative_to(source).parts)
    for file in files:
        ups = len(file.relative_to(folder).parts) - (file.name == "mod.rs")
        path = re.compile(rf"(?:\bcrate::{inner}|(?<![\w:]){'super::' * ups}){IMPORTED}", re.DOTALL)
        for match in path.finditer(INLINE.sub("", code_of(file))):
            words = re.findall(r"(?:^\{|,)\s*(\w+)", match[1]) if match[1].startswith("{") else [match[1]]
            found.update(word for word in words if word in names)
    return found


def circle(graph):
    """Returns a cycle of modules that leads back to the first one, or nothing."""
    done = set()

    def walk(name, path):
        if name in path:
            return path[path.index(name):] + [name]
        if name in done:
            return None
        for other in sorted(graph[name]):
            if found := walk(other, path + [name]):
                return found
        done.add(name)
        return None

    for name in sorted(graph):
        if found := walk(name, []):
            return found
    return None


def circles():
    wrong = []
    for manifest in [ROOT / "Cargo.toml", *sorted(ROOT.glob("crates/*/Cargo.toml"))]:
        source = manifest.parent / "src"
        for folder in [source, *sorted(file.parent for file in source.rglob("mod.rs"))]:
            found = modules(folder)
            graph = {name: imports(files, found, folder, source) - {name} for name, files in found.items()}
            if way := circle(graph):
                wrong.append(f"{folder.relative_to(ROOT)}: modules import each other in a circle: {' -> '.join(way)}")
    print(f"{len(wrong)} circles of modules")
    return wrong


def requirements():
    tests, cited = proofs()
    rows = {row[1]: row[3] for row in ROW.finditer(PAGE.read_text())}
    wrong = [f"{name} is not in {PAGE.relative_to(ROOT)}" for name in sorted((set(tests) | cited) - set(rows))]
    wrong += [f"{name}: no test proves it" for name in rows if not proof(name, tests)]
    wrong += [f"{name}: `python3 scripts/check.py requirements write` names other tests" for name, told in rows.items() if told != proof(name, tests)]
    print(f"{len(rows)} requirements with their proofs")
    return wrong + unbroken(rows) + named()


def unbroken(rows):
    """Returns requirements that no mutant breaks, and mutants whose test is not one of the requirement that they break."""
    broken = [(row, mutant) for mutant in tomllib.loads(MUTANTS.read_text())["mutant"] for row in mutant.get("proves", [])]
    wrong = [f"{row}: no mutant in {MUTANTS.name} `proves` it" for row in rows if row not in {*OTHERWISE, *dict(broken)}]
    return wrong + [f"mutant {mutant['name']}: its test does not name {row}" for row, mutant in broken if row not in ids(mutant["test"])]


def ids(test):
    """Returns the requirements in the name of a test, with or without its path."""
    found = IDS.match(test.split("::")[-1])
    return found[0].strip("_").upper().split("_") if found else []


def proofs():
    """Returns the tests of each requirement, and the requirements that comments cite."""
    tests, cited = {}, set()
    for file in sorted(file for source in SOURCES for file in (ROOT / source).rglob("*.rs")):
        text = file.read_text()
        for test in TEST.findall(text):
            for name in ids(test):
                if not name.startswith("I"):
                    tests.setdefault(name, []).append(f"{place(file)}::{test}")
        for names in CITED.findall(text):
            cited.update(names.split(", "))
    return tests, cited


def named():
    """Returns tests that a page names but that do not exist, and mutants whose crate or program lacks their test."""
    there = {name for source in SOURCES for file in (ROOT / source).rglob("*.rs") for name in re.findall(r"\bfn (\w+)\(", file.read_text())}
    wrong = [f"{page.name}: there is no test {name}" for page in NAMING for name in NAMED.findall(page.read_text()) if name not in there]
    mutants = tomllib.loads(MUTANTS.read_text())["mutant"]
    return wrong + [f"mutant {one['name']}: there is no test {one['test']}" for one in mutants if not held(*one["test"].split())]


def held(target, test):
    """Returns whether the crate's unit tests, or the program of this name, have this test."""
    own = "src/**/*.rs" if target == "lib" else f"crates/{target}/src/**/*.rs tests/{target}/**/*.rs crates/*/tests/{target}/**/*.rs crates/*/tests/{target}.rs"
    return any(f"fn {test.split('::')[-1]}(" in file.read_text() for glob in own.split() for file in ROOT.glob(glob))


def place(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return "/".join(part for part in parts if part not in ("src", "crates", "tests", "mod"))


def proof(name, tests):
    """Returns the first test of a requirement, and how many more there are."""
    first, *more = [OTHERWISE[name]] if name in OTHERWISE else [f"`{test}`" for test in tests.get(name, [])] or [""]
    return f"{first}, +{len(more)}" if more else first


def cost():
    counts = {"direct crates": (len(crates("--depth", "1")), DIRECT), "crates in all": (len(crates()), TOTAL), "public names": (names(), NAMES),}
    for what, (count, most) in counts.items():
        print(f"tidegate without features: {count} {what}, at most {most}")
    return [f"too many {what}" for what, (count, most) in counts.items() if count > most]


def crates(*options):
    """Returns the crates that the library is linked with."""
    command = ["cargo", "tree", "--locked", "--package", "tidegate", "--edges", "normal", "--prefix", "none", "--format", "{p}"]
    told = local.output([*command, *options])
    return {tuple(line.split()[:2]) for line in told.splitlines() if line} - {("tidegate", "v0.1.0"), ("tidegate-core", "v0.1.0")}


def names():
    """Returns the names in the library's documentation."""
    target = Path("target/cost")
    command = ["cargo", "doc", "--locked", "--quiet", "--no-deps", "--package", "tidegate", "--target-dir", str(target)]
    local.ran(command, env={**os.environ, "RUSTDOCFLAGS": "-D warnings"})
    return len(LISTED.findall((target / "doc" / "tidegate" / "all.html").read_text()))


if __name__ == "__main__":
    local.run_script(main)
