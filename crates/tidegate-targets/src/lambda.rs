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
use tidegate_aws::{Arn, Response, encoded};
use tidegate_core::event::hex;

use crate::aws::{AwsService, failure, seen};
use crate::outcome::{Answers, BatchOrder, Outcome, bad, of_answer};
use crate::sent::{Item, Sent, now_ms, packed};
use crate::settings::Lambda;
use crate::{Expected, Receiver};

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
    reading: BatchOrder,
    /// Whether the log has already said that its answers say nothing.
    warned: AtomicBool,
}

impl Function {
    pub(crate) fn new(name: &'static str, at: Lambda) -> Self {
        let reading = if at.stops_at_first_failure {
            BatchOrder::InOrder
        } else {
            BatchOrder::Each
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

    /// Writes an event as a record of SQS.
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
            "md5OfBody": hex(&Md5::digest(sent.payload)),
            "attributes": attributes,
            "messageAttributes": further.collect::<Map<_, _>>(),
            "eventSource": "aws:sqs",
            "eventSourceARN": self.source_arn(sent.kind, part),
            "awsRegion": part(3),
        })
    }

    fn service(&self) -> Result<AwsService<'_>, HandlerError> {
        let place = Arn::of(&self.at.lambda);
        let place = place.map_err(|error| HandlerError::unavailable("settings", error))?;
        Ok(AwsService {
            name: "LAMBDA",
            place,
        })
    }

    fn path(&self, end: &str) -> String {
        let function = encoded(&self.at.lambda);
        format!("/2015-03-31/functions/{function}/{end}")
    }

    /// Reads a number in a document about the function; `None` if we may not look, or the document has none.
    async fn number(&self, path: &str, field: &str) -> Result<Option<u64>, HandlerError> {
        let service = self.service()?;
        let looked = service.send("GET", path, &[], String::new(), 1 << 20);
        let document = seen(looked.await?)?.map(|answer| answer.body);
        let document: Value =
            serde_json::from_slice(&document.unwrap_or_default()).unwrap_or_default();
        Ok(document[field].as_u64())
    }

    /// Invokes the function, or only asks whether we may: the type `DryRun`.
    async fn ask(&self, invocation: &str, body: String) -> Result<Response, HandlerError> {
        let trace = tidegate_core::trace::invocation();
        let mut headers = vec![
            ("content-type", "application/json"),
            ("x-amz-invocation-type", invocation),
        ];
        headers.extend(trace.as_deref().map(|trace| ("x-amzn-trace-id", trace)));
        let path = self.path("invocations");
        let service = self.service()?;
        service
            .send("POST", &path, &headers, body, MOST_ANSWER)
            .await
    }

    /// Compares the function's time limit and its reserved concurrency, as far as we may see them.
    /// <https://docs.aws.amazon.com/lambda/latest/api/API_GetFunctionConfiguration.html>
    /// <https://docs.aws.amazon.com/lambda/latest/api/API_GetFunctionConcurrency.html>
    async fn compare(&self, expected: Expected) -> Result<(), HandlerError> {
        let limit = self.number(&self.path("configuration"), "Timeout").await?;
        let limit = limit.map(Duration::from_secs);
        if let (Some(limit), Some(timeout)) = (limit, expected.timeout)
            && limit > timeout
        {
            let why = format!(
                "the function's time limit must be at most the target's, {timeout:?}, got {limit:?}"
            );
            return Err(HandlerError::unavailable("timeout", why));
        }
        // An alias has none of its own.
        let function = encoded(&self.at.unqualified());
        let path = format!("/2019-09-30/functions/{function}/concurrency");
        let reserved = self.number(&path, "ReservedConcurrentExecutions").await?;
        match (reserved, u64::from(expected.calls.unwrap_or(1))) {
            (Some(reserved), calls) if reserved < calls => {
                let why = format!(
                    "the function's reserved concurrency must be at least {calls}, the target's limit in calls, got {reserved}"
                );
                Err(HandlerError::unavailable("concurrency", why))
            }
            _ => Ok(()),
        }
    }

    fn read(&self, answer: &Response, ids: &[String]) -> Answers {
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
        let text = self.record(sent, &id).to_string();
        Ok(Item { id, text })
    }

    fn send(self: Arc<Self>, items: Vec<Item>) -> BoxFuture<'static, Answers> {
        async move {
            let (ids, body) = packed(items, "{\"Records\":[", "]}");
            let answer = self.ask("RequestResponse", body).await?;
            self.read(&answer, &ids)
        }
        .boxed()
    }

    fn examine(&self, expected: Expected) -> BoxFuture<'_, Result<(), HandlerError>> {
        async move {
            let answer = self.ask("DryRun", "{}".to_owned()).await?;
            if answer.status != 204 {
                return Err(failure(&answer));
            }
            self.compare(expected).await
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::*;

    const ARN: &str = "arn:aws:lambda:eu-central-1:123456789012:function:ship:live";

    fn function(no_error_text: bool) -> Function {
        let at = Lambda {
            lambda: ARN.to_owned(),
            no_error_text,
            ..Lambda::default()
        };
        Function::new("ship", at)
    }

    /// Status, headers and body of an answer, and what it means for two events.
    const OF_A_FUNCTION: &str = r#"
200 [] => done
200 [] null => done
200 [] {"statusCode": 500} => call: failed status_code
200 [] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done, retry failed
200 [] {"batchItemFailures": [{"itemIdentifier": "id-0"}, {"itemIdentifier": "id-1"}]} => retry failed, retry failed
200 [] {"batchItemFailures": [{"itemIdentifier": "other"}]} => call: failed bad_answer
200 [x-amz-function-error: Unhandled] {"errorType": "KeyError", "errorMessage": "'sku'"} => call: failed KeyError
200 [x-amz-function-error: Unhandled] Task timed out => call: failed function_error
429 [x-amzn-errortype: TooManyRequestsException] => call: busy throttled
429 [retry-after: 7] {"__type": "TooManyRequestsException"} => call: busy throttled after 7s
429 [retry-after: 99999999] => call: busy throttled after 3600s
403 [x-amzn-errortype: AccessDeniedException] => call: unavailable credentials
400 [x-amzn-errortype: UnrecognizedClientException:http://x] => call: unavailable credentials
404 [x-amzn-errortype: ResourceNotFoundException] => call: unavailable ResourceNotFoundException
400 [x-amzn-errortype: RecursiveInvocationException] => call: unavailable RecursiveInvocationException
413 [x-amzn-errortype: RequestTooLargeException] => call: failed too_large
500 [] {"__type": "com.amazonaws.x#ServiceException"} => call: unavailable ServiceException
502 [] <html> => call: unavailable 502
"#;

    #[test]
    fn each_answer_of_a_function_has_its_verdict() {
        each_means(OF_A_FUNCTION, |given| function(false).read(given, &ids(2)));
        let cut = Response {
            is_cut: true,
            ..answer(200, &[], "{")
        };
        assert_eq!(
            meant(function(false).read(&cut, &ids(2))),
            "call: failed bad_answer"
        );
    }

    #[test]
    fn of_an_exception_its_message_is_stored_unless_it_may_hold_personal_data_and_never_its_stack()
    {
        let body =
            json!({"errorType": "E", "errorMessage": "m".repeat(900), "stackTrace": ["secret"]})
                .to_string();
        let given = answer(200, &[("x-amz-function-error", "Unhandled")], &body);
        let error = function(false).read(&given, &ids(1)).unwrap_err();
        assert_eq!(error.faults()[0].message, "m".repeat(500));
        let error = function(true).read(&given, &ids(1)).unwrap_err();
        assert_eq!(error.faults()[0].message, "the function failed");
    }

    #[test]
    fn a_record_has_every_field_that_a_record_of_sqs_has() {
        let item = function(false)
            .item(&sent("{\"sku\": \"ü\"}", Some("order 7")))
            .unwrap();
        let record: Value = serde_json::from_str(&item.text).unwrap();
        let text = |value: &str| json!({"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": "String"});
        let expected = json!({
            "messageId": item.id,
            "receiptHandle": format!("{}-2", item.id),
            "body": "{\"sku\": \"ü\"}",
            "md5OfBody": "06d9000da3c6d8cffbbb124a43423f49",
            "attributes": {
                "ApproximateReceiveCount": "2", "SentTimestamp": "1700000000123",
                "ApproximateFirstReceiveTimestamp": record["attributes"]["ApproximateFirstReceiveTimestamp"],
                "SenderId": "tidegate", "AWSTraceHeader": "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1",
                "MessageGroupId": "order 7", "MessageDeduplicationId": item.id, "SequenceNumber": "00000000000000000007",
            },
            "messageAttributes": {
                "kind": text("order_placed"), "tidegate_id": text("7"), "idempotency_key": text("tidegate-7-1700000000123456"),
                "correlation_id": text("case 9"), "traceparent": text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            },
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:tidegate-order_placed",
            "awsRegion": "eu-central-1",
        });
        assert_eq!(record, expected);
    }
}
