#!/usr/bin/env python3
"""Lets other people's programs judge what Tidegate says. Our own tests could share a misunderstanding with what they test.
Each word is a stage of `make test-all`.

`api`: schemathesis calls `tidegate serve` with only the OpenAPI document as input. No answer may be a 5xx or contradict
the document. Requests that match the document must be accepted, all others refused. A second run with fewer requests uses an API
key, and requests without the key must be refused. API_SEED=number tries other requests than the default ones.

`metrics`: promtool reads what Prometheus is told, the alert rules and their tests. The metrics are those of a queue
in which something was published and drained: as a file for node_exporter, and in both formats over HTTP.

`collector`: Rotel, an OpenTelemetry collector, prints what it has understood of our traces."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import local
import stages
import tools

SCHEMATHESIS = "schemathesis==4.32.5"
VALIDATOR = "openapi-spec-validator==0.9.0"
# Number of random requests for each operation, in addition to those at the limits in the document.
EXAMPLES = 30
FEW = 5
SEED = "20260101"
RUN_LIMIT_S = 90
ANSWER_LIMIT_S = 60
REQUEST_LIMIT_S = 5
# No schema can express that one day may not be before another.
EXCEPTIONS = '''
[[operations]]
include-name = "POST /letters"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "5xx"]
'''
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
RULES = Path("observability/prometheus")
# A reader of the format that is strict, which promtool's own reader of files is not.
READER = "prometheus-client==0.22.1"
ROTEL = "rotel==0.0.1a15"
EVENTS = 3
SPANS = {
    "publish grant_letter_viewed": ("SPAN_KIND_PRODUCER", 1),
    "process grant_letter_viewed": ("SPAN_KIND_CONSUMER", EVENTS),
    "count_view": ("SPAN_KIND_INTERNAL", EVENTS),
    "receive tidegate": ("SPAN_KIND_CLIENT", 1),
    "settle tidegate": ("SPAN_KIND_CLIENT", 1),
    "drain": ("SPAN_KIND_INTERNAL", 1),
}
SPAN = re.compile(r"Trace ID +: (?P<trace>\w+)\n +Parent ID +: (?P<parent>\w*)\n +ID +: (?P<id>\w+)\n" r" +Name +: (?P<name>.+)\n +Kind +: (?P<kind>\w+)\n")


def main():
    with ExitStack() as started:
        return local.chosen({"api": api, "metrics": metrics, "collector": collector}, started)


def migrated(started):
    """Returns our program, and the environment with a new queue's database."""
    tidegate = local.build("--bin", "tidegate") / "tidegate"
    environment = {**local.environment(), **started.enter_context(local.postgres("--fast"))}
    local.step("The schema", [tidegate, "migrate"], environment)
    return tidegate, environment


def had(tool, find):
    """Returns another program, or nothing if it cannot be had, which is noted."""
    try:
        return find()
    except (tools.Unavailable, OSError, subprocess.CalledProcessError) as error:
        print(f"no {tool}, so nothing was checked with it: {error}", file=sys.stderr)
        stages.note(tool, sys.argv[1])
        return None


def api(started):
    validator = tools.install(VALIDATOR, dependencies=True)
    schemathesis = tools.install(SCHEMATHESIS, dependencies=True)
    tidegate, environment = migrated(started)
    url = started.enter_context(local.Served(tidegate, environment, "serve")).url
    print("\nThe document")
    with tempfile.NamedTemporaryFile(suffix=".json") as document:
        document.write(_answer(url, "openapi.json"))
        document.flush()
        _run(validator, ["openapi_spec_validator", document.name])
    print("\nThe interface")
    _run(schemathesis, _command(url))
    assert json.loads(_answer(url, "readyz")) == {"status": "ok"}
    print("\nThe interface for holders of keys")
    key = _key(tidegate, environment)
    url = started.enter_context(local.Served(tidegate, {**environment, "TIDEGATE_HTTP_AUTH": "keys"}, "serve")).url
    _run(schemathesis, [*_command(url, FEW), "--header", f"Authorization: Bearer {key}"])
    assert json.loads(_answer(url, "readyz")) == {"status": "ok"}
    return 0


def _key(tidegate, environment):
    """Creates an API key with all permissions."""
    command = [tidegate, "api-key", "create", "--label", "schemathesis", "--client", "00000000-0000-4000-8000-0000000000c1", "--reason", "to try it", "--json"]
    for scope in ("jobs", "approvals", "forms", "letters"):
        command += ["--scope", scope]
    return json.loads(local.output(command, env=environment))["key"]


def _command(url, examples=EXAMPLES):
    command = ["schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all", "--max-examples", examples]
    command += ["--seed", os.environ.get("API_SEED", SEED), "--phases", "examples,coverage,fuzzing", "--no-shrink"]
    # The document states in prose that no text may contain NUL. A schema would have to state it for every text.
    command += ["--generation-allow-x00", "false", "--generation-database", "none", "--warnings", "off"]
    # One worker: CPython 3.11 counts the depth of its parser for all threads at once, and two that parse at the same time end
    # with "AST constructor recursion depth mismatch".
    return [*command, "--workers", 1, "--request-timeout", REQUEST_LIMIT_S, "--continue-on-failure"]


def _answer(url, path):
    with urllib.request.urlopen(f"{url}/{path}", timeout=ANSWER_LIMIT_S) as answer:
        return answer.read()


