//! The part of the loop that publishes periodic events. Once a second, a lease also looks for due schedules.
//! They are fired on the leasing session before the next lease.
//!
//! Schedules cannot fail a drain. A later look repeats a look or a firing that failed.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::error::Error;
use tidegate_core::queue::{DueSchedule, Fired, Firing};
use tokio::time::Instant;

use crate::schedule;

/// The time from one look to the next. While a drain runs, it publishes the event of a slot at most about
/// this late.
const LOOK: Duration = Duration::from_secs(1);

/// The time to the next look after a look has failed or a schedule was refused.
const REFUSED: Duration = Duration::from_secs(30);

/// Schedules in one look.
pub(super) const PAGE: i32 = 200;

/// Events that are published at once: a short transaction, and at most 64 MiB of payloads.
const MOST_AT_ONCE: usize = 1000;

/// The most slots of one schedule that a drain publishes events for in a minute. The rest of a long outage
/// follows later, so that events of other publishers do not wait for all of it.
const MOST_A_MINUTE: usize = 1000;

/// What this run knows about schedules.
pub(super) struct Scheduling {
    look_at: Instant,
    /// The last schedule of this look; 0 when a look begins.
    after: i64,
    /// Due schedules that are to be fired.
    due: Vec<Firing>,
    /// Whether more of a schedule is due than was fired at once.
    unfinished: bool,
    /// Events published in this minute, by schedule.
    counts: HashMap<i64, usize>,
    minute: Instant,
}

impl Scheduling {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            look_at: now,
            after: 0,
            due: Vec::new(),
            unfinished: false,
            counts: HashMap::new(),
            minute: now,
        }
    }

    /// Returns the schedule after which to look now, if it is time to.
    pub(super) fn look(&self, now: Instant) -> Option<i64> {
        let looks = self.due.is_empty() && now >= self.look_at;
        looks.then_some(self.after)
    }

    pub(super) fn take_due(&mut self) -> Vec<Firing> {
        std::mem::take(&mut self.due)
    }

    /// Whether due schedules are not fired yet.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty() || self.after > 0 || self.unfinished
    }

    /// Leaves due schedules to the next run, because this run is over.
    pub(super) fn stop(&mut self) {
        self.due.clear();
        (self.after, self.unfinished) = (0, false);
        self.look_at = Instant::now() + REFUSED;
    }

    /// Plans what to fire after a look.
    pub(super) fn found(&mut self, found: Result<Vec<DueSchedule>, Error>) {
        let now = Instant::now();
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.failed(&error),
        };
        if now >= self.minute + Duration::from_mins(1) {
            self.minute = now;
            self.counts.clear();
        }
        if self.after == 0 {
            self.unfinished = false;
        }
        let (mut events, mut seen) = (0, 0);
        for due in &found {
            if events >= MOST_AT_ONCE {
                break;
            }
            seen += 1;
            self.after = due.id;
            let fired = self.counts.get(&due.id).copied().unwrap_or_default();
            let most = MOST_A_MINUTE
                .saturating_sub(fired)
                .min(MOST_AT_ONCE - events);
            if most == 0 {
                continue;
            }
            let firing = schedule::plan(due, most);
            events += firing.slots.len();
            let more = schedule::has_more(&firing, due.now);
            self.unfinished |= more && fired + firing.slots.len() < MOST_A_MINUTE;
            if more {
                *self.counts.entry(due.id).or_default() += firing.slots.len();
            }
            self.due.push(firing);
        }
        let is_last = seen == found.len() && found.len() < PAGE as usize;
        if is_last {
            self.after = 0;
        }
        let goes_on = !is_last || self.unfinished;
        self.look_at = if goes_on { now } else { now + LOOK };
    }

    /// Processes the result of a firing. Returns how many events it published.
    pub(super) fn fired(&mut self, fired: Result<Vec<Fired>, Error>) -> u64 {
        let fired = match fired {
            Ok(fired) => fired,
            Err(error) => {
                self.failed(&error);
                return 0;
            }
        };
        let published = fired.iter().map(|one| one.published).sum();
        let mut refused = fired.iter().filter_map(|one| one.refused.as_deref());
        if let Some(why) = refused.next() {
            let others = refused.count();
            tracing::warn!(error = %why, others, "the event of a schedule could not be published");
            self.look_at = Instant::now() + REFUSED;
            (self.after, self.unfinished) = (0, false);
        } else if published == 0 && self.after == 0 {
            // Another worker was faster, or holds what is needed.
            self.unfinished = false;
            self.look_at = self.look_at.max(Instant::now() + LOOK);
        }
        published
    }

    fn failed(&mut self, error: &Error) {
        tracing::warn!(error = %error, "schedules could not be checked");
        self.stop();
    }
}
