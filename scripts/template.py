#!/usr/bin/env python3
"""`make template`: checks what `template.yaml` would deploy, without an account and without a network.

SAM and cfn-lint validate the template. It is transformed as on AWS, and evaluated like CloudFormation with several sets of
parameters. The result is compared with tests/golden/template.txt: every permission, alarm, schedule and variable is there, so an
added permission shows as well as a missing alarm. `write` renews the file. What the golden file cannot know are rules: settings
that the program reads, payloads, schedule expressions and wildcards. The rules must notice templates that are broken on purpose.
The code that migrates during a deployment is executed with stand-ins for AWS.
"""

import copy
import difflib
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
from pathlib import Path

import docs
import local
import package
from tools import PROJECT

TEMPLATE = Path("template.yaml")
GOLDEN = Path("tests/golden/template.txt")
EVENTS = Path("events")
CREDENTIALS = Path("src/app/credentials.rs")
SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:queue-AbCdEf"
NEEDED = {"DatabaseSecretArn": SECRET}
DATA = tomllib.loads((PROJECT / "tests" / "template.toml").read_text().replace("$SECRET", SECRET))
# Our own statements for all resources: these two actions cannot be restricted further, and are allowed only with active
# tracing.
TRACES = {("xray:PutTraceSegments", "*"), ("xray:PutTelemetryRecords", "*")}
GRAMMAR = re.compile(r"rate\((1 (minute|hour|day)|([2-9]|[1-9][0-9]+) (minutes|hours|days))\)|cron\((\S+ ){5}\S+\)")
# Values that are not decided here, or say nothing.
UNSEEN = {"Tags", "DashboardBody", "Code", "Version", "Description", "AlarmDescription"}
WIDEST = 200
PSEUDO = {
    "AWS::AccountId": "123456789012", "AWS::Partition": "aws", "AWS::Region": "eu-central-1", "AWS::StackName": "tidegate",
    "AWS::StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/tidegate/0", "AWS::URLSuffix": "amazonaws.com",
}
# The value of a property that is to be omitted.
NO_VALUE = object()
# The location of the packaged program. Nothing is fetched from there.
CODE = "s3://packages/bootstrap.zip"
CALL = {"FunctionName": "tidegate-migrate:1", "Payload": '{"action": "migrate"}'}


def main():
    _tools()
    _, plain = checked(TEMPLATE)
    stacks = {name: Stack(plain, parameters("settings", name)) for name in DATA["settings"]}
    seen = _seen(stacks)
    if sys.argv[1:] == ["write"]:
        GOLDEN.write_text(seen)
        return 0
    wrong = _differences(seen) + [f"with {name}: {fault}" for name, stack in stacks.items() for fault in faults(stack)]
    wrong += [f"{name}: must be refused" for name in DATA["refused"] if _is_allowed(plain, parameters("refused", name))]
    wrong += _rates(plain) + _runner(plain)
    return local.verdict(wrong, f"{TEMPLATE} deploys what it should")


def parameters(kind, name):
    """Returns a set of parameters, with those of the sets that it is like."""
    given = dict(DATA[kind][name])
    found = dict(NEEDED)
    for like in given.pop("like", []):
        found |= parameters("settings", like)
    return found | given


def _tools():
    """Lets Python find what deploys: SAM, with cfn-lint. There is no account, no telemetry, and no network request about either."""
    folder = package.sam()
    os.environ.update({"SAM_CLI_TELEMETRY": "0", "AWS_EC2_METADATA_DISABLED": "true", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": str(folder), "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "eu-central-1")})
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    logging.disable(logging.WARNING)
    return folder


def checked(template):
    """Returns the template and its plain resources, after SAM and cfn-lint have found no fault in either. cfn-lint finds more in
    the plain template than before the transform."""
    folder = _tools()
    print("SAM and cfn-lint")
    local.quietly([sys.executable, "-m", "samcli", "validate", "--lint", "--template", template])
    source = importlib.import_module("samcli.yamlhelper").yaml_parse(template.read_text())
    plain = transform(source)
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / "template.json"
        file.write_text(json.dumps(plain, indent=1))
        local.quietly([sys.executable, folder / "bin" / "cfn-lint", "--regions", "eu-central-1", "--template", file])
    return source, plain


def _seen(stacks):
    """Returns what each set of parameters deploys: all of the first one, and how each other differs from one that is like it."""
    texts, parts = {}, []
    for name, stack in stacks.items():
        lines = [line for resource, made in stack.resources.items() for line in _lines(made, resource)]
        others = {other: [line for line in difflib.ndiff(text, lines, charjunk=None) if line[0] in "+-"] for other, text in texts.items()}
        like = min(others, key=lambda other: len(others[other]), default=None)
        parts += [f"# {name}, like {like} but", *others[like]] if like else [f"# {name}", *lines]
        texts[name] = lines
    return "\n".join(parts) + "\n"


