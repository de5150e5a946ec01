#!/usr/bin/env python3
"""A stage of `make test-all`: checks what `template.yaml` and `deploy/*.yaml` would deploy, without an account and without a network.

SAM and cfn-lint validate the templates. They are transformed as on AWS, evaluated like CloudFormation with the sets of parameters in
tests/template.toml, and compared with rules: names, rights, access, settings, schedules, queues, metrics. A second deployment is tried on paper:
what changes with one parameter, and which parameters SAM would send. So is a second stack for another schema of the same database. Each alarm is evaluated like CloudWatch on recorded metrics, which
must raise it or leave it quiet. The code that migrates during a deployment is executed with stand-ins for AWS. Each rule must notice the
templates that tests/template.toml breaks on purpose. The Terraform module is parsed, and must deploy what the base template does.
"""

import builtins
import contextlib
import copy
import importlib
import io
import json
import logging
import os
import re
import sys
import tempfile
import tomllib
import types
from collections import Counter
from pathlib import Path
from unittest import mock

import docs
import local
import package
from tools import PROJECT, Unavailable, install

BASE = Path("template.yaml")
MODULE = Path("deploy/terraform")
# What is compared with the module: kinds of resources, and properties with what the module's spelling stands for.
TWINS = {"AWS::CloudWatch::Alarm": "aws_cloudwatch_metric_alarm", "AWS::Scheduler::Schedule": "aws_scheduler_schedule", "AWS::IAM::Role": "aws_iam_policy_document",
         "AWS::IAM::ManagedPolicy": "aws_iam_policy_document", "AWS::Lambda::Function": "aws_lambda_function",
         "AWS::Lambda::EventInvokeConfig": "aws_lambda_function_event_invoke_config"}
ALIKE = {key: key for key in """metricname stat period expression threshold evaluationperiod datapointstoalarm comparisonoperator treatmissingdata alarmaction okaction
    insufficientdataaction scheduleexpression input maximumretryattempt maximumeventageinsecond action resource managedpolicyarn runtime handler memorysize dependson
    logformat applicationloglevel systemloglevel""".split()} | {"statistic": "stat", "sourcepolicydocument": "managedpolicyarn"}
SCHEDULES = {"drain": "drain.json", "cleanup": "cleanup.json"}
DATA = tomllib.loads((PROJECT / "tests" / "template.toml").read_text())
# Network interfaces and traces are no resources: these actions cannot be restricted further.
EVERYWHERE = {f"ec2:{action}" for action in ("CreateNetworkInterface", "DescribeNetworkInterfaces", "DescribeSubnets",
              "DeleteNetworkInterface", "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses")}
TRACES = {f"xray:{action}" for action in ("PutTraceSegments", "PutTelemetryRecords", "PutSpans", "PutSpansForIndexing")}
GRAMMAR = re.compile(r"rate\((1 (minute|hour|day)|([2-9]|[1-9][0-9]+) (minutes|hours|days))\)|cron\((\S+ ){5}\S+\)|at\([0-9T:-]{19}\)")
# AWS keeps these names for all regions of an account, and all others for one region.
GLOBAL = {"DashboardName", "RoleName", "ManagedPolicyName"}
NAMES = GLOBAL | {"Name", "FunctionName", "AlarmName", "TopicName", "LogGroupName", "QueueName"}
PSEUDO = {
    "AWS::AccountId": "123456789012", "AWS::Partition": "aws", "AWS::Region": "eu-central-1", "AWS::StackName": "tidegate",
    "AWS::StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/tidegate/0", "AWS::URLSuffix": "amazonaws.com",
}
# The value of a property that is to be omitted.
NO_VALUE = object()
# The location of the packaged program. Nothing is fetched from there.
CODE = "s3://packages/bootstrap.zip"


