"""Unpacks packages of Debian and related systems into the project's own git-ignored folder. Nothing is installed."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pypi
from pypi import Unavailable

LIMIT_S = 60
MANY_LIMIT_S = 600


def unpacked(package, libraries=()):
    """Returns the folder that contains `package`, and those dependencies whose names contain one of `libraries`.

    The names are only parts, because every release uses another package name for a library.
    """
    root = pypi.TOOLS / package
    if root.exists():
        return root
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is missing")
    root.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="part-", dir=root.parent) as part:
        first = _open(package, part)
        needs = re.findall(r"(?:^|, )([a-z0-9.+-]+)", _run(["dpkg-deb", "-f", str(first), "Depends"], part))
        for need in needs:
            if any(library in need for library in libraries):
                _open(need, part)
        pypi.publish(f"{part}/root", root)
    return root


def unpacked_with_needs(package, *others):
    """The folder that holds `package`, `others` and all their dependencies that are not installed on this machine."""
    root = pypi.TOOLS / package
    if root.exists():
        return root
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is missing")
    root.parent.mkdir(exist_ok=True)
    print(f"opening Debian's {package} below {root.parent.name}/: some minutes, once", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="part-", dir=root.parent) as part:
        told = _run(["apt-get", "install", "--simulate", "--no-install-recommends", package, *others], part)
        needs = sorted(set(re.findall(r"^Inst (\S+)", told, re.MULTILINE)))
        _run(["apt-get", "download", *needs], part, limit_s=MANY_LIMIT_S)
        for file in sorted(Path(part).glob("*.deb")):
            _run(["dpkg-deb", "-x", str(file), f"{part}/root"], part)
        pypi.publish(f"{part}/root", root)
    return root


def _open(package, part):
    _run(["apt-get", "download", package], part)
    found = next(Path(part).glob(f"{package}_*.deb"), None)
    if found is None:
        raise Unavailable(f"apt-get has downloaded no {package}")
    _run(["dpkg-deb", "-x", str(found), f"{part}/root"], part)
    return found


def _run(command, folder, limit_s=LIMIT_S):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]}: no answer within {limit_s} s") from error
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise Unavailable(f"{command[0]}: {last[0]}")
    return done.stdout
