# A durable event queue in Postgres, with the functions that drain it and operate it: what template.yaml creates, for Terraform.
# `make test-all STAGES=template` compares the two. This module belongs to you: change it.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.32"
    }
  }
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  # The alarms wait longer if there are fewer drains: no-drain for five of them, oldest-ready (in ms) for three, at least 15 minutes.
  every = {
    "1m"  = { rate = "rate(1 minute)", seconds = 60, period = 300, oldest = 900000 }
    "5m"  = { rate = "rate(5 minutes)", seconds = 300, period = 300, oldest = 900000 }
    "15m" = { rate = "rate(15 minutes)", seconds = 900, period = 900, oldest = 2700000 }
    "1h"  = { rate = "rate(1 hour)", seconds = 3600, period = 3600, oldest = 10800000 }
    idle  = { rate = "rate(6 hours)", seconds = 10800, period = 300, oldest = 900000 }
  }

  owner_secret_arn = var.owner_secret_arn == "" ? var.database_secret_arn : var.owner_secret_arn
  package_hash     = filebase64sha256(var.package)
  settings         = join("\n", [for name, value in var.settings : "${name}=${value}"])
  boundary         = var.permissions_boundary_arn == "" ? null : var.permissions_boundary_arn
  variables = {
    TIDEGATE_METRICS       = "emf"
    TIDEGATE_METRICS_QUEUE = var.name
    TIDEGATE_XRAY          = var.tracing == "Active" ? "on" : "off"
    TIDEGATE_SETTINGS      = local.settings
    SSL_CERT_FILE          = var.ca_file
  }
}

resource "aws_lambda_function" "drain" {
  function_name                  = "${var.name}-drain"
  description                    = "Leases, handles and finalizes events until the queue is empty or the time budget is used up"
  role                           = aws_iam_role.drain.arn
  filename                       = var.package
  source_code_hash               = local.package_hash
  runtime                        = "provided.al2023"
  handler                        = "bootstrap"
  architectures                  = [var.architecture]
  memory_size                    = 256
  timeout                        = var.drain_seconds
  reserved_concurrent_executions = var.reserved_concurrency == 0 ? -1 : var.reserved_concurrency

  environment {
    variables = merge(local.variables, {
      DATABASE_SECRET_ID    = var.database_secret_arn
      TIDEGATE_ACTIONS      = "drain"
      TIDEGATE_START_DRAINS = "on"
    })
  }

  # TIDEGATE_LOG sets the level. Lambda treats a line without a level, such as a metric, as INFO and must not drop it.
  logging_config {
    log_format            = "JSON"
    application_log_level = "TRACE"
    system_log_level      = "INFO"
    log_group             = aws_cloudwatch_log_group.drain.name
  }

  tracing_config {
    mode = var.tracing
  }

  dynamic "vpc_config" {
    for_each = length(var.subnet_ids) > 0 ? [1] : []
    content {
      subnet_ids         = var.subnet_ids
      security_group_ids = var.security_group_ids
    }
  }

  depends_on = [aws_lambda_invocation.migration, aws_iam_role_policy.drain]
}

# A failed or late tick is not retried, because the next tick does its work.
resource "aws_lambda_function_event_invoke_config" "drain" {
  function_name                = aws_lambda_function.drain.function_name
  maximum_retry_attempts       = 0
  maximum_event_age_in_seconds = 60
}

resource "aws_lambda_function" "operate" {
  function_name    = "${var.name}-operate"
  description      = "Migrates the schema, cleans up, and answers the verbs of the command line for people who may invoke it"
  role             = aws_iam_role.operate.arn
  filename         = var.package
  source_code_hash = local.package_hash
  runtime          = "provided.al2023"
  handler          = "bootstrap"
  architectures    = [var.architecture]
  memory_size      = 256
  timeout          = 840

  environment {
    variables = merge(local.variables, {
      DATABASE_SECRET_ID = local.owner_secret_arn
      TIDEGATE_ACTIONS   = "!drain"
    })
  }

  logging_config {
    log_format            = "JSON"
    application_log_level = "TRACE"
    system_log_level      = "INFO"
    log_group             = aws_cloudwatch_log_group.operate.name
  }

  tracing_config {
    mode = var.tracing
  }

  dynamic "vpc_config" {
    for_each = length(var.subnet_ids) > 0 ? [1] : []
    content {
      subnet_ids         = var.subnet_ids
      security_group_ids = var.security_group_ids
    }
  }

  lifecycle {
    precondition {
      condition     = length(var.subnet_ids) == 0 || length(var.security_group_ids) > 0
      error_message = "subnet_ids needs security_group_ids."
    }
  }

  depends_on = [aws_iam_role_policy.operate]
}

resource "aws_lambda_function_event_invoke_config" "operate_once" {
  function_name          = aws_lambda_function.operate.function_name
  maximum_retry_attempts = 0
}

