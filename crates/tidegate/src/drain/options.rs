//! Owns what may be set of a drain, its defaults and its ranges.

use std::net::SocketAddr;
use std::time::Duration;

use crate::config::{Lookup, duration, number};
use crate::error::Error;
use crate::outcome::RetryPolicy;
use crate::xray;

/// How to drain. Every duration is of this machine's clock, but for the lease's, which is the database's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainOptions {
    /// The whole run; a tenth of it, at most 2 s, is kept for writing down.
    pub budget: Duration,
    /// Most events leased at once, 1 to 10,000.
    pub batch: u32,
    /// Handlers at once, 1 to 1,000; with 1 the whole queue is FIFO (A2). With more, drains beside each other may begin
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
    /// Backoff between attempts.
    pub retry: RetryPolicy,
    /// The X-Ray daemon that is told of events under a sampled trace; `None` tells nobody.
    pub xray: Option<SocketAddr>,
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
            retry: RetryPolicy::default(),
            xray: None,
        }
    }
}

impl DrainOptions {
    /// Reads the drain's options: `TIDEGATE_BUDGET`, `_BATCH`, `_CONCURRENCY`, `_LEASE_TIMEOUT`,
    /// `_HANDLER_TIMEOUT`, `_BACKOFF_BASE`, `_BACKOFF_MAX`, `_LINGER`, `_XRAY`.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let default = Self::default();
        Ok(Self {
            budget: duration(lookup, "TIDEGATE_BUDGET", default.budget)?,
            batch: number(lookup, "TIDEGATE_BATCH", default.batch, 1, 10_000)?,
            concurrency: number(lookup, "TIDEGATE_CONCURRENCY", default.concurrency, 1, 1000)?,
            lease_timeout: duration(lookup, "TIDEGATE_LEASE_TIMEOUT", default.lease_timeout)?,
            handler_timeout: duration(lookup, "TIDEGATE_HANDLER_TIMEOUT", default.handler_timeout)?,
            linger: duration(lookup, "TIDEGATE_LINGER", default.linger)?,
            max_events: None,
            retry: RetryPolicy {
                base: duration(lookup, "TIDEGATE_BACKOFF_BASE", default.retry.base)?,
                max: duration(lookup, "TIDEGATE_BACKOFF_MAX", default.retry.max)?,
            },
            xray: xray::daemon(lookup)?,
        })
    }

    /// Checks ranges, and that a handler's limit fits into a lease with a tenth to spare (decision 3).
    ///
    /// # Errors
    /// [`Error::Config`] names the option and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Config(text));
        if !(1..=10_000).contains(&self.batch) {
            return refuse(format!("batch: 1 to 10000 is allowed, got {}", self.batch));
        }
        if !(1..=1000).contains(&self.concurrency) {
            return refuse(format!(
                "concurrency: 1 to 1000 is allowed, got {}",
                self.concurrency
            ));
        }
        if self.handler_timeout.is_zero() || self.handler_timeout > self.lease_timeout.mul_f64(0.9)
        {
            return refuse(format!(
                "handler timeout: must fit into nine tenths of the lease timeout of {:?}, got {:?}",
                self.lease_timeout, self.handler_timeout
            ));
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
