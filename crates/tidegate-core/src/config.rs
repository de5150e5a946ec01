//! Owns the settings: reads and validates the environment. Each error names the variable and what is allowed.
//! The shell parses command-line flags, which win over these settings. This module knows nothing of the queue
//! or of AWS.
//!
//! A struct of settings is declared with `settings!`: for each setting its field, type, default, variable,
//! limits and description. The environment's parser, the defaults, the check of ranges and the tables of
//! `docs/reference/settings.md` come from this declaration.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{Error, Result};

/// Looks up a variable. Tests pass their own.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Looks up a variable of the process, or else among the lines of its `TIDEGATE_SETTINGS`. An empty value
/// counts as not set.
pub fn environment(name: &str) -> Option<String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    set(name).or_else(|| {
        let lines = set(SETTINGS)?;
        let found = settings_in(&lines).find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_owned())
    })
}

/// The variable that holds further settings, one `NAME=value` a line, so that a deployment needs no parameter
/// for each.
const SETTINGS: &str = "TIDEGATE_SETTINGS";

/// Settings that may hold a password or a token. Whoever may describe a function reads its variables.
const SECRETS: [&str; 3] = [
    "DATABASE_URL",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
];

/// Returns the names and values. A line that is empty or has no value sets nothing.
fn settings_in(lines: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = lines.lines().filter_map(|line| line.trim().split_once('='));
    pairs.filter(|(_, value)| !value.is_empty())
}

/// Checks the lines of `TIDEGATE_SETTINGS`. A setting that is set twice must have one value.
///
/// # Errors
/// [`Error::Config`] names the setting and what is allowed.
pub fn check_settings(lookup: Lookup<'_>) -> Result<()> {
    let lines = lookup(SETTINGS).unwrap_or_default();
    let refused = |why: String| Err(Error::Config(format!("{SETTINGS}: {why}")));
    let plain = |line: &&str| !line.trim().is_empty() && !line.contains('=');
    if let Some(at) = lines.lines().position(|line| plain(&line)) {
        return refused(format!("line {} must be NAME=value", at + 1));
    }
    for (name, value) in settings_in(&lines) {
        if SECRETS.contains(&name) {
            return refused(format!("must not hold {name}, which may contain a secret"));
        }
        if lookup(name).as_deref() != Some(value) {
            return refused(format!("{name} is set elsewhere too, with another value"));
        }
    }
    Ok(())
}

/// Returns whole milliseconds; the most that a `u64` holds for more.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the file that a variable names.
///
/// # Errors
/// [`Error::Config`] names the variable and the path.
pub fn read_file(variable: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        Error::Config(format!(
            "{variable}: must be a file that can be read: {path}: {error}"
        ))
    })
}

/// Reads a file that holds a secret, which nobody else may be able to read, by the rule of libpq: mode 600,
/// or 640 if root owns it, as systemd and Kubernetes mount it.
///
/// # Errors
/// A sentence with the path and what is required.
pub fn read_secret_file(path: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let mut file = File::open(path).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let told = file.metadata().map_err(failed)?;
        if !is_private(told.mode(), told.uid()) {
            let mode = told.mode() & 0o777;
            return Err(format!(
                "{path}: others must not be able to read it, and its mode is {mode:o}: chmod 600 {path}, or 640 if root owns it"
            ));
        }
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

#[cfg(unix)]
fn is_private(mode: u32, owner: u32) -> bool {
    let others = if owner == 0 { 0o037 } else { 0o077 };
    mode & others == 0
}

/// Whether a host of a URL, or of a server's address, is this machine.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse();
    host == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The longest duration that may be set. Clocks and the database overflow long before a number of seconds
/// does.
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

/// A value that a setting may have.
pub trait Value: Sized + PartialOrd {
    /// # Errors
    /// A sentence that says what is allowed.
    fn parse(text: &str) -> Result<Self, String>;

    /// Returns the value as it is written in a variable.
    fn written(&self) -> String;

    /// Whether a range allows the value. A setting without a value is in every range.
    fn is_within(&self, limits: &RangeInclusive<Self>) -> bool {
        limits.contains(self)
    }
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text)
    }

    fn written(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

/// Implements [`Value`] for a type with two values, each of which is written as a word.
macro_rules! words {
    ($type:ty: $word:literal = $value:expr, $other_word:literal = $other:expr) => {
        impl $crate::config::Value for $type {
            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $word => Ok($value),
                    $other_word => Ok($other),
                    got => Err(format!("must be {} or {}, got {got:?}", $word, $other_word)),
                }
            }

            fn written(&self) -> String {
                if *self == $value { $word } else { $other_word }.to_owned()
            }
        }
    };
}

