//! Owns the options of a drain, their defaults and their ranges.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::{Lookup, duration, in_range, number};
use crate::error::Error;
use crate::outcome::RetryPolicy;

/// How to drain. Every duration is measured by this machine's clock, except the lease's, which the database
/// measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainOptions {
    /// The time for the whole run. A tenth of it, at most 2 s, is kept for storing the results.
    pub budget: Duration,
    /// The most events in one lease: [`DrainOptions::BATCH`].
    pub batch: u32,
    /// The most handlers that run at once: [`DrainOptions::CONCURRENCY`]. With 1 the whole queue is FIFO
    /// (A2). With more, and with several drains at once, an event without a group may start up to a second
    /// before an older one.
    pub concurrency: usize,
    /// An event whose worker has sent no renewal for this long is abandoned (C12).
    pub lease_timeout: Duration,
    /// The time limit of each handler (B16), which must fit into nine tenths of a lease.
    pub handler_timeout: Duration,
    /// How long to keep polling an empty queue.
    pub linger: Duration,
    /// The most events to lease in this run.
    pub max_events: Option<u64>,
    /// The most drains that work on the queue at once: [`DrainOptions::MAX_DRAINS`]. A drain that finds this
    /// many at work ends at once. All programs that drain one queue should set the same number.
    pub max_drains: u16,
    /// The memory of the process in MiB, used for the `cost` in the report. On Lambda this is the memory of
    /// the function.
    pub memory_mb: Option<u32>,
    /// How soon the queue should be empty. If drains can start other drains
    /// ([`Hooks::starter`](crate::Hooks::starter)), as many are started as this needs, up to `max_drains` and
    /// while more of them help.
    pub empty_within: Duration,
    /// The backoff between attempts.
    pub retry: RetryPolicy,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(50),
            batch: 1000,
            concurrency: 8,
            lease_timeout: Duration::from_mins(1),
            handler_timeout: Duration::from_secs(30),
            linger: Duration::ZERO,
            max_events: None,
            max_drains: 8,
            memory_mb: None,
            empty_within: Duration::from_secs(30),
            retry: RetryPolicy::default(),
        }
    }
}

impl DrainOptions {
    /// The allowed range of events in one lease.
    pub const BATCH: RangeInclusive<u32> = 1..=10_000;
    /// The allowed range of handlers that run at once.
    pub const CONCURRENCY: RangeInclusive<usize> = 1..=1000;
    /// The allowed range of drains that work at once.
    pub const MAX_DRAINS: RangeInclusive<u16> = 1..=1000;

    /// Reads the drain's options: `TIDEGATE_BUDGET`, `_BATCH`, `_CONCURRENCY`, `_LEASE_TIMEOUT`,
    /// `_HANDLER_TIMEOUT`, `_BACKOFF_BASE`, `_BACKOFF_MAX`, `_LINGER`, `_MAX_DRAINS`,
    /// `_EMPTY_WITHIN`.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let default = Self::default();
        Ok(Self {
            budget: duration(lookup, "TIDEGATE_BUDGET", default.budget)?,
            batch: number(lookup, "TIDEGATE_BATCH", default.batch, &Self::BATCH)?,
            concurrency: number(
                lookup,
                "TIDEGATE_CONCURRENCY",
                default.concurrency,
                &Self::CONCURRENCY,
            )?,
            lease_timeout: duration(lookup, "TIDEGATE_LEASE_TIMEOUT", default.lease_timeout)?,
            handler_timeout: duration(lookup, "TIDEGATE_HANDLER_TIMEOUT", default.handler_timeout)?,
            linger: duration(lookup, "TIDEGATE_LINGER", default.linger)?,
            max_events: None,
            memory_mb: lookup("AWS_LAMBDA_FUNCTION_MEMORY_SIZE").and_then(|size| size.parse().ok()),
            max_drains: number(
                lookup,
                "TIDEGATE_MAX_DRAINS",
                default.max_drains,
                &Self::MAX_DRAINS,
            )?,
            empty_within: duration(lookup, "TIDEGATE_EMPTY_WITHIN", default.empty_within)?,
            retry: RetryPolicy {
                base: duration(lookup, "TIDEGATE_BACKOFF_BASE", default.retry.base)?,
                max: duration(lookup, "TIDEGATE_BACKOFF_MAX", default.retry.max)?,
            },
        })
    }

    /// Checks the ranges, and that a handler's time limit fits into a lease with a tenth to spare.
    ///
    /// # Errors
    /// [`Error::Config`] names the option and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        let in_batch = in_range("batch", self.batch, &Self::BATCH);
        let in_concurrency = in_range("concurrency", self.concurrency, &Self::CONCURRENCY);
        let in_drains = in_range("max drains", self.max_drains, &Self::MAX_DRAINS);
        let in_ranges = in_batch.and(in_concurrency).and(in_drains);
        in_ranges.map_err(Error::Config)?;
        if self.handler_timeout.is_zero() || self.handler_timeout > self.lease_timeout.mul_f64(0.9)
        {
            return Err(Error::Config(format!(
                "handler timeout: must fit into nine tenths of the lease timeout of {:?}, got {:?}",
                self.lease_timeout, self.handler_timeout
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c12_defaults_are_the_documented_ones_and_can_be_overridden() {
        let options = DrainOptions::from_settings(&|_| None).unwrap();
        assert_eq!(options.budget, Duration::from_secs(50));
        assert_eq!(options.concurrency, 8);
        assert_eq!(options.lease_timeout, Duration::from_mins(1));
        assert_eq!(options.handler_timeout, Duration::from_secs(30));
        assert_eq!(options.retry.base, Duration::from_secs(1));
        assert_eq!(options.retry.max, Duration::from_mins(10));
        let options = DrainOptions::from_settings(&|name| {
            (name == "TIDEGATE_LEASE_TIMEOUT").then(|| "5m".to_owned())
        })
        .unwrap();
        assert_eq!(options.lease_timeout, Duration::from_mins(5));
    }

    #[test]
    fn a_bad_option_is_refused_by_name_with_what_is_allowed() {
        for (variable, value, allowed) in [
            ("TIDEGATE_BUDGET", "soon", "500ms, 30s, 5m or 1h"),
            ("TIDEGATE_BUDGET", "11y", "longer than ten years"),
            ("TIDEGATE_BATCH", "0", "1 to 10000"),
            ("TIDEGATE_CONCURRENCY", "many", "1 to 1000"),
            ("TIDEGATE_MAX_DRAINS", "0", "1 to 1000"),
        ] {
            let error =
                DrainOptions::from_settings(&|name| (name == variable).then(|| value.to_owned()))
                    .unwrap_err()
                    .to_string();
            assert!(
                error.contains(variable) && error.contains(allowed) && error.contains(value),
                "{error}"
            );
        }
    }
}