def main():
    _tools()
    files = [BASE, *sorted(Path("deploy").glob("*.yaml"))]
    texts = {file.name: file.read_text() for file in files}
    plain = {file.name: checked(file) for file in files}
    wrong = [f"{name}: {fault}" for name in texts for fault in everything(name, plain[name])]
    texts["package.py"] = Path(package.__file__).read_text()
    texts[MODULE.name] = "\n".join(file.read_text() for file in sorted(MODULE.glob("*.tf")))
    wrong += [f"{MODULE}: {fault}" for fault in twin(texts[MODULE.name], plain[BASE.name])]
    wrong += [f"{name}: {what}: must be refused" for name, sets in DATA["refused"].items() for what, given in sets.items()
              if not _refused(plain[name], {**DATA["needed"][name], **given})]
    for control in DATA["broken"]:
        file, text = control["file"], texts[control["file"]]
        broken = text.replace(control["find"], control["put"])
        found = [] if broken == text else twin(broken, plain[BASE.name]) if file == MODULE.name else \
            _deployed(texts, _script(broken)) if file == "package.py" else everything(file, transform(_parsed(broken)))
        wrong += [] if any(control["notice"] in fault for fault in found) else \
            [f"{file}: nobody notices {control['put']!r} for {control['find']!r}: {found}"]
    wrong += _runner(plain[BASE.name]) + _shown(plain) + _deployed(texts, package)
    return local.verdict(wrong, "the templates deploy what they should, also the second time")


def everything(name, plain):
    """Returns the faults of a template with all sets of parameters."""
    wrong, needed = [], DATA["needed"][name]
    try:
        for what, given in {"the defaults": {}, **DATA["settings"].get(name, {})}.items():
            stack = Stack(plain, {**needed, **given})
            wrong += [f"with {what}: {fault}" for rule in (names, rights, access, settings, schedules, queues, metrics) for fault in rule(stack)]
            wrong += [f"with {what}: {fault}" for fault in alarms(stack)]
        return wrong + (second(plain, needed) + neighbours(plain, needed) if name == BASE.name else [])
    except Refused as refused:
        return [*wrong, str(refused)]


def _refused(plain, given):
    try:
        return not Stack(plain, given)
    except Refused:
        return True


def _parsed(text):
    return importlib.import_module("samcli.yamlhelper").yaml_parse(text)


