#!/usr/bin/env python3
"""Computes what a million events cost with different systems. docs/cost.md contains the resulting table.

The prices are list prices of us-east-1 in dollars, without free tiers, savings plans or taxes, as published in 2025. Replace
them by your own. The resources that Tidegate needs are measured (field `cost` of `tidegate drain --json`). Those of the
other systems follow from their documentation.
"""

import argparse

MONTH_S = 30 * 24 * 3600
PRICES = {
    "lambda_gb_second": 0.0000133334,  # arm64
    "lambda_request": 0.20 / 1e6,
    "sqs_request": 0.40 / 1e6,
    "scheduler_invocation": 1.00 / 1e6,
    "fargate_vcpu_second": 0.03238 / 3600,  # arm64
    "fargate_gb_second": 0.00356 / 3600,
    "database_vcpu_second": 0.168 / 2 / 3600,  # db.m7g.large, on demand
}
# Measured (docs/bench.md): the packaged function with 256 MB and 0.15 of a core needs 8.9 GB-seconds for a million quick
# events. A tick without events lasts 10 ms, and 20 ms more with a new connection. One event uses 45 us of the server's
# processor time, from its publish to its end.
MEMORY_GB = 0.25
IDLE_RUN_S = 0.030
ENGINE_S = 8.9e-6 / MEMORY_GB
DATABASE_S = 0.000045
CONCURRENCY = 8


def tidegate(per_minute, handler_s):
    """A function with one tick a minute. A drain runs eight handlers at once. If one drain is not enough, several run."""
    events = per_minute * MONTH_S / 60
    ticks = MONTH_S / 60
    busy_s = events * max(ENGINE_S, handler_s / CONCURRENCY)
    run_s = max(ticks * IDLE_RUN_S, busy_s)
    compute = run_s * MEMORY_GB * PRICES["lambda_gb_second"]
    starts = ticks * (PRICES["lambda_request"] + PRICES["scheduler_invocation"])
    database = (events * DATABASE_S + ticks * 0.004) * PRICES["database_vcpu_second"]
    return compute + starts + database, events


def sqs_lambda(per_minute, handler_s):
    """One message per event, sent one by one and received ten at a time: one send, a tenth of a receive and a tenth of a
    delete. When idle, the event source mapping polls with five pollers of 20 s. Each execution handles one message at a
    time."""
    events = per_minute * MONTH_S / 60
    polls = max(events / 10, 5 * MONTH_S / 20)
    requests = events + polls + events / 10
    compute = events * (handler_s + 0.001) * MEMORY_GB * PRICES["lambda_gb_second"]
    return requests * PRICES["sqs_request"] + events / 10 * PRICES["lambda_request"] + compute, events


def always_on(per_minute, handler_s):
    """One worker with a quarter of a core and half a gigabyte on Fargate, as for River, Oban, graphile-worker and pg-boss,
    with 64 handlers at once. More workers if this is not enough. It queries the database as Tidegate does."""
    events = per_minute * MONTH_S / 60
    workers = max(1, -(-events * max(handler_s / 64, ENGINE_S * 4) // MONTH_S))
    worker = 0.25 * PRICES["fargate_vcpu_second"] + 0.5 * PRICES["fargate_gb_second"]
    return workers * worker * MONTH_S + events * DATABASE_S * PRICES["database_vcpu_second"], events


WAYS = {"Tidegate on Lambda": tidegate, "SQS + Lambda": sqs_lambda, "an always-on worker": always_on}


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("| handler | events a minute | " + " | ".join(WAYS) + " |")
    print("|---|---|" + "---|" * len(WAYS))
    for handler_s in (0.002, 0.2):
        for per_minute in (1, 100, 10_000):
            told = []
            for way in WAYS.values():
                month, events = way(per_minute, handler_s)
                told.append(f"{month / events * 1e6:,.2f} ({month:,.2f} a month)")
            print(f"| {handler_s * 1000:.0f} ms | {per_minute:,} | " + " | ".join(told) + " |")


if __name__ == "__main__":
    main()
