"""Installs a pinned program from crates.io into the project's own git-ignored folder, for what PyPI has no working copy of.

It is compiled, without optimisation, for it runs for seconds and would be compiled for minutes.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pypi import TOOLS, Unavailable, publish

# Shared by all, so that what two programs have in common is compiled once; gone afterwards.
BUILD = TOOLS / "build"


def install(*requirements):
    """Returns the programs of `requirements` (name==version each), installing them when they are not there."""
    missing = [requirement for requirement in requirements if not _folder(requirement).is_dir()]
    try:
        for requirement in missing:
            _compile(requirement)
    finally:
        if missing:
            shutil.rmtree(BUILD, ignore_errors=True)
    return [_folder(requirement) / "bin" / _name(requirement) for requirement in requirements]


def _compile(requirement):
    """The folder appears by one rename, so a copy that is killed, or several at once, leave no half of it."""
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
