//! The part of the loop that releases events which wait for others. It looks with a lease, once a second and when the
//! queue seems empty.
//!
//! As with schedules, nothing of it can fail a drain. A later look repeats a failed one.

use std::time::Duration;

use tokio::time::Instant;

use super::Drain;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::queue::Released;

/// The time from one look to the next.
const LOOK: Duration = Duration::from_secs(1);

/// The time between the pages of a look while there is other work. Leases wait for a page, which takes 10 ms.
const BETWEEN_PAGES: Duration = Duration::from_millis(50);

/// The time from a failed look to the next one.
const FAILED: Duration = Duration::from_secs(30);

/// Waiting events in one look.
pub(super) const PAGE: i32 = 2000;

/// What this run knows about waiting events.
pub(super) struct Waiting {
    look_at: Instant,
    /// The last event of this look; 0 when a look begins.
    after: i64,
    /// How many events had ended in this run when the last look began.
    seen: u64,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self {
            look_at: Instant::now(),
            after: 0,
            seen: 0,
        }
    }

    /// Returns the event after which to look now, if it is time to. `ended` is how many events have ended in this run.
    pub(super) fn look(&mut self, now: Instant, ended: u64, is_idle: bool) -> Option<i64> {
        if now < self.look_at && (!is_idle || self.is_quiet(ended)) {
            return None;
        }
        if self.after == 0 {
            self.seen = ended;
        }
        Some(self.after)
    }

    /// Whether no event can be released because of an event that ended in this run.
    pub(super) fn is_quiet(&self, ended: u64) -> bool {
        self.after == 0 && self.seen == ended
    }

    /// Processes the result of a look. Returns where a scan must begin to find the released events.
    fn told(&mut self, released: Result<Released, Error>) -> Option<i64> {
        let now = Instant::now();
        match released {
            Ok(released) => {
                self.after = released.looked_to.unwrap_or(0);
                self.look_at = now + if self.after > 0 { BETWEEN_PAGES } else { LOOK };
                released.lowest
            }
            Err(error) => {
                tracing::warn!(%error, "events that wait for other events could not be checked");
                self.after = 0;
                self.look_at = now + FAILED;
                None
            }
        }
    }
}

impl<D: Dispatch> Drain<D> {
    /// Returns the waiting event after which to look now.
    pub(super) fn look_at_waiting(&mut self, now: Instant) -> Option<i64> {
        if self.is_spent() {
            return None;
        }
        let is_idle = self.is_idle();
        self.waiting.look(now, self.report.ended(), is_idle)
    }

    /// Processes the result of a look.
    pub(super) fn take_released(&mut self, released: Option<Result<Released, Error>>) {
        if let Some(lowest) = released.and_then(|released| self.waiting.told(released)) {
            self.back_to(lowest);
            self.walk.hurry();
            self.limits.hurry();
            self.empty.seen = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_looks_once_a_second_and_when_nothing_is_left_after_something_has_ended() {
        let mut waiting = Waiting::new();
        let now = Instant::now();
        assert_eq!(waiting.look(now, 0, false), Some(0));
        waiting.told(Ok(Released::default()));
        assert_eq!(waiting.look(now, 0, true), None);
        assert!(!waiting.is_quiet(3));
        assert_eq!(waiting.look(now, 3, false), None, "there is other work");
        assert_eq!(waiting.look(now, 3, true), Some(0));
        let more = Released {
            looked_to: Some(70),
            lowest: Some(9),
        };
        assert_eq!(waiting.told(Ok(more)), Some(9));
        assert!(!waiting.is_quiet(3));
        // The rest of one look, with other work in between. An event that ends in the meantime is for the next look.
        assert_eq!(waiting.look(now, 4, false), None);
        assert_eq!(waiting.look(now + BETWEEN_PAGES, 4, false), Some(70));
        waiting.told(Ok(Released::default()));
        assert!(waiting.is_quiet(3) && !waiting.is_quiet(4));
        assert_eq!(waiting.look(now + LOOK, 3, false), Some(0));
    }
}
