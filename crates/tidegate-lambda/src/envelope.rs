//! Owns the formats in which AWS services deliver messages. It recognizes an envelope and extracts its
//! messages. It does not know what a message means or what is done with it.
//!
//! The id of a message is always its own, never that of its delivery, so a message that is delivered twice is
//! recognized.

use std::collections::BTreeMap;

use aws_lambda_events::eventbridge::EventBridgeEvent;
use aws_lambda_events::kafka::{KafkaEvent, KafkaRecord};
use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::sns::{SnsEvent, SnsRecord};
use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tidegate::Error;
use tidegate::admin::is_scheduled_event;
use tidegate::intake::Message;

/// A service that delivers messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bearer {
    Sqs,
    Sns,
    EventBridge,
    Kinesis,
    Kafka,
}

/// A delivered message.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The message, or the fault of its format.
    pub message: Result<Message, Error>,
    /// The service's own id of the message, which names it for redelivery.
    pub item: String,
    /// Messages on one line must stay in order: if one is to be redelivered, those behind it on the same line
    /// wait for it.
    pub line: Option<String>,
}

impl Bearer {
    /// Returns the sender of an envelope like this one, or `None` if the payload requests an action or is the
    /// tick of a schedule.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is an envelope of a service that delivers no messages.
    pub(crate) fn of(payload: &Value) -> Result<Option<Self>, Error> {
        if payload.get("action").is_some() || is_scheduled_event(payload) {
            return Ok(None);
        }
        if payload.get("detail-type").is_some_and(Value::is_string) {
            return Ok(Some(Self::EventBridge));
        }
        if let Some("aws:kafka" | "SelfManagedKafka") = payload["eventSource"].as_str() {
            return Ok(Some(Self::Kafka));
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
            Some("aws:kinesis") => Ok(Some(Self::Kinesis)),
            other => {
                let got = other.unwrap_or("nothing");
                let wanted = "must be aws:sqs, aws:sns or aws:kinesis";
                let text = format!("Records[0].eventSource: {wanted}, got {got}");
                Err(Error::Invalid(text))
            }
        }
    }

    /// Reports whether the service accepts an answer that names single messages for redelivery. The other
    /// services redeliver the whole envelope. Kafka accepts it in provisioned mode only, which an envelope
    /// does not show; in any other, Lambda takes every answer for success.
    pub(crate) fn takes_failures(self, kafka: bool) -> bool {
        matches!(self, Self::Sqs | Self::Kinesis) || self == Self::Kafka && kafka
    }

    /// Names a message for redelivery, as the service requires it: of Kafka, by topic with partition, and by
    /// offset (<https://docs.aws.amazon.com/lambda/latest/dg/kafka-retry-configurations.html>).
    pub(crate) fn named(self, item: &str) -> Value {
        let record = item.rsplit_once('-').filter(|_| self == Self::Kafka);
        let record =
            record.and_then(|(partition, offset)| Some((partition, offset.parse::<i64>().ok()?)));
        record.map_or_else(
            || item.into(),
            |(partition, offset)| json!({"partition": partition, "offset": offset}),
        )
    }

    /// Extracts the messages of an envelope.
    ///
    /// # Errors
    /// [`Error::Invalid`] names a required field that this envelope lacks.
    pub(crate) fn open(self, payload: Value) -> Result<Vec<Delivery>, Error> {
        match self {
            Self::Sqs => numbered(decoded::<SqsEvent>(payload)?.records, of_sqs),
            Self::Sns => numbered(decoded::<SnsEvent>(payload)?.records, of_sns),
            Self::Kinesis => numbered(decoded::<KinesisEvent>(payload)?.records, of_kinesis),
            Self::EventBridge => Ok(vec![of_eventbridge(decoded(payload)?)?]),
            Self::Kafka => of_kafka(decoded(payload)?),
        }
    }
}

