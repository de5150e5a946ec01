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
}
