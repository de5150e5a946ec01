//! Owns the formats in which AWS services deliver messages. It recognizes an envelope and extracts its
//! messages. It does not know what a message means or what is done with it.
//!
//! The id of a message is always its own, never that of its delivery, so a message that is delivered twice is
//! recognized.

use std::collections::BTreeMap;

use aws_lambda_events::eventbridge::EventBridgeEvent;
use aws_lambda_events::sns::{SnsEvent, SnsRecord};
use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tidegate::intake::Message;
use tidegate::{Error, Json};
use tidegate_admin::is_scheduled_event;

/// A service that delivers messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bearer {
    Sqs,
    Sns,
    EventBridge,
}

/// A delivered message.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub message: Message,
    /// The service's own id of the message, by which it is told what to redeliver.
    pub item: String,
    /// The group of a FIFO queue, whose messages stay in order: if one is to be redelivered, those behind it
    /// wait for it.
    pub line: Option<String>,
}

impl Bearer {
    /// Returns the service that sends envelopes like this one, or `None` if the payload requests an action or
    /// is the tick of a schedule.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is the envelope of any other service.
    pub(crate) fn of(payload: &Value) -> Result<Option<Self>, Error> {
        if payload.get("action").is_some() || is_scheduled_event(payload) {
            return Ok(None);
        }
        if payload.get("detail-type").is_some_and(Value::is_string) {
            return Ok(Some(Self::EventBridge));
        }
        let Some(records) = payload["Records"].as_array() else {
            return Ok(None);
        };
        let first = records.first().unwrap_or(&Value::Null);
        let source = first
            .get("eventSource")
            .or_else(|| first.get("EventSource"));
        match source.and_then(Value::as_str) {
            Some("aws:sqs") => Ok(Some(Self::Sqs)),
            Some("aws:sns") => Ok(Some(Self::Sns)),
            other => {
                let got = other.unwrap_or("nothing");
                let text = format!("Records[0].eventSource: must be aws:sqs or aws:sns, got {got}");
                Err(Error::Invalid(text))
            }
        }
    }

    /// Extracts the messages of an envelope.
    ///
    /// # Errors
    /// [`Error::Invalid`] names a required field that this envelope lacks.
    pub(crate) fn open(self, payload: &Json) -> Result<Vec<Delivery>, Error> {
        match self {
            Self::Sqs => numbered(decoded::<SqsEvent>(payload)?.records, of_sqs),
            Self::Sns => numbered(decoded::<SnsEvent>(payload)?.records, of_sns),
            Self::EventBridge => Ok(vec![of_eventbridge(decoded(payload)?)?]),
        }
    }
}

/// Puts the messages that a pipe of `EventBridge` passes on, a bare array of records, into the envelope in
/// which SQS itself delivers them. Anything else stays as it is.
pub(crate) fn enveloped(payload: Json) -> Json {
    let records = payload.read::<Vec<BTreeMap<String, Json>>>();
    let is_record = |record: &BTreeMap<String, Json>| record.contains_key("eventSource");
    match records {
        Ok(records) if records.first().is_some_and(is_record) => {
            let envelope = BTreeMap::from([("Records", &payload)]);
            Json::of(&envelope).unwrap_or(payload)
        }
        _ => payload,
    }
}

/// Decodes an envelope. The error does not have the decoder's text, which may quote a message.
fn decoded<T: DeserializeOwned>(payload: &Json) -> Result<T, Error> {
    payload.read().map_err(|_| {
        let text = "invocation: must be an envelope as AWS writes it, got one with other fields";
        Error::Invalid(text.to_owned())
    })
}

fn numbered<R>(
    records: Vec<R>,
    open: impl Fn(R) -> Result<Delivery, Missing>,
) -> Result<Vec<Delivery>, Error> {
    let opened = records.into_iter().enumerate().map(|(number, record)| {
        open(record).map_err(|Missing(field)| missing(&format!("Records[{number}].{field}")))
    });
    opened.collect()
}

