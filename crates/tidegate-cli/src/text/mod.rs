//! Owns the texts for people, one file a verb: tables, times, percentages. It queries nothing.
//!
//! Publishers choose kinds and keys, and handlers choose errors. [`shown`] makes such text safe to print: a
//! value within a line goes through it where the line is made, and every line goes through it again where it
//! is printed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Number, Value};
use tidegate::admin::{Changed, ServiceState, ServiceStatus, Skipped, Verb, parse_time};

mod fold;
mod json;

pub use self::drain::broken_off;
use self::fold::Column;
pub use self::fold::{width, wrapped};
pub use self::json::pretty;
pub use self::list::quoted;

macro_rules! files {
    ($($file:ident: $($(#[$attribute:meta])* $name:ident($request:ident)),+;)*) => {
        $(mod $file;)*
    };
}

tidegate::each_verb!(files);

/// The most ids and lines that a text shows; `--json` has more.
const SHOWN: usize = 10;

/// What people read of the report of a verb.
pub trait Text: Verb {
    /// Describes what was done or found.
    fn text(&self, report: &Self::Report) -> String;

    /// Returns the exit code: 0 unless the verb says otherwise.
    fn code(&self, _report: &Self::Report) -> u8 {
        0
    }
}

/// Adds a line for each service that is not called.
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

/// Describes whether a service is called.
fn state(state: ServiceState) -> &'static str {
    match state {
        ServiceState::Closed => "called",
        ServiceState::Open => "down",
        ServiceState::Probing => "being probed",
        ServiceState::Paused => "paused",
    }
}

/// Lists the kinds of changed events, and the first of them.
fn changed(lines: &mut Vec<String>, changed: &Changed) {
    by_kind(lines, &changed.kinds);
    if !changed.ids.is_empty() {
        let first = &changed.ids[..changed.ids.len().min(SHOWN)];
        lines.push(format!("  for example {}", ids(first)));
    }
}

fn by_kind(lines: &mut Vec<String>, kinds: &BTreeMap<String, u64>) {
    let kinds = kinds.iter();
    lines.extend(kinds.map(|(kind, count)| format!("  {}: {count}", shown(kind))));
}

/// Lists the events that were not changed.
fn rest(lines: &mut Vec<String>, changed: &Changed) {
    if changed.skipped_count > 0 {
        lines.push(format!("skipped {}:", events(changed.skipped_count)));
        skipped(lines, &changed.skipped, changed.skipped_count);
    }
    if changed.limit_reached {
        lines.push("more events are left: run the same command again".to_owned());
    }
}

fn skipped(lines: &mut Vec<String>, skipped: &[Skipped], count: u64) {
    lines.extend(skipped.iter().take(SHOWN).map(|event| match event.by {
        Some(by) => format!("  event {}: {} (event {by})", event.id, event.reason),
        None => format!("  event {}: {}", event.id, event.reason),
    }));
    more(lines, count);
}

/// Adds a line if a list of `count` entries was cut.
fn more(lines: &mut Vec<String>, count: u64) {
    let shown = u64::try_from(SHOWN).unwrap_or(u64::MAX);
    if count > shown {
        lines.push(format!("  and {} more", count - shown));
    }
}

fn ids(ids: &[i64]) -> String {
    let mut message: Vec<String> = ids.iter().take(SHOWN).map(ToString::to_string).collect();
    if ids.len() > SHOWN {
        message.push(format!("and {} more", ids.len() - SHOWN));
    }
    message.join(", ")
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

/// Formats a time that may be missing.
fn time_of(time: Option<&String>) -> String {
    time.map(|time| in_seconds(time)).unwrap_or_default()
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

/// Formats a timestamp to the second.
fn instant(value: &Value) -> String {
    in_seconds(&cell(value))
}

/// Writes an RFC 3339 time as people read it, to the second and in UTC: 2031-01-24 23:10:12Z.
fn in_seconds(time: &str) -> String {
    let mut text = String::new();
    match parse_time(time) {
        // It fails for years that nobody has events of, and panics before 1970.
        Ok(at)
            if at >= UNIX_EPOCH
                && write!(text, "{}", humantime::format_rfc3339_seconds(at)).is_ok() =>
        {
            text.replace('T', " ")
        }
        _ => time.to_owned(),
    }
}

/// Formats a time, which is negative if a clock was set back.
fn time(milliseconds: Option<i64>) -> String {
    let milliseconds = milliseconds.and_then(|time| u64::try_from(time).ok());
    milliseconds.map(coarse).unwrap_or_default()
}

/// Formats a duration; above one second without milliseconds.
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
