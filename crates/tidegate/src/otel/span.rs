//! One span, in the form in which it is sent.

use std::time::SystemTime;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span as Sent, Status};

use super::{attribute, nanos, text};
use crate::trace::TraceContext;

/// The role of a span in its trace.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Internal,
    Client,
    Producer,
    Consumer,
}

/// A span under construction.
pub(crate) struct Span(Sent);

impl Span {
    /// Creates a span at this position of its trace, with no length.
    pub(crate) fn new(position: &TraceContext, kind: Kind, name: String) -> Self {
        let kind = match kind {
            Kind::Internal => SpanKind::Internal,
            Kind::Client => SpanKind::Client,
            Kind::Producer => SpanKind::Producer,
            Kind::Consumer => SpanKind::Consumer,
        };
        let now = nanos(SystemTime::now());
        Self(Sent {
            trace_id: bytes(position.trace_id()),
            span_id: bytes(position.span_id()),
            parent_span_id: position.parent_span_id().map(bytes).unwrap_or_default(),
            flags: u32::from(position.is_sampled()),
            name,
            kind: kind.into(),
            start_time_unix_nano: now,
            end_time_unix_nano: now,
            ..Sent::default()
        })
    }

    pub(crate) fn lasting(mut self, began: SystemTime, ended: SystemTime) -> Self {
        self.0.start_time_unix_nano = nanos(began);
        self.0.end_time_unix_nano = nanos(ended.max(began));
        self
    }

    /// Adds the attributes that every span of an event has. `kind` is the event's kind.
    pub(crate) fn messaging(self, operation_type: &str, operation: &str, kind: &str) -> Self {
        self.text("messaging.system", "tidegate")
            .text("messaging.operation.type", operation_type)
            .text("messaging.operation.name", operation)
            .text("messaging.destination.name", kind)
    }

    pub(crate) fn text(mut self, key: &str, value: impl Into<String>) -> Self {
        self.0.attributes.push(text(key, value));
        self
    }

    pub(crate) fn number(mut self, key: &str, value: u64) -> Self {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.0
            .attributes
            .push(attribute(key, Value::IntValue(value)));
        self
    }

    pub(crate) fn flag(mut self, key: &str, value: bool) -> Self {
        self.0
            .attributes
            .push(attribute(key, Value::BoolValue(value)));
        self
    }

    /// Adds a link to a position of another trace.
    pub(crate) fn linked(mut self, to: &TraceContext) -> Self {
        self.0.links.push(Link {
            trace_id: bytes(to.trace_id()),
            span_id: bytes(to.span_id()),
            flags: u32::from(to.is_sampled()),
            ..Link::default()
        });
        self
    }

    /// Marks the span as failed, with this error code.
    pub(crate) fn failed(mut self, code: &str) -> Self {
        self.0.status = Some(Status {
            code: StatusCode::Error.into(),
            ..Status::default()
        });
        self.text("error.type", if code.is_empty() { "_OTHER" } else { code })
    }

    pub(super) fn has_failed(&self) -> bool {
        self.0.status.is_some()
    }

    pub(super) fn into_sent(self) -> Sent {
        self.0
    }
}

/// Returns the bytes of an id in hex, which a [`TraceContext`] has checked.
fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks_exact(2);
    let byte = |pair| {
        std::str::from_utf8(pair)
            .ok()
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    pairs.filter_map(byte).collect()
}
