#!/usr/bin/env python3
"""Part of `make check`: refuses import cycles between the modules of a crate.

Modules are the files and folders directly under a crate's src/, including everything in them. Only `crate::` paths count,
except in tests. A crate's lib.rs or main.rs may name everything, because it is the entry point.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# By convention, everything after `#[cfg(test)]` in a file is its tests.
TESTS = re.compile(r"^#\[cfg\(.*\btest\b.*\)\]\s*\n(?:pub(?:\(crate\))? )?mod \w+ \{", re.MULTILINE)
COMMENT = re.compile(r"//.*")
PATH = re.compile(r"\bcrate::(\{[^;]*?\}|\w+)", re.DOTALL)


def modules(source):
    """Returns the crate's modules, each with its files."""
    found = {}
    for file in sorted(source.rglob("*.rs")):
        first = file.relative_to(source).parts[0].removesuffix(".rs")
        if first not in ("lib", "main", "bin"):
            found.setdefault(first, []).append(file)
    return found


def imports(files, names):
    """Returns the modules that these files name."""
    found = set()
    for file in files:
        text = file.read_text()
        tests = TESTS.search(text)
        text = COMMENT.sub("", text[: tests.start()] if tests else text)
        for match in PATH.finditer(text):
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


def main():
    wrong = False
    for manifest in [ROOT / "Cargo.toml", *sorted(ROOT.glob("crates/*/Cargo.toml"))]:
        source = manifest.parent / "src"
        found = modules(source)
        graph = {name: imports(files, found) - {name} for name, files in found.items()}
        if "-v" in sys.argv:
            for name in sorted(graph):
                print(f"  {name} -> {', '.join(sorted(graph[name])) or '(nothing)'}")
        if way := circle(graph):
            wrong = True
            print(f"{source.relative_to(ROOT)}: modules import each other in a circle: {' -> '.join(way)}", file=sys.stderr)
    if not wrong:
        print("no circle of modules")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