/// A missing field without which a message cannot be identified.
struct Missing(&'static str);

fn missing(field: &str) -> Error {
    Error::Invalid(format!("{field}: must be text, got nothing"))
}

fn of_sqs(record: SqsMessage) -> Result<Delivery, Missing> {
    let id = filled(record.message_id, "messageId")?;
    let source = filled(record.event_source_arn, "eventSourceARN")?;
    // A FIFO queue guarantees an order within this group. For any other queue, a group is a tenant with a
    // fair share of the deliveries.
    let group = record.attributes.get("MessageGroupId").cloned();
    let line = group.filter(|_| source.strip_suffix(".fifo").is_some());
    let body = record.body.unwrap_or_default();
    let Some(inner) = forwarded(&body) else {
        return Ok(delivery(source, id.clone(), body.into_bytes(), id, line));
    };
    Ok(delivery(inner.source, inner.id, inner.body, id, line))
}

/// Unwraps a message that a topic or a bus has forwarded to a queue. The id is that of the topic or bus. It
/// is the same in two queues, and if the topic sends a message twice.
fn forwarded(body: &str) -> Option<Message> {
    let fields: BTreeMap<String, Json> = serde_json::from_str(body).ok()?;
    let text = |name: &str| {
        let text: Option<String> = fields.get(name)?.read().ok();
        text.filter(|text| !text.is_empty())
    };
    if text("Type").as_deref() == Some("Notification") {
        return Some(Message {
            source: text("TopicArn")?,
            id: text("MessageId")?,
            body: text("Message")?.into_bytes(),
        });
    }
    text("detail-type")?;
    Some(Message {
        source: format!("eventbridge:{}", text("source")?),
        id: text("id")?,
        body: fields.get("detail")?.get().as_bytes().to_vec(),
    })
}

fn of_sns(record: SnsRecord) -> Result<Delivery, Missing> {
    let id = filled(Some(record.sns.message_id), "Sns.MessageId")?;
    let source = filled(Some(record.sns.topic_arn), "Sns.TopicArn")?;
    let body = record.sns.message.into_bytes();
    Ok(delivery(source, id.clone(), body, id, None))
}

fn of_eventbridge(event: EventBridgeEvent<Json>) -> Result<Delivery, Error> {
    let id = filled(event.id, "id").map_err(|Missing(field)| missing(field))?;
    let source = format!("eventbridge:{}", event.source);
    let body = event.detail.get().as_bytes().to_vec();
    Ok(delivery(source, id.clone(), body, id, None))
}

fn delivery(
    source: String,
    id: String,
    body: Vec<u8>,
    item: String,
    line: Option<String>,
) -> Delivery {
    let message = Message { source, id, body };
    Delivery {
        message,
        item,
        line,
    }
}

fn filled(text: Option<String>, field: &'static str) -> Result<String, Missing> {
    text.filter(|text| !text.is_empty()).ok_or(Missing(field))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn opened(payload: Value) -> Vec<Delivery> {
        let bearer = Bearer::of(&payload).unwrap().expect("an envelope");
        bearer.open(&payload.into()).unwrap()
    }

    fn refused(payload: Value) -> String {
        let bearer = match Bearer::of(&payload) {
            Ok(bearer) => bearer.expect("an envelope"),
            Err(error) => return error.to_string(),
        };
        bearer.open(&payload.into()).unwrap_err().to_string()
    }

    #[test]
    fn a_request_and_a_tick_are_no_envelopes() {
        for payload in [
            json!({"action": "drain"}),
            json!({"action": "drain", "Records": []}),
            json!({"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}),
            json!({}),
            json!([]),
            json!("Records"),
            Value::Null,
        ] {
            assert_eq!(Bearer::of(&payload).unwrap(), None, "{payload}");
        }
    }

    #[test]
    fn an_envelope_that_nothing_can_be_made_of_is_refused_by_the_field() {
        for (payload, says) in [
            (json!({"Records": []}), "Records[0].eventSource"),
            (json!({"Records": [{"eventSource": "aws:s3"}]}), "aws:s3"),
            (
                json!({"Records": [{"eventSource": "aws:kinesis"}]}),
                "aws:kinesis",
            ),
            (
                json!({"Records": [{"eventSource": "aws:sqs", "body": "canary"}]}),
                "Records[0].messageId",
            ),
            (
                json!({"Records": [{"eventSource": "aws:sqs", "messageId": "1"}]}),
                "Records[0].eventSourceARN",
            ),
            (
                json!({"Records": [{"eventSource": "aws:sqs", "messageId": ["canary"]}]}),
                "envelope",
            ),
            (
                json!({"detail-type": "x", "source": "shop", "detail": {}}),
                "id: must be",
            ),
        ] {
            let error = refused(payload);
            assert!(error.contains(says), "{says}: {error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn what_a_topic_or_a_bus_sends_to_a_queue_is_taken_out_of_its_wrapping() {
        let record = |body: &str| json!({"Records": [{"eventSource": "aws:sqs", "eventSourceARN": "arn:queue", "messageId": "m", "body": body}]});
        let topic = json!({"Type": "Notification", "TopicArn": "arn:topic", "MessageId": "n", "Message": "{\"a\":1}"});
        let bus =
            json!({"detail-type": "Ordered", "source": "shop", "id": "e", "detail": {"a": 1}});
        let half = json!({"Type": "Notification", "Message": "x"}).to_string();
        for (body, source, id, says) in [
            (topic.to_string(), "arn:topic", "n", r#"{"a":1}"#),
            (bus.to_string(), "eventbridge:shop", "e", r#"{"a":1}"#),
            (r#"{"a":1}"#.to_owned(), "arn:queue", "m", r#"{"a":1}"#),
            ("no JSON".to_owned(), "arn:queue", "m", "no JSON"),
            (half.clone(), "arn:queue", "m", half.as_str()),
        ] {
            let [delivery] = &opened(record(&body))[..] else {
                panic!("{body}")
            };
            let message = &delivery.message;
            let told = (message.source.as_str(), message.id.as_str());
            assert_eq!(told, (source, id), "{body}");
            assert_eq!(String::from_utf8_lossy(&message.body), says);
            // The service gets its own id of the message back.
            assert_eq!(delivery.item, "m");
        }
    }

    #[test]
    fn a_pipe_passes_on_the_records_of_a_queue_without_their_envelope() {
        let record = json!({"eventSource": "aws:sqs", "eventSourceARN": "arn:queue", "messageId": "m", "body": "{}"});
        let piped = enveloped(json!([record, record]).into());
        assert_eq!(opened(piped.read().unwrap()).len(), 2);
        for other in [
            json!([]),
            json!([{"action": "drain"}]),
            json!({"action": "drain"}),
        ] {
            assert_eq!(enveloped(other.clone().into()), other.into());
        }
    }

    #[test]
    fn b2_the_detail_of_an_event_is_taken_in_letter_by_letter() {
        let detail = r#"{"z":[12345678901234.567891, 10.10],"big":18446744073709551616,"z":1e400}"#;
        let event = format!(
            r#"{{"detail-type": "Ordered", "source": "shop", "id": "e", "detail": {detail}}}"#
        );
        let record = json!({"eventSource": "aws:sqs", "eventSourceARN": "arn:queue", "messageId": "m", "body": event});
        let queued = json!({ "Records": [record] }).to_string();
        for envelope in [event, queued] {
            let envelope: Json = serde_json::from_str(&envelope).unwrap();
            let bearer = Bearer::of(&crate::outline(&envelope)).unwrap().unwrap();
            let [delivery] = &bearer.open(&envelope).unwrap()[..] else {
                panic!("{envelope}")
            };
            assert_eq!(String::from_utf8_lossy(&delivery.message.body), detail);
        }
    }
}
