#!/usr/bin/env python3
"""`make bench WORKLOADS=targets`: how fast `tidegate-relay` passes events on, with 64 calls at once, and what a million of them costs in a
function of 256 MB. The functions, the queue and Postgres are on the same machine, and take their part of its cores."""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "scripts")]

import local  # noqa: E402
import tools  # noqa: E402

AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true"}
FUNCTION = 'lambda = "arn:aws:lambda:eu-central-1:123456789012:function:ship"'
QUEUE = 'sqs = "https://sqs.eu-central-1.amazonaws.com/123456789012/warehouse"'
# What, the target, how long an answer takes in ms, and how many events.
WORKLOADS = [
    ("function, one event a call, 0 ms", FUNCTION, 0, 20_000),
    ("function, one event a call, 50 ms", FUNCTION, 50, 20_000),
    ("function, 10 events a call, 0 ms", f'{FUNCTION}\nbatch = 10\nwithin = "20ms"', 0, 50_000),
    ("queue, 10 messages a call, 0 ms", f'{QUEUE}\nbatch = 10\nwithin = "20ms"', 0, 50_000),
]
MEMORY_GB = 0.25


def main():
    flags = local.cargo_flags()
    # In one command, so that both have the same features of what they share.
    local.ran(["cargo", "build", "--release", *flags, "--package", "tidegate-relay", "--package", "tidegate-targets",
               "--bin", "tidegate-relay", "--example", "functions"])
    release = local.build("--package", "tidegate-relay", "--bin", "tidegate-relay").parent / "release"
    with ExitStack() as started:
        environment = {**os.environ, **started.enter_context(local.postgres()), **AWS}
        database = local.Database(environment["DATABASE_URL"])
        for what, target, delay, events in WORKLOADS:
            measure(release, environment, database, what, target, delay, events)
    return 0


def measure(release, environment, database, what, target, delay, events):
    file = tools.PROJECT / "target" / "bench-targets.toml"
    file.write_text(f'[targets.one]\n{target}\n[kinds]\norder_placed = {{ target = "one" }}\n')
    relay = release / "tidegate-relay"
    local.output([relay, "migrate", "--targets", file], env=environment)
    database.run("TRUNCATE tidegate.event_queue, tidegate.event_log")
    database.run(f"""SELECT count(*) FROM tidegate.publish_many((SELECT jsonb_agg(jsonb_build_object(
        'kind', 'order_placed', 'payload', jsonb_build_object('order_id', n, 'text', repeat('x', 180)))) FROM generate_series(1, {events}) AS n))""")
    with local.Companion([release / "examples" / "functions", delay], ["URL"]) as stub:
        url = {"AWS_ENDPOINT_URL_LAMBDA": stub["URL"], "AWS_ENDPOINT_URL_SQS": stub["URL"], "TIDEGATE_CONCURRENCY": "64"}
        begun = time.monotonic()
        child = subprocess.Popen([relay, "drain", "--budget", "120s", "--json"], env={**environment, **url}, stdout=subprocess.PIPE, text=True)
        said = child.stdout.read()
        _, _, used = os.wait4(child.pid, 0)
        took = time.monotonic() - begun
    report = json.loads(said)
    assert report["completed"] == events, report
    cpu = used.ru_utime + used.ru_stime
    print(f"{what}: {events / took:,.0f} events/s, {cpu * 1e6 / events:.0f} s of CPU and {took * MEMORY_GB * 1e6 / events:,.0f} GB-seconds a million events, "
          f"at most {used.ru_maxrss / 1024:.0f} MB", flush=True)


if __name__ == "__main__":
    local.run_script(main)
