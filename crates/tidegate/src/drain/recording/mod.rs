//! Owns what a drain records for OpenTelemetry. Its spans are the drain itself, its leases and writes, each attempt at
//! an event and each handler. Its figures become metrics. [`crate::otel`] keeps and sends them.
//!
//! Publishers decide what is recorded: an attempt is recorded if its event was published under a sampled trace. For
//! events that were published under no trace, a share of the drains records all of them. An attempt that is not
//! recorded and does not end well still gets one span.
//!
//! The position of attempts is surprising. The first attempt is a child of its publish. Later attempts, and replays,
//! may come hours later. Each of them begins its own trace, with a link to the publish, because otherwise one trace
//! would stretch over all of them.

mod metrics;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::Hooks;
use super::options::DrainOptions;
use super::report::{DrainReport, StopReason};
use super::settle::Settled;
use crate::chain::Chain;
use crate::context::Context;
use crate::error::Error;
use crate::figures::Figures;
use crate::handler::HandlerResult;
use crate::lease::LeasedEvent;
use crate::otel::{self, FLUSH, Kind, Span, Spool, Telemetry};
use crate::outcome::{HandlerEnd, Status};
use crate::queue::Retried;
use crate::trace::{self, TraceContext};

/// The invocation of a function that runs a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The request's id.
    pub id: String,
    /// Whether it is the first one of its process.
    pub is_cold: bool,
    /// Whether a schedule caused it.
    pub is_timed: bool,
}

/// The recorder of one drain.
pub(super) struct Recording {
    telemetry: Telemetry,
    spool: Spool,
    /// Whether spans are sent anywhere.
    has_spans: bool,
    position: TraceContext,
    /// The drain that started this one.
    before: Option<TraceContext>,
    began: SystemTime,
    invocation: Option<Invocation>,
    /// The remaining backlog by kind, if it was read.
    pub(super) left: Option<BTreeMap<String, u64>>,
}

/// Returns the position of a drain. Its ids follow from its hop, so the next hop can link to this one without receiving
/// the ids.
fn position(chain: Chain, ratio: f64) -> TraceContext {
    let id = chain.id.as_u128();
    // The first digits of a random UUID are random. All hops have the same ones, so a chain is recorded as a whole.
    let share = f64::from(chain.id.as_fields().0) / (f64::from(u32::MAX) + 1.0);
    let low = u64::try_from(id >> 64).unwrap_or_default();
    let hop = chain.hop;
    TraceContext::at(id ^ u128::from(hop), low ^ u64::from(hop), share < ratio)
}

impl Recording {
    /// Begins the recording. Returns `None` if nothing is sent anywhere.
    pub(super) fn begin(options: &DrainOptions, hooks: &mut Hooks) -> Option<Self> {
        let telemetry = options.telemetry.clone()?;
        let chain = hooks.chain.unwrap_or_else(Chain::begin);
        let before = chain.hop.checked_sub(1).map(|hop| Chain { hop, ..chain });
        let ratio = telemetry.ratio();
        let spool = telemetry.spool(false);
        Some(Self {
            has_spans: spool.is_some(),
            spool: spool.unwrap_or_else(Spool::unused),
            position: position(chain, ratio),
            before: before.map(|before| position(before, ratio)),
            began: SystemTime::now(),
            invocation: hooks.invocation.take(),
            left: None,
            telemetry,
        })
    }

    /// Returns the part of the run's time that is reserved for sending.
    pub(super) fn reserve() -> Duration {
        FLUSH
    }

    pub(super) fn takes_metrics(&self) -> bool {
        self.telemetry.takes_metrics()
    }

    pub(super) fn spool(&self) -> Option<Spool> {
        self.has_spans.then(|| self.spool.clone())
    }

    /// Whether this drain records everything for which no publisher decides.
    fn is_sampled(&self) -> bool {
        self.has_spans && self.position.is_sampled()
    }

    /// Sets the position of an attempt.
    pub(super) fn place(&self, ctx: &mut Context) {
        let event = ctx.event();
        let position = match producer(event) {
            Some(producer) if is_first(event) => Some(producer.child()),
            Some(producer) => Some(TraceContext::root(producer.is_sampled())),
            None => self.is_sampled().then(|| self.position.child()),
        };
        ctx.place(position);
    }

    /// Records a lease of this number of events.
    pub(super) fn leased(&self, sent: Instant, count: usize) {
        self.with_database("receive", sent, count);
    }

    /// Records a write of this number of ends.
    pub(super) fn written(&self, sent: Instant, count: usize) {
        self.with_database("settle", sent, count);
    }

