//! Sends one request with all spans and one with all metrics, concurrently, within a limit that both share.

use std::time::Duration;

use futures_util::future::{FutureExt, join};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Sent};
use prost::Message;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Request, redirect};
use tokio::sync::OnceCell;

use super::metric::Metrics;
use super::settings::Endpoint;
use super::{Inner, SCHEMA, scope};
use crate::config::{Lookup, read_file};
#[cfg(feature = "aws")]
use crate::connect::Signer;
use crate::connect::Trust;
use crate::error::Error;

/// The longest answer that is read, in bytes.
const MOST_READ: u64 = 65_536;

const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

/// The client and its settings.
pub(super) struct Way {
    trust: Trust,
    client: OnceCell<Client>,
    #[cfg(feature = "aws")]
    signer: Signer,
}

/// The data that was not sent.
#[derive(Default)]
pub(super) struct Lost {
    pub spans: u64,
    pub metrics: bool,
    /// The first error.
    pub why: Option<String>,
}

impl Way {
    /// # Errors
    /// [`Error::Config`] if `OTEL_EXPORTER_OTLP_CERTIFICATE` names no certificates.
    pub(super) fn new(lookup: Lookup<'_>) -> Result<Self, Error> {
        // AWS's own variable, which its SDK also follows, is the fallback for setups without another collector.
        let named = ["OTEL_EXPORTER_OTLP_CERTIFICATE", "AWS_CA_BUNDLE"];
        let named = named.iter().find_map(|name| Some((*name, lookup(name)?)));
        let trust = match named {
            Some((name, path)) => Trust::only(&read_file(name, &path)?, &name)?,
            None => Trust::system(),
        };
        Ok(Self {
            trust,
            client: OnceCell::new(),
            #[cfg(feature = "aws")]
            signer: Signer::default(),
        })
    }

    /// Returns the client. It keeps no connection open, because a function may be frozen for longer than sockets live.
    async fn client(&self) -> Result<&Client, Error> {
        let make = async || {
            Client::builder()
                .redirect(redirect::Policy::none())
                .pool_max_idle_per_host(0)
                .tls_backend_preconfigured(self.trust.connector().await?)
                .build()
                .map_err(|error| Error::Config(format!("HTTP client: {error}")))
        };
        self.client.get_or_try_init(make).await
    }

    /// Posts a message and returns the answer.
    async fn post(&self, to: &Endpoint, body: Vec<u8>) -> Result<Vec<u8>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        let request = self.request(to, body).await?;
        let answer = client.execute(request).await.map_err(failed)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("the collector answered {status}"));
        }
        // A longer answer, or one of unknown length, contains nothing that is needed.
        let is_short = answer
            .content_length()
            .is_some_and(|length| length <= MOST_READ);
        let read = if is_short {
            answer.bytes().await.ok()
        } else {
            None
        };
        Ok(read.map(Vec::from).unwrap_or_default())
    }

    #[cfg_attr(
        not(feature = "aws"),
        expect(clippy::unused_async, reason = "as with AWS's signatures")
    )]
    async fn request(&self, to: &Endpoint, body: Vec<u8>) -> Result<Request, String> {
        let mut request = Request::new(reqwest::Method::POST, to.url.clone());
        request.headers_mut().extend(to.headers.clone());
        request.headers_mut().insert(CONTENT_TYPE, PROTOBUF);
        #[cfg(feature = "aws")]
        if let Some(place) = &to.signing {
            let signed = self
                .signer
                .headers(&place.service, &place.region, to.url.as_str(), &body);
            let signed = signed
                .await
                .map_err(|error| format!("it cannot be signed: {error}"))?;
            request.headers_mut().extend(signed);
        }
        *request.body_mut() = Some(body.into());
        Ok(request)
    }
}

/// Sends spans and metrics, each within the limit.
pub(super) async fn all(
    to: &Inner,
    spans: Vec<Sent>,
    metrics: Option<Metrics>,
    limit: Duration,
) -> Lost {
    let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
    let has_metrics = metrics.is_some();
    let (traces, figures) = join(
        in_time(limit, send_spans(to, spans).boxed()),
        in_time(limit, send_metrics(to, metrics).boxed()),
    )
    .await;
    let mut lost = Lost::default();
    match traces {
        Ok(rejected) => lost.spans = rejected.min(count),
        Err(why) => (lost.spans, lost.why) = (count, Some(why)),
    }
    if let Err(why) = figures {
        lost.metrics = has_metrics;
        lost.why.get_or_insert(why);
    }
    lost
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

/// Sends spans and returns how many were refused.
async fn send_spans(to: &Inner, spans: Vec<Sent>) -> Result<u64, String> {
    let Some(endpoint) = to.settings.traces.as_ref().filter(|_| !spans.is_empty()) else {
        return Ok(0);
    };
    let message = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(to.settings.resource.clone()),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope()),
                spans,
                schema_url: SCHEMA.to_owned(),
            }],
            schema_url: SCHEMA.to_owned(),
        }],
    };
    let answer = to.way.post(endpoint, message.encode_to_vec()).await?;
    let answer = ExportTraceServiceResponse::decode(answer.as_slice()).unwrap_or_default();
    let refused = answer.partial_success.map_or(0, |part| part.rejected_spans);
    Ok(u64::try_from(refused).unwrap_or_default())
}

async fn send_metrics(to: &Inner, metrics: Option<Metrics>) -> Result<(), String> {
    let (Some(endpoint), Some(metrics)) = (&to.settings.metrics, metrics) else {
        return Ok(());
    };
    let message = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(to.settings.resource.clone()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics: metrics.made,
                schema_url: SCHEMA.to_owned(),
            }],
            schema_url: SCHEMA.to_owned(),
        }],
    };
    to.way
        .post(endpoint, message.encode_to_vec())
        .await
        .map(drop)
}

/// Returns all causes of an error, without the address, which may hold a password.
fn failed(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
