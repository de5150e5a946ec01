//! Owns the report of a drain.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::handler::ServiceCall;
use crate::status::ServiceStatus;

/// Why a drain ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// No ready event was left.
    #[default]
    QueueEmpty,
    /// Time was up, or a stop signal came.
    BudgetSpent,
    /// `max_events` events were leased.
    LimitReached,
    /// All slots were taken, or this drain has lost its slot.
    NoSlot,
    /// Another drain has started this one twice, and it has already run.
    AlreadyRun,
}

/// The report of a drain. Always `leased = completed + completed_with_errors + failed + retried + deferred +
/// snoozed + released + lease_lost`. Events that ended as expired, abandoned or given up were not leased to a
/// handler for that.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "drain")]
#[non_exhaustive]
pub struct DrainReport {
    /// Events leased to be handled.
    pub leased: u64,
    /// Ended COMPLETED.
    pub completed: u64,
    /// Ended `COMPLETED_WITH_ERRORS`: a handler rejected them.
    pub completed_with_errors: u64,
    /// Ended FAILED: no attempt left, no handler, or undecodable.
    pub failed: u64,
    /// Back in the queue for another attempt.
    pub retried: u64,
    /// Back in the queue, with their attempt restored: a service that they need does not answer.
    #[serde(default, skip_serializing_if = "is_none")]
    pub deferred: u64,
    /// Their handlers asked to run later: back in the queue with their attempt restored, or COMPLETED with a
    /// new event that does the work ([`Done::put_off`](crate::Done::put_off)).
    #[serde(default, skip_serializing_if = "is_none")]
    pub snoozed: u64,
    /// Back in the queue before they started, with their attempt restored.
    pub released: u64,
    /// No longer held by this drain when their handlers finished: requeued, or leased by another worker after
    /// the lease had run out.
    pub lease_lost: u64,
    /// Ended FAILED without a handler: their start-before deadline had passed.
    pub expired: u64,
    /// Ended FAILED without a handler: a worker had abandoned their last attempt.
    pub abandoned: u64,
    /// Ended FAILED without a handler: they had waited for a service for too long.
    #[serde(default, skip_serializing_if = "is_none")]
    pub given_up: u64,
    /// Follow-ups published.
    pub published: u64,
    /// Periodic events published for schedule slots that were due.
    #[serde(default, skip_serializing_if = "is_none")]
    pub scheduled: u64,
    /// Handlers that were given up on and cannot be ended, because they block their threads. They continue
    /// after the run is over, while their events are back in the queue. Run the next drain in a new process.
    #[serde(default, skip_serializing_if = "is_none")]
    pub still_running: u64,
    /// Leases that returned events.
    pub batches: u64,
    /// How long the run took.
    pub elapsed_ms: u64,
    /// How long it was allowed to take.
    pub budget_ms: u64,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// The slot of this drain, one of [`DrainOptions::max_drains`](crate::DrainOptions::max_drains); 0 if it
    /// had none.
    #[serde(default)]
    pub slot: u16,
    /// Live events left, in any state. `None`, like the other figures of the queue, if the database did not
    /// tell in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u64>,
    /// The part of the backlog that a drain of this program could lease now. Excludes events that are
    /// planned, wait for a retry, are leased by another drain, or are held back by their group, a pause or an
    /// outside service. 10,000 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_left: Option<u64>,
    /// Further drains that it has started, to work alongside it or after it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub started_drains: u64,
    /// Starts of further drains that failed.
    #[serde(default, skip_serializing_if = "is_none")]
    pub starts_failed: u64,
    /// The next time when a plan, a retry, a schedule, a service's next try, or the end of another worker's
    /// lease or slot makes work available, if it is known; RFC 3339. If it is overdue, the current time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "admin", schemars(extend("format" = "date-time")))]
    pub next_due_at: Option<String>,
    /// Age of the oldest live event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_age_ms: Option<u64>,
    /// How long the oldest event has been ready that a drain of this program could lease now; 0 if there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ready_ms: Option<u64>,
    /// Live events that will pass their start-before deadline before they start (B13).
    #[serde(default, skip_serializing_if = "is_none")]
    pub expiring: u64,
    /// Services that are not called now, with the events that wait for each. Empty unless the run has met
    /// one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services_down: Vec<ServiceStatus>,
    /// The calls of each service, with targets; at most a hundred, and `other`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, ServiceCalls>,
    /// The cost of the run.
    #[serde(default)]
    pub cost: Cost,
    /// Live events of kinds that this program does not handle, by kind; at most twenty kinds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unhandled: BTreeMap<String, u64>,
}

