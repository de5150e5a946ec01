//! Owns how a target is addressed: the same fields in `tidegate.toml`, in the database and in Rust.

use std::net::IpAddr;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use tidegate::config::is_loopback;

use crate::net::is_of_the_link;

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
    /// A bus of `EventBridge`.
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

/// An HTTPS URL, which receives signed `CloudEvents`.
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
    /// The kinds of events that its answers may publish: none, unless they are named here. They are published
    /// in the group of their event or in none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follow_ups: Vec<String>,
    /// The `source` of the `CloudEvents`; otherwise `/tidegate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether events may share a request. Then every body is an array, also of one event. `tidegate-relay`
    /// sets it for a target with a batch.
    #[serde(skip)]
    pub batches: bool,
}

/// A queue of SQS, standard or FIFO.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sqs {
    /// The URL of the queue. That of a FIFO queue ends in `.fifo`.
    pub sqs: String,
}

/// A bus of `EventBridge`.
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
    /// Checks the address.
    ///
    /// # Errors
    /// What is wrong, for people: a line for each fault, which begins with the field's name.
    pub fn check(&self) -> Result<(), String> {
        let faults = match self {
            Self::Lambda(at) => [
                arn("lambda", &at.lambda, "lambda", "function:"),
                at.source_arn
                    .as_deref()
                    .and_then(|at| arn("source_arn", at, "sqs", "")),
                None,
            ],
            Self::EventBridge(at) => [
                arn("eventbridge", &at.eventbridge, "events", "event-bus/"),
                source(at.source.as_deref()),
                at.source
                    .as_deref()
                    .filter(|text| text.starts_with("aws."))
                    .map(|got| format!("source: must not begin with aws., got {got:?}")),
            ],
            Self::Sqs(at) => [queue(&at.sqs), None, None],
            Self::Https(at) => return at.check(),
        };
        all(faults)
    }
}

impl Address {
    /// Returns the host of an HTTPS URL; `None` for another kind of target.
    pub fn https_host(&self) -> Option<String> {
        match self {
            Self::Https(at) => Url::parse(&at.https).ok()?.host_str().map(str::to_owned),
            _ => None,
        }
    }

    /// Returns what the doctor needs on AWS to look at the target, and calls do not: the action, and the ARN
    /// of each resource. Without it, the doctor does not compare what it cannot see.
    pub fn looks(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Lambda(at) => vec![
                ("lambda:GetFunctionConfiguration", at.lambda.clone()),
                ("lambda:GetFunctionConcurrency", at.unqualified()),
            ],
            Self::EventBridge(at) => vec![("events:DescribeEventBus", at.eventbridge.clone())],
            Self::Sqs(at) => {
                let arn = queue_arn(&at.sqs).into_iter();
                arn.map(|arn| ("sqs:GetQueueAttributes", arn)).collect()
            }
            Self::Https(_) => Vec::new(),
        }
    }

    /// Returns what calls need on AWS: the action, and the ARN of each resource.
    pub fn permissions(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Lambda(at) => vec![("lambda:InvokeFunction", at.lambda.clone())],
            Self::EventBridge(at) => vec![("events:PutEvents", at.eventbridge.clone())],
            Self::Sqs(at) => queue_arn(&at.sqs)
                .map(|arn| ("sqs:SendMessage", arn))
                .into_iter()
                .collect(),
            Self::Https(at) => {
                let secrets = at.secret.iter().chain(&at.bearer);
                let of_aws = secrets.filter(|place| !place.starts_with("file:"));
                let arn = |place: &String| match place.strip_prefix("arn:") {
                    Some(_) => place.clone(),
                    // Secrets Manager adds a hyphen and six characters to the name.
                    None => format!("arn:aws:secretsmanager:*:*:secret:{place}-??????"),
                };
                of_aws
                    .map(|place| ("secretsmanager:GetSecretValue", arn(place)))
                    .collect()
            }
        }
    }
}

impl Lambda {
    /// Returns the ARN of the function without the name of an alias or a version.
    pub(crate) fn unqualified(&self) -> String {
        let parts: Vec<&str> = self.lambda.split(':').take(7).collect();
        parts.join(":")
    }
}

/// Returns the ARN of the queue with this URL, which was checked.
fn queue_arn(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let (host, mut path) = (url.host_str()?, url.path().split('/').skip(1));
    let mut labels = host.split('.').skip_while(|label| *label != "sqs");
    let region = labels.nth(1).unwrap_or("*");
    let (account, name) = (path.next()?, path.next()?);
    Some(format!(
        "arn:{}:sqs:{region}:{account}:{name}",
        partition_of(region)
    ))
}

impl Https {
    fn check(&self) -> Result<(), String> {
        let codes = self.reject.iter().flatten();
        let wrong = codes.copied().find(|code| !(400..500).contains(code));
        all([
            url("https", "an https:// URL", &self.https).err(),
            secret("secret", self.secret.as_deref()),
            secret("bearer", self.bearer.as_deref()),
            wrong.map(|got| format!("reject: must be status codes of 400 to 499, got {got}")),
            source(self.source.as_deref()),
        ])
    }
}

fn all(faults: impl IntoIterator<Item = Option<String>>) -> Result<(), String> {
    let faults: Vec<String> = faults.into_iter().flatten().collect();
    if faults.is_empty() {
        return Ok(());
    }
    Err(faults.join("\n"))
}

