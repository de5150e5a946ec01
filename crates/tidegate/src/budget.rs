//! Owns the time that a run has: when to stop starting work, and when to stop handlers that still run. It is
//! pure except that it reads tokio's clock, which tests can stop. All deadlines are [`Instant`]s of this
//! machine, and are never compared with the database's clock.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// The time kept at the end of a run to store what was done: releases, completions, the report.
const RESERVE: Duration = Duration::from_secs(2);

/// The time one run has.
#[derive(Debug, Clone)]
pub struct Budget {
    started: Instant,
    total: Duration,
    /// When handlers that still run are stopped.
    cut: Instant,
    /// The longest time that an event of each kind has taken so far.
    slowest: HashMap<String, Duration>,
    stopped: bool,
}

/// How long what other sessions keep from being written is tried again after the handlers were stopped. The
/// run may take [`OVERRUN`](crate::drain::OVERRUN) longer than its budget.
const LAST_TRIES: Duration = Duration::from_millis(500);

/// How long running handlers may continue after a stop signal.
const STOP_GRACE: Duration = Duration::from_secs(5);

impl Budget {
    /// Creates a budget that begins now. A tenth of it, at most two seconds, is the reserve for finishing.
    pub fn new(total: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            total,
            cut: started + Self::for_handlers(total),
            slowest: HashMap::new(),
            stopped: false,
        }
    }

    /// Returns how long handlers may run in a budget: all of it but the reserve.
    pub fn for_handlers(total: Duration) -> Duration {
        total.saturating_sub((total / 10).min(RESERVE))
    }

    /// Returns the whole budget, with the reserve.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Returns the time since the budget was created.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns when handlers that still run are stopped.
    pub fn cut(&self) -> Instant {
        self.cut
    }

    /// Whether it is too late to try again what other sessions keep from being written. Handlers have been
    /// stopped by then.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.cut + LAST_TRIES
    }

    /// Learns how long an event took. From then on, no event of its kind starts with less time left than
    /// that. An event that was stopped at its limit says nothing about others of its kind, and is not to be
    /// learned from.
    pub fn learn(&mut self, kind: &str, took: Duration) {
        match self.slowest.get_mut(kind) {
            Some(slowest) => *slowest = took.max(*slowest),
            None => drop(self.slowest.insert(kind.to_owned(), took)),
        }
    }

    /// Ends the run early after a stop signal: nothing new starts, and running handlers have a short grace
    /// period.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.cut = self.cut.min(Instant::now() + STOP_GRACE);
    }

    /// Whether an event of this kind that starts `now` could finish: as much time must be left as the slowest
    /// event of its kind took so far. The first event of a kind is always allowed.
    pub fn allows(&self, kind: &str, now: Instant) -> bool {
        let slowest = self.slowest.get(kind).copied().unwrap_or_default();
        !self.stopped && now + slowest < self.cut
    }

    /// Returns the kinds for which there is enough time. When none is left, the budget is spent.
    pub fn kinds_with_time<'a>(&self, kinds: &[&'a str]) -> Vec<&'a str> {
        let now = Instant::now();
        kinds
            .iter()
            .copied()
            .filter(|kind| self.allows(kind, now))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f2_nothing_starts_that_would_not_have_the_time_of_the_slowest_of_its_kind() {
        let mut budget = Budget::new(Duration::from_secs(10));
        budget.learn("slow", Duration::from_secs(4));
        budget.learn("slow", Duration::from_secs(1));
        tokio::time::advance(Duration::from_millis(4900)).await;
        assert!(
            budget.allows("slow", Instant::now()),
            "4 s of 10 s less a reserve of 1 s are left"
        );
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(!budget.allows("slow", Instant::now()));
        assert_eq!(budget.kinds_with_time(&["slow", "new"]), ["new"]);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(budget.kinds_with_time(&["slow", "new"]).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_starting_at_once_and_running_soon() {
        let mut budget = Budget::new(Duration::from_mins(1));
        budget.stop();
        assert!(!budget.allows("any", Instant::now()));
        assert_eq!(budget.cut(), Instant::now() + STOP_GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_budget_keeps_most_of_itself() {
        let budget = Budget::new(Duration::from_secs(1));
        assert_eq!(budget.cut() - Instant::now(), Duration::from_millis(900));
    }
}
