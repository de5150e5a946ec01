//! Owns HTTPS URLs as targets. A request is a CloudEvent, or an array of them, signed as Standard Webhooks
//! say. One body serves both standards.
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>,
//! <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::{BoxFuture, FutureExt};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, ClientBuilder, RequestBuilder, Url};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use sha2::Sha256;
use tidegate::HandlerError;
use tidegate::connect::Trust;
use tidegate_aws::{Response, exchange, http_client};
use tokio::sync::OnceCell;

use crate::aws::{as_asked, unreachable};
use crate::net::BeyondTheLink;
use crate::outcome::{Answers, BatchOrder, Outcome, bad, of_answer};
use crate::secret::Secret;
use crate::sent::{Item, Sent, named, packed};
use crate::settings::Https;
use crate::{Expected, Receiver};

/// How many bytes of an answer are read.
const MOST_ANSWER: usize = 1 << 20;

/// The most bytes of several events in one request: a drain holds as many requests as it has calls at once.
const MOST_BYTES: usize = 2_000_000;

/// The answers that are about the event, and would be the same again. 409 is none of them: to many APIs it
/// means that the first request is still in progress.
const REJECT: [u16; 4] = [400, 413, 415, 422];

/// What is wrong with a secret that does not sign.
const MUST: &str = "the signing secret must be whsec_ and 24 to 64 bytes in base64";

/// What is wrong with a secret that is no token.
const NO_TOKEN: &str = "the bearer secret must be a token of letters, digits and -._~+/=";

/// A URL.
pub(crate) struct Endpoint {
    name: &'static str,
    url: Url,
    source: String,
    content_types: [&'static str; 2],
    reject: Vec<u16>,
    follow_ups: Vec<String>,
    batches: bool,
    secret: Option<Secret>,
    bearer: Option<Secret>,
    client: OnceCell<Client>,
}

/// A CloudEvent. The fields after `data` are extensions: `timestamp` is what Standard Webhooks calls the
/// event's time.
#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: &'a str,
    source: &'a str,
    r#type: &'a str,
    time: &'a str,
    datacontenttype: &'static str,
    data: &'a RawValue,
    timestamp: &'a str,
    sequence: String,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitionkey: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlationid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

impl Endpoint {
    pub(crate) fn new(name: &'static str, at: Https) -> Result<Self, String> {
        let url =
            Url::parse(&at.https).map_err(|error| format!("https: must be a URL: {error}"))?;
        let content_types = if at.cloudevents {
            [
                "application/cloudevents+json",
                "application/cloudevents-batch+json",
            ]
        } else {
            ["application/json"; 2]
        };
        let secret = |field, place: Option<String>| {
            let secret = place.map(|place| Secret::new(field, place));
            secret.transpose().map_err(|error| error.to_string())
        };
        Ok(Self {
            name,
            url,
            source: at.source.unwrap_or_else(|| "/tidegate".to_owned()),
            content_types,
            reject: at.reject.unwrap_or_else(|| REJECT.to_vec()),
            follow_ups: at.follow_ups,
            batches: at.batches,
            secret: secret("secret", at.secret)?,
            bearer: secret("bearer", at.bearer)?,
            client: OnceCell::new(),
        })
    }

    async fn client(&self) -> Result<&Client, HandlerError> {
        let trust = Trust::system();
        let beyond = |client: ClientBuilder| client.dns_resolver(Arc::new(BeyondTheLink));
        let build = || http_client(&trust, beyond);
        let client = self.client.get_or_try_init(build).await;
        client.map_err(|error| HandlerError::unavailable("settings", error))
    }

    async fn post(&self, items: Vec<Item>) -> Answers {
        let (content, before, after) = if self.batches || items.len() > 1 {
            (self.content_types[1], "[", "]")
        } else {
            (self.content_types[0], "", "")
        };
        let (ids, body) = packed(items, before, after);
        let id = match &ids[..] {
            [id] => id.clone(),
            ids => named(&ids.join(" ")),
        };
        let request = self.client().await?.post(self.url.clone());
        let request = request
            .header("content-type", content)
            .header("idempotency-key", &id);
        let request = self.signed(request, &id, &body).await?;
        let answer = exchange(request.body(body), MOST_ANSWER).await;
        let answer = answer.map_err(unreachable)?;
        if matches!(answer.status, 401 | 403)
            && let Some(bearer) = &self.bearer
        {
            bearer.forget().await;
        }
        self.read(&answer, &ids)
    }

