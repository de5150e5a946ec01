//! Owns what becomes of an event: from what its handlers answered to what is stored. Pure: no I/O,
//! no clock, no randomness of its own. A handler's verdict and the stored state are different types;
//! "attempts spent" is computed here and can be returned by nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::NewEvent;
use crate::handler::{Done, Fault, HandlerError, HandlerResult, Verdict};

/// Status of a row in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Every handler is done.
    Completed,
    /// A handler's own final verdict, with its errors.
    CompletedWithErrors,
    /// The system gave up: attempts spent, no handler, undecodable, expired, abandoned.
    Failed,
}

impl Status {
    /// As stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::CompletedWithErrors => "COMPLETED_WITH_ERRORS",
            Self::Failed => "FAILED",
        }
    }
}

/// An event that another one waited for, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Member {
    /// Its id; that of its replay, if it was replayed meanwhile.
    pub id: i64,
    /// Its kind. `None` if the log has it no more.
    #[serde(default)]
    pub kind: Option<String>,
    /// How it ended. `None` if the log has it no more, or if it is live: an operator has started the waiting event before that.
    #[serde(default)]
    pub status: Option<Status>,
    /// The codes of its errors, each once.
    #[serde(default)]
    pub codes: Vec<String>,
}

impl Member {
    /// A member for a test of a handler that asks for them.
    #[must_use]
    pub fn ended(id: i64, kind: impl Into<String>, status: Status) -> Self {
        Self {
            id,
            kind: Some(kind.into()),
            status: Some(status),
            codes: Vec::new(),
        }
    }

    /// Whether every handler of it is done.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.status == Some(Status::Completed)
    }
}

/// What is stored for an event after it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// To the log.
    Finish(Status),
    /// Back to the queue, not before this delay.
    Retry(Duration),
}

/// Exponential backoff with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Delay after the first attempt.
    pub base: Duration,
    /// No delay is longer.
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            max: Duration::from_mins(10),
        }
    }
}

impl RetryPolicy {
    /// Delay before the attempt after `attempt` (from 1): `base × 2^(attempt−1)`, at most `max`, of
    /// which the upper half is jitter, so that events that failed together do not return together.
    /// `random` is in 0.0..1.0.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let full = self.base.saturating_mul(1 << doublings).min(self.max);
        full.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// What a failed or finished try means for the event: a retry while attempts
    /// are left, else the end.
    #[must_use]
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
                    verdict: Verdict::Reject,
                    ..
                }) => rejected = true,
                Err(HandlerError {
                    verdict: Verdict::Retry { after },
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

/// Whether a try that has not ended the event costs it an attempt: not if something else is at fault, and not if nothing is.
pub(crate) fn is_charged(ends: &[HandlerEnd]) -> bool {
    let mut unfinished = ends.iter().filter(|end| !end.is_final());
    !ends.iter().any(HandlerEnd::is_blameless)
        && (unfinished.clone().next().is_none() || !unfinished.all(|end| end.snoozed().is_some()))
}

/// Whether handlers want to be tried again, and when: the longest time that any of them asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Again {
    No,
    WithBackoff,
    After(Duration),
}

/// How one handler ended in this attempt, or in an earlier one.
#[derive(Debug, Clone)]
pub struct HandlerEnd {
    /// The handler's name.
    pub handler: &'static str,
    /// Its verdict.
    pub result: HandlerResult,
    /// It ended in an earlier attempt and was not run again.
    pub earlier: bool,
    /// Follow-ups it emitted; published when the event ends.
    pub emitted: Vec<NewEvent>,
}

impl HandlerEnd {
    /// Whether it did not end through any fault of the event's, which keeps its attempt.
    #[must_use]
    pub fn is_blameless(&self) -> bool {
        matches!(&self.result, Err(error) if error.blameless)
    }

    /// Why it is to run later, if it was snoozed.
    pub(crate) fn snoozed(&self) -> Option<&Fault> {
        let error = self.result.as_ref().err();
        error.filter(|error| error.snoozed)?.faults.first()
    }

    /// Whether it must not run again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(
            self.result,
            Err(HandlerError {
                verdict: Verdict::Retry { .. },
                ..
            })
        )
    }
}

/// What has been done of an event so far, stored with it so that a retry runs only the rest.
/// The `progress` column.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Handlers that ended for good.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handlers: BTreeMap<String, HandlerRecord>,
    /// Results of sub-steps, under `handler/step`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, Value>,
    /// Services that the event has waited for, each with how often it had answered when the event was put back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deferred: BTreeMap<String, i64>,
    /// That it was put off by its handlers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snoozed: Option<Snoozed>,
    /// So many events may share its calls from now on: one that more of them shared has failed as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<u16>,
}

/// How often an event was put off by its handlers, and why the last time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Snoozed {
    /// So many times.
    pub times: u32,
    /// In the handler's words.
    pub why: String,
}

impl Progress {
    /// An event may be snoozed so many times: every ten minutes for a week.
    const MOST_SNOOZES: u32 = 1000;

    /// Whether the event may be snoozed no more.
    pub(crate) fn is_snoozed_out(&self) -> bool {
        let times = self.snoozed.as_ref().map_or(0, |snoozed| snoozed.times);
        times >= Self::MOST_SNOOZES
    }

    /// What is to be remembered of a snooze, if the handlers ended with one, after those before.
    pub(crate) fn snoozed(before: Option<&Self>, ends: &[HandlerEnd]) -> Option<Snoozed> {
        let why = ends.iter().find_map(HandlerEnd::snoozed)?;
        let before = before.and_then(|progress| progress.snoozed.as_ref());
        Some(Snoozed {
            times: before.map_or(0, |snoozed| snoozed.times) + 1,
            why: why.storable().message,
        })
    }
}

/// A handler that ended for good.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HandlerRecord {
    /// Its result, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it rejected the event; empty when it succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// Follow-ups to publish when the event ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emitted: Vec<NewEvent>,
}

impl HandlerRecord {
    /// The record of an end, or `None` while the handler must run again.
    #[must_use]
    pub fn of(end: &HandlerEnd) -> Option<Self> {
        let emitted = end.emitted.clone();
        match &end.result {
            Ok(Done { result, .. }) => Some(Self {
                result: result.clone(),
                faults: Vec::new(),
                emitted,
            }),
            Err(error) if end.is_final() => Some(Self {
                result: None,
                faults: error.storable().collect(),
                emitted: Vec::new(),
            }),
            Err(_) => None,
        }
    }

    /// The end this record stands for.
    #[must_use]
    pub fn end(&self, handler: &'static str) -> HandlerEnd {
        let result = if self.faults.is_empty() {
            Ok(Done {
                result: self.result.clone(),
                ..Done::ok()
            })
        } else {
            Err(HandlerError::reject_all(self.faults.clone()))
        };
        HandlerEnd {
            handler,
            result,
            earlier: true,
            emitted: self.emitted.clone(),
        }
    }
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
        let back = HandlerRecord::of(&done).unwrap().end("h");
        assert_eq!(back.result, done.result);
        assert!(back.earlier);
        let rejected = end(Err(HandlerError::reject("409", "conflict")));
        assert_eq!(
            HandlerRecord::of(&rejected).unwrap().end("h").result,
            rejected.result
        );
        assert!(HandlerRecord::of(&end(Err(HandlerError::retry("x", "y")))).is_none());
    }
}
