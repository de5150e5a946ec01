#!/usr/bin/env python3
"""`make template`: checks what `template.yaml` would deploy, without an account and without a network.

SAM and cfn-lint validate the template. It is transformed as on AWS, and checked against the rules with several sets of
parameters. The rules must also notice templates that are broken on purpose. Finally it is deployed to a simulated AWS and
read back.
"""

import copy
import importlib
import importlib.metadata
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import deploy
import local
import pypi

# In one folder, because they share half of their dependencies.
TOOLS = ("aws-sam-cli==1.170.0", "moto[server]==5.2.5")
TEMPLATE = Path("template.yaml")
LIMIT_S = 120
SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:queue-AbCdEf"
NEEDED = {"DatabaseSecretArn": SECRET}
EVERYTHING = {
    **NEEDED, "OwnerSecretArn": f"{SECRET}-owner", "OperatorSecretArn": f"{SECRET}-operator", "IntakeSecretArn": f"{SECRET}-intake",
    "Tracing": "Active",
    "SecretKmsKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/0a1b2c3d", "SubnetIds": "subnet-0a,subnet-0b",
    "SecurityGroupIds": "sg-0a", "Architecture": "arm64", "MaxDrains": "8", "DrainRate": "rate(5 minutes)",
    "JobsHttp": "public", "HttpAuth": "keys,jwt", "HttpJwtIssuer": "https://issuer.example.org", "HttpJwtAudience": "tidegate",
    "WakeOnPublish": "true", "MessageQueue": "on", "OperatorPrincipalArn": "arn:aws:iam::123456789012:role/on-call", "CreateDatabaseRoles": "true", "MetricsByKind": "true",
    "AlarmTopicArn": "arn:aws:sns:eu-central-1:123456789012:on-call", "LogDays": 90, "ArchiveSecretArn": f"{SECRET}-archive",
    "PayloadKeysSecretArn": f"{SECRET}-payload-keys", "Payloads": "sealed",
    "Console": "iam", "ConsoleSecretArn": f"{SECRET}-console", "ConsoleActors": "arn:aws:sts::123456789012:assumed-role/ops/grace",
    "ConsoleInstance": "production", "ConsoleColour": "red", "ConsolePayloads": "false",
    "SmsSecretArn": f"{SECRET}-sms", "SmsAuthHeader": "X-Api-Key", "OtpClientCertFile": "/var/task/certs/otp.pem",
}
SEVERAL = {"DatabaseSecretArns": f"{SECRET}-north,{SECRET}-south", "DatabaseHost": "db.example.org", "DatabaseSecretArn": ""}
# The drain's logins are also those of the operator. Messages and the console have a database of their own.
SEVERAL_WITH_LOGINS = {
    **EVERYTHING, **SEVERAL, "OwnerSecretArn": "", "OperatorSecretArn": "", "ConsoleActors": "",
    "OwnerSecretArns": f"{SECRET}-north-owner,{SECRET}-south-owner", "OperatorSecretArns": f"{SECRET}-north-operator,{SECRET}-south-operator",
}
SETTINGS = {
    "defaults": NEEDED, "everything": EVERYTHING, "HTTP for AWS identities": {**NEEDED, "JobsHttp": "iam"},
    "HTTP for tokens alone": {**NEEDED, "JobsHttp": "public", "HttpAuth": "jwt", "HttpJwtIssuer": "https://issuer.example.org",
                              "HttpJwtAudience": "tidegate"},
    "no concurrency set apart": {**NEEDED, "ReserveConcurrency": "false", "MaxDrains": "2"},
    "two databases": SEVERAL, "two databases with a login for each purpose": SEVERAL_WITH_LOGINS,
}
# Combinations of parameters that CloudFormation must refuse, although each of them alone is allowed.
REFUSED = {
    "HTTP for everybody whom nobody knows": {"JobsHttp": "public"},
    "tokens of nobody": {"JobsHttp": "public", "HttpAuth": "jwt", "HttpJwtAudience": "tidegate"},
    "tokens for nobody": {"JobsHttp": "public", "HttpAuth": "keys,jwt", "HttpJwtIssuer": "https://issuer.example.org"},
    "keys beside AWS identities": {"JobsHttp": "iam", "HttpAuth": "keys"},
    "no database": {"DatabaseSecretArn": ""},
    "one database beside several": {"DatabaseSecretArns": SECRET},
    "several databases that are one": {**SEVERAL, "DatabaseName": "shop"},
    "several databases with one owner": {**SEVERAL, "OwnerSecretArn": SECRET},
    "several databases with one operator": {**SEVERAL, "OperatorSecretArn": SECRET},
    "owners of several databases for one": {"OwnerSecretArns": f"{SECRET},{SECRET}"},
    "operators of several databases for one": {"OperatorSecretArns": f"{SECRET},{SECRET}"},
    "HTTP for several databases": {**SEVERAL, "JobsHttp": "iam"},
    "messages for several databases": {**SEVERAL, "MessageQueue": "on"},
    "a name for a secret": {**SEVERAL, "DatabaseSecretArns": f"north={SECRET},{SECRET}"},
    "a console with the drain's login": {"Console": "iam"},
    "a colour without a name": {"ConsoleColour": "red"},
    "an actor who has no ARN": {"Console": "iam", "ConsoleSecretArn": SECRET, "ConsoleActors": "grace"},
}
RATES = ["rate(1 minute)", "rate(2 minutes)", "rate(10 minutes)", "rate(1 hour)", "rate(1 day)"]
# AWS refuses each of these, but SAM, CloudFormation and the simulated AWS do not.
BAD_RATES = ["rate(1 minutes)", "rate(2 minute)", "rate(0 minutes)", "rate(01 minute)", "rate(1 hours)", "rate(1 week)", "1 minute"]


