//! Owns what is stored of an event that ends, computed from how its handlers ended.

use std::collections::BTreeMap;

use tidegate_core::event::NewEvent;
use tidegate_core::fault::Fault;
use tidegate_core::json::Json;
use tidegate_core::lease::{LeaseDecision, LeasedEvent};
use tidegate_core::progress::{Progress, Status};
use tidegate_core::queue::{ErrorEntry, Finalization};

use crate::handler::Done;
use crate::outcome::{HandlerEnd, is_charged, is_put_off};

pub(crate) fn finalization(
    event: &LeasedEvent,
    ends: &[HandlerEnd],
    status: Status,
) -> Finalization {
    let mut errors = errors(event, ends);
    if status == Status::Failed {
        let (attempt, most) = (event.attempts, event.max_attempts);
        let fault = if is_charged(ends) {
            let spent = format!("gave up after attempt {attempt} of {most}");
            Fault::new("attempts_exhausted", spent)
        } else {
            let runs = Progress::MOST_INTERRUPTIONS;
            let lost = format!("{runs} runs in a row have ended during attempt {attempt}");
            Fault::new("abandoned", lost)
        };
        errors.push(ErrorEntry::new(None, &fault, attempt));
    }
    // A replay of the failed handlers only needs to know which handlers succeeded.
    let partly = ends.len() > 1 && ends.iter().any(|end| end.result.is_err());
    Finalization {
        errors,
        result: result(ends),
        progress: if partly { progress(ends) } else { None },
        follow_ups: follow_ups(ends),
        put_off: is_put_off(ends),
        ..Finalization::new(event.lease, status)
    }
}

/// Returns the end of an event that no handler decided.
pub(crate) fn given_up(event: &LeasedEvent, fault: &Fault) -> Finalization {
    let to_come = u32::from(event.fate == LeaseDecision::Run);
    let attempts = event.attempts.saturating_sub(to_come);
    Finalization {
        errors: vec![ErrorEntry::new(None, fault, attempts)],
        ran: false,
        ..Finalization::new(event.lease, Status::Failed)
    }
}

/// Returns the errors of this attempt. Those of earlier attempts are already stored.
pub(crate) fn errors(event: &LeasedEvent, ends: &[HandlerEnd]) -> Vec<ErrorEntry> {
    let fresh = ends
        .iter()
        .filter(|end| !end.earlier && end.snoozed().is_none());
    fresh
        .filter_map(|end| end.result.as_ref().err().map(|error| (end.handler, error)))
        .flat_map(|(handler, error)| {
            error
                .storable()
                .map(move |fault| ErrorEntry::new(Some(handler), &fault, event.attempts))
        })
        .collect()
}

/// Returns the work that need not be repeated.
pub(crate) fn progress(ends: &[HandlerEnd]) -> Option<Progress> {
    let records = ends
        .iter()
        .filter_map(|end| Some((end.handler.to_owned(), end.record()?)));
    let progress = Progress {
        handlers: records.collect(),
        ..Progress::default()
    };
    (!progress.handlers.is_empty()).then_some(progress)
}

/// Returns the results by handler, or null when no handler returned one.
fn result(ends: &[HandlerEnd]) -> Option<BTreeMap<String, Json>> {
    let results = ends.iter().filter_map(|end| match &end.result {
        Ok(Done {
            result: Some(result),
            ..
        }) => Some((end.handler.to_owned(), result.clone())),
        _ => None,
    });
    let results: BTreeMap<String, Json> = results.collect();
    (!results.is_empty()).then_some(results)
}

/// Returns the follow-ups of the handlers that succeeded. A rejection by one handler does not undo the
/// others.
fn follow_ups(ends: &[HandlerEnd]) -> Vec<NewEvent> {
    ends.iter()
        .filter(|end| end.result.is_ok())
        .flat_map(|end| end.emitted.iter().cloned())
        .collect()
}
