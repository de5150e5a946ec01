#!/usr/bin/env python3
"""`make metrics`: promtool reads what Prometheus is told, the alert rules and their tests.

The metrics are those of a queue of its own, in which something was published and drained: the text format as a file for
node_exporter, and both formats over HTTP. promtool is the machine's own, or that of Debian's package, unpacked under .tools.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import debian
import local
import pypi
import skips
from api import Server

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
RULES = Path("deploy/prometheus")
# A reader of the format that is strict, which promtool's own reader of files is not.
READER = "prometheus-client==0.22.1"
LIMIT_S = 60


def main():
    try:
        promtool = installed()
    except (pypi.Unavailable, OSError) as error:
        print(f"no promtool, so metrics and alerts were not checked (apt install prometheus): {error}", file=sys.stderr)
        skips.note("promtool", "make metrics")
        return 0
    programs = local.build("--bin", "tidegate")
    with ExitStack() as started, tempfile.TemporaryDirectory() as room:
        environment = {**local.environment(), **started.enter_context(local.postgres("--fast"))}
        tidegate = programs / "tidegate"
        for arguments in (["migrate"], ["publish", "grant_letter_viewed", "--payload", '{"grant_number": "G-1"}'], ["drain"]):
            local.step(f"tidegate {arguments[0]}", [tidegate, *arguments], environment)
        file = Path(room) / "tidegate.prom"
        local.step("The file", [tidegate, "status", "--format", "prometheus", "--output", file], environment)
        assert stat.S_IMODE(file.stat().st_mode) == 0o644, oct(file.stat().st_mode)
        url = started.enter_context(Server(tidegate, {**environment, "TIDEGATE_HTTP_METRICS": "on"})).url
        check(promtool, "the file", file.read_text())
        check(promtool, "HTTP", scraped(url, "text/plain"))
        open_metrics = scraped(url, OPEN_METRICS)
        check(promtool, "HTTP, OpenMetrics", as_text(open_metrics))
        read_strictly(open_metrics)
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        local.step(f"promtool {' '.join(arguments)}", [promtool, *arguments], environment, RULES)
    return 0


def installed():
    """promtool, if it can be had."""
    found = shutil.which("promtool")
    if found:
        return Path(found).resolve()
    program = debian.unpacked("prometheus") / "usr/bin/promtool"
    if not program.exists():
        raise pypi.Unavailable("Debian's package prometheus holds no promtool")
    return program.resolve()


def scraped(url, accept):
    request = urllib.request.Request(f"{url}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        kind = answer.headers["Content-Type"]
        assert kind.startswith(accept.split(";")[0]), kind
        return answer.read().decode()


def check(promtool, what, text):
    """Lints, too: a metric without help, a counter without _total, and the like are errors."""
    done = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True, timeout=LIMIT_S)
    if done.returncode != 0:
        print(f"{what}: promtool check metrics\n{done.stdout}{done.stderr}", file=sys.stderr)
        raise local.Failed(1)
    print(f"promtool check metrics: {what}: {len(text.splitlines())} lines are well")


def as_text(text):
    """OpenMetrics as promtool reads it, which knows the text format alone: there, counters are named as their samples are."""
    return re.sub(r"^# (HELP|TYPE) (\S+)(?= .*)", lambda line: f"# {line[1]} {named(text, line[2])}", text, flags=re.MULTILINE)


def named(text, name):
    return f"{name}_total" if f"\n# TYPE {name} counter\n" in text else name


def read_strictly(text):
    folder = pypi.install(READER, dependencies=True)
    program = "import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n" \
        "print(len(list(read(sys.stdin.read()))), 'metrics are OpenMetrics')"
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], input=text, text=True, env=environment, timeout=LIMIT_S)
    if done.returncode != 0:
        raise local.Failed(1)


if __name__ == "__main__":
    local.run_script(main)
