//! Owns who is let in, how they are known, and whether they may act.
//!
//! One surprise: that an operator may act is decided here and asked again by every action; what a page shows of buttons is
//! no more than a courtesy.

mod basic;
mod proxy;
mod token;

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};
use tidegate::Error;

pub use basic::hash_password;
pub(crate) use token::{COOKIE, cookie};

use basic::Users;
use proxy::Proxy;
use token::Tokens;

/// Somebody who is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// As the audit will name them; 1 to 200 characters.
    pub name: String,
    /// Whether they may do more than look.
    pub may_act: bool,
}

/// From where a request came, as far as the socket tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Peer(pub Option<IpAddr>);

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// They have not said who they are.
    Unknown(&'static str),
    /// What they said is wrong.
    Wrong(&'static str),
    /// They have been wrong too often; in so many seconds they may try again.
    TooOften(u64),
    /// They are asked for a password, over a connection that anybody could read along.
    NotPrivate,
}

/// How callers are known.
pub struct Auth(Way);

enum Way {
    Token(Tokens),
    Basic(Users),
    Proxy(Proxy),
    Iam,
    Given,
}

impl Auth {
    /// By a link that is good once and then by a cookie. Whoever opens it is the operator of this name.
    #[must_use]
    pub fn token(operator: &str) -> Self {
        Self(Way::Token(Tokens::new(operator)))
    }

    /// By names and passwords. `text` has a line for each: the name, `read` or `act`, and the password's hash as
    /// [`hash_password`] makes it.
    ///
    /// # Errors
    /// [`Error::Config`] names the line and what it must be.
    pub fn basic(text: &str) -> Result<Self, Error> {
        Ok(Self(Way::Basic(Users::parse(text)?)))
    }

    /// By a header that a proxy in front writes, which proves itself with a secret in `X-Tidegate-Proxy-Secret`.
    ///
    /// # Errors
    /// [`Error::Config`] when the header has no valid name, or the secret is shorter than 32 characters.
    pub fn proxy_header(header: &str, secret: &str) -> Result<Self, Error> {
        Ok(Self(Way::Proxy(Proxy::new(header, secret)?)))
    }

    /// By the identity that AWS has verified for a function URL with `AWS_IAM`. Nobody is let in elsewhere.
    #[must_use]
    pub fn iam() -> Self {
        Self(Way::Iam)
    }

    /// By an [`Identity`] that a layer of yours puts into the request's extensions. Nobody is let in without one.
    #[must_use]
    pub fn given() -> Self {
        Self(Way::Given)
    }

    /// The path and query of a link that lets one browser in, of [`Auth::token`].
    #[must_use]
    pub fn link(&self) -> Option<String> {
        match &self.0 {
            Way::Token(tokens) => Some(format!("/login?token={}", tokens.fresh())),
            _ => None,
        }
    }

    /// Whether passwords come with each request, so that nobody may read along.
    pub(crate) fn has_passwords(&self) -> bool {
        matches!(self.0, Way::Basic(_))
    }

    /// Whether a link opens it.
    pub(crate) fn has_links(&self) -> bool {
        matches!(self.0, Way::Token(_))
    }

    /// The session that a link's token opens; once.
    pub(crate) fn open(&self, token: &str) -> Option<String> {
        match &self.0 {
            Way::Token(tokens) => tokens.open(token),
            _ => None,
        }
    }

    /// Who asks. `given` is who the request's extensions say it is.
    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        peer: Peer,
        given: Option<&Given>,
    ) -> Result<Identity, Refusal> {
        match (&self.0, given) {
            (Way::Token(tokens), _) => tokens.identify(headers),
            (Way::Basic(users), _) => users.identify(headers, peer).await,
            (Way::Proxy(proxy), _) => proxy.identify(headers),
            (Way::Iam, Some(Given::Iam(name))) => named(name),
            (Way::Given, Some(Given::Layer(identity))) => Ok(identity.clone()),
            (Way::Iam, _) => Err(Refusal::Unknown(
                "this console accepts only callers that AWS IAM has verified",
            )),
            (Way::Given, _) => Err(Refusal::Unknown("the request names no user")),
        }
    }
}

/// Who the request's surroundings say it is from.
#[derive(Debug, Clone)]
pub(crate) enum Given {
    /// The ARN that a function URL's request context has.
    #[cfg_attr(
        not(feature = "lambda"),
        expect(dead_code, reason = "only a function is told")
    )]
    Iam(String),
    /// A layer of the program that the console is mounted in.
    Layer(Identity),
}

/// Who may do more than look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Acting {
    /// Nobody.
    #[default]
    Nobody,
    /// Everybody whom the way of knowing callers does not keep from it.
    Everybody,
    /// Of those, these.
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

/// Somebody of this name, if the audit can name them.
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

/// Whether two secrets are the same, told in a time that says nothing of where they differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    let (one, other) = (Sha256::digest(one), Sha256::digest(other));
    one.iter()
        .zip(&other)
        .fold(0, |differs, (a, b)| differs | (a ^ b))
        == 0
}

/// A secret that nobody guesses, as 43 letters of a URL.
fn random() -> String {
    use base64::Engine;
    let mut bytes = [0; 32];
    // Without the system's randomness there is no secret, and nobody is let in: the empty one opens nothing.
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
