#!/usr/bin/env python3
"""Simulates one day of a thousand databases with failures.

Each database has ten thousand events a minute. The schedule, the function service and the databases fail at times. The result
is how long events wait, the backlog, the number of concurrent drains, and the cost.

It is a model: events are a fluid, and time passes in steps of five seconds. Its parameters are measured (docs/bench.md) or
explained next to their values. The same seed gives the same day. docs/cost.md contains the results.
"""

import argparse
import random
from dataclasses import dataclass, field

STEP_S = 5
DAY_S = 24 * 3600
GB, GB_SECOND, INVOCATION, TICK = 0.25, 0.0000133334, 0.20 / 1e6, 1.00 / 1e6
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


WAYS = [
    Way("quick; a tick a minute", 0.000036),
    Way("quick; woken behind publishes", 0.000036, wakes=True),
    Way("20 ms; a tick, one drain, no chain", 0.02 / 8, chains=False, most=1),
    Way("20 ms; chains of up to 4", 0.02 / 8),
    Way("200 ms; chains of up to 4", 0.2 / 8),
    Way("200 ms; chains of up to 8", 0.2 / 8, most=8),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--databases", type=int, default=1000)
    parser.add_argument("--per-minute", type=float, default=10_000)
    parser.add_argument("--at-once", type=int, default=0, help="executions that the account may have at once; six for each database by default")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    day = Day(at_once=asked.at_once or 6 * asked.databases)
    print("| handlers; starts | waits p50, s | p95 | p99 | longest | most in one queue | drains at once | invocations | refused | $ a database |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for way in WAYS:
        total = simulate(way, day, asked.databases, asked.per_minute, asked.seed)
        cost = total.run_s * GB * GB_SECOND + total.invocations * INVOCATION + total.ticks * TICK
        shown = [f"{percentile(total.waits, part):,}" for part in (0.5, 0.95, 0.99, 1.0)]
        shown += [f"{total.backlog:,.0f}", f"{total.peak:,}", f"{total.invocations:,.0f}", f"{total.refused:,}", f"{cost / asked.databases:,.3f}"]
        print("| " + " | ".join([way.name, *shown]) + " |", flush=True)


if __name__ == "__main__":
    main()
