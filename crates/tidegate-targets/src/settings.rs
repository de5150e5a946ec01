//! Owns how a target is addressed: the same fields in `tidegate.toml`, in the database and in Rust.

use serde::{Deserialize, Serialize};

/// Where the events of a target go. The first field of each kind names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Address {
    /// A Lambda function.
    Lambda(Lambda),
    /// An HTTPS URL.
    Https(Https),
    /// A queue of SQS.
    Sqs(Sqs),
    /// A bus of EventBridge.
    EventBridge(EventBridge),
}

/// A Lambda function, which receives events as an SQS queue would deliver them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lambda {
    /// The ARN of the function, of an alias or of a version.
    pub lambda: String,
    /// The ARN that events name as their queue, if a handler reads it. Otherwise one made from the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_arn: Option<String>,
    /// Whether the function stops at the first failure of a batch and reports all later events too, as FIFO
    /// processors do. Those then go back without an attempt.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stops_at_first_failure: bool,
    /// Leaves out the message of an exception of the function, which may quote personal data.
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_error_text: bool,
}

/// An HTTPS URL, which receives signed CloudEvents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Https {
    /// The URL: `https://`, or `http://` to this machine.
    pub https: String,
    /// The secret of Secrets Manager (its ARN or name) with the key that signs requests, `whsec_…`; or
    /// `file:PATH`. Two keys, separated by a space or a line's end, sign both while one replaces the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The secret, or `file:PATH`, with a token that is sent as `Authorization: Bearer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer: Option<String>,
    /// Sends the content type `application/cloudevents+json`, or `…-batch+json`, instead of
    /// `application/json`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cloudevents: bool,
    /// The answers that reject an event for good, instead of 400, 413, 415 and 422.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject: Option<Vec<u16>>,
    /// The `source` of the CloudEvents; otherwise `/tidegate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A queue of SQS, standard or FIFO.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sqs {
    /// The URL of the queue. That of a FIFO queue ends in `.fifo`.
    pub sqs: String,
}

/// A bus of EventBridge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventBridge {
    /// The ARN of the bus.
    pub eventbridge: String,
    /// The `source` of the entries; otherwise `tidegate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the form that serde calls"
)]
fn is_false(value: &bool) -> bool {
    !value
}

impl Address {
    /// Checks the address. The error begins with the field's name.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Lambda(at) => arn("lambda", &at.lambda, "lambda", ":function:"),
            Self::EventBridge(at) => {
                arn("eventbridge", &at.eventbridge, "events", ":event-bus/")?;
                source(at.source.as_deref())
            }
            Self::Sqs(_) => Ok(()),
            Self::Https(at) => source(at.source.as_deref()),
        }
    }
}

fn arn(field: &str, got: &str, service: &str, resource: &str) -> Result<(), String> {
    let parts: Vec<&str> = got.splitn(6, ':').collect();
    let fits = matches!(&parts[..], ["arn", partition, of, region, account, _]
        if *of == service && partition.starts_with("aws") && !region.is_empty()
            && account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit()));
    if fits && got.contains(resource) && !got.ends_with(resource) {
        return Ok(());
    }
    let example = format!("arn:aws:{service}:eu-central-1:123456789012{resource}name");
    Err(format!(
        "{field}: must be an ARN such as {example}, got {got:?}"
    ))
}

fn source(got: Option<&str>) -> Result<(), String> {
    match got {
        Some(text) if text.is_empty() || text.len() > 256 => Err(format!(
            "source: must have 1 to 256 characters, got {}",
            text.len()
        )),
        _ => Ok(()),
    }
}
