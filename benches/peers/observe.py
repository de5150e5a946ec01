"""What `make bench-peers MIXED=1` reads of the server while a runner works, every ten seconds, as the runners sample their waits. A transaction
holds the vacuum horizon at first."""

import csv
import itertools
import os
import resource
import statistics
import threading
import time
from pathlib import Path

import chart

SAMPLE_S = 10
SIZES = "SELECT sum(n_dead_tup)::int8, sum(pg_indexes_size(relid))::int8, sum(pg_table_size(relid))::int8 FROM pg_stat_user_tables"
COLUMNS = {"published/s": "rate", "held: p50 ms": "held_p50_ms", "p99 ms": "held_p99_ms", "CPU %: server": "held_server_cpu_percent",
           "client": "client_cpu_percent", "dead rows": "held_dead_rows", "indexes MB": "held_index_mb",
           "s to a tenth of the dead rows": "recovery_s", "after: p50 ms": "after_p50_ms", "after: p99 ms": "after_p99_ms",
           "after: CPU % of the server": "after_server_cpu_percent", "after: dead rows": "after_dead_rows", "after: indexes MB": "after_index_mb",
           "lost": "lost", "doubled": "doubled"}


class Server:
    """Samples the server in the background, and holds the horizon for so many seconds."""

    def __init__(self, connect, hold_horizon, held_s):
        self.connect, self.hold_horizon, self.held_s = connect, hold_horizon, held_s
        self.over, self.samples, self.thread = threading.Event(), [], threading.Thread(target=self.observe)

    def __enter__(self):
        self.began, self.own = time.monotonic(), client_cpu_s()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.client_cpu_percent = 100 * (client_cpu_s() - self.own) / (time.monotonic() - self.began)
        self.over.set()
        self.thread.join()

    def observe(self):
        with self.connect() as client, self.connect() as pin:
            self.hold_horizon(pin)
            cpu = server_cpu_s(client)
            for second in itertools.count(SAMPLE_S, SAMPLE_S):
                if self.over.wait(max(0, self.began + second - time.monotonic())):
                    return
                before, cpu = cpu, server_cpu_s(client)
                dead, indexes, tables = client.execute(SIZES).fetchone()
                self.samples.append({"second": second, "held": int(second <= self.held_s), "dead_rows": dead, "index_bytes": indexes,
                                     "table_bytes": tables, "server_cpu_percent": round((cpu - before) / SAMPLE_S * 100, 1)})
                if second >= self.held_s:
                    pin.close()

    def with_samples(self, figures):
        """Adds the samples, and what the table shows of the time with the horizon held and of the time after."""
        told = zip(self.samples, figures.pop("backlog_each_10_s"), figures.pop("waits_each_10_s"))
        samples = [{**sample, "backlog": backlog, "p50_ms": waits[0], "p99_ms": waits[1]} for sample, backlog, waits in told]
        found = {**figures, "samples": samples, "client_cpu_percent": self.client_cpu_percent}
        for held, name in ((1, "held"), (0, "after")):
            there = [sample for sample in samples if sample["held"] == held and sample["p99_ms"] is not None]
            for key in ("p50_ms", "p99_ms", "server_cpu_percent"):
                found[f"{name}_{key}"] = statistics.median(sample[key] for sample in there)
            found[f"{name}_dead_rows"] = there[-1]["dead_rows"]
            found[f"{name}_index_mb"] = there[-1]["index_bytes"] / 1e6
        low = [sample["second"] for sample in samples if not sample["held"] and sample["dead_rows"] < found["held_dead_rows"] / 10]
        return {**found, "recovery_s": low[0] - self.held_s if low else None}


def client_cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def server_cpu_s(connection):
    """Returns the CPU time of all the server's processes so far: its children, itself, and those that have ended."""
    postmaster = account(f"/proc/{connection.info.backend_pid}/stat")[1]
    ticks = sum(map(int, account(f"/proc/{postmaster}/stat")[11:15]))
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            process = account(path)
        except OSError:
            continue  # it has ended since
        if process[1] == postmaster:
            ticks += sum(map(int, process[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def account(path):
    # The second field is the program's name in parentheses, which may contain any characters.
    return Path(path).read_text().rpartition(")")[2].split()


def keep(folder, found):
    """Writes the samples and their chart."""
    lines = [{"queue": name, "rate": rate, **sample} for (name, rate), figures in found.items() for sample in figures["samples"]]
    if lines:
        write(folder / "mixed.csv", lines)
        chart.draw(folder / "mixed.csv", folder / "mixed.svg")


def write(path, lines):
    """Writes lines as CSV, some of which may have fewer columns."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
