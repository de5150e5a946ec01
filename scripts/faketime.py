#!/usr/bin/env python3
"""Prints the path of libfaketime, with which the fault suite sets clocks: the machine's own, or Debian's package unpacked
under .tools. If it is not available, prints the reason on standard error and exits with 1."""

import glob
import sys

import debian
from pypi import Unavailable

PLACES = ["/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1",
          "/usr/lib64/faketime/libfaketime.so.1"]


def main():
    try:
        print(installed() or unpacked())
        return 0
    except (Unavailable, OSError) as error:
        print(f"no libfaketime (apt install libfaketime): {error}", file=sys.stderr)
        return 1


def installed():
    for pattern in PLACES:
        for path in sorted(glob.glob(pattern)):
            return path
    return None


def unpacked():
    root = debian.unpacked("libfaketime")
    for path in sorted(root.glob("usr/lib/*/faketime/libfaketime.so.1")):
        return path
    raise Unavailable(f"{root} holds no library")


if __name__ == "__main__":
    sys.exit(main())
