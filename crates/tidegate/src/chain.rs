//! Owns how drains start other drains: which one follows which, and how many are worth running in parallel.
//! It starts none itself; a shell does that ([`StartDrain`]).

use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Result;

/// The most starts in a chain. AWS stops a chain after 16,
/// <https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html>, and a stopped chain looks like a
/// failure. The next tick of the schedule begins a new chain.
pub const MOST_HOPS: u16 = 12;

/// The place of a drain in a chain of drains that have started each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// The same for a drain and for those that follow it one after the other.
    pub id: Uuid,
    /// How many starts preceded it; 0 for a drain that no other drain has started.
    pub hop: u16,
}

impl Chain {
    /// Creates the place of a drain that no other drain has started.
    pub fn begin() -> Self {
        Self {
            id: Uuid::new_v4(),
            hop: 0,
        }
    }

    /// Returns the place of the drain that follows this one.
    pub(crate) fn behind(self) -> Option<Self> {
        let hop = self.hop + 1;
        (hop <= MOST_HOPS).then_some(Self { hop, ..self })
    }

    /// Returns the place of a further drain in parallel with this one.
    pub(crate) fn beside(self) -> Option<Self> {
        let id = Uuid::new_v4();
        self.behind().map(|next| Self { id, ..next })
    }
}

/// Starts drains. An example is a function that invokes itself.
pub trait StartDrain: Send + Sync + 'static {
    /// Starts a drain elsewhere, soon, as this hop of its chain. If the same hop is started twice, it runs
    /// once.
    ///
    /// # Errors
    /// When the drain cannot be started. Then a later drain continues.
    fn start(&self, chain: Chain) -> BoxFuture<'_, Result<()>>;
}

/// Wakes a drain at a time that each drain sets anew, so that no tick has to come meanwhile.
pub trait NextTick: Send + Sync + 'static {
    /// Moves the tick to this time, or a little later. `None` removes it.
    ///
    /// # Errors
    /// When it stays where it was.
    fn set(&self, at: Option<SystemTime>) -> BoxFuture<'_, Result<()>>;
}

/// Returns how many drains would empty a queue of `ready` events in time, if each ends `rate` events per
/// second.
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

/// What one look found about the drains at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seen {
    /// Events that are ready and in no lease.
    pub ready: u64,
    /// Drains at work.
    pub at_work: u16,
    /// Events that all of them together end per second.
    pub rate: f64,
}

/// Decides how many drains to start in parallel with those at work.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// The last look after which drains were started.
    last: Option<Seen>,
    /// How many looks in a row found no new drain after a start.
    missing: u8,
    /// Whether more drains do not help, because something else is the limit.
    enough: bool,
}

/// The most drains to start for each one at work. Each step takes about two seconds, because the new drains
/// must first show how much they add. If they add nothing, only few of them have to end.
const GROWTH: u16 = 3;

/// After this many starts in a row without a new drain, no more are tried.
const MOST_MISSING: u8 = 3;

impl Fleet {
    /// Returns how many drains to start: as many as would empty the queue within the time, but at most
    /// [`GROWTH`] for each that is at work. Returns 0 for good once new drains have added less than half of
    /// what the earlier ones did.
    pub(crate) fn more(&mut self, seen: Seen, within: Duration, most: u16) -> u16 {
        if let Some(last) = self.last.take() {
            let joined = seen.at_work.saturating_sub(last.at_work);
            if joined == 0 {
                self.missing += 1;
            } else {
                self.missing = 0;
                let each = last.rate / f64::from(last.at_work.max(1));
                let gained = seen.rate - last.rate;
                self.enough |= gained < each * f64::from(joined) / 2.0;
            }
        }
        if self.enough || self.missing >= MOST_MISSING || seen.at_work == 0 {
            return 0;
        }
        let each = seen.rate / f64::from(seen.at_work);
        let needed = wanted(seen.ready, each, within).min(u64::from(most));
        let more = u16::try_from(needed)
            .unwrap_or(most)
            .saturating_sub(seen.at_work)
            .min(seen.at_work.saturating_mul(GROWTH));
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
    fn drains_multiply_until_they_are_as_many_as_are_wanted_or_allowed() {
        let mut fleet = Fleet::default();
        assert_eq!(fleet.more(seen(100_000, 1, 40.0), WITHIN, 100), 3);
        assert_eq!(fleet.more(seen(99_000, 4, 160.0), WITHIN, 100), 12);
        assert_eq!(fleet.more(seen(95_000, 16, 640.0), WITHIN, 20), 4);
        assert_eq!(fleet.more(seen(90_000, 20, 800.0), WITHIN, 20), 0);
        assert_eq!(fleet.more(seen(500, 20, 800.0), WITHIN, 100), 0);
    }

    #[test]
    fn no_more_are_started_when_the_last_ones_did_not_help() {
        let mut fleet = Fleet::default();
        assert_eq!(fleet.more(seen(1 << 40, 1, 60_000.0), WITHIN, 100), 3);
        assert_eq!(fleet.more(seen(1 << 40, 2, 80_000.0), WITHIN, 100), 0);
        assert_eq!(fleet.more(seen(1 << 40, 2, 160_000.0), WITHIN, 100), 0);
    }

    #[test]
    fn starts_that_bring_nobody_end() {
        let mut fleet = Fleet::default();
        let started: Vec<u16> = (0..6)
            .map(|_| fleet.more(seen(1_000_000, 1, 10.0), WITHIN, 100))
            .collect();
        assert_eq!(started, [3, 3, 3, 0, 0, 0]);
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
