#!/usr/bin/env python3
"""`make test`: runs the given stages one after the other, and prints the current stage, how long each took, and what was
skipped.

Each stage is a target of the Makefile, so `make STAGE` runs a failed one again. The first failure ends the run.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import skips

MAKEFILE = Path(__file__).resolve().parent.parent / "Makefile"


def descriptions():
    """Returns the description of each target in `make help`, up to its first semicolon."""
    rules = re.findall(r"^([a-z-]+):.*## ([^;\n]*)", MAKEFILE.read_text(), re.MULTILINE)
    return dict(rules)


def spent(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def main(stages):
    told, began, times = descriptions(), time.monotonic(), []
    unknown = [stage for stage in stages if stage not in told]
    if unknown or not stages:
        print(f"stages: must be targets of the Makefile, got {unknown or 'none'}", file=sys.stderr)
        return 2
    for number, stage in enumerate(stages, 1):
        print(f"\n=== {number} of {len(stages)}: {stage}: {told[stage]} ({spent(time.monotonic() - began)} so far)", flush=True)
        since = time.monotonic()
        code = subprocess.run(["make", "--no-print-directory", stage]).returncode
        times.append((stage, time.monotonic() - since))
        if code != 0:
            print(f"\n=== {stage} failed; `make {stage}` runs it alone", file=sys.stderr)
            return code
    print(f"\n=== all {len(stages)} stages passed in {spent(time.monotonic() - began)}")
    print("\n".join(f"    {stage:14} {spent(seconds):>12}" for stage, seconds in times))
    return skips.tell()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
