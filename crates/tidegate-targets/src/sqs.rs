//! Owns SQS queues as targets: each event becomes a message.
//! <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html>

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tidegate::HandlerError;
use tidegate_aws::Arn;
use tidegate_core::event::hex;

use crate::aws::{AwsService, is_about_credentials, seen};
use crate::outcome::{Answers, Outcome};
use crate::sent::{Item, Sent, packed};
use crate::settings::Sqs;
use crate::{Expected, Receiver};

/// The most messages of a request.
const MOST_MESSAGES: usize = 10;

/// The most bytes of a message with its attributes, and of all messages of a request.
const MOST_BYTES: usize = 1_048_576;

/// Codes of entries that would be refused again.
const REJECT: [&str; 4] = [
    "InvalidMessageContents",
    "InvalidParameterValue",
    "InvalidAttributeValue",
    "InvalidParameterCombination",
];

/// A queue.
pub(crate) struct Queue {
    url: String,
    is_fifo: bool,
}

impl Queue {
    pub(crate) fn new(at: Sqs) -> Self {
        Self {
            is_fifo: at.sqs.strip_suffix(".fifo").is_some(),
            url: at.sqs,
        }
    }

    /// Returns the queue's region, from a host such as `sqs.eu-central-1.amazonaws.com`. One of a VPC has
    /// more in front.
    fn place(&self) -> Arn<'_> {
        let host = self.url.split('/').nth(2).unwrap_or_default();
        let mut parts = host.split('.').skip_while(|part| *part != "sqs");
        let region = parts.nth(1).unwrap_or_default();
        let partition = if host.strip_suffix(".cn").is_some() {
            "aws-cn"
        } else {
            "aws"
        };
        Arn::new(partition, "sqs", region)
    }

    fn service(&self) -> AwsService<'_> {
        AwsService {
            name: "SQS",
            place: self.place(),
        }
    }

    async fn pass_on(&self, items: Vec<Item>) -> Answers {
        let before = format!("{{\"QueueUrl\":{},\"Entries\":[", json!(self.url));
        let (ids, body) = packed(items, &before, "]}");
        let answer = self
            .service()
            .ask("1.0", "AmazonSQS.SendMessageBatch", body)
            .await?;
        Ok(read(&answer, &ids))
    }
}

/// Reads the answer about each message. One that the answer does not name was not sent.
fn read(answer: &Value, ids: &[String]) -> Vec<Result<Outcome, HandlerError>> {
    let found = |field: &str, id: &String| {
        let mut entries = answer[field].as_array()?.iter();
        entries.find(|entry| entry["Id"] == **id)
    };
    let of = |id| match (found("Successful", id), found("Failed", id)) {
        (Some(entry), _) => Ok(Outcome {
            result: Some(json!({"message_id": entry["MessageId"]}).into()),
            ..Outcome::default()
        }),
        (None, Some(entry)) => Err(refused(entry)),
        (None, None) => {
            let why = "the answer does not name the message";
            Err(HandlerError::busy("not_sent", why))
        }
    };
    ids.iter().map(of).collect()
}

/// Returns what the refusal of one entry means.
fn refused(entry: &Value) -> HandlerError {
    let code = entry["Code"].as_str().unwrap_or("Failed");
    let code = code.rsplit('.').next().unwrap_or(code).to_owned();
    let said = format!("SQS refused the message: {code}");
    match entry["SenderFault"].as_bool() {
        _ if is_about_credentials(&code) => HandlerError::unavailable("credentials", said),
        Some(true) if REJECT.contains(&&*code) => HandlerError::reject(code, said),
        Some(true) => HandlerError::retry(code, said).answered(),
        _ => HandlerError::busy(code, said),
    }
}

impl Receiver for Queue {
    fn limits(&self) -> (usize, usize) {
        (MOST_MESSAGES, MOST_BYTES)
    }

    fn item(&self, sent: &Sent<'_>) -> Result<Item, HandlerError> {
        let id = sent.message_id();
        let body = allowed(sent.payload);
        let attributes: Vec<_> = sent
            .attributes()
            .into_iter()
            .filter(|(_, value)| is_allowed(value))
            .collect();
        let bytes = body.len()
            + attributes
                .iter()
                .map(|(name, value)| name.len() + "String".len() + value.len())
                .sum::<usize>();
        if bytes > MOST_BYTES {
            let why = format!(
                "a message of SQS must have at most {MOST_BYTES} bytes with its attributes, got {bytes}"
            );
            return Err(HandlerError::reject("too_large", why));
        }
        let attributes = attributes.into_iter().map(|(name, value)| {
            (
                name.to_owned(),
                json!({"DataType": "String", "StringValue": value}),
            )
        });
        let mut entry = json!({
            "Id": id, "MessageBody": body, "MessageAttributes": attributes.collect::<Map<_, _>>(),
        });
        if self.is_fifo {
            entry["MessageGroupId"] = json!(group_id(sent.group.unwrap_or(&id)));
            entry["MessageDeduplicationId"] = json!(id);
        }
        let text = entry.to_string();
        Ok(Item { id, text })
    }

