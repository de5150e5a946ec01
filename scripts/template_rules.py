"""The rules for the deployed resources. Each rule is a function that takes a `Stack` and returns the faults it finds.

The rules state completely what each role may do and each schedule sends, so that an added permission is noticed as well as a
missing alarm.
"""

import functools
import json
import re
from pathlib import Path

from stack import PSEUDO

EVENTS = Path("events")
SOURCES = ("src", "crates/*/src")
CREDENTIALS = Path("src/app/credentials.rs")
# Everything except the actions that drain or change the schema.
OPERATE = ("cleanup,replay,requeue,cancel,reschedule,stats,show,list,blocked_groups,leases,services,service,pause,resume,retire,policy,unblock,forget,schedules,schedule,"
           "retention,doctor")
ACTIONS = {"DrainFunction": "drain", "CleanupFunction": "cleanup", "OperateFunction": OPERATE, "MigrateFunction": "migrate"}
# With a queue for messages.
INTAKE = {"IntakeFunction": "receive"}
TICK = {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
DAILY = {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 3600}
SECRETS = {"DrainFunction": "Database", "CleanupFunction": "Operator", "OperateFunction": "Operator",
           "MigrateFunction": "Owner", "JobsHttpFunction": "Intake", "IntakeFunction": "Intake", "ConsoleFunction": "Console"}
# These serve one database even if the others serve several.
OF_ONE_DATABASE = {"Intake", "Console"}
# The services that handlers call, as in the names of parameters.
SERVICES = ["Archive", "Cases", "Notifications", "AiCheck", "Otp", "Sms", "Signature"]
# The metrics of the queue. The drain reports them under these names.
METRICS = ["Backlog", "OldestAgeMs", "Leased", "Completed", "CompletedWithErrors", "Failed", "Retried", "Released",
           "LeaseLost", "Expired", "Abandoned", "Published", "Drains", "ReportBroken", "BudgetUsedPercent",
           "HandlerLatencyMs", "ServicesDown", "Expiring"]
# Each alarm with its metrics, and the meaning of missing data.
ALARMS = {
    "OldestAgeAlarm": (["Tidegate/OldestAgeMs"], "notBreaching"),
    "ExpiringAlarm": (["Tidegate/Expiring"], "notBreaching"),
    "DeadLettersAlarm": (["Tidegate/Failed", "Tidegate/Expired", "Tidegate/Abandoned"], "notBreaching"),
    "RejectedAlarm": (["Tidegate/Completed", "Tidegate/CompletedWithErrors", "Tidegate/Failed", "Tidegate/Expired",
                       "Tidegate/Abandoned"], "notBreaching"),
    "ServicesDownAlarm": (["Tidegate/ServicesDown"], "notBreaching"),
    "NoDrainAlarm": (["Tidegate/Drains"], "breaching"),
    "LeaseLostAlarm": (["Tidegate/LeaseLost"], "notBreaching"),
    "ReportBrokenAlarm": (["Tidegate/ReportBroken"], "notBreaching"),
    "DrainErrorsAlarm": (["AWS/Lambda/Errors"], "notBreaching"),
    "DrainThrottlesAlarm": (["AWS/Lambda/Throttles"], "notBreaching"),
    "CleanupErrorsAlarm": (["AWS/Lambda/Errors"], "notBreaching"),
    "CleanupThrottlesAlarm": (["AWS/Lambda/Throttles"], "notBreaching"),
    "FailedInvocationsAlarm": (["AWS/SQS/ApproximateNumberOfMessagesVisible"], "notBreaching"),
}
FORMULAS = {
    "OldestAgeAlarm": ["oldest / 60000"], "DeadLettersAlarm": ["failed + expired + abandoned"],
    "RejectedAlarm": ["100 * rejected / (completed + rejected + failed + expired + abandoned)"],
}
MANY_ALARMS = {"DatabaseFailedAlarm": (["Tidegate/DrainsFailed"], "notBreaching")}
HTTP_ALARMS = {"JobsHttpErrorsAlarm": (["AWS/Lambda/Errors"], "notBreaching")}
# What counts as a setting when it appears as a string in the program's source, and the settings that the deployment does not
# set.
SETTING = re.compile(r'"((?:TIDEGATE|DATABASE)_[A-Z_]+|[A-Z_]+_URL|AI_CHECK_[A-Z_]+|ISSUING_[A-Z_]+|[A-Z]+_RETENTION|SERVICES_[A-Z_]+)"')
NOT_DEPLOYED = {
    "DATABASE_URL": "DATABASE_SECRET_ID takes its place, for it may hold a password", "DATABASE_AUTH": "it goes with DATABASE_URL",
    "DATABASE_CA_PEM": "DATABASE_CA_FILE takes its place",
    "TIDEGATE_DATABASE": "with DATABASE_SECRET_IDS, it selects a database for the command line",
    "TIDEGATE_PAYLOAD_KEYS_FILE": "TIDEGATE_PAYLOAD_KEYS_SECRET_ID takes its place", "TIDEGATE_ACTOR": "who operates the command line",
    "TIDEGATE_TRACE_CORRELATION": "a correlation id may name a person",
    "TIDEGATE_HTTP_METRICS": "a function is not scraped",
    "TIDEGATE_CONSOLE_LISTEN": "a function does not listen", "TIDEGATE_CONSOLE_HOSTS": "AWS tells the function its name",
    "TIDEGATE_CONSOLE_BASE_PATH": "it has a URL of its own", "TIDEGATE_CONSOLE_BEHIND_TLS": "a function URL is always behind TLS",
    "TIDEGATE_CONSOLE_USERS_FILE": "it goes with basic", "TIDEGATE_CONSOLE_PROXY_HEADER": "it goes with proxy-header",
    "TIDEGATE_CONSOLE_PROXY_SECRET_FILE": "it goes with proxy-header"}
# What the console's function is given, and how, if it is deployed.
CONSOLE = "ConsoleFunction"
PEOPLE = [
    {"Effect": "Allow", "Action": "lambda:InvokeFunctionUrl", "Resource": "{ConsoleFunction.Arn}",
     "Condition": {"StringEquals": {"lambda:FunctionUrlAuthType": "AWS_IAM"}}},
    {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": "{ConsoleFunction.Arn}",
     "Condition": {"Bool": {"lambda:InvokedViaFunctionUrl": "true"}}}]
INTAKE_ALARMS = {
    "IntakeErrorsAlarm": (["AWS/Lambda/Errors"], "notBreaching"),
    "DeadMessagesAlarm": (["AWS/SQS/ApproximateNumberOfMessagesVisible"], "notBreaching"),
}
# The permissions that Lambda needs to read messages from a queue.
RECEIVE = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
# AWS managed policies that allow all resources, and the parameter without which each of them must not be attached.
WIDE = {"AWSLambdaVPCAccessExecutionRole": "SubnetIds"}
# Our own statements for all resources: these two actions cannot be restricted further, and are allowed only with active
# tracing.
TRACES = {("xray:PutTraceSegments", "*"), ("xray:PutTelemetryRecords", "*")}
GRAMMAR = re.compile(r"rate\((1 (minute|hour|day)|([2-9]|[1-9][0-9]+) (minutes|hours|days))\)|cron\((\S+ ){5}\S+\)")


def faults(stack):
    """Returns all faults as texts. The list is empty for a correct template."""
    found = []
    for rule in RULES:
        try:
            found += rule(stack)
        except KeyError as missing:
            found.append(f"{rule.__name__}: {missing} is missing")
    return found


def schedules(stack):
    found = []
    schedules = stack.of_type("AWS::Scheduler::Schedule")
    drains = {name: made for name, made in schedules.items() if name.startswith("DrainFunction")}
    daily = {name: made for name, made in schedules.items() if name.startswith("CleanupFunction")}
    if len(drains) + len(daily) != len(schedules):
        found.append(f"schedules: only drain and cleanup have any, got {sorted(schedules)}")
    on = sum(made.get("State", "ENABLED") == "ENABLED" for made in drains.values())
    if on != 1:
        found.append(f"schedules: {on} drains start with each tick, which starts one")
    if len(daily) != 1:
        found.append("schedules: one cleanup a day is needed")
    for name, made in drains.items():
        found += _schedule(name, made, "drain.json", "{DrainFunction.Arn}", "{TickRole.Arn}", TICK)
    for name, made in daily.items():
        found += _schedule(name, made, "cleanup.json", "{CleanupFunction.Arn}", "{CleanupTickRole.Arn}", DAILY)
    return found


def _schedule(name, made, file, target, role, retries):
    wanted = {"Input": (EVENTS / file).read_text().strip(), "Arn": target, "RoleArn": role, "RetryPolicy": retries}
    found = [f"{name}: {field} must be {value!r}, got {made['Target'].get(field)!r}"
             for field, value in wanted.items() if made["Target"].get(field) != value]
    if not GRAMMAR.fullmatch(made["ScheduleExpression"]):
        found.append(f"{name}: AWS refuses the expression {made['ScheduleExpression']!r}")
    return found


def background(stack):
    """Checks asynchronous invocations: how often they are retried, and where they go if all retries fail."""
    made = stack.of_type("AWS::Lambda::EventInvokeConfig")
    found = []
    for function, retries in (("DrainFunction", TICK), ("CleanupFunction", DAILY)):
        config = made[f"{function}EventInvokeConfig"]
        found += [f"{function}: {field} must be {value}, got {config.get(field)}" for field, value in retries.items()
                  if config.get(field) != value]
        if config["DestinationConfig"]["OnFailure"]["Destination"] != "{FailedInvocations.Arn}":
            found.append(f"{function}: what failed must go to FailedInvocations")
    return found


def actions(stack):
    functions = _environments(stack)
    return [f"{name}: TIDEGATE_ACTIONS must be {wanted!r}, got {functions[name].get('TIDEGATE_ACTIONS')!r}"
            for name, wanted in _actions(stack).items() if functions[name].get("TIDEGATE_ACTIONS") != wanted]


def _actions(stack):
    return {**ACTIONS, **(INTAKE if _takes_messages(stack) else {})}


def _takes_messages(stack):
    return stack.parameters["MessageQueue"] == "on"


def environments(stack):
    found = []
    functions = _environments(stack)
    for name, variables in functions.items():
        if name == "MigrationRunner":
            continue
        found += _secrets_of(stack, name, variables)
        found += [f"{name}: the environment must not hold {key}" for key in variables if re.search("PASSWORD|TOKEN|DATABASE_URL", key)]
        found += [f"{name}: {key} must be set, if only to nothing" for key in ("DATABASE_HOST", "DATABASE_PORT", "DATABASE_NAME")
                  if key not in variables]
    drain = functions["DrainFunction"]
    metrics = "emf-by-kind" if stack.parameters["MetricsByKind"] == "true" else "emf"
    if drain.get("TIDEGATE_METRICS") != metrics or drain.get("TIDEGATE_METRICS_QUEUE") != PSEUDO["AWS::StackName"]:
        found.append(f"DrainFunction: TIDEGATE_METRICS must be {metrics}, TIDEGATE_METRICS_QUEUE the stack's name")
    wakes = "{DrainFunction.Arn}" if stack.parameters["WakeOnPublish"] == "true" else ""
    if "JobsHttpFunction" in functions and functions["JobsHttpFunction"].get("TIDEGATE_WAKE") != wakes:
        found.append(f"JobsHttpFunction: TIDEGATE_WAKE must be {wakes or 'empty'}")
    return found


def _secrets_of(stack, name, variables):
    """A function has the secrets that its role may read: one as DATABASE_SECRET_ID, or those of several databases."""
    secrets = _secrets(stack, SECRETS[name])
    key = "DATABASE_SECRET_IDS" if _serves_several(stack, SECRETS[name]) else "DATABASE_SECRET_ID"
    found = [] if variables.get(key) == ",".join(secrets) else [f"{name}: {key} is another secret than its role may read"]
    # The program refuses to start with both.
    return found + [f"{name}: {other} must not be set beside {key}" for other in {"DATABASE_SECRET_ID", "DATABASE_SECRET_IDS"} - {key}
                    if other in variables]


def settings(stack):
    """The deployment can set every setting of the program, and no others."""
    set_somewhere = {key for variables in _environments(stack).values() for key in variables}
    known = _settings() - NOT_DEPLOYED.keys()
    if not _has_console(stack):
        known = {name for name in known if not name.startswith("TIDEGATE_CONSOLE_")}
    if not _has_many(stack):
        known -= {"DATABASE_SECRET_IDS"}
    elif stack.parameters["JobsHttp"] == "off" and not _takes_messages(stack) and not _has_console(stack):
        known -= {"DATABASE_SECRET_ID"}
    if not _takes_messages(stack):
        known = {name for name in known if not name.startswith("ISSUING_")}
    if stack.parameters["JobsHttp"] == "off":
        known = {name for name in known if not name.startswith("TIDEGATE_HTTP_") and name != "TIDEGATE_WAKE"}
    found = [f"settings: no function is given {name}" for name in sorted(known - set_somewhere)]
    return found + [f"settings: the program knows no {name}" for name in sorted(set_somewhere - known) if not name.startswith("AWS_")]


@functools.cache
def _settings():
    files = [file for folder in SOURCES for file in sorted(Path().glob(f"{folder}/**/*.rs"))]
    named = {name for file in files for name in SETTING.findall(file.read_text())}
    services = {name.removesuffix("_URL") for name in named - NOT_DEPLOYED.keys() if name.endswith("_URL")}
    # A package must not contain a file with a token. For each such file setting there is one for a secret.
    suffixes = set(re.findall(r'"(_[A-Z_]+)"', CREDENTIALS.read_text())) - {"_AUTH_FILE"}
    return named | {service + suffix for service in services for suffix in suffixes}


def _environments(stack):
    return {name: made.get("Environment", {}).get("Variables", {})
            for name, made in stack.of_type("AWS::Lambda::Function").items()}


def _has_many(stack):
    return stack.parameters["DatabaseSecretArns"] != [""]


def _has_console(stack):
    return stack.parameters["Console"] != "off"


def _serves_several(stack, whose):
    return _has_many(stack) and whose not in OF_ONE_DATABASE


def _secrets(stack, whose):
    """Returns the secrets with the logins for this purpose: one, or one for each database."""
    if not _serves_several(stack, whose):
        return [stack.parameters[f"{whose}SecretArn"] or stack.parameters["DatabaseSecretArn"]]
    own = stack.parameters[f"{whose}SecretArns"]
    return own if own != [""] else stack.parameters["DatabaseSecretArns"]


def roles(stack):
    """Checks everything that each role may do."""
    found = []
    made = stack.of_type("AWS::IAM::Role")
    wanted = _wanted_permissions(stack)
    for name in made.keys() ^ wanted.keys():
        found.append(f"{name}: is a role too many or too few")
    for name in made.keys() & wanted.keys():
        may = _permissions(stack, made[name])
        found += [f"{name}: may {action} on {resource}, which it does not need" for action, resource in sorted(may - wanted[name])]
        found += [f"{name}: must be allowed to {action} on {resource}" for action, resource in sorted(wanted[name] - may)]
    return found


def _wanted_permissions(stack):
    own = {"Drain": "Database", "Cleanup": "Operator", "Operate": "Operator", "Migrate": "Owner"}
    if stack.parameters["JobsHttp"] != "off":
        own["JobsHttp"] = "Intake"
    if _takes_messages(stack):
        own["Intake"] = "Intake"
    if _has_console(stack):
        own["Console"] = "Console"
    wanted = {}
    for name, whose in own.items():
        wanted[f"{name}Role"] = _log(name) | {("secretsmanager:GetSecretValue", secret) for secret in _secrets(stack, whose)}
        if stack.parameters["SecretKmsKeyArn"]:
            wanted[f"{name}Role"] |= {("kms:Decrypt", stack.parameters["SecretKmsKeyArn"])}
        if _is_traced(stack):
            wanted[f"{name}Role"] |= TRACES
    wanted["DrainRole"] |= {("secretsmanager:GetSecretValue", stack.parameters[f"{name}SecretArn"]) for name in SERVICES
                            if stack.parameters[f"{name}SecretArn"]}
    if stack.parameters["PayloadKeysSecretArn"]:
        for name in {"Drain", "Operate", "Intake", "JobsHttp"} & own.keys():
            wanted[f"{name}Role"] |= {("secretsmanager:GetSecretValue", stack.parameters["PayloadKeysSecretArn"])}
    for name in ("DrainRole", "CleanupRole"):
        wanted[name] |= {("sqs:SendMessage", "{FailedInvocations.Arn}")}
    if _takes_messages(stack):
        wanted["IntakeRole"] |= {(action, "{Messages.Arn}") for action in RECEIVE}
    invoke = "lambda:InvokeFunction"
    wanted["MigrationRunnerRole"] = _log("MigrationRunner") | {
        (invoke, "{MigrateFunction.Arn}:*"), ("cloudformation:DescribeStacks", PSEUDO["AWS::StackId"])}
    lambdas = f"arn:{PSEUDO['AWS::Partition']}:lambda:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:function"
    wanted["DrainRole"] |= {(invoke, f"{lambdas}:{PSEUDO['AWS::StackName']}-drain")}
    wanted["TickRole"] = {(invoke, "{DrainFunction.Arn}")}
    if "JobsHttp" in own and stack.parameters["WakeOnPublish"] == "true":
        wanted["JobsHttpRole"] |= {(invoke, "{DrainFunction.Arn}")}
    wanted["CleanupTickRole"] = {(invoke, "{CleanupFunction.Arn}")}
    wanted["OperatorRole"] = {(invoke, "{OperateFunction.Arn}")}
    return wanted


def _log(name):
    return {(f"logs:{action}", "{" + name + "Logs.Arn}") for action in ("CreateLogStream", "PutLogEvents")}


def _permissions(stack, role):
    documents = [policy["PolicyDocument"] for policy in role.get("Policies", [])]
    own = stack.of_type("AWS::IAM::ManagedPolicy")
    documents += [own[arn.strip("{}")]["PolicyDocument"] for arn in role.get("ManagedPolicyArns", []) if arn.strip("{}") in own]
    return {(action, resource) for document in documents for statement in document["Statement"]
            for action in _list(statement["Action"]) for resource in _list(statement["Resource"])}


def _list(value):
    return value if isinstance(value, list) else [value]


def no_wildcards(stack):
    """No statement of ours allows all resources or all actions, whatever its role is called, except the one for traces while
    tracing is active."""
    found = []
    for name, made in {**stack.of_type("AWS::IAM::Role"), **stack.of_type("AWS::IAM::ManagedPolicy")}.items():
        policies = made.get("Policies", [made] if "PolicyDocument" in made else [])
        for statement in (each for policy in policies for each in policy["PolicyDocument"]["Statement"]):
            may = {(action, resource) for action in _list(statement["Action"]) for resource in _list(statement["Resource"])}
            if may == TRACES and _is_traced(stack):
                continue
            wide = [text for text in _list(statement["Resource"]) if text == "*"]
            wide += [text for text in _list(statement["Action"]) if "*" in text]
            found += [f"{name}: {text} is allowed nowhere" for text in wide]
        found += _wide_policies(stack, name, made)
    return found


def _wide_policies(stack, name, made):
    found = []
    for arn in made.get("ManagedPolicyArns", []):
        policy = arn.rpartition("/")[2]
        if "::aws:" not in arn:
            continue
        needs = WIDE.get(policy)
        if needs is None or stack.parameters[needs] == [""]:
            found.append(f"{name}: {policy} is not needed")
    return found


def tracing(stack):
    """Checks all functions of the program. The migration runner is not one of them, and has nothing to trace."""
    asked = stack.parameters["Tracing"]
    made = stack.of_type("AWS::Lambda::Function")
    found = [f"{name}: its tracing must be {asked}, is {function.get('TracingConfig')}" for name, function in made.items()
             if name != "MigrationRunner" and function.get("TracingConfig") != {"Mode": asked}]
    wanted = "on" if _is_traced(stack) else "off"
    for name in sorted({"DrainFunction", "JobsHttpFunction"} & made.keys()):
        is_set = made[name]["Environment"]["Variables"].get("TIDEGATE_XRAY")
        if is_set != wanted:
            found.append(f"{name}: TIDEGATE_XRAY must be {wanted}, got {is_set}")
    return found


def _is_traced(stack):
    return stack.parameters["Tracing"] == "Active"


def operator(stack):
    """The role for people trusts only the principal that was asked for. No other role trusts anyone except AWS's own
    services."""
    made = stack.of_type("AWS::IAM::Role")
    found = []
    for name, role in made.items():
        for statement in role["AssumeRolePolicyDocument"]["Statement"]:
            principal = statement["Principal"]
            if name == "OperatorRole":
                account = f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:root"
                trusted = {"AWS": stack.parameters["OperatorPrincipalArn"] or account}
            else:
                trusted = {"Service": "scheduler.amazonaws.com" if "Tick" in name else "lambda.amazonaws.com"}
            if principal != trusted:
                found.append(f"{name}: must trust {trusted}, trusts {principal}")
    return found


def logs(stack):
    groups = stack.of_type("AWS::Logs::LogGroup")
    found = [f"{name}: must keep its lines for LogDays, keeps {made.get('RetentionInDays')}" for name, made in groups.items()
             if made.get("RetentionInDays") != stack.parameters["LogDays"]]
    for name, made in stack.of_type("AWS::Lambda::Function").items():
        config = made.get("LoggingConfig", {})
        if config.get("LogGroup", "").strip("{}") not in groups:
            found.append(f"{name}: must log to a log group of the stack")
        # Lambda drops lines below its level, and treats a line with a metric as INFO.
        if config.get("LogFormat") != "JSON" or config.get("ApplicationLogLevel", "TRACE") != "TRACE":
            found.append(f"{name}: must log JSON, unfiltered")
    return found


def alarms(stack):
    wanted = {**ALARMS, **(HTTP_ALARMS if stack.parameters["JobsHttp"] != "off" else {}),
              **(INTAKE_ALARMS if _takes_messages(stack) else {}), **(MANY_ALARMS if _has_many(stack) else {})}
    made = stack.of_type("AWS::CloudWatch::Alarm")
    found = [f"{name}: is an alarm too many or too few" for name in sorted(made.keys() ^ wanted.keys())]
    topic = stack.parameters["AlarmTopicArn"] or "{AlarmTopic}"
    for name in made.keys() & wanted.keys():
        metrics, missing = wanted[name]
        if _metrics(made[name]) != metrics:
            found.append(f"{name}: must watch {metrics}, watches {_metrics(made[name])}")
        if made[name].get("TreatMissingData") != missing:
            found.append(f"{name}: missing data must count as {missing}")
        if made[name].get("AlarmActions") != [topic]:
            found.append(f"{name}: must tell {topic}")
        formula = [part["Expression"] for part in made[name].get("Metrics", []) if "Expression" in part]
        if formula != FORMULAS.get(name, []):
            found.append(f"{name}: must compute {FORMULAS.get(name)}, computes {formula}")
        found += [f"{name}: the dimension must be the queue's name" for dimensions in _dimensions(made[name])
                  if dimensions != [{"Name": "Queue", "Value": PSEUDO["AWS::StackName"]}]]
    return found


def _parts(alarm):
    if "MetricName" in alarm:
        return [alarm]
    return [part["MetricStat"]["Metric"] for part in alarm["Metrics"] if "MetricStat" in part]


def _metrics(alarm):
    return [f"{part['Namespace']}/{part['MetricName']}" for part in _parts(alarm)]


def _dimensions(alarm):
    return [part["Dimensions"] for part in _parts(alarm) if part["Namespace"] == "Tidegate"]


def dashboard(stack):
    """The dashboard shows every metric of the queue, and no other name, which would remain an empty graph forever."""
    (board,) = stack.of_type("AWS::CloudWatch::Dashboard").values()
    body = json.loads(board["DashboardBody"])
    lines = [line for widget in body["widgets"] for line in widget["properties"]["metrics"]]
    shown = {line[1] for line in lines if line[0] == "Tidegate"}
    return [f"Dashboard: {name} is shown but not reported, or not shown" for name in sorted(shown ^ set(METRICS))]


def migration(stack):
    found = [f"{name}: must depend on the migration" for name, made in stack.resources.items()
             if made["Type"] == "AWS::Lambda::Function" and name in {*ACTIONS, *INTAKE, "JobsHttpFunction", CONSOLE} - {"MigrateFunction"}
             and "Migration" not in made["DependsOn"]]
    asked = stack.of_type("Custom::Migration")["Migration"]
    if asked["FunctionVersion"].strip("{}") not in stack.of_type("AWS::Lambda::Version"):
        found.append("Migration: must name the version of the code, or it happens once and never again")
    payload = json.loads((EVENTS / "migrate.json").read_text())
    payload.update({"roles": True} if stack.parameters["CreateDatabaseRoles"] == "true" else {})
    if json.loads(asked["Input"]) != payload:
        found.append(f"Migration: Input must be {payload}, got {asked['Input']}")
    return found


def concurrency(stack):
    functions = stack.of_type("AWS::Lambda::Function")
    reserved = {name: functions[name].get("ReservedConcurrentExecutions")
                for name in ("DrainFunction", "JobsHttpFunction", CONSOLE) if name in functions}
    if stack.parameters["ReserveConcurrency"] == "false":
        return [f"{name}: sets concurrency apart, though it must not" for name, most in reserved.items() if most is not None]
    found = []
    drains = reserved["DrainFunction"]
    if drains is None or int(drains) < 2 * int(stack.parameters["MaxDrains"]):
        found.append(f"DrainFunction: {drains} at once are less than twice MaxDrains, {stack.parameters['MaxDrains']}")
    for name, parameter in (("JobsHttpFunction", "HttpConcurrency"), (CONSOLE, "ConsoleConcurrency")):
        if name in reserved and str(reserved[name]) != str(stack.parameters[parameter]):
            found.append(f"{name}: {reserved[name]} at once are not the {stack.parameters[parameter]} that were asked for")
    return found


def jobs_http(stack):
    """Only an AWS identity may call it, unless public access was asked for. Then only authenticated callers may."""
    asked = stack.parameters["JobsHttp"]
    kinds = [made["AuthType"] for name, made in stack.of_type("AWS::Lambda::Url").items() if name != "ConsoleUrl"]
    ways = stack.parameters["HttpAuth"].split(",")
    for_keys = asked == "public" and "keys" in ways
    wanted = ["AWS_IAM"] if asked == "iam" else ["NONE"] if for_keys else []
    found = [] if kinds == wanted else [f"JobsHttpUrl: must ask for {wanted}, asks for {kinds}"]
    open_to_all = [made["FunctionName"] for made in stack.of_type("AWS::Lambda::Permission").values() if made["Principal"] == "*"]
    if open_to_all != (["{JobsHttpFunction.Arn}"] * 2 if for_keys else []):
        found.append(f"permissions: everybody may call {open_to_all}")
    if asked != "off":
        auth = _environments(stack)["JobsHttpFunction"].get("TIDEGATE_HTTP_AUTH")
        needed = "none" if asked == "iam" else stack.parameters["HttpAuth"]
        found += [] if auth == needed else [f"JobsHttpFunction: TIDEGATE_HTTP_AUTH must be {needed}, got {auth}"]
    if not stack.refuses(JobsHttp="public", HttpAuth=""):
        found.append("JobsHttp: public must be refused while nobody knows the callers")
    return found + _gateway(stack, asked == "public" and "jwt" in ways)


def _gateway(stack, wanted):
    """The gateway verifies the token of every request but those for operation, and nobody else's gateway may call the function."""
    routes = {made["RouteKey"]: (made.get("AuthorizationType"), made.get("AuthorizerId"))
              for made in stack.of_type("AWS::ApiGatewayV2::Route").values()}
    allowed = {name: made["SourceArn"] for name, made in stack.of_type("AWS::Lambda::Permission").items()
               if made["Principal"] == "apigateway.amazonaws.com"}
    if not wanted:
        return [f"JobsHttpApi: nobody asked for a gateway, got {routes} and {allowed}"] if routes or allowed else []
    open_routes = dict.fromkeys(("GET /healthz", "GET /readyz", "GET /openapi.json"), (None, None))
    found = []
    if routes != {"$default": ("JWT", "{JobsHttpAuthorizer}"), **open_routes}:
        found.append(f"JobsHttpApi: must verify tokens, except for operation, got {routes}")
    verifies = stack.of_type("AWS::ApiGatewayV2::Authorizer")["JobsHttpAuthorizer"]["JwtConfiguration"]
    issuer = {"Issuer": stack.parameters["HttpJwtIssuer"], "Audience": [stack.parameters["HttpJwtAudience"]]}
    if verifies != issuer:
        found.append(f"JobsHttpAuthorizer: must verify for {issuer}, got {verifies}")
    if [arn.rpartition(":")[2] for arn in allowed.values()] != ["{JobsHttpApi}/*"]:
        found.append(f"JobsHttpApiInvoke: only JobsHttpApi may call the function, got {allowed}")
    return found


def console(stack):
    """Only an AWS identity may call the console, with a login of its own, and nobody may act unless named."""
    found = [] if stack.refuses(Console="iam", ConsoleSecretArn="") else ["Console: must be refused without a login of its own"]
    made = stack.of_type("AWS::Lambda::Url").get("ConsoleUrl")
    if not _has_console(stack):
        return found + (["ConsoleUrl: nobody asked for a console"] if made else [])
    if made != {"TargetFunctionArn": "{ConsoleFunction.Arn}", "AuthType": "AWS_IAM"}:
        found.append(f"ConsoleUrl: must ask for AWS_IAM, for ConsoleFunction, got {made}")
    people = stack.of_type("AWS::IAM::ManagedPolicy")["ConsolePeoplePolicy"]["PolicyDocument"]["Statement"]
    if people != PEOPLE:
        # Whoever can invoke the function directly can claim any identity.
        found.append(f"ConsolePeoplePolicy: must allow {PEOPLE}, allows {people}")
    named = stack.parameters["ConsoleActors"]
    wanted = {"AUTH": "iam", "ALLOW": "act" if named else "read", "ACTORS": named, "INSTANCE": stack.parameters["ConsoleInstance"],
              "COLOUR": stack.parameters["ConsoleColour"],
              "WITHOUT_PAYLOADS": "true" if stack.parameters["ConsolePayloads"] == "false" else "false"}
    prefix = "TIDEGATE_CONSOLE_"
    for name, variables in _environments(stack).items():
        given = {key.removeprefix(prefix): value for key, value in variables.items() if key.startswith(prefix)}
        expected = wanted if name == CONSOLE else {}
        found += [f"{name}: {prefix}{key} must be {expected.get(key)!r}, got {given.get(key)!r}"
                  for key in sorted(given.keys() | expected.keys()) if given.get(key) != expected.get(key)]
    return found


def messages(stack):
    """No message is lost: a message that cannot be received is separated from the rest of its batch, redelivered, and
    finally stored in a dead-letter queue."""
    made = stack.of_type("AWS::Lambda::EventSourceMapping")
    if not _takes_messages(stack):
        return [f"{name}: nobody asked for messages" for name in made]
    queues = stack.of_type("AWS::SQS::Queue")
    queue, dead = queues["Messages"], queues["DeadMessages"]
    (mapping,) = made.values()
    found = []
    if (mapping["EventSourceArn"], mapping["FunctionName"]) != ("{Messages.Arn}", "{IntakeFunction}"):
        found.append("Messages: must go to IntakeFunction, and nothing else must")
    if mapping.get("FunctionResponseTypes") != ["ReportBatchItemFailures"]:
        found.append("Messages: Lambda must be told of single failures, or it deletes what failed")
    redrive = queue.get("RedrivePolicy", {})
    if redrive.get("deadLetterTargetArn") != "{DeadMessages.Arn}" or redrive.get("maxReceiveCount", 0) < 2:
        found.append("Messages: what cannot be taken in must go to DeadMessages, after more than one try")
    if dead.get("MessageRetentionPeriod", 0) < queue.get("MessageRetentionPeriod", 345600):
        found.append("DeadMessages: must keep messages for as long as Messages does: their age counts on")
    limit = stack.of_type("AWS::Lambda::Function")["IntakeFunction"]["Timeout"]
    if queue.get("VisibilityTimeout", 30) < 6 * limit:
        found.append(f"Messages: must hide a message for six times the function's {limit} s")
    found += [f"{name}: must be encrypted" for name in ("Messages", "DeadMessages") if queues[name].get("SqsManagedSseEnabled") is not True]
    return found


RULES = [schedules, background, actions, environments, settings, roles, no_wildcards, tracing, operator, logs, alarms, dashboard, migration,
         concurrency, jobs_http, console, messages]
