//! A sign-in link that works once, and the cookie of its session.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::COOKIE as COOKIE_HEADER;

use super::{Identity, Refusal, named, random, same};

/// The cookie of a session.
pub(crate) const COOKIE: &str = "tidegate_console";

/// How long a session lasts, in seconds.
pub(crate) const SESSION_S: u32 = 12 * 60 * 60;

/// The most sessions. A new one replaces the oldest.
const MOST_SESSIONS: usize = 32;

/// The most links that can be waiting to be used.
const MOST_LINKS: usize = 8;

pub(super) struct Tokens {
    operator: String,
    known: Mutex<KnownTokens>,
}

#[derive(Default)]
struct KnownTokens {
    unused: BTreeSet<String>,
    sessions: Vec<(String, Instant)>,
}

impl Tokens {
    pub(super) fn new(operator: &str) -> Self {
        Self {
            operator: operator.to_owned(),
            known: Mutex::default(),
        }
    }

    /// The token of a new link. It opens nothing if [`MOST_LINKS`] others are unused.
    pub(super) fn fresh(&self) -> String {
        let token = random();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !token.is_empty() && known.unused.len() < MOST_LINKS {
            known.unused.insert(token.clone());
        }
        token
    }

    /// Exchanges a token for a session.
    pub(super) fn open(&self, token: &str) -> Option<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unused = known.unused.iter();
        let found = unused.find(|unused| same(unused.as_bytes(), token.as_bytes()));
        let found = found.cloned()?;
        known.unused.remove(&found);
        let session = random();
        if session.is_empty() {
            return None;
        }
        if known.sessions.len() == MOST_SESSIONS {
            known.sessions.remove(0);
        }
        known.sessions.push((session.clone(), Instant::now()));
        Some(session)
    }

    pub(super) fn identify(&self, headers: &HeaderMap) -> Result<Identity, Refusal> {
        self.identify_at(headers, Instant::now())
    }

    fn identify_at(&self, headers: &HeaderMap, now: Instant) -> Result<Identity, Refusal> {
        let lasts = Duration::from_secs(SESSION_S.into());
        let Some(session) = cookie(headers, COOKIE) else {
            return Err(Refusal::Unknown(
                "open the link that the console printed when it started",
            ));
        };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sessions = known.sessions.iter();
        if sessions.any(|(known, since)| {
            now.duration_since(*since) < lasts && same(known.as_bytes(), session.as_bytes())
        }) {
            named(&self.operator)
        } else {
            Err(Refusal::Unknown(
                "this session is over; start the console again for a new link",
            ))
        }
    }
}

pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE_HEADER).iter();
    let pairs = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(known, _)| *known == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_link_opens_one_session_and_then_nothing() {
        let tokens = Tokens::new("ada");
        let token = tokens.fresh();
        let session = tokens.open(&token).unwrap();
        assert_eq!(tokens.open(&token), None);
        assert_eq!(tokens.open(""), None);
        let mut headers = HeaderMap::new();
        assert!(tokens.identify(&headers).is_err());
        let both = format!("other=1; {COOKIE}={session}");
        headers.insert(COOKIE_HEADER, HeaderValue::from_str(&both).unwrap());
        assert_eq!(tokens.identify(&headers).unwrap().name, "ada");
        let later = Instant::now() + Duration::from_secs(SESSION_S.into());
        assert!(tokens.identify_at(&headers, later).is_err());
        headers.insert(COOKIE_HEADER, HeaderValue::from_static("tidegate_console="));
        assert!(tokens.identify(&headers).is_err());
    }
}
