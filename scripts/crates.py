"""Installs a pinned program from crates.io into the project's own git-ignored folder, if PyPI has no working copy of it.

It is compiled without optimization, because it runs for seconds, and optimizing would take minutes.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pypi import TOOLS, Unavailable, publish

# Shared by all programs, so that common dependencies are compiled once. It is removed afterwards.
BUILD = TOOLS / "build"


def install(*requirements):
    """Returns the programs of `requirements` (name==version each). Installs them if they are missing."""
    missing = [requirement for requirement in requirements if not _folder(requirement).is_dir()]
    try:
        for requirement in missing:
            _compile(requirement)
    finally:
        if missing:
            shutil.rmtree(BUILD, ignore_errors=True)
    return [_folder(requirement) / "bin" / _name(requirement) for requirement in requirements]


def _compile(requirement):
    """The folder appears by a rename, so an interrupted or concurrent installation leaves no incomplete copy."""
    TOOLS.mkdir(exist_ok=True)
    print(f"installing {requirement} from crates.io into {TOOLS.name}/: some minutes, once", file=sys.stderr)
    part = Path(tempfile.mkdtemp(prefix="part-", dir=TOOLS))
    name, version = requirement.split("==")
    command = ["cargo", "install", "--locked", "--debug", "--quiet", "--no-track", name, "--version", f"={version}"]
    command += ["--config", "profile.dev.debug=false", "--root", str(part), "--target-dir", str(BUILD)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Unavailable(f"cargo cannot install {requirement}: {last.strip()}")
        publish(part, _folder(requirement))
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _folder(requirement):
    return TOOLS / requirement.replace("==", "-")


def _name(requirement):
    return requirement.split("==")[0]