    fn send(self: Arc<Self>, items: Vec<Item>) -> BoxFuture<'static, Answers> {
        async move { self.pass_on(items).await }.boxed()
    }

    fn examine(&self, _: Expected) -> BoxFuture<'_, Result<(), HandlerError>> {
        async move {
            let body = json!({"QueueUrl": self.url, "AttributeNames": ["QueueArn"]}).to_string();
            let service = self.service();
            let looked = service.say("1.0", "AmazonSQS.GetQueueAttributes", body);
            seen(looked.await?).map(drop)
        }
        .boxed()
    }
}

/// Returns a group as SQS allows it: 1 to 128 letters, digits and punctuation.
fn group_id(group: &str) -> String {
    let fits = group.len() <= 128 && group.bytes().all(|byte| byte.is_ascii_graphic());
    if fits {
        return group.to_owned();
    }
    format!("sha256-{}", hex(&Sha256::digest(group)))
}

/// Whether SQS takes every character of a text.
fn is_allowed(text: &str) -> bool {
    text.chars()
        .all(|c| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..))
}

/// Returns a JSON text in which the characters that SQS does not take are written as escapes.
fn allowed(json: &str) -> String {
    json.replace('\u{fffe}', "\\ufffe")
        .replace('\u{ffff}', "\\uffff")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn each_answer_of_a_queue_has_its_verdict_message_by_message() {
        let failed = |fault: bool, code: &str| json!({"Failed": [{"Id": "id-0", "SenderFault": fault, "Code": code}]});
        for (given, means) in [
            (
                json!({"Successful": [{"Id": "id-0", "MessageId": "m"}]}),
                "done",
            ),
            (
                json!({"Successful": [{"Id": "id-0", "MessageId": "m"}], "Failed": []}),
                "done",
            ),
            (json!({"Successful": []}), "busy not_sent"),
            (json!({}), "busy not_sent"),
            (
                failed(true, "InvalidMessageContents"),
                "reject InvalidMessageContents",
            ),
            (
                failed(true, "AWS.SimpleQueueService.InvalidParameterValue"),
                "reject InvalidParameterValue",
            ),
            (failed(true, "KmsAccessDenied"), "unavailable credentials"),
            (failed(true, "AccessDenied"), "unavailable credentials"),
            (failed(true, "SomethingElse"), "retry SomethingElse"),
            (failed(false, "InternalError"), "busy InternalError"),
        ] {
            assert_eq!(meant(Ok(read(&given, &ids(1)))), means, "{given}");
        }
        let half = json!({"Successful": [{"Id": "id-1"}], "Failed": [{"Id": "id-0", "SenderFault": false, "Code": "E"}]});
        assert_eq!(
            meant(Ok(read(&half, &ids(3)))),
            "busy E, done, busy not_sent"
        );
    }

    #[test]
    fn a_group_is_a_group_of_sqs() {
        let long = "x".repeat(129);
        for (group, fits) in [
            ("order-7", true),
            ("Größe", false),
            ("two words", false),
            (&*long, false),
        ] {
            let given = group_id(group);
            assert_eq!(given == group, fits, "{group}");
            assert!(given.len() <= 128 && given.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }

    #[test]
    fn a_message_has_what_sqs_takes_and_one_that_is_too_large_is_refused_with_its_size() {
        let queue = |url: &str| {
            Queue::new(Sqs {
                sqs: url.to_owned(),
            })
        };
        let fifo = queue("https://sqs.eu-central-1.amazonaws.com/123456789012/warehouse.fifo");
        let item = fifo.item(&sent("\"a\u{fffe}b\"", Some("g"))).unwrap();
        let entry: Value = serde_json::from_str(&item.text).unwrap();
        assert_eq!(entry["MessageBody"], "\"a\\ufffeb\"");
        assert_eq!(
            (&entry["MessageGroupId"], &entry["MessageDeduplicationId"]),
            (&json!("g"), &json!(item.id))
        );
        let odd = Sent {
            correlation_id: Some("a\u{1}b"),
            ..sent("1", None)
        };
        let entry: Value = serde_json::from_str(&fifo.item(&odd).unwrap().text).unwrap();
        assert!(entry["MessageAttributes"].get("correlation_id").is_none());
        assert_eq!(entry["MessageGroupId"], entry["Id"]);
        let standard = queue("https://sqs.eu-central-1.amazonaws.com/123456789012/warehouse");
        let entry: Value = serde_json::from_str(&standard.item(&odd).unwrap().text).unwrap();
        assert!(entry.get("MessageGroupId").is_none());
        let large = "1".repeat(1 << 20);
        let error = standard.item(&sent(&large, None)).err().unwrap();
        assert_eq!(short(&error), "reject too_large");
        assert!(
            error
                .to_string()
                .contains("must have at most 1048576 bytes with its attributes, got 1048"),
            "{error}"
        );
    }
}
