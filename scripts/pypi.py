"""Installs a pinned package from PyPI into the project's own git-ignored folder.

The machine's Python is not changed. Everything is installed into `.tools/`, and deleting that folder removes it.

Packages without dependencies are also pinned by hash, in wheels.txt, and so is what deploys, with its dependencies, in sam.txt.
Checkers and stand-ins with dependencies, which no package of ours contains and which see no credentials, are pinned only by
version: they have some hundred files for each platform and version of Python.
"""

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


class Unavailable(Exception):
    """The machine lacks a requirement. The message is one line that says what to install."""


def install(*requirements, dependencies=False):
    """Returns the folder that contains `requirements` (name==version each). Installs them if they are missing.

    The folder appears by a rename, so an interrupted or concurrent installation leaves no incomplete copy.
    """
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
    if folder.is_dir():
        return folder
    TOOLS.mkdir(exist_ok=True)
    print(f"installing {shown} from PyPI into {TOOLS.name}/", file=sys.stderr)
    part = Path(tempfile.mkdtemp(prefix="part-", dir=TOOLS))
    try:
        _pip(shown, requirements, part, pinned, lock)
        _open_to_all(part)
        publish(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def publish(part, folder):
    """Renames `part` to `folder`, unless another process was first. Its result is equivalent."""
    try:
        os.rename(part, folder)
    except OSError:
        if not folder.is_dir():
            raise


def _pip(shown, requirements, target, pinned, lock):
    """Runs pip, and shows its output only if it fails. With hashes, it builds nothing: that would fetch what has none."""
    python = _python_with_pip(shown)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"]
    command += ["--root-user-action=ignore", "--target", str(target)]
    command += requirements or ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", "/dev/stdin"]
    done = subprocess.run(command, input=pinned, capture_output=True, text=True)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise Unavailable(f"{shown}: what PyPI has is not what {lock.name} pins by its hash")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unavailable(f"pip cannot install {shown}: {last}")


def _pinned(requirement):
    """Returns the package's lines in wheels.txt, which use pip's own format for hashes."""
    blocks = re.findall(r"^\w.*(?:\n .*)*\n", WHEELS.read_text(), re.MULTILINE)
    for block in blocks:
        if block.split()[0] == requirement:
            return block
    raise Unavailable(f"{WHEELS.name} has no hashes of {requirement}")


def _python_with_pip(requirement):
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
