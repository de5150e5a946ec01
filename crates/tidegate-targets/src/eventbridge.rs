//! Owns EventBridge buses as targets: each event becomes an entry.
//! <https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutEvents.html>

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};
use tidegate::HandlerError;
use tidegate_aws::Arn;

use crate::aws::{AwsService, is_about_credentials, seen};
use crate::outcome::{Answers, Outcome};
use crate::sent::{Item, Sent, packed};
use crate::settings::EventBridge;
use crate::{Expected, Receiver};

/// The most entries of a request.
const MOST_ENTRIES: usize = 10;

/// The most bytes of an entry, as EventBridge counts them.
/// <https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-putevent-size.html>
const MOST_BYTES: usize = 1_048_576;

/// What an entry's time counts for, in bytes.
const TIME: usize = 14;

/// The most bytes of several entries in one request. A region may still have the limit of before 2026, which
/// only an entry that is larger itself can meet.
const MOST_TOGETHER: usize = 250_000;

/// Codes of entries that would be refused again.
const REJECT: [&str; 3] = [
    "MalformedDetail",
    "InvalidArgument",
    "InvalidParameterValue",
];

/// A bus.
pub(crate) struct Bus {
    arn: String,
    source: String,
}

impl Bus {
    pub(crate) fn new(at: EventBridge) -> Self {
        Self {
            arn: at.eventbridge,
            source: at.source.unwrap_or_else(|| "tidegate".to_owned()),
        }
    }

    fn service(&self) -> Result<AwsService<'_>, HandlerError> {
        let place = Arn::of(&self.arn);
        let place = place.map_err(|error| HandlerError::unavailable("settings", error))?;
        Ok(AwsService {
            name: "EVENTBRIDGE",
            place,
        })
    }

    async fn pass_on(&self, items: Vec<Item>) -> Answers {
        let (ids, body) = packed(items, "{\"Entries\":[", "]}");
        let service = self.service()?;
        let answer = service.ask("1.1", "AWSEvents.PutEvents", body).await?;
        // An entry that the answer leaves out was not sent.
        Ok((0..ids.len())
            .map(|at| entry(&answer["Entries"][at]))
            .collect())
    }
}

/// Returns what the answer about one entry means.
fn entry(entry: &Value) -> Result<Outcome, HandlerError> {
    if let Some(id) = entry["EventId"].as_str() {
        return Ok(Outcome {
            result: Some(json!({"event_id": id}).into()),
            ..Outcome::default()
        });
    }
    let code = entry["ErrorCode"].as_str().unwrap_or("not_sent").to_owned();
    let said = format!("EventBridge refused the entry: {code}");
    Err(if is_about_credentials(&code) {
        HandlerError::unavailable("credentials", said)
    } else if REJECT.contains(&&*code) {
        HandlerError::reject(code, said)
    } else {
        HandlerError::busy(code, said)
    })
}

impl Receiver for Bus {
    fn limits(&self) -> (usize, usize) {
        (MOST_ENTRIES, MOST_TOGETHER)
    }

    /// An entry's detail must be an object. Any other payload becomes its field `data`.
    fn item(&self, sent: &Sent<'_>) -> Result<Item, HandlerError> {
        let id = sent.message_id();
        let detail = if sent.payload.trim_start().starts_with('{') {
            sent.payload.to_owned()
        } else {
            format!("{{\"data\":{}}}", sent.payload)
        };
        let resource = format!("urn:uuid:{id}");
        let bytes = TIME + self.source.len() + sent.kind.len() + detail.len() + resource.len();
        if bytes > MOST_BYTES {
            let why = format!(
                "an entry of EventBridge must have at most {MOST_BYTES} bytes, got {bytes}"
            );
            return Err(HandlerError::reject("too_large", why));
        }
        let entry = json!({
            "EventBusName": self.arn, "Source": self.source, "DetailType": sent.kind, "Detail": detail,
            "Time": sent.published / 1_000_000, "Resources": [resource],
        });
        let text = entry.to_string();
        Ok(Item { id, text })
    }

    fn send(self: Arc<Self>, items: Vec<Item>) -> BoxFuture<'static, Answers> {
        async move { self.pass_on(items).await }.boxed()
    }

    fn examine(&self, _: Expected) -> BoxFuture<'_, Result<(), HandlerError>> {
        async move {
            let body = json!({"Name": self.arn}).to_string();
            let service = self.service()?;
            let looked = service.say("1.1", "AWSEvents.DescribeEventBus", body);
            seen(looked.await?).map(drop)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn each_answer_of_a_bus_has_its_verdict_entry_by_entry() {
        for (given, means) in [
            (json!({"EventId": "e"}), "done"),
            (json!(null), "busy not_sent"),
            (
                json!({"ErrorCode": "InternalFailure"}),
                "busy InternalFailure",
            ),
            (
                json!({"ErrorCode": "ThrottlingException"}),
                "busy ThrottlingException",
            ),
            (
                json!({"ErrorCode": "MalformedDetail"}),
                "reject MalformedDetail",
            ),
            (
                json!({"ErrorCode": "AccessDeniedException"}),
                "unavailable credentials",
            ),
        ] {
            assert_eq!(meant(Ok(vec![entry(&given)])), means, "{given}");
        }
    }

    #[test]
    fn the_detail_of_an_entry_is_an_object() {
        let at = EventBridge {
            eventbridge: "arn:aws:events:eu-central-1:123456789012:event-bus/shop".to_owned(),
            source: None,
        };
        let bus = Bus::new(at);
        let detail = |payload: &str| -> Value {
            let item = bus.item(&sent(payload, None)).unwrap();
            let entry: Value = serde_json::from_str(&item.text).unwrap();
            assert_eq!(
                (&entry["Source"], &entry["DetailType"]),
                (&json!("tidegate"), &json!("order_placed"))
            );
            serde_json::from_str(entry["Detail"].as_str().unwrap()).unwrap()
        };
        assert_eq!(detail("{\"a\": 1}"), json!({"a": 1}));
        assert_eq!(detail("[1]"), json!({"data": [1]}));
        assert_eq!(detail("null"), json!({"data": null}));
        let large = format!("\"{}\"", "x".repeat(1 << 20));
        assert_eq!(
            short(&bus.item(&sent(&large, None)).err().unwrap()),
            "reject too_large"
        );
    }
}
