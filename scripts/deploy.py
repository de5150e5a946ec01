#!/usr/bin/env python3
"""`make deploy`: deploys the packages of `make package` with SAM and the settings of samconfig.toml.

With DRY_RUN=1 it changes nothing. It validates the template and, if there are credentials, asks AWS for the planned changes.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import local
import package
import pypi

SETTINGS = Path("samconfig.toml")
LOCK = Path(__file__).resolve().parent / "sam.txt"


def main():
    folder = tools()
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "PYTHONPATH": str(folder)}
    sys.path.insert(0, str(folder))
    dry = os.environ.get("DRY_RUN", "") not in ("", "0")
    missing = _missing()
    if missing and not dry:
        raise pypi.Unavailable("\n".join(missing))
    package.build()
    if package.weigh() != 0:
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


def tools():
    """Returns the folder with SAM. It runs with the credentials of who deploys, so all of it is pinned by hash."""
    return pypi.install_locked(LOCK)


def _parameters():
    """Returns the parameters in samconfig.toml, and those that depend on the package."""
    found = {name: value for name, _, value in (pair.partition("=") for pair in _configured())}
    found["Architecture"] = os.environ.get("ARCH") or "x86_64"
    if package.CERTIFICATES.exists():
        found["DatabaseCaFile"] = f"/var/task/{package.CERTIFICATES}"
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
    done = subprocess.run([sys.executable, "-m", "samcli", *map(str, arguments)], env=environment)
    if done.returncode != 0:
        raise local.Failed(done.returncode)


def _shown(arguments):
    return shlex.join(["sam", *map(str, arguments)])


if __name__ == "__main__":
    local.run_script(main)
