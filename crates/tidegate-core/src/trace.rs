//! Owns the W3C trace context that crosses the queue. An event keeps the context that it was published under.
//! Its handlers continue that trace, and their publishes and calls carry it on. Log lines have the ids in the
//! span `event`.
//!
//! For collectors of traces, publishes and drains also emit `tracing` spans of the target `tidegate::spans`.
//! Three fields say where such a span stands in a trace: `trace.position` is its own position as a
//! `traceparent`, `trace.parent` the id of the span above it, and `trace.links` a list of further positions.
//! The fields `otel.*` are those of `tracing-opentelemetry`, and all others are attributes. A span is
//! recorded when it closes. One whose position is never recorded is not part of any trace. No span holds a
//! payload, a group, or the text of an error, because each of these may name a person (I9).
//!
//! The names of the attributes, version 1.44.0:
//! <https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>.
//!
//! The format: <https://www.w3.org/TR/trace-context/#traceparent-header>.

use std::fmt;
use std::sync::{PoisonError, RwLock};

use tracing::Span;

/// The target of the spans for collectors of traces. Their level is debug. They exist only if a subscriber
/// wants them.
pub const SPANS: &str = "tidegate::spans";

/// A position in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: String,
    parent_span_id: Option<String>,
    span_id: String,
    flags: String,
}

tokio::task_local! {
    static CURRENT: TraceContext;
    static RATIO: f64;
}

impl TraceContext {
    /// Parses a `traceparent` header. Returns `None` if the header is malformed, which means that there is no
    /// trace to continue.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let (version, trace_id, span_id, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, length: usize| {
            text.len() == length
                && text
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        // Version ff is forbidden, an id of zeros is invalid, and nothing may follow the flags.
        let well_formed = hex(version, 2)
            && version != "ff"
            && [(trace_id, 32), (span_id, 16)]
                .iter()
                .all(|(id, length)| hex(id, *length) && id.bytes().any(|byte| byte != b'0'))
            && hex(flags, 2)
            && parts.next().is_none();
        well_formed.then(|| Self {
            trace_id: trace_id.to_owned(),
            parent_span_id: None,
            span_id: span_id.to_owned(),
            flags: flags.to_owned(),
        })
    }

    /// Begins a new trace.
    pub fn root(is_sampled: bool) -> Self {
        Self::at(fastrand::u128(1..), fastrand::u64(1..), is_sampled)
    }

    /// Begins a trace with these ids.
    pub fn at(trace_id: u128, span_id: u64, is_sampled: bool) -> Self {
        Self {
            // An id of zeros is invalid.
            trace_id: format!("{:032x}", trace_id.max(1)),
            parent_span_id: None,
            span_id: format!("{:016x}", span_id.max(1)),
            flags: format!("{:02x}", u8::from(is_sampled)),
        }
    }

    /// Returns a new position below this one in the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            trace_id: self.trace_id.clone(),
            parent_span_id: Some(self.span_id.clone()),
            span_id: format!("{:016x}", fastrand::u64(1..)),
            flags: self.flags.clone(),
        }
    }

    /// Runs `work` and lets it begin traces. A drain that it runs is recorded as often as `ratio` says, from
    /// 0 to 1, and so is a publish under no trace.
    pub async fn sampling<T>(ratio: f64, work: impl Future<Output = T>) -> T {
        RATIO.scope(ratio, work).await
    }

    /// Returns this position as a direct child of another one.
    #[must_use]
    pub fn below(self, above: &Self) -> Self {
        Self {
            parent_span_id: Some(above.span_id.clone()),
            ..self
        }
    }

    /// Returns the trace id: 32 hex digits, the same for the whole trace.
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// Returns the span id of this position: 16 hex digits.
    pub fn span_id(&self) -> &str {
        &self.span_id
    }

    /// Whether the service that began the trace wants it recorded: the lowest bit of the flags.
    pub fn is_sampled(&self) -> bool {
        u8::from_str_radix(&self.flags, 16).is_ok_and(|flags| flags & 1 == 1)
    }

    /// Returns the span id of the position above, if it is known: 16 hex digits.
    pub fn parent_span_id(&self) -> Option<&str> {
        self.parent_span_id.as_deref()
    }
}

/// The `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{}", self.trace_id, self.span_id, self.flags)
    }
}

/// Returns the position of the running work, such as a handler, for the header of a call. Returns `None`
/// outside of [`within`], and in a handler whose event was published under no trace.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(Clone::clone).ok()
}

static INVOCATION: RwLock<Option<String>> = RwLock::new(None);

/// Sets what [`invocation`] returns.
pub fn note_invocation(header: Option<String>) {
    *INVOCATION.write().unwrap_or_else(PoisonError::into_inner) = header;
}