pub(crate) use words;

words!(bool: "off" = false, "on" = true);

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Value for $number {
            fn parse(text: &str) -> Result<Self, String> {
                let number = text.trim().parse();
                number.map_err(|_| format!("must be a number, got {text:?}"))
            }

            fn written(&self) -> String {
                self.to_string()
            }
        })*
    };
}

numbers!(u16, u32, usize);

impl Value for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn written(&self) -> String {
        self.clone()
    }
}

/// A setting without a default.
impl<T: Value> Value for Option<T> {
    fn parse(text: &str) -> Result<Self, String> {
        T::parse(text).map(Some)
    }

    fn written(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), T::written)
    }

    fn is_within(&self, limits: &RangeInclusive<Self>) -> bool {
        self.is_none() || limits.contains(self)
    }
}

/// Reads a setting. `limits` holds its range, if it has one.
///
/// # Errors
/// [`Error::Config`] names the variable and what is allowed.
pub fn read<T: Value>(
    lookup: Lookup<'_>,
    variable: &str,
    default: T,
    limits: &[RangeInclusive<T>],
) -> Result<T> {
    let Some(text) = lookup(variable) else {
        return Ok(default);
    };
    let value = match (T::parse(&text), limits.first()) {
        (Ok(value), Some(limits)) if value.is_within(limits) => Ok(value),
        (_, Some(limits)) => Err(out_of(limits, &format!("{text:?}"))),
        (value, None) => value,
    };
    value.map_err(|refused| Error::Config(format!("{variable}: {refused}")))
}

/// Checks a value that did not come from a variable.
///
/// # Errors
/// The error names the value and what is allowed.
pub fn in_range<T: Value + Copy>(
    name: &str,
    value: T,
    limits: &RangeInclusive<T>,
) -> Result<(), String> {
    if value.is_within(limits) {
        return Ok(());
    }
    Err(format!("{name}: {}", out_of(limits, &value.written())))
}

fn out_of<T: Value>(limits: &RangeInclusive<T>, got: &str) -> String {
    let (least, most) = (limits.start().written(), limits.end().written());
    format!("must be {least} to {most}, got {got}")
}

/// A declared setting, as the reference page shows it.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The variable of the environment.
    pub variable: &'static str,
    /// The default, as it is written; `none` without one.
    pub default: String,
    /// What it means, in lines.
    pub meaning: &'static [&'static str],
}

