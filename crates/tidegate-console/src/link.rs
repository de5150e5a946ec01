//! Writes all links. Only this module knows the base path and encodes queries.

use std::fmt::Write;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that are encoded in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// The characters that are encoded in a whole path.
const ODD: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>');

/// Where the console is mounted: empty, or a path that begins with `/` and does not end with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base(String);

impl Base {
    /// Reads a base path such as `/tidegate`. `/` and an empty text are the root.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let path = text.trim_end_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~/".contains(c);
        let fits = path.is_empty()
            || (path.starts_with('/') && path.chars().all(plain) && !path.contains("//"));
        if fits && !path.split('/').any(|part| part == "..") {
            return Ok(Self(path.to_owned()));
        }
        Err(format!(
            "must be a path such as /tidegate of letters, digits, `-`, `_`, `.` and `~`, got {text:?}"
        ))
    }

    /// The path, empty for the root.
    pub(crate) fn path(&self) -> &str {
        &self.0
    }

    /// The `Path` of cookies.
    pub(crate) fn cookie_path(&self) -> &str {
        if self.0.is_empty() { "/" } else { &self.0 }
    }

    /// Returns a link to this path below the base path.
    pub(crate) fn to(&self, path: &str) -> Link {
        let path = if path == "/" && !self.0.is_empty() {
            ""
        } else {
            path
        };
        let path = utf8_percent_encode(path, ODD);
        Link(format!("{}{path}", self.0), false)
    }

    /// Returns a link to this path below the base path, and an arbitrary name as its last segment.
    pub(crate) fn of(&self, path: &str, name: &str) -> Link {
        let name = utf8_percent_encode(name, SEGMENT);
        Link(format!("{}{path}/{name}", self.0), false)
    }
}

/// A path with a query.
#[derive(Debug, Clone)]
pub(crate) struct Link(String, bool);

impl Link {
    /// Adds a parameter, unless its value is empty.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            let mark = if self.1 { '&' } else { '?' };
            let value = utf8_percent_encode(value, SEGMENT);
            // Writing to a string does not fail.
            let _ = write!(self.0, "{mark}{name}={value}");
            self.1 = true;
        }
        self
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl maud::Render for Link {
    fn render_to(&self, buffer: &mut String) {
        self.0.as_str().render_to(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_know_the_base_path_and_encode_whatever_a_name_holds() {
        let base = Base::parse("/ops/tidegate/").unwrap();
        assert_eq!(base.to("/").as_str(), "/ops/tidegate");
        assert_eq!(
            base.of("/groups", "a/b?c#d é").as_str(),
            "/ops/tidegate/groups/a%2Fb%3Fc%23d%20%C3%A9"
        );
        let link = base
            .to("/events")
            .with("kind", "a&b=c")
            .with("status", "")
            .with("group", "<x>");
        assert_eq!(
            link.as_str(),
            "/ops/tidegate/events?kind=a%26b%3Dc&group=%3Cx%3E"
        );
        assert_eq!(Base::default().to("/").as_str(), "/");
        assert_eq!(Base::parse("/").unwrap(), Base::default());
        for refused in ["ops", "/a b", "//evil.example", "/a/../b", "/a\"b"] {
            assert!(Base::parse(refused).is_err(), "{refused}");
        }
    }
}
