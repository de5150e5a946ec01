//! Owns what people are answered who look at a queue again and again, whatever its size: rights, depths, figures over time, what
//! needs somebody, one event, the audit. Every look is bounded; where a bound was met, the answer says so. It knows no SQL and
//! changes nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::operate::ServiceStatus;

/// Live events are counted one by one up to this many.
pub const COUNTED: u32 = 100_000;

/// So many ended events are looked at for the codes of their errors.
pub const DEAD_LOOKED_AT: u32 = 20_000;

/// So many delayed events of groups are asked whether they hold up others.
pub const HEADS_LOOKED_AT: u32 = 10_000;

/// What the database lets this login do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Rights {
    /// Whether it may read payloads, results, progress and the details of errors.
    pub content: bool,
    /// Whether it may replay, requeue, cancel and so on, and the database can be written to.
    pub act: bool,
    /// The database's user.
    pub user: String,
    /// The database's name.
    pub database: String,
}

/// Live events of one kind, of those that were counted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Depth {
    /// The kind.
    pub kind: String,
    /// All of them.
    pub events: u64,
    /// Those in a worker's hands.
    pub processing: u64,
    /// Those that wait for a planned time or for another attempt.
    pub delayed: u64,
    /// Those in the hands of a worker that gives no sign of life.
    pub stuck: u64,
    /// When the oldest of them was published, RFC 3339.
    pub oldest: Option<String>,
}

/// How full the queue is and what needs somebody, of a queue of any size.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Overview {
    /// Live events: exact up to [`COUNTED`], else an estimate.
    pub events: u64,
    /// Whether `events` is an estimate, and `depths` are of the first [`COUNTED`] alone.
    pub is_estimate: bool,
    /// Age of the live event with the lowest id.
    pub oldest_age_ms: u64,
    /// By kind.
    pub depths: Vec<Depth>,
    /// Groups whose first event holds back others, at most 100, found among [`HEADS_LOOKED_AT`] events.
    pub blocked: Vec<Value>,
    /// Services, those that are not called first.
    pub services: Vec<ServiceStatus>,
    /// The latest drains.
    pub drains: Vec<DrainRun>,
}

/// A drain that came to its end.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct DrainRun {
    /// Who it was.
    pub worker: String,
    /// When it started, RFC 3339.
    pub started_at: String,
    /// When it ended.
    pub ended_at: String,
    /// Why.
    pub stop_reason: Option<String>,
    /// What it reported.
    pub report: Value,
}

/// How far back figures go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Span {
    /// The last hour, by the minute.
    #[default]
    Hour,
    /// The last day, by the hour.
    Day,
    /// The last thirty days, by the day.
    Month,
}

impl Span {
    /// All of it.
    #[must_use]
    pub const fn length(self) -> Duration {
        match self {
            Self::Hour => Duration::from_hours(1),
            Self::Day => Duration::from_hours(24),
            Self::Month => Duration::from_hours(30 * 24),
        }
    }

    /// What one figure is of.
    #[must_use]
    pub const fn step(self) -> Duration {
        match self {
            Self::Hour => Duration::from_mins(1),
            Self::Day => Duration::from_hours(1),
            Self::Month => Duration::from_hours(24),
        }
    }
}

/// What ended in one step of a [`Span`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Step {
    /// When it began, in seconds since 1970.
    pub at: u64,
    /// Events that ended COMPLETED.
    pub completed: u64,
    /// Events that ended `COMPLETED_WITH_ERRORS`.
    pub rejected: u64,
    /// Events that ended FAILED.
    pub failed: u64,
    /// From publish to end, of all of them together.
    pub latency_ms: u64,
}

impl Step {
    /// All that ended.
    #[must_use]
    pub const fn ended(&self) -> u64 {
        self.completed + self.rejected + self.failed
    }
}

/// What ended of one kind within a [`Span`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KindFigures {
    /// The kind.
    pub kind: String,
    /// The sums.
    pub sum: Step,
    /// All attempts.
    pub attempts: u64,
    /// How many took how long: a bound in milliseconds that they did not pass (`None`: longer than all bounds), and how many.
    pub within: Vec<(Option<u64>, u64)>,
}

impl KindFigures {
    /// A time that this share of its events took no longer than, `None` if that is beyond all bounds or nothing ended.
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

/// What ended otherwise than COMPLETED for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct DeadLetters {
    /// The kind.
    pub kind: String,
    /// How they ended.
    pub status: String,
    /// The code of the last error; empty if there is none.
    pub code: String,
    /// How many.
    pub events: u64,
    /// When the first of them ended, RFC 3339.
    pub first: String,
    /// When the last of them ended.
    pub last: String,
    /// One of the latest.
    pub last_id: i64,
    /// The latest's code and message, of which the first 300 characters.
    pub message: Option<String>,
}

/// A registered kind.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Kind {
    /// Its name.
    pub kind: String,
    /// Whether it is kept from being taken.
    pub paused: bool,
    /// Since when it is known, RFC 3339.
    pub registered_at: String,
    /// How long COMPLETED events are kept, as the database writes intervals.
    pub retention_completed: String,
    /// How long others are.
    pub retention_failed: String,
    /// What its program declares of how it is handled.
    pub declared: Map<String, Value>,
    /// What operators say instead.
    pub overridden: Map<String, Value>,
    /// What holds.
    pub policy: Map<String, Value>,
}

/// What an event is about and what its handlers said, as the texts that are stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Content {
    /// The payload, which may be sealed.
    pub payload: Option<String>,
    /// Results by handler.
    pub result: Option<String>,
    /// What is done of it.
    pub progress: Option<String>,
    /// Every fault so far.
    pub errors: Option<String>,
    /// The trace that it was published under.
    pub traceparent: Option<String>,
}

impl Content {
    /// The trace's id.
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        self.traceparent.as_deref()?.split('-').nth(1)
    }

    /// Whether the payload can be read with a program's key alone.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        let payload = self.payload.as_deref().unwrap_or_default();
        payload.trim_start().starts_with("{\"tidegate_sealed\":")
    }
}

/// Which entries of the audit to show, the latest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditRequest {
    /// Only lower ids: what follows a page that ended there.
    pub before: Option<i64>,
    /// Only of this operator.
    pub actor: Option<String>,
    /// Only of this action.
    pub action: Option<String>,
    /// At most this many.
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
