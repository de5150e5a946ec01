#!/usr/bin/env python3
"""`make bench`: measures the queue against its baselines. `coldstart` and `targets` are measured by scripts of their own; every other
word is a workload of benches/bench. Without words, all are measured. QUICK=1 runs a tenth of the workloads."""

import os
import sys

import local

APART = {"coldstart": "scripts/coldstart.py", "targets": "tests/targets/bench.py"}


def main():
    words, quick = sys.argv[1:], bool(os.environ.get("QUICK"))
    workloads = [word for word in words if word not in APART]
    if workloads or not words:
        options = ["--quick"] * quick + workloads
        local.ran(["cargo", "bench", *local.cargo_flags(), "--bench", "bench", "--", *options])
    for word, script in APART.items():
        if word in words or not (words or quick):
            local.ran([sys.executable, script])
    return 0


if __name__ == "__main__":
    local.run_script(main)
