"""Templates that are broken on purpose, each with the fault that the rules must report."""


def _properties(template, resource):
    return template["Resources"][resource]["Properties"]


def _event(template, function, name):
    return _properties(template, function)["Events"][name]["Properties"]


def _variables(template, function):
    return _properties(template, function)["Environment"]["Variables"]


def _statements(template, role):
    return _properties(template, role)["Policies"][0]["PolicyDocument"]["Statement"]


def rate(template):
    _event(template, "DrainFunction", "Tick")["ScheduleExpression"] = "rate(1 minutes)"


def drain_alone(template):
    del _statements(template, "DrainRole")[2]


def tick_input(template):
    _event(template, "DrainFunction", "Tick")["Input"] = '{"action": "dran"}'


def cleanup_input(template):
    _event(template, "CleanupFunction", "Daily")["Input"] = '{"action": "cleanup"}'


def migration_input(template):
    _properties(template, "Migration")["Input"] = '{"action": "stats"}'


def tick_retries(template):
    del _event(template, "DrainFunction", "Tick")["RetryPolicy"]


def tick_age(template):
    _event(template, "DrainFunction", "Tick")["RetryPolicy"]["MaximumEventAgeInSeconds"] = 86400


def background_retries(template):
    _properties(template, "DrainFunction")["EventInvokeConfig"]["MaximumRetryAttempts"] = 2


def no_destination(template):
    del _properties(template, "CleanupFunction")["EventInvokeConfig"]["DestinationConfig"]


def no_tick(template):
    del _properties(template, "DrainFunction")["Events"]["Tick"]


def tick_of_another(template):
    _properties(template, "OperateFunction")["Events"] = {"Often": _properties(template, "DrainFunction")["Events"]["Tick"]}


def every_resource(template):
    _statements(template, "DrainRole")[0]["Resource"] = "*"


def every_action(template):
    _properties(template, "OwnerSecretPolicy")["PolicyDocument"]["Statement"][0]["Action"] = "secretsmanager:*"


def one_action_more(template):
    _statements(template, "DrainRole")[0]["Action"].append("logs:DeleteLogStream")


def another_secret(template):
    _properties(template, "DrainRole")["ManagedPolicyArns"][0] = {"Ref": "OwnerSecretPolicy"}


def operator_may_drain(template):
    _statements(template, "OperatorRole")[0]["Resource"] = {"Fn::GetAtt": ["DrainFunction", "Arn"]}


