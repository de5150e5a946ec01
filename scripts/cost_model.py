#!/usr/bin/env python3
"""Computes what a million events cost with different systems, and (`simulate`) simulates one day of a thousand databases with
failures. docs/cost.md contains the results.

The prices are list prices of us-east-1 in dollars, without free tiers, savings plans or taxes, as published in 2025. Replace
them by your own. The resources that Tidegate needs are measured (docs/bench.md). Those of the other systems follow from their
documentation.

In the simulation, each database has ten thousand events a minute. The schedule, the function service and the databases fail at
times. The result is how long events wait, the backlog, the number of concurrent drains, and the cost. It is a model: events are a
fluid, and time passes in steps of five seconds. The same seed gives the same day.
"""

import argparse
import random
from dataclasses import dataclass, field

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

STEP_S = 5
DAY_S = 24 * 3600
# Time before a drain leases: an asynchronous invocation, and a cold start in one of ten cases. Then the minimum time of a run.
START_S = 0.05 + 0.1 * 0.35
LEAST_RUN_S = 0.03
# Number of events that a killed drain holds, and how long no other drain gets them.
LEASED, LEASE_S = 1000, 60
# A drain starts others if the queue would not be empty within this time, and so many for each one at work.
EMPTY_WITHIN_S = 30
GROWTH = 3


@dataclass
class Way:
    """How drains are started, and how much of a drain's time an event takes: the time of its handler, divided by the number
    of handlers that run at once."""
    name: str
    event_s: float
    most: int = 4
    budget_s: int = 50
    chains: bool = True
    wakes: bool = False


@dataclass
class Day:
    """The faults of a day. For all databases: when the schedule starts nothing, when the function service refuses all calls,
    and how many executions the account allows at once. For each database: lost ticks, killed drains, and outages of the
    database."""
    at_once: int
    no_schedule: range = range(6 * 3600, 6 * 3600 + 1200)
    no_function: range = range(12 * 3600, 12 * 3600 + 600)
    lost_tick: float = 0.001
    killed_runs: float = 0.0005
    outages: float = 1.0
    outage_s: int = 180


@dataclass
class Queue:
    """A database: its waiting events, its drains with their remaining time, and when the leases of killed drains expire."""
    phase: int
    waiting: float = 0.0
    drains: list = field(default_factory=list)
    leases: list = field(default_factory=list)
    down_until: int = 0


@dataclass
class Sum:
    """Totals of all databases for the whole day."""
    waits: dict = field(default_factory=dict)
    backlog: float = 0.0
    # Running drains in this step, and the maximum in any step.
    alive: int = 0
    peak: int = 0
    ticks: int = 0
    invocations: float = 0.0
    refused: int = 0
    run_s: float = 0.0


def simulate(way, day, databases, per_minute, seed):
    dice = random.Random(seed)
    queues = [Queue(phase=dice.randrange(0, 60, STEP_S)) for _ in range(databases)]
    rate = per_minute / 60
    total = Sum()
    for now in range(0, DAY_S, STEP_S):
        total.alive = sum(len(queue.drains) for queue in queues)
        for queue in queues:
            arrive(queue, day, rate * STEP_S, now, dice)
            if now >= queue.down_until:
                for _ in range(starts(queue, way, day, now, dice, total)):
                    start(queue, way, day, now, total)
            work(queue, way, day, now, dice, total)
            waited = round(queue.waiting / rate)
            total.waits[waited] = total.waits.get(waited, 0) + 1
            total.backlog = max(total.backlog, queue.waiting)
        total.peak = max(total.peak, total.alive)
    return total


def arrive(queue, day, events, now, dice):
    """Adds the events published in a step and those from the leases of killed drains, and decides whether the database
    fails."""
    queue.waiting += events
    while queue.leases and queue.leases[0] <= now:
        queue.leases.pop(0)
        queue.waiting += LEASED
    if dice.random() < day.outages * STEP_S / DAY_S:
        queue.down_until = now + day.outage_s
        queue.drains.clear()


