#!/usr/bin/env python3
"""`make bench-peers`: compares this queue with other Postgres queues, on one durable cluster, in turns.

Each peer has a small runner under benches/peers/ with the same interface: `prepare` creates its schema, `publish N` adds N jobs by
its own bulk interface, and `drain N` runs all of them and reports how long it took until the last completion was stored. After
every drain, a query checks that no job is left. With --mixed, the runners publish and drain at the same time, `steady SECONDS RATE`,
while a transaction holds the vacuum horizon, and then half as long without it. Peers are installed under target/ and .tools/ with pinned versions. If a peer
cannot be installed, it is left out and the reason is printed."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from datetime import date
from urllib.parse import urlsplit, urlunsplit

import local
import tools
from tools import PROJECT, Unavailable

RUNNERS = PROJECT / "benches" / "peers"
sys.path.insert(0, str(RUNNERS))
import observe  # what --mixed reads of the server
BUILT = PROJECT / "target" / "peers"
RESULTS = PROJECT / "bench-results"
DATABASE = "tidegate_peers"
RUN_LIMIT_S = 300
DRIVER = "psycopg[binary,pool]==3.3.9"
PROCRASTINATE = "procrastinate==3.10.0"
NODE_OLDEST = (22, 18)
FULL = 200_000
# How much longer than it publishes a runner may take to drain the rest and to end.
REST_LIMIT_S = 240
# Durable, with the server's defaults. Checkpoints run only between measurements, when they are requested.
SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "1h"}


@dataclass
class Peer:
    """One queue: its origin, how its runner is started, and how to detect unfinished jobs."""

    name: str
    version: str
    command: object  # a function that installs the requirements and returns the command
    left: str  # SQL: number of jobs without a stored completion
    counts: dict  # number of jobs in each mode; less than FULL where it would take minutes
    does: tuple  # completion stored, fenced, ordered in groups, attempts
    waiting: str = ""  # SQL: number of jobs in the queue; with it, the runner also knows `steady`
    named: bool = False  # whether it runs only if it is named, because its build takes minutes or it is slow
    environment: dict = field(default_factory=dict)


def tidegate():
    command = ["cargo", "build", "--profile", "bench", *local.cargo_flags(), "--package", "peer-tidegate", "--bin", "peer-tidegate"]
    return _executable(command, "peer-tidegate")


def crate(name):
    command = ["cargo", "build", "--release", "--locked", "--package", f"peer-{name}", "--manifest-path", str(RUNNERS / "Cargo.toml"), "--target-dir", str(BUILT)]
    return lambda: _executable(command, f"peer-{name}")


def _executable(command, name):
    """Builds, and finds the resulting program in cargo's output."""
    done = subprocess.run([*command, "--message-format=json"], stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        told = json.loads(line)
        if told.get("executable") and told["target"]["name"] == name:
            return [told["executable"]]
    raise Unavailable("does not build")


def javascript(name):
    def install():
        node, npm_command = tools.node(NODE_OLDEST)
        folder = BUILT / "npm"
        for file in ("package.json", "package-lock.json", "common.js"):
            _copy(RUNNERS / file, folder / file)
        # Next to node_modules, where Node looks for packages.
        _copy(RUNNERS / name / "run.js", folder / name / "run.js")
        if not (folder / "node_modules" / name).is_dir():
            tools.npm(npm_command, folder, "ci")
        return [*node, str(folder / name / "run.js")]
    return install


def _copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def python():
    tools.install(PROCRASTINATE, dependencies=True)
    return [sys.executable, str(RUNNERS / "procrastinate" / "run.py")]


RUNNER = {"tidegate": tidegate, "crate": crate, "javascript": javascript, "python": python}


def peers():
    """Returns the queues of benches/peers/peers.toml."""
    for told in tomllib.loads((RUNNERS / "peers.toml").read_text())["peer"]:
        runner, *name = told.pop("runner").split()
        yield Peer(command=RUNNER[runner](*name) if name else RUNNER[runner], **told)


PEERS = list(peers())


class Ground:
    """The cluster, and one database on it that is created anew for every turn."""

    def __init__(self, url):
        # The server needs no password, but a peer's URL parser does.
        parts = urlsplit(url)
        self.url = urlunsplit(parts._replace(path=f"/{DATABASE}", netloc=f"postgres:none@127.0.0.1:{parts.port}"))
        import psycopg  # installed by `main` before the first use
        self.connect = lambda: psycopg.connect(self.url, autocommit=True)
        self.admin = psycopg.connect(url, autocommit=True)
        for name, value in SETTINGS.items():
            self.admin.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.admin.execute("SELECT pg_reload_conf()")
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            if self.value(f"SELECT current_setting('{name}')") != "on":
                raise Unavailable(f"{name} is off: figures without durable commits mean nothing")

    def value(self, sql):
        return self.admin.execute(sql).fetchone()[0]

    def anew(self):
        self.admin.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        self.admin.execute(f"CREATE DATABASE {DATABASE}")


class Wrong(Exception):
    """A runner failed or did not finish its jobs, so its figures are meaningless."""


def run(command, peer, mode, url, *words, limit=RUN_LIMIT_S):
    environment = {**local.environment(), **peer.environment, "DATABASE_URL": url, "PEER_MODE": mode}
    try:
        done = subprocess.run([*command, *map(str, words)], env=environment, text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Wrong(f"took longer than {limit} s to {words[0]}")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Wrong(f"cannot {words[0]}: {reason}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def hold_horizon(client):
    client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.execute("SELECT count(*) FROM pg_class")


def turn(ground, peer, command, mode, count, pinned):
    """Runs one measurement in a new database: publishes all jobs, then drains them."""
    ground.anew()
    run(command, peer, mode, ground.url, "prepare")
    with ground.connect() as client, ground.connect() as pin:
        if pinned:
            hold_horizon(pin)
        empty = ground.value("SELECT pg_current_wal_insert_lsn()")
        published = run(command, peer, mode, ground.url, "publish", count)
        stored = ground.value("SELECT pg_current_wal_insert_lsn()")
        client.execute("ANALYZE")
        client.execute("CHECKPOINT")
        before = ground.value("SELECT pg_current_wal_insert_lsn()")
        drained = run(command, peer, mode, ground.url, "drain", count)
        sizes = f"SELECT pg_current_wal_insert_lsn() - '{before}'::pg_lsn, '{stored}'::pg_lsn - '{empty}'::pg_lsn"
        wal, wal_publish = (float(size) / count for size in ground.admin.execute(sizes).fetchone())
        left = client.execute(peer.left.format(count=count)).fetchone()[0]
        if left != 0 or drained["jobs"] != count:
            raise Wrong(f"{drained['jobs']} of {count} jobs handled, {left} without a stored completion")
    figures = {"drain": count / drained["seconds"], "publish": count / published["seconds"], "wal": wal, "wal_life": wal + wal_publish}
    last = drained["last"]
    if last["jobs"] and last["seconds"] > 0:
        figures["last_quarter"] = last["jobs"] / last["seconds"]
    return figures


def measure(ground, peers, rounds, scale):
    """Interleaves the turns, so that other load on the machine affects all queues equally."""
    found, skipped = {}, {}
    for number in range(rounds):
        for pinned in (False, True):
            for peer, command in peers:
                for mode, full in peer.counts.items():
                    count, key = max(4, full // scale), (peer.name, mode, pinned)
                    # A pinned horizon only matters after a few thousand jobs.
                    if key in skipped or (pinned and full < FULL):
                        continue
                    try:
                        figures = turn(ground, peer, command, mode, count, pinned)
                    except Wrong as wrong:
                        skipped[key] = str(wrong)
                        print(f"{peer.name}, {mode}: {wrong}", file=sys.stderr)
                        continue
                    found.setdefault(key, []).append({**figures, "jobs": count})
                    shown = f"round {number + 1}, {peer.name}, {mode}{', pinned' if pinned else ''}"
                    print(f"{shown}: {figures['drain']:,.0f} jobs/s", file=sys.stderr, flush=True)
    return found, skipped


def steady_turn(ground, peer, command, rate, held_s):
    """Publishes at this rate while the horizon is held, and half as long after that, and drains at the same time, in a new database."""
    ground.anew()
    mode, seconds = next(iter(peer.counts)), held_s + held_s // 2
    run(command, peer, mode, ground.url, "prepare")
    with ground.connect() as client, observe.Server(ground.connect, hold_horizon, held_s) as observed:
        client.execute("CHECKPOINT")
        figures = run(command, peer, mode, ground.url, "steady", seconds, rate, limit=seconds + REST_LIMIT_S)
        figures["rate"] = figures["published"] / seconds
        figures["lost"] = figures["published"] - figures["started"] - client.execute(peer.waiting).fetchone()[0]
    return observed.with_samples(figures)


def measure_mixed(ground, peers, rates, seconds):
    found, failed = {}, {}
    for rate in rates:
        for peer, command in peers:
            try:
                figures = found[peer.name, rate] = steady_turn(ground, peer, command, rate, seconds)
            except Wrong as wrong:
                failed[f"{peer.name} ({rate} jobs/s)"] = str(wrong)
                print(f"{peer.name}, {rate} jobs/s: {wrong}", file=sys.stderr)
                continue
            shown = {name: figure for name, figure in figures.items() if name != "samples"}
            print(f"{peer.name}, {rate} jobs/s: {json.dumps(shown)}", file=sys.stderr, flush=True)
    return found, failed


def mixed_rows(peers, found):
    for peer, _ in peers:
        for (name, rate), figures in found.items():
            if name == peer.name:
                yield [name, peer.version, *("–" if figures[key] is None else f"{figures[key]:,.0f}" for key in observe.COLUMNS.values())]


def shown(turns, figure):
    """Formats median, minimum and maximum."""
    values = sorted(turn[figure] for turn in turns or [] if figure in turn)
    if not values:
        return "–"
    middle = statistics.median(values)
    return f"{middle:,.0f}" if len(values) == 1 else f"{middle:,.0f} ({values[0]:,.0f}–{values[-1]:,.0f})"


COLUMNS = ["queue", "version", "settings", "jobs", "drained jobs/s", "pinned horizon: jobs/s", "its last quarter",
           "published jobs/s", "WAL bytes a job: drained", "its whole life", "completion stored", "fenced", "ordered in groups", "attempts"]


def rows(peers, found):
    for peer, _ in peers:
        for mode in peer.counts:
            plain, pinned = found.get((peer.name, mode, False)), found.get((peer.name, mode, True))
            if plain is None:
                continue
            jobs = plain[0]["jobs"]
            rate = shown(plain, "drain") + (" *" if peer.counts[mode] < FULL else "")
            yield [peer.name, peer.version, mode, f"{jobs:,}", rate, shown(pinned, "drain"),
                   shown(pinned, "last_quarter"), shown(plain, "publish"), shown(plain, "wal"), shown(plain, "wal_life"), *peer.does]


def markdown(columns, table, head, how, skipped):
    lines = ["| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *table]]
    lines += ["", f"{head['date']}, Postgres {head['postgres']}, {head['processor']}, {head['cores']} cores, {how}"]
    lines += [f"Left out: {name}: {why}." for name, why in skipped.items()]
    return "\n".join(lines) + "\n"


def installed(wanted):
    """Returns the wanted peers that could be installed, with their commands, and the reasons why the others could not."""
    usable, missing = [], {}
    for peer in PEERS:
        if peer.name not in wanted:
            continue
        try:
            usable.append((peer, peer.command()))
        except (Unavailable, OSError) as error:
            missing[peer.name] = str(error)
            print(f"{peer.name} is left out: {error}", file=sys.stderr)
    return usable, missing


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"which, of {', '.join(peer.name for peer in PEERS)} (default: the fastest)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, for trying the script")
    parser.add_argument("--mixed", action="store_true", help="publish and drain at the same time, at a steady rate")
    parser.add_argument("--minutes", type=float, default=15, help="how long --mixed holds the horizon for each queue and rate (default: 15)")
    parser.add_argument("--rates", default="800 3000", help="jobs a second of --mixed (default: 800 3000)")
    given = parser.parse_args()
    names = [peer.name for peer in PEERS if peer.waiting or not given.mixed]
    if not set(given.peers) <= set(names):
        parser.error(f"peers: must be of {', '.join(names)}, got {', '.join(given.peers)}")
    given.peers = given.peers or [peer.name for peer in PEERS if peer.name in names and not peer.named]
    return given


def main():
    given = arguments()
    driver = tools.install(DRIVER, dependencies=True)
    sys.path.insert(0, str(driver))
    usable, missing = installed(given.peers)
    folders = [str(driver), str(tools.TOOLS / PROCRASTINATE.replace("==", "-"))]
    for peer, _ in usable:
        peer.environment["PYTHONPATH"] = os.pathsep.join(folders)
    with local.postgres() as started:
        ground = Ground(started["DATABASE_URL"])
        head = {"date": date.today().isoformat(), "postgres": ground.value("SHOW server_version").split()[0],
                "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
        began = time.monotonic()
        failed = (mixed if given.mixed else drained)(given, ground, usable, missing, head)
        print(f"{time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def drained(given, ground, usable, missing, head):
    found, failed = measure(ground, usable, given.rounds, 10 if given.quick else 1)
    skipped = {**missing, **{f"{name} ({mode}{', pinned' if pinned else ''})": why for (name, mode, pinned), why in failed.items()}}
    how = f"{given.rounds} rounds; medians, least and greatest in brackets. * from fewer jobs."
    turns = [{"queue": name, "settings": mode, "pinned": pinned, "turns": each} for (name, mode, pinned), each in found.items()]
    keep("peers", head, turns, skipped, markdown(COLUMNS, rows(usable, found), head, how, skipped))
    observe.write(RESULTS / "peers.csv", [{**turn, **figures} for turn in turns for figures in turn.pop("turns")])
    return failed


def mixed(given, ground, usable, missing, head):
    found, failed = measure_mixed(ground, usable, [int(rate) for rate in given.rates.split()], round(given.minutes * 60))
    skipped, columns = {**missing, **failed}, ["queue", "version", *observe.COLUMNS]
    how = f"the horizon held for {given.minutes:g} minutes, and half as long after that; waits are medians of {observe.SAMPLE_S} s each."
    turns = [{"queue": name, "rate": rate, **figures} for (name, rate), figures in found.items()]
    keep("mixed", head, turns, skipped, markdown(columns, mixed_rows(usable, found), head, how, skipped))
    observe.keep(RESULTS, found)
    return failed or any(figures["lost"] or figures["doubled"] for figures in turns)


def keep(name, head, turns, skipped, table):
    print(table)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"head": head, "results": turns, "left_out": skipped}, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(table)
    print(f"written: {RESULTS.name}/{name}.json, {RESULTS.name}/{name}.md")


if __name__ == "__main__":
    local.run_script(main)
