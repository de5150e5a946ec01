//! Owns the logs of the shells: how much they log, that they log nothing that could be a secret, and that a
//! reader who does not read stops nothing (`writer`).

mod writer;

use tidegate_core::config::Lookup;
use tidegate_core::error::{Error, Result};
use tidegate_core::trace;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterFn, LevelFilter, Targets, filter_fn};

pub use self::writer::*;

/// The target of the spans for collectors of traces ([`tidegate_core::trace`]), which are no part of the log.
/// Their level is debug.
pub const SPANS: &str = trace::SPANS;

/// Reads `TIDEGATE_LOG`, which sets what is logged: a level, or levels by the source of a line.
///
/// # Errors
/// [`Error::Config`] if it is malformed.
pub fn log_filter(lookup: Lookup<'_>, default: LevelFilter) -> Result<Targets> {
    let Some(text) = lookup("TIDEGATE_LOG") else {
        return Ok(Targets::new().with_default(default));
    };
    // The parser has three surprises. An empty source means all sources, and an empty level means all levels.
    // An unknown level counts as a source, which silences all others.
    let is_whole = |part: &str| match part.trim().split_once('=') {
        Some((place, level)) => !place.is_empty() && !level.is_empty(),
        None => !part.trim().is_empty() && part.trim().parse::<LevelFilter>().is_ok(),
    };
    match text.parse() {
        Ok(levels) if text.split(',').all(is_whole) => Ok(levels),
        _ => Err(Error::Config(format!(
            "TIDEGATE_LOG: must be levels such as info or tidegate=debug,warn, got {text:?}"
        ))),
    }
}

/// Keeps other crates' details out of the log, whatever `TIDEGATE_LOG` says. Below `info`, the HTTP client
/// and the Lambda runtime log whole messages, including payloads. The AWS SDK logs answers, which may be a
/// secret, even in its warnings (I9). Tidegate's own errors report what fails there. The Lambda runtime also
/// repeats each failure of an invocation.
///
/// Spans for collectors of traces are no part of the log. The program's own crate may log anything. `ours` is
/// its name, as in [`crate::Program::origin`].
pub fn details_of_ours_alone(
    ours: &'static str,
) -> FilterFn<impl Fn(&Metadata<'_>) -> bool + Clone> {
    filter_fn(move |line| shows(ours, line.target(), *line.level()))
        // No limit, so that the level of a filter beside this one counts.
        .with_max_level_hint(LevelFilter::TRACE)
}

fn shows(ours: &str, target: &str, level: Level) -> bool {
    if target == SPANS || target.starts_with("lambda_runtime::layers") {
        return false;
    }
    let origin = target.split("::").next().unwrap_or(target);
    origin.starts_with("tidegate")
        || origin == ours
        || (level <= Level::INFO && !origin.starts_with("aws_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i9_details_are_shown_of_the_program_and_of_nobody_else() {
        for (target, level, shown) in [
            ("shop::orders", Level::TRACE, true),
            ("tidegate::drain", Level::DEBUG, true),
            ("hyper::client", Level::DEBUG, false),
            ("shopping", Level::DEBUG, false),
            ("hyper::client", Level::WARN, true),
            ("aws_config", Level::WARN, false),
            ("lambda_runtime::layers::panic", Level::ERROR, false),
            (SPANS, Level::DEBUG, false),
        ] {
            assert_eq!(shows("shop", target, level), shown, "{target}");
        }
    }

    #[test]
    fn a_bad_value_is_refused_by_name_with_what_is_allowed() {
        for text in [
            "=,=",
            "info,",
            "tidegate=",
            "tidegate=loud",
            "inof",
            "tidegate",
            "warn,tidegate",
        ] {
            let error = log_filter(&|_| Some(text.to_owned()), LevelFilter::INFO).unwrap_err();
            assert!(error.to_string().contains("TIDEGATE_LOG"), "{error}");
        }
        for text in ["info", "OFF", "warn, tidegate=debug", "tidegate=debug,warn"] {
            let levels = log_filter(&|_| Some(text.to_owned()), LevelFilter::INFO);
            assert!(levels.is_ok(), "{levels:?}");
        }
    }
}