def starts(queue, way, day, now, dice, total):
    """Returns how many drains the schedule, a publisher and running drains want to start now."""
    wanted = 0
    if (now + queue.phase) % 60 == 0 and now not in day.no_schedule and dice.random() >= day.lost_tick:
        wanted = 1
        total.ticks += 1
    if way.wakes and not queue.drains:
        wanted = 1
    at_work = len(queue.drains)
    if way.chains and at_work and queue.waiting * way.event_s > EMPTY_WITHIN_S * at_work:
        wanted += GROWTH * at_work
    return min(wanted, way.most - at_work)


def start(queue, way, day, now, total):
    if now in day.no_function or total.alive >= day.at_once:
        total.refused += 1
        return
    total.alive += 1
    total.invocations += 1
    total.run_s += START_S
    queue.drains.append(way.budget_s)


def work(queue, way, day, now, dice, total):
    """Runs one step of the drains of a queue."""
    count = len(queue.drains)
    if count == 0:
        return
    done = min(queue.waiting, STEP_S * count / way.event_s)
    queue.waiting -= done
    busy = min(STEP_S * count, max(done * way.event_s, LEAST_RUN_S * count))
    if way.wakes and queue.waiting == 0:
        # Events published after the end of the drain wake the next one, repeatedly.
        total.invocations += (STEP_S - busy / count) / (START_S + LEAST_RUN_S)
        busy = STEP_S
    total.run_s += busy
    left = []
    for remaining in queue.drains:
        if dice.random() < day.killed_runs * STEP_S / way.budget_s:
            taken = min(LEASED, queue.waiting)
            queue.waiting -= taken
            queue.leases += [now + LEASE_S] if taken else []
        elif queue.waiting > 0 and remaining > STEP_S:
            left.append(remaining - STEP_S)
        elif queue.waiting > 0 and way.chains and now not in day.no_function:
            total.invocations += 1
            left.append(way.budget_s)
    queue.drains = left


def percentile(waits, part):
    count, seen = sum(waits.values()), 0
    for waited in sorted(waits):
        seen += waits[waited]
        if seen >= count * part:
            return waited
    return max(waits)


STARTS = [
    Way("quick; a tick a minute", 0.000036),
    Way("quick; woken behind publishes", 0.000036, wakes=True),
    Way("20 ms; a tick, one drain, no chain", 0.02 / 8, chains=False, most=1),
    Way("20 ms; chains of up to 4", 0.02 / 8),
    Way("200 ms; chains of up to 4", 0.2 / 8),
    Way("200 ms; chains of up to 8", 0.2 / 8, most=8),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb")
    day = verbs.add_parser("simulate")
    day.add_argument("--databases", type=int, default=1000)
    day.add_argument("--per-minute", type=float, default=10_000)
    day.add_argument("--at-once", type=int, default=0, help="executions that the account may have at once; six for each database by default")
    day.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    simulated(asked) if asked.verb else computed()


def computed():
    print("| handler | events a minute | " + " | ".join(WAYS) + " |")
    print("|---|---|" + "---|" * len(WAYS))
    for handler_s in (0.002, 0.2):
        for per_minute in (1, 100, 10_000):
            told = []
            for way in WAYS.values():
                month, events = way(per_minute, handler_s)
                told.append(f"{month / events * 1e6:,.2f} ({month:,.2f} a month)")
            print(f"| {handler_s * 1000:.0f} ms | {per_minute:,} | " + " | ".join(told) + " |")


def simulated(asked):
    day = Day(at_once=asked.at_once or 6 * asked.databases)
    print("| handlers; starts | waits p50, s | p95 | p99 | longest | most in one queue | drains at once | invocations | refused | $ a database |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for way in STARTS:
        total = simulate(way, day, asked.databases, asked.per_minute, asked.seed)
        cost = total.run_s * MEMORY_GB * PRICES["lambda_gb_second"] + total.invocations * PRICES["lambda_request"]
        cost += total.ticks * PRICES["scheduler_invocation"]
        shown = [f"{percentile(total.waits, part):,}" for part in (0.5, 0.95, 0.99, 1.0)]
        shown += [f"{total.backlog:,.0f}", f"{total.peak:,}", f"{total.invocations:,.0f}", f"{total.refused:,}", f"{cost / asked.databases:,.3f}"]
        print("| " + " | ".join([way.name, *shown]) + " |", flush=True)


if __name__ == "__main__":
    main()
