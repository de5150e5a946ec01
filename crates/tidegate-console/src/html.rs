//! Renders the small parts of pages: times, numbers, states, names. The templates escape all text from the
//! queue, and `<bdi>` isolates its direction.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use serde_json::Value;
use tidegate_admin::parse_time;

use crate::link::{Base, Link};

/// The most characters of a text in a table.
const SHOWN: usize = 160;

/// Renders a text from the queue.
pub(crate) fn text(text: &str) -> Markup {
    html! { bdi { (text) } }
}

/// Renders the beginning of a text from the queue, for a table.
pub(crate) fn short(text: &str) -> Markup {
    match text.char_indices().nth(SHOWN) {
        None => html! { bdi { (text) } },
        Some((end, _)) => {
            html! { bdi title=(text.chars().take(2000).collect::<String>()) { (&text[..end]) "…" } }
        }
    }
}

/// Renders a text on one line, for a column of the class `line`, which cuts it. The title has all of it.
pub(crate) fn line(text: Option<&str>) -> Markup {
    let start = |text: &str, most| text.chars().take(most).collect::<String>();
    text.map_or_else(nothing, |text| {
        html! { bdi title=(start(text, 2000)) { (start(text, SHOWN)) } }
    })
}

pub(crate) fn nothing() -> Markup {
    html! { span.none { "–" } }
}

/// Renders a field, or a dash.
pub(crate) fn field(value: &Value) -> Markup {
    match value {
        Value::Null => nothing(),
        Value::String(shown) => short(shown),
        other => html! { (other.to_string()) },
    }
}

