//! Decides what to write and count for an event, from how its handlers ended.

use std::collections::BTreeMap;

use tidegate_core::lease::LeasedEvent;
use tidegate_core::progress::{Deferred, Interrupted, Progress, Status};
use tidegate_core::queue::{Finalization, Retried};

use super::flush::CountedAs;
use super::report::DrainReport;
use crate::ending;
use crate::handler::{Committed, Done};
use crate::outcome::{self, Disposition, HandlerEnd, RetryPolicy, is_charged};

/// What is left to write for an event that ran.
pub(super) enum AttemptResult {
    /// Nothing: a handler's transaction has moved it to the log.
    AlreadyFinished(Status),
    /// Its end.
    Finish(Finalization),
    /// Its return to the queue.
    Retry(Retried),
}

impl AttemptResult {
    /// Returns how the event ended, or `None` when it will be retried.
    pub(super) fn status(&self) -> Option<Status> {
        match self {
            Self::AlreadyFinished(status) => Some(*status),
            Self::Finish(end) => Some(end.status),
            Self::Retry(_) => None,
        }
    }

    /// Whether the event goes back only because its handlers want to run later.
    pub(super) fn is_snoozed(&self) -> bool {
        matches!(self, Self::Retry(retried) if retried.is_snoozed())
    }

    /// Returns the first error's code, or an empty text when there is none.
    pub(super) fn code(&self) -> &str {
        let errors = match self {
            Self::AlreadyFinished(_) => &[][..],
            Self::Finish(end) => end.errors.as_slice(),
            Self::Retry(retry) => retry.errors.as_slice(),
        };
        errors.first().map_or("", |entry| entry.fault.code.as_ref())
    }
}

/// Applies the retry policy to the ends of an event's handlers.
pub(super) fn settle(
    event: &LeasedEvent,
    ends: &[HandlerEnd],
    policy: &RetryPolicy,
    random: f64,
) -> AttemptResult {
    match policy.resolve(event.attempts, event.max_attempts, ends, random) {
        Disposition::Finish(status) if ends.iter().any(committed_event) => {
            AttemptResult::AlreadyFinished(status)
        }
        Disposition::Finish(status) => {
            AttemptResult::Finish(ending::finalization(event, ends, status))
        }
        Disposition::Retry(_) if is_interrupted_too_often(event, ends) => {
            AttemptResult::Finish(ending::finalization(event, ends, Status::Failed))
        }
        Disposition::Retry(delay) => AttemptResult::Retry(Retried {
            lease: event.lease,
            charged: is_charged(ends),
            delay,
            errors: ending::errors(event, ends),
            progress: progress(event, ends),
            deferred: deferred(ends),
        }),
    }
}

fn interrupted(event: &LeasedEvent, ends: &[HandlerEnd]) -> Option<Interrupted> {
    outcome::interrupted(event.progress.as_ref(), event.attempts, ends)
}

/// Whether as many runs have ended during this attempt as may.
fn is_interrupted_too_often(event: &LeasedEvent, ends: &[HandlerEnd]) -> bool {
    interrupted(event, ends).is_some_and(|runs| runs.times >= Progress::MOST_INTERRUPTIONS)
}

/// Returns what to store with the event: the work that need not be repeated, the snoozes, the interruptions,
/// the calls that cost no attempt, and how many events may share its next call.
fn progress(event: &LeasedEvent, ends: &[HandlerEnd]) -> Option<Progress> {
    let done = ending::progress(ends);
    let snoozed = outcome::snoozed(event.progress.as_ref(), ends);
    let errors = ends.iter().filter_map(|end| end.result.as_ref().err());
    let waits = errors.clone().filter_map(|error| {
        let (service, before) = (error.deferred?, event.progress.as_ref());
        let waited = before.and_then(|progress| progress.deferred.get(service));
        let mut waited = waited.copied().unwrap_or_default();
        waited.calls += u32::from(!error.is_uncalled());
        Some((service.to_owned(), waited))
    });
    let deferred: BTreeMap<String, Deferred> = waits.collect();
    let together = errors.filter_map(|error| error.shared?.together).min();
    let interrupted = interrupted(event, ends);
    let none = snoozed.is_none() && together.is_none() && interrupted.is_none();
    if none && deferred.is_empty() {
        return done;
    }
    Some(Progress {
        deferred,
        snoozed,
        together,
        interrupted,
        ..done.unwrap_or_default()
    })
}

/// Returns the services that an event waits for.
fn deferred(ends: &[HandlerEnd]) -> Vec<&'static str> {
    let errors = ends.iter().filter_map(|end| end.result.as_ref().err());
    errors.filter_map(|error| error.deferred).collect()
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

/// Counts what became of an event.
pub(super) fn count(report: &mut DrainReport, counted_as: CountedAs) {
    *match counted_as {
        CountedAs::Handled(Status::Completed) => &mut report.completed,
        CountedAs::Handled(Status::CompletedWithErrors) => &mut report.completed_with_errors,
        CountedAs::Handled(Status::Failed) => &mut report.failed,
        CountedAs::PutOff | CountedAs::Snoozed => &mut report.snoozed,
        CountedAs::Expired => &mut report.expired,
        CountedAs::Abandoned => &mut report.abandoned,
        CountedAs::Retried => &mut report.retried,
        CountedAs::Deferred => &mut report.deferred,
        CountedAs::Released => &mut report.released,
    } += 1;
}
