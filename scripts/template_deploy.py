"""Deploys the plain template to moto, a simulated AWS on the loopback address, and reads back the resources.

moto creates functions, roles, logs, queue and topic from the template. It does not support schedules, function URLs and the
policies attached to a role in a template, so each is created through the interface of its service, which checks it. The migration
runner is executed unchanged.
"""

import ast
import copy
import io
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import local
import pypi
from stack import Stack
from template_rules import ACTIONS, EVENTS

REGION = "eu-central-1"
NAME = "tidegate"
BUCKET, KEY = "packages", "bootstrap.zip"
START_LIMIT_S = 60
RUNNER_LIMIT_S = 60
ACTOR = "arn:aws:sts::123456789012:assumed-role/ops/grace"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "stand-in", "AWS_SECRET_ACCESS_KEY": "stand-in", "AWS_DEFAULT_REGION": REGION}


def faults(plain):
    print("A deployment to a stand-in for AWS")
    with Moto() as moto:
        secret = moto.client("secretsmanager").create_secret(Name="queue", SecretString="{}")["ARN"]
        _upload_a_package(moto)
        parameters = {"DatabaseSecretArn": secret}
        stack_id = _create_stack(moto, plain, parameters)
        found = _runner(moto, plain, stack_id)
        deployed = _attached(moto, plain, parameters)
        found += [*_functions(moto, secret), *_schedules(moto, deployed), *_roles(moto, secret), *_logs(moto)]
    with Moto() as moto:
        return found + _several(moto, plain)


def _several(moto, plain):
    """A second deployment: for two databases, with a console for one of them."""
    store = moto.client("secretsmanager")
    names = ("north", "south", "north-operator", "south-operator", "console")
    arns = {name: store.create_secret(Name=name, SecretString="{}")["ARN"] for name in names}
    drains, operators = ([arns[name + end] for name in ("north", "south")] for end in ("", "-operator"))
    _upload_a_package(moto)
    parameters = {"DatabaseSecretArns": ",".join(drains), "OperatorSecretArns": ",".join(operators), "Console": "iam",
                  "ConsoleSecretArn": arns["console"], "ConsoleActors": ACTOR}
    _create_stack(moto, plain, parameters)
    deployed = _attached(moto, plain, parameters)
    wanted = {"drain": drains, "cleanup": operators, "operate": operators, "migrate": drains, "console": [arns["console"]]}
    found = [fault for name, secrets in wanted.items() for fault in _secrets_of(moto, name, secrets)]
    variables = moto.client("lambda").get_function(FunctionName=f"{NAME}-console")["Configuration"]["Environment"]["Variables"]
    given = [variables.get(f"TIDEGATE_CONSOLE_{name}") for name in ("AUTH", "ALLOW", "ACTORS")]
    if given != ["iam", "act", ACTOR]:
        found.append(f"{NAME}-console: was deployed with {given}")
    return found + _urls(moto, deployed)


def _attached(moto, plain, parameters):
    """Returns the stack as it was deployed, after attaching the policies of each role."""
    made = Deployed(moto)
    deployed = Stack(plain, parameters, made.attribute)
    for name, role in deployed.of_type("AWS::IAM::Role").items():
        for policy in role.get("ManagedPolicyArns", []):
            moto.client("iam").attach_role_policy(RoleName=made.attribute(name, None), PolicyArn=policy)
    return deployed


def _urls(moto, deployed):
    client = moto.client("lambda")
    for made in deployed.of_type("AWS::Lambda::Url").values():
        client.create_function_url_config(FunctionName=made["TargetFunctionArn"], AuthType=made["AuthType"])
    asks = client.get_function_url_config(FunctionName=f"{NAME}-console")["AuthType"]
    return [] if asks == "AWS_IAM" else [f"{NAME}-console: its URL asks for {asks}"]


def _secrets_of(moto, name, secrets):
    """Checks the secrets that a function was given, and those that its role may read."""
    made = moto.client("lambda").get_function(FunctionName=f"{NAME}-{name}")["Configuration"]
    keys = ("DATABASE_SECRET_ID", "DATABASE_SECRET_IDS")
    given = [made["Environment"]["Variables"].get(key) for key in keys]
    wanted = [secrets[0], None] if len(secrets) == 1 else [None, ",".join(secrets)]
    found = [] if given == wanted else [f"{NAME}-{name}: was deployed with {given}, not {wanted}"]
    may = _may(moto, made["Role"].rpartition("/")[2])
    return found if may == [("secretsmanager:GetSecretValue", sorted(secrets))] else [*found, f"{NAME}-{name}: may {may}"]


