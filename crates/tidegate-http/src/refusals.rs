//! Owns the lines in the log about credentials that were refused.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Extensions;

use crate::Peer;

/// How long an address that had a line has no other.
const PAUSE: Duration = Duration::from_mins(1);

/// The most addresses that are remembered. Further ones share a line.
const MOST_ADDRESSES: usize = 10_000;

/// Writes a line when a credential is refused: at most one a minute and address. The line has no name of a
/// caller, because nobody has verified it, and people type passwords where a name belongs. Clones count
/// together.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<Option<IpAddr>, LastLine>>>);

/// When an address had its latest line, and how many refusals since then had none.
#[derive(Debug, Clone, Copy)]
struct LastLine {
    at: Instant,
    unsaid: u64,
}

impl Refusals {
    /// Counts the refused credential of a request with these extensions, and writes a line if one is due.
    pub fn note(&self, extensions: &Extensions) {
        let peer = extensions.get().copied().unwrap_or_default();
        let Peer(address) = peer;
        if let Some(unsaid) = self.due(peer, Instant::now()) {
            let address = address.map_or_else(|| "unknown".to_owned(), |known| known.to_string());
            tracing::warn!(address, unsaid, "a credential was refused");
        }
    }

    /// Whether a line is due, as the number of refusals before this one that had none.
    fn due(&self, peer: Peer, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut address = peer.network();
        if all.len() >= MOST_ADDRESSES && !all.contains_key(&address) {
            all.retain(|_, told| now.duration_since(told.at) < PAUSE);
            address = address.filter(|_| all.len() < MOST_ADDRESSES);
        }
        let latest = all.get_mut(&address);
        if let Some(told) = latest
            && now.duration_since(told.at) < PAUSE
        {
            told.unsaid += 1;
            return None;
        }
        let told = LastLine { at: now, unsaid: 0 };
        let before = all.insert(address, told);
        Some(before.map_or(0, |told| told.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(n: u32) -> Peer {
        Peer(Some(Ipv4Addr::from_bits(n).into()))
    }

    #[test]
    fn an_address_has_a_line_a_minute_which_counts_those_before() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let due = |n, seconds| refusals.due(peer(n), start + Duration::from_secs(seconds));
        assert_eq!(due(1, 0), Some(0));
        assert_eq!((due(1, 1), due(1, 59)), (None, None));
        assert_eq!(due(2, 59), Some(0), "another address");
        assert_eq!((due(1, 60), due(1, 61)), (Some(2), None));
    }

    #[test]
    fn of_more_addresses_than_are_remembered_all_further_ones_share_a_line() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let few = u32::try_from(MOST_ADDRESSES).unwrap();
        for n in 0..few {
            assert_eq!(refusals.due(peer(n), start), Some(0));
        }
        assert_eq!(refusals.due(peer(few), start), Some(0));
        assert_eq!(refusals.due(peer(few + 1), start), None);
        let known = || refusals.0.lock().unwrap().len();
        assert_eq!(known(), MOST_ADDRESSES + 1);
        let later = start + PAUSE;
        assert_eq!(refusals.due(peer(few), later), Some(0));
        assert_eq!(known(), 1, "what is over is forgotten");
    }
}
