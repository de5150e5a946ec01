# A queue in Postgres whose handlers are Lambda functions, URLs, queues and buses.

variable "database_secret_arn" { type = string }
variable "target_policy" { type = string } # What `tidegate-relay permissions tidegate.toml` prints.

resource "aws_iam_role" "drain" {
  name_prefix         = "tidegate-relay-"
  managed_policy_arns = ["arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"]
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = ["lambda.amazonaws.com", "scheduler.amazonaws.com"] } }]
  })
}

resource "aws_iam_role_policy" "targets" {
  role   = aws_iam_role.drain.id
  policy = var.target_policy
}

resource "aws_iam_role_policy" "drain" {
  role = aws_iam_role.drain.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = "secretsmanager:GetSecretValue", Resource = var.database_secret_arn },
      { Effect = "Allow", Action = "lambda:InvokeFunction", Resource = aws_lambda_function.drain.arn },
    ]
  })
}

resource "aws_lambda_function" "drain" {
  function_name = "tidegate-relay"
  filename      = "tidegate-relay-arm64.zip" # The release, unchanged.
  runtime       = "provided.al2023"
  handler       = "bootstrap"
  architectures = ["arm64"]
  memory_size   = 256
  timeout       = 60
  role          = aws_iam_role.drain.arn
  environment {
    variables = {
      DATABASE_SECRET_ID   = var.database_secret_arn
      TIDEGATE_ACTIONS     = "drain,cleanup"
      TIDEGATE_CONCURRENCY = "32"
      TIDEGATE_METRICS     = "emf"
    }
  }
}

resource "aws_scheduler_schedule" "tick" {
  for_each            = { drain = "rate(1 minute)", cleanup = "rate(1 hour)" }
  name_prefix         = "tidegate-relay-${each.key}-"
  schedule_expression = each.value
  flexible_time_window { mode = "OFF" }
  target {
    arn      = aws_lambda_function.drain.arn
    role_arn = aws_iam_role.drain.arn
    input    = jsonencode({ action = each.key })
    retry_policy { maximum_retry_attempts = 0 }
  }
}
