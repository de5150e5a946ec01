#!/usr/bin/env python3
"""Part of `make check`: keeps docs/requirements.md consistent with the tests. The name of a test that proves a requirement
begins with its id: f7_…, e2_e3_….

`check` fails for an id in a test name or a comment that the page does not contain, a requirement without a proof, a proof
that does not exist, a test in docs/threats.md or docs/reliability.md that does not exist, and a comment that cites a decision by number, because
decisions have no numbers. `write` puts the names of the tests into the page. The sentences are written by hand.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"
SOURCES = ["src", "crates", "tests"]
ROW = re.compile(r"^\| ([A-F]\d+) \| (.+?) \| (.*) \|$", re.MULTILINE)
TEST = re.compile(r"\bfn ((?:[a-fi]\d+_)+\w+)\(")
IDS = re.compile(r"(?:[a-fi]\d+_)+")
# The format of citations in comments: (B13), (E2, E3).
CITED = re.compile(r"\(((?:[A-F]\d+(?:, )?)+)\)")
# The pages that name tests, such as `roles::what_people_type_…`.
NAMING = [ROOT / "docs" / name for name in ("threats.md", "reliability.md")]
NAMED = re.compile(r"`(?:[a-z/_]+::)?([a-z0-9]+(?:_[a-z0-9]+){3,})`")
DECISION = re.compile(r"\bdecisions? \d+")
# Requirements that are proven by something else than a test with that name.
OTHERWISE = {
    "E6": "`compile_fail` in `dispatch.rs`",
}
MOST_TOLD = 3


def main():
    if sys.argv[1:] not in (["write"], ["check"]):
        print(f"usage: {sys.argv[0]} write|check", file=sys.stderr)
        return 2
    page = PAGE.read_text()
    tests, cited = proofs()
    if sys.argv[1] == "write":
        PAGE.write_text(ROW.sub(lambda row: f"| {row[1]} | {row[2]} | {proof(row[1], tests)} |", page))
        return 0
    rows = {row[1]: row[3] for row in ROW.finditer(page)}
    wrong = [f"{name} is not in {PAGE.relative_to(ROOT)}" for name in sorted((set(tests) | cited) - set(rows))]
    wrong += [f"{name}: no test proves it" for name in rows if not proof(name, tests)]
    wrong += [f"{name}: `python3 scripts/requirements.py write` names other tests" for name, told in rows.items()
              if told != proof(name, tests)]
    wrong += decisions() + named()
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(rows)} requirements, each with its proof")
    return int(bool(wrong))


def proofs():
    """Returns the tests of each requirement, and the requirements that comments cite."""
    tests, cited = {}, set()
    for file in sorted(file for source in SOURCES for file in (ROOT / source).rglob("*.rs")):
        text = file.read_text()
        for test in TEST.findall(text):
            for name in IDS.match(test)[0].strip("_").upper().split("_"):
                if not name.startswith("I"):
                    tests.setdefault(name, []).append(f"{place(file)}::{test}")
        for names in CITED.findall(text):
            cited.update(names.split(", "))
    return tests, cited


def decisions():
    """Returns lines that cite a decision by its number."""
    files = sorted(file for source in SOURCES for ending in ("rs", "sql") for file in (ROOT / source).rglob(f"*.{ending}"))
    lines = [(file, n, line) for file in files for n, line in enumerate(file.read_text().splitlines(), 1)]
    return [f"{file.relative_to(ROOT)}:{n}: a decision has no number: say what was decided" for file, n, line in lines
            if DECISION.search(line)]


def named():
    """Returns tests that a page names but that do not exist."""
    code = "\n".join(file.read_text() for source in SOURCES for file in (ROOT / source).rglob("*.rs"))
    there = set(re.findall(r"\bfn (\w+)\(", code))
    return [f"{page.relative_to(ROOT)}: there is no test {name}" for page in NAMING for name in NAMED.findall(page.read_text())
            if name not in there]


def place(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return "/".join(part for part in parts if part not in ("src", "crates", "tests", "mod"))


def proof(name, tests):
    named = [f"`{test}`" for test in tests.get(name, [])]
    more = [f"and {len(named) - MOST_TOLD} more"] if len(named) > MOST_TOLD else []
    return "; ".join([OTHERWISE[name]] if name in OTHERWISE else named[:MOST_TOLD] + more)


if __name__ == "__main__":
    sys.exit(main())
