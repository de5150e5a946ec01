#!/usr/bin/env python3
"""`make starter`: checks that a new project of `tidegate new` does what its README says, with the crates of this tree.

The project's Makefile tests it and runs it on its own Postgres. Its function answers every file of its `events/` under
`cargo lambda watch`. Its template is checked with the same tools as ours. Nothing is downloaded: this tree has the same
dependencies in the same versions.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import invoke
import local
import pypi
import template

NAME = "shop-queue"
FUNCTION = f"{NAME}-function"
# Compiled dependencies are reused for the next project.
TARGET = pypi.PROJECT / "target" / "starter"
TEMPLATE_LINES = 100
ENDED = {("order_placed", "COMPLETED"), ("order_shipped", "COMPLETED")}
NEEDED = {"DatabaseSecretArn": template.SECRET}
IN_A_VPC = {**NEEDED, "SubnetIds": "subnet-0a,subnet-0b", "SecurityGroupIds": "sg-0a", "AlarmEmail": "on-call@example.org"}


def main():
    cargo_lambda = pypi.install(invoke.CARGO_LAMBDA) / "bin" / "cargo-lambda"
    tidegate = local.build("--bin", "tidegate") / "tidegate"
    with ExitStack() as started:
        project = Path(started.enter_context(tempfile.TemporaryDirectory())) / NAME
        environment = {**local.environment(), **building()}
        environment.update(started.enter_context(local.postgres()))
        local.step("A new project", [tidegate, "new", project, "--tidegate", pypi.PROJECT], environment)
        shutil.copy("Cargo.lock", project)
        wrong = _written(project, environment) + _run(project, environment)
        watch = started.enter_context(invoke.Watch(cargo_lambda, FUNCTION, environment, project))
        wrong += _function(watch, project, environment)
        wrong += _template(project)
        # No later run needs the build of this project.
        local.step("Away with it", ["cargo", "clean", "--quiet", "--package", NAME], environment, project)
    return invoke.verdict(wrong, f"{NAME} does what its README says")


def building():
    """Returns settings for the smallest sufficient build, with warnings as errors: a new project must not start with a
    warning."""
    return {"CARGO_TARGET_DIR": str(TARGET), "CARGO_NET_OFFLINE": "true", "CARGO_INCREMENTAL": "0",
            "CARGO_PROFILE_DEV_DEBUG": "none", "RUSTFLAGS": "-D warnings"}


def _written(project, environment):
    local.step("As rustfmt would have it", ["cargo", "fmt", "--check"], environment, project)
    local.step("Its tests", ["make", "test"], environment, project)
    return []


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


def _asked(environment, *arguments):
    """Returns the answer of the project's command line."""
    command = [TARGET / "debug" / NAME, *arguments, "--json"]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def _function(watch, project, environment):
    _asked(environment, "publish", "order_placed", "--payload", '{"order_id": 8}')
    files = invoke.in_order(project / "events")
    wrong = [fault for file in files for fault in watch.invoke(file)]
    left = _asked(environment, "status")["backlog"]
    return [*wrong, *([f"the function left {left} events"] if left else [])]


def _template(project):
    file = project / "template.yaml"
    lines = len(file.read_text().splitlines())
    wrong = [] if lines < TEMPLATE_LINES else [f"{file.name}: must have fewer than {TEMPLATE_LINES} lines, got {lines}"]
    stack = template.ready()
    source, plain = template.checked(stack, file)
    if Path(source["Resources"]["Function"]["Properties"]["CodeUri"]).name != FUNCTION:
        wrong.append(f"{file.name}: CodeUri must be where cargo-lambda puts {FUNCTION}")
    for parameters in (NEEDED, IN_A_VPC):
        wrong += _deployed(stack.Stack(plain, parameters))
    return wrong


def _deployed(made):
    """Checks the resources that would be created. cfn-lint checks the rest of the template."""
    schedules = {schedule["ScheduleExpression"]: json.loads(schedule["Target"]["Input"])["action"]
                 for schedule in made.of_type("AWS::Scheduler::Schedule").values()}
    [function] = made.of_type("AWS::Lambda::Function").values()
    wrong = []
    if schedules.get("rate(1 minute)") != "drain":
        wrong.append(f"a drain each minute is missing: {schedules}")
    if function["ReservedConcurrentExecutions"] != 1:
        wrong.append("the function must run once at a time")
    if function["Environment"]["Variables"]["DATABASE_SECRET_ID"] != template.SECRET:
        wrong.append("the function must read the database's secret")
    return wrong


if __name__ == "__main__":
    local.run_script(main)