    /// Adds the signature with each key, and the token.
    async fn signed(
        &self,
        mut request: RequestBuilder,
        id: &str,
        body: &str,
    ) -> Result<RequestBuilder, HandlerError> {
        if let Some(position) = tidegate::trace::current() {
            request = request.header("traceparent", position.to_string());
        }
        if let Some(secret) = &self.secret {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs();
            let keys = secret.text().await?;
            let signatures: Result<Vec<String>, _> = keys
                .split_whitespace()
                .map(|key| signature(key, &format!("{id}.{now}."), body))
                .collect();
            let signatures = signatures
                .and_then(|all| if all.is_empty() { Err(MUST) } else { Ok(all) })
                .map_err(|why| HandlerError::unavailable("credentials", why))?;
            request = request
                .header("webhook-id", id)
                .header("webhook-timestamp", now)
                .header("webhook-signature", signatures.join(" "));
        }
        if let Some(bearer) = &self.bearer {
            let token = bearer.text().await?;
            if !is_token(&token) {
                return Err(HandlerError::unavailable("credentials", NO_TOKEN));
            }
            request = request.bearer_auth(token);
        }
        Ok(request)
    }

    fn read(&self, answer: &Response, ids: &[String]) -> Answers {
        let status = answer.status;
        let said = format!("{} answered {status}", self.name);
        let error = match status {
            200..300 => return Self::accepted(answer, ids),
            _ if self.reject.contains(&status) => HandlerError::reject(status.to_string(), said),
            401 | 403 | 407 => HandlerError::unavailable("credentials", said),
            // A deployment that is half done, a moved address: nothing is lost.
            300..=399 | 404 | 405 | 408 | 410 | 425 | 502 | 503 | 504 => {
                HandlerError::unavailable(status.to_string(), said)
            }
            429 => HandlerError::busy(status.to_string(), said),
            _ => HandlerError::call_failed(status.to_string(), said),
        };
        Err(as_asked(error, answer))
    }

    /// Reads an answer that accepts the request. It may say more, in the grammar of answers.
    fn accepted(answer: &Response, ids: &[String]) -> Answers {
        let all_done = || Ok(ids.iter().map(|_| Ok(Outcome::default())).collect());
        // What was not read decides nothing. What is no object says nothing, however long it is.
        if answer.is_cut && answer.body.trim_ascii_start().starts_with(b"{") {
            return Err(bad(format!("the answer has more than {MOST_ANSWER} bytes")));
        }
        let content = answer.headers.get("content-type");
        let content = content.and_then(|value| value.to_str().ok());
        let is_json = content.is_some_and(|text| text.to_ascii_lowercase().contains("json"));
        // Many servers send JSON as text, or without a type.
        if !is_json && serde_json::from_slice::<IgnoredAny>(&answer.body).is_err() {
            return all_done();
        }
        of_answer(&answer.body, ids, BatchOrder::Each).unwrap_or_else(all_done)
    }
}

impl Receiver for Endpoint {
    fn limits(&self) -> (usize, usize) {
        (usize::MAX, MOST_BYTES)
    }

    fn may_publish(&self) -> Option<&[String]> {
        Some(&self.follow_ups)
    }

    fn item(&self, sent: &Sent<'_>) -> Result<Item, HandlerError> {
        let refused = |why: String| HandlerError::reject("payload", why);
        let data: &RawValue =
            serde_json::from_str(sent.payload).map_err(|error| refused(error.to_string()))?;
        let published = i64::try_from(sent.published).ok();
        let published = published.and_then(|time| jiff::Timestamp::from_microsecond(time).ok());
        let time = published.unwrap_or_default().to_string();
        let id = sent.message_id();
        let event = CloudEvent {
            specversion: "1.0",
            id: &id,
            source: &self.source,
            r#type: sent.kind,
            time: &time,
            datacontenttype: "application/json",
            data,
            timestamp: &time,
            sequence: sent.sequence(),
            attempt: sent.attempt,
            partitionkey: sent.group,
            correlationid: sent.correlation_id,
            traceparent: sent.traceparent.as_deref(),
        };
        let text = serde_json::to_string(&event).map_err(|error| refused(error.to_string()))?;
        Ok(Item { id, text })
    }

    fn send(self: Arc<Self>, items: Vec<Item>) -> BoxFuture<'static, Answers> {
        async move { self.post(items).await }.boxed()
    }

    /// Whether the keys can be read and sign, and whether a `HEAD` has an answer, whatever it is.
    fn examine(&self, _: Expected) -> BoxFuture<'_, Result<(), HandlerError>> {
        async move {
            let client = self.client().await?;
            self.signed(client.post(self.url.clone()), "", "")
                .await
                .map(drop)?;
            let asked = exchange(client.head(self.url.clone()), 0).await;
            asked.map(drop).map_err(unreachable)
        }
        .boxed()
    }
}

/// Whether a text is a token, as RFC 6750 says. Whoever declares targets names secrets of the function's
/// role: that of the database, which is JSON, and files are none.
fn is_token(text: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_token)
}