def _lines(value, place):
    """Each part of a resource that fits into a line, without what says nothing."""
    text = json.dumps(value)
    if len(text) <= WIDEST or not isinstance(value, (dict, list)):
        yield f"{place}: {text}"
    elif isinstance(value, list):
        for part in value:
            yield from _lines(part, f"{place}[]")
    else:
        for name, part in value.items():
            if name not in UNSEEN and part != []:
                yield from _lines(part, place if name == "Properties" else f"{place}.{name}")


def _differences(seen):
    lines = difflib.unified_diff(GOLDEN.read_text().splitlines(), seen.splitlines(), str(GOLDEN), str(TEMPLATE), lineterm="", n=1)
    found = list(lines)
    return [*found, "If that is meant, `python3 scripts/template.py write` writes it."] if found else []


def _rates(plain):
    found = [f"DrainRate: {rate} must be allowed" for rate in DATA["rates"] if not _is_allowed(plain, {**NEEDED, "DrainRate": rate})]
    return found + [f"DrainRate: {rate} must be refused" for rate in DATA["bad_rates"] if _is_allowed(plain, {**NEEDED, "DrainRate": rate})]


def _is_allowed(plain, given):
    try:
        Stack(plain, given)
    except Refused:
        return False
    return True


def faults(stack):
    """Returns all faults as texts. The list is empty for a correct template."""
    return [fault for rule in (schedules, settings, no_wildcards, metrics, messages, drains) for fault in rule(stack)]


def schedules(stack):
    """What is sent is what events/ has an example of, and AWS accepts the expression."""
    made = stack.of_type("AWS::Scheduler::Schedule")
    sent = {"DrainFunctionTick": made["DrainFunctionTick"]["Target"]["Input"], "Migration": stack.of_type("Custom::Migration")["Migration"]["Input"],
            "CleanupFunctionDaily": made["CleanupFunctionDaily"]["Target"]["Input"]}
    files = {"DrainFunctionTick": "drain.json", "CleanupFunctionDaily": "cleanup.json", "Migration": "migrate.json"}
    roles = {"roles": True} if stack.parameters["CreateDatabaseRoles"] == "true" else {}
    found = []
    for name, file in files.items():
        wanted = {**json.loads((EVENTS / file).read_text()), **(roles if name == "Migration" else {})}
        found += [] if json.loads(sent[name]) == wanted else [f"{name}: must send {wanted}, sends {sent[name]}"]
    return found + [f"{name}: AWS refuses the expression {each['ScheduleExpression']!r}" for name, each in made.items()
                    if not GRAMMAR.fullmatch(each["ScheduleExpression"])]


def settings(stack):
    """The program reads every variable that is set. With everything deployed, all that it reads can be set."""
    variables = {name: made.get("Environment", {}).get("Variables", {}) for name, made in stack.of_type("AWS::Lambda::Function").items()}
    given = {key for each in variables.values() for key in each if not key.startswith("AWS_")}
    known = _settings()
    found = [f"settings: the program knows no {key}" for key in sorted(given - known)]
    found += [f"{name}: the environment must not hold {key}" for name, each in variables.items() for key in each
              if re.search("PASSWORD|TOKEN|DATABASE_URL", key)]
    if "IntakeFunction" in variables and "DatabaseSecretArns" not in stack.given:
        found += [f"settings: no function is given {key}" for key in sorted(known - given - DATA["not_deployed"].keys() - {"DATABASE_SECRET_IDS"})]
    return found


def _settings():
    read = {name for name in docs.settings_read() if not re.match("AWS_|OTEL_|TRACEPARENT|NO_COLOR", name)}
    services = {name.removesuffix("_URL") for name in read - DATA["not_deployed"].keys() if name.endswith("_URL")}
    # A package must not contain a file with a token. For each such file setting there is one for a secret.
    suffixes = set(re.findall(r'"(_[A-Z_]+)"', CREDENTIALS.read_text())) - {"_AUTH_FILE"}
    return read | {service + suffix for service in services for suffix in suffixes}


def no_wildcards(stack):
    """No statement of ours allows all resources or all actions, except the one for traces while tracing is active."""
    found = []
    for name, made in {**stack.of_type("AWS::IAM::Role"), **stack.of_type("AWS::IAM::ManagedPolicy")}.items():
        for policy in made.get("Policies", [made] if "PolicyDocument" in made else []):
            for statement in policy["PolicyDocument"]["Statement"]:
                may = {(action, resource) for action in _list(statement["Action"]) for resource in _list(statement["Resource"])}
                if may != TRACES or stack.parameters["Tracing"] != "Active":
                    found += [f"{name}: {action} on {resource} is allowed nowhere" for action, resource in sorted(may)
                              if "*" in action or resource == "*"]
    return found


