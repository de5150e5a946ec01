//! Owns what becomes of an event: it computes what to store from what the handlers returned. It is pure: no
//! I/O, no clock, no randomness of its own. A handler's verdict and the stored state are different types. No
//! handler can return "attempts spent"; that is computed here.

use std::time::Duration;

use tidegate_core::config::settings;
use tidegate_core::event::NewEvent;
use tidegate_core::fault::Fault;
use tidegate_core::progress::{HandlerRecord, Interrupted, Progress, Snoozed, Status};

use crate::handler::{Done, FailureKind, HandlerError, HandlerResult};

/// What happens to an event after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// It moves to the log.
    Finish(Status),
    /// It goes back to the queue for at least this long.
    Retry(Duration),
}

settings! {
    /// Exponential backoff with jitter.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RetryPolicy {
        /// The delay before the second attempt. It doubles with each further attempt.
        base: Duration = Duration::from_secs(1), "TIDEGATE_BACKOFF_BASE";
        /// The longest delay between two attempts.
        max: Duration = Duration::from_mins(10), "TIDEGATE_BACKOFF_MAX";
    }
    parts {}
    rest {}
}

impl RetryPolicy {
    /// Returns the delay after attempt number `attempt` (from 1): `base × 2^(attempt−1)`, at most `max`. The
    /// upper half of it is jitter, so events that failed together do not return together. `random` is in
    /// 0.0..1.0.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let full = self.base.saturating_mul(1 << doublings).min(self.max);
        full.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// Decides what an attempt means for the event: a retry while attempts are left, otherwise its end.
    pub fn resolve(
        &self,
        attempts: u32,
        max_attempts: u32,
        ends: &[HandlerEnd],
        random: f64,
    ) -> Disposition {
        let mut again = Again::No;
        let mut rejected = false;
        for end in ends {
            match end.result {
                Ok(_) => {}
                Err(HandlerError {
                    kind: FailureKind::Reject,
                    ..
                }) => rejected = true,
                Err(HandlerError {
                    kind: FailureKind::Retry { after },
                    ..
                }) => again = again.max(after.map_or(Again::WithBackoff, Again::After)),
            }
        }
        let is_spent = attempts >= max_attempts && is_charged(ends);
        match again {
            Again::WithBackoff | Again::After(_) if is_spent => Disposition::Finish(Status::Failed),
            Again::WithBackoff => Disposition::Retry(self.delay(attempts, random)),
            Again::After(time) => Disposition::Retry(time),
            Again::No if rejected => Disposition::Finish(Status::CompletedWithErrors),
            Again::No => Disposition::Finish(Status::Completed),
        }
    }
}

/// Whether an attempt that did not end the event is charged. It is not if something else caused the failure,
/// or if all unfinished handlers only want to run later.
pub(crate) fn is_charged(ends: &[HandlerEnd]) -> bool {
    let mut unfinished = ends.iter().filter(|end| !end.is_final());
    !ends.iter().any(HandlerEnd::is_blameless)
        && (unfinished.clone().next().is_none() || !unfinished.all(|end| end.snoozed().is_some()))
}

/// Whether handlers left the whole work to follow-ups.
pub(crate) fn is_put_off(ends: &[HandlerEnd]) -> bool {
    let put_off = |end: &HandlerEnd| end.result.as_ref().is_ok_and(|done| done.put_off);
    !ends.is_empty() && ends.iter().all(put_off)
}

/// Whether handlers want another attempt, and when: the longest delay that any of them wants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Again {
    No,
    WithBackoff,
    After(Duration),
}

/// How one handler ended, in this attempt or in an earlier one.
#[derive(Debug, Clone)]
pub struct HandlerEnd {
    /// The handler's name.
    pub handler: &'static str,
    /// Its verdict.
    pub result: HandlerResult,
    /// Whether it ended in an earlier attempt and did not run again.
    pub earlier: bool,
    /// The follow-ups that it emitted. They are published when the event ends.
    pub emitted: Vec<NewEvent>,
}

impl HandlerEnd {
    /// Reads back the end of an earlier attempt's handler from its record.
    pub fn of(handler: &'static str, record: &HandlerRecord) -> Self {
        let result = if record.faults.is_empty() {
            Ok(Done {
                result: record.result.clone(),
                ..Done::ok()
            })
        } else {
            Err(HandlerError::reject_all(record.faults.clone()))
        };
        Self {
            handler,
            result,
            earlier: true,
            emitted: record.emitted.clone(),
        }
    }

    /// Returns what to store of the end, or `None` while the handler must run again.
    pub fn record(&self) -> Option<HandlerRecord> {
        let emitted = self.emitted.clone();
        match &self.result {
            Ok(Done { result, .. }) => Some(HandlerRecord {
                result: result.clone(),
                faults: Vec::new(),
                emitted,
            }),
            Err(error) if self.is_final() => Some(HandlerRecord {
                result: None,
                faults: error.storable().collect(),
                emitted: Vec::new(),
            }),
            Err(_) => None,
        }
    }

    /// Whether the event did not cause the handler's failure, so that the attempt is not charged to it.
    pub fn is_blameless(&self) -> bool {
        matches!(&self.result, Err(error) if error.blameless)
    }

    /// Whether the handler was stopped, at its own limit or because the run ended.
    pub(crate) fn is_timed_out(&self) -> bool {
        let fault = self
            .result
            .as_ref()
            .err()
            .and_then(|error| error.faults.first());
        fault.is_some_and(|fault| ["timeout", "cut"].contains(&&*fault.code))
    }

    /// Whether the run ended before the handler.
    fn is_interrupted(&self) -> bool {
        matches!(&self.result, Err(error) if error.interrupted)
    }

