//! From how the handlers of an event ended to what is written down, counted and logged for it.

use std::time::Duration;

use serde_json::{Map, Value};

use super::millis;
use super::writer::Class;
use crate::event::{Fate, LeasedEvent, NewEvent};
use crate::handler::{Committed, Done, Fault};
use crate::invocation::DrainReport;
use crate::outcome::{Disposition, HandlerEnd, HandlerRecord, Progress, RetryPolicy, Status};
use crate::queue::{ErrorEntry, Finalization, Retried};
use crate::trace;

/// What is left to write for an event that ran.
pub(super) enum Settled {
    /// Nothing: a handler's transaction has moved it to the log.
    AlreadyFinished(Status),
    /// Its end.
    Finish(Finalization),
    /// Its return to the queue.
    Retry(Retried),
}

impl Settled {
    /// How the event ended; `None` when it will be retried.
    pub(super) fn status(&self) -> Option<Status> {
        match self {
            Self::AlreadyFinished(status) => Some(*status),
            Self::Finish(end) => Some(end.status),
            Self::Retry(_) => None,
        }
    }

    /// The first error's code; empty when there is none.
    pub(super) fn code(&self) -> &str {
        let errors = match self {
            Self::AlreadyFinished(_) => &[][..],
            Self::Finish(end) => end.errors.as_slice(),
            Self::Retry(retry) => retry.errors.as_slice(),
        };
        errors.first().map_or("", |entry| entry.code.as_str())
    }
}

/// Applies the retry policy to the ends of an event's handlers.
pub(super) fn settle(
    event: &LeasedEvent,
    ends: &[HandlerEnd],
    policy: &RetryPolicy,
    random: f64,
) -> Settled {
    match policy.resolve(event.attempts, event.max_attempts, ends, random) {
        Disposition::Finish(status) if ends.iter().any(committed_event) => {
            Settled::AlreadyFinished(status)
        }
        Disposition::Finish(status) => Settled::Finish(finalization(event, ends, status)),
        Disposition::Retry(delay) => Settled::Retry(Retried {
            lease: event.lease,
            charged: !ends.iter().any(HandlerEnd::is_blameless),
            delay,
            errors: errors(event, ends),
            progress: progress(ends),
        }),
    }
}

fn committed_event(end: &HandlerEnd) -> bool {
    matches!(
        end.result,
        Ok(Done {
            committed: Committed::Event,
            ..
        })
    )
}

/// The end of an event whose handlers ended like this.
pub(crate) fn finalization(
    event: &LeasedEvent,
    ends: &[HandlerEnd],
    status: Status,
) -> Finalization {
    let mut errors = errors(event, ends);
    if status == Status::Failed {
        let spent = format!(
            "gave up after attempt {} of {}",
            event.attempts, event.max_attempts
        );
        errors.push(ErrorEntry::new(
            None,
            &Fault::new("attempts_exhausted", spent),
            event.attempts,
        ));
    }
    // A replay of the failed handlers only needs to know which ones succeeded.
    let partly = ends.len() > 1 && ends.iter().any(|end| end.result.is_err());
    Finalization {
        lease: event.lease,
        status,
        errors,
        result: result(ends),
        progress: if partly { progress(ends) } else { None },
        follow_ups: follow_ups(ends),
        ran: true,
    }
}

/// The end of an event that no handler decided, after the attempts that it has had.
pub(super) fn given_up(event: &LeasedEvent, fault: &Fault) -> Finalization {
    let to_come = u32::from(event.fate == Fate::Run);
    let attempts = event.attempts.saturating_sub(to_come);
    Finalization {
        lease: event.lease,
        status: Status::Failed,
        errors: vec![ErrorEntry::new(None, fault, attempts)],
        result: None,
        progress: None,
        follow_ups: Vec::new(),
        ran: false,
    }
}

/// The errors of this attempt; those of earlier ones are stored already.
fn errors(event: &LeasedEvent, ends: &[HandlerEnd]) -> Vec<ErrorEntry> {
    let fresh = ends.iter().filter(|end| !end.earlier);
    fresh
        .filter_map(|end| end.result.as_ref().err().map(|error| (end.handler, error)))
        .flat_map(|(handler, error)| {
            error
                .faults
                .iter()
                .map(move |fault| ErrorEntry::new(Some(handler), fault, event.attempts))
        })
        .collect()
}

/// What need not be done again.
pub(super) fn progress(ends: &[HandlerEnd]) -> Option<Progress> {
    let records = ends
        .iter()
        .filter_map(|end| Some((end.handler.to_owned(), HandlerRecord::of(end)?)));
    let progress = Progress {
        handlers: records.collect(),
        ..Progress::default()
    };
    (!progress.handlers.is_empty()).then_some(progress)
}

/// Results by handler; null when no handler told any.
fn result(ends: &[HandlerEnd]) -> Option<Value> {
    let told = ends.iter().filter_map(|end| match &end.result {
        Ok(Done {
            result: Some(result),
            ..
        }) => Some((end.handler.to_owned(), result.clone())),
        _ => None,
    });
    let results: Map<String, Value> = told.collect();
    (!results.is_empty()).then_some(Value::Object(results))
}

/// A final error of one handler does not undo the others (decision 11): what they emitted goes out.
fn follow_ups(ends: &[HandlerEnd]) -> Vec<NewEvent> {
    ends.iter()
        .filter(|end| end.result.is_ok())
        .flat_map(|end| end.emitted.iter().cloned())
        .collect()
}

pub(super) fn count(report: &mut DrainReport, class: Class) {
    *match class {
        Class::Handled(Status::Completed) => &mut report.completed,
        Class::Handled(Status::CompletedWithErrors) => &mut report.completed_with_errors,
        Class::Handled(Status::Failed) => &mut report.failed,
        Class::Expired => &mut report.expired,
        Class::Abandoned => &mut report.abandoned,
    } += 1;
}

/// One line for an event's end. Successes are for debugging; a failure that will be retried, a
/// handler's own verdict and a final failure are told apart by level and text (B29, B30).
pub(super) fn log_end(event: &LeasedEvent, settled: &Settled, took: Duration) {
    let (id, kind, attempt, elapsed_ms) = (
        event.lease.id,
        event.kind.as_str(),
        event.attempts,
        millis(took),
    );
    let trace_id = event.traceparent.as_deref().and_then(trace::id_of);
    let code = settled.code();
    match settled.status() {
        Some(Status::Completed) => {
            tracing::debug!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                trace_id,
                elapsed_ms,
                "event completed"
            );
        }
        Some(Status::CompletedWithErrors) => {
            tracing::warn!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                trace_id,
                elapsed_ms,
                code,
                "event rejected by a handler"
            );
        }
        Some(Status::Failed) => {
            tracing::error!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                trace_id,
                elapsed_ms,
                code,
                "event failed for good"
            );
        }
        None => {
            tracing::warn!(
                event.id = id,
                event.kind = kind,
                event.attempt = attempt,
                trace_id,
                elapsed_ms,
                code,
                "event failed, will be retried"
            );
        }
    }
}
