#!/usr/bin/env python3
"""`make tutorial`: runs docs/tutorial.md block by block, in a temporary folder and with a temporary Postgres.

A comment before each block says what to do with it:

  <!-- run -->            run the commands (sh), all blocks in one shell; apply the change (diff)
  <!-- shows -->          each line must appear in the output of the commands before; … matches anything
  <!-- not run: why -->   skip the block, for this reason

A block of commands or a diff without such a comment is an error, so no command of the page stays untested by mistake.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import local
import pypi
import starter

PAGE = pypi.PROJECT / "docs" / "tutorial.md"
PROJECT = "shop-queue"
BLOCK = re.compile(r"^(?:<!-- ([^\n]*?) -->\n+)?```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DONE = "block-is-done"


class Wrong(Exception):
    """The page is wrong."""


def main():
    blocks = read(PAGE.read_text())
    if sys.argv[1:] == ["check"]:
        return 0
    tidegate = local.build("--bin", "tidegate")
    with ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        environment = {**local.environment(), **starter.building(), **started.enter_context(local.postgres())}
        environment.update(CHECKOUT=str(pypi.PROJECT), PATH=f"{tidegate}{os.pathsep}{os.environ['PATH']}")
        shell = started.enter_context(Shell(folder, environment))
        try:
            follow(blocks, shell, folder / PROJECT)
        except Wrong as wrong:
            print(wrong, file=sys.stderr)
            return 1
        finally:
            subprocess.run(["cargo", "clean", "--quiet", "--package", PROJECT], env=environment, cwd=folder / PROJECT, check=False)
    print(f"\n{PAGE.relative_to(pypi.PROJECT)} works as described")
    return 0


def read(text):
    """Returns each block: its line, what to do with it, its language and its text."""
    blocks = []
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(3))
        what, language, body = found.groups()
        if language in ("sh", "diff") and what is None:
            raise SystemExit(f"docs/tutorial.md:{line}: say whether this block is run")
        if what and what not in ("run", "shows") and not what.startswith("not run: "):
            raise SystemExit(f"docs/tutorial.md:{line}: must be run, shows or not run: and why, got {what!r}")
        blocks.append((line, what or "", language, body))
    return blocks


def follow(blocks, shell, project):
    shown = ""
    for line, what, language, body in blocks:
        place = f"docs/tutorial.md:{line}"
        if what == "run" and language == "diff":
            print(f"\n{place}: a change", flush=True)
            shell.run("git apply --verbose -", place, body)
        elif what == "run":
            print(f"\n{place}\n{body}", end="", flush=True)
            shown = shell.run(body, place)
            lock(project)
        elif what == "shows":
            expect(body, shown, place)


def lock(project):
    """Copies the lock file, so that no crate has to be downloaded."""
    if project.is_dir() and not (project / "Cargo.lock").exists():
        shutil.copy("Cargo.lock", project)


def expect(body, shown, place):
    squeezed = " ".join(shown.split())
    for line in body.splitlines():
        parts = [re.escape(" ".join(part.split())) for part in line.split("…")]
        if line.strip() and not re.search(".*?".join(parts), squeezed):
            raise Wrong(f"{place}: the commands before it do not show {line.strip()!r}")


class Shell:
    """One shell for the whole page, which keeps variables and the current folder."""

    def __init__(self, folder, environment):
        self.process = subprocess.Popen(["bash", "-euo", "pipefail"], cwd=folder, env=environment, text=True, start_new_session=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, commands, place, given=None):
        """Runs commands, which must succeed, and returns their output."""
        if given is not None:
            commands = f"{commands} <<'END_OF_BLOCK'\n{given}END_OF_BLOCK\n"
        # The braces make the shell read all commands before one of them can read from its input.
        self.process.stdin.write(f"{{\n{commands}\n}} </dev/null\necho; echo {DONE}\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.strip() == DONE:
                return "".join(lines)
            lines.append(line)
            print(f"  {line}", end="", flush=True)
        raise Wrong(f"{place}: the commands failed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(local.STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    local.run_script(main)
