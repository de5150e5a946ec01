//! Owns the export of traces to an OpenTelemetry collector: which spans are kept, and how they are sent. The
//! crate `tidegate` decides what is recorded and gives its spans their places ([`tidegate::trace`]). This
//! crate knows no queue and no event.
//!
//! A span that closes passes the layer (`recorder`), waits in a bounded list (`spool`), and is sent with the
//! others (`sender`) when the work that [`recorded`] runs is done. `settings` reads the variables.
//!
//! `tracing-opentelemetry` makes the spans, and `opentelemetry-otlp` exports them. The SDK's processors are
//! not used: they export on their own threads, by timers. A function is frozen between two invocations, along
//! with the spans that those threads hold. Here, one request sends the whole list, on the runtime of the work
//! and within a limit. Spans that cannot be sent by then are dropped and counted. No event waits for them.

mod recorder;
mod sender;
mod settings;
mod spool;

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::SpanExporter as _;
use tidegate::trace::TraceContext;
use tidegate::{Error, Lookup};
use tidegate_admin::logs::{SPANS, write_metrics};
use tidegate_admin::metrics::Metrics;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use self::sender::Reason;
use self::settings::TraceSettings;
use self::spool::Spool;

/// The destination of traces, and the spans that wait to be sent there. Cheap to clone; clones share the
/// spans.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    exporter: SpanExporter,
    reason: Reason,
    spool: Spool,
    settings: TraceSettings,
    metrics: Option<Metrics>,
}

static INSTALLED: OnceLock<Telemetry> = OnceLock::new();

/// Reads the settings, keeps the destination for [`installed`], and returns its [`Telemetry::layer`] for the
/// subscriber of the process. The layer does nothing if nothing is sent.
///
/// # Errors
/// As [`Telemetry::from_settings`]. Then nothing is sent.
pub fn install<S>(
    lookup: Lookup<'_>,
    ours: &'static str,
    logged: Targets,
) -> (impl Layer<S> + use<S>, Result<(), Error>)
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let (telemetry, read) = match Telemetry::from_settings(lookup) {
        Ok(telemetry) => (telemetry, Ok(())),
        Err(error) => (None, Err(error)),
    };
    let telemetry = telemetry.map(|telemetry| INSTALLED.get_or_init(|| telemetry).clone());
    (layer(telemetry, ours, logged), read)
}

/// Returns the layer. Without a destination it wants no span. A layer that is `None` without a filter would
/// do as little, but turn on every span that the filter of another layer turns off.
fn layer<S>(
    telemetry: Option<Telemetry>,
    ours: &'static str,
    logged: Targets,
) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let most = telemetry
        .as_ref()
        .map_or(LevelFilter::OFF, |_| LevelFilter::TRACE);
    let sends = telemetry.is_some();
    let wanted = move |span: &Metadata<'_>| {
        let target = span.target();
        let is_ours = target.split("::").next() == Some(ours);
        sends
            && span.is_span()
            && (target == SPANS || is_ours && logged.would_enable(target, span.level()))
    };
    let filter = filter_fn(wanted).with_max_level_hint(most);
    let recorder = telemetry.map(|telemetry| recorder::layer(telemetry.0.spool.clone()));
    recorder.with_filter(filter)
}

/// Returns where this process sends traces, if it does.
#[must_use]
pub fn installed() -> Option<&'static Telemetry> {
    INSTALLED.get()
}

/// Runs `work` as [`Telemetry::recorded`] does, if this process sends traces.
pub async fn recorded<T>(
    work: impl Future<Output = T>,
    left: impl FnOnce() -> Option<Duration>,
) -> T {
    match installed() {
        Some(telemetry) => telemetry.recorded(work, left).await,
        None => work.await,
    }
}

