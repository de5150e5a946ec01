//! Owns the answers for operators who watch a queue of any size: rights, depths, figures over time, what
//! needs attention, one event, the audit. Every view reads a bounded number of rows. If it reaches its bound,
//! the answer says so.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::status::ServiceStatus;

/// The most live events that are counted. Above it the number is an estimate.
pub const COUNTED: u32 = 100_000;

/// The most live and the most finished events that one page of a search looks at.
pub const SEARCHED: u32 = 50_000;

/// The most dead letters whose error codes are read.
pub const DEAD_LOOKED_AT: u32 = 20_000;

/// The most delayed events of groups that are checked for blocked groups.
pub const HEADS_LOOKED_AT: u32 = 10_000;

/// The rights of the database login.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Rights {
    /// Whether it may read payloads, results, progress and the details of errors.
    pub content: bool,
    /// Whether it may replay, requeue, cancel and so on. False on a read-only database.
    pub act: bool,
    /// The database's user.
    pub user: String,
    /// The database's name.
    pub database: String,
}

/// The live events of one kind, among those that were counted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Depth {
    /// The kind.
    pub kind: String,
    /// All events of this kind.
    pub events: u64,
    /// Leased events.
    pub processing: u64,
    /// Events that wait for a planned time or for another attempt.
    pub delayed: u64,
    /// Events leased by workers that have stopped responding.
    pub stuck: u64,
    /// The time when the oldest of them was published, RFC 3339.
    pub oldest: Option<String>,
}

/// How full the queue is and what needs attention, for a queue of any size.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Overview {
    /// Live events; exact below [`COUNTED`], else an estimate.
    pub events: u64,
    /// Whether `events` is an estimate and `depths` covers only the first [`COUNTED`] events.
    pub is_estimate: bool,
    /// Age of the live event with the lowest id.
    pub oldest_age_ms: u64,
    /// By kind.
    pub depths: Vec<Depth>,
    /// Blocked groups, at most 100, found among [`HEADS_LOOKED_AT`] delayed events.
    pub blocked: Vec<Value>,
    /// Services; unavailable ones first.
    pub services: Vec<ServiceStatus>,
    /// The latest drains.
    pub drains: Vec<DrainRun>,
}

/// A finished drain.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct DrainRun {
    /// The worker's id.
    pub worker: String,
    /// The start, RFC 3339.
    pub started_at: String,
    /// The end.
    pub ended_at: String,
    /// Why it ended.
    pub stop_reason: Option<String>,
    /// Its report.
    pub report: Value,
}

/// The period of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Span {
    /// The last hour in minutes.
    #[default]
    Hour,
    /// The last day in hours.
    Day,
    /// The last thirty days in days.
    Month,
}

impl Span {
    /// The whole period.
    #[must_use]
    pub const fn length(self) -> Duration {
        match self {
            Self::Hour => Duration::from_hours(1),
            Self::Day => Duration::from_hours(24),
            Self::Month => Duration::from_hours(30 * 24),
        }
    }

    /// The length of one step.
    #[must_use]
    pub const fn step(self) -> Duration {
        match self {
            Self::Hour => Duration::from_mins(1),
            Self::Day => Duration::from_hours(1),
            Self::Month => Duration::from_hours(24),
        }
    }
}

/// The events that finished in one step of a [`Span`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Step {
    /// The start of the step, in seconds since 1970.
    pub at: u64,
    /// Events that ended COMPLETED.
    pub completed: u64,
    /// Events that ended `COMPLETED_WITH_ERRORS`.
    pub rejected: u64,
    /// Events that ended FAILED.
    pub failed: u64,
    /// The sum of the latencies from publish to end.
    pub latency_ms: u64,
}

impl Step {
    /// All finished events.
    #[must_use]
    pub const fn ended(&self) -> u64 {
        self.completed + self.rejected + self.failed
    }
}

