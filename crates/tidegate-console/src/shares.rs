//! Bounds what each client holds of something that all share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the shares that each key holds, up to a limit. Clones count together.
#[derive(Debug, Clone)]
pub struct Shares<K: Ord> {
    most: usize,
    held: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// One share of a key, until it is dropped.
#[derive(Debug)]
pub struct Share<K: Ord> {
    key: K,
    of: Shares<K>,
}

impl<K: Ord + Clone> Shares<K> {
    /// Allows each key this many shares.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let held = Arc::default();
        Self { most, held }
    }

    /// Takes a share, unless the key already holds the most that it may.
    #[must_use]
    pub fn take(&self, key: K) -> Option<Share<K>> {
        let mut all = self.held();
        let held = all.entry(key.clone()).or_default();
        if *held >= self.most {
            return None;
        }
        *held += 1;
        drop(all);
        let of = self.clone();
        Some(Share { key, of })
    }
}

impl<K: Ord> Shares<K> {
    fn held(&self) -> MutexGuard<'_, BTreeMap<K, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord> Drop for Share<K> {
    fn drop(&mut self) {
        let mut all = self.of.held();
        if let Some(held) = all.get_mut(&self.key) {
            *held -= 1;
            if *held == 0 {
                all.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_its_share_and_no_more_and_others_have_theirs() {
        let shares = Shares::new(2);
        let held = [shares.take("a"), shares.take("a")];
        assert!(held.iter().all(Option::is_some) && shares.take("a").is_none());
        assert!(shares.take("b").is_some());
        drop(held);
        assert!(shares.held().is_empty(), "what nobody holds is not kept");
        assert!(shares.take("a").is_some());
    }
}
