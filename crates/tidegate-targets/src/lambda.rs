//! Owns Lambda functions as targets. A function receives what Lambda would deliver from an SQS queue, and
//! answers as for SQS. The invocation is synchronous and is sent once.
//! <https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html>

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use md5::Md5;
use serde_json::{Map, Value, json};
use sha2::Digest;
use tidegate::HandlerError;
use tidegate::connect::requests::{Answer, Place, encoded};

use crate::Receiver;
use crate::aws::{Service, failure, seen};
use crate::outcome::{Answers, Outcome, Reading, bad, of_answer};
use crate::sent::{Item, Sent, hex, now_ms, packed};
use crate::settings::Lambda;

/// The most bytes of several events in one request, of the 6 MB that Lambda takes: a drain holds as many
/// requests as it has calls at once. One event has 2.2 MB at most.
const MOST_BYTES: usize = 2_000_000;

/// How many bytes of an answer are read, of the 6 MB that a function may return: a result may have 1 MiB.
const MOST_ANSWER: usize = 2 << 20;

/// How much of an exception's message is stored, in characters.
const MOST_MESSAGE: usize = 500;

/// A function.
pub(crate) struct Function {
    name: &'static str,
    at: Lambda,
    reading: Reading,
    /// Whether the log has already said that its answers say nothing.
    warned: AtomicBool,
}

impl Function {
    pub(crate) fn new(name: &'static str, at: Lambda) -> Self {
        let reading = if at.stops_at_first_failure {
            Reading::InOrder
        } else {
            Reading::Each
        };
        Self {
            name,
            at,
            reading,
            warned: AtomicBool::new(false),
        }
    }

    /// Returns the ARN of the queue that an event seems to come from.
    fn source_arn(&self, kind: &str, part: impl Fn(usize) -> String) -> String {
        let made = || format!("arn:aws:sqs:{}:{}:tidegate-{kind}", part(3), part(4));
        self.at.source_arn.clone().unwrap_or_else(made)
    }

    /// Returns an event as a record of SQS.
    fn record(&self, sent: &Sent<'_>, id: &str) -> Value {
        let part = |at: usize| {
            self.at
                .lambda
                .split(':')
                .nth(at)
                .unwrap_or_default()
                .to_owned()
        };
        let mut attributes = Map::new();
        let mut put = |name: &str, value: String| attributes.insert(name.to_owned(), value.into());
        put("ApproximateReceiveCount", sent.attempt.to_string());
        put("SentTimestamp", (sent.published / 1000).to_string());
        put("ApproximateFirstReceiveTimestamp", now_ms().to_string());
        put("SenderId", "tidegate".to_owned());
        if let Some(trace) = sent.traceparent.as_deref().and_then(of_xray) {
            put("AWSTraceHeader", trace);
        }
        if let Some(group) = sent.group {
            put("MessageGroupId", group.to_owned());
            put("MessageDeduplicationId", id.to_owned());
            put("SequenceNumber", sent.sequence());
        }
        let further = sent.attributes().into_iter().map(|(name, value)| {
            let value = json!({"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": "String"});
            (name.to_owned(), value)
        });
        json!({
            "messageId": id,
            "receiptHandle": format!("{id}-{}", sent.attempt),
            "body": sent.payload,
            "md5OfBody": hex(&Md5::digest(sent.payload.as_bytes())),
            "attributes": attributes,
            "messageAttributes": further.collect::<Map<_, _>>(),
            "eventSource": "aws:sqs",
            "eventSourceARN": self.source_arn(sent.kind, part),
            "awsRegion": part(3),
        })
    }

    async fn invoke(&self, items: Vec<Item>) -> Answers {
        let (ids, body) = packed(items, "{\"Records\":[", "]}");
        let answer = self.ask("RequestResponse", body).await?;
        self.read(&answer, &ids)
    }

