"""Shared by all servers that tests and developers start: a user other than root, a temporary folder, commands from the
caller, and an end when the caller ends, in whatever way. The pipe that is the script's standard input then closes."""

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

from tools import Unavailable

# A file system in memory, and how much of it must be free before a server's data goes there, and twice as much of the machine's
# memory. Measured: 1 GB at most, with two cores and so four tests at once.
MEMORY = Path("/dev/shm")
MEMORY_FREE = (2 << 30) + (os.cpu_count() or 1) * (512 << 20)
IN_MEMORY = "tidegate-server-{}-"
START_LIMIT_S = 60
STOP_LIMIT_S = 30
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def command_line(purpose, failed, serve, where, options):
    """Does what the command line asks for: `serve`, with these options and those of every server, or `where`."""
    parser = argparse.ArgumentParser(description=purpose.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    serving = verbs.add_parser("serve", help="serve until standard input closes; prints DATABASE_URL=… when ready")
    serving.add_argument("--obey", action="store_true", help="crash the server at the word `crash` on standard input and start it at `start`; for tests")
    serving.add_argument("--set", action="append", default=[], type=pair, metavar="NAME=VALUE", help="a setting of the server")
    for name, option in options.items():
        serving.add_argument(name, **option)
    verbs.add_parser("where", help="print the programs in use, or why there are none")
    arguments = parser.parse_args()
    try:
        if arguments.verb == "serve":
            return serve(arguments)
        print(where())
        return 0
    except (Unavailable, OSError) as error:
        print(f"{failed}: {error}", file=sys.stderr)
        return 1


class User:
    """The user that the server runs as. Postgres and pgbouncer refuse to run as root, so root uses another user."""

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
        """Returns whether the server's user can run a command. File modes alone do not show this if a parent folder is closed."""
        try:
            return run(list(command), self, Path("/")).returncode == 0
        except OSError:
            return False


@contextlib.contextmanager
def throwaway(user):
    """Creates a temporary folder that the server's user can access, for the duration of the block. The folder is removed
    last in every case. A signal ends the block like a closed pipe."""
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


@contextlib.contextmanager
def in_memory(user, room):
    """Creates a folder in memory for the duration of the block, or returns `room` on a machine that has no memory to spare. Half
    of what the tests cost was to find free inodes for the thousands of files of their databases."""
    folder = _folder_in_memory(user)
    try:
        yield folder or room
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_in_memory(user):
    try:
        _sweep_memory()
        if shutil.disk_usage(MEMORY).free < MEMORY_FREE or _free_memory() < 2 * MEMORY_FREE:
            return None
        folder = Path(tempfile.mkdtemp(prefix=IN_MEMORY.format(os.getpid()), dir=MEMORY))
    except OSError:
        return None
    user.own(folder)
    return folder


def _sweep_memory():
    """Removes what killed scripts have left in memory. An hour's wait spares the folders of other containers, whose processes are
    not visible here."""
    for folder in MEMORY.glob(IN_MEMORY.format("*") + "*"):
        owner = folder.name.removeprefix(IN_MEMORY.split("{")[0]).split("-")[0]
        is_old = time.time() - folder.stat().st_mtime > 3600
        if is_old and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _free_memory():
    """Returns the bytes that the machine, or this container, can still give."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) << 10
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def attend(start, wanted_port, ready, obeys, gently=signal.SIGQUIT):
    """Runs a server that `start(port)` starts and returns together with its port. `ready(port)` is the line for the caller
    when the server is ready. The signal `gently` ends it."""
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
    """The current server, and how to start another one in its place."""

    def __init__(self, process, start):
        self.process = process
        self.start_again = start

    def crash(self):
        """Stops immediately. For Postgres this is like `pg_ctl stop -m immediate`, so the next start has to recover."""
        stop(self.process, signal.SIGQUIT)

    def start(self):
        """For a moment, another process may use the port that was released."""
        for tries_left in reversed(range(20)):
            try:
                self.process = self.start_again()
                return
            except Unavailable as error:
                if "Address already in use" not in str(error) or tries_left == 0:
                    raise
            time.sleep(0.1)


def _obey(served):
    """Executes the commands on standard input, one word per line, and answers when each is done, until the input closes."""
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
    """A signal requested the end. Raised at any point of the work."""


def _end(*_):
    _ignore_signals()
    raise Ended


def _ignore_signals():
    """A second Ctrl-C must not interrupt the cleanup after the first one."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave_the_process_group():
    """If the caller's whole group were killed with -9, this process would die too, and no one would clean up.

    On a terminal it stays in the group, because people end it with Ctrl-C."""
    if not os.isatty(0):
        try:
            os.setsid()
        except OSError:
            pass  # already the leader of a group: the caller has seen to it


def _throwaway_folder(user):
    """Creates a temporary folder that the server's user can access. The default location may not be accessible."""
    for parent in (None, "/tmp"):
        room = Path(tempfile.mkdtemp(prefix="tidegate-server-", dir=parent))
        if user.entry:
            room.chmod(0o711)
        if user.can_run("/bin/sh", "-c", 'cd "$1"', "sh", str(room)):
            return room
        room.rmdir()
    raise Unavailable(f"no folder for temporary files can be reached by {user.name}: set TMPDIR")


def started(room, wanted_port, spawn, is_ready):
    """Returns the process that `spawn(port, log)` has started, once `is_ready(process, log)`, and its port.

    If a free port cannot be reserved, another process may take it before the server does. The server then tries another one."""
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
    """Reserves a port for as long as this process lives, even while its server is down. Otherwise a client that returns to a
    crashed and restarted server might reach another program. Two sockets may share an address if both allow it and neither
    is listening when the other binds. The system does not assign such a port to programs that ask for any port. Only Linux
    lets a server bind beside such a socket."""
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
    """Waits until the caller or the server has ended."""
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
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=room, env=environment(), **user.popen_options())


def environment():
    """Returns the environment without the caller's PG* variables, which would change the server's behavior."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _tail(log):
    return "\n".join(log.read_text(errors="replace").splitlines()[-10:])
