//! Owns requests of a drain to AWS that may fail without harm: to a function that is to start a drain,
//! <https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html>, and to a queue for dead messages. The
//! SDK's own crate for Lambda would be larger than all the rest of the SDK.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::json;
use tidegate_core::Error;
use tidegate_core::chain::{Chain, StartDrain};
use tidegate_core::config::environment;

use crate::encoded;
use crate::request::{Arn, NoResponse, Requests, SignedRequest};

/// How many bytes of an answer are read.
const MOST_ANSWER: usize = 1 << 20;

/// How much of a refusal an error quotes.
const MOST_TOLD: usize = 300;

/// A client for such requests. After one that got no answer, it sends none for ten minutes.
#[derive(Default)]
pub struct SelfInvoke {
    pub(crate) requests: Requests,
    /// When a request was last sent without an answer.
    unanswered: Mutex<Option<Instant>>,
}

/// How long a service that has not answered is not tried again. In a private network without an endpoint for
/// it, each try would wait in vain.
const SILENCE: Duration = Duration::from_mins(10);

/// A request that is under way. If it is dropped, nobody has answered it.
struct UnderWay<'a>(&'a SelfInvoke, bool);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Self(sender, is_answered) = self;
        let mut unanswered = sender
            .unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *unanswered = (!*is_answered).then(Instant::now);
    }
}

/// A queue of SQS for messages that can never be received.
pub struct DeadMessages {
    by: SelfInvoke,
    url: String,
}

impl DeadMessages {
    /// Names the queue by its URL, such as `https://sqs.eu-central-1.amazonaws.com/123456789012/name`.
    #[must_use]
    pub fn new(url: String) -> Self {
        let by = SelfInvoke::default();
        Self { by, url }
    }

    /// Sends a message as it came, with its id and the reason as attributes. The process needs the permission
    /// `sqs:SendMessage`.
    ///
    /// # Errors
    /// [`Error::Start`] if SQS does not take it.
    pub async fn send(&self, body: &str, id: &str, reason: &str) -> Result<(), Error> {
        let text = |value: &str| json!({"DataType": "String", "StringValue": value});
        let reason: String = reason.chars().take(MOST_TOLD).collect();
        let attributes = json!({"message_id": text(id), "reason": text(&reason)});
        let body =
            json!({"QueueUrl": self.url, "MessageBody": body, "MessageAttributes": attributes});
        let host = self
            .url
            .splitn(4, '/')
            .take(3)
            .collect::<Vec<_>>()
            .join("/");
        let Some(region) = host.split('.').nth(1) else {
            return Err(failed(format!("{:?} is no URL of a queue", self.url)));
        };
        let headers = [
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", "AmazonSQS.SendMessage"),
        ];
        let url = environment("AWS_ENDPOINT_URL_SQS").unwrap_or_else(|| host.clone());
        let sent = self
            .by
            .send(("sqs", region), "POST", &url, &headers, body.to_string());
        sent.await.map(drop)
    }
}

/// A Lambda function that starts a drain when it is invoked, such as the running one. The answer is not
/// waited for. The process needs the permission `lambda:InvokeFunction`.
pub struct Invoked {
    /// The client that invokes it.
    pub by: std::sync::Arc<SelfInvoke>,
    /// The function's ARN, with its alias or version.
    pub arn: String,
    /// The X-Ray header of the running invocation. With it, Lambda detects functions that call each other in
    /// a loop.
    pub trace: Option<String>,
}

impl StartDrain for Invoked {
    fn start(&self, chain: Chain) -> BoxFuture<'_, Result<(), Error>> {
        self.invoke(chain).boxed()
    }
}

impl Invoked {
    async fn invoke(&self, chain: Chain) -> Result<(), Error> {
        let body = json!({"action": "drain", "chain": chain});
        let place = Arn::of(&self.arn)?;
        let host = self.by.requests.endpoint("LAMBDA", &place).await?;
        let url = format!(
            "{host}/2015-03-31/functions/{}/invocations",
            encoded(&self.arn)
        );
        let headers = headers(self.trace.as_deref());
        let sent = self
            .by
            .send(place.of_service(), "POST", &url, &headers, body.to_string());
        sent.await.map(drop)
    }
}

impl SelfInvoke {
    fn is_silent(&self) -> bool {
        let unanswered = self
            .unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unanswered.is_some_and(|since| since.elapsed() < SILENCE)
    }

    /// Sends a signed request to this service of this region, which must succeed. Returns the text of the
    /// answer.
    pub(crate) async fn send(
        &self,
        to: (&str, &str),
        method: &str,
        url: &str,
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Result<String, Error> {
        if self.is_silent() {
            return Err(failed(format!(
                "{} has not answered within the last ten minutes and is not tried",
                to.0
            )));
        }
        let request = SignedRequest {
            to,
            method,
            url,
            headers,
            body: body.into_bytes(),
        };
        let mut under_way = UnderWay(self, false);
        let answer = self.requests.send(request, MOST_ANSWER).await;
        under_way.1 = !matches!(answer, Err(NoResponse::Lost(_)));
        let answer = answer.map_err(failed)?;
        let (status, text) = (answer.status, String::from_utf8_lossy(&answer.body));
        if (200..300).contains(&status) {
            return Ok(text.into_owned());
        }
        let why: String = text.chars().take(MOST_TOLD).collect();
        Err(failed(format!("{} answered {status}: {why}", to.0)))
    }
}

/// `Event` is an invocation that nobody waits for.
fn headers(trace: Option<&str>) -> Vec<(&'static str, &str)> {
    let mut headers = vec![
        ("content-type", "application/json"),
        ("x-amz-invocation-type", "Event"),
    ];
    headers.extend(trace.map(|trace| ("x-amzn-trace-id", trace)));
    headers
}

pub(crate) fn failed(why: impl std::fmt::Display) -> Error {
    Error::Start(why.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use aws_credential_types::Credentials;
    use aws_sigv4::http_request::SigningSettings;

    use super::*;
    use crate::sign::{For, signature};

    #[test]
    fn what_is_sent_is_signed_with_the_way_that_led_here() {
        let credentials =
            Credentials::new("akid", "secret", Some("token".to_owned()), None, "test");
        let to = For {
            service: "lambda",
            region: "eu-central-1",
            settings: SigningSettings::default(),
            now: SystemTime::now(),
        };
        let headers = headers(Some("Root=1-2-3;Lineage=a:1"));
        assert!(headers.contains(&("x-amzn-trace-id", "Root=1-2-3;Lineage=a:1")));
        let url = "https://lambda.eu-central-1.amazonaws.com/2015-03-31/functions/f/invocations";
        let signed = signature(to, "POST", url, &headers, b"{}", credentials).unwrap();
        let header = |name| signed.get(name).unwrap().to_str().unwrap();
        assert_eq!(header("x-amz-security-token"), "token");
        let signature = header("authorization");
        assert!(
            signature.contains("eu-central-1/lambda/aws4_request")
                && signature.contains("x-amz-invocation-type"),
            "{signature}"
        );
    }
}
