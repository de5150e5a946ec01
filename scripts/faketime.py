#!/usr/bin/env python3
"""Prints the path of libfaketime, which the fault suite sets clocks with: the machine's own, or Debian's package
unpacked under .tools. Says why on standard error, and exits with 1, where it cannot be had."""

import glob
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pypi
from pypi import Unavailable

PLACES = ["/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1",
          "/usr/lib64/faketime/libfaketime.so.1"]
LIMIT_S = 60


def main():
    try:
        print(installed() or unpacked())
        return 0
    except (Unavailable, OSError, subprocess.SubprocessError) as error:
        print(f"no libfaketime (apt install libfaketime): {error}", file=sys.stderr)
        return 1


def installed():
    for pattern in PLACES:
        for path in sorted(glob.glob(pattern)):
            return path
    return None


def unpacked():
    """Nothing is installed: the package is only opened."""
    root = pypi.TOOLS / "libfaketime"
    if not root.exists():
        for program in ("apt-get", "dpkg-deb"):
            if not shutil.which(program):
                raise Unavailable(f"{program} is missing")
        root.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="part-", dir=root.parent) as part:
            run(["apt-get", "download", "libfaketime"], part)
            package = next(Path(part).glob("libfaketime_*.deb"), None)
            if package is None:
                raise Unavailable("apt-get has downloaded no package")
            run(["dpkg-deb", "-x", str(package), f"{part}/root"], part)
            pypi.publish(f"{part}/root", root)
    for path in sorted(root.glob("usr/lib/*/faketime/libfaketime.so.1")):
        return path
    raise Unavailable(f"{root} holds no library")


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise Unavailable(f"{command[0]}: {last[0]}")


if __name__ == "__main__":
    sys.exit(main())