    fn service(&self) -> Result<Service<'_>, HandlerError> {
        let place = Place::of(&self.at.lambda);
        let place = place.map_err(|error| HandlerError::unavailable("settings", error))?;
        Ok(Service {
            name: "LAMBDA",
            place,
        })
    }

    fn path(&self, end: &str) -> String {
        let function = encoded(&self.at.lambda);
        format!("/2015-03-31/functions/{function}/{end}")
    }

    /// Invokes the function, or only asks whether we may: the type `DryRun`.
    async fn ask(&self, invocation: &str, body: String) -> Result<Answer, HandlerError> {
        let trace = tidegate::trace::invocation();
        let mut headers = vec![
            ("content-type", "application/json"),
            ("x-amz-invocation-type", invocation),
        ];
        headers.extend(trace.as_deref().map(|trace| ("x-amzn-trace-id", trace)));
        let path = self.path("invocations");
        let service = self.service()?;
        service
            .send(("POST", &path), &headers, body, MOST_ANSWER)
            .await
    }

    /// Returns the function's time limit, if we may read it.
    /// <https://docs.aws.amazon.com/lambda/latest/api/API_GetFunctionConfiguration.html>
    async fn time_limit(&self) -> Result<Option<Duration>, HandlerError> {
        let path = self.path("configuration");
        let service = self.service()?;
        let looked = service.send(("GET", &path), &[], String::new(), 1 << 20);
        let configuration = seen(looked.await?)?.map(|answer| answer.body);
        let configuration: Value =
            serde_json::from_slice(&configuration.unwrap_or_default()).unwrap_or_default();
        Ok(configuration["Timeout"].as_u64().map(Duration::from_secs))
    }

    pub(crate) fn read(&self, answer: &Answer, ids: &[String]) -> Answers {
        if answer.status != 200 {
            return Err(failure(answer));
        }
        if answer.headers.contains_key("x-amz-function-error") {
            return Err(self.exception(&answer.body));
        }
        if answer.is_cut {
            return Err(bad(format!("the answer has more than {MOST_ANSWER} bytes")));
        }
        let meant = of_answer(&answer.body, ids, self.reading);
        meant.unwrap_or_else(|| {
            if !says_nothing(&answer.body) && !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    target = self.name,
                    "the function's answer has no batchItemFailures; its events count as done"
                );
            }
            Ok(ids.iter().map(|_| Ok(Outcome::default())).collect())
        })
    }

    /// Returns the failure of a function that raised an exception, or was stopped.
    fn exception(&self, body: &[u8]) -> HandlerError {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |field: &str, most: usize| -> Option<String> {
            let text = document[field].as_str()?;
            Some(text.chars().take(most).collect())
        };
        let code = text("errorType", 100).unwrap_or_else(|| "function_error".to_owned());
        let message = text("errorMessage", MOST_MESSAGE).filter(|_| !self.at.no_error_text);
        HandlerError::call_failed(code, message.as_deref().unwrap_or("the function failed"))
    }
}

impl Receiver for Function {
    fn limits(&self) -> (usize, usize) {
        (usize::MAX, MOST_BYTES)
    }

    fn item(&self, sent: &Sent<'_>) -> Result<Item, HandlerError> {
        let id = sent.message_id();
        Ok(Item {
            text: self.record(sent, &id).to_string(),
            id,
        })
    }

    fn send(self: Arc<Self>, items: Vec<Item>) -> BoxFuture<'static, Answers> {
        async move { self.invoke(items).await }.boxed()
    }

    fn examine(&self, timeout: Option<Duration>) -> BoxFuture<'_, Result<(), HandlerError>> {
        async move {
            let answer = self.ask("DryRun", "{}".to_owned()).await?;
            if answer.status != 204 {
                return Err(failure(&answer));
            }
            match (self.time_limit().await?, timeout) {
                (Some(limit), Some(timeout)) if limit > timeout => {
                    let why = format!("the function's time limit must be at most the target's, {timeout:?}, got {limit:?}");
                    Err(HandlerError::unavailable("timeout", why))
                }
                _ => Ok(()),
            }
        }
        .boxed()
    }
}

/// Whether an answer is what a function returns that returns nothing.
fn says_nothing(body: &[u8]) -> bool {
    matches!(body.trim_ascii(), b"" | b"null" | b"{}")
}

/// Returns a W3C trace position as a header of X-Ray.
fn of_xray(traceparent: &str) -> Option<String> {
    let mut parts = traceparent.split('-').skip(1);
    let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
    let (time, rest) = trace.split_at_checked(8)?;
    let sampled = u8::from(flags.ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f']));
    Some(format!(
        "Root=1-{time}-{rest};Parent={span};Sampled={sampled}"
    ))
}
