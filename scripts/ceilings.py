#!/usr/bin/env python3
"""Part of `make check`: the figures of the house that may only fall. ceilings.toml has a ceiling for each, and where it is to go.

What rises above its ceiling fails. What falls lowers its ceiling in the same commit: `ceilings.py write` does so. A ceiling is raised
only by hand, in a commit of its own that says why. Lines are those with code: no blanks, comments or unit tests."""

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from statistics import median_high

import local
from check import code_of
from tools import PROJECT

TABLE = PROJECT / "scripts" / "ceilings.toml"
# Figures that change with every commit are rounded up, so that not every commit changes the table.
STEP = {"lines": 100}
COLUMNS = ("available_at", "dedup_key", "traceparent")
VERBS = ("requeue", "reschedule", "retire", "unblock")
FUNCTION = re.compile(r"(?is)CREATE (?:OR REPLACE )?FUNCTION [@\w.]+.*?AS (\$\w*\$)(.*?)\1")
STRUCT = re.compile(r"\bstruct \w+[^;{(]*\{(.*?)\n\s*\}", re.DOTALL)
FIELD = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?\w+\s*:", re.MULTILINE)
NAMED = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:enum|struct) (\w+)", re.MULTILINE)
TUPLE = re.compile(r"[(,]\s*\((?:\w+, )+\w+\): \(")
SETTING = re.compile(r"`(TIDEGATE_[A-Z_]+)`")
TARGET = re.compile(r"^[a-z-]+:.*## ", re.MULTILINE)


def main():
    table, now = tomllib.loads(TABLE.read_text()), figures()
    wrong = [f"{TABLE.name} must have the figures {', '.join(now)}, has {', '.join(table)}"] if table.keys() != now.keys() else []
    if sys.argv[1:] == ["write"]:
        return write({name: min(table.get(name, {"most": most})["most"], most) for name, most in now.items()}, table)
    for name, count in now.items():
        most, to = (table.get(name, {}).get(key, 0) for key in ("most", "to"))
        print(f"{name}: {count}, at most {most}, to reach {to}")
        if count > most:
            wrong.append(f"{name}: {count} is above its ceiling of {most}: cut as much, or raise it in {TABLE.name} in a commit that says why")
        if count < most:
            wrong.append(f"{name}: lower its ceiling to {count}, with `python3 scripts/ceilings.py write`")
    return local.verdict(wrong, "nothing has grown")


def write(most, table):
    head = "".join(f"{line}\n" for line in TABLE.read_text().splitlines() if line.startswith("#"))
    rows = (f'"{name}" = {{ most = {count}, to = {table.get(name, {}).get("to", count)} }}\n' for name, count in most.items())
    TABLE.write_text(head + "".join(rows))
    return 0


def figures():
    files = [Path(name) for name in local.output(["git", "ls-files", "-z"]).split("\0") if name and Path(name).is_file()]
    texts = {file: file.read_text(errors="replace") for file in files if file.name != Path(__file__).name}
    rust = {file: code_of(file) for file in files if file.suffix == ".rs" and file.parts[0] in ("crates", "src") and "tests" not in file.parts}
    sizes = Counter()
    for file, code in rust.items():
        sizes[file.parts[1] if file.parts[0] == "crates" else "job"] += lines(code)
    sql = {file: text for file, text in texts.items() if file.suffix == ".sql" and file.parts[0] in ("crates", "migrations") and "tests" not in file.parts}
    product = [*rust, *sql]
    library = {file: texts[file] for file in rust if file.parts[0] == "crates"}
    hidden = {name for text in library.values() for name in re.findall(r"#\[doc\(hidden\)\]\s*(?:#\[[^\n]*\]\s*)*pub (?:async |const )?\w+ (\w+)", text)}
    job = "\n".join(code for file, code in rust.items() if file.parts[0] == "src" or "starter" in file.parts)
    types = Counter(name for text in library.values() for name in set(NAMED.findall(text)))
    structs = sorted(len(FIELD.findall(body)) for code in rust.values() for body in STRUCT.findall(code))
    tests = [texts[file] for file in files if file.suffix == ".rs" and "tests" in file.parts]
    found = {
        "product Rust, lines": sum(sizes.values()),
        "the largest crate, per cent of it": round(100 * max(sizes.values()) / sum(sizes.values())),
        "hidden public items": sum(text.count("doc(hidden)") for text in library.values()),
        "hidden names that the job and the starter use": sum(bool(re.search(rf"\b{name}\b", job)) for name in hidden),
        "product files that name a column of an event": median_high(naming(column, product, texts) for column in COLUMNS),
        "product files that name a verb": median_high(naming(verb, product, texts) for verb in VERBS),
        "files that name a verb": median_high(naming(verb, texts, texts) for verb in VERBS),
        "settings in the reference": len(set(SETTING.findall(texts[Path("docs/reference/settings.md")]))),
        "longest SQL function, code": max(lines(body, "--") for text in sql.values() for _, body in FUNCTION.findall(text)),
        "fields of the second largest struct": structs[-2],
        "parameters that are tuples": sum(len(TUPLE.findall(text)) for text in library.values()),
        "type names that stand more than once": sum(count > 1 for count in types.values()),
        "SQL, lines": sum(lines(text, "--") for text in sql.values()),
        "tests outside of src, lines": sum(lines(text, "//") for text in tests),
        "scripts, lines": sum(lines(text, "#") for file, text in texts.items() if file.parts[0] == "scripts" and file.suffix == ".py"),
        "targets in make help": len(TARGET.findall(texts[Path("Makefile")])),
    }
    return {name: -(-count // step) * step for name, count in found.items() for step in [STEP.get(name.split()[-1], 1)]}


def lines(text, comment="//"):
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith(comment))


def naming(word, files, texts):
    return sum(bool(re.search(rf"\b{word}\b", texts[file], re.IGNORECASE)) for file in files if file in texts)


if __name__ == "__main__":
    local.run_script(main)
