//! Owns the time a run has: when to stop starting work, when to cut what still runs. Pure but for
//! reading tokio's clock, which tests can stop. All deadlines are [`Instant`]s of this machine; the
//! database's clock is never compared with them.

use std::time::Duration;

use tokio::time::Instant;

/// Kept at the end of a run for writing down what was done: releases, completions, the report.
const RESERVE: Duration = Duration::from_secs(2);

/// The time one run has.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    started: Instant,
    total: Duration,
    /// Handlers that still run then are cut.
    cut: Instant,
    /// The longest that a handler took so far.
    slowest: Duration,
    stopped: bool,
}

/// After a stop signal, running handlers have this long.
const STOP_GRACE: Duration = Duration::from_secs(5);

impl Budget {
    /// A budget that begins now. A tenth of it, at most two seconds, is the reserve for finishing.
    #[must_use]
    pub fn new(total: Duration) -> Self {
        let started = Instant::now();
        let reserve = (total / 10).min(RESERVE);
        Self {
            started,
            total,
            cut: started + total.saturating_sub(reserve),
            slowest: Duration::ZERO,
            stopped: false,
        }
    }

    /// The whole of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// When handlers that still run are cut.
    #[must_use]
    pub fn cut(&self) -> Instant {
        self.cut
    }

    /// Learns how long a handler took: no event is started that would not have that much time.
    pub fn learn(&mut self, took: Duration) {
        self.slowest = self.slowest.max(took);
    }

    /// Ends early, as a stop signal asks: nothing new starts, what runs has a short grace.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.cut = self.cut.min(Instant::now() + STOP_GRACE);
    }

    /// Whether an event started now could finish: as much time is left as the slowest one so far
    /// took. The first events of a run start on trust.
    #[must_use]
    pub fn allows_start(&self) -> bool {
        !self.stopped && Instant::now() + self.slowest < self.cut
    }

    /// When [`Budget::allows_start`] turns false, if nothing slower is learnt.
    #[must_use]
    pub fn last_start(&self) -> Instant {
        if self.stopped {
            self.started
        } else {
            self.cut.checked_sub(self.slowest).unwrap_or(self.started)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f2_nothing_starts_that_would_not_have_the_time_of_the_slowest() {
        let mut budget = Budget::new(Duration::from_secs(10));
        assert!(budget.allows_start());
        budget.learn(Duration::from_secs(4));
        budget.learn(Duration::from_secs(1));
        tokio::time::advance(Duration::from_millis(4900)).await;
        assert!(
            budget.allows_start(),
            "4 s of 10 s less a reserve of 1 s are left"
        );
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(!budget.allows_start());
        assert!(budget.last_start() < Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_starting_at_once_and_running_soon() {
        let mut budget = Budget::new(Duration::from_mins(1));
        budget.stop();
        assert!(!budget.allows_start());
        assert_eq!(budget.cut(), Instant::now() + STOP_GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_budget_keeps_most_of_itself() {
        let budget = Budget::new(Duration::from_secs(1));
        assert_eq!(budget.cut() - Instant::now(), Duration::from_millis(900));
    }
}