impl Telemetry {
    /// Reads `OTEL_EXPORTER_OTLP_ENDPOINT` and `_TRACES_ENDPOINT`, `OTEL_EXPORTER_OTLP_CERTIFICATE` and
    /// `_TIMEOUT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and `_ARG`, `OTEL_TRACES_EXPORTER`,
    /// `OTEL_SDK_DISABLED`, `TIDEGATE_TRACE_RATIO`, `TIDEGATE_TRACE_CORRELATION` and `TIDEGATE_XRAY`. The
    /// exporter itself reads the other standard variables from the environment. Returns `None` if no endpoint
    /// is set.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Option<Self>, Error> {
        let Some(settings) = TraceSettings::read(lookup)? else {
            return Ok(None);
        };
        let reason = Reason::default();
        Ok(Some(Self(Arc::new(Inner {
            exporter: sender::exporter(lookup, &settings, reason.clone())?,
            reason,
            spool: Spool::new(settings.shows_correlation),
            settings,
            metrics: Metrics::from_settings(lookup)?,
        }))))
    }

    /// Returns the layer that records the queue's spans ([`SPANS`]) and those of the program's own crate
    /// `ours`. `logged` are the levels of the log, which apply to the latter.
    #[must_use]
    pub fn layer<S>(&self, ours: &'static str, logged: Targets) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        layer(Some(self.clone()), ours, logged)
    }

    /// Runs `work`, which may begin traces as often as the ratio says, and sends the spans that were
    /// recorded. Sending takes half a second at most, unless `OTEL_EXPORTER_OTLP_TIMEOUT` says otherwise, and
    /// no longer than the time that is `left`. Spans that cannot be sent are dropped; a log line counts
    /// them, and the metric `SpansDropped` if `TIDEGATE_METRICS` asks for metrics.
    pub async fn recorded<T>(
        &self,
        work: impl Future<Output = T>,
        left: impl FnOnce() -> Option<Duration>,
    ) -> T {
        let done = TraceContext::sampling(self.0.settings.ratio, work).await;
        let limit = self.0.settings.limit;
        self.flush(left().map_or(limit, |left| left.min(limit)))
            .await;
        done
    }

    async fn flush(&self, limit: Duration) {
        let (spans, crowded_out) = self.0.spool.take();
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let mut why = None;
        if !spans.is_empty() {
            let sent = tokio::time::timeout(limit, self.0.exporter.export(spans)).await;
            why = match sent {
                Ok(Ok(())) => None,
                Ok(Err(error)) => {
                    let mut reason = self.0.reason.lock().unwrap_or_else(PoisonError::into_inner);
                    Some(reason.take().unwrap_or_else(|| error.to_string()))
                }
                Err(_) => Some(format!("no answer within {limit:?}")),
            };
        }
        let dropped = crowded_out + why.as_ref().map_or(0, |_| count);
        if dropped > 0 {
            let reason = why.as_deref().unwrap_or("more than may be kept");
            tracing::warn!(spans_dropped = dropped, reason, "telemetry dropped");
            if let Some(metrics) = &self.0.metrics {
                write_metrics(&metrics.of_spans_dropped(dropped, SystemTime::now()));
            }
        }
    }
}

/// Without the exporter, because its headers may hold a password.
impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("ratio", &self.0.settings.ratio)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn without_a_destination_no_span_is_made_beside_a_filtered_log() {
        let all = tracing_subscriber::registry();
        let made = || tracing::debug_span!(target: SPANS, "work");
        let span = tracing::subscriber::with_default(all, made);
        let metadata = span.metadata().unwrap();
        let levels = || Targets::new().with_default(LevelFilter::INFO);
        let lines = || tracing_subscriber::fmt::layer().with_filter(levels());
        let collector = |name: &str| {
            let named = name == "OTEL_EXPORTER_OTLP_ENDPOINT";
            named.then(|| "http://127.0.0.1:4318".to_owned())
        };
        let sends = Telemetry::from_settings(&collector).unwrap();
        for (telemetry, is_wanted) in [(None, false), (sends, true)] {
            let logs = tracing_subscriber::registry().with(lines());
            let logs = logs.with(layer(telemetry, "shop", levels()));
            assert_eq!(!logs.register_callsite(metadata).is_never(), is_wanted);
        }
    }
}