def operator_is_anybody(template):
    _properties(template, "OperatorRole")["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] = {"AWS": "*"}


def generated_role(template):
    del _properties(template, "OperateFunction")["Role"]


def administrator(template):
    _properties(template, "CleanupRole")["ManagedPolicyArns"].append("arn:aws:iam::aws:policy/AdministratorAccess")


def other_actions(template):
    _variables(template, "OperateFunction")["TIDEGATE_ACTIONS"] += ",migrate"


def missing_action(template):
    variables = _variables(template, "OperateFunction")
    variables["TIDEGATE_ACTIONS"] = variables["TIDEGATE_ACTIONS"].replace(",unblock", "")


def no_actions(template):
    del _variables(template, "DrainFunction")["TIDEGATE_ACTIONS"]


def no_metrics(template):
    del _variables(template, "DrainFunction")["TIDEGATE_METRICS"]


def wrong_secret(template):
    _variables(template, "MigrateFunction")["DATABASE_SECRET_ID"] = {"Ref": "DatabaseSecretArn"}


def password(template):
    _variables(template, "DrainFunction")["PGPASSWORD"] = "x"


def token_in_clear(template):
    _variables(template, "DrainFunction")["SMS_TOKEN"] = "x"


def unread_token(template):
    del _properties(template, "ServiceSecretsPolicy")["PolicyDocument"]["Statement"][0]["Resource"][0]


def no_credentials(template):
    del _variables(template, "DrainFunction")["OTP_CLIENT_CERT_FILE"]


def no_linger(template):
    del _variables(template, "DrainFunction")["TIDEGATE_LINGER"]


def misspelt_setting(template):
    _variables(template, "DrainFunction")["TIDEGATE_LINGERS"] = "5s"


def missing_alarm(template):
    del template["Resources"]["LeaseLostAlarm"]


def renamed_metric(template):
    _properties(template, "ReportBrokenAlarm")["MetricName"] = "ReportsBroken"


def silence_is_fine(template):
    _properties(template, "NoDrainAlarm")["TreatMissingData"] = "notBreaching"


def mute_alarm(template):
    del _properties(template, "OldestAgeAlarm")["AlarmActions"]


def another_queue(template):
    _properties(template, "NoDrainAlarm")["Dimensions"][0]["Value"] = "default"


def rejections_of_nothing(template):
    _properties(template, "RejectedAlarm")["Metrics"][0]["Expression"] = "100 * rejected / completed"


def unwatched_services(template):
    del template["Resources"]["ServicesDownAlarm"]


def unwatched_deadlines(template):
    _properties(template, "ExpiringAlarm")["MetricName"] = "Expired"


def hidden_metric(template):
    body = _properties(template, "Dashboard")
    body["DashboardBody"]["Fn::Sub"] = body["DashboardBody"]["Fn::Sub"].replace('"Backlog"', '"Backlogs"')


def logs_for_ever(template):
    del _properties(template, "DrainLogs")["RetentionInDays"]


def logs_elsewhere(template):
    del _properties(template, "DrainFunction")["LoggingConfig"]


def filtered_metrics(template):
    template["Globals"]["Function"]["LoggingConfig"]["ApplicationLogLevel"] = "WARN"


def drain_before_migration(template):
    del template["Resources"]["DrainFunction"]["DependsOn"]


def migration_only_once(template):
    _properties(template, "Migration")["FunctionVersion"] = {"Fn::GetAtt": ["MigrateFunction", "Arn"]}


def too_little_concurrency(template):
    template["Mappings"]["Drains"]["8"]["Reserved"] = "7"


def http_open(template):
    _properties(template, "JobsHttpUrl")["AuthType"] = "AWS_IAM"


def every_trace_action(template):
    _properties(template, "TracePolicy")["PolicyDocument"]["Statement"][0]["Action"] = "xray:*"


def one_trace_action_more(template):
    _properties(template, "TracePolicy")["PolicyDocument"]["Statement"][0]["Action"].append("xray:GetTraceSummaries")


def no_trace_permission(template):
    roles = _properties(template, "DrainRole")["ManagedPolicyArns"]
    roles[:] = [arn for arn in roles if "TracePolicy" not in str(arn)]


def no_export(template):
    del _variables(template, "DrainFunction")["TIDEGATE_XRAY"]


def no_tracing(template):
    _properties(template, "DrainFunction")["Tracing"] = "PassThrough"


def whole_batches(template):
    del _event(template, "IntakeFunction", "Message")["FunctionResponseTypes"]


def http_without_end(template):
    del _properties(template, "JobsHttpFunction")["ReservedConcurrentExecutions"]


def http_drains(template):
    _variables(template, "JobsHttpFunction")["DATABASE_SECRET_ID"] = {"Ref": "DatabaseSecretArn"}


def no_dead_messages(template):
    del _properties(template, "Messages")["RedrivePolicy"]


def one_try(template):
    _properties(template, "Messages")["RedrivePolicy"]["maxReceiveCount"] = 1


def seen_too_soon(template):
    _properties(template, "Messages")["VisibilityTimeout"] = 30


def dead_messages_gone(template):
    del _properties(template, "DeadMessages")["MessageRetentionPeriod"]


def intake_drains(template):
    _variables(template, "IntakeFunction")["TIDEGATE_ACTIONS"] = "receive,drain"


def intake_sends(template):
    _statements(template, "IntakeRole")[1]["Action"].append("sqs:SendMessage")


def unnoticed_messages(template):
    del template["Resources"]["DeadMessagesAlarm"]


def callers_nobody_knows(template):
    _variables(template, "JobsHttpFunction")["TIDEGATE_HTTP_AUTH"] = "none"


def token_nobody_verifies(template):
    _properties(template, "JobsHttpRoute")["AuthorizationType"] = "NONE"


def token_of_another(template):
    _properties(template, "JobsHttpAuthorizer")["JwtConfiguration"]["Audience"] = ["other"]


def gateway_of_anybody(template):
    _properties(template, "JobsHttpApiInvoke")["SourceArn"] = "arn:aws:execute-api:eu-central-1:123456789012:*"


def request_that_may_not_wake(template):
    del _statements(template, "JobsHttpRole")[1]


def request_that_wakes_another(template):
    _variables(template, "JobsHttpFunction")["TIDEGATE_WAKE"] = "arn:aws:lambda:eu-central-1:123456789012:function:another"


def public_without_a_rule(template):
    del template["Rules"]["PublicHttpKnowsItsCallers"]


def console_open(template):
    _properties(template, "ConsoleUrl")["AuthType"] = "NONE"


def console_drains(template):
    _variables(template, "ConsoleFunction")["DATABASE_SECRET_ID"] = {"Ref": "DatabaseSecretArn"}


def console_for_everybody(template):
    del _variables(template, "ConsoleFunction")["TIDEGATE_CONSOLE_ACTORS"]


def console_without_a_rule(template):
    del template["Rules"]["ConsoleHasALogin"]


def console_without_end(template):
    del _properties(template, "ConsoleFunction")["ReservedConcurrentExecutions"]


def console_reads_keys(template):
    _properties(template, "ConsoleRole")["ManagedPolicyArns"].append({"Ref": "PayloadKeysPolicy"})


def console_shows_payloads(template):
    _variables(template, "ConsoleFunction")["TIDEGATE_CONSOLE_WITHOUT_PAYLOADS"] = "false"


def console_by_forged_requests(template):
    del _properties(template, "ConsolePeoplePolicy")["PolicyDocument"]["Statement"][1]["Condition"]


def first_database_alone(template):
    _variables(template, "OperateFunction")["DATABASE_SECRET_IDS"]["Fn::If"][1] = {"Fn::Select": [0, {"Ref": "OperatorSecretArns"}]}


def one_database_beside_several(template):
    _variables(template, "DrainFunction")["DATABASE_SECRET_ID"] = {"Ref": "IntakeSecretArn"}


def unread_database(template):
    resource = _properties(template, "DatabaseSecretPolicy")["PolicyDocument"]["Statement"][0]
    resource["Resource"] = {"Fn::Select": [0, {"Ref": "DatabaseSecretArns"}]}


def owners_for_the_drain(template):
    _properties(template, "DrainRole")["ManagedPolicyArns"][0] = {"Ref": "OwnerSecretPolicy"}


def unnoticed_database(template):
    del template["Resources"]["DatabaseFailedAlarm"]


# What only a deployment for several databases can show.
CONTROLS_OF_SEVERAL = [
    ("a function for the first of several databases", first_database_alone, "OperateFunction: DATABASE_SECRET_IDS is another secret"),
    ("a database beside several", one_database_beside_several, "DrainFunction: DATABASE_SECRET_ID must not be set beside"),
    ("a database that the drain may not read", unread_database, "DrainRole: must be allowed to secretsmanager:GetSecretValue"),
    ("the owners' secrets for the drain", owners_for_the_drain, "DrainRole: may secretsmanager:GetSecretValue"),
    ("a database that fails unseen", unnoticed_database, "DatabaseFailedAlarm: is an alarm too many or too few"),
]
CONTROLS = [
    ("a rate in bad grammar", rate, "AWS refuses the expression 'rate(1 minutes)'"),
    ("a tick with another input", tick_input, "DrainFunctionTick: Input"),
    ("a drain that may not start itself", drain_alone, "DrainRole: must be allowed to lambda:InvokeFunction"),
    ("a cleanup with another input", cleanup_input, "CleanupFunctionDaily: Input"),
    ("a migration with another input", migration_input, "Migration: Input"),
    ("a tick with the scheduler's own retries", tick_retries, "DrainFunctionTick: RetryPolicy"),
    ("a tick that may be a day old", tick_age, "DrainFunctionTick: RetryPolicy"),
    ("a drain that is tried again", background_retries, "DrainFunction: MaximumRetryAttempts"),
    ("failures that go nowhere", no_destination, "background: 'OnFailure' is missing"),
    ("a request that may not wake a drain", request_that_may_not_wake, "JobsHttpRole: must be allowed to lambda:InvokeFunction"),
    ("a request that wakes another function", request_that_wakes_another, "JobsHttpFunction: TIDEGATE_WAKE must be"),
    ("no tick", no_tick, "0 drains start with each tick"),
    ("a schedule for another function", tick_of_another, "only drain and cleanup have any"),
    ("a policy on every resource", every_resource, "DrainRole: * is allowed nowhere"),
    ("a policy with every action", every_action, "OwnerSecretPolicy: secretsmanager:* is allowed nowhere"),
    ("an action too many", one_action_more, "DrainRole: may logs:DeleteLogStream"),
    ("the owner's secret for the drain", another_secret, "DrainRole: may secretsmanager:GetSecretValue"),
    ("an operator who may call the drain", operator_may_drain, "OperatorRole: may lambda:InvokeFunction on {DrainFunction.Arn}"),
    ("an operator's role for anybody", operator_is_anybody, "OperatorRole: must trust"),
    ("a role that SAM makes", generated_role, "OperateFunctionRole: is a role too many"),
    ("a policy of AWS's on everything", administrator, "CleanupRole: AdministratorAccess is not needed"),
    ("every action on traces", every_trace_action, "TracePolicy: xray:* is allowed nowhere"),
    ("reading traces", one_trace_action_more, "TracePolicy: * is allowed nowhere"),
    ("a drain that may not send its traces", no_trace_permission, "DrainRole: must be allowed to xray:PutTraceSegments"),
    ("events that are not shown", no_export, "DrainFunction: TIDEGATE_XRAY must be on"),
    ("invocations that are not traced", no_tracing, "DrainFunction: its tracing must be Active"),
    ("an action too many to answer", other_actions, "OperateFunction: TIDEGATE_ACTIONS"),
    ("an action too few to answer", missing_action, "OperateFunction: TIDEGATE_ACTIONS"),
    ("no limit to the actions", no_actions, "DrainFunction: TIDEGATE_ACTIONS"),
    ("no metrics", no_metrics, "TIDEGATE_METRICS must be emf-by-kind"),
    ("a secret that the role may not read", wrong_secret, "MigrateFunction: DATABASE_SECRET_ID"),
    ("a password in the environment", password, "must not hold PGPASSWORD"),
    ("a token in the environment", token_in_clear, "must not hold SMS_TOKEN"),
    ("a service's secret that nobody may read", unread_token, "DrainRole: must be allowed to secretsmanager:GetSecretValue"),
    ("a service that cannot be told who we are", no_credentials, "settings: no function is given OTP_CLIENT_CERT_FILE"),
    ("a setting that cannot be set", no_linger, "settings: no function is given TIDEGATE_LINGER"),
    ("a setting that there is not", misspelt_setting, "settings: the program knows no TIDEGATE_LINGERS"),
    ("an alarm less", missing_alarm, "LeaseLostAlarm: is an alarm too many or too few"),
    ("an alarm on a name that nobody reports", renamed_metric, "ReportBrokenAlarm: must watch"),
    ("an alarm that takes silence for health", silence_is_fine, "NoDrainAlarm: missing data"),
    ("an alarm that tells nobody", mute_alarm, "OldestAgeAlarm: must tell"),
    ("an alarm on another queue", another_queue, "NoDrainAlarm: the dimension"),
    ("a share of something else", rejections_of_nothing, "RejectedAlarm: must compute"),
    ("deadlines that are watched too late", unwatched_deadlines, "ExpiringAlarm: must watch"),
    ("services that may be down unseen", unwatched_services, "ServicesDownAlarm: is an alarm too many or too few"),
    ("a metric that is not shown", hidden_metric, "Dashboard: Backlog is"),
    ("logs kept for ever", logs_for_ever, "DrainLogs: must keep"),
    ("logs in a group nobody made", logs_elsewhere, "DrainFunction: must log to"),
    ("a log level that drops metrics", filtered_metrics, "DrainFunction: must log JSON, unfiltered"),
    ("a drain that does not wait for the schema", drain_before_migration, "DrainFunction: must depend on the migration"),
    ("a migration on the first deployment alone", migration_only_once, "Migration: must name the version"),
    ("too little concurrency", too_little_concurrency, "7 at once are less than twice MaxDrains"),
    ("HTTP that takes all connections", http_without_end, "JobsHttpFunction: None at once"),
    ("HTTP with the drain's login", http_drains, "JobsHttpFunction: DATABASE_SECRET_ID is another secret"),
    ("messages that are lost with their batch", whole_batches, "Lambda must be told of single failures"),
    ("messages that go nowhere", no_dead_messages, "must go to DeadMessages"),
    ("messages with one try", one_try, "after more than one try"),
    ("messages that come while they are under way", seen_too_soon, "six times the function's 30 s"),
    ("messages that are given up and forgotten", dead_messages_gone, "DeadMessages: must keep"),
    ("an intake that drains", intake_drains, "IntakeFunction: TIDEGATE_ACTIONS"),
    ("an intake that sends", intake_sends, "IntakeRole: may sqs:SendMessage on {Messages.Arn}"),
    ("messages that nobody hears of", unnoticed_messages, "DeadMessagesAlarm: is an alarm too many or too few"),
    ("an authentication that was not asked for", http_open, "JobsHttpUrl: must ask for ['NONE']"),
    ("HTTP that believes everybody", callers_nobody_knows, "JobsHttpFunction: TIDEGATE_HTTP_AUTH must be keys,jwt, got none"),
    ("a gateway that asks for no token", token_nobody_verifies, "JobsHttpApi: must verify tokens"),
    ("a gateway that takes tokens for another service", token_of_another, "JobsHttpAuthorizer: must verify for"),
    ("a function that every gateway may call", gateway_of_anybody, "JobsHttpApiInvoke: only JobsHttpApi may call"),
    ("a console for everybody", console_open, "ConsoleUrl: must ask for AWS_IAM"),
    ("a console with the drain's login", console_drains, "ConsoleFunction: DATABASE_SECRET_ID is another secret"),
    ("a console in which everybody may act", console_for_everybody, "ConsoleFunction: TIDEGATE_CONSOLE_ACTORS must be"),
    ("a console that is invoked with forged requests", console_by_forged_requests, "ConsolePeoplePolicy: must allow"),
    ("a console without a login, without a rule", console_without_a_rule, "Console: must be refused without a login"),
    ("a console that takes all connections", console_without_end, "ConsoleFunction: None at once"),
    ("a console that opens sealed payloads", console_reads_keys, "ConsoleRole: may secretsmanager:GetSecretValue"),
    ("a console that shows payloads although it must not", console_shows_payloads, "TIDEGATE_CONSOLE_WITHOUT_PAYLOADS must be 'true'"),
    ("HTTP for everybody, without a rule", public_without_a_rule, "public must be refused while nobody knows the callers"),
]
