//! The layer that turns `tracing` spans into OpenTelemetry's.
//!
//! The crate `tidegate` says in fields where its spans stand. The program's own spans stand below the
//! handlers that create them. Their fields are never sent: `#[instrument]` puts every argument into them,
//! including payloads (I9).

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::SystemTime;

use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tidegate::logs::SPANS;
use tidegate::trace::{self, TraceContext};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use crate::Telemetry;

/// The semantic conventions that the names follow.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

const CORRELATION: &str = "messaging.message.conversation_id";

/// Records spans.
pub(crate) struct Recorder(pub(crate) Telemetry);

/// An open span.
struct Open {
    began: SystemTime,
    entered: bool,
    /// When it was left last.
    left: Option<SystemTime>,
    position: Option<TraceContext>,
    parent: SpanId,
    links: Vec<Link>,
    kind: SpanKind,
    name: Option<String>,
    attributes: Vec<KeyValue>,
}

impl Open {
    fn new() -> Self {
        Self {
            began: SystemTime::now(),
            entered: false,
            left: None,
            position: None,
            parent: SpanId::INVALID,
            links: Vec::new(),
            kind: SpanKind::Internal,
            name: None,
            attributes: Vec::new(),
        }
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.attributes.push(KeyValue::new(field.name(), value));
    }

    fn end(self, name: &'static str, position: &TraceContext) -> SpanData {
        let has_failed = |attribute: &KeyValue| attribute.key.as_str() == "error.type";
        let status = if self.attributes.iter().any(has_failed) {
            Status::error("")
        } else {
            Status::Unset
        };
        let mut links = SpanLinks::default();
        links.links = self.links;
        SpanData {
            span_context: context(position),
            parent_span_id: self.parent,
            parent_span_is_remote: false,
            span_kind: self.kind,
            name: self.name.map_or(Cow::Borrowed(name), Cow::Owned),
            start_time: self.began,
            end_time: self.left.unwrap_or_else(SystemTime::now).max(self.began),
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status,
            instrumentation_scope: InstrumentationScope::builder("tidegate")
                .with_version(env!("CARGO_PKG_VERSION"))
                .with_schema_url(SCHEMA)
                .build(),
        }
    }
}

impl Visit for Open {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "trace.position" => self.position = TraceContext::parse(value),
            "trace.parent" => self.parent = span_id(value),
            "trace.links" => {
                let positions = value.split(',').filter_map(TraceContext::parse);
                self.links = positions
                    .map(|position| Link::with_context(context(&position)))
                    .collect();
            }
            "otel.name" => self.name = Some(value.to_owned()),
            "otel.kind" => {
                self.kind = match value {
                    "client" => SpanKind::Client,
                    "producer" => SpanKind::Producer,
                    "consumer" => SpanKind::Consumer,
                    _ => SpanKind::Internal,
                };
            }
            "error.type" if value.is_empty() => self.put(field, "_OTHER"),
            _ => self.put(field, value.to_owned()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

fn context(position: &TraceContext) -> SpanContext {
    SpanContext::new(
        TraceId::from_hex(position.trace_id()).unwrap_or(TraceId::INVALID),
        span_id(position.span_id()),
        TraceFlags::default().with_sampled(position.is_sampled()),
        false,
        TraceState::NONE,
    )
}

fn span_id(hex: &str) -> SpanId {
    SpanId::from_hex(hex).unwrap_or(SpanId::INVALID)
}

/// Returns the position of the nearest span above that has one, or else that of the running work.
fn above<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>) -> Option<TraceContext> {
    let position = |above: SpanRef<'a, S>| above.extensions().get::<Open>()?.position.clone();
    let recorded = span.scope().skip(1).find_map(position);
    recorded.or_else(trace::current)
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut open = Open::new();
        if attributes.metadata().target() == SPANS {
            attributes.record(&mut open);
        } else {
            let Some(above) = above(&span).filter(TraceContext::is_sampled) else {
                return;
            };
            open.parent = span_id(above.span_id());
            open.position = Some(above.child());
        }
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        if span.metadata().target() != SPANS {
            return;
        }
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(open);
        }
    }

    fn on_enter(&self, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>()
            && !open.entered
        {
            // An attempt waits for its handlers first.
            (open.entered, open.began) = (true, SystemTime::now());
        }
    }

    fn on_exit(&self, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            open.left = Some(SystemTime::now());
        }
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(&id) else { return };
        let Some(mut open) = span.extensions_mut().remove::<Open>() else {
            return;
        };
        let Some(position) = open.position.take() else {
            return;
        };
        let telemetry = &self.0.0;
        if !telemetry.settings.shows_correlation {
            open.attributes
                .retain(|one| one.key.as_str() != CORRELATION);
        }
        if span.metadata().target() != SPANS || span.name() != "drain" {
            return telemetry.spool.push(open.end(span.name(), &position));
        }
        // What the shell says of the invocation.
        if let Some(invocation) = span.parent()
            && let Some(around) = invocation.extensions().get::<Open>()
        {
            open.attributes.extend_from_slice(&around.attributes);
        }
        telemetry.spool.push_last(open.end(span.name(), &position));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tracing::Instrument;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A span of an unsampled trace.
    pub(crate) fn span(status: Status) -> SpanData {
        let span = Open::new().end("work", &TraceContext::root(false));
        SpanData { status, ..span }
    }

    #[tokio::test]
    async fn own_spans_nest_below_the_work_that_is_recorded_and_say_nothing_of_their_fields() {
        let collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        let lookup = |name: &str| (name == collector.0).then(|| collector.1.to_owned());
        let telemetry = Telemetry::from_settings(&lookup).unwrap().unwrap();
        let all = Targets::new().with_default(tracing::Level::TRACE);
        let subscriber = tracing_subscriber::registry().with(telemetry.layer("tidegate_otel", all));
        let _here = tracing::subscriber::set_default(subscriber);
        let position = TraceContext::root(true);
        let work = async {
            let outer = tracing::info_span!("outer", card = "canary");
            async { tracing::info_span!("inner").in_scope(|| {}) }
                .instrument(outer)
                .await;
            tracing::info_span!(target: "other", "not ours").in_scope(|| {});
        };
        trace::within(Some(position.clone()), work).await;
        tracing::info_span!("outside").in_scope(|| {});
        let unsampled = Some(TraceContext::root(false));
        let work = async { tracing::info_span!("unsampled").in_scope(|| {}) };
        trace::within(unsampled, work).await;
        let (spans, _) = telemetry.0.spool.take();
        let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["inner", "outer"]);
        assert_eq!(spans[0].parent_span_id, spans[1].span_context.span_id());
        assert_eq!(spans[1].parent_span_id, span_id(position.span_id()));
        assert!(!format!("{spans:?}").contains("canary"));
    }
}
