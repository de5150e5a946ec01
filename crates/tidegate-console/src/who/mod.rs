//! Authentication, and who may act.
//!
//! Every action checks the right to act again. Hiding the buttons is only a convenience.

mod proxy;
mod token;

use std::collections::BTreeSet;

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};

pub(crate) use token::{COOKIE, SESSION_S, cookie};

use proxy::Proxy;
use tidegate::Error;
use token::Tokens;

/// An authenticated person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The name for the audit; 1 to 200 characters.
    pub name: String,
    /// Whether the person may act, if the console allows it.
    pub may_act: bool,
}

/// Why a request is not authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There are no credentials.
    Unknown(&'static str),
    /// The credentials are wrong.
    Wrong(&'static str),
    /// The request did not come over TLS.
    NotPrivate,
}

/// How people are authenticated: one way for a console.
pub struct Auth(AuthMethod);

enum AuthMethod {
    Token(Tokens),
    Proxy(Proxy),
    Iam,
    Given,
}

impl Auth {
    /// With a link that works once and sets a cookie. The person who opens it gets this name.
    #[must_use]
    pub fn token(operator: &str) -> Self {
        Self(AuthMethod::Token(Tokens::new(operator)))
    }

    /// With a header from a proxy in front. The proxy must also send the secret in `X-Tidegate-Proxy-Secret`.
    ///
    /// # Errors
    /// [`Error::Config`] when the header has no valid name, or the secret is shorter than 32 characters.
    pub fn proxy_header(header: &str, secret: &str) -> Result<Self, Error> {
        Ok(Self(AuthMethod::Proxy(Proxy::new(header, secret)?)))
    }

    /// With the identity that AWS has verified for a function URL with `AWS_IAM`.
    #[must_use]
    pub fn iam() -> Self {
        Self(AuthMethod::Iam)
    }

    /// With an [`Identity`] that your own layer puts into the request's extensions.
    #[must_use]
    pub fn given() -> Self {
        Self(AuthMethod::Given)
    }

    /// Returns the path and query of a sign-in link, for [`Auth::token`].
    #[must_use]
    pub fn link(&self) -> Option<String> {
        match &self.0 {
            AuthMethod::Token(tokens) => Some(format!("/login?token={}", tokens.fresh())),
            _ => None,
        }
    }

    pub(crate) fn has_links(&self) -> bool {
        matches!(self.0, AuthMethod::Token(_))
    }

    /// Exchanges a link's token for a session, once.
    pub(crate) fn open(&self, token: &str) -> Option<String> {
        match &self.0 {
            AuthMethod::Token(tokens) => tokens.open(token),
            _ => None,
        }
    }

    /// Returns the person who sent the request. `given` is the identity from the request's extensions.
    pub(crate) fn identify(
        &self,
        headers: &HeaderMap,
        given: Option<&Given>,
    ) -> Result<Identity, Refusal> {
        match (&self.0, given) {
            (AuthMethod::Token(tokens), _) => tokens.identify(headers),
            (AuthMethod::Proxy(proxy), _) => proxy.identify(headers),
            (AuthMethod::Iam, Some(Given::Iam(name))) => named(name),
            (AuthMethod::Given, Some(Given::Layer(identity))) => Ok(identity.clone()),
            (AuthMethod::Iam, _) => Err(Refusal::Unknown(
                "this console accepts only callers that AWS IAM has verified",
            )),
            (AuthMethod::Given, _) => Err(Refusal::Unknown("the request names no user")),
        }
    }
}

/// An identity from the request's extensions.
#[derive(Debug, Clone)]
pub(crate) enum Given {
    /// The ARN from the request context of a function URL.
    #[cfg_attr(
        not(feature = "lambda"),
        expect(dead_code, reason = "constructed only in Lambda")
    )]
    Iam(String),
    /// From a layer of the application that contains the console.
    Layer(Identity),
}

/// Who may act.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Acting {
    /// Nobody: the console is read-only.
    #[default]
    Nobody,
    /// Everybody whose authentication allows it.
    Everybody,
    /// Only these people, if their authentication allows it.
    These(BTreeSet<String>),
}

impl Acting {
    pub(crate) fn allows(&self, identity: &Identity) -> bool {
        identity.may_act
            && match self {
                Self::Nobody => false,
                Self::Everybody => true,
                Self::These(names) => names.contains(&identity.name),
            }
    }
}

/// The person with this name, if the audit can store it.
fn named(name: &str) -> Result<Identity, Refusal> {
    let name = name.trim();
    if !(1..=200).contains(&name.chars().count()) || name.chars().any(char::is_control) {
        return Err(Refusal::Wrong(
            "the name must have 1 to 200 characters, none of them a control character",
        ));
    }
    Ok(Identity {
        name: name.to_owned(),
        may_act: true,
    })
}

/// Compares two secrets in constant time.
fn same(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (Sha256::digest(one), Sha256::digest(other));
    one.iter()
        .zip(&other)
        .fold(0, |differs, (a, b)| differs | (a ^ b))
        == 0
}

/// A random secret of 43 URL-safe characters.
fn random() -> String {
    use base64::Engine;
    let mut bytes = [0; 32];
    // Without randomness the result is empty, and an empty secret is never accepted.
    match getrandom::fill(&mut bytes) {
        Ok(()) => base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_are_named_may_act() {
        let identity = |name: &str, may_act| Identity {
            name: name.to_owned(),
            may_act,
        };
        let these = Acting::These(BTreeSet::from(["ada".to_owned()]));
        assert!(these.allows(&identity("ada", true)));
        assert!(!these.allows(&identity("ada", false)));
        assert!(!these.allows(&identity("bob", true)));
        assert!(!Acting::default().allows(&identity("ada", true)));
        assert!(!Acting::Everybody.allows(&identity("ada", false)));
    }

    #[test]
    fn secrets_are_the_same_or_not() {
        assert!(same(b"abc", b"abc") && !same(b"abc", b"abd") && !same(b"abc", b"ab"));
        assert_eq!(random().len(), 43);
        assert_ne!(random(), random());
    }

    #[test]
    fn a_name_that_the_audit_cannot_hold_is_refused() {
        assert_eq!(named(" ada ").unwrap().name, "ada");
        for name in ["", " ", "a\u{7}b", &"x".repeat(201)] {
            assert!(named(name).is_err(), "{name:?}");
        }
    }
}
