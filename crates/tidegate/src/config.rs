//! Owns the settings: reads and validates the environment. Each error names the variable and what is allowed.
//! The shell parses command-line flags, which win over these settings. This module knows nothing of the queue
//! or of AWS.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::Error;

/// Looks up a variable. Tests pass their own.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns a lookup in the process's environment.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Reads the file that a variable names.
///
/// # Errors
/// [`Error::Config`] names the variable and the path.
pub(crate) fn read_file(variable: &str, path: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        Error::Config(format!(
            "{variable}: must be a file that can be read: {path}: {error}"
        ))
    })
}

/// The longest duration. Clocks and the database overflow long before a number of seconds does.
const LONGEST: Duration = Duration::from_hours(10 * 366 * 24);

/// Parses a duration as people write it, of at most ten years.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refuse = |why: &dyn std::fmt::Display| {
        Err(format!(
            "must be a duration such as 500ms, 30s, 5m or 1h, got {text:?}: {why}"
        ))
    };
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Ok(_) => refuse(&"longer than ten years"),
        Err(error) => refuse(&error),
    }
}

pub(crate) fn duration(
    lookup: Lookup<'_>,
    name: &str,
    default: Duration,
) -> Result<Duration, Error> {
    lookup(name).map_or(Ok(default), |text| {
        parse_duration(&text).map_err(|refused| Error::Config(format!("{name}: {refused}")))
    })
}

/// Whether a switch is on. Without a value it is off.
///
/// # Errors
/// [`Error::Config`] names the variable.
#[doc(hidden)]
pub fn is_on(lookup: Lookup<'_>, name: &str) -> Result<bool, Error> {
    match lookup(name).as_deref() {
        None | Some("off") => Ok(false),
        Some("on") => Ok(true),
        Some(other) => Err(Error::Config(format!(
            "{name}: must be off or on, got {other:?}"
        ))),
    }
}

pub(crate) fn number<T>(
    lookup: Lookup<'_>,
    name: &str,
    default: T,
    range: &RangeInclusive<T>,
) -> Result<T, Error>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display + Copy,
{
    let Some(text) = lookup(name) else {
        return Ok(default);
    };
    match text.trim().parse::<T>() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(Error::Config(out_of_range(
            name,
            range,
            &format!("{text:?}"),
        ))),
    }
}

/// Checks a value that did not come from a variable.
///
/// # Errors
/// The error names the value and what is allowed.
pub(crate) fn in_range<T: Copy + PartialOrd + std::fmt::Display>(
    name: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), String> {
    if range.contains(&value) {
        Ok(())
    } else {
        Err(out_of_range(name, range, &value.to_string()))
    }
}

fn out_of_range<T: std::fmt::Display>(name: &str, range: &RangeInclusive<T>, got: &str) -> String {
    let (least, most) = (range.start(), range.end());
    format!("{name}: must be {least} to {most}, got {got}")
}
