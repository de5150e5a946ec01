//! Owns the export to an OpenTelemetry collector: which spans are recorded, how many are kept, and how they and a
//! drain's metrics are sent. [`mod@crate::drain`] decides what a drain records. With the feature `otel` only.
//!
//! This module builds and posts the published messages itself, without the OpenTelemetry SDK. The SDK exports on its
//! own threads, by timers, and blocks on them. A function is frozen between two invocations, along with the spans that
//! those threads hold. Here, spans are kept in a bounded list. One request sends them all at the end of the work that
//! recorded them, on the same runtime and within [`FLUSH`]. Spans that cannot be sent by then are dropped and counted,
//! and no event waits for them.
//!
//! No span holds a payload, a group, or the text of an error, because each of these may name a person (I9).
//!
//! The protocol: <https://opentelemetry.io/docs/specs/otlp/#otlphttp>. The names of the attributes:
//! <https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>, version 1.44.0.

pub(crate) mod metric;
#[cfg(feature = "admin")]
mod own;
mod send;
mod settings;
mod span;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span as Sent;

#[cfg(feature = "admin")]
pub(crate) use self::own::OwnSpans;
use self::send::Way;
use self::settings::Settings;
pub(crate) use self::span::{Kind, Span};
use crate::config::Lookup;
use crate::error::Error;
use crate::trace::{self, TraceContext};

/// The time limit for sending, however slow the collector is.
pub(crate) const FLUSH: Duration = Duration::from_millis(500);

/// The number of spans that are kept until they are sent.
const MOST_SPANS: usize = 2048;

/// The part of these places that is reserved for failures.
const FOR_FAILURES: usize = 256;

/// The semantic conventions that the names follow.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

/// The destination of traces and metrics. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    settings: Settings,
    way: Way,
}

impl Telemetry {
    /// Reads the standard variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and
    /// `_METRICS_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_CERTIFICATE`,
    /// `OTEL_EXPORTER_OTLP_TIMEOUT`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER` and `_ARG`,
    /// `OTEL_TRACES_EXPORTER`, `OTEL_METRICS_EXPORTER`, `OTEL_SDK_DISABLED`. Also reads `TIDEGATE_TRACE_RATIO`,
    /// `TIDEGATE_TRACE_CORRELATION` and `TIDEGATE_XRAY`. Returns `None` if no endpoint is set.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Option<Self>, Error> {
        let Some(settings) = Settings::read(lookup)? else {
            return Ok(None);
        };
        let way = Way::new(lookup)?;
        Ok(Some(Self(Arc::new(Inner { settings, way }))))
    }

    /// Runs `work`, such as a request that publishes, and sends the spans that it has recorded: one for each publish
    /// under a sampled trace. Work under no trace begins a new one, as often as the ratio says. Sending takes half a
    /// second at most. Spans that cannot be sent are dropped, and a log line counts them.
    pub async fn recorded<T>(&self, work: impl Future<Output = T>) -> T {
        let begins = trace::current().is_none() && fastrand::f64() < self.ratio();
        let spool = self.spool(begins);
        let done = within(spool.clone(), work).await;
        if let Some(spool) = spool {
            self.flush(&spool, None, self.patience(FLUSH)).await;
        }
        done
    }

    /// Returns the list for spans; `None` if only metrics are sent. With `begins`, a publish under no trace begins one.
    pub(crate) fn spool(&self, begins: bool) -> Option<Spool> {
        self.0.settings.traces.as_ref().map(|_| {
            Spool(Arc::new(Shared {
                begins,
                spans: Mutex::default(),
                dropped: AtomicU64::new(0),
            }))
        })
    }

    /// Returns the share of drains that are recorded although no publisher requested it.
    pub(crate) fn ratio(&self) -> f64 {
        self.0.settings.ratio
    }

    /// Whether spans may show correlation ids.
    pub(crate) fn shows_correlation(&self) -> bool {
        self.0.settings.shows_correlation
    }

    /// Returns how long sending may take, given the time that is left.
    pub(crate) fn patience(&self, left: Duration) -> Duration {
        let limit = self.0.settings.limit;
        // A test on a slow machine needs everything to arrive.
        #[cfg(feature = "testing")]
        if limit > FLUSH {
            return limit;
        }
        left.min(limit).min(FLUSH)
    }

    pub(crate) fn takes_metrics(&self) -> bool {
        self.0.settings.metrics.is_some()
    }

    /// Sends spans, and metrics if there are any. Returns the number of spans that were lost, here or earlier.
    pub(crate) async fn flush(
        &self,
        spool: &Spool,
        metrics: Option<metric::Metrics>,
        limit: Duration,
    ) -> u64 {
        let (spans, crowded_out) = spool.take();
        let lost = send::all(&self.0, spans, metrics, limit).await;
        let dropped = crowded_out + lost.spans;
        if dropped > 0 || lost.metrics {
            let why = lost.why.as_deref().unwrap_or("more than may be kept");
            tracing::warn!(
                spans_dropped = dropped,
                metrics_dropped = lost.metrics,
                reason = why,
                "telemetry dropped"
            );
        }
        dropped
    }
}

/// Only clones of the same value are equal. Equal settings do not count.
impl PartialEq for Telemetry {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Telemetry {}

/// Without headers, because they may hold a password.
impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("traces", &self.0.settings.traces.is_some())
            .field("metrics", &self.0.settings.metrics.is_some())
            .field("ratio", &self.0.settings.ratio)
            .finish_non_exhaustive()
    }
}

