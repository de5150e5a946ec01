"""Shared by the scripts behind the make targets: builds, a local Postgres, the stand-in services, and correct exit codes.

Everything started here runs only while its standard input is open, so it ends with the script that started it. It has its own
session, so that Ctrl-C for the script does not end it while the script is cleaning up. `local.py COMMAND…` does this for a program
that would serve until it is stopped: it runs the command, and ends it with its children when standard input closes."""

import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from tools import PROJECT, Unavailable, install

SCRIPTS = Path(__file__).resolve().parent
STOP_LIMIT_S = 40
LISTEN_LIMIT_S = 60
QUIET_LIMIT_S = 120
DRIVER = "pg8000==1.31.6"
GROUP_STOP_LIMIT_S = 5
SERVICES = ("ARCHIVE_URL", "CASES_URL", "NOTIFICATIONS_URL", "AI_CHECK_URL", "OTP_URL", "SMS_URL", "SIGNATURE_URL")


class Failed(Exception):
    """A step failed and has printed the reason. The value is the exit code to return."""


def free_port():
    """Returns a port of the loopback address that is free now. Another program may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_script(work):
    """Calls `work`, and converts every way in which it can end into an exit code, after ending everything it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.chdir(PROJECT)
    try:
        sys.exit(work() or 0)
    except KeyboardInterrupt:
        sys.exit(130)
    except Failed as failed:
        sys.exit(failed.args[0])
    except Unavailable as missing:
        print(missing, file=sys.stderr)
        sys.exit(1)


def verdict(wrong, well):
    """Prints the faults, or that there are none. Returns the exit code."""
    for fault in wrong:
        print(fault, file=sys.stderr)
    if not wrong:
        print(well)
    return int(bool(wrong))


def chosen(works, *more):
    """Does the work that the only argument names, with what `more` gives; or says which there are."""
    name = " ".join(sys.argv[1:])
    if name not in works:
        print(f"usage: {sys.argv[0]} {'|'.join(works)}", file=sys.stderr)
        return 2
    return works[name](*more)


def ran(command, **options):
    """Runs a command, which shows why it fails, and ends the script then. Returns what it printed, if that is captured."""
    try:
        done = subprocess.run([str(part) for part in command], text=True, **options)
    except subprocess.TimeoutExpired as over:
        raise Unavailable(str(over)) from over
    if done.returncode != 0:
        raise Failed(1)
    return done.stdout


def output(command, **options):
    return ran(command, stdout=subprocess.PIPE, **options)


