//! Owns what may be set of a drain, its defaults and its ranges.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::{Lookup, duration, in_range, number};
use crate::error::Error;
#[cfg(feature = "otel")]
use crate::otel::Telemetry;
use crate::outcome::RetryPolicy;

/// How to drain. Every duration is of this machine's clock, but for the lease's, which is the database's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainOptions {
    /// The whole run; a tenth of it, at most 2 s, is kept for writing down.
    pub budget: Duration,
    /// Most events leased at once: [`DrainOptions::BATCH`].
    pub batch: u32,
    /// Handlers at once: [`DrainOptions::CONCURRENCY`]. With 1 the whole queue is FIFO (A2). With more, drains beside each other may begin
    /// events without a group that came later a second before older ones.
    pub concurrency: usize,
    /// After this long without a word from its worker an event is abandoned (C12).
    pub lease_timeout: Duration,
    /// Each handler's limit (B16); must fit into nine tenths of a lease.
    pub handler_timeout: Duration,
    /// Keep polling an empty queue for this long.
    pub linger: Duration,
    /// Lease at most this many.
    pub max_events: Option<u64>,
    /// So many drains work on the queue at once at most: [`DrainOptions::MAX_DRAINS`]. One that finds so many at work ends at
    /// once. Programs that drain one queue should say the same.
    pub max_drains: u16,
    /// The process has so much memory, in MiB, which the report's `cost` counts with; on Lambda that is what the function
    /// was given.
    pub memory_mb: Option<u32>,
    /// How soon the queue is to be empty: so many drains are started, where drains can be started from drains
    /// ([`Hooks::starter`](crate::Hooks::starter)), up to `max_drains` and while more of them help.
    pub empty_within: Duration,
    /// Backoff between attempts.
    pub retry: RetryPolicy,
    /// Where traces and metrics go; `None` tells nobody. With the feature `otel`.
    #[cfg(feature = "otel")]
    pub telemetry: Option<Telemetry>,
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
            #[cfg(feature = "otel")]
            telemetry: None,
        }
    }
}

impl DrainOptions {
    /// How many events may be leased at once.
    pub const BATCH: RangeInclusive<u32> = 1..=10_000;
    /// How many handlers may run at once.
    pub const CONCURRENCY: RangeInclusive<usize> = 1..=1000;
    /// How many drains may work at once.
    pub const MAX_DRAINS: RangeInclusive<u16> = 1..=1000;

    /// Reads the drain's options: `TIDEGATE_BUDGET`, `_BATCH`, `_CONCURRENCY`, `_LEASE_TIMEOUT`,
    /// `_HANDLER_TIMEOUT`, `_BACKOFF_BASE`, `_BACKOFF_MAX`, `_LINGER`, `_MAX_DRAINS`,
    /// `_EMPTY_WITHIN`; and with the feature `otel` what `Telemetry` reads.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let default = Self::default();
        #[cfg(not(feature = "otel"))]
        crate::otel::from_settings(lookup)?;
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
            #[cfg(feature = "otel")]
            telemetry: Telemetry::from_settings(lookup)?,
        })
    }

    /// Checks ranges, and that a handler's limit fits into a lease with a tenth to spare.
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