/// The characters of names in ARNs.
fn is_name(text: &str, also: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c) || also.contains(c);
    !text.is_empty() && text.len() <= 256 && text.chars().all(fits)
}

/// Returns what is wrong with an ARN of this service whose resource begins with this.
fn arn(field: &str, got: &str, service: &str, resource: &str) -> Option<String> {
    let parts: Vec<&str> = got.splitn(6, ':').collect();
    let fits = match parts[..] {
        ["arn", partition, of, region, account, name] => {
            let is_account = account.len() == 12 && account.bytes().all(|c| c.is_ascii_digit());
            let is_named = name.strip_prefix(resource).is_some_and(|name| {
                name.split(':').all(|part| is_name(part, "$./+=@")) && name.split(':').count() <= 2
            });
            of == service
                && is_region(region)
                && partition == partition_of(region)
                && is_account
                && is_named
        }
        _ => false,
    };
    let example = format!("arn:aws:{service}:eu-central-1:123456789012:{resource}name");
    (!fits).then(|| format!("{field}: must be an ARN such as {example}, got {got:?}"))
}

fn is_region(region: &str) -> bool {
    region.contains('-')
        && region
            .bytes()
            .all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn partition_of(region: &str) -> &'static str {
    match region.split_once('-') {
        Some(("cn", _)) => "aws-cn",
        Some(("us", rest)) if rest.starts_with("gov-") => "aws-us-gov",
        Some(("us", rest)) if rest.starts_with("iso-") => "aws-iso",
        Some(("us", rest)) if rest.starts_with("isob-") => "aws-iso-b",
        Some(("eusc", _)) => "aws-eusc",
        _ => "aws",
    }
}

/// Reads an `https://` URL, or an `http://` one of this machine.
fn url(field: &str, must: &str, got: &str) -> Result<Url, String> {
    let refuse = |why: &str| Err(format!("{field}: must be {must}, got {got:?}{why}"));
    let Ok(url) = Url::parse(got) else {
        return refuse("");
    };
    if !url.username().is_empty() || url.password().is_some() {
        // Not quoted: it is a secret.
        return Err(format!("{field}: must be {must} without user and password"));
    }
    let host = url.host_str().unwrap_or_default();
    let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    if url.scheme() != "https" && !(url.scheme() == "http" && is_loopback(host)) {
        return refuse("");
    }
    if ip.is_some_and(is_of_the_link) {
        return refuse(", a link-local address");
    }
    if url.fragment().is_some() {
        return refuse(", with a fragment");
    }
    Ok(url)
}

/// Returns what is wrong with the URL of a queue.
fn queue(got: &str) -> Option<String> {
    let must =
        "the URL of a queue, such as https://sqs.eu-central-1.amazonaws.com/123456789012/name";
    let url = match url("sqs", must, got) {
        Ok(url) => url,
        Err(why) => return Some(why),
    };
    let host = url.host_str().unwrap_or_default();
    let is_aws = host.split('.').any(|part| part == "sqs")
        && (host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn"));
    let path: Vec<&str> = url.path().split('/').collect();
    let is_queue = matches!(path[..], ["", account, name]
        if account.len() == 12 && account.bytes().all(|c| c.is_ascii_digit())
            && name.len() <= 80 && is_name(name.strip_suffix(".fifo").unwrap_or(name), ""));
    let fits = is_queue && url.query().is_none() && (is_aws || url.scheme() == "http");
    (!fits).then(|| format!("sqs: must be {must}, got {got:?}"))
}

/// Returns what is wrong with the place of a secret.
fn secret(field: &str, got: Option<&str>) -> Option<String> {
    let got = got?;
    let must = "the ARN or name of a secret of Secrets Manager, or file:PATH";
    if got.starts_with("whsec_") {
        // Not quoted: it is a secret.
        return Some(format!("{field}: must be {must}, not the secret itself"));
    }
    let fits = match got.split_once(':') {
        Some(("file", path)) => path.starts_with('/'),
        Some(("arn", _)) => arn(field, got, "secretsmanager", "secret:").is_none(),
        Some(_) => false,
        None => is_name(got, "/+=.@"),
    };
    (!fits).then(|| format!("{field}: must be {must}, got {got:?}"))
}

fn source(got: Option<&str>) -> Option<String> {
    let got = got?;
    let fits = !got.is_empty() && got.chars().count() <= 256 && !got.chars().any(char::is_control);
    (!fits).then(|| {
        format!(
            "source: must have 1 to 256 characters, got {}",
            got.chars().count()
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_address_is_read_from_its_fields_alone() {
        let read = |fields: Value| serde_json::from_value::<Address>(fields).unwrap();
        assert!(matches!(read(json!({"lambda": "arn"})), Address::Lambda(_)));
        assert!(matches!(
            read(json!({"https": "https://a"})),
            Address::Https(_)
        ));
        assert!(matches!(read(json!({"sqs": "https://a"})), Address::Sqs(_)));
        assert!(matches!(
            read(json!({"eventbridge": "arn"})),
            Address::EventBridge(_)
        ));
        let wrong = Lambda {
            lambda: "ship".to_owned(),
            ..Lambda::default()
        };
        let error = crate::Target::new("ship", Address::Lambda(wrong))
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("ship.lambda: must be an ARN such as")
                && error.ends_with("got \"ship\""),
            "{error}"
        );
    }
}
