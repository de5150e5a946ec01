# The parameters of template.yaml, with their meanings. Lists stand for what is separated by commas there.

variable "name" {
  type        = string
  default     = "tidegate"
  description = "Name of the queue. The names of all resources begin with it"
  validation {
    condition     = can(regex("^[a-zA-Z][a-zA-Z0-9-]{0,27}$", var.name))
    error_message = "name must begin with a letter, and have at most 28 letters, digits and hyphens."
  }
}

variable "package" {
  type        = string
  default     = "target/package/bootstrap.zip"
  description = "Path of the program's package, which `make package` builds"
}

variable "migrate" {
  type        = bool
  default     = true
  description = "Whether a change of the package, the settings or the secrets migrates the schema before the drain gets its new code"
}

variable "database_secret_arn" {
  type        = string
  description = "Secret with the database login of the drain: {\"username\", \"password\", \"host\", \"port\", \"dbname\"}, and \"ca_pem\" if a private CA signs its certificate. Or the ARN of a user for IAM database authentication: arn:aws:rds-db:REGION:ACCOUNT:dbuser:DATABASE/USER"
  validation {
    condition     = can(regex("^arn:[^\\s,]+:(secret:[^\\s,]+-\\w{6}|dbuser:[\\w-]+/[^\\s,]+)$", var.database_secret_arn))
    error_message = "database_secret_arn must be the whole ARN of a Secrets Manager secret, or of a database user."
  }
}

variable "owner_secret_arn" {
  type        = string
  default     = ""
  description = "Secret with the login that owns the schema: it migrates, cleans up and operates. If empty, database_secret_arn is used"
  validation {
    condition     = var.owner_secret_arn == "" || can(regex("^arn:[^\\s,]+:(secret:[^\\s,]+-\\w{6}|dbuser:[\\w-]+/[^\\s,]+)$", var.owner_secret_arn))
    error_message = "owner_secret_arn must be the whole ARN of a Secrets Manager secret, or of a database user."
  }
}

variable "secret_arns" {
  type        = list(string)
  default     = []
  description = "Further secrets that settings name, such as the token of a service or the keys of payloads"
  validation {
    condition     = alltrue([for arn in var.secret_arns : can(regex("^arn:[^\\s,]+:secret:[^\\s,]+-\\w{6}$", arn))])
    error_message = "secret_arns must be the whole ARNs of Secrets Manager secrets."
  }
}

variable "secret_kms_key_arn" {
  type        = string
  default     = ""
  description = "KMS key that encrypts the secrets. Leave it empty if they use the AWS managed key"
  validation {
    condition     = can(regex("^(arn:aws[a-z-]*:kms:[a-z0-9-]+:\\d{12}:key/[A-Za-z0-9-]+)?$", var.secret_kms_key_arn))
    error_message = "secret_kms_key_arn must be the ARN of a KMS key, or nothing."
  }
}

variable "subnet_ids" {
  type        = list(string)
  default     = []
  description = "Subnets for the functions. Needed if the database is not reachable from the internet"
}

variable "security_group_ids" {
  type        = list(string)
  default     = []
  description = "Security groups for the functions. Required with subnet_ids"
}

variable "architecture" {
  type        = string
  default     = "arm64"
  description = "Processor architecture that the package was built for"
  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "architecture must be arm64 or x86_64."
  }
}

variable "drain_every" {
  type        = string
  default     = "1m"
  description = "How often the schedule starts a drain. It also sets the times of the alarms no-drain and oldest-ready"
  validation {
    condition     = contains(["1m", "5m", "15m", "1h", "idle"], var.drain_every)
    error_message = "drain_every must be 1m, 5m, 15m, 1h or idle."
  }
}

variable "ca_file" {
  type        = string
  default     = "/var/task/certs/ca.pem"
  description = "File of the package with the certificate authorities to trust"
}

variable "drain_seconds" {
  type        = number
  default     = 300
  description = "Timeout of the drain. A drain ends by itself up to three seconds earlier"
  validation {
    condition     = var.drain_seconds >= 10 && var.drain_seconds <= 900
    error_message = "drain_seconds must be from 10 to 900."
  }
}

variable "reserved_concurrency" {
  type        = number
  default     = 0
  description = "Concurrent executions reserved for the drain, which are also its limit: at least twice TIDEGATE_MAX_DRAINS. With 0 none are reserved"
  validation {
    condition     = var.reserved_concurrency >= 0 && var.reserved_concurrency <= 1000
    error_message = "reserved_concurrency must be from 0 to 1000."
  }
}

variable "tracing" {
  type        = string
  default     = "PassThrough"
  description = "Active sends traces to X-Ray"
  validation {
    condition     = contains(["Active", "PassThrough"], var.tracing)
    error_message = "tracing must be Active or PassThrough."
  }
}

variable "log_days" {
  type        = number
  default     = 30
  description = "Days to keep the logs"
  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_days)
    error_message = "log_days must be a number of days that CloudWatch Logs offers, such as 30 or 365."
  }
}

variable "alarm_email" {
  type        = string
  default     = ""
  description = "Email address for alarms. Its owner must confirm by the link in the first message"
}

variable "permissions_boundary_arn" {
  type        = string
  default     = ""
  description = "Permissions boundary of every role"
  validation {
    condition     = can(regex("^(arn:aws[a-z-]*:iam::[0-9]{12}:policy/\\S+)?$", var.permissions_boundary_arn))
    error_message = "permissions_boundary_arn must be the ARN of an IAM policy, or nothing."
  }
}

variable "settings" {
  type        = map(string)
  default     = {}
  description = "Settings of the program. Whoever may describe the functions or read the state can read them: they name secrets, and never contain one"
  validation {
    condition     = alltrue([for name, value in var.settings : can(regex("^[A-Z][A-Z0-9_]*=\\S[^\\n]*$", "${name}=${value}"))])
    error_message = "settings must have names such as TIDEGATE_MAX_DRAINS, and values of one line."
  }
}
