//! Owns the settings: environment → validated values, each error naming the variable and what is
//! allowed. Command-line flags are parsed by the shell and win over these. It knows nothing of the
//! queue or of AWS.

use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::drain::DrainOptions;
use crate::error::Error;
use crate::outcome::RetryPolicy;

/// Looks a variable up; tests bring their own.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's environment.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Reads the drain's options: `TIDEGATE_BUDGET`, `_BATCH`, `_CONCURRENCY`, `_LEASE_TIMEOUT`,
/// `_HANDLER_TIMEOUT`, `_BACKOFF_BASE`, `_BACKOFF_MAX`, `_LINGER`.
///
/// # Errors
/// [`Error::Config`] names the variable and what is allowed.
pub fn drain_options(lookup: Lookup<'_>) -> Result<DrainOptions, Error> {
    let default = DrainOptions::default();
    Ok(DrainOptions {
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
    })
}

/// The global attempt limit, if `TIDEGATE_MAX_ATTEMPTS` sets one (B6).
///
/// # Errors
/// [`Error::Config`] when it is not 1 to 1000.
pub fn max_attempts(lookup: Lookup<'_>) -> Result<Option<u16>, Error> {
    match lookup("TIDEGATE_MAX_ATTEMPTS") {
        None => Ok(None),
        Some(_) => number(lookup, "TIDEGATE_MAX_ATTEMPTS", 5, 1, 1000).map(Some),
    }
}

/// Who operates, for the audit: `TIDEGATE_ACTOR`, or the account's name in `USER`. A claim; what the
/// database knows for sure is its own user.
#[must_use]
pub fn actor(lookup: Lookup<'_>) -> Option<String> {
    lookup("TIDEGATE_ACTOR").or_else(|| lookup("USER"))
}

/// The database's URL.
///
/// # Errors
/// [`Error::Config`] when `DATABASE_URL` is not set.
pub fn database_url(lookup: Lookup<'_>) -> Result<String, Error> {
    lookup("DATABASE_URL").ok_or_else(|| {
        Error::Config("DATABASE_URL is not set; a postgres:// URL is needed, such as postgres://user:password@host/database".to_owned())
    })
}

/// No duration is longer: clocks and the database overflow long before a number of seconds does.
const LONGEST: Duration = Duration::from_hours(10 * 366 * 24);

/// A duration as people write it, of at most ten years.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refuse = |why: &dyn std::fmt::Display| {
        Err(format!(
            "a duration such as 500ms, 30s, 5m or 1h is allowed, got {text:?}: {why}"
        ))
    };
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Ok(_) => refuse(&"longer than ten years"),
        Err(error) => refuse(&error),
    }
}

/// What is logged: `TIDEGATE_LOG`, in the words of `tracing`'s environment filter.
///
/// # Errors
/// [`Error::Config`] when it is malformed.
pub fn log_filter(lookup: Lookup<'_>, default: &str) -> Result<EnvFilter, Error> {
    EnvFilter::try_new(lookup("TIDEGATE_LOG").as_deref().unwrap_or(default)).map_err(|error| {
        Error::Config(format!(
            "TIDEGATE_LOG: levels such as info or tidegate=debug,warn are allowed: {error}"
        ))
    })
}

fn duration(lookup: Lookup<'_>, name: &str, default: Duration) -> Result<Duration, Error> {
    lookup(name).map_or(Ok(default), |text| {
        parse_duration(&text).map_err(|allowed| Error::Config(format!("{name}: {allowed}")))
    })
}

fn number<T>(lookup: Lookup<'_>, name: &str, default: T, least: T, most: T) -> Result<T, Error>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display + Copy,
{
    let Some(text) = lookup(name) else {
        return Ok(default);
    };
    match text.trim().parse::<T>() {
        Ok(value) if value >= least && value <= most => Ok(value),
        _ => Err(Error::Config(format!(
            "{name}: {least} to {most} is allowed, got {text:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c12_defaults_are_the_documented_ones_and_can_be_overridden() {
        let options = drain_options(&|_| None).unwrap();
        assert_eq!(options.budget, Duration::from_secs(50));
        assert_eq!(options.concurrency, 8);
        assert_eq!(options.lease_timeout, Duration::from_mins(1));
        assert_eq!(options.handler_timeout, Duration::from_secs(30));
        assert_eq!(options.retry.base, Duration::from_secs(1));
        assert_eq!(options.retry.max, Duration::from_mins(10));
        let options =
            drain_options(&|name| (name == "TIDEGATE_LEASE_TIMEOUT").then(|| "5m".to_owned()))
                .unwrap();
        assert_eq!(options.lease_timeout, Duration::from_mins(5));
    }

    #[test]
    fn a_bad_value_is_refused_by_name_with_what_is_allowed() {
        for (variable, value, allowed) in [
            ("TIDEGATE_BUDGET", "soon", "500ms, 30s, 5m or 1h"),
            ("TIDEGATE_BUDGET", "11y", "longer than ten years"),
            ("TIDEGATE_BATCH", "0", "1 to 10000"),
            ("TIDEGATE_CONCURRENCY", "many", "1 to 1000"),
        ] {
            let error = drain_options(&|name| (name == variable).then(|| value.to_owned()))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(variable) && error.contains(allowed) && error.contains(value),
                "{error}"
            );
        }
        let error = log_filter(&|_| Some("=,=".to_owned()), "info").unwrap_err();
        assert!(error.to_string().contains("TIDEGATE_LOG"), "{error}");
        let error = max_attempts(&|_| Some("-1".to_owned()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("TIDEGATE_MAX_ATTEMPTS") && error.contains("1 to 1000"),
            "{error}"
        );
    }
}
