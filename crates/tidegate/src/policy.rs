//! Owns how events of a kind are handled where the defaults do not apply. The program declares it, and the
//! database stores it for publishers, for drains and for programs that poll.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::millis;
use crate::lease::LeasedEvent;
use crate::outcome::RetryPolicy;

/// How events of one kind are handled. A field that is not set has the default value of all kinds. Declare it
/// with `Program::policy`; `migrate` stores it.
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
    pub(crate) max_attempts: Option<u16>,
    pub(crate) handler_timeout_ms: Option<u64>,
    pub(crate) backoff_ms: Option<u64>,
    pub(crate) backoff_max_ms: Option<u64>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) batch: Option<u16>,
    pub(crate) batch_within_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) give_up_after_ms: Option<u64>,
}

impl Policy {
    /// Sets the number of attempts before an event fails, 1 to 1,000. The limit applies to events that are
    /// published from then on and set no limit of their own.
    pub fn attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets how long each handler may run, 1 ms to 15 min. The effective limit is never longer than nine
    /// tenths of the lease time.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout_ms = Some(millis(limit));
        self
    }

    /// Sets the delay after the first attempt and the longest delay, 1 ms to 24 h. The delay doubles with
    /// each attempt.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.backoff_ms = Some(millis(base));
        self.backoff_max_ms = Some(millis(max));
        self
    }

    /// Sets how many events run at once in all drains together, 1 to 10,000. An event that waits for its turn
    /// is not charged an attempt, and does not delay other kinds.
    pub fn concurrency(mut self, events: u32) -> Self {
        self.concurrency = Some(events);
        self
    }

    /// Lets up to this many events, 1 to 1,000, share one call of a [`Batch`](crate::Batch). The first of
    /// them waits no longer than `within`, at most 1 min, for the others. Together they take one place among
    /// the handlers that run at once, so declare it only for a kind whose handlers share a call.
    pub fn batch(mut self, events: u16, within: Duration) -> Self {
        self.batch = Some(events);
        self.batch_within_ms = Some(millis(within));
        self
    }

    /// Sets how long an event waits for an outside service that does not answer, 1 s to 3,660 days. Then it
    /// ends FAILED with the code `service_down`. The default is that of `TIDEGATE_GIVE_UP_AFTER`.
    pub fn give_up_after(mut self, limit: Duration) -> Self {
        self.give_up_after_ms = Some(millis(limit));
        self
    }
}

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

impl Policy {
    fn sharing(&self) -> BatchLimits {
        let most = self.batch.map_or(1, usize::from);
        // No more events than this run at once, so waiting for more would bring none.
        let at_once = self
            .concurrency
            .and_then(|events| usize::try_from(events).ok());
        BatchLimits {
            most: most.min(at_once.unwrap_or(usize::MAX)).max(1),
            within: self
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
    /// Replaces the policies.
    pub(crate) fn replace_stored(&mut self, policies: Vec<(String, Policy)>) {
        self.kinds = policies.into_iter().collect();
        let shared = self.kinds.values().map(|policy| policy.sharing().most);
        self.most_shared = shared.max().unwrap_or(1);
    }

    /// Returns how events of a kind share calls.
    pub(crate) fn sharing(&self, kind: &str) -> BatchLimits {
        if self.most_shared <= 1 {
            return BatchLimits::NONE;
        }
        let policy = self.kinds.get(kind);
        policy.map_or(BatchLimits::NONE, Policy::sharing)
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