    fn with_database(&self, operation: &str, sent: Instant, count: usize) {
        if !self.is_sampled() || count == 0 {
            return;
        }
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let now = SystemTime::now();
        let name = format!("{operation} tidegate");
        let span = Span::new(&self.position.child(), Kind::Client, name)
            .lasting(now - sent.elapsed(), now)
            .messaging(operation, operation, "tidegate")
            .number("messaging.batch.message_count", count);
        self.spool.push(span);
    }

    /// Records the end of an attempt.
    pub(super) fn attempted(
        &self,
        ctx: &Context,
        settled: &Settled,
        ends: &[HandlerEnd],
        took: Duration,
    ) {
        let sampled = ctx.trace().filter(|position| position.is_sampled());
        let (outcome, went_well) = outcome(settled);
        if !self.has_spans || sampled.is_none() && went_well {
            return;
        }
        let own = ctx.trace().cloned();
        let position = own.unwrap_or_else(|| TraceContext::root(false));
        let began = ctx.began().unwrap_or_else(|| SystemTime::now() - took);
        let waited = began.duration_since(ctx.created_at()).unwrap_or_default();
        let span = self.process(ctx.event(), &position, outcome);
        let span = span
            .lasting(began, began + took)
            .number("tidegate.waited_ms", crate::budget::millis(waited));
        self.spool.push(if went_well {
            span
        } else {
            span.failed(settled.code())
        });
        if sampled.is_some() {
            self.published(&position, ends);
        }
    }

    /// Records the end of an event that no handler has seen.
    pub(super) fn given_up(&self, event: &LeasedEvent, code: &str) {
        if !self.has_spans {
            return;
        }
        let producer = producer(event).filter(|_| is_first(event));
        let position = producer.map_or_else(|| TraceContext::root(false), |above| above.child());
        let span = self.process(event, &position, "failed");
        self.spool.push(span.failed(code));
    }

    /// Returns the span of an attempt, still with no length.
    fn process(&self, event: &LeasedEvent, position: &TraceContext, outcome: &str) -> Span {
        let kind = event.kind.as_str();
        let mut span = Span::new(position, Kind::Consumer, format!("process {kind}"))
            .messaging("process", "process", kind)
            .text("messaging.message.id", event.lease.id.to_string())
            .number("tidegate.attempt", event.attempts.into())
            .text("tidegate.outcome", outcome);
        if let Some(id) = event.correlation_id.as_ref()
            && self.telemetry.shows_correlation()
        {
            span = span.text("messaging.message.conversation_id", id);
        }
        match producer(event) {
            Some(_) if is_first(event) => span.linked(&self.position),
            Some(producer) => span.linked(&producer).linked(&self.position),
            None => span,
        }
    }

    /// Records the events that handlers published with their end.
    fn published(&self, position: &TraceContext, ends: &[HandlerEnd]) {
        let now = SystemTime::now();
        let ends = ends.iter().filter(|end| !end.earlier && end.result.is_ok());
        for event in ends.flat_map(|end| &end.emitted) {
            let below = event.traceparent.as_deref().and_then(TraceContext::parse);
            // A publish that names its own trace is not published under this one.
            let own = |below: &TraceContext| {
                below.trace_id() == position.trace_id() && below.span_id() != position.span_id()
            };
            if let Some(below) = below.filter(own) {
                let below = below.below(position);
                self.spool.push(otel::published(&below, &event.kind, now));
            }
        }
    }

    /// Ends the recording: sends everything and returns how many spans were lost.
    pub(super) async fn ended(
        self,
        report: &DrainReport,
        failed: Option<&Error>,
        figures: &Figures,
        left: Duration,
    ) -> u64 {
        // If a drain was started twice, the first one already used these ids.
        let repeated = report.stop_reason == StopReason::AlreadyRun;
        if self.has_spans && !repeated && (self.is_sampled() || !self.spool.is_empty()) {
            self.spool.push_last(self.whole(report, failed));
        }
        let metrics = self.takes_metrics().then(|| {
            let queue = self.left.as_ref();
            metrics::of_drain(report, failed.is_none(), figures, queue, self.began)
        });
        let limit = self.telemetry.patience(left);
        self.telemetry.flush(&self.spool, metrics, limit).await
    }