/// Returns the X-Ray header of the invocation that this process answers. With it, Lambda detects functions
/// that call each other in a loop.
pub fn invocation() -> Option<String> {
    INVOCATION
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Returns the trace id in a stored header. It is not checked again: the database stores only well-formed
/// headers.
pub fn id_of(header: &str) -> Option<&str> {
    header.split('-').nth(1)
}

/// Runs `work` at a position. An event that the work publishes is published under this position, unless the
/// event names another.
pub async fn within<T>(position: Option<TraceContext>, work: impl Future<Output = T>) -> T {
    match position {
        Some(position) => CURRENT.scope(position, work).await,
        None => work.await,
    }
}

/// Returns how often the running work begins a trace, from 0 to 1; 0 outside of [`TraceContext::sampling`].
pub fn ratio() -> f64 {
    RATIO.try_with(|ratio| *ratio).unwrap_or_default()
}

/// Opens a span of OpenTelemetry's conventions for messaging. [`record_messaging`] fills in the fields that
/// all of them have; the further ones are named here.
#[macro_export]
macro_rules! messaging_span {
    ($name:literal, $($further:literal),*) => {
        $crate::tracing::debug_span!(
            target: $crate::trace::SPANS,
            $name,
            "trace.position" = $crate::tracing::field::Empty,
            "trace.parent" = $crate::tracing::field::Empty,
            "otel.kind" = $crate::tracing::field::Empty,
            "otel.name" = $crate::tracing::field::Empty,
            "messaging.system" = $crate::tracing::field::Empty,
            "messaging.operation.type" = $crate::tracing::field::Empty,
            "messaging.operation.name" = $crate::tracing::field::Empty,
            "messaging.destination.name" = $crate::tracing::field::Empty,
            $($further = $crate::tracing::field::Empty,)*
        )
    };
}

pub use messaging_span;

/// Records what all spans of [`messaging_span`] have: the position, the kind of span, the type and the name
/// of the operation, and its destination.
pub fn record_messaging(
    span: &Span,
    position: &TraceContext,
    kind: &str,
    operation_type: &str,
    operation: &str,
    destination: &str,
) {
    tracing::record_all!(
        span,
        "trace.position" = %position,
        "trace.parent" = position.parent_span_id(),
        "otel.kind" = kind,
        "otel.name" = %format_args!("{operation} {destination}"),
        "messaging.system" = "tidegate",
        "messaging.operation.type" = operation_type,
        "messaging.operation.name" = operation,
        "messaging.destination.name" = destination,
    );
}

fn of_publish() -> Span {
    messaging_span!(
        "publish",
        "messaging.message.id",
        "messaging.batch.message_count"
    )
}

/// A publish under a sampled trace, for collectors of traces.
pub struct Publishing {
    span: Span,
    position: TraceContext,
}

impl Publishing {
    /// Begins to record a publish if somebody collects traces and the publish's trace is sampled: the one in
    /// the header `named`, or that of the running work.
    pub fn begin(named: Option<&str>) -> Option<Self> {
        let span = of_publish();
        if span.is_disabled() {
            return None;
        }
        let above = match named {
            Some(header) => TraceContext::parse(header),
            None => current(),
        };
        let position = match above {
            Some(above) => above.is_sampled().then(|| above.child())?,
            None => (fastrand::f64() < ratio()).then(|| TraceContext::root(true))?,
        };
        Some(Self { span, position })
    }

    /// Begins to record a publish at this position.
    pub fn at(position: TraceContext) -> Self {
        let span = of_publish();
        Self { span, position }
    }

    /// Returns the trace context to store with the event.
    pub fn header(&self) -> String {
        self.position.to_string()
    }

    /// Records the number of published events of this kind. `id` is set if it was a single event.
    pub fn done(self, kind: &str, count: Option<usize>, id: Option<i64>) {
        let (span, position) = (&self.span, &self.position);
        record_messaging(span, position, "producer", "send", "publish", kind);
        tracing::record_all!(
            self.span,
            "messaging.message.id" = id.map(tracing::field::display),
            "messaging.batch.message_count" = count,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_survives_the_round_trip() {
        assert_eq!(TraceContext::parse(HEADER).unwrap().to_string(), HEADER);
    }

    #[test]
    fn a_child_is_of_the_same_trace_at_a_place_of_its_own() {
        let parent = TraceContext::parse(HEADER).unwrap();
        let child = parent.child();
        assert_eq!(child.trace_id(), parent.trace_id());
        assert_ne!(child.span_id(), parent.span_id());
        assert_eq!(child.parent_span_id(), Some(parent.span_id()));
        assert!(TraceContext::parse(&child.to_string()).is_some());
    }

    #[test]
    fn the_lowest_flag_says_whether_a_trace_is_sampled() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let header = format!("{}{flags}", HEADER.strip_suffix("01").unwrap());
            let position = TraceContext::parse(&header).unwrap();
            assert_eq!(position.is_sampled(), sampled, "{flags}");
            assert_eq!(position.child().is_sampled(), sampled, "{flags}");
        }
    }

    #[test]
    fn what_is_malformed_is_no_trace() {
        for header in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(header), None, "{header}");
        }
    }

    #[tokio::test]
    async fn a_position_is_known_to_the_work_within_and_nowhere_else() {
        let position = TraceContext::parse(HEADER);
        assert_eq!(
            within(position.clone(), async { current() }).await,
            position
        );
        assert_eq!(within(None, async { current() }).await, None);
        assert_eq!(current(), None);
    }
}
