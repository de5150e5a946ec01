#!/usr/bin/env python3
"""`make run`: publishes and drains sample events on a fresh machine, with a Postgres that is removed afterwards. If DATABASE_URL is
set, it uses that database and starts none.

`make lambda` (`run.py lambda`): runs the function under the real `cargo lambda watch`, and invokes it with every file in `events/`.
Each answer must be a report of the requested action."""

import base64
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import local
import tools

CARGO_LAMBDA = "cargo-lambda==1.9.2"
FUNCTION = "tidegate-function"
SAMPLES = "tidegate-samples"
PACKAGES = ["--package", "tidegate-job", "--package", SAMPLES]
# What a person reads while cargo compiles.
NEXT = """Building the command line and the samples: minutes the first time, seconds later. Then come
  a throwaway Postgres, unless DATABASE_URL names one, and the schema
  sample events of three systems: forms, AI checks and medical jobs
  a drain, which handles them, and a service that is down
  the queue's status, and the list of its events"""
ANSWER_LIMIT_S = 60
# Before the schema exists, there is nothing to drain or count.
FIRST = ["migrate.json", "drain.json"]
# Sources of messages. These receive the list of messages to redeliver.
TOLD_WHAT_FAILED = ["sqs", "pipe_messages"]
MESSAGES = ["sns", "eventbridge"]
# The report of a change to a service names the kind of change.
SERVICE = ["pause_service", "resume_service", "limit_service"]


def main():
    return invoke_all() if sys.argv[1:] == ["lambda"] else run()


def run():
    print(NEXT, flush=True)
    programs = local.build("--no-default-features", *PACKAGES, "--bins")
    tidegate = programs / "tidegate"
    with ExitStack() as started:
        environment = dict(os.environ)
        if not environment.get("DATABASE_URL"):
            environment.update(started.enter_context(local.postgres()))
            print(f"A throwaway Postgres for this run: {environment['DATABASE_URL']}")
        environment.update(started.enter_context(local.services(programs)))
        local.step("The schema", [tidegate, "migrate"], environment)
        local.step("Publish what the forms system publishes", [programs / SAMPLES, "forms"], environment)
        local.step("Receive what may ask for AI checks", [programs / SAMPLES, "checks"], environment)
        local.step("Publish a sample of medical jobs", [programs / SAMPLES, "jobs"], environment)
        local.step("Drain the queue", [tidegate, "drain", "--budget", "20s", "--linger", "2s"], environment)
        _outage(programs, environment)
        local.step("What the queue holds and has held", [tidegate, "status"], environment)
        local.step("The events, newest first", [tidegate, "list", "--limit", "50"], environment)
    return 0


def _outage(programs, environment):
    """Shows a job that waits for a service."""
    tidegate, without_passwords = programs / "tidegate", {**environment, "OTP_URL": "http://127.0.0.1:9"}
    local.step("Ask for an approval", [programs / SAMPLES, "approval"], environment)
    local.step("Its service is down, so the job waits", [tidegate, "drain", "--budget", "15s", "--linger", "0s"], without_passwords)


def invoke_all():
    watcher = cargo_lambda()
    programs = local.build(*PACKAGES, "--bin", "tidegate", "--bin", SAMPLES, "--example", "shop")
    # Built alone, as the watch does. Together with the example, which has more dependencies, it would be built differently,
    # and the first answer would wait for a second build.
    local.build("--bin", FUNCTION)
    with ExitStack() as started:
        # A person waits for each answer, so the drain must stop well before the timeout of `invoke`.
        environment = {**local.environment(), "TIDEGATE_BUDGET": "15s"}
        keys = started.enter_context(tempfile.NamedTemporaryFile("w", suffix=".json"))
        json.dump({"current": "local", "keys": {"local": base64.b64encode(os.urandom(32)).decode()}}, keys)
        keys.flush()
        environment["TIDEGATE_PAYLOAD_KEYS_FILE"] = keys.name
        environment.update(started.enter_context(local.postgres()))
        environment.update(started.enter_context(local.services(programs)))
        watch = started.enter_context(Watch(watcher, FUNCTION, environment))
        wrong = []
        for file in in_order(Path("events")):
            wrong += watch.invoke(file)
            if file.name == "migrate.json":
                local.step("Something to drain", [programs / SAMPLES, "forms"], environment)
                local.step("Another program's kinds and schedule", [programs / "examples" / "shop", "migrate", "--share"], environment)
    return local.verdict(wrong, "every invocation was answered with its report")


def cargo_lambda():
    return tools.install(CARGO_LAMBDA) / "bin" / "cargo-lambda"


class Watch(local.Guarded):
    """`cargo lambda watch` on a free port of the loopback address, with its whole process group. It runs a function of the
    package in the folder, by default this one, built with `flags`."""

    def __init__(self, program, function, environment, folder=None, flags=()):
        self.program, self.function, self.port = program, function, local.free_port()
        command = [program, "lambda", "watch", "--invoke-address", "127.0.0.1", "--invoke-port", self.port]
        # It would rebuild on every change, but the function that was built must be invoked.
        command += ["--ignore-changes", "--offline", *local.cargo_flags(), *flags, "--bin", function]
        super().__init__(command, environment, folder)

    def ready(self):
        self.wait_for(self.port)

    def invoke(self, file):
        """Sends one file and returns the faults of the answer."""
        arguments = ["lambda", "invoke", "--invoke-address", "127.0.0.1", "--invoke-port", str(self.port)]
        arguments += [self.function, "--data-file", str(file)]
        print("\n$ cargo " + " ".join(arguments), flush=True)
        try:
            done = subprocess.run([str(self.program), *arguments], stdout=subprocess.PIPE, text=True, timeout=ANSWER_LIMIT_S)
        except subprocess.TimeoutExpired:
            return [f"{file}: no answer within {ANSWER_LIMIT_S} s"]
        print(done.stdout.strip(), flush=True)
        if done.returncode != 0:
            return [f"{file}: exit code {done.returncode}"]
        return [f"{file}: {fault}" for fault in _faults(file, done.stdout)]


def in_order(folder):
    """Returns the folder's requests in an order in which each finds what it needs."""
    rank = {name: position for position, name in enumerate(FIRST)}
    return sorted(folder.glob("*.json"), key=lambda file: (rank.get(file.name, len(FIRST)), file.name))


def _faults(file, answer):
    try:
        report = json.loads(answer)
    except ValueError:
        return ["the answer is no JSON"]
    if file.stem in TOLD_WHAT_FAILED:
        return [] if report == {"batchItemFailures": []} else ["messages were not taken in"]
    # The schedule's payload contains no action of ours: a tick is a drain.
    default = "receive" if file.stem in MESSAGES else "drain"
    asked = json.loads(file.read_text())
    # A pipe sends an array.
    asked = asked[0] if isinstance(asked, list) else asked
    action = file.stem if file.stem in SERVICE else asked.get("action", default)
    if not isinstance(report, dict) or report.get("action") != action:
        return [f"the answer is no report of the action {action!r}"]
    if file.name == "drain.json" and not report.get("leased"):
        return ["nothing was leased, though events had been published"]
    return []


if __name__ == "__main__":
    local.run_script(main)
