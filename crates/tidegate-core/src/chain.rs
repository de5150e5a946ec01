//! Owns which drain follows which, and the traits by which one is started or woken later. The crate of a
//! cloud implements them.

use std::time::SystemTime;

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

    /// Returns the place of the drain that follows this one; `None` after [`MOST_HOPS`] starts.
    pub fn behind(self) -> Option<Self> {
        let hop = self.hop + 1;
        (hop <= MOST_HOPS).then_some(Self { hop, ..self })
    }

    /// Returns the place of a further drain, which runs in parallel with this one: the next hop of a chain of
    /// its own. `None` as in [`Chain::behind`].
    pub fn beside(self) -> Option<Self> {
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
    /// When the tick cannot be moved. It stays where it was.
    fn set(&self, at: Option<SystemTime>) -> BoxFuture<'_, Result<()>>;
}

#[cfg(test)]
mod tests {
    use super::*;

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
