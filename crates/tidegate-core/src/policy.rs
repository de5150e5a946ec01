//! Owns how events of a kind are handled where the defaults do not apply. The program declares it, and the
//! database stores it for publishers, for drains and for programs that poll.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::millis;

/// How events of one kind are handled. A field that is not set has the default value of all kinds. Declare it
/// with `Program::policy`; `migrate` stores it.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::policy::Policy;
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
    /// See [`Policy::handler_timeout`].
    pub handler_timeout_ms: Option<u64>,
    /// See [`Policy::backoff`].
    pub backoff_ms: Option<u64>,
    /// See [`Policy::backoff`].
    pub backoff_max_ms: Option<u64>,
    /// See [`Policy::concurrency`].
    pub concurrency: Option<u32>,
    /// See [`Policy::batch`].
    pub batch: Option<u16>,
    /// See [`Policy::batch`].
    pub batch_within_ms: Option<u64>,
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

    /// Lets up to this many events, 1 to 1,000, share one call of a `Batch`. The first of
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
