#!/usr/bin/env python3
"""Part of `make check`: refuses import cycles between the modules of a crate, and between those of each folder in it.

Modules are the files and folders directly under a folder, including everything in them. Only `crate::` and `super::` paths
count, except in tests. A crate's lib.rs or main.rs and a folder's mod.rs may name everything, because they are the entry points.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# By convention, everything after `#[cfg(test)]` in a file is its tests.
TESTS = re.compile(r"^#\[cfg\(.*\btest\b.*\)\]\s*\n(?:pub(?:\(crate\))? )?mod \w+ \{", re.MULTILINE)
COMMENT = re.compile(r"//.*")
# In these, `super::` is the file itself.
INLINE = re.compile(r"^(?:pub(?:\([\w:]+\))? )?mod \w+ \{.*?^\}", re.MULTILINE | re.DOTALL)
NAMED = r"(\{[^;]*?\}|\w+)"


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
        path = re.compile(rf"(?:\bcrate::{inner}|(?<![\w:]){'super::' * ups}){NAMED}", re.DOTALL)
        text = file.read_text()
        tests = TESTS.search(text)
        text = INLINE.sub("", COMMENT.sub("", text[: tests.start()] if tests else text))
        for match in path.finditer(text):
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
        for folder in [source, *sorted(file.parent for file in source.rglob("mod.rs"))]:
            found = modules(folder)
            graph = {name: imports(files, found, folder, source) - {name} for name, files in found.items()}
            if "-v" in sys.argv:
                for name in sorted(graph):
                    print(f"  {name} -> {', '.join(sorted(graph[name])) or '(nothing)'}")
            if way := circle(graph):
                wrong = True
                print(f"{folder.relative_to(ROOT)}: modules import each other in a circle: {' -> '.join(way)}", file=sys.stderr)
    if not wrong:
        print("no circle of modules")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