/// The calls of a service. Each event counts as a call, also if several share one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ServiceCalls {
    /// All calls.
    pub calls: u64,
    /// The service crashed, answered 500, or exceeded the handler's time limit.
    pub failed: u64,
    /// Its answer could not be read: code `bad_answer`.
    pub bad_answer: u64,
    /// It had too many calls: codes `throttled` and `429`.
    pub throttled: u64,
    /// It did not answer for another reason.
    pub unavailable: u64,
    /// How long all calls took, with the wait for events that share a call.
    pub took_ms: u64,
    /// How long the longest took.
    pub longest_ms: u64,
}

impl ServiceCalls {
    /// Records a call, and how it failed.
    pub(super) fn note(&mut self, took: Duration, failed: (ServiceCall, &str)) {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.calls += 1;
        self.took_ms += took_ms;
        self.longest_ms = self.longest_ms.max(took_ms);
        *match failed {
            (ServiceCall::Failed, "bad_answer") => &mut self.bad_answer,
            (ServiceCall::Failed, _) => &mut self.failed,
            (ServiceCall::Unanswered | ServiceCall::Busy, "throttled" | "429") => {
                &mut self.throttled
            }
            (ServiceCall::Unanswered | ServiceCall::Busy, _) => &mut self.unavailable,
            (ServiceCall::Answered | ServiceCall::Unknown | ServiceCall::Elsewhere, _) => return,
        } += 1;
    }

    fn add(&mut self, next: Self) {
        self.calls += next.calls;
        self.failed += next.failed;
        self.bad_answer += next.bad_answer;
        self.throttled += next.throttled;
        self.unavailable += next.unavailable;
        self.took_ms += next.took_ms;
        self.longest_ms = self.longest_ms.max(next.longest_ms);
    }
}

/// The cost of a run, without the handlers' own connections and the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Cost {
    /// The total time that the run waited for its two database sessions: the database's work, the round
    /// trips, and its own waits. The database is busy for less than that.
    pub database_ms: u64,
    /// Bytes that the whole server wrote to its write-ahead log meanwhile, including other sessions' writes.
    /// `None` if the server does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_wal_bytes: Option<u64>,
    /// Memory times time, as Lambda charges for it. `None` if the memory size is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_seconds: Option<f64>,
    /// Events ended per GB-second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_per_gb_second: Option<f64>,
}

impl Cost {
    /// Adds what Lambda charges for a run of this length and memory size that ended this number of events.
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

    /// Adds up the cost of two runs that together ended this number of events.
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
    /// Returns the number of events that have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.completed + self.completed_with_errors + self.failed
    }

    /// Whether another run would make progress now: this one ran out of time, and it has ended events.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.stop_reason == StopReason::BudgetSpent && self.ready_left > Some(0) && self.ended() > 0
    }

    /// Combines the reports of this run and the next one behind it: the sums of their counts, and the backlog
    /// that the next one has left.
    #[must_use]
    pub fn followed_by(self, next: Self) -> Self {
        let ended = self.ended() + next.ended();
        let mut services = self.services;
        for (name, calls) in next.services {
            services.entry(name).or_default().add(calls);
        }
        Self {
            services,
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
            given_up: self.given_up + next.given_up,
            published: self.published + next.published,
            scheduled: self.scheduled + next.scheduled,
            still_running: self.still_running + next.still_running,
            batches: self.batches + next.batches,
            elapsed_ms: self.elapsed_ms + next.elapsed_ms,
            budget_ms: self.budget_ms + next.budget_ms,
            started_drains: self.started_drains + next.started_drains,
            starts_failed: self.starts_failed + next.starts_failed,
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