/// Declares a struct of settings, as the module's text says. `parts` are fields whose type is itself declared
/// like this; `rest` are fields that no variable sets. They begin as their type's default.
#[macro_export]
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $type:ty = $default:expr, $variable:literal $(, within $limits:expr)?;
            )*
        }
        parts { $( $(#[doc = $part_doc:literal])* $part:ident: $part_type:ty; )* }
        rest { $( $(#[doc = $rest_doc:literal])* $rest:ident: $rest_type:ty; )* }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $( $(#[doc = $doc])* #[doc = concat!("\n\nIts variable is `", $variable, "`.")] pub $field: $type, )*
            $( $(#[doc = $part_doc])* pub $part: $part_type, )*
            $( $(#[doc = $rest_doc])* pub $rest: $rest_type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $default, )*
                    $( $part: <$part_type>::default(), )*
                    $( $rest: <$rest_type>::default(), )*
                }
            }
        }

        impl $name {
            /// Reads the settings from the environment.
            ///
            /// # Errors
            /// [`Error::Config`](crate::Error::Config) names the variable and what is allowed.
            pub fn from_settings(lookup: $crate::config::Lookup<'_>) -> Result<Self, $crate::Error> {
                Ok(Self {
                    $( $field: $crate::config::read(lookup, $variable, $default, &[$($limits)?])?, )*
                    $( $part: <$part_type>::from_settings(lookup)?, )*
                    $( $rest: <$rest_type>::default(), )*
                })
            }

            /// Checks the ranges.
            ///
            /// # Errors
            /// [`Error::Config`](crate::Error::Config) names the setting and what is allowed.
            pub fn check_ranges(&self) -> Result<(), $crate::Error> {
                $($(
                    let name = stringify!($field).replace('_', " ");
                    $crate::config::in_range(&name, self.$field, &$limits).map_err($crate::Error::Config)?;
                )?)*
                $( self.$part.check_ranges()?; )*
                Ok(())
            }

            /// Returns the declared settings.
            #[must_use]
            pub fn settings() -> Vec<$crate::config::Setting> {
                let default = Self::default();
                let own = vec![$( $crate::config::Setting {
                    variable: $variable,
                    default: $crate::config::Value::written(&default.$field),
                    meaning: &[$($doc),*],
                } ),*];
                let parts: [Vec<$crate::config::Setting>; _] = [$( <$part_type>::settings() ),*];
                own.into_iter().chain(parts.into_iter().flatten()).collect()
            }
        }
    };
}
pub use settings;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &str, url: Option<&str>) -> Result<()> {
        let set = |name: &str| match name {
            SETTINGS => Some(lines.to_owned()),
            "DATABASE_HOST" => url.map(ToOwned::to_owned),
            _ => None,
        };
        let read = |name: &str| {
            let lines = set(SETTINGS)?;
            let found = settings_in(&lines).find(|(known, _)| *known == name);
            set(name).or_else(|| found.map(|(_, value)| value.to_owned()))
        };
        check_settings(&read)
    }

    #[test]
    fn a_secret_is_its_owners_alone_or_of_root_and_a_group() {
        for (mode, owner, private) in [
            (0o100_600, 1000, true),
            (0o100_400, 1000, true),
            (0o100_640, 1000, false),
            (0o100_604, 1000, false),
            (0o100_640, 0, true),
            (0o100_440, 0, true),
            (0o100_660, 0, false),
            (0o100_644, 0, false),
        ] {
            assert_eq!(is_private(mode, owner), private, "{mode:o} {owner}");
        }
    }

    #[test]
    fn settings_are_lines_that_nothing_contradicts() {
        let lines = "\n  TIDEGATE_BATCH=7 \r\nARCHIVE_URL=https://a/?b=c d\n\nDATABASE_HOST=a\nCASES_URL=\n";
        let found: Vec<_> = settings_in(lines).collect();
        let expected = [
            ("TIDEGATE_BATCH", "7"),
            ("ARCHIVE_URL", "https://a/?b=c d"),
            ("DATABASE_HOST", "a"),
        ];
        assert_eq!(found, expected);
        check(lines, None).unwrap();
        check(lines, Some("a")).unwrap();
        check("", Some("a")).unwrap();
        for (lines, host, fault) in [
            (lines, Some("b"), "DATABASE_HOST is set elsewhere too"),
            ("A=1\nA=2", None, "A is set elsewhere too"),
            ("A=1\nB", None, "line 2 must be NAME=value"),
            (
                "DATABASE_URL=postgres://a",
                None,
                "must not hold DATABASE_URL",
            ),
        ] {
            let error = check(lines, host).unwrap_err().to_string();
            assert!(
                error.contains(&format!("TIDEGATE_SETTINGS: {fault}")),
                "{error}"
            );
        }
    }
}