/// Spans that wait to be sent. Clones share one list.
#[derive(Clone)]
pub(crate) struct Spool(Arc<Shared>);

struct Shared {
    begins: bool,
    spans: Mutex<Vec<Sent>>,
    dropped: AtomicU64,
}

impl Spool {
    /// Creates a list for runs that only send metrics.
    pub(crate) fn unused() -> Self {
        Self(Arc::new(Shared {
            begins: false,
            spans: Mutex::default(),
            dropped: AtomicU64::new(0),
        }))
    }

    /// Keeps a span. If there is no room, only counts it.
    pub(crate) fn push(&self, span: Span) {
        let room = if span.has_failed() {
            MOST_SPANS - 1
        } else {
            MOST_SPANS - FOR_FAILURES
        };
        self.keep(span, room);
    }

    /// Keeps the span of a whole run. There is always room for it.
    pub(crate) fn push_last(&self, span: Span) {
        self.keep(span, MOST_SPANS);
    }

    fn keep(&self, span: Span, room: usize) {
        let mut spans = self.0.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() < room {
            spans.push(span.into_sent());
        } else {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let spans = self.0.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.is_empty()
    }

    fn take(&self) -> (Vec<Sent>, u64) {
        let mut spans = self.0.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = self.0.dropped.swap(0, Ordering::Relaxed);
        (std::mem::take(&mut spans), dropped)
    }
}

tokio::task_local! {
    static HERE: Spool;
}

/// Runs `work` and keeps the spans of its publishes.
pub(crate) async fn within<T>(spool: Option<Spool>, work: impl Future<Output = T>) -> T {
    match spool {
        Some(spool) => HERE.scope(spool, work).await,
        None => work.await,
    }
}

/// Returns the list for the spans of the running work.
pub(crate) fn here() -> Option<Spool> {
    HERE.try_with(Clone::clone).ok()
}

/// Returns the trace context of a follow-up that a handler at `above` emits. It is a new position if the trace is
/// recorded.
pub(crate) fn follow_up(above: &TraceContext) -> String {
    if above.is_sampled() && here().is_some() {
        above.child().to_string()
    } else {
        above.to_string()
    }
}

/// A publish that is being recorded.
pub(crate) struct Publishing {
    spool: Spool,
    position: TraceContext,
    began: SystemTime,
}

impl Publishing {
    /// Begins to record a publish if its trace is sampled: the trace that it names, or that of the running work.
    pub(crate) fn begin(named: Option<&str>) -> Option<Self> {
        let spool = here()?;
        let above = match named {
            Some(header) => TraceContext::parse(header),
            None => trace::current(),
        };
        let position = match above {
            Some(above) => above.is_sampled().then(|| above.child())?,
            None => spool.0.begins.then(|| TraceContext::root(true))?,
        };
        let began = SystemTime::now();
        Some(Self {
            spool,
            position,
            began,
        })
    }

    /// Returns the trace context to store with the event.
    pub(crate) fn header(&self) -> String {
        self.position.to_string()
    }

    /// Records the number of published events of this kind. `id` is set if it was a single event.
    pub(crate) fn done(self, kind: &str, count: usize, id: Option<i64>) {
        let span = published(&self.position, kind, self.began);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.spool.push(match id {
            Some(id) => span.text("messaging.message.id", id.to_string()),
            None => span.number("messaging.batch.message_count", count),
        });
    }
}

/// Returns the span of a publish.
pub(crate) fn published(position: &TraceContext, kind: &str, began: SystemTime) -> Span {
    Span::new(position, Kind::Producer, format!("publish {kind}"))
        .lasting(began, SystemTime::now())
        .messaging("send", "publish", kind)
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "tidegate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.into()))
}

/// Returns nanoseconds since 1970.
fn nanos(at: SystemTime) -> u64 {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> Span {
        Span::new(&TraceContext::root(true), Kind::Internal, "work".to_owned())
    }

    #[test]
    fn spans_are_bounded_and_what_went_wrong_has_room_when_the_rest_has_none() {
        let spool = Spool::unused();
        for _ in 0..MOST_SPANS {
            spool.push(span());
        }
        for _ in 0..MOST_SPANS {
            spool.push(span().failed("timeout"));
        }
        spool.push_last(span());
        let (spans, dropped) = spool.take();
        assert_eq!(spans.len(), MOST_SPANS);
        let failed = spans.iter().filter(|span| span.status.is_some()).count();
        assert_eq!(failed, FOR_FAILURES - 1);
        assert_eq!(
            usize::try_from(dropped).unwrap(),
            FOR_FAILURES + MOST_SPANS - (FOR_FAILURES - 1)
        );
        assert_eq!(spool.take().1, 0, "counted once");
    }

    #[tokio::test]
    async fn a_publish_is_recorded_under_a_sampled_trace_alone() {
        let sampled = TraceContext::root(true).to_string();
        let unsampled = TraceContext::root(false).to_string();
        assert!(
            Publishing::begin(Some(&sampled)).is_none(),
            "nobody records"
        );
        within(Some(Spool::unused()), async {
            assert!(Publishing::begin(None).is_none());
            assert!(Publishing::begin(Some(&unsampled)).is_none());
            assert!(Publishing::begin(Some(&sampled)).is_some());
            let current = TraceContext::parse(&sampled);
            let below = trace::within(current, async { Publishing::begin(None) }).await;
            let below = below.unwrap().position;
            assert_eq!(below.parent_span_id(), sampled.split('-').nth(2));
        })
        .await;
    }
}
