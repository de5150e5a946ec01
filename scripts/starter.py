#!/usr/bin/env python3
"""A stage of `make test`: checks that a new project of `tidegate new` does what its README says, with the crates of this tree.

The project's Makefile tests it and runs it on its own Postgres. `starter.py whole`, a stage of `make test-all`, also tries its console
and what the compiler says of mistakes. Its function answers every file of its `events/` under `cargo lambda watch`. Its template is ours. Nothing is downloaded: this tree has the same dependencies in the same versions. It prints how long the way from
`tidegate new` to a green test took; with FIRST=1, on two cores, in a folder without compiled dependencies and with a beginner's settings.

`starter.py tutorial`, a stage of `make test-all`, runs docs/tutorial.md block by block, which changes such a project. A comment before each
block says what to do with it:

  <!-- run -->            run the commands (sh), all blocks in one shell; apply the change (diff)
  <!-- shows -->          each line must appear in the output of the commands before; … matches anything
  <!-- not run: why -->   skip the block, for this reason

`starter.py existing` runs examples/existing/, which publishes through the drivers that other programs have.

A block of commands or a diff without such a comment is an error, so no command of the page stays untested by mistake. `starter.py
read` looks for this alone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import local
import run
from stages import spent
from tools import PROJECT

NAME = "shop-queue"
FUNCTION = f"{NAME}-function"
# Compiled dependencies are reused for the next project.
TARGET = PROJECT / "target" / "starter"
ENDED = {("order_placed", "COMPLETED"), ("order_shipped", "COMPLETED")}
PAGE = PROJECT / "docs" / "tutorial.md"
# The smallest sufficient build, with warnings as errors: a new project must not start with a warning.
BUILD = {"CARGO_INCREMENTAL": "0", "CARGO_PROFILE_DEV_DEBUG": "none", "RUSTFLAGS": "-D warnings"}
WRONG = """
use QUEUE::OrderShipped;
use tidegate::{Context, Done, HandlerResult};

pub async fn ship(ctx: &Context) -> HandlerResult {
    let parcel = std::fs::read_to_string("parcel")?;
    ctx.emit(&OrderShipped { order_id: 7, parcel })?;
    Ok(Done::ok())
}

