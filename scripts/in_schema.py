#!/usr/bin/env python3
"""Runs the integration tests on a queue in another schema: `in_schema.py NAME [FILTER…]`, `make unit-schema`.

The tests' own SQL names the schema `tidegate`. So they run from a copy of the project in target/in-schema/, in which their SQL
names the other one, with TIDEGATE_SCHEMA set. The product in the copy is unchanged."""

import os
import re
import shutil
import subprocess
import sys

import local
from tools import PROJECT

COPY = PROJECT / "target/in-schema"
# The library's own rule is Schema::written.
NAMES = re.compile(
    r"(?<![\w-])tidegate(?=\.(?!toml\b|rs\b)[a-z%']|_(?:publish|drain|pull|operate|read|jobs)\b)|(?<=')tidegate(?=')|(?<=SCHEMA )tidegate"
)
# Their names are those of files and fields, or what they compare is written for the usual schema.
AS_IT_IS = {"mutants.toml", "template.toml"}


def main():
    name, filters = (sys.argv[1:] or ["acme"])[0], sys.argv[2:]
    listed = local.output(["git", "ls-files", "--cached", "--others", "--exclude-standard"]).splitlines()
    for path in listed:
        source, target = PROJECT / path, COPY / path
        if not source.is_file():
            continue
        content = source.read_bytes()
        if path.startswith("tests/") and source.name not in AS_IT_IS:
            content = NAMES.sub(name, content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(source, target)
    tools = COPY / ".tools"
    if not tools.exists() and (PROJECT / ".tools").exists():
        tools.symlink_to(PROJECT / ".tools")
    environment = {**os.environ, "TIDEGATE_SCHEMA": name, "CARGO_TARGET_DIR": str(COPY / "target")}
    command = ["cargo", "test", *local.cargo_flags(), "--test", "it", "--", *filters]
    return subprocess.run(command, cwd=COPY, env=environment).returncode


if __name__ == "__main__":
    local.run_script(main)
