//! Owns the report of a drain.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::status::ServiceStatus;
use tidegate_core::trace::SPANS;
use tracing::Span;
use tracing::field::Empty;

use crate::services::ServiceCalls;

/// Why a drain ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// A number that a run counts.
#[derive(Debug)]
pub struct Counter {
    /// Its field in the span of a drain.
    pub span_field: &'static str,
    /// What people call it; empty if no text has it.
    pub label: &'static str,
    /// Its metric for CloudWatch; empty if it has none. Counters of the same metric are added up.
    pub metric: &'static str,
    /// Whether it counts events by their way, and whether texts mention it.
    pub class: Class,
    /// Returns its value in a report.
    pub of: fn(&DrainReport) -> u64,
}

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Leased events that went this way: each goes one of these ways.
    End,
    /// Something else.
    Count,
    /// Something that texts mention only if it happened.
    Rare,
}

/// Defines the report of a drain. A new counter is one line of it: its name, its class, its label and its
/// metric.
macro_rules! report {
    (
        $(#[$meta:meta])*
        counters { $($(#[$attribute:meta])* $name:ident: $class:ident($label:literal, $metric:literal);)* }
        others { $($others:tt)* }
    ) => {
        $(#[$meta])*
        pub struct DrainReport {
            $($(#[$attribute])* pub $name: u64,)*
            $($others)*
        }

        /// All that a run counts.
        pub const COUNTERS: &[Counter] = &[$(Counter {
            span_field: concat!("tidegate.", stringify!($name)),
            label: $label,
            metric: $metric,
            class: Class::$class,
            of: |report| report.$name,
        }),*];

        impl DrainReport {
            /// Adds what another run counted.
            fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        /// Opens the span of a drain. It has a field for each counter.
        pub(super) fn span() -> Span {
            tracing::debug_span!(
                target: SPANS,
                "drain",
                "trace.position" = Empty,
                "trace.links" = Empty,
                "otel.kind" = Empty,
                "tidegate.budget_ms" = Empty,
                $({ concat!("tidegate.", stringify!($name)) } = Empty,)*
                "tidegate.stop_reason" = Empty,
                "error.type" = Empty,
                "otel.status_code" = Empty,
            )
        }
    };
}

report! {
    /// The report of a drain. Always `leased = completed + completed_with_errors + failed + retried +
    /// deferred + snoozed + released + lease_lost`. Events that ended as expired, abandoned or given up were
    /// not leased to a handler for that.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[non_exhaustive]
    counters {
        /// Events leased to be handled.
        leased: Count("leased", "Leased");
        /// Ended COMPLETED.
        completed: End("completed", "Completed");
        /// Ended `COMPLETED_WITH_ERRORS`: a handler rejected them.
        completed_with_errors: End("rejected by a handler", "CompletedWithErrors");
        /// Ended FAILED: no attempt left, no handler, or undecodable.
        failed: End("failed", "Failed");
        /// Back in the queue for another attempt.
        retried: End("to be retried", "Retried");
        /// Back in the queue at no cost: a service does not answer.
        #[serde(default, skip_serializing_if = "is_none")]
        deferred: End("waiting for a service", "");
        /// Their handlers asked to run later. They are back in the queue with their attempt restored, or
        /// COMPLETED with a new event that does the work (`Done::put_off`).
        #[serde(default, skip_serializing_if = "is_none")]
        snoozed: End("snoozed", "");
        /// Back in the queue before they started, at no cost.
        released: End("released before they started", "Released");
        /// No longer held by this drain when their handlers finished. They were requeued, or leased by
        /// another worker after the lease had run out.
        lease_lost: End("lease lost", "LeaseLost");
        /// Ended FAILED unhandled: their deadline had passed.
        expired: Count("expired", "Expired");
        /// Ended FAILED unhandled: their worker went away on the last attempt.
        abandoned: Count("abandoned", "Abandoned");
        /// Ended FAILED unhandled: they had waited too long for a service.
        #[serde(default, skip_serializing_if = "is_none")]
        given_up: Count("ended, a service being down", "Failed");
        /// Follow-ups published.
        published: Count("follow-ups published", "Published");
        /// Periodic events published.
        #[serde(default, skip_serializing_if = "is_none")]
        scheduled: Rare("periodic events published", "");
        /// Handlers that were given up on and block their threads. They continue after the run is over, while
        /// their events are back in the queue. Run the next drain in a new process.
        #[serde(default, skip_serializing_if = "is_none")]
        still_running: Rare("given up, but still running", "StillRunning");
        /// Leases that returned events.
        batches: Count("", "");
        /// Further drains that it has started.
        #[serde(default, skip_serializing_if = "is_none")]
        started_drains: Rare("", "");
        /// Starts of further drains, and moves of the next tick, that failed.
        #[serde(default, skip_serializing_if = "is_none")]
        starts_failed: Rare("starts of drains, and moves of the next tick, that failed", "StartsFailed");
    }
    others {
        /// How long the run took.
        pub elapsed_ms: u64,
        /// How long it was allowed to take.
        pub budget_ms: u64,
        /// Why it ended.
        pub stop_reason: StopReason,
        /// Its slot; 0 if it had none.
        #[serde(default)]
        pub slot: u16,
        /// Live events left. Unknown, like the other figures of the queue, if the database did not tell in
        /// time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub backlog: Option<u64>,
        /// Of these, events that a drain of this program could lease now; 10,000 at most. Excludes events
        /// that are planned, wait for a retry, are leased by another drain, or are held back by their group,
        /// a pause or an outside service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ready_left: Option<u64>,
        /// When there will be more to do. That is the next time when a plan, a retry, a schedule, a service's
        /// next try, or the end of another worker's lease or slot makes work available; RFC 3339. If it is
        /// overdue, the current time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
        pub next_due_at: Option<String>,
        /// Age of the oldest live event.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub oldest_age_ms: Option<u64>,
        /// How long an event has been ready that a drain of this program could lease now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub oldest_ready_ms: Option<u64>,
        /// Live events that will pass their deadline before they start.
        #[serde(default, skip_serializing_if = "is_none")]
        pub expiring: u64,
        /// Services that are not called now, and how many events wait for each. Empty unless the run has met
        /// one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub services_down: Vec<ServiceStatus>,
        /// The `calls` of each service and target: `failed`, `bad_answer`, `throttled`, `unavailable`,
        /// `took_ms`, `longest_ms`; at most a hundred services, and `other`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub services: BTreeMap<String, ServiceCalls>,
        /// The cost of the run.
        #[serde(default)]
        pub cost: Cost,
        /// Live events of other programs' kinds, of twenty kinds at most.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub unhandled: BTreeMap<String, u64>,
    }
}

/// The cost of a run, without the handlers' own connections and the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Cost {
    /// How long the run's two sessions waited for the database, together. That is the database's work, the
    /// round trips, and their own waits.
    pub database_ms: u64,
    /// Bytes that the whole server wrote to its write-ahead log meanwhile.
    /// Unknown if the server does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_wal_bytes: Option<u64>,
    /// Memory times time, as Lambda charges for it. Unknown if the memory size is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_seconds: Option<f64>,
    /// Events ended per GB-second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_per_gb_second: Option<f64>,
}

impl Cost {
    /// Sets what Lambda charges for a run of this length and memory size that ended this number of events.
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
    /// Returns how many events have ended that were leased to be handled.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.completed + self.completed_with_errors + self.failed
    }

    /// Whether another run would make progress now: this one ran out of time, has ended events, and has left
    /// ready ones.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.stop_reason == StopReason::BudgetSpent && self.ready_left > Some(0) && self.ended() > 0
    }

    /// Combines the reports of this run and the one after it: the sums of their counts, and the backlog that
    /// the later one has left.
    #[must_use]
    pub fn followed_by(self, next: Self) -> Self {
        let ended = self.ended() + next.ended();
        let mut services = self.services.clone();
        for (name, calls) in &next.services {
            services.entry(name.clone()).or_default().add(*calls);
        }
        let mut both = Self {
            services,
            cost: self.cost.and(next.cost, ended),
            elapsed_ms: self.elapsed_ms + next.elapsed_ms,
            budget_ms: self.budget_ms + next.budget_ms,
            ..next
        };
        both.add(&self);
        both
    }

    /// Returns what a text of the run says: each count with the words for it, the usual ones also if they are
    /// 0.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = COUNTERS.iter().map(|counter| (counter, (counter.of)(self)));
        let told = all.filter(|(counter, count)| {
            !counter.label.is_empty() && (counter.class != Class::Rare || *count > 0)
        });
        told.map(|(counter, count)| (counter.label, count))
    }

    /// Whether every leased event has gone exactly one way ([`Class::End`]).
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let ends = COUNTERS
            .iter()
            .filter(|counter| counter.class == Class::End);
        self.leased == ends.map(|counter| (counter.of)(self)).sum::<u64>()
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
