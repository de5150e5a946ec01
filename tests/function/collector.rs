//! A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, and remembers all of it.
//! <https://opentelemetry.io/docs/specs/otlp/#otlphttp>

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tidegate_otel::Telemetry;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// With success.
    Takes,
    /// With 500.
    Fails,
    /// Never.
    Hangs,
}

/// A request, as it came.
#[derive(Debug, Clone)]
pub struct Received {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

struct Shared {
    manner: Manner,
    received: Mutex<Vec<Received>>,
}

/// The running stand-in. It stops when dropped.
pub struct Collector {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

impl Collector {
    pub async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            manner,
            received: Mutex::default(),
        });
        let routes = Router::new()
            .route("/v1/traces", post(take))
            .layer(DefaultBodyLimit::max(64 << 20))
            .with_state(shared.clone());
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        Self {
            address,
            shared,
            server: server.abort_handle(),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The library's own way here.
    pub fn telemetry(&self, ratio: &str) -> Telemetry {
        self.telemetry_with(&[("TIDEGATE_TRACE_RATIO", ratio)])
    }

    pub fn telemetry_with(&self, settings: &[(&str, &str)]) -> Telemetry {
        telemetry(&self.url(), &[settings, &[AMPLE_TIMEOUT]].concat())
    }

    /// All requests so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    pub fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        let received = self.received().into_iter();
        let decoded =
            |request: Received| ExportTraceServiceRequest::decode(&*request.body).unwrap();
        received.map(decoded).collect()
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let resources = self
            .exports()
            .into_iter()
            .flat_map(|export| export.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The spans of this name.
    pub fn named(&self, name: &str) -> Vec<Span> {
        let spans = self.spans().into_iter();
        spans.filter(|span| span.name == name).collect()
    }

    /// The only span of this name.
    pub fn one(&self, name: &str) -> Span {
        let mut spans = self.named(name);
        assert_eq!(spans.len(), 1, "{name}: {:?}", self.spans());
        spans.remove(0)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// So long everything may take to arrive, in a test that waits for it. What is built for tests takes more
/// than the usual.
pub const AMPLE_TIMEOUT: (&str, &str) = ("OTEL_EXPORTER_OTLP_TIMEOUT", "180000");

/// The library's own way to a collector.
pub fn telemetry(url: &str, settings: &[(&str, &str)]) -> Telemetry {
    let lookup = |name: &str| {
        if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
            return Some(url.to_owned());
        }
        let found = settings.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Telemetry::from_settings(&lookup).unwrap().unwrap()
}

/// Attributes as text.
pub fn attributes(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => panic!("{other:?}"),
    };
    let pair = |attribute: &KeyValue| {
        let value = attribute.value.as_ref().unwrap().value.as_ref().unwrap();
        (attribute.key.clone(), text(value))
    };
    attributes.iter().map(pair).collect()
}

/// An id as people write it.
pub fn hex(id: &[u8]) -> String {
    let digits = id.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
    digits.collect()
}

async fn take(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    shared.received.lock().unwrap().push(Received {
        path: uri.path().to_owned(),
        headers,
        body: body.into(),
    });
    match shared.manner {
        Manner::Takes => ([("content-type", "application/x-protobuf")], "").into_response(),
        Manner::Fails => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Manner::Hangs => std::future::pending().await,
    }
}
