//! Owns how drains start others: which one behind which, and how many beside each other are worth their while. It starts none
//! itself; a shell knows how ([`StartDrain`]).

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;

/// A chain of starts is no longer. AWS stops one after 16, <https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html>,
/// and what it stops looks like a failure; the next tick of the schedule begins a new one.
pub const MOST_HOPS: u16 = 12;

/// Where a drain stands in a chain of drains that have started each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// The same for a drain and those that follow it, one behind the other.
    pub id: Uuid,
    /// So many starts came before it; 0 for one that no drain has started.
    pub hop: u16,
}

impl Chain {
    /// A drain that no other has started.
    #[must_use]
    pub fn begin() -> Self {
        Self {
            id: Uuid::new_v4(),
            hop: 0,
        }
    }

    /// The drain that goes on behind this one.
    pub(crate) fn behind(self) -> Option<Self> {
        let hop = self.hop + 1;
        (hop <= MOST_HOPS).then_some(Self { hop, ..self })
    }

    /// A further drain beside this one.
    pub(crate) fn beside(self) -> Option<Self> {
        let id = Uuid::new_v4();
        self.behind().map(|next| Self { id, ..next })
    }
}

/// Starts drains: a function that invokes itself, for instance.
pub trait StartDrain: Send + Sync + 'static {
    /// Has a drain begin soon, elsewhere, as this hop of its chain. One that is started twice as the same hop runs once.
    ///
    /// # Errors
    /// When it cannot be started; then a later drain goes on.
    fn start(&self, chain: Chain) -> BoxFuture<'_, Result<(), Error>>;
}

/// How many drains would empty a queue of `ready` events in time, if each ends `rate` in a second.
pub(crate) fn wanted(ready: u64, rate: f64, within: Duration) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "events of one queue")]
    let needed = ready as f64 / (rate * within.as_secs_f64());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number too large, or none at all, is as many as there may be"
    )]
    if needed.is_finite() {
        needed.ceil() as u64
    } else if ready == 0 {
        0
    } else {
        u64::MAX
    }
}

/// What one look found of the drains at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seen {
    /// What is ready and nobody has in hand.
    pub ready: u64,
    /// Drains at work.
    pub at_work: u16,
    /// Events that they end in a second, together.
    pub rate: f64,
}

/// Decides how many drains to start beside those at work.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// The last look behind which some were started.
    last: Option<Seen>,
    /// Looks in a row whose newcomers did not come.
    missing: u8,
    /// More drains do not help: what limits them is something else.
    enough: bool,
}

/// So often starts are tried that bring nobody.
const MOST_MISSING: u8 = 3;

impl Fleet {
    /// How many to start: as many as would empty the queue within the time, and no more than double. None any more once
    /// newcomers have brought less than half of what those before them did.
    pub(crate) fn more(&mut self, seen: Seen, within: Duration, most: u16) -> u16 {
        if let Some(last) = self.last.take() {
            let came = seen.at_work.saturating_sub(last.at_work);
            if came == 0 {
                self.missing += 1;
            } else {
                self.missing = 0;
                let each = last.rate / f64::from(last.at_work.max(1));
                let gained = seen.rate - last.rate;
                self.enough |= gained < each * f64::from(came) / 2.0;
            }
        }
        if self.enough || self.missing >= MOST_MISSING || seen.at_work == 0 {
            return 0;
        }
        let each = seen.rate / f64::from(seen.at_work);
        let wanted = wanted(seen.ready, each, within).min(u64::from(most));
        let more = u16::try_from(wanted)
            .unwrap_or(most)
            .saturating_sub(seen.at_work)
            .min(seen.at_work);
        if more > 0 {
            self.last = Some(seen);
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    fn seen(ready: u64, at_work: u16, rate: f64) -> Seen {
        Seen {
            ready,
            at_work,
            rate,
        }
    }

    #[test]
    fn as_many_drains_are_wanted_as_empty_the_queue_in_time() {
        assert_eq!(wanted(10_000, 40.0, WITHIN), 9);
        assert_eq!(wanted(1, 40.0, WITHIN), 1);
        assert_eq!(wanted(0, 40.0, WITHIN), 0);
        assert_eq!(wanted(0, 0.0, WITHIN), 0);
        assert_eq!(wanted(1, 0.0, WITHIN), u64::MAX);
    }

    #[test]
    fn drains_double_until_they_are_as_many_as_are_wanted_or_allowed() {
        let mut fleet = Fleet::default();
        assert_eq!(fleet.more(seen(10_000, 1, 40.0), WITHIN, 100), 1);
        assert_eq!(fleet.more(seen(9_900, 2, 80.0), WITHIN, 100), 2);
        assert_eq!(fleet.more(seen(9_500, 4, 160.0), WITHIN, 6), 2);
        assert_eq!(fleet.more(seen(9_000, 6, 240.0), WITHIN, 6), 0);
        assert_eq!(fleet.more(seen(500, 6, 240.0), WITHIN, 100), 0);
    }

    #[test]
    fn no_more_are_started_when_the_last_ones_did_not_help() {
        let mut fleet = Fleet::default();
        assert_eq!(fleet.more(seen(1 << 40, 1, 60_000.0), WITHIN, 100), 1);
        assert_eq!(fleet.more(seen(1 << 40, 2, 80_000.0), WITHIN, 100), 0);
        assert_eq!(fleet.more(seen(1 << 40, 2, 160_000.0), WITHIN, 100), 0);
    }

    #[test]
    fn starts_that_bring_nobody_end() {
        let mut fleet = Fleet::default();
        let started: Vec<u16> = (0..6)
            .map(|_| fleet.more(seen(1_000_000, 1, 10.0), WITHIN, 100))
            .collect();
        assert_eq!(started, [1, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn a_chain_ends() {
        let first = Chain::begin();
        let hops = std::iter::successors(Some(first), |chain| chain.behind());
        assert_eq!(hops.count(), usize::from(MOST_HOPS) + 1);
        let (behind, beside) = (first.behind().unwrap(), first.beside().unwrap());
        assert_eq!((behind.id, behind.hop, beside.hop), (first.id, 1, 1));
        assert_ne!(beside.id, first.id);
    }
}
