//! Gives OpenTelemetry's spans their places. `tracing-opentelemetry` makes them from those of `tracing`.
//!
//! The crate `tidegate` says in fields where its spans stand. The program's own spans stand below the
//! handlers that create them. Except for `otel.name` and `otel.kind`, their fields are never sent:
//! `#[instrument]` puts every argument into them, including payloads (I9).

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use opentelemetry::trace::{
    Link, SpanBuilder, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer, TracerProvider,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, Sampler, SdkTracer, SdkTracerProvider, Span,
};
use tidegate::trace::{self, TraceContext};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

use crate::spool::{Spool, is_of_tidegate};

/// The semantic conventions that the names follow.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

thread_local! {
    /// The ids of the span that is built next.
    static NEXT: Cell<(TraceId, SpanId)> = const { Cell::new((TraceId::INVALID, SpanId::INVALID)) };
}

/// Returns the layer that keeps spans in the spool.
pub(crate) fn layer<S>(spool: Spool) -> OpenTelemetryLayer<S, Recorder>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let provider = SdkTracerProvider::builder()
        .with_span_processor(spool)
        .with_id_generator(NextIds)
        // The publisher decides, or the drain: what is not to be recorded has no position.
        .with_sampler(Sampler::AlwaysOn)
        .build();
    let scope = InstrumentationScope::builder("tidegate")
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(SCHEMA)
        .build();
    let recorder = Recorder {
        tracer: provider.tracer_with_scope(scope),
        invocation: Mutex::default(),
    };
    tracing_opentelemetry::layer()
        .with_tracer(recorder)
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        // Spans are built when they close, or when another begins below them.
        .with_context_activation(false)
}

/// Builds spans at the positions that they have in their traces.
pub(crate) struct Recorder {
    tracer: SdkTracer,
    /// What the shell says of the invocation, for the drain's span.
    invocation: Mutex<Vec<KeyValue>>,
}

impl Recorder {
    /// Returns the position of a span of the queue, and that of the span above it.
    fn place(&self, builder: &mut SpanBuilder) -> Option<(SpanContext, SpanContext)> {
        let attributes = builder.attributes.get_or_insert_default();
        let mut take = |name| {
            let found = attributes.iter().position(|one| one.key.as_str() == name)?;
            Some(attributes.swap_remove(found).value.to_string())
        };
        let (position, parent) = (take("trace.position"), take("trace.parent"));
        if let Some(links) = take("trace.links") {
            let positions = links.split(',').filter_map(TraceContext::parse);
            let linked = positions.map(|position| Link::with_context(context(&position)));
            builder.links = Some(linked.collect());
        }
        let mut invocation = self
            .invocation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match (builder.name.as_ref(), &position) {
            ("invocation", None) => *invocation = attributes.split_off(1),
            ("drain", Some(_)) => attributes.append(&mut invocation),
            _ => {}
        }
        let own = context(&TraceContext::parse(&position?)?);
        let above = at(own.trace_id(), span_id(&parent.unwrap_or_default()));
        Some((own, above))
    }
}

impl Tracer for Recorder {
    type Span = Span;

    fn build_with_context(&self, mut builder: SpanBuilder, above: &Context) -> Span {
        let attributes = builder.attributes.as_deref().unwrap_or_default();
        let place = if is_of_tidegate(attributes) {
            self.place(&mut builder)
        } else {
            below(above)
        };
        let around = match place {
            Some((own, above)) => {
                NEXT.set((own.trace_id(), own.span_id()));
                Context::new().with_remote_span_context(above)
            }
            None => Context::new().with_telemetry_suppressed(),
        };
        self.tracer.build_with_context(builder, &around)
    }
}

/// Returns the position of one of the program's own spans, and the one above it: that of the nearest recorded
/// span above, or else of the running work.
fn below(above: &Context) -> Option<(SpanContext, SpanContext)> {
    let recorded = Some(above.span().span_context().clone()).filter(SpanContext::is_valid);
    let running = || trace::current().filter(TraceContext::is_sampled);
    let above = recorded.or_else(|| Some(context(&running()?)))?;
    let own = RandomIdGenerator::default().new_span_id();
    Some((at(above.trace_id(), own), above))
}

fn context(position: &TraceContext) -> SpanContext {
    let trace_id = TraceId::from_hex(position.trace_id()).unwrap_or(TraceId::INVALID);
    at(trace_id, span_id(position.span_id()))
}

fn span_id(hex: &str) -> SpanId {
    SpanId::from_hex(hex).unwrap_or(SpanId::INVALID)
}

fn at(trace_id: TraceId, span_id: SpanId) -> SpanContext {
    let sampled = TraceFlags::SAMPLED;
    SpanContext::new(trace_id, span_id, sampled, false, TraceState::NONE)
}

/// The ids of the next span.
#[derive(Debug)]
struct NextIds;

impl IdGenerator for NextIds {
    fn new_trace_id(&self) -> TraceId {
        NEXT.get().0
    }

    fn new_span_id(&self) -> SpanId {
        NEXT.get().1
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::Status;
    use tidegate_admin::logs::SPANS;
    use tracing::Instrument;
    use tracing::subscriber::DefaultGuard;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::Telemetry;

    fn collecting() -> (Telemetry, DefaultGuard) {
        let collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        let lookup = |name: &str| (name == collector.0).then(|| collector.1.to_owned());
        let telemetry = Telemetry::from_settings(&lookup).unwrap().unwrap();
        let all = Targets::new().with_default(tracing::Level::TRACE);
        let subscriber = tracing_subscriber::registry().with(telemetry.layer("tidegate_otel", all));
        (telemetry, tracing::subscriber::set_default(subscriber))
    }

    #[test]
    fn an_own_span_stands_below_the_handler_that_created_it_wherever_it_ends() {
        let (telemetry, _here) = collecting();
        let position = TraceContext::root(true).child();
        let handler = tracing::debug_span!(
            target: SPANS,
            "handler",
            "trace.position" = %position,
            "trace.parent" = position.parent_span_id(),
            "otel.status_code" = tracing::field::Empty
        );
        let task = handler.in_scope(|| tracing::info_span!("task"));
        handler.record("otel.status_code", "error");
        drop(handler);
        drop(task);
        let (spans, _) = telemetry.0.spool.take();
        let named = |name| spans.iter().find(|span| span.name == name).unwrap();
        let (handler, task) = (named("handler"), named("task"));
        assert_eq!(handler.span_context, context(&position));
        let above = position.parent_span_id().unwrap();
        assert_eq!(handler.parent_span_id, span_id(above));
        assert_ne!(handler.status, Status::Unset);
        assert_eq!(task.parent_span_id, handler.span_context.span_id());
        assert_eq!(
            task.span_context.trace_id(),
            handler.span_context.trace_id()
        );
    }

    #[tokio::test]
    async fn own_spans_nest_below_the_work_that_is_recorded_and_say_nothing_of_their_fields() {
        let (telemetry, _here) = collecting();
        let position = TraceContext::root(true);
        let work = async {
            let outer = tracing::info_span!(
                "outer",
                card = "canary",
                target = SPANS,
                late = tracing::field::Empty,
                "otel.status_description" = "canary"
            );
            async {
                tracing::info_span!("inner").in_scope(|| {});
                tracing::Span::current().record("late", "canary");
            }
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
        assert_eq!(spans[1].parent_span_id, context(&position).span_id());
        for span in &spans {
            let trace_id = span.span_context.trace_id();
            assert_eq!(trace_id, context(&position).trace_id());
        }
        assert!(!format!("{spans:?}").contains("canary"));
    }
}
