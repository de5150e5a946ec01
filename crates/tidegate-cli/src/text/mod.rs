//! Owns the texts for people: tables, times, percentages. `report` draws what any verb answers; only lists,
//! events, figures and drains have texts of their own. It queries nothing.
//!
//! Publishers choose kinds and keys, and handlers choose errors. [`shown`] makes such text safe to print: a
//! value within a line goes through it where the line is made, and every line goes through it again where it
//! is printed.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Number, Value};
use tidegate_admin::{ServiceState, ServiceStatus, Verb, parse_time};

mod drain;
mod fold;
mod json;
mod list;
pub mod report;
mod show;
mod stats;

pub use self::drain::broken_off;
use self::fold::Column;
pub use self::fold::{width, wrapped};
pub use self::json::pretty;
pub use self::list::quoted;

/// The most values of a list that a text shows; `--json` has more.
const SHOWN: usize = 10;

/// What people read of a report that has a text of its own.
pub trait Text: Verb {
    /// Describes what was done or found, in lines of any length.
    fn text(&self, report: &Self::Report) -> String;
}

/// A line for each service that is not called.
fn down(services: &[ServiceStatus]) -> String {
    let lines = services.iter().map(|service| {
        format!(
            "\n{} is {} since {} and holds up {}",
            shown(&service.service),
            state(service.state),
            in_seconds(&service.since),
            events(service.waiting)
        )
    });
    lines.collect()
}

fn state(state: ServiceState) -> &'static str {
    match state {
        ServiceState::Closed => "called",
        ServiceState::Open => "down",
        ServiceState::Probing => "being probed",
        ServiceState::Paused => "paused",
    }
}

fn events(count: u64) -> String {
    match count {
        1 => "1 event".to_owned(),
        count => format!("{count} events"),
    }
}

/// Formats a table that fits the terminal.
fn table<T>(rows: &[T], columns: &[Column<T>]) -> String {
    fold::table(rows, columns, width())
}

/// A table of what was counted.
fn counts(head: &'static str, counts: &[(String, u64)]) -> String {
    table(
        counts,
        &[
            ("what", |row| row.0.clone()),
            (head, |row| row.1.to_string()),
        ],
    )
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => shown(text),
        other => shown(&other.to_string()),
    }
}

/// Returns a text in which a terminal finds no command and no change of the direction of writing, and which
/// has one line. Such characters are written as `\u{1b}`.
pub fn shown(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut shown, one| {
            if is_command(one) {
                shown.extend(one.escape_default());
            } else {
                shown.push(one);
            }
            shown
        })
}

/// Whether a character moves, colours, reorders or breaks what is written, instead of being seen: ASCII's and
/// C1's controls, the line separators, and the marks of bidirectional text.
pub fn is_command(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cuts an error to the width of a line.
fn short(value: &Value) -> String {
    let line = value.as_str().unwrap_or_default().replace('\n', " ");
    shown(&line.chars().take(80).collect::<String>())
}

fn instant(value: &Value) -> String {
    in_seconds(&cell(value))
}

/// Writes an RFC 3339 time as people read it, to the second and in UTC: 2031-01-24 23:10:12Z.
fn in_seconds(time: &str) -> String {
    let mut text = String::new();
    match parse_time(time) {
        // `humantime` fails for years after 9999, and panics before 1970.
        Ok(at)
            if at >= UNIX_EPOCH
                && write!(text, "{}", humantime::format_rfc3339_seconds(at)).is_ok() =>
        {
            text.replace('T', " ")
        }
        _ => time.to_owned(),
    }
}

/// Formats a duration. A negative one, after a clock was set back, is left out.
fn time(milliseconds: Option<i64>) -> String {
    let milliseconds = milliseconds.and_then(|time| u64::try_from(time).ok());
    milliseconds.map(coarse).unwrap_or_default()
}

/// Formats a duration, from one second on without milliseconds.
fn coarse(milliseconds: u64) -> String {
    let duration = match milliseconds {
        0..1000 => Duration::from_millis(milliseconds),
        _ => Duration::from_secs(milliseconds.saturating_add(500) / 1000),
    };
    humantime::format_duration(duration).to_string()
}

fn percent(share: Option<&Number>) -> String {
    let share = share.and_then(Number::as_f64);
    let percent = share.map(|share| format!("{:.1} %", share * 100.0));
    percent.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_to_the_second_and_in_utc() {
        for (time, text) in [
            ("2026-11-24T23:10:12.150293+00:00", "2026-11-24 23:10:12Z"),
            ("2026-11-25T01:10:12.9+02:00", "2026-11-24 23:10:12Z"),
            ("2026-11-24T23:10:12Z", "2026-11-24 23:10:12Z"),
            ("infinity", "infinity"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ] {
            assert_eq!(in_seconds(time), text);
        }
    }

    #[test]
    fn times_are_whole_seconds_above_one() {
        for (milliseconds, text) in [
            (0, "0s"),
            (999, "999ms"),
            (1000, "1s"),
            (623_973, "10m 24s"),
        ] {
            assert_eq!(coarse(milliseconds), text);
        }
    }
}
