#!/usr/bin/env python3
"""Runs a command that would outlive its caller, and ends it with its children when standard input closes.

For programs that serve until they are stopped: a caller that is killed with -9 cannot stop them.
"""

import os
import select
import signal
import subprocess
import sys

STOP_LIMIT_S = 5


def main():
    _outlive_the_caller()
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None:
            readable, _, _ = select.select([0], [], [], 0.2)
            if readable and not os.read(0, 4096):
                return 0
        return child.returncode
    finally:
        _stop_group(child)


def _outlive_the_caller():
    """In a session of its own, this process survives a kill of the caller's whole group, and can clean up."""
    try:
        os.setsid()
    except OSError:
        pass  # already the leader of a group
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))


def _stop_group(child):
    """Stops the whole group, because the command's children would otherwise continue."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(STOP_LIMIT_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


if __name__ == "__main__":
    sys.exit(main())