/// The finished events of one kind within a [`Span`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KindFigures {
    /// The kind.
    pub kind: String,
    /// The sums of all steps.
    pub sum: Step,
    /// The sum of their attempts.
    pub attempts: u64,
    /// The latency histogram: an upper bound in milliseconds (`None` is beyond all bounds) and the number of
    /// events.
    pub within: Vec<(Option<u64>, u64)>,
}

impl KindFigures {
    /// Returns the upper bound of a quantile of the latency. `None` if it is beyond all bounds, or if no
    /// event finished.
    #[must_use]
    pub fn quantile_ms(&self, share: f64) -> Option<u64> {
        let total = self.sum.ended();
        let mut seen = 0;
        for (bound, events) in &self.within {
            seen += events;
            #[expect(clippy::cast_precision_loss, reason = "nobody ends 2^53 events")]
            if total > 0 && seen as f64 >= share * total as f64 {
                return *bound;
            }
        }
        None
    }
}

/// Dead letters of one kind, status and error code.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct DeadLetters {
    /// The kind.
    pub kind: String,
    /// Their status.
    pub status: String,
    /// The code of the last error; empty if there is none.
    pub code: String,
    /// Their number.
    pub events: u64,
    /// The time when the first of them ended, RFC 3339.
    pub first: String,
    /// The time when the last of them ended.
    pub last: String,
    /// The highest of their ids.
    pub last_id: i64,
    /// The code and message of the latest, at most 300 characters.
    pub message: Option<String>,
}

/// A registered kind.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Kind {
    /// Its name.
    pub kind: String,
    /// Whether it is paused.
    pub paused: bool,
    /// The time of its registration, RFC 3339.
    pub registered_at: String,
    /// The retention of COMPLETED events, as the database writes intervals.
    pub retention_completed: String,
    /// The retention of other events.
    pub retention_failed: String,
    /// The policy that its program declares.
    pub declared: Map<String, Value>,
    /// The fields that operators have set.
    pub overridden: Map<String, Value>,
    /// The policy in effect.
    pub policy: Map<String, Value>,
}

/// The payload of an event and the output of its handlers, as stored text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Content {
    /// The payload. It can be sealed.
    pub payload: Option<String>,
    /// Results by handler.
    pub result: Option<String>,
    /// Saved progress.
    pub progress: Option<String>,
    /// All errors so far.
    pub errors: Option<String>,
    /// The trace context of its publisher.
    pub traceparent: Option<String>,
}

impl Content {
    /// Returns the id of the trace.
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        self.traceparent.as_deref()?.split('-').nth(1)
    }

    /// Whether the payload is sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        let payload = self.payload.as_deref().unwrap_or_default();
        payload.trim_start().starts_with("{\"tidegate_sealed\":")
    }
}

/// Which audit entries to show, latest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditRequest {
    /// Only entries with lower ids, for the next page.
    pub before: Option<i64>,
    /// Only of this operator.
    pub actor: Option<String>,
    /// Only of this action.
    pub action: Option<String>,
    /// The most entries.
    pub limit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_that_it_lies_within() {
        let sum = Step {
            completed: 100,
            ..Step::default()
        };
        let within = vec![(Some(50), 90), (Some(250), 9), (None, 1)];
        let figures = KindFigures {
            sum,
            within,
            ..KindFigures::default()
        };
        assert_eq!(figures.quantile_ms(0.5), Some(50));
        assert_eq!(figures.quantile_ms(0.95), Some(250));
        assert_eq!(figures.quantile_ms(1.0), None);
        assert_eq!(KindFigures::default().quantile_ms(0.5), None);
    }

    #[test]
    fn a_sealed_payload_is_known_and_a_trace_has_its_id() {
        let content = Content {
            payload: Some(r#"{"tidegate_sealed":{"v":1}}"#.to_owned()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            ..Content::default()
        };
        assert!(content.is_sealed() && !Content::default().is_sealed());
        assert_eq!(content.trace_id(), Some("0af7651916cd43dd8448eb211c80319c"));
    }
}
