//! Owns the spans that wait to be sent, a bounded number of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::Status;
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tidegate_admin::logs::SPANS;

/// The number of spans that are kept.
const MOST_SPANS: usize = 2048;

/// The part of these places that is reserved for failures.
const FOR_FAILURES: usize = 256;

const CORRELATION: &str = "messaging.message.conversation_id";

/// Spans that wait to be sent, and the number of those that found no room. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    kept: Arc<Mutex<(Vec<SpanData>, u64)>>,
    shows_correlation: bool,
}

impl Spool {
    pub(crate) fn new(shows_correlation: bool) -> Self {
        Self {
            kept: Arc::default(),
            shows_correlation,
        }
    }

    pub(crate) fn take(&self) -> (Vec<SpanData>, u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *kept)
    }
}

impl SpanProcessor for Spool {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    /// Keeps a span. If there is no room, only counts it. For the span of a whole run there always is.
    fn on_end(&self, mut span: SpanData) {
        if is_of_tidegate(&span.attributes) {
            span.attributes.remove(0);
            let shown = |name: &str| self.shows_correlation || name != CORRELATION;
            span.attributes.retain(|one| shown(one.key.as_str()));
        } else {
            span.attributes.clear();
            span.status = Status::Unset;
        }
        let failed = matches!(span.status, Status::Error { .. });
        let room = match span.name.as_ref() {
            "drain" => MOST_SPANS,
            _ if failed => MOST_SPANS - 1,
            _ => MOST_SPANS - FOR_FAILURES,
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0.len() < room {
            kept.0.push(span);
        } else {
            kept.1 += 1;
        }
    }

    /// Does nothing: spans are sent by [`crate::Telemetry::recorded`], which need not block a thread.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Whether a span is of the crate `tidegate`. Its target is the first attribute.
pub(crate) fn is_of_tidegate(attributes: &[KeyValue]) -> bool {
    let target = attributes.first().map(|first| &first.value);
    matches!(target, Some(Value::String(target)) if target.as_str() == SPANS)
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, SpanBuilder, Tracer, TracerProvider};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;

    #[test]
    fn spans_are_bounded_and_what_went_wrong_has_room_when_the_rest_has_none() {
        let spool = Spool::new(false);
        let provider = SdkTracerProvider::builder().with_span_processor(spool.clone());
        let tracer = provider.build().tracer("tidegate");
        let push = |name, status| {
            let target = [KeyValue::new("target", SPANS)];
            let builder = SpanBuilder::from_name(name).with_attributes(target);
            let mut span = tracer.build_with_context(builder, &Context::new());
            span.set_status(status);
        };
        for _ in 0..MOST_SPANS {
            push("work", Status::Unset);
        }
        for _ in 0..MOST_SPANS {
            push("work", Status::error(""));
        }
        push("drain", Status::Unset);
        let (spans, dropped) = spool.take();
        assert_eq!(spans.len(), MOST_SPANS);
        let failed = spans.iter().filter(|span| span.status != Status::Unset);
        assert_eq!(failed.count(), FOR_FAILURES - 1);
        assert_eq!(
            usize::try_from(dropped).unwrap(),
            FOR_FAILURES + MOST_SPANS - (FOR_FAILURES - 1)
        );
        assert_eq!(spool.take().1, 0, "counted once");
    }
}
