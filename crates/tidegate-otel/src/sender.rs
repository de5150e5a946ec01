//! Makes the exporter and its HTTP client.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::SpanExporter as _;
use reqwest::{Client, redirect};
use tidegate::connect::Trust;
use tidegate::{Error, Lookup};
use tidegate_aws::Signer;
use tokio::sync::OnceCell;

use crate::settings::{SigningScope, TraceSettings};

/// Why the last request got no answer. The exporter says only that the network failed.
pub(crate) type Reason = Arc<Mutex<Option<String>>>;

/// # Errors
/// [`Error::Config`] if a standard variable that the exporter reads itself is malformed.
pub(crate) fn exporter(
    lookup: Lookup<'_>,
    settings: &TraceSettings,
    reason: Reason,
) -> Result<SpanExporter, Error> {
    let sender = Sender {
        trust: settings.trust.clone(),
        client: OnceCell::new(),
        signing: settings.signing.clone(),
        signer: Signer::default(),
        reason,
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(settings.endpoint.as_str())
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(sender)
        // It would block its thread between two attempts.
        .with_retry_policy(RetryPolicy::default().with_max_retries(0))
        .build();
    let mut exporter =
        exporter.map_err(|error| Error::Config(format!("OTEL_EXPORTER_OTLP: {error}")))?;
    exporter.set_resource(&resource(lookup));
    Ok(exporter)
}

/// Returns the attributes of what the spans come from: the function, or the service that the variables name.
fn resource(lookup: Lookup<'_>) -> Resource {
    let function = lookup("AWS_LAMBDA_FUNCTION_NAME");
    let service = function.clone().unwrap_or_else(|| "tidegate".to_owned());
    let mut resource = Resource::builder_empty()
        .with_service_name(service)
        .with_detector(Box::new(TelemetryResourceDetector));
    if let Some(function) = function {
        let named = [
            ("faas.name", Some(function)),
            ("faas.version", lookup("AWS_LAMBDA_FUNCTION_VERSION")),
            ("cloud.provider", Some("aws".to_owned())),
            ("cloud.platform", Some("aws_lambda".to_owned())),
            ("cloud.region", lookup("AWS_REGION")),
        ];
        let known = named
            .into_iter()
            .filter_map(|(name, value)| Some(KeyValue::new(name, value?)));
        resource = resource.with_attributes(known);
    }
    resource = resource.with_detector(Box::new(EnvResourceDetector::new()));
    if let Some(service) = lookup("OTEL_SERVICE_NAME") {
        resource = resource.with_service_name(service);
    }
    resource.build()
}

/// Posts the exporter's requests, over the project's TLS, and signs those to AWS.
struct Sender {
    trust: Trust,
    client: OnceCell<Client>,
    signing: Option<SigningScope>,
    signer: Signer,
    reason: Reason,
}

/// The exporter wants it. A credential is nothing to show.
impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl Sender {
    /// The client keeps no connection open, because a function may be frozen for longer than sockets live.
    async fn client(&self) -> Result<&Client, HttpError> {
        let make = async || -> Result<Client, HttpError> {
            let client = Client::builder()
                .redirect(redirect::Policy::none())
                .pool_max_idle_per_host(0)
                .tls_backend_preconfigured(self.trust.connector().await?);
            Ok(client.build()?)
        };
        self.client.get_or_try_init(make).await
    }

    /// Sends a request. The body of the answer is not read, because it contains nothing that is needed.
    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        if let Some(SigningScope { service, region }) = &self.signing {
            let (url, body) = (request.uri().to_string(), request.body().clone());
            let signed = self
                .signer
                .headers(service, region, "POST", &url, &[], &body)
                .await;
            let signed = signed.map_err(|error| format!("it cannot be signed: {error}"))?;
            request.headers_mut().extend(signed);
        }
        let answer = self.client().await?.execute(request.try_into()?).await?;
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = answer.status();
        Ok(response)
    }
}

#[async_trait::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.send(request).await;
        if let Err(error) = &answer {
            let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            *reason = Some(causes(error.as_ref()));
        }
        answer
    }
}

/// Returns all causes of an error, without the address, which may hold a password.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = match error.downcast_ref::<reqwest::Error>() {
        Some(_) => "the collector cannot be reached".to_owned(),
        None => error.to_string(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
