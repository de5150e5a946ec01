#!/usr/bin/env python3
"""`make api`: runs schemathesis against `tidegate serve`, with its own Postgres and only the OpenAPI document as input.

No answer may be a 5xx or contradict the document. Requests that match the document must be accepted, all others refused. One
run needs no authentication. A second run with fewer requests uses an API key, and requests without the key must be refused.
API_SEED=number tries other requests than the default ones.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import local
import pypi

SCHEMATHESIS = "schemathesis==4.32.5"
VALIDATOR = "openapi-spec-validator==0.9.0"
# Number of random requests for each operation, in addition to those at the limits in the document.
EXAMPLES = 30
FEW = 5
SEED = "20260101"
RUN_LIMIT_S = 90
ANSWER_LIMIT_S = 5

# No schema can express that one day may not be before another.
EXCEPTIONS = '''
[[operations]]
include-name = "POST /letters"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "5xx"]
'''


def main():
    validator = pypi.install(VALIDATOR, dependencies=True)
    schemathesis = pypi.install(SCHEMATHESIS, dependencies=True)
    programs = local.build("--bin", "tidegate")
    with ExitStack() as started:
        environment = {**local.environment(), **started.enter_context(local.postgres("--fast"))}
        local.step("The schema", [programs / "tidegate", "migrate"], environment)
        url = started.enter_context(Server(programs / "tidegate", environment)).url
        print("\nThe document")
        with tempfile.NamedTemporaryFile(suffix=".json") as document:
            document.write(_document(url))
            document.flush()
            _run(validator, ["openapi_spec_validator", document.name])
        print("\nThe interface")
        _run(schemathesis, _command(url))
        _is_alive(url)
        print("\nThe interface for holders of keys")
        key = _key(programs / "tidegate", environment)
        url = started.enter_context(Server(programs / "tidegate", {**environment, "TIDEGATE_HTTP_AUTH": "keys"})).url
        _run(schemathesis, [*_command(url, FEW), "--header", f"Authorization: Bearer {key}"])
        _is_alive(url)
    return 0


class Server:
    """`tidegate serve` on a free port of the loopback address. It ends with this script."""

    def __init__(self, tidegate, environment):
        command = [sys.executable, local.SCRIPTS / "guard.py", tidegate, "serve", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment, start_new_session=True)

    def __enter__(self):
        line = self.process.stdout.readline().strip()
        self.url = line.removeprefix("listening on ")
        if self.url == line:
            self.__exit__()
            raise pypi.Unavailable("tidegate serve did not start to listen; its reason stands above")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def _key(tidegate, environment):
    """Creates an API key with all permissions."""
    command = [tidegate, "api-key", "create", "--label", "schemathesis", "--client", "00000000-0000-4000-8000-0000000000c1",
               "--reason", "make api", "--json"]
    for scope in ("jobs", "forms", "letters"):
        command += ["--scope", scope]
    made = subprocess.run([str(part) for part in command], env=environment, stdout=subprocess.PIPE, text=True)
    if made.returncode != 0:
        raise local.Failed(1)
    return json.loads(made.stdout)["key"]


def _command(url, examples=EXAMPLES):
    command = ["schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all", "--max-examples", examples]
    command += ["--seed", os.environ.get("API_SEED", SEED), "--phases", "examples,coverage,fuzzing", "--no-shrink"]
    # The document states in prose that no text may contain NUL. A schema would have to state it for every text.
    command += ["--generation-allow-x00", "false", "--generation-database", "none", "--warnings", "off"]
    return [*command, "--workers", 2, "--request-timeout", ANSWER_LIMIT_S, "--continue-on-failure"]


def _document(url):
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=ANSWER_LIMIT_S) as answer:
        return answer.read()


def _run(folder, module):
    """Runs a module of an installed package in a folder of its own, because data it stores for its next run is not needed."""
    command = [sys.executable, "-m", *[str(part) for part in module]]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        with tempfile.TemporaryDirectory() as room:
            (Path(room) / "schemathesis.toml").write_text(EXCEPTIONS)
            code = subprocess.run(command, cwd=room, env=environment, timeout=RUN_LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        print(f"{module[0]}: not done within {RUN_LIMIT_S} s", file=sys.stderr)
        code = 1
    if code != 0:
        raise local.Failed(1)


def _is_alive(url):
    with urllib.request.urlopen(f"{url}/readyz", timeout=ANSWER_LIMIT_S) as answer:
        assert json.load(answer) == {"status": "ok"}


if __name__ == "__main__":
    local.run_script(main)
