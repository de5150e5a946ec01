//! Owns how much each caller may hold of something that all share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts the shares that each key holds, up to a limit. Clones count together.
#[derive(Debug, Clone)]
pub struct FairQuota<K: Ord> {
    most: usize,
    held: Arc<Mutex<BTreeMap<K, Arc<Semaphore>>>>,
}

/// One share of a key, until it is dropped.
pub type Share = OwnedSemaphorePermit;

impl<K: Ord> FairQuota<K> {
    /// Allows each key this many shares.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let held = Arc::default();
        Self { most, held }
    }

    /// Takes a share, unless the key already holds the most that it may.
    #[must_use]
    pub fn take(&self, key: K) -> Option<Share> {
        self.of(key).try_acquire_owned().ok()
    }

    /// Takes a share as soon as the key holds fewer than the most that it may, in the order of asking; `None`
    /// if that takes longer.
    pub async fn wait(&self, key: K, at_most: Duration) -> Option<Share> {
        let share = self.of(key).acquire_owned();
        tokio::time::timeout(at_most, share).await.ok()?.ok()
    }

    fn of(&self, key: K) -> Arc<Semaphore> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // Of the others, nobody holds a share or waits for one.
        held.retain(|_, shares| Arc::strong_count(shares) > 1);
        let shares = held.entry(key);
        shares
            .or_insert_with(|| Arc::new(Semaphore::new(self.most)))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_its_share_and_no_more_and_others_have_theirs() {
        let shares = FairQuota::new(2);
        let held = [shares.take("a"), shares.take("a")];
        assert!(held.iter().all(Option::is_some) && shares.take("a").is_none());
        assert!(shares.take("b").is_some());
        drop(held);
        assert!(shares.take("c").is_some());
        let known = shares.held.lock().unwrap().len();
        assert_eq!(known, 1, "what nobody holds is not kept");
        assert!(shares.take("a").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_has_the_next_share_or_goes_away() {
        let shares = FairQuota::new(1);
        let held = shares.take("a");
        let waiting = tokio::spawn({
            let shares = shares.clone();
            async move { shares.wait("a", Duration::from_secs(2)).await }
        });
        assert!(shares.wait("a", Duration::from_secs(1)).await.is_none());
        drop(held);
        assert!(waiting.await.unwrap().is_some());
    }
}
