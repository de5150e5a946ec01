//! Owns the policies of a run: how events of each kind are handled, as the drain last read them.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::lease::LeasedEvent;
use tidegate_core::policy::Policy;

use crate::outcome::RetryPolicy;

/// How long the first event of a batch waits for others when no time is set.
const USUAL_WAIT: Duration = Duration::from_millis(100);

/// How many events may share a call, and how long the first waits for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchLimits {
    /// The most events in one call. With 1, each event has its own call.
    pub most: usize,
    /// The time from the first event to the call.
    pub within: Duration,
}

impl BatchLimits {
    /// Each event has its own call.
    pub(crate) const NONE: Self = Self {
        most: 1,
        within: Duration::ZERO,
    };
}

impl From<&Policy> for BatchLimits {
    fn from(policy: &Policy) -> Self {
        let most = policy.batch.map_or(1, usize::from);
        // No more events than this run at once, so waiting for more would bring none.
        let at_once = policy
            .concurrency
            .and_then(|events| usize::try_from(events).ok());
        Self {
            most: most.min(at_once.unwrap_or(usize::MAX)).max(1),
            within: policy
                .batch_within_ms
                .map_or(USUAL_WAIT, Duration::from_millis),
        }
    }
}

/// The policies of all kinds that have one, as the drain last read them.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    kinds: BTreeMap<String, Policy>,
    /// The largest batch size of any kind.
    most_shared: usize,
}

impl Policies {
    pub(crate) fn replace_stored(&mut self, policies: Vec<(String, Policy)>) {
        self.kinds = policies.into_iter().collect();
        let shared = self
            .kinds
            .values()
            .map(|policy| BatchLimits::from(policy).most);
        self.most_shared = shared.max().unwrap_or(1);
    }

    pub(crate) fn sharing(&self, kind: &str) -> BatchLimits {
        if self.most_shared <= 1 {
            return BatchLimits::NONE;
        }
        let policy = self.kinds.get(kind);
        policy.map_or(BatchLimits::NONE, BatchLimits::from)
    }

    /// Returns how an event shares calls. After a shared call has failed, fewer of its events share the next
    /// one.
    pub(crate) fn sharing_of(&self, event: &LeasedEvent) -> BatchLimits {
        let usual = self.sharing(&event.kind);
        let progress = event.progress.as_ref();
        let together = progress.and_then(|progress| progress.together);
        BatchLimits {
            most: together.map_or(usual.most, |most| usual.most.min(most.into()).max(1)),
            ..usual
        }
    }

    /// Returns the most events that share a call, over all kinds.
    pub(crate) fn most_shared(&self) -> usize {
        self.most_shared.max(1)
    }

    /// Returns how long a handler of a kind may run. The default for all kinds is `usual`, and no limit
    /// exceeds `most`.
    pub(crate) fn handler_timeout(&self, kind: &str, usual: Duration, most: Duration) -> Duration {
        let own = self
            .kinds
            .get(kind)
            .and_then(|policy| policy.handler_timeout_ms);
        own.map_or(usual, |limit| Duration::from_millis(limit).min(most))
    }

    /// Returns the retry policy of a kind. The default for all kinds is `usual`.
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
        policies.replace_stored(vec![("a".to_owned(), own)]);
        assert_eq!(policies.handler_timeout("a", second, minute * 2), minute);
        assert_eq!(
            policies.handler_timeout("a", second, second * 2),
            second * 2
        );
        assert_eq!(policies.handler_timeout("b", second, minute), second);
        assert_eq!(policies.retry("a", usual), usual);
        policies.replace_stored(vec![(
            "a".to_owned(),
            Policy::default().backoff(minute, second),
        )]);
        assert_eq!(policies.handler_timeout("a", second, minute), second);
        let retry = policies.retry("a", usual);
        assert_eq!((retry.base, retry.max), (minute, second));
        assert_eq!(retry.delay(1, 1.0), second);
    }
}
