//! Owns the spans that a drain emits for collectors of traces: the drain itself, its leases and writes, each
//! attempt at an event and each handler. How a span says where it stands in a trace:
//! [`tidegate_core::trace`].
//!
//! Publishers decide what is recorded: an attempt is recorded if its event was published under a sampled
//! trace. For events that were published under no trace, a share of the drains records all of them. An
//! attempt that is not recorded and does not end well still gets one span.
//!
//! The position of attempts is surprising. The first attempt is a child of its publish. Later attempts, and
//! replays, may come hours later. Each of them begins its own trace, with a link to the publish, because
//! otherwise one trace would cover all of them.

use std::time::Duration;

use tidegate_core::chain::Chain;
use tidegate_core::config::millis;
use tidegate_core::error::Error;
use tidegate_core::lease::LeasedEvent;
use tidegate_core::progress::Status;
use tidegate_core::queue::Retried;
use tidegate_core::trace::{
    self, Publishing, SPANS, TraceContext, messaging_span, record_messaging,
};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::report::{self, COUNTERS, DrainReport, StopReason};
use super::settle::AttemptResult;
use crate::context::Context;
use crate::handler::HandlerResult;
use crate::outcome::HandlerEnd;

/// The spans of one drain, if somebody collects spans.
pub(super) struct Spans {
    position: TraceContext,
    /// The drain that started this one.
    before: Option<TraceContext>,
    whole: Span,
    /// The current lease and the current write.
    lease: Span,
    write: Span,
    /// Whether an attempt is recorded.
    records: bool,
}

/// Returns the position of a drain. Its ids follow from its hop, so the next hop can link to this one without
/// receiving the ids.
fn position(chain: Chain, ratio: f64) -> TraceContext {
    let id = chain.id.as_u128();
    // The first digits of a random UUID are random. All hops have the same ones, so a chain is recorded as a
    // whole.
    let share = f64::from(chain.id.as_fields().0) / (f64::from(u32::MAX) + 1.0);
    let low = u64::try_from(id >> 64).unwrap_or_default();
    let hop = chain.hop;
    TraceContext::at(id ^ u128::from(hop), low ^ u64::from(hop), share < ratio)
}

impl Spans {
    /// Begins the span of a drain. Returns `None` if nobody collects spans.
    pub(super) fn begin(chain: Option<Chain>) -> Option<Self> {
        let whole = report::span();
        if whole.is_disabled() {
            return None;
        }
        let chain = chain.unwrap_or_else(Chain::begin);
        let before = chain.hop.checked_sub(1).map(|hop| Chain { hop, ..chain });
        let ratio = trace::ratio();
        Some(Self {
            position: position(chain, ratio),
            before: before.map(|before| position(before, ratio)),
            whole,
            lease: Span::none(),
            write: Span::none(),
            records: false,
        })
    }

    /// Sets the position of an attempt.
    pub(super) fn place(&self, ctx: &mut Context) {
        let event = ctx.event();
        let position = match producer(event) {
            Some(producer) if is_first(event) => Some(producer.child()),
            Some(producer) => Some(TraceContext::root(producer.is_sampled())),
            None => self.position.is_sampled().then(|| self.position.child()),
        };
        ctx.place(position);
    }

    /// Records that a lease is sent.
    pub(super) fn leases(&mut self) {
        self.lease = self.of_database();
    }

    /// Records that a lease contains this number of events.
    pub(super) fn leased(&mut self, count: usize) {
        let span = std::mem::replace(&mut self.lease, Span::none());
        self.database_answered(&span, "receive", count);
    }

    /// Records that a write is sent.
    pub(super) fn writes(&mut self) {
        self.write = self.of_database();
    }

    /// Records that this number of ends is written.
    pub(super) fn written(&mut self, count: usize) {
        let span = std::mem::replace(&mut self.write, Span::none());
        self.database_answered(&span, "settle", count);
    }

