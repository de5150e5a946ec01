output "operate_function_arn" {
  value       = aws_lambda_function.operate.arn
  description = "Function of operators. Nobody may call it but those to whom your own policies allow lambda:InvokeFunction on it"
}

output "drain_role_name" {
  value       = aws_iam_role.drain.name
  description = "Role of the drain, for policies of your own"
}

output "alarm_topic_arn" {
  value       = aws_sns_topic.alarms.arn
  description = "SNS topic that receives the alarms"
}