    /// Returns why the handler is to run later, if it was snoozed.
    pub(crate) fn snoozed(&self) -> Option<&Fault> {
        let error = self.result.as_ref().err();
        error.filter(|error| error.snoozed)?.faults.first()
    }

    /// Whether the handler must not run again.
    pub fn is_final(&self) -> bool {
        !matches!(
            self.result,
            Err(HandlerError {
                kind: FailureKind::Retry { .. },
                ..
            })
        )
    }
}

/// Returns the interruptions to store, if the run ended before the handlers, counted on from `before`.
pub(crate) fn interrupted(
    before: Option<&Progress>,
    attempt: u32,
    ends: &[HandlerEnd],
) -> Option<Interrupted> {
    let so_far = before.and_then(|progress| progress.interrupted);
    let so_far = so_far.filter(|before| before.attempt == attempt);
    let times = so_far.map_or(0, |before| before.times) + 1;
    let interrupted = ends.iter().any(HandlerEnd::is_interrupted);
    interrupted.then_some(Interrupted { times, attempt })
}

/// Returns the snoozes to store, if the handlers ended with a snooze, counted on from `before`.
pub(crate) fn snoozed(before: Option<&Progress>, ends: &[HandlerEnd]) -> Option<Snoozed> {
    let why = ends.iter().find_map(HandlerEnd::snoozed)?;
    let before = before.and_then(|progress| progress.snoozed.as_ref());
    Some(Snoozed {
        times: before.map_or(0, |snoozed| snoozed.times) + 1,
        why: why.storable().message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        base: Duration::from_secs(1),
        max: Duration::from_mins(10),
    };

    fn end(result: HandlerResult) -> HandlerEnd {
        HandlerEnd {
            handler: "h",
            result,
            earlier: false,
            emitted: Vec::new(),
        }
    }

    #[test]
    fn backoff_doubles_up_to_the_limit_and_jitters_within_the_upper_half() {
        assert_eq!(POLICY.delay(1, 1.0), Duration::from_secs(1));
        assert_eq!(POLICY.delay(1, 0.0), Duration::from_millis(500));
        assert_eq!(POLICY.delay(4, 1.0), Duration::from_secs(8));
        assert_eq!(POLICY.delay(11, 1.0), Duration::from_mins(10));
        assert_eq!(POLICY.delay(u32::MAX, 1.0), Duration::from_mins(10));
    }

    #[test]
    fn b6_a_retry_on_the_last_attempt_is_a_failure() {
        let ends = [end(Err(HandlerError::retry("down", "no answer")))];
        assert!(matches!(
            POLICY.resolve(2, 3, &ends, 0.5),
            Disposition::Retry(_)
        ));
        assert_eq!(
            POLICY.resolve(3, 3, &ends, 0.5),
            Disposition::Finish(Status::Failed)
        );
    }

    #[test]
    fn d5_done_and_rejected_are_two_different_ends() {
        assert_eq!(
            POLICY.resolve(1, 5, &[end(Ok(Done::ok()))], 0.0),
            Disposition::Finish(Status::Completed)
        );
        let rejected = [
            end(Ok(Done::ok())),
            end(Err(HandlerError::reject("409", "conflict"))),
        ];
        assert_eq!(
            POLICY.resolve(1, 5, &rejected, 0.0),
            Disposition::Finish(Status::CompletedWithErrors)
        );
    }

    #[test]
    fn a_retry_waits_for_the_unfinished_handler_even_when_another_rejected() {
        let ends = [
            end(Err(HandlerError::reject("409", "conflict"))),
            end(Err(
                HandlerError::retry("down", "no answer").after(Duration::from_secs(7))
            )),
        ];
        assert_eq!(
            POLICY.resolve(1, 5, &ends, 0.0),
            Disposition::Retry(Duration::from_secs(7))
        );
    }

    #[test]
    fn a_snooze_costs_no_attempt_unless_another_handler_fails() {
        let snooze = || {
            end(Err(HandlerError::snooze(
                Duration::from_hours(1),
                "not ready",
            )))
        };
        let hour = Disposition::Retry(Duration::from_hours(1));
        assert_eq!(POLICY.resolve(5, 5, &[snooze()], 0.0), hour);
        assert_eq!(
            POLICY.resolve(5, 5, &[end(Ok(Done::ok())), snooze()], 0.0),
            hour
        );
        let failed = || end(Err(HandlerError::retry("x", "y")));
        assert_eq!(POLICY.resolve(4, 5, &[failed(), snooze()], 0.0), hour);
        assert_eq!(
            POLICY.resolve(5, 5, &[failed(), snooze()], 0.0),
            Disposition::Finish(Status::Failed)
        );
        let rejected = end(Err(HandlerError::reject("409", "conflict")));
        assert_eq!(POLICY.resolve(5, 5, &[rejected, snooze()], 0.0), hour);
        let down = end(Err(HandlerError::retry("down", "").blameless()));
        assert!(!is_charged(&[failed(), down]));
    }

    #[test]
    fn c10_a_record_brings_back_the_end_it_was_made_of() {
        let done = end(Done::with(&vec![1]));
        let back = HandlerEnd::of("h", &done.record().unwrap());
        assert_eq!(back.result, done.result);
        assert!(back.earlier);
        let rejected = end(Err(HandlerError::reject("409", "conflict")));
        assert_eq!(
            HandlerEnd::of("h", &rejected.record().unwrap()).result,
            rejected.result
        );
        let failed = end(Err(HandlerError::retry("x", "y")));
        assert!(failed.record().is_none());
    }
}
