#!/usr/bin/env python3
"""`make package`: builds the functions as they are deployed, zips them and checks their size.

`into PROGRAM FOLDER` puts a program into a folder for SAM, whose build calls `make build-…`.

`deploy`, `make deploy`, deploys the packages with SAM and the settings of samconfig.toml. With DRY_RUN=1 it changes nothing. It
validates the template and, if there are credentials, asks AWS for the planned changes.
"""

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import local
import tools
from run import cargo_lambda

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
SETTINGS = Path("samconfig.toml")
LOCK = Path(__file__).resolve().parent / "sam.txt"


def main():
    if sys.argv[1:2] == ["into"] and len(sys.argv) == 4 and sys.argv[2] in PROGRAMS:
        return lay_out(sys.argv[2], Path(sys.argv[3]))
    if sys.argv[1:] == ["deploy"]:
        return deploy()
    if sys.argv[1:]:
        print(f"usage: {sys.argv[0]} [deploy | into {'|'.join(PROGRAMS)} FOLDER]", file=sys.stderr)
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
    zig = tools.install(ZIG)
    command = [cargo_lambda(), "lambda", "build", "--profile", "lambda", "--locked", "--target", target]
    command += ["--features", "vendored-openssl", "--output-format", "zip", "--lambda-dir", PACKAGES]
    command += [word for program in PROGRAMS for word in ("--bin", program)]
    command += ["--include", keep_aws_certificates()]
    command += ["--include", CERTIFICATES] if CERTIFICATES.exists() else []
    environment = {**os.environ, "CFLAGS": OPENSSL_CFLAGS, "PATH": f"{zig / 'ziglang'}{os.pathsep}{os.environ['PATH']}"}
    # OpenSSL's own build would use variables that are meant for this one.
    for name in ("ARCH", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"):
        environment.pop(name, None)
    local.ran(command, env=environment)


def keep_aws_certificates():
    """Extracts the certificates of AWS's own CAs from Mozilla's list."""
    bundle = (tools.install(CERTIFI) / "certifi" / "cacert.pem").read_text()
    kept = [entry for entry in bundle.split("\n# Issuer:") if any(name in entry.split("\n")[0] for name in AUTHORITIES)]
    if len(kept) < len(AUTHORITIES):
        raise tools.Unavailable(f"{CERTIFI} has no certificates of {' and '.join(AUTHORITIES)}")
    AWS_CERTIFICATES.parent.mkdir(exist_ok=True)
    text = "".join(f"# Issuer:{entry}\n" for entry in kept)
    if not AWS_CERTIFICATES.exists() or AWS_CERTIFICATES.read_text() != text:
        AWS_CERTIFICATES.write_text(text)
    return AWS_CERTIFICATES


def asked_target():
    """Returns Rust's name for the architecture in ARCH."""
    asked = os.environ.get("ARCH") or "x86_64"
    if asked not in TARGETS:
        raise tools.Unavailable(f"ARCH: must be {' or '.join(TARGETS)}, got {asked!r}")
    return TARGETS[asked]


def _target():
    target = asked_target()
    libraries = subprocess.run(["rustc", "--print", "target-libdir", "--target", target], capture_output=True, text=True)
    if not Path(libraries.stdout.strip() or "/nowhere").is_dir():
        raise tools.Unavailable(f"Rust cannot build for this architecture yet: rustup target add {target}")
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


def deploy():
    folder = sam()
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "PYTHONPATH": str(folder)}
    sys.path.insert(0, str(folder))
    dry = os.environ.get("DRY_RUN", "") not in ("", "0")
    missing = _missing()
    if missing and not dry:
        raise tools.Unavailable("\n".join(missing))
    build()
    if weigh() != 0:
        raise local.Failed(1)
    # Neither command contacts AWS, but both require a region.
    offline = {**environment, "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "eu-central-1")}
    _sam("The template", ["validate", "--lint"], offline)
    _sam("The build", ["build"], offline)
    # No template is named, so SAM uses the one that it built. With a named template, it would look for its settings there.
    deployment = ["deploy", "--parameter-overrides", *_parameters()]
    if missing:
        print(f"\nWould deploy\n$ {_shown(deployment)}\nbut\n" + "\n".join(missing))
        return 0
    _sam("The deployment", [*deployment, *(["--no-execute-changeset"] if dry else [])], environment)
    return 0


def sam():
    """Returns the folder with SAM. It runs with the credentials of who deploys, so all of it is pinned by hash."""
    return tools.install_locked(LOCK)


def _parameters():
    """Returns the parameters in samconfig.toml, and those that depend on the package."""
    found = {name: value for name, _, value in (pair.partition("=") for pair in _configured())}
    found["Architecture"] = os.environ.get("ARCH") or "x86_64"
    if CERTIFICATES.exists():
        found["DatabaseCaFile"] = f"/var/task/{CERTIFICATES}"
    # SAM splits values at spaces.
    return [f'{name}="{value}"' if " " in value else f"{name}={value}" for name, value in found.items()]


def _configured():
    import tomlkit
    settings = tomlkit.parse(SETTINGS.read_text()).unwrap()
    given = settings["default"]["deploy"]["parameters"].get("parameter_overrides", [])
    return shlex.split(given) if isinstance(given, str) else given


def _missing():
    """Returns one line for each missing requirement of a call to AWS."""
    import boto3
    session = boto3.Session()
    found = []
    if session.get_credentials() is None:
        found.append("AWS credentials are missing: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if session.region_name is None:
        found.append("the AWS region is missing: set AWS_REGION, such as eu-central-1")
    if not any(pair.startswith(("DatabaseSecretArn=arn:", "DatabaseSecretArns=arn:")) for pair in _configured()):
        found.append(f"the database secret is missing: set DatabaseSecretArn, or DatabaseSecretArns for several databases, in {SETTINGS}")
    return found


def _sam(heading, arguments, environment):
    print(f"\n{heading}\n$ {_shown(arguments)}", flush=True)
    local.ran([sys.executable, "-m", "samcli", *arguments], env=environment)


def _shown(arguments):
    return shlex.join(["sam", *map(str, arguments)])


if __name__ == "__main__":
    local.run_script(main)
