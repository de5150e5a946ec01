#!/usr/bin/env python3
"""`make collector`: a published OpenTelemetry collector takes what Tidegate sends.

The integration tests read our own receiver. It is built from the same protobufs as what it reads, so it could share a
misunderstanding. This collector was written by others: Rotel, from PyPI. It prints what it has understood.
"""

import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import local
import pypi
import skips

ROTEL = "rotel==0.0.1a15"
# Ends only a run that hangs.
LIMIT_S = 60
EVENTS = 3
SPANS = {
    "publish grant_letter_viewed": ("SPAN_KIND_PRODUCER", 1),
    "process grant_letter_viewed": ("SPAN_KIND_CONSUMER", EVENTS),
    "count_view": ("SPAN_KIND_INTERNAL", EVENTS),
    "receive tidegate": ("SPAN_KIND_CLIENT", 1),
    "settle tidegate": ("SPAN_KIND_CLIENT", 1),
    "drain": ("SPAN_KIND_INTERNAL", 1),
}


def main():
    try:
        agent = pypi.install(ROTEL) / "rotel" / "rotel-agent"
        agent.chmod(0o755)
        subprocess.run([agent, "--version"], check=True, capture_output=True)
    except (pypi.Unavailable, OSError, subprocess.CalledProcessError) as error:
        print(f"no collector, so nothing was sent to one: {error}", file=sys.stderr)
        skips.note("collector", "make collector")
        return 0
    programs = local.build("--bin", "tidegate")
    with ExitStack() as started:
        environment = {**local.environment(), **started.enter_context(local.postgres("--fast"))}
        tidegate = programs / "tidegate"
        publish = [tidegate, "publish", "grant_letter_viewed", "--payload", '{"grant_number": "G-1"}']
        local.step("The schema", [tidegate, "migrate"], environment)
        for _ in range(EVENTS - 1):
            local.step("An event under no trace", publish, environment)
        collector = started.enter_context(Collector(agent))
        recorded = {**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "TIDEGATE_TRACE_RATIO": "1"}
        local.step("An event under a trace", publish, recorded)
        local.step("The drain", [tidegate, "drain"], recorded)
        return check(collector)


class Collector:
    """Rotel on free ports of the loopback address. It ends with this script."""

    def __init__(self, agent):
        self.room = tempfile.TemporaryDirectory()
        self.output = Path(self.room.name) / "understood"
        http, grpc = local.free_port(), local.free_port()
        self.url = f"http://127.0.0.1:{http}"
        command = [sys.executable, local.SCRIPTS / "guard.py", agent, "start", "--exporter", "blackhole",
                   "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
                   "--debug-log", "traces", "--debug-log-verbosity", "detailed",
                   "--pid-file", f"{self.room.name}/pid", "--log-file", f"{self.room.name}/log"]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=output,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        self.port = http

    def __enter__(self):
        waited_for(self._listens, "the collector to listen")
        return self

    def _listens(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def understood(self):
        return self.output.read_text(errors="replace")

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(local.STOP_LIMIT_S)
        self.room.cleanup()


def waited_for(is_so, what):
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise pypi.Unavailable(f"waited {LIMIT_S} s for {what}")
        time.sleep(0.05)


def check(collector):
    """Compares the spans that the collector has understood with what was done."""
    waited_for(lambda: "drain" in [span["name"] for span in spans_of(collector.understood())], "the drain's spans")
    spans = spans_of(collector.understood())
    wrong = [f"span {name}: {kind}, {count} or more expected, got {[span['kind'] for span in spans if span['name'] == name]}"
             for name, (kind, count) in SPANS.items()
             if [span["kind"] for span in spans if span["name"] == name].count(kind) < count]
    published = [span for span in spans if span["name"].startswith("publish")]
    processed = [span for span in spans if span["name"].startswith("process")]
    if not any(one["parent"] == up["id"] and one["trace"] == up["trace"] for up in published for one in processed):
        wrong.append("no event was processed below the span that published it")
    for what in wrong:
        print(f"  WRONG: {what}")
    if wrong:
        return 1
    print(f"Rotel understood {len(spans)} spans as they were meant")
    return 0


def spans_of(text):
    pattern = (r"Trace ID +: (?P<trace>\w+)\n +Parent ID +: (?P<parent>\w*)\n +ID +: (?P<id>\w+)\n"
               r" +Name +: (?P<name>.+)\n +Kind +: (?P<kind>\w+)\n")
    return [found.groupdict() for found in re.finditer(pattern, text)]


if __name__ == "__main__":
    local.run_script(main)
