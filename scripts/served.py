"""What a server that tests and developers start needs, whatever it serves: a user who is not root, a throwaway
folder, obedience to its caller, and an end when the caller ends, however that ends: then the pipe that is the
script's standard input closes.
"""

import argparse
import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pypi import Unavailable

START_LIMIT_S = 60
STOP_LIMIT_S = 30
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class User:
    """Who the server runs as: Postgres and pgbouncer refuse to be root, so root lends them another user."""

    def __init__(self):
        self.entry = self._other_than_root() if os.geteuid() == 0 else None

    @staticmethod
    def _other_than_root():
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise Unavailable("servers refuse to run as root: create a user, for instance with `useradd postgres`")

    @property
    def name(self):
        return self.entry.pw_name if self.entry else "this user"

    def popen_options(self):
        if self.entry is None:
            return {}
        return {"user": self.entry.pw_uid, "group": self.entry.pw_gid, "extra_groups": []}

    def own(self, folder):
        if self.entry is None:
            return
        for path in [folder, *Path(folder).rglob("*")]:
            os.chown(path, self.entry.pw_uid, self.entry.pw_gid, follow_symlinks=False)

    def can_run(self, *command):
        """Whether the server's user can run a command: file modes alone do not say it for a closed parent folder."""
        try:
            return run(list(command), self, Path("/")).returncode == 0
        except OSError:
            return False


@contextlib.contextmanager
def throwaway(user):
    """A new folder that the server's user can reach, for as long as the block runs. It goes last, whatever happened
    before, and a signal ends the block as a closed pipe does."""
    _leave_the_process_group()
    room = _throwaway_folder(user)
    try:
        for number in SIGNALS:
            signal.signal(number, _end)
        yield room
    except (Ended, BrokenPipeError):
        pass
    finally:
        _ignore_signals()
        shutil.rmtree(room, ignore_errors=True)


def attend(start, wanted_port, ready, obeys, gently=signal.SIGQUIT):
    """The life of a server that `start(port)` starts and returns with its port. `ready(port)` is what the caller is
    told when it serves; it ends by the signal `gently`."""
    server, port = start(wanted_port)
    served = Served(server, lambda: start(port)[0])
    try:
        print(ready(port), flush=True)
        if obeys:
            _obey(served)
        else:
            _wait_for_the_end(served.process)
    finally:
        stop(served.process, gently)


class Served:
    """The server of the moment, and how to start another one in its place."""

    def __init__(self, process, start):
        self.process = process
        self.start_again = start

    def crash(self):
        """At once: of Postgres it is what `pg_ctl stop -m immediate` does, so that the next start has to recover."""
        stop(self.process, signal.SIGQUIT)

    def start(self):
        """A port that was left may be somebody else's for a moment."""
        for tries_left in reversed(range(20)):
            try:
                self.process = self.start_again()
                return
            except Unavailable as error:
                if "Address already in use" not in str(error) or tries_left == 0:
                    raise
            time.sleep(0.1)


def _obey(served):
    """Does what standard input says, a word a line, and answers when it is done; until it closes."""
    said = b""
    while True:
        heard = os.read(0, 4096)
        if not heard:
            return
        *words, said = (said + heard).split(b"\n")
        for word in words:
            {b"crash": served.crash, b"start": served.start}[word]()
            print(word.decode(), flush=True)


class Ended(Exception):
    """A signal asked for the end; raised wherever the work happens to be."""


def _end(*_):
    _ignore_signals()
    raise Ended


def _ignore_signals():
    """A second Ctrl-C must not interrupt the cleaning up after the first."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave_the_process_group():
    """A caller whose whole group is killed with -9 takes this process along, and nobody would be left to clean up.

    On a terminal it stays, for Ctrl-C is how a person ends it.
    """
    if not os.isatty(0):
        try:
            os.setsid()
        except OSError:
            pass  # already the leader of a group: the caller has seen to it


def _throwaway_folder(user):
    """A new folder that the server's user can reach; the usual place may be closed to it."""
    for parent in (None, "/tmp"):
        room = Path(tempfile.mkdtemp(prefix="tidegate-server-", dir=parent))
        if user.entry:
            room.chmod(0o711)
        if user.can_run("/bin/sh", "-c", 'cd "$1"', "sh", str(room)):
            return room
        room.rmdir()
    raise Unavailable(f"no folder for temporary files can be reached by {user.name}: set TMPDIR")


def started(room, wanted_port, spawn, is_ready):
    """The process that `spawn(port, log)` has started, once `is_ready(process, log)`, and its port.

    Where a free port cannot be held, somebody else may take it before the server has it, so it may take another."""
    for _ in range(1 if wanted_port else 10):
        port = wanted_port or _free_port()
        log = room / f"log-{port}"
        server = spawn(port, log)
        try:
            if _waited_for(lambda: is_ready(server, log), server):
                return server, port
        except BaseException:
            stop(server, signal.SIGQUIT)
            raise
        stop(server, signal.SIGQUIT)
        if "Address already in use" not in log.read_text(errors="replace"):
            break
    raise Unavailable(f"the server did not start:\n{_tail(log)}")


def _waited_for(is_ready, server):
    deadline = time.monotonic() + START_LIMIT_S
    while server.poll() is None and time.monotonic() < deadline:
        if is_ready():
            return True
        time.sleep(0.02)
    return False


HELD = []


def _free_port():
    """A port that nobody else is given for as long as this process lives, also while its server is away: whoever came
    back to a server that is to crash and start again would talk to a stranger. Two sockets may have one address where
    both allow it and neither listens when the other binds; the system gives it to none that asks for any port. Elsewhere
    than on Linux a server could not bind beside such a socket."""
    holder = socket.socket()
    if sys.platform == "linux":
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    if sys.platform == "linux":
        HELD.append(holder)
    else:
        holder.close()
    return port


def _wait_for_the_end(server):
    """Until the caller is gone, or the server is: then there is nothing left to wait for."""
    if os.isatty(0):
        while server.poll() is None:
            time.sleep(0.2)
    while server.poll() is None:
        readable, _, _ = select.select([0], [], [], 0.5)
        if readable and not os.read(0, 4096):
            return
    raise Unavailable(f"the server ended by itself with status {server.returncode}")


def stop(server, gently):
    for number in (gently, signal.SIGKILL):
        if server.poll() is None:
            server.send_signal(number)
        try:
            server.wait(STOP_LIMIT_S)
            return
        except subprocess.TimeoutExpired:
            continue


def pair(text):
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def run(command, user, room):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=room,
                          env=environment(), **user.popen_options())


def environment():
    """Without the caller's PG* variables, which would change what the server does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _tail(log):
    return "\n".join(log.read_text(errors="replace").splitlines()[-10:])