# Migrates before the drain gets its new code: with new code, and with the settings and secrets that the schema depends on. The schema
# only goes forward, so nothing is called when this resource goes.
resource "aws_lambda_invocation" "migration" {
  count           = var.migrate ? 1 : 0
  function_name   = aws_lambda_function.operate.function_name
  input           = jsonencode({ action = "migrate" })
  lifecycle_scope = "CREATE_ONLY"

  triggers = {
    code     = local.package_hash
    settings = local.settings
    secrets  = "${var.database_secret_arn} ${local.owner_secret_arn}"
  }
}

resource "aws_scheduler_schedule" "drain" {
  name                = "${var.name}-drain"
  schedule_expression = local.every[var.drain_every].rate

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = aws_lambda_function.drain.arn
    role_arn = aws_iam_role.schedule.arn
    input    = jsonencode({ action = "drain" })

    retry_policy {
      maximum_retry_attempts       = 0
      maximum_event_age_in_seconds = 60
    }
  }
}

# The log is kept by whole days, which end at midnight. The later cleanups replace one that failed, or finish it.
resource "aws_scheduler_schedule" "cleanup" {
  name                = "${var.name}-cleanup"
  schedule_expression = "cron(10 0-2 * * ? *)"

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = aws_lambda_function.operate.arn
    role_arn = aws_iam_role.schedule.arn
    input    = jsonencode({ action = "cleanup", dry_run = false, budget = "50s", older_than = "0s" })
  }

  depends_on = [aws_lambda_invocation.migration]
}

data "aws_iam_policy_document" "functions" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "schedules" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["scheduler.amazonaws.com"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

# IAM's names are global, so each deployment gets names of its own.
resource "aws_iam_role" "drain" {
  name_prefix          = "${var.name}-drain-"
  assume_role_policy   = data.aws_iam_policy_document.functions.json
  permissions_boundary = local.boundary
}

resource "aws_iam_role" "operate" {
  name_prefix          = "${var.name}-operate-"
  assume_role_policy   = data.aws_iam_policy_document.functions.json
  permissions_boundary = local.boundary
}

resource "aws_iam_role" "schedule" {
  name_prefix          = "${var.name}-schedule-"
  assume_role_policy   = data.aws_iam_policy_document.schedules.json
  permissions_boundary = local.boundary
}

# What both functions may do. AWS knows no smaller resource for network interfaces and traces.
data "aws_iam_policy_document" "access" {
  dynamic "statement" {
    for_each = length(var.secret_arns) > 0 ? [1] : []
    content {
      actions   = ["secretsmanager:GetSecretValue"]
      resources = var.secret_arns
    }
  }

  dynamic "statement" {
    for_each = var.secret_kms_key_arn == "" ? [] : [1]
    content {
      actions   = ["kms:Decrypt"]
      resources = [var.secret_kms_key_arn]
      condition {
        test     = "StringEquals"
        variable = "kms:ViaService"
        values   = ["secretsmanager.${data.aws_region.current.id}.${data.aws_partition.current.dns_suffix}"]
      }
    }
  }

  dynamic "statement" {
    for_each = length(var.subnet_ids) > 0 ? [1] : []
    content {
      actions = [
        "ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets", "ec2:DeleteNetworkInterface",
        "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses",
      ]
      resources = ["*"]
    }
  }

  dynamic "statement" {
    for_each = var.tracing == "Active" ? [1] : []
    content {
      actions   = ["xray:PutTraceSegments", "xray:PutTelemetryRecords", "xray:PutSpans", "xray:PutSpansForIndexing"]
      resources = ["*"]
    }
  }
}

data "aws_iam_policy_document" "drain" {
  source_policy_documents = [data.aws_iam_policy_document.access.json]

  statement {
    actions   = ["secretsmanager:GetSecretValue", "rds-db:connect"]
    resources = [var.database_secret_arn]
  }

  statement {
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.drain.arn}:*"]
  }

  # A drain may start further drains. The ARN is built from the name, because the function itself depends on this role.
  statement {
    actions   = ["lambda:InvokeFunction"]
    resources = ["arn:${data.aws_partition.current.partition}:lambda:${data.aws_region.current.id}:${data.aws_caller_identity.current.account_id}:function:${var.name}-drain"]
  }
}

data "aws_iam_policy_document" "operate" {
  source_policy_documents = [data.aws_iam_policy_document.access.json]

  statement {
    actions   = ["secretsmanager:GetSecretValue", "rds-db:connect"]
    resources = [local.owner_secret_arn]
  }

  statement {
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.operate.arn}:*"]
  }
}

data "aws_iam_policy_document" "schedule" {
  statement {
    actions   = ["lambda:InvokeFunction"]
    resources = [aws_lambda_function.drain.arn, aws_lambda_function.operate.arn]
  }
}

resource "aws_iam_role_policy" "drain" {
  name   = "drain"
  role   = aws_iam_role.drain.id
  policy = data.aws_iam_policy_document.drain.json
}