def _may(moto, role):
    """Returns what the policies allow that are attached to the role: actions with sorted resources."""
    iam = moto.client("iam")
    allowed = []
    for attached in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        version = iam.get_policy(PolicyArn=attached["PolicyArn"])["Policy"]["DefaultVersionId"]
        document = _document(iam.get_policy_version(PolicyArn=attached["PolicyArn"], VersionId=version)["PolicyVersion"]["Document"])
        for each in document["Statement"]:
            resources = each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
            allowed.append((each["Action"], sorted(resources)))
    return allowed


class Moto:
    """moto on a free port. It ends with this script."""

    def __init__(self):
        self.port = local.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, local.SCRIPTS / "guard.py", sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.port]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        try:
            self._wait()
            # Functions do not run in containers. Their answers can be set beforehand.
            self.post("/moto-api/config", {"lambda": {"use_docker": False}})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def _wait(self):
        deadline = time.monotonic() + START_LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise pypi.Unavailable("moto did not start to listen")

    def environment(self):
        return {**os.environ, **ACCOUNT, "AWS_ENDPOINT_URL": self.url}

    def client(self, service):
        import boto3
        return boto3.client(service, endpoint_url=self.url, region_name=REGION,
                            aws_access_key_id=ACCOUNT["AWS_ACCESS_KEY_ID"], aws_secret_access_key=ACCOUNT["AWS_SECRET_ACCESS_KEY"])

    def post(self, path, body):
        import requests
        requests.post(self.url + path, json=body, timeout=10).raise_for_status()


def _upload_a_package(moto):
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("bootstrap", "#!/bin/sh\n")
    moto.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    moto.client("s3").put_object(Bucket=BUCKET, Key=KEY, Body=package.getvalue())