/// Formats a number with thousands separators.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Formats a share as a percentage.
pub(crate) fn share(part: u64, all: u64) -> String {
    if all == 0 {
        return "–".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    let percent = part as f64 * 100.0 / all as f64;
    match percent {
        _ if part == 0 => "0 %".to_owned(),
        p if p < 0.1 => "< 0.1 %".to_owned(),
        p => format!("{p:.1} %"),
    }
}

/// Formats a duration with one or two units.
pub(crate) fn millis(millis: u64) -> String {
    let (seconds, minutes) = (millis / 1000, millis / 60_000);
    let (hours, days) = (minutes / 60, minutes / 1440);
    match millis {
        0..1000 => format!("{millis} ms"),
        1000..10_000 => format!("{seconds}.{} s", millis % 1000 / 100),
        10_000..120_000 => format!("{seconds} s"),
        120_000..7_200_000 => format!("{minutes} min"),
        7_200_000..172_800_000 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    #[expect(clippy::cast_precision_loss, reason = "three figures are shown")]
    let mut left = bytes as f64;
    let mut unit = 0;
    while left >= 1000.0 && unit + 1 < UNITS.len() {
        left /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        unit => format!("{left:.1} {}", UNITS[unit]),
    }
}

/// Parses a time as the database writes it; `None` for `infinity`, too.
pub(crate) fn moment(text: &str) -> Option<SystemTime> {
    parse_time(text).ok()
}

/// Renders a time and its distance from now.
pub(crate) fn time(value: &Value) -> Markup {
    let Some(shown) = value.as_str() else {
        return nothing();
    };
    match moment(shown) {
        Some(at) => instant(at),
        None => short(shown),
    }
}

/// As [`time`], for an optional time.
pub(crate) fn time_of(shown: Option<&str>) -> Markup {
    time(&shown.map_or(Value::Null, |shown| Value::String(shown.to_owned())))
}

/// As [`time_of`], for the time from which a drain does something.
pub(crate) fn due(shown: Option<&str>) -> Markup {
    match shown.and_then(moment) {
        Some(at) if at <= SystemTime::now() => {
            html! { time datetime=(humantime::format_rfc3339_millis(at)) { "due, when a drain runs" } }
        }
        _ => time_of(shown),
    }
}

/// As [`time`], for a time that was not read as text.
pub(crate) fn instant(at: SystemTime) -> Markup {
    let exact = humantime::format_rfc3339_millis(at).to_string();
    let shown = exact.get(..19).unwrap_or(&exact).replace('T', " ");
    html! {
        time datetime=(exact) title=(format!("{exact} (UTC)")) { (shown) }
        " " span.ago { (distance(at, SystemTime::now())) }
    }
}

/// Formats the distance of a time from now.
pub(crate) fn distance(at: SystemTime, now: SystemTime) -> String {
    let coarse = |time: Duration| {
        let whole = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        millis(if whole < 1000 {
            whole
        } else {
            whole / 1000 * 1000
        })
        .replace(".0 s", " s")
    };
    match now.duration_since(at) {
        Ok(ago) if ago < Duration::from_secs(1) => "just now".to_owned(),
        Ok(ago) => format!("{} ago", coarse(ago)),
        Err(ahead) => format!("in {}", coarse(ahead.duration())),
    }
}

/// Renders the age of a time.
pub(crate) fn age(shown: Option<&str>) -> Markup {
    let Some(at) = shown.and_then(moment) else {
        return nothing();
    };
    let exact = humantime::format_rfc3339_millis(at).to_string();
    let age = SystemTime::now().duration_since(at).unwrap_or_default();
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    html! { time datetime=(exact) title=(format!("since {exact} (UTC)")) { (millis(age)) } }
}

/// Renders a status as a word with a sign, readable without colour.
pub(crate) fn status(status: &str) -> Markup {
    let (class, sign, word) = match status {
        "COMPLETED" => ("good", "✓", "completed"),
        "COMPLETED_WITH_ERRORS" => ("warn", "!", "rejected"),
        "FAILED" => ("bad", "✕", "failed"),
        "PROCESSING" => ("busy", "▸", "processing"),
        "PENDING" => ("idle", "○", "pending"),
        other => ("idle", "·", other),
    };
    chip(class, sign, word)
}

/// Renders a word with a sign. The class is `good`, `warn`, `bad`, `busy` or `idle`.
pub(crate) fn chip(class: &str, sign: &str, word: &str) -> Markup {
    html! { span class={ "chip " (class) } { span.sign aria-hidden="true" { (sign) } (word) } }
}

/// Renders the id of an event as a link, or a dash.
pub(crate) fn event(base: &Base, id: &Value) -> Markup {
    match id.as_i64() {
        Some(id) => html! { a.id href=(base.to(&format!("/events/{id}"))) { (id) } },
        None => nothing(),
    }
}

/// Renders why an event has not ended, with a link to the event that it waits behind.
pub(crate) fn why(base: &Base, sentence: &Value) -> Markup {
    let Some(sentence) = sentence.as_str() else {
        return nothing();
    };
    let behind = sentence.split_once(" behind event ");
    let parts = behind.and_then(|(start, rest)| Some((start, rest.split_once(' ')?)));
    match parts.map(|(start, (id, rest))| (start, id.parse::<i64>(), rest)) {
        Some((start, Ok(id), rest)) => {
            html! { bdi { (start) " behind event " (event(base, &id.into())) " " (rest) } }
        }
        _ => text(sentence),
    }
}

/// Renders a name as a link, or a dash.
pub(crate) fn named(name: &Value, link: impl FnOnce(&str) -> Link) -> Markup {
    match name.as_str() {
        Some(name) => html! { a href=(link(name)) { (short(name)) } },
        None => nothing(),
    }
}

/// A table of rows, column by column: `th` names the row, `n` is a number. Its region scrolls sideways, also
/// by keyboard. With `go`, its rows can be opened by keyboard, too.
macro_rules! table {
    ($label:expr $(, $go:ident)?; $row:pat in $rows:expr;
     $($class:ident $head:literal $(if ($holds:expr))? { $($cell:tt)* })+) => {
        maud::html! {
            div.scroll role="region" aria-label=($label) tabindex="0" {
                table {
                    thead { tr { $( $(@if $holds)? { ($crate::html::head(stringify!($class), $head)) } )+ } }
                    tbody {
                        @for $row in $rows {
                            tr class=(concat!($(stringify!($go))?)) {
                                $( $(@if $holds)? { ($crate::html::cell(stringify!($class), &maud::html! { $($cell)* })) } )+
                            }
                        }
                    }
                }
            }
        }
    };
}

pub(crate) use table;

/// The head of a column of [`table!`].
pub(crate) fn head(class: &str, name: &str) -> Markup {
    html! { th class=[(class == "n").then_some("n")] { (name) } }
}

/// A cell of a column of [`table!`].
pub(crate) fn cell(class: &str, content: &Markup) -> Markup {
    match class {
        "th" => html! { th scope="row" { (content) } },
        "td" => html! { td { (content) } },
        class => html! { td class=(class) { (content) } },
    }
}

/// Renders the text in place of an empty table.
pub(crate) fn empty(text: &str) -> Markup {
    html! { p.empty { (text) } }
}

/// The field for the reason.
pub(crate) fn reason() -> Markup {
    html! {
        label.wide { span { "Reason" } input name="reason" required maxlength="1000" autocomplete="off" placeholder="for the audit"; }
    }
}

/// The id of the list with the values that are suggested for a field: see
/// [`PageContext::kinds`](crate::context::PageContext).
pub(crate) fn suggestions(name: &str) -> Option<&'static str> {
    (name == "kind").then_some("kinds")
}

/// A field with its name and an example.
pub(crate) fn input(label: &str, name: &str, value: &str, example: &str) -> Markup {
    html! { label { span { (label) } input name=(name) list=[suggestions(name)] value=(value) placeholder=(example) autocomplete="off"; } }
}

/// A checkbox.
pub(crate) fn tick(label: &str, name: &str, is_set: bool) -> Markup {
    html! { label.tick { input type="checkbox" name=(name) value="on" checked[is_set]; span { (label) } } }
}

/// A selection. The first part of each pair is the value.
pub(crate) fn select(label: &str, name: &str, chosen: &str, choices: &[(&str, &str)]) -> Markup {
    html! {
        label { span { (label) }
            select name=(name) {
                @for (value, shown) in choices { option value=(value) selected[*value == chosen] { (shown) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_and_sizes_are_told_as_people_read_them() {
        assert_eq!(number(0), "0");
        assert_eq!(number(1_234_567), "1,234,567");
        assert_eq!(number(999), "999");
        for (given, shown) in [
            (999, "999 ms"),
            (1234, "1.2 s"),
            (65_000, "65 s"),
            (150_000, "2 min"),
            (9_000_000, "2 h 30 min"),
            (200_000_000, "2 d 7 h"),
        ] {
            assert_eq!(millis(given), shown);
        }
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500_000), "1.5 MB");
        assert_eq!(share(0, 0), "–");
        assert_eq!(share(1, 3), "33.3 %");
        assert_eq!(share(1, 100_000), "< 0.1 %");
    }

    #[test]
    fn what_others_wrote_is_escaped_and_keeps_its_direction_to_itself() {
        let hostile = "<script>alert(1)</script>\u{202e}";
        let shown = short(hostile).into_string();
        assert!(shown.starts_with("<bdi>&lt;script&gt;"), "{shown}");
        assert!(shown.ends_with("</bdi>"));
        let long = short(&"é\"".repeat(500)).into_string();
        assert!(long.contains('…') && long.contains("&quot;"));
    }

    #[test]
    fn a_moment_is_told_with_its_distance() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(distance(now, now), "just now");
        assert_eq!(distance(now - Duration::from_secs(61), now), "61 s ago");
        assert_eq!(distance(now + Duration::from_mins(5), now), "in 5 min");
    }
}