resource "aws_iam_role_policy" "operate" {
  name   = "operate"
  role   = aws_iam_role.operate.id
  policy = data.aws_iam_policy_document.operate.json
}

resource "aws_iam_role_policy" "schedule" {
  name   = "start"
  role   = aws_iam_role.schedule.id
  policy = data.aws_iam_policy_document.schedule.json
}

resource "aws_cloudwatch_log_group" "drain" {
  name              = "/aws/lambda/${var.name}-drain"
  retention_in_days = var.log_days
}

resource "aws_cloudwatch_log_group" "operate" {
  name              = "/aws/lambda/${var.name}-operate"
  retention_in_days = var.log_days
}

# It is not encrypted: alarms cannot publish to a topic that uses the AWS managed key.
resource "aws_sns_topic" "alarms" {
  name = "${var.name}-alarms"
}

resource "aws_sns_topic_subscription" "email" {
  count     = var.alarm_email == "" ? 0 : 1
  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

resource "aws_cloudwatch_metric_alarm" "no_drain" {
  alarm_name          = "${var.name}-no-drain"
  alarm_description   = "No drain has succeeded in the time of five, so no events are handled. First read the drain's log, then run the verb doctor."
  namespace           = "Tidegate"
  metric_name         = "Drains"
  dimensions          = { Queue = var.name }
  statistic           = "Sum"
  period              = local.every[var.drain_every].seconds
  evaluation_periods  = 5
  threshold           = 1
  comparison_operator = "LessThanThreshold"
  treat_missing_data  = "breaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

resource "aws_cloudwatch_metric_alarm" "oldest_ready" {
  alarm_name          = "${var.name}-oldest-ready"
  alarm_description   = "An event has been ready for 15 minutes, or the time of three drains if that is longer, and no drain has taken it. First run the verb doctor. Then raise TIDEGATE_MAX_DRAINS or TIDEGATE_CONCURRENCY."
  namespace           = "Tidegate"
  metric_name         = "OldestReadyMs"
  dimensions          = { Queue = var.name }
  statistic           = "Maximum"
  period              = local.every[var.drain_every].period
  evaluation_periods  = 3
  datapoints_to_alarm = 2
  threshold           = local.every[var.drain_every].oldest
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

# Events that wait for a service are not ready, and lose no attempts: neither alarm beside this one tells of them.
resource "aws_cloudwatch_metric_alarm" "services_down" {
  alarm_name          = "${var.name}-services-down"
  alarm_description   = "A service that handlers call has not answered for 15 minutes, or the time of three drains if that is longer, or refuses our credentials. Its events wait. First run the verb services. The verb doctor says when the first event gives up."
  namespace           = "Tidegate"
  metric_name         = "ServicesDown"
  dimensions          = { Queue = var.name }
  statistic           = "Maximum"
  period              = local.every[var.drain_every].period
  evaluation_periods  = 3
  datapoints_to_alarm = 3
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  alarm_name          = "${var.name}-dead-letters"
  alarm_description   = "Events ended as FAILED, and their work was not done. Dead letters that a handler rejected do not count here. First run the verb failures with --status FAILED --since 2h, then show for the reason. After the repair run replay."
  evaluation_periods  = 1
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]

  metric_query {
    id          = "dead"
    label       = "Failed dead letters"
    expression  = "FILL(failed, 0) + FILL(expired, 0) + FILL(abandoned, 0)"
    return_data = true
  }

  metric_query {
    id = "failed"
    metric {
      namespace   = "Tidegate"
      metric_name = "Failed"
      dimensions  = { Queue = var.name }
      stat        = "Sum"
      period      = 300
    }
  }

  metric_query {
    id = "expired"
    metric {
      namespace   = "Tidegate"
      metric_name = "Expired"
      dimensions  = { Queue = var.name }
      stat        = "Sum"
      period      = 300
    }
  }

  metric_query {
    id = "abandoned"
    metric {
      namespace   = "Tidegate"
      metric_name = "Abandoned"
      dimensions  = { Queue = var.name }
      stat        = "Sum"
      period      = 300
    }
  }
}

# Before the first night there is no data, and that is no news: only the loss of data is.
resource "aws_cloudwatch_metric_alarm" "no_cleanup" {
  alarm_name                = "${var.name}-no-cleanup"
  alarm_description         = "No cleanup has succeeded for 26 hours, so the database grows. First read the log of the operate function, then run the verb cleanup."
  namespace                 = "Tidegate"
  metric_name               = "Cleanups"
  dimensions                = { Queue = var.name }
  statistic                 = "Sum"
  period                    = 3600
  evaluation_periods        = 26
  threshold                 = 1
  comparison_operator       = "LessThanThreshold"
  treat_missing_data        = "missing"
  alarm_actions             = [aws_sns_topic.alarms.arn]
  ok_actions                = [aws_sns_topic.alarms.arn]
  insufficient_data_actions = [aws_sns_topic.alarms.arn]
}
