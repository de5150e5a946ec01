//! What a drain answers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operate::ServiceStatus;

/// Why a drain ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// Nothing ready was left.
    #[default]
    QueueEmpty,
    /// Time was up, or a stop signal came.
    BudgetSpent,
    /// `max_events` were leased.
    LimitReached,
    /// As many drains as may be were at work, or this one has lost its place among them.
    NoSlot,
    /// Another drain has started it twice, and it has run.
    AlreadyRun,
}

/// What a drain did. Always `leased = completed + completed_with_errors + failed + retried +
/// deferred + snoozed + released + lease_lost`; events swept as expired or abandoned were never leased to a handler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "drain")]
#[non_exhaustive]
pub struct DrainReport {
    /// Events taken to be handled.
    pub leased: u64,
    /// Ended COMPLETED.
    pub completed: u64,
    /// Ended `COMPLETED_WITH_ERRORS`: a handler rejected them.
    pub completed_with_errors: u64,
    /// Ended FAILED: attempts spent, no handler, undecodable.
    pub failed: u64,
    /// Back in the queue for another attempt.
    pub retried: u64,
    /// Back in the queue with their attempt: a service that they need does not answer.
    #[serde(default, skip_serializing_if = "is_none")]
    pub deferred: u64,
    /// Back in the queue with their attempt: their handlers said "not now".
    #[serde(default, skip_serializing_if = "is_none")]
    pub snoozed: u64,
    /// Back in the queue unstarted, with their attempt.
    pub released: u64,
    /// Not ours any more when we were done: requeued, or taken over after the lease had run out.
    pub lease_lost: u64,
    /// Ended FAILED unhandled: their start-before deadline had passed.
    pub expired: u64,
    /// Ended FAILED unhandled: their last attempt had been abandoned by a worker.
    pub abandoned: u64,
    /// Follow-ups published.
    pub published: u64,
    /// Periodic events published for slots that had come.
    #[serde(default, skip_serializing_if = "is_none")]
    pub scheduled: u64,
    /// Handlers that were given up on and cannot be ended, because they keep their threads to themselves: they go on
    /// when the run is over, while their events have gone back. Whoever drains again should do so in a new process.
    #[serde(default, skip_serializing_if = "is_none")]
    pub still_running: u64,
    /// Leases that brought something.
    pub batches: u64,
    /// How long the run took.
    pub elapsed_ms: u64,
    /// How long it was allowed to take.
    pub budget_ms: u64,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// The slot of this drain, one of [`DrainOptions::max_drains`](crate::DrainOptions::max_drains); 0 when it had none.
    #[serde(default)]
    pub slot: u16,
    /// Live events left, whatever their state.
    pub backlog: u64,
    /// Of them, those that a drain of this program could take now: not planned, retried, held back by their group, a pause or an
    /// outside service, nor in another drain's hands. 10,000 at most.
    #[serde(default)]
    pub ready_left: u64,
    /// Further drains that it has started, beside it and behind it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub started_drains: u64,
    /// When there will be more to do next, if that is known, by a plan, a retry, a schedule or a service's next try; RFC 3339, now if
    /// it is overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub next_due_at: Option<String>,
    /// Age of the oldest of them.
    pub oldest_age_ms: u64,
    /// Of them, those that will pass their deadline before they are started (B13).
    #[serde(default, skip_serializing_if = "is_none")]
    pub expiring: u64,
    /// Services that are not called now, with what waits for each. Told only of a run that met one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services_down: Vec<ServiceStatus>,
    /// What the run has cost.
    #[serde(default)]
    pub cost: Cost,
    /// Of them, those of kinds that this program does not handle, by kind; of twenty kinds at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unhandled: BTreeMap<String, u64>,
}

/// What a run has cost, but for its handlers' own connections and the start of its process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Cost {
    /// How long the run's two sessions with the database were waited for, together: its work, the way there and back, and its
    /// own waiting. The database is busy for less than that.
    pub database_ms: u64,
    /// What the whole server has written to its log ahead meanwhile, others' work among it. `None` where it does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_wal_bytes: Option<u64>,
    /// Memory times time, as Lambda charges for it. `None` where the memory is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_seconds: Option<f64>,
    /// Events that have ended, for each of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_per_gb_second: Option<f64>,
}

