//! Owns how events of a kind are handled where that is not as usual: what a program declares, and what an operator says
//! instead. Where it is stored, and which of the two holds, the database knows.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::outcome::RetryPolicy;

/// How events of one kind are handled; what it does not say is as for all kinds. Declared with
/// [`Program::policy`](crate::Program::policy), changed by operators with `tidegate policy`.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Policy;
///
/// let policy = Policy::default()
///     .attempts(3)
///     .handler_timeout(Duration::from_secs(5))
///     .backoff(Duration::from_secs(10), Duration::from_hours(1))
///     .concurrency(4)
///     .batch(100, Duration::from_millis(200));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "declare it with Program::policy"]
pub struct Policy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_attempts: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handler_timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backoff_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backoff_max_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch_within_ms: Option<u64>,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Policy {
    /// Attempts before an event is given up, 1 to 1,000, of events that do not say so themselves and are published from then on.
    pub fn attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long each handler may take, 1 ms to 15 min; no longer than nine tenths of a lease, whatever is said here.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout_ms = Some(millis(limit));
        self
    }

    /// The delay after the first attempt, which doubles with each, and the longest; 1 ms to 24 h.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.backoff_ms = Some(millis(base));
        self.backoff_max_ms = Some(millis(max));
        self
    }

    /// So many events run at once, over all drains, 1 to 10,000. What waits for its turn costs no attempt and keeps no
    /// other kind waiting.
    pub fn concurrency(mut self, events: u32) -> Self {
        self.concurrency = Some(events);
        self
    }

    /// Up to so many events, 1 to 1,000, share one call of a [`Batch`](crate::Batch), for which the first of them waits no
    /// longer than `within`, at most 1 min. They take one place among the handlers that run at once; so declare it only of a
    /// kind whose handlers share a call. Operators can change it only where it is declared.
    pub fn batch(mut self, events: u16, within: Duration) -> Self {
        self.batch = Some(events);
        self.batch_within_ms = Some(millis(within));
        self
    }
}

/// How long the first event of a batch waits for others where nobody says it.
const USUAL_WAIT: Duration = Duration::from_millis(100);

/// With how many others an event may share a call, and how long it waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Events of one call; 1 is alone.
    pub most: usize,
    /// From the first of them to the call.
    pub within: Duration,
}

impl Sharing {
    /// Each event has its own call.
    pub(crate) const NONE: Self = Self {
        most: 1,
        within: Duration::ZERO,
    };
}

impl Policy {
    fn sharing(&self) -> Sharing {
        let most = self.batch.map_or(1, usize::from);
        // No more of them run at once, and the rest would be waited for in vain.
        let at_once = self
            .concurrency
            .and_then(|events| usize::try_from(events).ok());
        Sharing {
            most: most.min(at_once.unwrap_or(usize::MAX)).max(1),
            within: self
                .batch_within_ms
                .map_or(USUAL_WAIT, Duration::from_millis),
        }
    }
}

/// The policies of all kinds that have one, as a drain has heard of them last.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    kinds: BTreeMap<String, Policy>,
    /// The largest batch of any kind.
    most_shared: usize,
}

impl Policies {
    /// Those that hold from now on.
    pub(crate) fn learn(&mut self, policies: Vec<(String, Policy)>) {
        self.kinds = policies.into_iter().collect();
        let shared = self.kinds.values().map(|policy| policy.sharing().most);
        self.most_shared = shared.max().unwrap_or(1);
    }

    /// How events of a kind share calls.
    pub(crate) fn sharing(&self, kind: &str) -> Sharing {
        if self.most_shared <= 1 {
            return Sharing::NONE;
        }
        let policy = self.kinds.get(kind);
        policy.map_or(Sharing::NONE, Policy::sharing)
    }

    /// So many events share a call at most, of any kind.
    pub(crate) fn most_shared(&self) -> usize {
        self.most_shared.max(1)
    }

    /// How long a handler of a kind may take, where all may take `usual` and none more than `most`.
    pub(crate) fn handler_timeout(&self, kind: &str, usual: Duration, most: Duration) -> Duration {
        let own = self
            .kinds
            .get(kind)
            .and_then(|policy| policy.handler_timeout_ms);
        own.map_or(usual, |limit| Duration::from_millis(limit).min(most))
    }

    /// When events of a kind are tried again, where it is `usual` for all.
    pub(crate) fn retry(&self, kind: &str, usual: RetryPolicy) -> RetryPolicy {
        let Some(policy) = self.kinds.get(kind) else {
            return usual;
        };
        RetryPolicy {
            base: policy.backoff_ms.map_or(usual.base, Duration::from_millis),
            max: policy
                .backoff_max_ms
                .map_or(usual.max, Duration::from_millis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_policy_does_not_say_is_as_usual() {
        let mut policies = Policies::default();
        let usual = RetryPolicy::default();
        let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
        let own = Policy::default().handler_timeout(minute);
        policies.learn(vec![("a".to_owned(), own)]);
        assert_eq!(policies.handler_timeout("a", second, minute * 2), minute);
        assert_eq!(
            policies.handler_timeout("a", second, second * 2),
            second * 2
        );
        assert_eq!(policies.handler_timeout("b", second, minute), second);
        assert_eq!(policies.retry("a", usual), usual);
        policies.learn(vec![(
            "a".to_owned(),
            Policy::default().backoff(minute, second),
        )]);
        assert_eq!(policies.handler_timeout("a", second, minute), second);
        let retry = policies.retry("a", usual);
        assert_eq!((retry.base, retry.max), (minute, second));
        assert_eq!(retry.delay(1, 1.0), second);
    }
}