def _tools():
    """Lets Python find what deploys: SAM, with cfn-lint. There is no account, no telemetry, and no network request about either."""
    folder = package.sam()
    account = os.environ.keys() - local.environment().keys()
    for name in account:
        del os.environ[name]
    os.environ.update({"SAM_CLI_TELEMETRY": "0", "AWS_EC2_METADATA_DISABLED": "true", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": str(folder), "AWS_DEFAULT_REGION": "eu-central-1"})
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    logging.disable(logging.WARNING)
    return folder


def checked(template):
    """Returns the plain template, after SAM and cfn-lint have found no fault in either. cfn-lint finds more in the plain one."""
    folder = _tools()
    print(f"{template}: SAM and cfn-lint", flush=True)
    local.quietly([sys.executable, "-m", "samcli", "validate", "--lint", "--template", template])
    plain = transform(_parsed(template.read_text()))
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / "template.json"
        file.write_text(json.dumps(plain, indent=1))
        local.quietly([sys.executable, folder / "bin" / "cfn-lint", "--regions", "eu-central-1", "--template", file])
    return plain


def names(stack):
    """A second stack in the region has other names, and one in another region other global names."""
    given, found = {"Base": "other"} if "Base" in stack.parameters else {}, []
    others = [("a second stack", NAMES, Stack(stack.plain, {**stack.given, **given}, {"AWS::StackName": "other"})),
              ("a stack in another region", GLOBAL, Stack(stack.plain, stack.given, {"AWS::Region": "eu-west-1"}))]
    for name, made in stack.resources.items():
        ours = {key: value for key, value in made["Properties"].items() if key in NAMES and "{" not in str(value)}
        found += [f"{name}: {what} would have the {key} {value} too" for what, keys, other in others for key, value in ours.items()
                  if key in keys and not re.search("ApiGatewayV2|Alias", made["Type"]) and other.resources[name]["Properties"][key] == value]
    return found


def rights(stack):
    """A function may write its own log alone, and read the secrets that it names and those that Settings name. Only what is no resource
    is allowed for all."""
    found, may = [], {}
    policies = {f"{{{name}}}": made["PolicyDocument"]["Statement"] for name, made in stack.of_type("AWS::IAM::ManagedPolicy").items()}
    anywhere = (TRACES if stack.parameters.get("Tracing") == "Active" else set()) | (EVERYWHERE if stack.parameters.get("SubnetIds") else set())
    for name, role in stack.of_type("AWS::IAM::Role").items():
        given = [each for policy in role.get("Policies", []) for each in policy["PolicyDocument"]["Statement"]]
        given += [each for arn in role.get("ManagedPolicyArns", []) for each in policies.get(arn, [{"Action": "*", "Resource": arn}])]
        may[name] = {(action, resource) for each in given for action in _list(each["Action"]) for resource in _list(each["Resource"])}
        found += [f"{name}: {action} on {resource} is too much" for action, resource in may[name] if "*" in action or (resource == "*" and action not in anywhere)]
        if "PermissionsBoundary" not in role and stack.parameters.get("PermissionsBoundaryArn"):
            found.append(f"{name}: must have the permissions boundary")
    for name, function in stack.of_type("AWS::Lambda::Function").items():
        rights, log = may[function["Role"][1:].split(".")[0]], function["LoggingConfig"]["LogGroup"].strip("{}")
        found += [f"{name}: must not write {resource}" for action, resource in rights if action.startswith("logs:") and resource != f"{{{log}.Arn}}"]
        variables = function.get("Environment", {}).get("Variables", {})
        named = [variables[key] for key in variables if "SECRET_ID" in key] + [stack.parameters.get(key, "") for key in ("SecretArns", "PayloadKeysSecretArn")]
        needed = {arn for each in named for arn in each.split(",") if arn}
        read = {resource for action, resource in rights if action == ("rds-db:connect" if ":dbuser:" in resource else "secretsmanager:GetSecretValue")}
        found += [f"{name}: must read {sorted(needed)}, may read {sorted(read)}"] if variables and read != needed else []
        if variables.get("TIDEGATE_XRAY") == "on" and not TRACES <= {action for action, _ in rights}:
            found.append(f"{name}: X-Ray refuses its spans")
    return found


def _list(value):
    return value if isinstance(value, list) else [value]


def settings(stack):
    """The program knows every variable. None of them may hold a secret."""
    known = docs.settings_read() | {"SSL_CERT_FILE"}  # Which OpenSSL reads.
    return [f"{name}: the environment must not hold {key}" if key in known else f"{name}: the program knows no {key}"
            for name, function in stack.of_type("AWS::Lambda::Function").items() for key in function.get("Environment", {}).get("Variables", {})
            if key not in known or re.search("PASSWORD|TOKEN|DATABASE_URL", key)]


def schedules(stack):
    """What is sent is what events/ has an example of, AWS accepts the expression, and nothing runs before the schema is migrated."""
    found = []
    for name, made in stack.of_type("AWS::Scheduler::Schedule").items():
        sent, function = json.loads(made["Target"]["Input"]), made["Target"]["Arn"].strip("{}").split(".")[0]
        if sent != json.loads(Path("events", SCHEDULES.get(sent["action"], "drain.json")).read_text()):
            found.append(f"{name}: must send what events/ has, sends {sent}")
        if not GRAMMAR.fullmatch(made["ScheduleExpression"]):
            found.append(f"{name}: AWS refuses the expression {made['ScheduleExpression']!r}")
        if "Migration" in stack.resources and not any("Migration" in stack.resources[each]["DependsOn"] for each in (name, function)):
            found.append(f"{name}: must wait for the migration")
    drain = stack.resources.get("DrainFunction")
    return found + (["DrainFunction: must wait for the migration"] if drain and "Migration" not in drain["DependsOn"] else [])


def queues(stack):
    """No outage of half a day moves a message, and the queue of dead messages keeps them longer. Both stay when the stack goes."""
    made, found = stack.of_type("AWS::SQS::Queue"), []
    for name, queue in made.items():
        found += [f"{name}: must be kept when the stack goes"] if stack.plain["Resources"][name].get("DeletionPolicy") != "RetainExceptOnCreate" else []
        if "RedrivePolicy" not in queue:
            continue
        limit = max(function["Timeout"] for function in stack.of_type("AWS::Lambda::Function").values())
        found += [f"{name}: must hide a message for six times the function's {limit} s"] if queue["VisibilityTimeout"] < 6 * limit else []
        tried, dead = queue["VisibilityTimeout"] * queue["RedrivePolicy"]["maxReceiveCount"], made["DeadMessages"]
        found += [f"{name}: gives a message up after {tried} s, in an outage of 12 hours"] if tried < 12 * 3600 else []
        found += [f"{name}: must keep a message for as long as it is tried"] if queue["MessageRetentionPeriod"] < tried else []
        if dead["MessageRetentionPeriod"] <= queue["MessageRetentionPeriod"]:
            found.append("DeadMessages: must keep messages longer than Messages does: their age counts on")
    for name, made in stack.of_type("AWS::Lambda::EventSourceMapping").items():
        found += [f"{name}: must report which messages failed"] if made.get("FunctionResponseTypes") != ["ReportBatchItemFailures"] else []
    return found


def access(stack):
    """Who was refused before a function saw the request is logged, without the path."""
    logs = {name: made.get("AccessLogSettings", {}).get("Format", "") for name, made in stack.of_type("AWS::ApiGatewayV2::Stage").items()}
    return [f"{name}: must log who calls, and not the path" for name, line in logs.items() if "sourceIp" not in line or "path" in line]


def metrics(stack):
    """Alarms watch, and the dashboard shows, what the program reports. Another name would remain an empty graph forever."""
    watched = {each["MetricStat"]["Metric"]["MetricName"] for alarm in stack.of_type("AWS::CloudWatch::Alarm").values()
               for each in alarm["Metrics"] if "MetricStat" in each and each["MetricStat"]["Metric"]["Namespace"] == "Tidegate"}
    graphs, queries = _on_dashboard(stack)
    return [f"{name} is not reported" for name in sorted((watched | graphs) - docs.reported("count|metric"))] + \
        [f"{name} is no field of a line" for name in sorted(queries - docs.reported("field"))]


def _on_dashboard(stack):
    """Returns the metrics in graphs, and the fields in queries of the log."""
    widgets = [each["properties"] for board in stack.of_type("AWS::CloudWatch::Dashboard").values() for each in json.loads(board["DashboardBody"])["widgets"]]
    return {line[1] for each in widgets for line in each.get("metrics", ()) if line[0] == "Tidegate"}, \
        {name for each in widgets for name in re.findall(r"max\((\w+)\)", each.get("query", ""))}


def _shown(plain):
    graphs, queries = _on_dashboard(Stack(plain["alarms.yaml"], {}))
    hidden = docs.reported("count|metric") - graphs | docs.reported("field") - queries - {"Kinds", "Services"}
    return [f"alarms.yaml: {name} is not shown" for name in sorted(hidden - {"DrainsFailed"})]


def second(plain, needed):
    """Deploys twice, with one parameter changed, and compares. The schema must be migrated with what it depends on, and with new code."""
    before, found = Stack(plain, needed), []
    for name, value in {**DATA["migrates"], **DATA["leaves"]}.items():
        changed = Stack(plain, {**needed, name: value}).resources["Migration"] != before.resources["Migration"]
        if changed != (name in DATA["migrates"]):
            found.append(f"with another {name}, {'it is migrated again' if changed else 'nothing is migrated'}")
    properties = before.resources["Migration"]["Properties"]
    called, code = properties["Function"], properties["Code"]
    if called != "{OperateFunction}" or code not in (f"{{{name}}}" for name in before.of_type("AWS::Lambda::Version")):
        found.append(f"the migration must call the function as it is now, {called}, and depend on its version, {code}")
    return found


def neighbours(plain, needed):
    """Deploys a queue for each of two schemas of one database. Each function must work on its own schema and report under its own stack's
    name, and each alarm must watch that name. That no resource has a name of the other stack is the rule of the names."""
    found = []
    for schema in ("north", "south"):
        stack = Stack(plain, {**needed, "Settings": f"TIDEGATE_SCHEMA={schema}"}, {"AWS::StackName": schema})
        wanted = {"TIDEGATE_SETTINGS": f"TIDEGATE_SCHEMA={schema}", "TIDEGATE_METRICS_QUEUE": schema}
        given = {name: made.get("Environment", {}).get("Variables", {}) for name, made in stack.of_type("AWS::Lambda::Function").items()}
        found += [f"the stack {schema}: {name}: {key} must be {value!r}, is {variables.get(key)!r}" for name, variables in given.items() if variables
                  for key, value in wanted.items() if variables.get(key) != value]
        watched = {(name, each["Value"]) for name, alarm in stack.of_type("AWS::CloudWatch::Alarm").items() for metric in alarm["Metrics"]
                   if "MetricStat" in metric for each in metric["MetricStat"]["Metric"]["Dimensions"] if each["Name"] == "Queue"}
        found += [f"the stack {schema}: {name} watches {value}" for name, value in watched if value != schema]
    return found


def _script(text):
    """Returns the deploy script with this text."""
    made = types.ModuleType("package")
    vars(made)["__file__"] = package.__file__
    exec(text, vars(made))
    return made


def _deployed(texts, script):
    """Lets SAM read what `make deploy` passes to it. A value that was removed is the default again, and none is what was deployed."""
    [context, kinds] = [importlib.import_module(name) for name in ("samcli.commands.deploy.deploy_context", "samcli.cli.types")]
    example, found = tomllib.loads(Path("parameters.example.toml").read_text()), []
    declared = _parsed(texts[BASE.name])["Parameters"]
    for name, each in declared.items():
        if name != "Settings" and str(example.get(name)) != str(each.get("Default", "")):
            found.append(f"parameters.example.toml: {name} must be {each.get('Default', '')!r}, as in {BASE}")
    for file, chosen in DATA["chosen"].items():
        path = BASE if file == BASE.name else Path("deploy", file)
        made = script.parameters_of(path, "" if path == BASE else path.stem, "night", chosen)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as passed:
            passed.write(json.dumps(made))
            passed.flush()
            read = kinds.CfnParameterOverridesType().convert(f"file://{passed.name}", None, None)
        sent = {each["ParameterKey"]: each.get("ParameterValue") for each in context.DeployContext.merge_parameters(_parsed(texts[file]), read)}
        found += [f"{file}: {name} would stay as it was deployed" for name, value in sent.items() if value is None]
        found += [f"{file}: {name} must be {value!r}, is {sent.get(name)!r}" for name, value in DATA["sent"][file].items() if sent.get(name) != value]
    return found + [fault for run in DATA["deployments"] for fault in _deployment(run, script)]


def _deployment(run, script):
    """Runs the deploy script with a stand-in for AWS and SAM. Returns how what it says, and does beside looking, differs from the table."""
    run = copy.deepcopy(run)
    did, errors = [], importlib.import_module("botocore.exceptions")

    class Aws:
        def __getattr__(self, name):
            return lambda **given: self.answer(name, given, run["aws"].get(name, {}))

        def answer(self, name, given, answer):
            did.extend([f"{name} {given.get('ChangeSetName', '')}".strip()] if name.startswith("delete") else [])
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            if answer == "unreachable":
                raise errors.EndpointConnectionError(endpoint_url="https://aws")
            if isinstance(answer, str):
                raise errors.ClientError({"Error": dict(zip(("Code", "Message"), answer.split(" ", 1)))}, name)
            return answer

    def deploys(_, words, __):
        did.append(" ".join(["sam", words[0], *(word for word in ("--no-execute-changeset", "DO_NOTHING") if word in words)]))
        if run.get("fails") and words[0] == "deploy":
            raise local.Failed(1)

    session = types.SimpleNamespace(get_credentials=lambda: run.get("credentials", "some") or None, region_name="eu-central-1", client=lambda _: Aws())
    given = types.SimpleNamespace(exists=lambda: True, read_text=lambda: f"DatabaseSecretArn = '{DATA['needed'][BASE.name]['DatabaseSecretArn']}'\n{run['given']}")
    with tempfile.TemporaryDirectory() as room, mock.patch.multiple(script, PARAMETERS=given, FOLDER=Path(room), build=mock.DEFAULT, weigh=lambda: 0, _sam=deploys), \
            mock.patch("boto3.Session", lambda: session), mock.patch.dict(os.environ, {"DRY_RUN": "", "NAME": "", **run.get("asked", {})}), \
            contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            script.deploy()
        except (Unavailable, local.Failed, KeyError) as refused:
            print(refused)
    unsaid = [text for text in run["says"] if text not in said.getvalue()]
    return [f"make deploy, {run['what']}: does {did} and does not say {unsaid}"] if unsaid or did != run["does"] else []


def twin(text, plain):
    """Returns how the Terraform module differs from the base template with everything in use."""
    sys.path += [folder for folder in [str(install("python-hcl2==8.1.4", dependencies=True))] if folder not in sys.path]
    hcl2, times = importlib.import_module("hcl2"), plain["Mappings"]["Every"]
    made = hcl2.loads(text, serialization_options=hcl2.SerializationOptions(explicit_blocks=False, strip_string_quotes=True))
    [local], [first, *_] = made["locals"], times
    made = json.loads(re.sub(r'"\$\{local\.every\[var\.drain_every\]\.(\w+)\}"', lambda name: json.dumps(local["every"][first][name[1]]), json.dumps(made)))
    stack = Stack(plain, {**DATA["needed"][BASE.name], **DATA["settings"][BASE.name]["everything"], "DrainEvery": first})
    here = [(kind, re.sub("(Function.*|Alarm|Role|Schedule)$", "", name).lower(), *leaf) for sort, kind in TWINS.items()
            for name, each in stack.of_type(sort).items() if "Runner" not in name for leaf in _leaves([each, {"DependsOn": stack.resources[name]["DependsOn"]}])]
    there = [(kind, name.replace("_", ""), *leaf) for part in made["resource"] + made["data"] for kind, named in part.items() if kind in TWINS.values()
             for name, each in named.items() for leaf in _leaves(each)]
    here += [("every", every, *map(str, row.values())) for every, row in times.items()]
    there += [("every", every, *map(str, row.values())) for every, row in local["every"].items()]
    for name in ("drain", "operate"):
        given = plain["Resources"][f"{name.title()}Function"]["Properties"]["Environment"]["Variables"]
        here += [(name, key, value if isinstance(value, str) else "") for key, value in given.items()]
        [own] = [part["aws_lambda_function"][name]["environment"][0]["variables"] for part in made["resource"] if name in part.get("aws_lambda_function", {})]
        there += [(name, key, "" if "${" in value else value) for key, value in local["variables"].items()] + \
            [(name, key, text) for key, text, _ in re.findall(r'(\w+) = (?:"(.*?)"|((?:var|local)\.\w+))', own)]
    return [f"must have {each}, as {BASE}" for each in Counter(here) - Counter(there)] + [f"must not have {each}" for each in Counter(there) - Counter(here)]


def _leaves(tree, key=""):
    """Returns the values of a resource that must be alike, by their names in one spelling. A reference is no more than present."""
    if isinstance(tree, dict):
        return [leaf for name, part in tree.items() for leaf in _leaves(part, name.replace("_", "").lower().rstrip("s"))]
    if isinstance(tree, list):
        return [leaf for part in tree for leaf in _leaves(part, key)]
    only = {"action": "(?!sts:).*", "resource": r"\*", "dependson": "(?i).*migration.*"}.get(key, ".*")
    value = re.sub(r"jsonencode|\W", "", tree) if key == "input" else "" if "{" in str(tree) or key == "dependson" else str(tree)
    return [(ALIKE[key], value)] if key in ALIKE and re.fullmatch(only, str(tree)) else []


def alarms(stack):
    """Evaluates each alarm on recorded metrics, and says which alarm nobody has tried."""
    made, found = stack.of_type("AWS::CloudWatch::Alarm"), []
    for name, alarm in made.items():
        short, tried = alarm["AlarmName"].split("-", 1)[1], set()
        for night in DATA["nights"]:
            if night["alarm"] != short or night.get("every") != stack.given.get("DrainEvery"):
                continue
            rings = _rings(alarm, {metric: _minutes(text) for metric, text in night["metrics"].items()})
            tried.add(night["rings"])
            if rings != night["rings"]:
                found.append(f"{name}: {'does not ring' if night['rings'] else 'rings'}: {night['what']}")
        if tried != {True, False} and "DrainEvery" not in stack.given:
            found.append(f"{name}: no night shows when {short} rings and when it does not")
    return found


def _minutes(text):
    """Parses such as `1x10 1/0x3 -x5`: ten minutes with the value 1, three with two lines, five without any."""
    parts = [part.split("x") for part in text.split()]
    return [[float(one) for one in value.split("/") if one != "-"] for value, count in parts for _ in range(int(count))]


def _rings(alarm, recorded):
    """Reports whether the alarm would notify anybody, like CloudWatch, once it has seen as many periods as it looks at."""
    series, [period] = {}, {int(each["MetricStat"]["Period"]) // 60 for each in alarm["Metrics"] if "MetricStat" in each}
    for each in alarm["Metrics"]:
        if "MetricStat" in each:
            minutes = recorded.get(each["MetricStat"]["Metric"]["MetricName"], [])
            parts = [sum(minutes[at:at + period], []) for at in range(0, len(minutes), period)]
            reduce = {"Sum": sum, "Maximum": max, "Minimum": min}[each["MetricStat"]["Stat"]]
            series[each["Id"]] = [reduce(part) if part else None for part in parts]
    for each in alarm["Metrics"]:
        if "Expression" in each:
            series["result"] = _computed(each["Expression"], series)
    values = series.get("result") or next(iter(series.values()))
    looks, needs = alarm["EvaluationPeriods"], alarm.get("DatapointsToAlarm", alarm["EvaluationPeriods"])
    breaks = (lambda value: value < float(alarm["Threshold"])) if alarm["ComparisonOperator"].startswith("Less") \
        else (lambda value: value >= float(alarm["Threshold"]))
    for end in range(looks, len(values) + 1):
        seen = [breaks(value) for value in values[end - looks:end] if value is not None]
        missing = looks - len(seen)
        if not seen and alarm["TreatMissingData"] == "missing":
            if "InsufficientDataActions" in alarm:
                return True
        elif sum(seen) + (missing if alarm["TreatMissingData"] in ("breaching", "missing") and all(seen) else 0) >= needs:
            return True
    return False


def _computed(expression, series):
    """Evaluates an alarm's arithmetic for each period. A missing value makes the result missing, and so does a division by zero."""
    if expression.startswith("DIFF("):
        values = _computed(expression[len("DIFF"):], series)
        return [None if None in pair else pair[1] - pair[0] for pair in zip([None, *values], values)]
    filled, found = re.sub(r"FILL\((\w+), 0\)", r"(\1 or 0)", expression), []
    for at in range(max(map(len, series.values()))):
        now = {name: values[at] if at < len(values) else None for name, values in series.items()}
        try:
            found.append(eval(filled, {"__builtins__": {}}, now))
        except (TypeError, ZeroDivisionError):
            found.append(None)
    return found


def _runner(plain):
    """Checks the code that CloudFormation would call: its result for the deployment, and how often it calls the function."""
    text = plain["Resources"]["MigrationRunner"]["Properties"]["Code"]["ZipFile"]
    said, found = "".join(path.read_text() for path in Path("crates/tidegate-core/src").rglob("*.rs")), []
    found += [f"the migration's runner waits for {words!r}, which no migration says" for words in ("lock of migrations", "use a newer program")
              if words not in text or words not in said]
    for run in DATA["runs"]:
        made = _run_runner(compile(text, "index.py", "exec"), {"RequestType": "Create", **run.get("request", {})}, run["answers"])
        wanted = [run["status"], run.get("reason"), run.get("calls", len(run["answers"]))]
        if made != wanted:
            found.append(f"the migration's runner, {run['name']}: makes {made}, not {wanted}")
    return found


def _run_runner(code, event, answers):
    """Executes the runner like Lambda, with stand-ins for what Lambda provides, and a clock that waits for nobody. The function gives
    these answers, and the last one for ever."""
    event |= {"StackId": PSEUDO["AWS::StackId"], "ResourceProperties": {"Function": "tidegate-operate"}}
    calls, results, clock = [], [], [0]

    class ClientError(Exception):
        @property
        def response(self):
            return {"Error": {"Code": str(self)}}

    def invoke(FunctionName, Payload):
        calls.append((FunctionName, Payload))
        answer = answers[min(len(calls), len(answers)) - 1]
        clock[0] += answer.get("takes", 1)
        if answer.get("takes", 1) > 240:
            raise TimeoutError
        if "Error" in answer:
            raise ClientError(answer["Error"])
        return {**answer, "Payload": io.BytesIO(json.dumps(answer["Payload"]).encode())}

    client = types.SimpleNamespace(invoke=invoke, describe_stacks=lambda StackName: {"Stacks": [{"StackStatus": event.get("StackStatus", "CREATE_IN_PROGRESS")}]})
    modules = {
        "boto3": types.SimpleNamespace(client=lambda *_, **__: client),
        "botocore.config": types.SimpleNamespace(Config=dict),
        "botocore.exceptions": types.SimpleNamespace(ClientError=ClientError, ReadTimeoutError=TimeoutError),
        "cfnresponse": types.SimpleNamespace(SUCCESS="SUCCESS", FAILED="FAILED", send=lambda *given, reason: results.append((given[2], reason))),
        "time": types.SimpleNamespace(time=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + seconds)),
    }
    inline = {"__builtins__": {**vars(builtins), "__import__": lambda name, *given: modules.get(name) or __import__(name, *given)}}
    exec(code, inline)
    inline["handler"](event, None)
    [(status, reason)] = results
    late = ["the function's time is up"] if clock[0] > 890 else []
    return [status, reason, *late, len(calls)]


class Refused(Exception):
    """CloudFormation would refuse it. The message contains the reason."""


def transform(source):
    """Returns the plain template, as the SAM transform on AWS creates it."""
    translate = importlib.import_module("samtranslator.translator.transform").transform
    source = copy.deepcopy(source)
    source.setdefault("Globals", {}).setdefault("Function", {})["CodeUri"] = CODE
    for resource in source["Resources"].values():
        resource.get("Properties", {}).pop("CodeUri", None)
    source["Globals"]["Function"].pop("CodeUri") if "Transform" not in source else None
    return translate(source, {}, _NoPolicyNames())


class _NoPolicyNames:
    """The template uses full ARNs for AWS managed policies, so there is no need to ask AWS for the list."""

    @staticmethod
    def load():
        return {}


class Stack:
    """The resources that exist with the given parameters, with every function evaluated.

    Values that AWS decides appear as `{Name}` or `{Name.Attribute}`."""

    def __init__(self, plain, given, pseudo=None):
        self.plain, self.given, self.pseudo = plain, given, {**PSEUDO, **(pseudo or {})}
        self.parameters = _checked(plain["Parameters"], given)
        if broken := self._broken():
            raise Refused("; ".join(broken))
        self.resources = {name: self._resource(resource) for name, resource in plain["Resources"].items() if self._holds(resource.get("Condition"))}

    def _broken(self):
        rules = [rule for rule in self.plain.get("Rules", {}).values() if self._value(rule.get("RuleCondition", True))]
        return [each["AssertDescription"] for rule in rules for each in rule["Assertions"] if not self._value(each["Assert"])]

    def of_type(self, wanted):
        return {name: resource["Properties"] for name, resource in self.resources.items() if resource["Type"] == wanted}

    def _resource(self, resource):
        depends = resource.get("DependsOn", [])
        return {"Type": resource["Type"], "DependsOn": [depends] if isinstance(depends, str) else depends, "Properties": self._value(resource.get("Properties", {}))}

    def _holds(self, condition):
        return condition is None or self._value(self.plain["Conditions"][condition])

    def _value(self, value):
        if isinstance(value, list):
            return [item for item in map(self._value, value) if item is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            (name, argument), = value.items()
            if name in ("Ref", "Condition") or name.startswith("Fn::"):
                return self._call(name, argument)
        inner = {name: self._value(item) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item is not NO_VALUE}

    def _call(self, name, argument):
        if name in ("Ref", "Condition", "Fn::GetAtt", "Fn::Sub", "Fn::If"):
            return getattr(self, f"_{name.split('::')[-1].lower()}")(argument)
        given = [self._value(item) for item in argument]
        return {
            "Fn::Join": lambda: given[0].join(given[1]), "Fn::Split": lambda: str(given[1]).split(given[0]), "Fn::Not": lambda: not given[0],
            "Fn::Equals": lambda: str(given[0]) == str(given[1]), "Fn::And": lambda: all(given), "Fn::Or": lambda: any(given),
            "Fn::Select": lambda: given[1][int(given[0])], "Fn::FindInMap": lambda: self.plain["Mappings"][given[0]][given[1]][given[2]],
        }[name]()

    def _ref(self, name):
        if name == "AWS::NoValue":
            return NO_VALUE
        known = {**self.parameters, **self.pseudo}
        return known[name] if name in known else self._getatt([name])

    def _condition(self, argument):
        # `Condition` is a function in conditions, and an ordinary field in the statement of a policy.
        return self._holds(argument) if isinstance(argument, str) else {"Condition": self._value(argument)}

    def _getatt(self, argument):
        parts = argument.split(".", 1) if isinstance(argument, str) else argument
        if parts[0] not in self.plain["Resources"]:
            raise Refused(f"{parts[0]} is neither a parameter nor a resource")
        return "{" + ".".join(parts) + "}"

    def _sub(self, text):
        return re.sub(r"\$\{([^!}]+)\}", lambda found: str((self._getatt if "." in found[1] else self._ref)(found[1])), text)

    def _if(self, argument):
        return self._value(argument[1 if self._holds(argument[0]) else 2])


def _checked(declared, given):
    if unknown := given.keys() - declared.keys():
        raise Refused(f"no such parameter: {', '.join(sorted(unknown))}")
    return {name: _parameter(name, rules, given.get(name, rules.get("Default"))) for name, rules in declared.items()}


def _parameter(name, rules, value):
    number = value if isinstance(value, (int, float)) else 0
    if value is None or not re.fullmatch(rules.get("AllowedPattern", "(?s).*"), str(value)):
        raise Refused(f"{name}: {rules.get('ConstraintDescription', 'is missing')}, got {value!r}")
    if str(value) not in map(str, rules.get("AllowedValues", [value])) or not rules.get("MinValue", number) <= number <= rules.get("MaxValue", number):
        raise Refused(f"{name}: is not allowed: {value!r}")
    return value


if __name__ == "__main__":
    local.run_script(main)
