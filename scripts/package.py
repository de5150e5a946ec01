#!/usr/bin/env python3
"""`make package`: builds the functions as they are deployed, zips them and checks their size.

`into PROGRAM FOLDER` puts a program into a folder for SAM, whose build calls `make build-…`.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import local
import pypi
from invoke import CARGO_LAMBDA

# A linker for Amazon Linux on any machine, and for the other architecture.
ZIG = "ziglang==0.13.0.post1"
PROGRAMS = ("tidegate-function", "tidegate-http", "tidegate-console")
TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}
# Not the default of cargo-lambda, which is where cargo stores builds of a profile with that name.
PACKAGES = Path("target/packages")
CERTIFICATES = Path("certs/rds.pem")
# Only these CAs sign AWS's own endpoints. Reading the system's store of 150 CAs would add 15 ms to a cold start.
AWS_CERTIFICATES = Path("certs/aws.pem")
AUTHORITIES = ("Amazon Root CA", "Starfield Services Root")
CERTIFI = "certifi==2026.10.18"
# For OpenSSL, size matters more than speed: this saves half a megabyte, a fifth of one zipped.
OPENSSL_CFLAGS = "-Os -ffunction-sections -fdata-sections"
# Measured: 19.8 and 8.1 MB, of the console. The limits allow a little more; any growth beyond them must be justified. (17.7 and 7.2 before OTLP,
# figures and several databases; 15.6 and 6.2 before the function answered every operator's verb, took in messages of five sources,
# sealed payloads and forgot.)
BINARY_LIMIT, ZIP_LIMIT = 21_300_000, 8_600_000


def main():
    if sys.argv[1:2] == ["into"] and len(sys.argv) == 4 and sys.argv[2] in PROGRAMS:
        return lay_out(sys.argv[2], Path(sys.argv[3]))
    if sys.argv[1:]:
        print(f"usage: {sys.argv[0]} [into {'|'.join(PROGRAMS)} FOLDER]", file=sys.stderr)
        return 2
    build()
    return weigh()


def lay_out(program, folder):
    """SAM creates the zip file itself from the contents of the folder."""
    build()
    shutil.unpack_archive(_package(program), folder)
    (folder / "bootstrap").chmod(0o755)


def build():
    """cargo-lambda does not rebuild a program that is as new as its sources."""
    target = _target()
    cargo_lambda, zig = pypi.install(CARGO_LAMBDA), pypi.install(ZIG)
    command = [cargo_lambda / "bin" / "cargo-lambda", "lambda", "build", "--profile", "lambda", "--locked", "--target", target]
    command += ["--features", "vendored-openssl", "--output-format", "zip", "--lambda-dir", PACKAGES]
    command += [word for program in PROGRAMS for word in ("--bin", program)]
    command += ["--include", keep_aws_certificates()]
    command += ["--include", CERTIFICATES] if CERTIFICATES.exists() else []
    environment = {**os.environ, "CFLAGS": OPENSSL_CFLAGS, "PATH": f"{zig / 'ziglang'}{os.pathsep}{os.environ['PATH']}"}
    # OpenSSL's own build would use variables that are meant for this one.
    for name in ("ARCH", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"):
        environment.pop(name, None)
    if subprocess.run([str(part) for part in command], env=environment).returncode != 0:
        raise local.Failed(1)


def keep_aws_certificates():
    """Extracts the certificates of AWS's own CAs from Mozilla's list."""
    bundle = (pypi.install(CERTIFI) / "certifi" / "cacert.pem").read_text()
    kept = [entry for entry in bundle.split("\n# Issuer:") if any(name in entry.split("\n")[0] for name in AUTHORITIES)]
    if len(kept) < len(AUTHORITIES):
        raise pypi.Unavailable(f"{CERTIFI} has no certificates of {' and '.join(AUTHORITIES)}")
    AWS_CERTIFICATES.parent.mkdir(exist_ok=True)
    text = "".join(f"# Issuer:{entry}\n" for entry in kept)
    if not AWS_CERTIFICATES.exists() or AWS_CERTIFICATES.read_text() != text:
        AWS_CERTIFICATES.write_text(text)
    return AWS_CERTIFICATES


def asked_target():
    """Returns Rust's name for the architecture in ARCH."""
    asked = os.environ.get("ARCH") or "x86_64"
    if asked not in TARGETS:
        raise pypi.Unavailable(f"ARCH: must be {' or '.join(TARGETS)}, got {asked!r}")
    return TARGETS[asked]


def _target():
    target = asked_target()
    libraries = subprocess.run(["rustc", "--print", "target-libdir", "--target", target], capture_output=True, text=True)
    if not Path(libraries.stdout.strip() or "/nowhere").is_dir():
        raise pypi.Unavailable(f"Rust cannot build for this architecture yet: rustup target add {target}")
    return target


def weigh():
    """A cold start reads every byte, so growth beyond the limits must fail here and not slow down the users."""
    heavy = False
    for program in PROGRAMS:
        package = _package(program)
        with zipfile.ZipFile(package) as archive:
            binary = archive.getinfo("bootstrap").file_size
            rest = [name for name in archive.namelist() if name != "bootstrap"]
        zipped = package.stat().st_size
        print(f"{program}: {binary / 1e6:.1f} MB, zipped {zipped / 1e6:.1f} MB{', with ' + ', '.join(rest) if rest else ''}")
        heavy |= binary > BINARY_LIMIT or zipped > ZIP_LIMIT
    if heavy:
        print(f"more than {BINARY_LIMIT / 1e6} MB, or {ZIP_LIMIT / 1e6} MB zipped", file=sys.stderr)
    return 1 if heavy else 0


def binary(program):
    """Returns the path where cargo writes the program for the zip."""
    return Path("target") / _target() / "lambda" / program


def _package(program):
    return PACKAGES / program / "bootstrap.zip"


if __name__ == "__main__":
    local.run_script(main)