def _create_stack(moto, plain, parameters):
    plain = copy.deepcopy(plain)
    # moto cannot refer to a version.
    plain["Resources"]["Migration"]["Properties"]["FunctionVersion"] = f"{NAME}-migrate:1"
    urls = [name for name, made in plain["Resources"].items() if made["Type"] == "AWS::Lambda::Url"]
    plain["Resources"] = {name: made for name, made in plain["Resources"].items() if name not in urls}
    plain["Outputs"] = {name: made for name, made in plain["Outputs"].items() if not any(url in json.dumps(made) for url in urls)}
    given = [{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()]
    made = moto.client("cloudformation").create_stack(StackName=NAME, TemplateBody=json.dumps(plain), Parameters=given,
                                                      Capabilities=["CAPABILITY_NAMED_IAM"])
    return made["StackId"]


class Deployed:
    """The names and ARNs that moto assigned to the resources."""

    def __init__(self, moto):
        self.moto = moto
        listed = moto.client("cloudformation").list_stack_resources(StackName=NAME)["StackResourceSummaries"]
        self.resources = {each["LogicalResourceId"]: each for each in listed}

    def attribute(self, name, attribute):
        if name not in self.resources:
            return None
        physical, kind = self.resources[name]["PhysicalResourceId"], self.resources[name]["ResourceType"]
        if attribute == "Arn" and kind == "AWS::Lambda::Function":
            return self.moto.client("lambda").get_function(FunctionName=physical)["Configuration"]["FunctionArn"]
        if attribute == "Arn" and kind == "AWS::IAM::Role":
            return self.moto.client("iam").get_role(RoleName=physical)["Role"]["Arn"]
        return physical if attribute is None else None


def _functions(moto, secret):
    client = moto.client("lambda")
    found = []
    for function, actions in ACTIONS.items():
        name = f"{NAME}-{function.removesuffix('Function').lower()}"
        made = client.get_function(FunctionName=name)["Configuration"]
        variables = made["Environment"]["Variables"]
        if (variables.get("DATABASE_SECRET_ID"), variables.get("TIDEGATE_ACTIONS")) != (secret, actions):
            found.append(f"{name}: was deployed with the variables {variables}")
        if (made["Runtime"], made["Architectures"], made["MemorySize"]) != ("provided.al2023", ["x86_64"], 256):
            found.append(f"{name}: was deployed as {made['Runtime']}, {made['Architectures']}, {made['MemorySize']} MB")
    return found


def _schedules(moto, deployed):
    client = moto.client("scheduler")
    for name, made in deployed.of_type("AWS::Scheduler::Schedule").items():
        client.create_schedule(**{**made, "Name": name})
    found = []
    for name, file, function in (("DrainFunctionTick", "drain.json", "drain"), ("CleanupFunctionDaily", "cleanup.json", "cleanup")):
        made = client.get_schedule(Name=name)
        if json.loads(made["Target"]["Input"]) != json.loads((EVENTS / file).read_text()):
            found.append(f"{name}: sends {made['Target']['Input']}, not {file}")
        if not made["Target"]["Arn"].endswith(f":function:{NAME}-{function}"):
            found.append(f"{name}: wakes {made['Target']['Arn']}")
    on = [each["Name"] for each in client.list_schedules()["Schedules"] if each["State"] == "ENABLED"]
    return found if sorted(on) == ["CleanupFunctionDaily", "DrainFunctionTick"] else [*found, f"schedules: {on} are on"]


def _roles(moto, secret):
    """Checks the roles by the names that people use, and by the policy that AWS would evaluate."""
    iam = moto.client("iam")
    policy = _document(iam.get_role_policy(RoleName=f"{NAME}-operator", PolicyName="operate")["PolicyDocument"])
    function = moto.client("lambda").get_function(FunctionName=f"{NAME}-operate")["Configuration"]
    wanted = [{"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": function["FunctionArn"]}]
    found = [] if policy["Statement"] == wanted else [f"{NAME}-operator: may {policy['Statement']}"]
    drain = moto.client("lambda").get_function(FunctionName=f"{NAME}-drain")["Configuration"]["Role"].rpartition("/")[2]
    may = _may(moto, drain)
    return found if may == [("secretsmanager:GetSecretValue", [secret])] else [*found, f"{drain}: may {may}"]


def _document(policy):
    """moto returns a policy inside a role as the text of a Python value."""
    return ast.literal_eval(policy) if isinstance(policy, str) else policy


def _logs(moto):
    groups = moto.client("logs").describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{NAME}-")["logGroups"]
    kept = {each["logGroupName"]: each.get("retentionInDays") for each in groups}
    wanted = {f"/aws/lambda/{NAME}-{name}": 30 for name in ("drain", "cleanup", "operate", "migrate", "migration-runner")}
    return [] if kept == wanted else [f"logs: {kept}"]


def _runner(moto, plain, stack_id):
    """Checks the code that CloudFormation would call: its result for the deployment, and whether it calls the function at
    all."""
    code = plain["Resources"]["MigrationRunner"]["Properties"]["Code"]["ZipFile"]
    found = []
    for name, request, answer, status, reason, calls in RUNS:
        done = _run_runner(moto, code, {"RequestType": "Create", "StackId": stack_id, **request}, answer)
        told = (done["Status"], done["Reason"], done["calls"])
        if told != (status, reason, calls):
            found.append(f"the migration's runner, {name}: tells {told}, not {(status, reason, calls)}")
    return found


def _run_runner(moto, code, event, answer):
    event.setdefault("ResourceProperties", {"Run": "true", "Input": '{"action": "migrate"}', "FunctionVersion": "tidegate-migrate:1"})
    command = [sys.executable, local.SCRIPTS / "template_runner.py"]
    given = json.dumps({"code": code, "event": event, "answer": answer})
    done = subprocess.run([str(part) for part in command], input=given, stdout=subprocess.PIPE, text=True,
                          env=moto.environment(), timeout=RUNNER_LIMIT_S, check=True)
    return json.loads(done.stdout.splitlines()[-1])


REPORT = {"Payload": {"action": "migrate", "applied": []}}
REFUSAL = {"FunctionError": "Unhandled", "Payload": {"errorType": "MigrationFailed", "errorMessage": "V0007 is missing"}}
ONE_LEFT = {"Payload": {"action": "migrate", "failed": 1, "databases": [
    {"database": "north", "report": {"applied": []}}, {"database": "south", "error": "refused"}, {"database": "east", "skipped": True}]}}
NONE_LEFT = {"Payload": {"action": "migrate", "failed": 0, "databases": [{"database": "north", "report": {"applied": []}}]}}
NOT_ASKED = {"ResourceProperties": {"Run": "false", "Input": "{}", "FunctionVersion": "tidegate-migrate:1"}}
CALL = [{"FunctionName": "tidegate-migrate:1", "Payload": '{"action": "migrate"}'}]
# The request and the answer of the function; the result for the deployment and the calls of the function.
RUNS = [
    ("when it is refused", {}, REFUSAL, "FAILED", "MigrationFailed: V0007 is missing", CALL),
    ("when the function cannot be called", {}, {"Error": "no such version"}, "FAILED", "no such version", CALL),
    ("when it is not wanted", NOT_ASKED, REFUSAL, "SUCCESS", None, []),
    ("when the stack goes", {"RequestType": "Delete"}, REFUSAL, "SUCCESS", None, []),
    ("when a deployment is rolled back", {"RequestType": "Update", "StackStatus": "UPDATE_ROLLBACK_IN_PROGRESS"}, REFUSAL,
     "SUCCESS", None, []),
    ("when one of several databases fails", {}, ONE_LEFT, "FAILED", "south: refused; east: there was no time for it", CALL),
    ("when it succeeds in all databases", {}, NONE_LEFT, "SUCCESS", None, CALL),
    ("when it succeeds", {"RequestType": "Update"}, REPORT, "SUCCESS", None, CALL),
]
