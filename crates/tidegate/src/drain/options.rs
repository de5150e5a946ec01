//! Owns the options of a drain, their defaults and their ranges.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_core::config::{environment, settings};
use tidegate_core::error::Error;

use crate::outcome::RetryPolicy;

settings! {
    /// How to drain. Every duration is measured by this machine's clock, except the lease's, which the
    /// database measures.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DrainOptions {
        /// The time for the whole run, also of a cleanup. On Lambda the function's deadline limits it, and is
        /// the default. A tenth of it, at most 2 s, is kept for storing the results.
        budget: Duration = Duration::from_secs(50), "TIDEGATE_BUDGET";
        /// The most handlers that run at once, 1 to 1,000. With 1, one drain is first in, first out
        /// while nothing fails (A2). With more, and with several drains at once, an event without a group may
        /// start up to a second before an older one.
        concurrency: usize = 8, "TIDEGATE_CONCURRENCY", within Self::CONCURRENCY;
        /// The most events in one lease, 1 to 10,000. Fewer are leased while handlers are slow.
        batch: u32 = 1000, "TIDEGATE_BATCH", within Self::BATCH;
        /// How long to keep polling an empty queue.
        linger: Duration = Duration::ZERO, "TIDEGATE_LINGER";
        /// The most drains that work on the queue at once, 1 to 1,000. A drain that finds this many at work
        /// ends at once, with `no_slot`. All programs that drain one queue should set the same number.
        max_drains: u16 = 8, "TIDEGATE_MAX_DRAINS", within Self::MAX_DRAINS;
        /// Whether the function invokes itself: again when a drain's budget is spent, and as often as
        /// `max_drains` allows when a drain finds more ready events than it can finish.
        starts_drains: bool = false, "TIDEGATE_START_DRAINS";
        /// An event whose worker has sent no renewal for this long is abandoned, and goes to other workers
        /// (C12).
        lease_timeout: Duration = Duration::from_mins(1), "TIDEGATE_LEASE_TIMEOUT";
        /// The time limit of each handler (B16), which must fit into nine tenths of a lease.
        handler_timeout: Duration = Duration::from_secs(30), "TIDEGATE_HANDLER_TIMEOUT";
        /// Where the drain runs, for whoever looks at its leases; at most 200 characters. Without it, the log
        /// stream in Lambda, and otherwise the host and the id of the process.
        worker: Option<String> = None, "TIDEGATE_WORKER";
        /// The memory of the process in MiB, used for the `cost` in the report. Lambda sets it to the memory
        /// of the function.
        memory_mb: Option<u32> = None, "AWS_LAMBDA_FUNCTION_MEMORY_SIZE";
    }
    parts {
        /// The backoff between attempts.
        retry: RetryPolicy;
    }
    rest {
        /// The most events to lease in this run; `None` for any number.
        max_events: Option<u64>;
    }
}

impl DrainOptions {
    /// The allowed range of events in one lease.
    pub const BATCH: RangeInclusive<u32> = 1..=10_000;
    /// The allowed range of handlers that run at once.
    pub const CONCURRENCY: RangeInclusive<usize> = 1..=1000;
    /// The allowed range of drains that work at once.
    pub const MAX_DRAINS: RangeInclusive<u16> = 1..=1000;

    /// Checks the ranges, and that a handler's time limit fits into a lease with a tenth to spare.
    ///
    /// # Errors
    /// [`Error::Config`] names the option and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        self.check_ranges()?;
        if self.handler_timeout.is_zero() || self.handler_timeout > self.lease_timeout.mul_f64(0.9)
        {
            return Err(Error::Config(format!(
                "handler timeout: must fit into nine tenths of the lease timeout of {:?}, got {:?}",
                self.lease_timeout, self.handler_timeout
            )));
        }
        Ok(())
    }

    /// Returns where the drain runs, in at most 200 characters.
    pub(super) fn worker_name(&self) -> String {
        let given = self.worker.clone();
        let name = given.or_else(|| environment("AWS_LAMBDA_LOG_STREAM_NAME"));
        let name = name.unwrap_or_else(|| format!("{}:{}", host(), std::process::id()));
        name.chars().take(200).collect()
    }
}

/// The name of this machine, or `localhost` if it is not known.
fn host() -> String {
    let named = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = named.or_else(|| environment("HOSTNAME"));
    name.map_or_else(|| "localhost".to_owned(), |name| name.trim().to_owned())
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