    fn of_database(&self) -> Span {
        if !self.position.is_sampled() {
            return Span::none();
        }
        messaging_span!("database", "messaging.batch.message_count")
    }

    fn database_answered(&self, span: &Span, operation: &str, count: usize) {
        if span.is_disabled() || count == 0 {
            return;
        }
        let position = self.position.child();
        record_messaging(span, &position, "client", operation, operation, "tidegate");
        span.record("messaging.batch.message_count", count);
    }

    /// Records the end of an attempt.
    pub(super) fn attempted(
        &mut self,
        ctx: &Context,
        settled: &AttemptResult,
        ends: &[HandlerEnd],
        took: Duration,
    ) {
        let sampled = ctx.trace().filter(|position| position.is_sampled());
        let (outcome, went_well) = outcome(settled);
        if sampled.is_none() && went_well {
            return;
        }
        let own = ctx.trace().cloned();
        let position = own.unwrap_or_else(|| TraceContext::root(false));
        let code = (!went_well).then(|| settled.code());
        let span = ctx.span().cloned().unwrap_or_else(of_attempt);
        self.ended_attempt(&span, ctx.event(), &position, outcome, code);
        let waited = ctx.created_at().elapsed().unwrap_or_default();
        span.record("tidegate.waited_ms", millis(waited.saturating_sub(took)));
        if sampled.is_some() {
            published(&position, ends);
        }
    }

    /// Records the end of an event that no handler has seen.
    pub(super) fn given_up(&mut self, event: &LeasedEvent, code: &str) {
        let producer = producer(event).filter(|_| is_first(event));
        let position = producer.map_or_else(|| TraceContext::root(false), |above| above.child());
        self.ended_attempt(&of_attempt(), event, &position, "failed", Some(code));
    }

    fn ended_attempt(
        &mut self,
        span: &Span,
        event: &LeasedEvent,
        position: &TraceContext,
        outcome: &str,
        code: Option<&str>,
    ) {
        self.records = true;
        let links = match producer(event) {
            Some(_) if is_first(event) => Some(self.position.to_string()),
            Some(producer) => Some(format!("{producer},{}", self.position)),
            None => None,
        };
        let kind = &event.kind;
        record_messaging(span, position, "consumer", "process", "process", kind);
        tracing::record_all!(
            span,
            "trace.links" = links,
            "messaging.message.id" = %event.lease.id,
            "messaging.message.conversation_id" = event.correlation_id.as_deref(),
            "tidegate.attempt" = event.attempts,
            "tidegate.outcome" = outcome,
        );
        record_failure(span, code);
    }

    /// Records the end of the drain. Outside of the sample, it is recorded if it failed, and beside attempts,
    /// which link to it.
    pub(super) fn ended(&self, report: &DrainReport, failed: Option<&Error>) {
        // If a drain was started twice, the first one already used these ids.
        if report.stop_reason == StopReason::AlreadyRun {
            return;
        }
        if !self.position.is_sampled() && failed.is_none() && !self.records {
            return;
        }
        let reason = failed.is_none().then(|| stop_reason(report));
        tracing::record_all!(
            self.whole,
            "trace.position" = %self.position,
            "trace.links" = self.before.as_ref().map(tracing::field::display),
            "otel.kind" = "internal",
            "tidegate.budget_ms" = report.budget_ms,
            "tidegate.stop_reason" = reason,
        );
        for counter in COUNTERS {
            let count = (counter.of)(report);
            if count > 0 {
                self.whole.record(counter.span_field, count);
            }
        }
        record_failure(&self.whole, failed.map(code));
    }
}

/// Opens the span of an attempt.
pub(super) fn of_attempt() -> Span {
    messaging_span!(
        "process",
        "trace.links",
        "messaging.message.id",
        "messaging.message.conversation_id",
        "tidegate.attempt",
        "tidegate.outcome",
        "tidegate.waited_ms",
        "error.type",
        "otel.status_code"
    )
}