/// The decoder's own text may quote a message.
fn decoded<T: DeserializeOwned>(payload: Value) -> Result<T, Error> {
    serde_json::from_value(payload).map_err(|_| {
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

/// Unwraps a message that a topic or a bus has forwarded to a queue. The id is the one in the topic or bus.
/// It stays the same in two queues, and if the topic sends a message twice.
fn forwarded(body: &str) -> Option<Message> {
    let fields: Value = serde_json::from_str(body).ok()?;
    let text = |name: &str| fields[name].as_str().filter(|text| !text.is_empty());
    if fields["Type"] == "Notification" {
        return Some(Message {
            source: text("TopicArn")?.to_owned(),
            id: text("MessageId")?.to_owned(),
            body: text("Message")?.as_bytes().to_vec(),
        });
    }
    text("detail-type")?;
    Some(Message {
        source: format!("eventbridge:{}", text("source")?),
        id: text("id")?.to_owned(),
        body: fields.get("detail")?.to_string().into_bytes(),
    })
}

fn of_sns(record: SnsRecord) -> Result<Delivery, Missing> {
    let id = filled(Some(record.sns.message_id), "Sns.MessageId")?;
    let source = filled(Some(record.sns.topic_arn), "Sns.TopicArn")?;
    let body = record.sns.message.into_bytes();
    Ok(delivery(source, id.clone(), body, id, None))
}

fn of_kinesis(record: KinesisEventRecord) -> Result<Delivery, Missing> {
    let id = filled(
        Some(record.kinesis.sequence_number),
        "kinesis.sequenceNumber",
    )?;
    let source = filled(record.event_source_arn, "eventSourceARN")?;
    let (body, line) = (record.kinesis.data.0, Some(record.kinesis.partition_key));
    Ok(delivery(source, id.clone(), body, id, line))
}

fn of_eventbridge(event: EventBridgeEvent) -> Result<Delivery, Error> {
    let id = filled(event.id, "id").map_err(|Missing(field)| missing(field))?;
    let source = format!("eventbridge:{}", event.source);
    let body = event.detail.to_string().into_bytes();
    Ok(delivery(source, id.clone(), body, id, None))
}

/// Lines are topics and partitions, in the order of the offsets.
fn of_kafka(event: KafkaEvent) -> Result<Vec<Delivery>, Error> {
    let cluster = event.event_source_arn.or(event.bootstrap_servers);
    let cluster = filled(cluster, "eventSourceArn").map_err(|Missing(field)| missing(field))?;
    let partitions: BTreeMap<_, _> = event.records.into_iter().collect();
    let records = partitions.into_values().flatten();
    Ok(records
        .map(|record| of_kafka_record(&cluster, record))
        .collect())
}

fn of_kafka_record(cluster: &str, record: KafkaRecord) -> Delivery {
    let topic = record.topic.unwrap_or_default();
    let (partition, offset) = (record.partition, record.offset);
    let id = format!("{partition}-{offset}");
    let line = Some(format!("{topic}-{partition}"));
    let item = format!("{topic}-{id}");
    let source = format!("{cluster}/{topic}");
    match STANDARD.decode(record.value.unwrap_or_default()) {
        Ok(body) => delivery(source, id, body, item, line),
        Err(_) => Delivery {
            message: Err(Error::Invalid("value: must be base64".to_owned())),
            item,
            line,
        },
    }
}

fn delivery(
    source: String,
    id: String,
    body: Vec<u8>,
    item: String,
    line: Option<String>,
) -> Delivery {
    let message = Ok(Message { source, id, body });
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
    use super::*;

    fn opened(payload: Value) -> Vec<Delivery> {
        let bearer = Bearer::of(&payload).unwrap().expect("an envelope");
        bearer.open(payload).unwrap()
    }

    fn refused(payload: Value) -> String {
        let bearer = match Bearer::of(&payload) {
            Ok(bearer) => bearer.expect("an envelope"),
            Err(error) => return error.to_string(),
        };
        bearer.open(payload).unwrap_err().to_string()
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
            (
                json!({"eventSource": "aws:kafka", "records": {}}),
                "eventSourceArn",
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
            let message = delivery.message.as_ref().unwrap();
            let told = (message.source.as_str(), message.id.as_str());
            assert_eq!(told, (source, id), "{body}");
            assert_eq!(String::from_utf8_lossy(&message.body), says);
            // The service gets its own id of the message back.
            assert_eq!(delivery.item, "m");
        }
    }

    #[test]
    fn kafka_records_come_by_partition_and_one_that_is_no_base64_takes_none_along() {
        let record = |partition: u8, offset: u8, value: &str| {
            json!({"topic": "t", "partition": partition, "offset": offset, "timestamp": 1,
                "timestampType": "CREATE_TIME", "value": value, "headers": []})
        };
        let deliveries = opened(json!({
            "eventSource": "aws:kafka", "eventSourceArn": "arn:cluster", "bootstrapServers": "b:9092",
            "records": {"t-1": [record(1, 7, "e30=")], "t-0": [record(0, 5, "*"), record(0, 6, "e30=")]},
        }));
        let items: Vec<&str> = deliveries.iter().map(|one| one.item.as_str()).collect();
        assert_eq!(items, ["t-0-5", "t-0-6", "t-1-7"]);
        assert!(deliveries[0].message.is_err());
        let message = deliveries[2].message.as_ref().unwrap();
        assert_eq!(message.source, "arn:cluster/t");
        assert_eq!((message.id.as_str(), &*message.body), ("1-7", &b"{}"[..]));
    }
}
