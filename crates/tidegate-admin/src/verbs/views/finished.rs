//! The views of finished events: how many ended, when, and how fast.

use std::time::Duration;

use serde::Deserialize;
use tidegate_core::error::Result;
use tidegate_core::statements;

use super::Runtime;

statements! {
    /// Finished events of the last `$1` seconds, in steps of `$2` seconds. `$3` selects a kind.
    COURSE: "course" [FLOAT8, FLOAT8, TEXT] = "\
SELECT jsonb_build_object('at', extract(epoch FROM f.step)::bigint,
           'completed', least(coalesce(sum(f.events) FILTER (WHERE f.status = 'COMPLETED'), 0), 1e17)::bigint,
           'rejected', least(coalesce(sum(f.events) FILTER (WHERE f.status = 'COMPLETED_WITH_ERRORS'), 0), 1e17)::bigint,
           'failed', least(coalesce(sum(f.events) FILTER (WHERE f.status = 'FAILED'), 0), 1e17)::bigint,
           'latency_ms', least(sum(f.latency_ms), 1e17)::bigint)::text
  FROM (SELECT date_bin(make_interval(secs => $2), e.minute, timestamptz 'epoch') AS step, e.status, e.events, e.latency_ms
          FROM @tidegate.ended(statement_timestamp() - make_interval(secs => $1)) AS e
         WHERE $3::text IS NULL OR e.kind = $3) AS f
 GROUP BY f.step ORDER BY f.step";

    /// Finished events of the last `$1` seconds by kind, with the histogram of their latency. The events
    /// beyond all bounds come last.
    ENDED: "ended" [FLOAT8] = "\
SELECT jsonb_build_object('kind', b.kind, 'sum', jsonb_build_object(
               'completed', least(sum(b.completed), 1e17)::bigint, 'rejected', least(sum(b.rejected), 1e17)::bigint,
               'failed', least(sum(b.failed), 1e17)::bigint, 'latency_ms', least(sum(b.latency_ms), 1e17)::bigint),
           'attempts', least(sum(b.attempts), 1e17)::bigint,
           'within', jsonb_agg(jsonb_build_array(b.within_ms, least(b.events, 1e17)::bigint) ORDER BY b.within_ms))::text
  FROM (SELECT m.kind, m.within_ms, sum(m.events) AS events, sum(m.attempts) AS attempts, sum(m.latency_ms) AS latency_ms,
               coalesce(sum(m.events) FILTER (WHERE m.status = 'COMPLETED'), 0) AS completed,
               coalesce(sum(m.events) FILTER (WHERE m.status = 'COMPLETED_WITH_ERRORS'), 0) AS rejected,
               coalesce(sum(m.events) FILTER (WHERE m.status = 'FAILED'), 0) AS failed
          FROM @tidegate.ended(statement_timestamp() - make_interval(secs => $1)) AS m
         GROUP BY m.kind, m.within_ms) AS b
 GROUP BY b.kind ORDER BY b.kind";
}

/// The period of the figures, which ends now.
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
    pub const fn length(self) -> Duration {
        match self {
            Self::Hour => Duration::from_hours(1),
            Self::Day => Duration::from_hours(24),
            Self::Month => Duration::from_hours(30 * 24),
        }
    }

    /// The length of one step.
    pub const fn step(self) -> Duration {
        match self {
            Self::Hour => Duration::from_mins(1),
            Self::Day => Duration::from_hours(1),
            Self::Month => Duration::from_hours(24),
        }
    }
}

/// The events that finished in one step of a [`Span`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
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
    /// All events that finished, whatever their state.
    pub const fn ended(&self) -> u64 {
        self.completed + self.rejected + self.failed
    }
}

/// The finished events of one kind within a [`Span`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[non_exhaustive]
pub struct KindTotals {
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

impl KindTotals {
    /// Returns the upper bound of a quantile of the latency. `None` if it is beyond all bounds, or if no
    /// event finished.
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

impl Runtime {
    /// Returns the finished events of a period step by step, for one kind or all. Steps without events are
    /// left out.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn course(&self, span: Span, kind: Option<&str>) -> Result<Vec<Step>> {
        let (length, step) = (span.length().as_secs_f64(), span.step().as_secs_f64());
        self.view(&COURSE, &[&length, &step, &kind]).await
    }

    /// Returns the finished events of a period by kind.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn ended(&self, span: Span) -> Result<Vec<KindTotals>> {
        self.view(&ENDED, &[&span.length().as_secs_f64()]).await
    }
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
        let figures = KindTotals {
            sum,
            within,
            ..KindTotals::default()
        };
        assert_eq!(figures.quantile_ms(0.5), Some(50));
        assert_eq!(figures.quantile_ms(0.95), Some(250));
        assert_eq!(figures.quantile_ms(1.0), None);
        assert_eq!(KindTotals::default().quantile_ms(0.5), None);
    }
}