fn main() {}
"""
TOLD = [
    "say it first: `.unavailable()?` if a service has not answered, otherwise `.retryable()?` or `.reject(\"code\")?`",
    "OrderShipped` is not an event",
    "must be a value of an enum of `tidegate::events!`, or a `NewEvent`",
]
BLOCK = re.compile(r"^(?:<!-- ([^\n]*?) -->\n+)?```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DONE = "block-is-done"


class Wrong(Exception):
    """The page is wrong."""


def main():
    if sys.argv[1:] == ["read"]:
        read(PAGE.read_text())
        return 0
    if sys.argv[1:] == ["existing"]:
        return existing()
    with ExitStack() as started:
        tidegate = local.build("--bin", "tidegate") / "tidegate"
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        environment = {**local.environment(), **building()}
        environment.update(started.enter_context(local.postgres()))
        try:
            work = {"tutorial": tutorial, "whole": whole}.get(" ".join(sys.argv[1:]), starter)
            return work(tidegate, folder / NAME, environment, started)
        finally:
            # No later run needs the build of this project.
            subprocess.run(["cargo", "clean", "--quiet", "--package", NAME], env=environment, cwd=folder / NAME, check=False)


def starter(tidegate, project, environment, started):
    first = bool(os.environ.get("FIRST"))
    if first:
        environment["CARGO_TARGET_DIR"] = str(project.parent / "target")
        environment = {name: value for name, value in environment.items() if name not in BUILD}
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    load, began, cached = os.getloadavg()[0], time.monotonic(), (Path(environment["CARGO_TARGET_DIR"]) / "debug").exists()
    local.step("A new project", [tidegate, "new", project, "--tidegate", PROJECT], environment)
    lock(project)
    local.step("Its tests", ["make", "test"], environment, project)
    before = "with dependencies compiled before" if cached else "with nothing compiled before"
    print(f"\nfrom `tidegate new` to a green test: {spent(time.monotonic() - began)} on {len(os.sched_getaffinity(0))} cores at a load of {load:.1f}, {before}", flush=True)
    if first:
        return 0
    local.step("As rustfmt would have it", ["cargo", "fmt", "--check"], environment, project)
    return local.verdict(_run(project, environment), f"{NAME} tests, runs and drains")


def whole(tidegate, project, environment, started):
    if failed := starter(tidegate, project, environment, started):
        return failed
    wrong = _console(project, environment) + _told(project, environment)
    function = ["--features", "function"]
    # Before the watch, whose first answer would wait for it.
    local.step("Its function", ["cargo", "build", *local.cargo_flags(), *function, "--bin", FUNCTION], environment, project)
    watch = started.enter_context(run.Watch(run.cargo_lambda(), FUNCTION, environment, project, function))
    wrong += _function(watch, project, environment) + _template(project)
    return local.verdict(wrong, f"{NAME} does what its README says")


def tutorial(tidegate, project, environment, started):
    environment.update(CHECKOUT=str(PROJECT), PATH=f"{tidegate.parent}{os.pathsep}{os.environ['PATH']}")
    try:
        follow(read(PAGE.read_text()), started.enter_context(Shell(project.parent, environment)), project)
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    print(f"\n{PAGE.relative_to(PROJECT)} works as described")
    return 0


def existing():
    folder = PROJECT / "examples" / "existing"
    local.ran(["cargo", "fmt", "--check"], cwd=folder)
    with local.postgres("--fast") as database:
        environment = {**local.environment(), **building(), "CARGO_NET_OFFLINE": "false", "CARGO_TARGET_DIR": str(PROJECT / "target" / "existing"), **database}
        local.ran(["cargo", "test", *local.cargo_flags()], env=environment, cwd=folder)
    return 0


def building():
    return {"CARGO_TARGET_DIR": str(TARGET), "CARGO_NET_OFFLINE": "true", **BUILD}


def _run(project, environment):
    """Runs it twice, because a beginner will do so too."""
    wrong = []
    for number in (1, 2):
        local.step("Migrate, publish, drain", ["make", "run"], environment, project)
        events = _asked(environment, "list")["events"]
        ended = {(event["kind"], event["status"]) for event in events}
        if len(events) != number * len(ENDED) or ended != ENDED:
            wrong.append(f"make run, time {number}: the log should have {ENDED}, has {events}")
    return wrong


def _console(project, environment):
    console = ["cargo", "run", "--quiet", *local.cargo_flags(), "--features", "console", "--", "console", "--help"]
    listens = "--listen" in local.output(console, env=environment, cwd=project)
    return [] if listens else ["the project's command line must have the console, built with its feature"]


def _told(project, environment):
    """Checks what the compiler tells of a handler that gives an error no verdict, and of a payload that is emitted as an event."""
    file = project / "examples" / "wrong.rs"
    file.parent.mkdir()
    file.write_text(WRONG.replace("QUEUE", NAME.replace("-", "_")))
    done = subprocess.run(["cargo", "build", "--example", "wrong"], env=environment, cwd=project, stderr=subprocess.PIPE, text=True)
    shutil.rmtree(file.parent)
    wrong = [f"the compiler should say {text!r}, it says:\n{done.stderr}" for text in TOLD if text not in done.stderr]
    return wrong if done.returncode else [*wrong, "a handler without a verdict must not compile"]


def _asked(environment, *arguments):
    """Returns the answer of the project's command line."""
    command = [TARGET / "debug" / NAME, *arguments, "--json"]
    return json.loads(local.output(command, env=environment))


def _function(watch, project, environment):
    _asked(environment, "publish", "order_placed", "--payload", '{"order_id": 8}')
    files = run.in_order(project / "events")
    wrong = [fault for file in files for fault in watch.invoke(file)]
    left = _asked(environment, "status")["backlog"]
    return [*wrong, *([f"the function left {left} events"] if left else [])]


def _template(project):
    """The stage `template` checks the template. Here it must be the same file, but for what has SAM build it."""
    built = f"    Metadata: {{BuildMethod: rust-cargolambda, BuildProperties: {{Binary: {FUNCTION}}}}}\n"
    text, ours = (project / "template.yaml").read_text().replace(built, ""), (PROJECT / "template.yaml").read_text()
    same = re.sub("CodeUri: .*", "", text) == re.sub("CodeUri: .*", "", ours)
    return [] if same else ["template.yaml: must be the one of this repository, built by SAM"]


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


class Shell(local.Companion):
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


if __name__ == "__main__":
    local.run_script(main)