def quietly(command, **options):
    """Runs a command, and shows what it printed only if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=QUIET_LIMIT_S, **options)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise Failed(1)


def module(folder, words, **options):
    """Runs a module of a package that is installed in this folder, which leaves no compiled files there."""
    return ran([sys.executable, *words], env={**environment(), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}, **options)


def environment():
    """Returns the caller's environment without its settings, database, AWS account and tokens. The results must not depend on them, and
    programs of other people must not see them."""
    kept = [name for name in os.environ if not name.startswith(("TIDEGATE_", "DATABASE_", "AWS_")) and not name.endswith("_TOKEN")]
    return {name: os.environ[name] for name in kept}


def cargo_flags():
    """Returns the flags for all builds of a run, so that no step repeats the build of another. The Makefile sets them."""
    return shlex.split(os.environ.get("CARGO_FLAGS", "--locked"))


def build(*targets):
    """Builds, and returns the folder with the development programs."""
    ran(["cargo", "build", *cargo_flags(), *targets])
    metadata = ["cargo", "metadata", "--no-deps", "--format-version=1", "--offline"]
    found = json.loads(output(metadata, stderr=subprocess.DEVNULL))
    return Path(found["target_directory"]) / "debug"


class Companion:
    """A program that prints KEY=value lines when it is ready, and runs until its standard input closes."""

    def __init__(self, command, keys):
        self.name = " ".join(Path(str(part)).name for part in command)
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.variables = {}
        try:
            self._read(keys)
        except BaseException:
            self.close()
            raise

    def _read(self, keys):
        while not self.variables.keys() >= set(keys):
            line = self.process.stdout.readline()
            if not line:
                raise Unavailable(f"{self.name}: ended before it was ready")
            key, _, value = line.strip().partition("=")
            self.variables[key] = value

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self.variables

    def __exit__(self, *_):
        self.close()


class Guarded:
    """A program that serves until it is stopped, for the duration of the block. A caller that is killed with -9 could not stop it,
    so it runs below this file."""

    def __init__(self, command, environment=None, folder=None, output=None):
        guarded = [sys.executable, SCRIPTS / "local.py", *command]
        self.process = subprocess.Popen([str(part) for part in guarded], stdin=subprocess.PIPE, stdout=output, text=True, env=environment, cwd=folder, start_new_session=True)

    def wait_for(self, port):
        """Waits until it listens on this port of the loopback address."""
        deadline = time.monotonic() + LISTEN_LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise Unavailable(f"{self.process.args[2]} did not start to listen; its reason stands above")

    def says(self, pattern):
        """Reads one line, and returns the first group of the pattern."""
        line = self.process.stdout.readline()
        found = re.match(pattern, line)
        if not found:
            raise Unavailable(f"{self.process.args[2]} did not start to listen: it said {line.strip()!r}, and its reason stands above")
        return found[1]

    def __enter__(self):
        try:
            self.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def ready(self):
        """Waits until it serves."""

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(STOP_LIMIT_S)


class Served(Guarded):
    """`tidegate serve` or `tidegate console` on a free port of the loopback address."""

    def __init__(self, tidegate, environment, *words):
        super().__init__([tidegate, *words, "--listen", "127.0.0.1:0"], environment, output=subprocess.PIPE)

    def ready(self):
        self.url = self.says(r"listening on (\S+)")


class Database:
    """A database that `postgres` serves, whose owner needs no password."""

    def __init__(self, url):
        sys.path[:0] = [str(install(DRIVER, dependencies=True))]
        import pg8000.native
        place = urlsplit(url)
        self.connection = pg8000.native.Connection(place.username, host=place.hostname, port=place.port, database=place.path[1:])

    def run(self, sql):
        return self.connection.execute_simple(sql).rows

    def holds(self, sql):
        return self.run(sql)[0][0]


def postgres(*options):
    return Companion([sys.executable, SCRIPTS / "postgres.py", "serve", *options], ["DATABASE_URL"])


def pooler(url):
    """Starts pgbouncer in transaction mode in front of this server."""
    return Companion([sys.executable, SCRIPTS / "pgbouncer.py", "serve", "--before", url], ["DATABASE_URL"])


def services(programs):
    """Starts the stand-ins for the services that the handlers call."""
    return Companion([programs / "tidegate-samples", "services"], SERVICES)


def step(heading, command, environment, folder=None):
    """Prints a command as one would type it and runs it, in the folder if one is given. If it fails, the script ends with
    the command's exit code."""
    shown = shlex.join(_relative(part) for part in command)
    print(f"\n{heading}\n$ {shown}", flush=True)
    code = subprocess.run([str(part) for part in command], env=environment, cwd=folder).returncode
    if code != 0:
        print(f"failed with exit code {code}: {shown}", file=sys.stderr)
        raise Failed(code if code > 0 else 1)


def _relative(part):
    """Shortens paths inside the project to relative ones."""
    text = str(part)
    return os.path.relpath(text) if text.startswith(f"{PROJECT}/") else text


def guard(command):
    """Runs a command until it ends or standard input closes. In its own session, this process survives a kill of the caller's whole
    group, and can clean up."""
    try:
        os.setsid()
    except OSError:
        pass  # already the leader of a group
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None:
            readable, _, _ = select.select([0], [], [], 0.2)
            if readable and not os.read(0, 4096):
                return 0
        return child.returncode
    finally:
        _stop_group(child)


def _stop_group(child):
    """Stops the whole group, because the command's children would otherwise continue."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(GROUP_STOP_LIMIT_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