/// Marks the end of an attempt's handlers on its span, which is recorded later.
pub(super) fn note_end(ctx: &Context) {
    if let Some(span) = ctx.span() {
        span.in_scope(|| ());
    }
}

/// Records what went wrong, if anything did.
fn record_failure(span: &Span, code: Option<&str>) {
    if let Some(code) = code {
        let code = if code.is_empty() { "_OTHER" } else { code };
        tracing::record_all!(span, "error.type" = code, "otel.status_code" = "error");
    }
}

/// Records the events that handlers published with their end.
fn published(position: &TraceContext, ends: &[HandlerEnd]) {
    let ends = ends.iter().filter(|end| !end.earlier && end.result.is_ok());
    for event in ends.flat_map(|end| &end.emitted) {
        let below = event.traceparent.as_deref().and_then(TraceContext::parse);
        // A publish that names its own trace is not published under this one.
        let own = |below: &TraceContext| {
            below.trace_id() == position.trace_id() && below.span_id() != position.span_id()
        };
        if let Some(below) = below.filter(own) {
            Publishing::at(below.below(position)).done(&event.kind, None, None);
        }
    }
}

/// Returns the position of an event's publish.
fn producer(event: &LeasedEvent) -> Option<TraceContext> {
    event.traceparent.as_deref().and_then(TraceContext::parse)
}

/// Whether this is the first attempt at a published event. After an attempt that was put off without a
/// charge, the next one still counts as the first.
fn is_first(event: &LeasedEvent) -> bool {
    event.attempts <= 1 && !event.is_replay && event.progress.is_none()
}

/// Returns how an attempt ended, and whether it ended well.
fn outcome(settled: &AttemptResult) -> (&'static str, bool) {
    match settled.status() {
        Some(Status::Completed) => ("completed", true),
        Some(Status::CompletedWithErrors) => ("completed_with_errors", false),
        Some(Status::Failed) => ("failed", false),
        None if settled.is_snoozed() => ("snoozed", true),
        None if is_deferred(settled) => ("deferred", false),
        None => ("retried", false),
    }
}

fn is_deferred(settled: &AttemptResult) -> bool {
    matches!(settled, AttemptResult::Retry(Retried { deferred, .. }) if !deferred.is_empty())
}

fn stop_reason(report: &DrainReport) -> &'static str {
    match report.stop_reason {
        StopReason::QueueEmpty => "queue_empty",
        StopReason::BudgetSpent => "budget_spent",
        StopReason::LimitReached => "limit_reached",
        StopReason::NoSlot => "no_slot",
        StopReason::AlreadyRun => "already_run",
    }
}

fn code(failed: &Error) -> &'static str {
    match failed {
        Error::TimedOut { .. } => "timeout",
        error if error.is_connection_lost() => "connection_lost",
        _ => "drain_failed",
    }
}

/// Returns the position of a handler if its event's attempt is recorded.
pub(super) fn of_handler(ctx: &Context) -> Option<TraceContext> {
    let above = ctx.trace().filter(|position| position.is_sampled())?;
    ctx.span().map(|_| above.child())
}

/// Runs one handler in a span below its event's. The handler's publishes and calls are children of that span.
pub(super) async fn handled(
    position: TraceContext,
    name: &str,
    service: Option<&str>,
    work: impl Future<Output = HandlerResult>,
) -> HandlerResult {
    let span = tracing::debug_span!(
        target: SPANS,
        "handler",
        "trace.position" = %position,
        "trace.parent" = position.parent_span_id(),
        "otel.kind" = "internal",
        "otel.name" = name,
        "tidegate.handler" = name,
        "tidegate.service" = service,
        "error.type" = Empty,
        "otel.status_code" = Empty,
    );
    let work = trace::within(Some(position), work).instrument(span.clone());
    let result = work.await;
    if let Err(error) = &result
        && !error.snoozed
    {
        let code = error.faults.first().map_or("", |fault| &fault.code);
        record_failure(&span, Some(code));
    }
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
