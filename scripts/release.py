#!/usr/bin/env python3
"""The steps of .github/workflows/release.yml that are no targets of the Makefile.

  check VERSION        checks that every crate has the version and that the changelog describes it
  collect ARCH         collects the function packages and their SBOM under the names of a release
  collect completions  packs the command line's completions and manual pages into one archive
  sums                 writes the checksums of everything that was collected
  notes VERSION        prints the changelog's section of the version
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import local
from package import PACKAGES, PROGRAMS, TARGETS
from pypi import Unavailable

FILES = Path("target/release-files")
COMPLETIONS = Path("target/completions")
SUMS = "SHA256SUMS"


def main():
    match sys.argv[1:]:
        case ["check", version]:
            return check(version)
        case ["collect", "completions"]:
            return collect_completions()
        case ["collect", arch] if arch in TARGETS:
            return collect(arch)
        case ["sums"]:
            return sums()
        case ["notes", version]:
            print(notes(version))
            return 0
    print(f"usage: {sys.argv[0]} check VERSION | collect {'|'.join(TARGETS)}|completions | sums | notes VERSION", file=sys.stderr)
    return 2


def check(version):
    told = subprocess.run(["cargo", "metadata", "--locked", "--no-deps", "--format-version=1"], capture_output=True, check=True)
    crates = json.loads(told.stdout)["packages"]
    wrong = [f"{crate['name']} is {crate['version']}, not {version}" for crate in crates if crate["version"] != version]
    wrong += [] if notes(version) else [f"CHANGELOG.md has no part for {version}"]
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


def notes(version):
    """Returns the text below the version's heading."""
    text = Path("CHANGELOG.md").read_text()
    found = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def collect(arch):
    FILES.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        shutil.copy(there(PACKAGES / program / "bootstrap.zip"), FILES / f"{program}-{arch}.zip")
    shutil.copy(there(Path("target/sbom") / f"tidegate-{arch}.cdx.json"), FILES)
    return told()


def collect_completions():
    FILES.mkdir(parents=True, exist_ok=True)
    with tarfile.open(FILES / "tidegate-completions.tar.gz", "w:gz") as archive:
        archive.add(there(COMPLETIONS), "tidegate-completions")
    return told()


def there(path):
    if not path.exists():
        raise Unavailable(f"{path} is missing: make it first")
    return path


def told():
    for file in sorted(FILES.iterdir()):
        print(file)
    return 0


def sums():
    """Moves all files into one folder and writes their checksums."""
    files = sorted(file for file in FILES.rglob("*") if file.is_file() and file.name != SUMS)
    if not files:
        raise Unavailable(f"{FILES} holds nothing")
    for file in files:
        if file.parent != FILES:
            file.rename(FILES / file.name)
    for folder in [folder for folder in FILES.iterdir() if folder.is_dir()]:
        shutil.rmtree(folder)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in sorted(FILES.iterdir()) if file.name != SUMS]
    (FILES / SUMS).write_text("\n".join(lines) + "\n")
    return told()


if __name__ == "__main__":
    local.run_script(main)