def main():
    stack = ready()
    rules = importlib.import_module("template_rules")
    source, plain = checked(stack, TEMPLATE)
    wrong = _tools_of_the_deployment() + _rules(stack, rules, plain) + _rates(stack, plain) + _refused(stack, plain) + _controls(stack, rules, source)
    wrong += importlib.import_module("template_deploy").faults(plain)
    print()
    for fault in wrong:
        print(fault, file=sys.stderr)
    if not wrong:
        print(f"{TEMPLATE} deploys what it should")
    return 1 if wrong else 0


def ready():
    """Returns the module `stack`, after installing the tools that it needs."""
    folder = pypi.install(*TOOLS, dependencies=True)
    os.environ.update(tool_environment(folder))
    sys.path.insert(0, str(folder))
    logging.disable(logging.WARNING)
    return importlib.import_module("stack")


def checked(stack, template):
    """Returns the template and its plain resources, after SAM and cfn-lint have found no fault in either."""
    print("SAM and cfn-lint")
    _run("-m", "samcli", "validate", "--lint", "--template", template)
    source = stack.parse(template.read_text())
    plain = stack.transform(source)
    _lint(plain)
    return source, plain


def tool_environment(folder):
    """Returns an environment for SAM and the AWS libraries: no account, no telemetry, and no network requests about either."""
    kept = {"SAM_CLI_TELEMETRY": "0", "AWS_EC2_METADATA_DISABLED": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, "PYTHONPATH": str(folder), "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "eu-central-1")}


def _run(*command):
    done = subprocess.run([sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT_S)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise local.Failed(1)


def _lint(plain):
    """cfn-lint finds more in the plain template than before the transform."""
    folder = pypi.install(*TOOLS, dependencies=True)
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / "template.json"
        file.write_text(json.dumps(plain, indent=1))
        _run(folder / "bin" / "cfn-lint", "--regions", "eu-central-1", "--template", file)


def _tools_of_the_deployment():
    """They are what is pinned by hash, and the version of SAM that is checked here."""
    print("the tools of the deployment")
    plain = lambda name: name.lower().replace("_", "-").replace(".", "-")
    pinned = {f"{plain(name)}=={version}" for name, version in re.findall(r"^([\w.-]+)==(\S+) ", deploy.LOCK.read_text(), re.MULTILINE)}
    folder = deploy.tools()
    found = {f"{plain(one.metadata['Name'])}=={one.version}" for one in importlib.metadata.distributions(path=[str(folder)])}
    faults = [f"{deploy.LOCK.name} does not pin {one}" for one in sorted({*found, TOOLS[0]} - pinned)]
    return faults + [f"{deploy.LOCK.name} pins {one}, which is not installed" for one in sorted(pinned - found)]


def _rules(stack, rules, plain):
    found = []
    for name, parameters in SETTINGS.items():
        print(f"The rules, with {name}")
        found += [f"with {name}: {fault}" for fault in rules.faults(stack.Stack(plain, parameters))]
    return found


def _rates(stack, plain):
    found = [f"DrainRate: {rate} must be allowed" for rate in RATES if not _is_allowed(stack, plain, DrainRate=rate)]
    return found + [f"DrainRate: {rate} must be refused" for rate in BAD_RATES if _is_allowed(stack, plain, DrainRate=rate)]


def _refused(stack, plain):
    return [f"{name}: must be refused" for name, parameters in REFUSED.items() if _is_allowed(stack, plain, **parameters)]


def _is_allowed(stack, plain, **parameters):
    try:
        stack.Stack(plain, {**NEEDED, **parameters})
    except stack.Refused:
        return False
    return True


def _controls(stack, rules, source):
    """A check that never fails checks nothing: each control breaks one thing, and the rules must name it."""
    module = importlib.import_module("template_controls")
    controls = [(control, EVERYTHING) for control in module.CONTROLS]
    controls += [(control, SEVERAL_WITH_LOGINS) for control in module.CONTROLS_OF_SEVERAL]
    print(f"{len(controls)} templates that are broken on purpose")
    missed = []
    for (name, broken, says), parameters in controls:
        bad = copy.deepcopy(source)
        broken(bad)
        faults = rules.faults(stack.Stack(stack.transform(bad), parameters))
        if not any(says in fault for fault in faults):
            missed.append(f"not noticed: {name}; it should have said {says!r}, said {faults}")
    return missed


if __name__ == "__main__":
    local.run_script(main)