def _list(value):
    return value if isinstance(value, list) else [value]


def metrics(stack):
    """Alarms watch, and the dashboard shows, what the drain reports. Another name would remain an empty graph forever."""
    reported = set(re.findall(r'^emf "(\w+)" ', Path("tests/golden/metrics.txt").read_text(), re.MULTILINE))
    alarms = json.dumps(stack.of_type("AWS::CloudWatch::Alarm"))
    watched = set(re.findall(r'"Namespace": "Tidegate", "MetricName": "(\w+)"', alarms))
    (board,) = stack.of_type("AWS::CloudWatch::Dashboard").values()
    lines = [line for widget in json.loads(board["DashboardBody"])["widgets"] for line in widget["properties"]["metrics"]]
    shown = {line[1] for line in lines if line[0] == "Tidegate"}
    return [f"{name} is not reported" for name in sorted((shown | watched) - reported)] + \
        [f"Dashboard: {name} is not shown" for name in sorted(reported - shown - {"DrainsFailed"})]


def messages(stack):
    """No message is lost: it outlives the tries, and stays hidden for as long as AWS demands."""
    queues = stack.of_type("AWS::SQS::Queue")
    if "Messages" not in queues:
        return []
    queue, dead = queues["Messages"], queues["DeadMessages"]
    limit = stack.of_type("AWS::Lambda::Function")["IntakeFunction"]["Timeout"]
    found = [] if queue["VisibilityTimeout"] >= 6 * limit else [f"Messages: must hide a message for six times the function's {limit} s"]
    if dead["MessageRetentionPeriod"] < queue.get("MessageRetentionPeriod", 345600):
        found.append("DeadMessages: must keep messages for as long as Messages does: their age counts on")
    return found


def drains(stack):
    """The next drains of a chain start while those before them end."""
    reserved = stack.of_type("AWS::Lambda::Function")["DrainFunction"].get("ReservedConcurrentExecutions")
    most = int(stack.parameters["MaxDrains"])
    return [f"DrainFunction: {reserved} at once are less than twice MaxDrains, {most}"] if reserved and int(reserved) < 2 * most else []


def _runner(plain):
    """Checks the code that CloudFormation would call: its result for the deployment, and whether it calls the function at all."""
    code = compile(plain["Resources"]["MigrationRunner"]["Properties"]["Code"]["ZipFile"], "index.py", "exec")
    found = []
    for run in DATA["runs"]:
        request = {"RequestType": "Create", "StackId": PSEUDO["AWS::StackId"], **run.get("request", {})}
        made = _run_runner(code, request, run["answer"])
        wanted = [run["status"], run.get("reason"), [CALL] if run.get("calls", True) else []]
        if made != wanted:
            found.append(f"the migration's runner, {run['name']}: makes {made}, not {wanted}")
    return found


def _run_runner(code, event, answer):
    """Executes the runner like Lambda, with stand-ins for what Lambda provides. The function's answer is given."""
    event.setdefault("ResourceProperties", {"Run": "true", "Input": '{"action": "migrate"}', "FunctionVersion": "tidegate-migrate:1"})
    calls, results = [], []

    def invoke(FunctionName, Payload):
        calls.append({"FunctionName": FunctionName, "Payload": Payload.decode()})
        if "Error" in answer:
            raise RuntimeError(answer["Error"])
        return {**answer, "Payload": io.BytesIO(json.dumps(answer["Payload"]).encode())}

    def describe_stacks(StackName):
        return {"Stacks": [{"StackStatus": event.get("StackStatus", "CREATE_IN_PROGRESS")}]}

    def send(event, context, status, data, physical_id=None, no_echo=False, reason=None):
        results.append((status, reason))

    client = types.SimpleNamespace(invoke=invoke, describe_stacks=describe_stacks)
    modules = {
        "boto3": types.SimpleNamespace(client=lambda *_, **__: client),
        "botocore.config": types.SimpleNamespace(Config=dict),
        "cfnresponse": types.SimpleNamespace(SUCCESS="SUCCESS", FAILED="FAILED", send=send),
    }
    kept = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        inline = {"print": lambda *_: None}
        exec(code, inline)
        inline["handler"](event, None)
    finally:
        for name, module in kept.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})
    [(status, reason)] = results
    return [status, reason, calls]


class Refused(Exception):
    """CloudFormation would refuse it. The message contains the reason."""


def transform(source):
    """Returns the plain template, as the SAM transform on AWS creates it."""
    translate = importlib.import_module("samtranslator.translator.transform").transform
    source = copy.deepcopy(source)
    source.setdefault("Globals", {}).setdefault("Function", {})["CodeUri"] = CODE
    for resource in source["Resources"].values():
        resource.get("Properties", {}).pop("CodeUri", None)
    return translate(source, {}, _NoPolicyNames())