    /// Returns the span of the whole run.
    fn whole(&self, report: &DrainReport, failed: Option<&Error>) -> Span {
        let mut span = Span::new(&self.position, Kind::Internal, "drain".to_owned())
            .lasting(self.began, SystemTime::now())
            .number("tidegate.budget_ms", report.budget_ms);
        for (outcome, count) in metrics::outcomes(report) {
            if count > 0 {
                span = span.number(&format!("tidegate.{outcome}"), count);
            }
        }
        if let Some(invocation) = &self.invocation {
            let trigger = if invocation.is_timed {
                "timer"
            } else {
                "other"
            };
            span = span
                .text("faas.trigger", trigger)
                .text("faas.invocation_id", &invocation.id)
                .flag("faas.coldstart", invocation.is_cold);
        }
        if let Some(before) = &self.before {
            span = span.linked(before);
        }
        match failed {
            None => span.text("tidegate.stop_reason", metrics::stop_reason(report)),
            Some(Error::TimedOut { .. }) => span.failed("timeout"),
            Some(error) if error.is_connection_lost() => span.failed("connection_lost"),
            Some(_) => span.failed("drain_failed"),
        }
    }
}

/// Returns the position of an event's publish.
fn producer(event: &LeasedEvent) -> Option<TraceContext> {
    event.traceparent.as_deref().and_then(TraceContext::parse)
}

/// Whether this is the first attempt at a published event. After an attempt that was put off without a charge, the next
/// one still counts as the first.
fn is_first(event: &LeasedEvent) -> bool {
    event.attempts <= 1 && !event.is_replay && event.progress.is_none()
}

/// Returns how an attempt ended, and whether it ended well.
fn outcome(settled: &Settled) -> (&'static str, bool) {
    match settled.status() {
        Some(Status::Completed) => ("completed", true),
        Some(Status::CompletedWithErrors) => ("completed_with_errors", false),
        Some(Status::Failed) => ("failed", false),
        None if settled.is_snoozed() => ("snoozed", true),
        None if is_deferred(settled) => ("deferred", false),
        None => ("retried", false),
    }
}

fn is_deferred(settled: &Settled) -> bool {
    matches!(settled, Settled::Retry(Retried { deferred, .. }) if !deferred.is_empty())
}

/// Runs the handlers of an event and keeps their spans.
pub(super) async fn ran<T>(
    spool: Option<Spool>,
    ctx: &Context,
    work: impl Future<Output = T>,
) -> T {
    if spool.is_some() {
        ctx.note_beginning();
    }
    otel::within(spool, work).await
}

/// The span of an event whose handlers are recorded, with the list for their spans.
pub(super) struct Above {
    position: TraceContext,
    spool: Spool,
}

/// Returns the span of the event if its handlers are recorded.
pub(super) fn above(ctx: &Context) -> Option<Above> {
    let position = ctx.trace().filter(|position| position.is_sampled())?;
    Some(Above {
        spool: otel::here()?,
        position: position.clone(),
    })
}

/// Runs one handler in a span below its event's. The handler's publishes and calls are children of that span.
pub(super) async fn handled(
    above: Above,
    (name, service): (&str, Option<&str>),
    work: impl Future<Output = HandlerResult>,
) -> HandlerResult {
    let Above {
        position: above,
        spool,
    } = above;
    let (position, began) = (above.child(), SystemTime::now());
    let result = trace::within(Some(position.clone()), work).await;
    let mut span = Span::new(&position, Kind::Internal, name.to_owned())
        .lasting(began, SystemTime::now())
        .text("tidegate.handler", name);
    if let Some(service) = service {
        span = span.text("tidegate.service", service);
    }
    spool.push(match &result {
        Err(error) if !error.snoozed => {
            let fault = error.faults.first();
            span.failed(fault.map_or("", |fault| &fault.code))
        }
        _ => span,
    });
    result
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_hop_knows_the_one_before_it_and_is_recorded_as_that_is() {
        for _ in 0..100 {
            let first = Chain::begin();
            let next = Chain { hop: 1, ..first };
            let (one, two) = (position(first, 0.5), position(next, 0.5));
            assert_ne!(one.trace_id(), two.trace_id());
            assert_ne!(one.span_id(), two.span_id());
            assert_eq!(one.is_sampled(), two.is_sampled());
        }
        let chain = |id| Chain { id, hop: 0 };
        assert!(position(chain(Uuid::max()), 1.0).is_sampled());
        assert!(!position(chain(Uuid::nil()), 0.0).is_sampled());
        assert!(TraceContext::parse(&position(chain(Uuid::nil()), 1.0).to_string()).is_some());
    }

    #[test]
    fn a_first_attempt_is_neither_a_later_one_nor_a_replay() {
        let event = LeasedEvent::sample(1, None);
        assert!(is_first(&event));
        let replay = LeasedEvent {
            is_replay: true,
            ..event.clone()
        };
        assert!(!is_first(&replay));
        let later = LeasedEvent {
            attempts: 2,
            ..event
        };
        assert!(!is_first(&later));
    }
}
