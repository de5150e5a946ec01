//! Owns how this process knows that a time limit has passed: it reads two clocks. The monotonic clock cannot
//! be set, but it stops while a machine is suspended or a sandbox is frozen. The wall clock goes on, or jumps
//! when the machine resumes. A limit has passed when either clock says so. If the wall clock is set ahead,
//! events that have not started go back early, which costs nothing. If it is set back, nothing changes.

use std::ops::Add;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// A reading of both clocks of this machine, now or in the future.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// The monotonic clock.
    pub steady: Instant,
    pub wall: SystemTime,
}

impl Reading {
    pub(super) fn now() -> Self {
        Self {
            steady: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Returns what is over first, by each clock.
    pub(super) fn earlier(self, other: Self) -> Self {
        Self {
            steady: self.steady.min(other.steady),
            wall: self.wall.min(other.wall),
        }
    }

    /// Whether either clock has reached this reading. The monotonic clock has just returned `now`.
    pub(super) fn is_over(self, now: Instant) -> bool {
        now >= self.steady || SystemTime::now() >= self.wall
    }
}

impl Add<Duration> for Reading {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self {
            steady: self.steady + time,
            wall: self.wall + time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[tokio::test(start_paused = true)]
    async fn a_time_is_over_when_either_clock_has_reached_it() {
        let now = Reading::now();
        assert!(now.is_over(now.steady));
        let later = now + HOUR;
        assert!(!later.is_over(now.steady));
        assert!(later.is_over(now.steady + HOUR));
        // While the machine was suspended, only the wall clock went on.
        let suspended = Reading {
            wall: now.wall,
            ..later
        };
        assert!(suspended.is_over(now.steady));
        // The wall clock was set back.
        let set_back = Reading {
            wall: now.wall + HOUR * 24,
            ..later
        };
        assert!(!set_back.is_over(now.steady) && set_back.is_over(later.steady));
    }
}