impl Cost {
    /// With what Lambda charges for a run of so long in so much memory, that has ended so many events.
    pub(super) fn charged(&mut self, elapsed: Duration, memory_mb: Option<u32>, ended: u64) {
        let memory = memory_mb.map(|mb| f64::from(mb) / 1024.0);
        self.gb_seconds = memory.map(|gb| gb * elapsed.as_secs_f64());
        self.count(ended);
    }

    fn count(&mut self, ended: u64) {
        let ended = f64::from(u32::try_from(ended).unwrap_or(u32::MAX));
        let charged = self.gb_seconds.filter(|charged| *charged > 0.0);
        self.events_per_gb_second = charged.map(|charged| ended / charged);
    }

    /// Of two runs together, which have ended so many events.
    fn and(self, next: Self, ended: u64) -> Self {
        fn both<T: std::ops::Add<Output = T>>(one: Option<T>, next: Option<T>) -> Option<T> {
            one.zip(next).map(|(one, next)| one + next)
        }
        let mut cost = Self {
            database_ms: self.database_ms + next.database_ms,
            server_wal_bytes: both(self.server_wal_bytes, next.server_wal_bytes),
            gb_seconds: both(self.gb_seconds, next.gb_seconds),
            events_per_gb_second: None,
        };
        cost.count(ended);
        cost
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks like this")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl DrainReport {
    /// Events that have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.completed + self.completed_with_errors + self.failed
    }

    /// Whether another run would get on with what is left now: this one had no time for it, and has ended something.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.stop_reason == StopReason::BudgetSpent && self.ready_left > 0 && self.ended() > 0
    }

    /// The report of this run and the next one behind it: what both have done, and what the next one has left.
    #[must_use]
    pub fn followed_by(self, next: Self) -> Self {
        let ended = self.ended() + next.ended();
        Self {
            cost: self.cost.and(next.cost, ended),
            leased: self.leased + next.leased,
            completed: self.completed + next.completed,
            completed_with_errors: self.completed_with_errors + next.completed_with_errors,
            failed: self.failed + next.failed,
            retried: self.retried + next.retried,
            deferred: self.deferred + next.deferred,
            snoozed: self.snoozed + next.snoozed,
            released: self.released + next.released,
            lease_lost: self.lease_lost + next.lease_lost,
            expired: self.expired + next.expired,
            abandoned: self.abandoned + next.abandoned,
            published: self.published + next.published,
            scheduled: self.scheduled + next.scheduled,
            still_running: self.still_running + next.still_running,
            batches: self.batches + next.batches,
            elapsed_ms: self.elapsed_ms + next.elapsed_ms,
            budget_ms: self.budget_ms + next.budget_ms,
            started_drains: self.started_drains + next.started_drains,
            ..next
        }
    }

    /// Whether every leased event is accounted for.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.leased
            == self.completed
                + self.completed_with_errors
                + self.failed
                + self.retried
                + self.deferred
                + self.snoozed
                + self.released
                + self.lease_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_costs_its_memory_times_its_time_and_two_cost_both() {
        let run = |seconds, memory, completed| {
            let mut report = DrainReport {
                completed,
                ..DrainReport::default()
            };
            let elapsed = Duration::from_secs(seconds);
            report.cost.charged(elapsed, memory, completed);
            report
        };
        let half = run(10, Some(512), 1000);
        assert_eq!(half.cost.gb_seconds, Some(5.0));
        assert_eq!(half.cost.events_per_gb_second, Some(200.0));
        let both = half.clone().followed_by(run(5, Some(1024), 0));
        assert_eq!(both.cost.gb_seconds, Some(10.0));
        assert_eq!(both.cost.events_per_gb_second, Some(100.0));
        let elsewhere = run(10, None, 1000);
        assert_eq!(elsewhere.cost, Cost::default());
        assert_eq!(half.followed_by(elsewhere).cost.gb_seconds, None);
    }
}
