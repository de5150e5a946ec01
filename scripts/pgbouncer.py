#!/usr/bin/env python3
"""Runs a pgbouncer in transaction mode, in front of a Postgres on the loopback address.

It runs while its standard input is open. It is the machine's own pgbouncer, or Debian's package unpacked under .tools."""

import os
import re
import shutil
import subprocess
import sys
from urllib.parse import urlsplit

import served
import tools
from tools import Unavailable

PLACES = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/opt/homebrew/bin"
# Libraries that the package needs and a machine may lack.
LIBRARIES = ("ares", "libevent")
# Since this version, pgbouncer can carry prepared statements from session to session, and later versions do so by default.
CARRIES_STATEMENTS = (1, 21)


class Installation:
    """The program, and the folder with its libraries if they are not the system's."""

    def __init__(self, program, libraries=None, root=None):
        self.program = program
        self.libraries = libraries
        self.root = root

    def environment(self):
        return {"LD_LIBRARY_PATH": str(self.libraries)} if self.libraries else {}

    def version(self):
        command = [self.program, "--version"]
        told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.environment()}).stdout
        found = re.search(r"PgBouncer (\d+)\.(\d+)", told)
        if not found:
            raise Unavailable(f"{self.program}: tells no version")
        return int(found[1]), int(found[2])

    def reachable(self, user, room):
        """Copies the unpacked files, because the server's user may not have access to the project's folder."""
        if self.root is None:
            return self
        copy = shutil.copytree(self.root, room / "installation", symlinks=True)
        return _opened(copy)


def main():
    return served.command_line(__doc__, "no pgbouncer (apt install pgbouncer)", serve, lambda: installation().program, {
        "--before": {"required": True, "metavar": "DATABASE_URL", "help": "the server behind it; any of its databases"}})


def installation():
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:{PLACES}")
    return Installation(found) if found else _opened(tools.debian("pgbouncer", libraries=LIBRARIES))


def _opened(root):
    program = root / "usr/sbin/pgbouncer"
    libraries = next(root.glob("usr/lib/*/libcares.so.2"), None)
    if not (program.exists() and libraries):
        raise Unavailable(f"{root} does not hold all of it")
    return Installation(str(program), libraries.parent, root)


def serve(arguments):
    """Runs a pooler from its start to its end."""
    found, user, server = installation(), served.User(), urlsplit(arguments.before)
    with served.throwaway(user) as room:
        found = found.reachable(user, room)
        # As strict as the oldest version, so that programs that prepare statements fail.
        strict = {"max_prepared_statements": 0} if found.version() >= CARRIES_STATEMENTS else {}

        def spawn(port, log):
            return _spawn(found, user, room, log, _settings(room, server, port, {**strict, **dict(arguments.set)}))

        def start(port):
            return served.started(room, port, spawn, lambda _, log: "process up" in log.read_text(errors="replace"))

        served.attend(start, 0, lambda port: f"DATABASE_URL=postgres://{server.username}@127.0.0.1:{port}/postgres", arguments.obey)
    return 0


def _settings(room, server, port, more):
    """Every user of the server may connect, as in the server of the tests."""
    path = room / f"pgbouncer-{port}.ini"
    settings = {"listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "pool_mode": "transaction",
                "auth_type": "trust", "stats_users": server.username, "max_client_conn": 1000, "server_login_retry": 1,
                **more}
    lines = ["[databases]", f"* = host={server.hostname} port={server.port} auth_user={server.username}", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)
    return path


def _spawn(found, user, room, log, settings):
    with open(log, "wb") as stream:
        return subprocess.Popen([found.program, str(settings)], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                                cwd=room, env={**served.environment(), **found.environment()}, start_new_session=True,
                                **user.popen_options())


if __name__ == "__main__":
    sys.exit(main())
