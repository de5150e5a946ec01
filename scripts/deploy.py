#!/usr/bin/env python3
"""`make deploy`: what `make package` makes, deployed by SAM with the settings of samconfig.toml.

With DRY_RUN=1 nothing is changed: the template is validated, and AWS is asked what it would do, given credentials.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import local
import package
import pypi
import template

SETTINGS = Path("samconfig.toml")


def main():
    folder = pypi.install(*template.TOOLS, dependencies=True)
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "PYTHONPATH": str(folder)}
    sys.path.insert(0, str(folder))
    dry = os.environ.get("DRY_RUN", "") not in ("", "0")
    missing = _missing()
    if missing and not dry:
        raise pypi.Unavailable("\n".join(missing))
    package.build()
    if package.weigh() != 0:
        raise local.Failed(1)
    # Neither of the two asks AWS; both want to know a region.
    offline = {**environment, "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "eu-central-1")}
    _sam("The template", ["validate", "--lint"], offline)
    _sam("The build", ["build"], offline)
    # What it built, since no template is named: naming one would have it look for its settings there.
    deployment = ["deploy", "--parameter-overrides", *_parameters()]
    if missing:
        print(f"\nWould deploy\n$ {_shown(deployment)}\nbut\n" + "\n".join(missing))
        return 0
    _sam("The deployment", [*deployment, *(["--no-execute-changeset"] if dry else [])], environment)
    return 0


def _parameters():
    """What samconfig.toml says, and what follows from the package."""
    found = {name: value for name, _, value in (pair.partition("=") for pair in _configured())}
    found["Architecture"] = os.environ.get("ARCH") or "x86_64"
    if package.CERTIFICATES.exists():
        found["DatabaseCaFile"] = f"/var/task/{package.CERTIFICATES}"
    # SAM takes a value apart at its spaces.
    return [f'{name}="{value}"' if " " in value else f"{name}={value}" for name, value in found.items()]


def _configured():
    import tomlkit
    settings = tomlkit.parse(SETTINGS.read_text()).unwrap()
    given = settings["default"]["deploy"]["parameters"].get("parameter_overrides", [])
    return shlex.split(given) if isinstance(given, str) else given


def _missing():
    """One line for each thing without which AWS could not even be asked."""
    import boto3
    session = boto3.Session()
    found = []
    if session.get_credentials() is None:
        found.append("AWS credentials are missing: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if session.region_name is None:
        found.append("the AWS region is missing: set AWS_REGION, such as eu-central-1")
    if not any(pair.startswith("DatabaseSecretArn=arn:") for pair in _configured()):
        found.append(f"the database secret is missing: set DatabaseSecretArn in {SETTINGS}")
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