/// Signs a body and what stands before it, with a key such as `whsec_…`. The error does not quote it.
fn signature(key: &str, before: &str, body: &str) -> Result<String, &'static str> {
    let encoded = key.strip_prefix("whsec_").ok_or(MUST)?;
    let key = STANDARD.decode(encoded).map_err(|_| MUST)?;
    if !(24..=64).contains(&key.len()) {
        return Err(MUST);
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|_| MUST)?;
    mac.update(before.as_bytes());
    mac.update(body.as_bytes());
    Ok(format!(
        "v1,{}",
        STANDARD.encode(mac.finalize().into_bytes())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    fn endpoint(at: Https) -> Endpoint {
        let https = "https://billing.example.com/events".to_owned();
        Endpoint::new("billing", Https { https, ..at }).unwrap()
    }

    const OF_A_URL: &str = r#"
200 [] => done
202 [content-type: application/json] {"ok": true} => done
204 [] => done
200 [content-type: application/json; charset=utf-8] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done, retry failed
200 [content-type: Application/JSON] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done, retry failed
200 [content-type: text/plain] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done, retry failed
200 [] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done, retry failed
200 [content-type: text/plain] { => done
200 [content-type: application/json] { => call: failed bad_answer
400 [] => call: reject 400
413 [] => call: reject 413
415 [] => call: reject 415
422 [] => call: reject 422
401 [] => call: unavailable credentials
403 [] => call: unavailable credentials
407 [] => call: unavailable credentials
302 [location: http://169.254.169.254/] => call: unavailable 302
404 [] => call: unavailable 404
405 [] => call: unavailable 405
410 [] => call: unavailable 410
408 [] => call: unavailable 408
425 [] => call: unavailable 425
429 [retry-after: 30] => call: busy 429 after 30s
429 [retry-after: 0] => call: busy 429
502 [] => call: unavailable 502
503 [retry-after: soon] => call: unavailable 503
504 [] => call: unavailable 504
409 [] => call: failed 409
500 [] secret => call: failed 500
501 [] => call: failed 501
"#;

    const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

    #[test]
    fn each_answer_of_a_url_has_its_verdict() {
        let target = endpoint(Https::default());
        each_means(OF_A_URL, |given| target.read(given, &ids(2)));
        let own = endpoint(Https {
            reject: Some(vec![409]),
            ..Https::default()
        });
        assert_eq!(
            meant(own.read(&answer(409, &[], ""), &ids(1))),
            "call: reject 409"
        );
        assert_eq!(
            meant(own.read(&answer(400, &[], ""), &ids(1))),
            "call: failed 400"
        );
        for (headers, events) in [(&JSON[..], 1), (&JSON, 2), (&[], 1), (&[], 2)] {
            let cut = Response {
                is_cut: true,
                ..answer(200, headers, "{")
            };
            let says = meant(target.read(&cut, &ids(events)));
            assert_eq!(says, "call: failed bad_answer");
        }
        let page = Response {
            is_cut: true,
            ..answer(200, &[], "<html>")
        };
        assert_eq!(meant(target.read(&page, &ids(1))), "done");
    }

    /// The example of the specification of Standard Webhooks, and a CloudEvent with all that its standards
    /// name.
    #[test]
    fn a_request_is_signed_as_the_standard_says_and_its_body_is_a_cloud_event() {
        let (before, body) = (
            "msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.",
            "{\"test\": 2432232314}",
        );
        let signed = signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", before, body);
        assert_eq!(
            signed.unwrap(),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        for key in [
            "",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_MfKQ",
            "whsec_!!",
        ] {
            let refused = signature(key, before, body).unwrap_err();
            assert!(
                refused.contains("whsec_") && (key.is_empty() || !refused.contains(key)),
                "{refused}"
            );
        }
        let target = endpoint(Https {
            source: Some("/shop".to_owned()),
            ..Https::default()
        });
        let item = target
            .item(&sent("{\"sku\":1.0}", Some("order 7")))
            .unwrap();
        let expected = format!(
            r#"{{"specversion":"1.0","id":"{}","source":"/shop","type":"order_placed","time":"2023-11-14T22:13:20.123456Z","datacontenttype":"application/json","data":{{"sku":1.0}},"timestamp":"2023-11-14T22:13:20.123456Z","sequence":"00000000000000000007","attempt":2,"partitionkey":"order 7","correlationid":"case 9","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}"#,
            item.id
        );
        assert_eq!(item.text, expected);
    }

    #[test]
    fn what_is_no_token_is_not_sent_as_one() {
        for (text, is_one) in [
            ("eyJhbGciOiJI.eyJzdWIi_-~+/==", true),
            ("", false),
            (r#"{"username": "drain", "password": "x"}"#, false),
            ("root:x:0:0", false),
            ("two words", false),
            ("A=1\0B=2", false),
        ] {
            assert_eq!(is_token(text), is_one, "{text:?}");
        }
    }
}
