//! Decides about colours: they are used on a terminal, unless `NO_COLOR` is set and not empty
//! (<https://no-color.org>).

use std::ffi::OsStr;

/// Whether `NO_COLOR` turns colours off.
pub fn is_refused() -> bool {
    refuses(std::env::var_os("NO_COLOR").as_deref())
}

/// Whether the output to a stream is coloured.
pub fn is_wanted(is_terminal: bool) -> bool {
    is_terminal && !is_refused()
}

/// Colours for states: good, to be noted, bad.
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const RED: &str = "\u{1b}[31m";

/// Colours the states in a text: those of events wherever they stand, and others where they are a cell of a
/// table.
pub fn painted(text: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let word = |(at, word): (usize, &&str)| {
            let beside = [at.checked_sub(1), Some(at + 1)].map(|at| words.get(at?));
            let is_cell = beside.iter().flatten().all(|word| word.is_empty());
            let colour = match *word {
                "COMPLETED" => GREEN,
                "COMPLETED_WITH_ERRORS" => YELLOW,
                "FAILED" => RED,
                "ok" | "called" if is_cell => GREEN,
                "warning" | "paused" | "probing" if is_cell => YELLOW,
                "PROBLEM" | "down" | "expired" if is_cell => RED,
                _ => "",
            };
            match colour {
                "" => (*word).to_owned(),
                colour => format!("{colour}{word}\u{1b}[0m"),
            }
        };
        let words = words.iter().enumerate().map(word);
        words.collect::<Vec<_>>().join(" ")
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn refuses(no_color: Option<&OsStr>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_refuses_colours_unless_it_is_empty() {
        for (no_color, refused) in [(None, false), (Some(""), false), (Some("1"), true)] {
            assert_eq!(refuses(no_color.map(OsStr::new)), refused, "{no_color:?}");
        }
        assert!(!is_wanted(false));
    }

    #[test]
    fn states_are_coloured_and_nothing_else_is() {
        let text = " ok  all is ok\n42 FAILED not_FAILED\n archive  down";
        assert_eq!(
            painted(text),
            " \u{1b}[32mok\u{1b}[0m  all is ok\n42 \u{1b}[31mFAILED\u{1b}[0m not_FAILED\n archive  \u{1b}[31mdown\u{1b}[0m"
        );
    }
}
