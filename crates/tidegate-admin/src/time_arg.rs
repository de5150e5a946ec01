//! Owns points in time as operators write them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Deserialize;
use tidegate_core::config::parse_duration;

/// A point in time, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum TimeArg {
    /// This instant.
    At(SystemTime),
    /// This long before the database's current time.
    Ago(Duration),
}

impl TimeArg {
    /// The two parameters of a statement: a time, or seconds before the database's current time.
    pub(crate) fn parts(moment: Option<Self>) -> (Option<SystemTime>, Option<f64>) {
        match moment {
            None => (None, None),
            Some(Self::At(time)) => (Some(time), None),
            Some(Self::Ago(time)) => (None, Some(time.as_secs_f64())),
        }
    }
}

impl TryFrom<String> for TimeArg {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_time_arg(&text)
    }
}

/// Parses an RFC 3339 time with any offset, or a duration that means "ago".
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_time_arg(text: &str) -> Result<TimeArg, String> {
    if let Some(time) = parse_rfc3339(text) {
        return Ok(TimeArg::At(time));
    }
    parse_duration(text).map(TimeArg::Ago).map_err(|_| {
        format!(
            "must be an RFC 3339 time such as 2026-01-31T12:00:00Z, or a duration such as 2h, meaning that long ago, got {text:?}"
        )
    })
}

/// Parses an RFC 3339 time with any offset.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_time(text: &str) -> Result<SystemTime, String> {
    parse_rfc3339(text).ok_or_else(|| {
        format!("must be an RFC 3339 time such as 2026-01-31T12:00:00Z, got {text:?}")
    })
}

/// A `Timestamp` needs an offset, so a time without one is refused.
fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    text.parse().ok().map(|time: Timestamp| time.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> TimeArg {
        TimeArg::At(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn f5_a_moment_is_a_time_in_any_zone_or_a_duration_ago() {
        for (text, moment) in [
            ("1970-01-02T00:00:00Z", at(86_400)),
            ("1970-01-02T02:30:00+02:30", at(86_400)),
            ("1970-01-01T19:00:00-05:00", at(86_400)),
            ("2h", TimeArg::Ago(Duration::from_hours(2))),
        ] {
            assert_eq!(parse_time_arg(text), Ok(moment), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "1970-01-02",
            "1970-01-02T00:00:00",
            "1970-01-02T00:00:00+2:00",
            "1970-01-02T00:00:00ø00:00",
            "-2h",
        ] {
            let refused = parse_time_arg(text).unwrap_err();
            assert!(
                refused.contains(&format!("{text:?}")) && refused.contains("ago"),
                "{refused}"
            );
        }
    }
}
