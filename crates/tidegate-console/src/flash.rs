//! Carries the message of an action to the next page. It uses a cookie that lives for a minute. An address
//! could be forged by a stranger, and another process would not find a message in memory.

use axum::http::{HeaderMap, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::settings::Settings;
use crate::who::cookie;

const NAME: &str = "tidegate_done";

/// The longest message, in characters. Browsers accept cookies of 4 KB.
const LONGEST: usize = 600;

/// Reads the message from a request's cookie.
pub(crate) fn read(headers: &HeaderMap) -> Option<String> {
    let encoded = cookie(headers, NAME)?;
    let shown = String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?;
    (!shown.is_empty()).then_some(shown)
}

/// The cookie that carries a message to the next page.
pub(crate) fn carried(text: &str, settings: &Settings) -> Option<HeaderValue> {
    // In the command line's text, two spaces separate columns.
    let line = |line: &str| {
        let columns = line
            .split("  ")
            .map(str::trim)
            .filter(|column| !column.is_empty());
        columns.collect::<Vec<_>>().join(" · ")
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    let shown: String = lines.join("\n").chars().take(LONGEST).collect();
    settings.cookie(NAME, &URL_SAFE_NO_PAD.encode(shown), Some(60))
}

/// The cookie that deletes the message.
pub(crate) fn forgotten(settings: &Settings) -> Option<HeaderValue> {
    settings.cookie(NAME, "", Some(0))
}

#[cfg(test)]
mod tests {
    use axum::http::header::COOKIE;

    use super::*;

    #[test]
    fn a_sentence_arrives_as_it_was_sent() {
        let text = "cancel: done\ncancelled   3  <b>é\u{202e}";
        let mut settings = Settings::new(crate::who::Auth::given());
        settings.behind_tls = true;
        let cookie = carried(text, &settings).unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(
            cookie.contains("HttpOnly") && cookie.ends_with("; Secure"),
            "{cookie}"
        );
        let mut headers = HeaderMap::new();
        let pair = cookie.split(';').next().unwrap();
        headers.insert(COOKIE, HeaderValue::from_str(pair).unwrap());
        assert_eq!(
            read(&headers).as_deref(),
            Some("cancel: done\ncancelled · 3 · <b>é\u{202e}")
        );
        headers.insert(COOKIE, HeaderValue::from_static("tidegate_done=%%%"));
        assert_eq!(read(&headers), None);
    }
}
