//! Carries the message of an action to the next page. It uses a cookie that lives for a minute. An address
//! could be forged by a stranger, and another process would not find a message in memory.

use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::link::Base;
use crate::settings::Settings;
use crate::who::cookie;

/// The cookie's name.
const NAME: &str = "tidegate_done";

/// The longest message, in characters. Browsers accept cookies of 4 KB.
const LONGEST: usize = 600;

/// Reads the message from a request's cookie.
pub(crate) fn brought(headers: &HeaderMap) -> Option<String> {
    let encoded = cookie(headers, NAME)?;
    let told = String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?;
    (!told.is_empty()).then_some(told)
}

/// The cookie that carries a message to the next page.
fn carried(text: &str, base: &Base, behind_tls: bool) -> Option<HeaderValue> {
    let told: String = text.chars().take(LONGEST).collect();
    let encoded = URL_SAFE_NO_PAD.encode(told);
    set(&encoded, 60, base, behind_tls)
}

/// Leads to another page, which shows the message.
pub(crate) fn leading(settings: &Settings, to: &str, told: &str) -> Response {
    let mut response = Redirect::to(to).into_response();
    if let Some(cookie) = carried(told, &settings.base, settings.behind_tls) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// The cookie that deletes the message.
pub(crate) fn forgotten(base: &Base, behind_tls: bool) -> Option<HeaderValue> {
    set("", 0, base, behind_tls)
}

fn set(value: &str, seconds: u32, base: &Base, behind_tls: bool) -> Option<HeaderValue> {
    let (path, secure) = (base.cookie_path(), if behind_tls { "; Secure" } else { "" });
    let line = format!(
        "{NAME}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    );
    HeaderValue::from_str(&line).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::header::COOKIE;

    use super::*;

    #[test]
    fn a_sentence_arrives_as_it_was_sent() {
        let text = "requeued 3 events: <b>é\u{202e}";
        let cookie = carried(text, &Base::default(), true).unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(
            cookie.contains("HttpOnly") && cookie.ends_with("; Secure"),
            "{cookie}"
        );
        let mut headers = HeaderMap::new();
        let pair = cookie.split(';').next().unwrap();
        headers.insert(COOKIE, HeaderValue::from_str(pair).unwrap());
        assert_eq!(brought(&headers).as_deref(), Some(text));
        headers.insert(COOKIE, HeaderValue::from_static("tidegate_done=%%%"));
        assert_eq!(brought(&headers), None);
    }
}