class _NoPolicyNames:
    """The template uses full ARNs for AWS managed policies, so there is no need to ask AWS for the list."""

    @staticmethod
    def load():
        return {}


class Stack:
    """The resources that exist with the given parameters, with every function evaluated.

    Values that AWS decides appear as `{Name}` or `{Name.Attribute}`.
    """

    def __init__(self, plain, given):
        self.plain, self.given = plain, given
        self.parameters = _checked(plain["Parameters"], given)
        if broken := self._broken():
            raise Refused("; ".join(broken))
        self.resources = {name: self._resource(resource) for name, resource in plain["Resources"].items()
                          if self._holds(resource.get("Condition"))}

    def _broken(self):
        rules = [rule for rule in self.plain.get("Rules", {}).values() if self._value(rule.get("RuleCondition", True))]
        return [each["AssertDescription"] for rule in rules for each in rule["Assertions"] if not self._value(each["Assert"])]

    def of_type(self, wanted):
        return {name: resource["Properties"] for name, resource in self.resources.items() if resource["Type"] == wanted}

    def _resource(self, resource):
        depends = resource.get("DependsOn", [])
        return {"Type": resource["Type"], "DependsOn": [depends] if isinstance(depends, str) else depends,
                "Properties": self._value(resource.get("Properties", {}))}

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
        known = {"Ref": self._ref, "Condition": self._condition, "Fn::GetAtt": self._attribute, "Fn::Sub": self._sub,
                 "Fn::If": self._if, "Fn::FindInMap": self._find}
        if name in known:
            return known[name](argument)
        plain = [self._value(item) for item in argument]
        if name == "Fn::Join":
            return plain[0].join(plain[1])
        if name == "Fn::Equals":
            return str(plain[0]) == str(plain[1])
        if name == "Fn::Not":
            return not plain[0]
        if name == "Fn::And":
            return all(plain)
        if name == "Fn::Or":
            return any(plain)
        if name == "Fn::Select":
            return plain[1][int(plain[0])]
        if name == "Fn::EachMemberEquals":
            return all(member == plain[1] for member in plain[0])
        raise Refused(f"{name} is not known here")

    def _ref(self, name):
        if name == "AWS::NoValue":
            return NO_VALUE
        for known in (PSEUDO, self.parameters):
            if name in known:
                return known[name]
        return self._attribute([name, None])

    def _condition(self, argument):
        # `Condition` is a function in conditions, and an ordinary field in the statement of a policy.
        return self._holds(argument) if isinstance(argument, str) else {"Condition": self._value(argument)}

    def _attribute(self, argument):
        name, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        if name not in self.plain["Resources"]:
            raise Refused(f"{name} is neither a parameter nor a resource")
        return "{" + name + (f".{attribute}" if attribute else "") + "}"

    def _sub(self, text):
        return re.sub(r"\$\{([^!}]+)\}", lambda found: str(self._substitute(found.group(1))), text)

    def _substitute(self, name):
        return self._ref(name) if "." not in name else self._attribute(name)

    def _if(self, argument):
        condition, yes, no = argument
        return self._value(yes if self._holds(condition) else no)

    def _find(self, argument):
        table, row, column = (str(self._value(item)) for item in argument)
        return self.plain["Mappings"][table][row][column]


def _checked(declared, given):
    unknown = given.keys() - declared.keys()
    if unknown:
        raise Refused(f"no such parameter: {', '.join(sorted(unknown))}")
    return {name: _parameter(name, rules, given) for name, rules in declared.items()}


def _parameter(name, rules, given):
    if name not in given and "Default" not in rules:
        raise Refused(f"{name}: is missing")
    value = given.get(name, rules.get("Default"))
    # A pattern is for each value of a list.
    values = [each.strip() for each in value.split(",")] if rules["Type"] == "CommaDelimitedList" else [str(value)]
    if "AllowedPattern" in rules and not all(re.fullmatch(rules["AllowedPattern"], each) for each in values):
        raise Refused(f"{name}: {rules['ConstraintDescription']}, got {value!r}")
    if "AllowedValues" in rules and str(value) not in map(str, rules["AllowedValues"]):
        raise Refused(f"{name}: must be one of {rules['AllowedValues']}, got {value!r}")
    if not rules.get("MinValue", float("-inf")) <= (value if isinstance(value, (int, float)) else 0) <= rules.get("MaxValue", float("inf")):
        raise Refused(f"{name}: must be {rules.get('MinValue')} to {rules.get('MaxValue')}, got {value!r}")
    return values if rules["Type"] == "CommaDelimitedList" else value


if __name__ == "__main__":
    local.run_script(main)