def _run(folder, module):
    """Runs a module of an installed package in a folder of its own, because data it stores for its next run is not needed."""
    with tempfile.TemporaryDirectory() as room:
        (Path(room) / "schemathesis.toml").write_text(EXCEPTIONS)
        local.module(folder, ["-m", *module], cwd=room, timeout=RUN_LIMIT_S)


def metrics(started):
    promtool = had("promtool", _promtool)
    if not promtool:
        return 0
    tidegate, environment = migrated(started)
    for arguments in (["publish", "grant_letter_viewed", "--payload", '{"grant_number": "G-1"}'], ["drain"]):
        local.step(f"tidegate {arguments[0]}", [tidegate, *arguments], environment)
    file = Path(started.enter_context(tempfile.TemporaryDirectory())) / "tidegate.prom"
    local.step("The file", [tidegate, "status", "--format", "prometheus", "--output", file], environment)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644, oct(file.stat().st_mode)
    url = started.enter_context(local.Served(tidegate, {**environment, "TIDEGATE_HTTP_METRICS": "on"}, "serve")).url
    _lint(promtool, "the file", file.read_text())
    _lint(promtool, "HTTP", _scraped(url, "text/plain"))
    open_metrics = _scraped(url, OPEN_METRICS)
    _lint(promtool, "HTTP, OpenMetrics", _as_text(open_metrics))
    _read_strictly(open_metrics)
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        local.step(f"promtool {' '.join(arguments)}", [promtool, *arguments], environment, RULES)
    return 0


def _promtool():
    program = shutil.which("promtool") or tools.debian("prometheus") / "usr/bin/promtool"
    return Path(program).resolve(strict=True)


def _scraped(url, accept):
    request = urllib.request.Request(f"{url}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as answer:
        kind = answer.headers["Content-Type"]
        assert kind.startswith(accept.split(";")[0]), kind
        return answer.read().decode()


def _lint(promtool, what, text):
    """Lints, too: a metric without help, a counter without _total, and the like are errors."""
    local.quietly([promtool, "check", "metrics"], input=text)
    print(f"promtool check metrics: {what}: {len(text.splitlines())} lines are well")


def _as_text(text):
    """OpenMetrics as promtool reads it, which knows the text format alone: there, counters are named as their samples are."""
    total = {name: f"{name}_total" for name in re.findall(r"(?m)^# TYPE (\S+) counter$", text)}
    return re.sub(r"(?m)^# (HELP|TYPE) (\S+)(?= .*)", lambda line: f"# {line[1]} {total.get(line[2], line[2])}", text)


def _read_strictly(text):
    folder = tools.install(READER, dependencies=True)
    program = "import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n" \
        "print(len(list(read(sys.stdin.read()))), 'metrics are OpenMetrics')"
    local.module(folder, ["-c", program], input=text, timeout=ANSWER_LIMIT_S)


def collector(started):
    agent = had("collector", _rotel)
    if not agent:
        return 0
    tidegate, environment = migrated(started)
    publish = [tidegate, "publish", "grant_letter_viewed", "--payload", '{"grant_number": "G-1"}']
    for _ in range(EVENTS - 1):
        local.step("An event under no trace", publish, environment)
    rotel = started.enter_context(Collector(agent))
    recorded = {**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": rotel.url, "TIDEGATE_TRACE_RATIO": "1"}
    local.step("An event under a trace", publish, recorded)
    local.step("The drain", [tidegate, "drain"], recorded)
    return _compared(rotel.understood("drain"))


def _rotel():
    agent = tools.install(ROTEL) / "rotel" / "rotel-agent"
    agent.chmod(0o755)
    subprocess.run([agent, "--version"], check=True, capture_output=True)
    return agent


class Collector(local.Guarded):
    """Rotel on free ports of the loopback address."""

    def __init__(self, agent):
        self.room = tempfile.TemporaryDirectory()
        self.output = Path(self.room.name) / "understood"
        self.port, grpc = local.free_port(), local.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        with self.output.open("wb") as output:
            super().__init__([agent, "start", "--exporter", "blackhole",
                              "--otlp-http-endpoint", f"127.0.0.1:{self.port}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
                              "--debug-log", "traces", "--debug-log-verbosity", "detailed",
                              "--pid-file", f"{self.room.name}/pid", "--log-file", f"{self.room.name}/log"], output=output)

    def ready(self):
        self.wait_for(self.port)

    def understood(self, last):
        """Returns all spans, once the last one is there."""
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while True:
            spans = [found.groupdict() for found in SPAN.finditer(self.output.read_text(errors="replace"))]
            if any(span["name"] == last for span in spans):
                return spans
            if time.monotonic() > deadline:
                raise tools.Unavailable(f"waited {ANSWER_LIMIT_S} s for the span {last}")
            time.sleep(0.05)

    def __exit__(self, *error):
        super().__exit__(*error)
        self.room.cleanup()


def _compared(spans):
    """Compares the spans that the collector has understood with what was done."""
    wrong = [f"span {name}: {kind}, {count} or more expected, got {[span['kind'] for span in spans if span['name'] == name]}"
             for name, (kind, count) in SPANS.items()
             if [span["kind"] for span in spans if span["name"] == name].count(kind) < count]
    published = [span for span in spans if span["name"].startswith("publish")]
    processed = [span for span in spans if span["name"].startswith("process")]
    if not any(one["parent"] == up["id"] and one["trace"] == up["trace"] for up in published for one in processed):
        wrong.append("no event was processed below the span that published it")
    return local.verdict(wrong, f"Rotel understood {len(spans)} spans as they were meant")


if __name__ == "__main__":
    local.run_script(main)
