//! Names and passwords. Verifying a password deliberately takes 19 MiB and tens of milliseconds, so a correct
//! one is remembered, as a keyed hash, until it has not been used for some hours.
//!
//! Guesses are limited for each address and name, so that strangers lock out nobody who comes from elsewhere
//! or is remembered. Many guesses under many names and from many addresses only slow down further ones, and
//! people whose password is not remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tidegate::Error;
use tokio::sync::Semaphore;

use super::{Identity, Peer, Refusal, named, random};

/// How long a correct password is remembered after its last use.
const REMEMBERED: Duration = Duration::from_hours(12);

/// The most remembered passwords.
const MOST_REMEMBERED: usize = 1000;

/// The most verifications at once, because each takes memory and a core.
const AT_ONCE: usize = 2;

/// The most wrong passwords in [`WINDOW`], for one address and name.
const WRONG_BY_ONE: usize = 5;
const WINDOW: Duration = Duration::from_mins(1);

/// A hash for unknown names, so that they take as long as known ones.
const NOBODYS: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5IG5vYm9keQ$1Y2yEQYuFcbBaMByL4ve1kRYxKAmcD4DYB0lUXVyTQ4";

/// Returns the Argon2id hash of a password for a users file.
///
/// # Errors
/// [`Error::Invalid`] when the password has fewer than 12 or more than 1,000 characters.
pub fn hash_password(password: &str) -> Result<String, Error> {
    if !(12..=1000).contains(&password.chars().count()) {
        return Err(Error::Invalid(
            "password: must have 12 to 1,000 characters".to_owned(),
        ));
    }
    let hashed = Argon2::default().hash_password(password.as_bytes());
    let hashed = hashed.map_err(|error| Error::Invalid(format!("password: {error}")))?;
    Ok(hashed.to_string())
}

pub(super) struct Users {
    known: BTreeMap<String, User>,
    /// The key of the hashes of remembered passwords.
    key: String,
    right: Mutex<BTreeMap<Vec<u8>, Instant>>,
    guesses: Mutex<Guesses>,
    tries: Arc<Semaphore>,
}

struct User {
    may_act: bool,
    hash: String,
}

/// The different passwords, as keyed hashes, that were wrong or are being verified. To send one of them again
/// is no further guess.
#[derive(Default)]
struct Guesses {
    since: Option<Instant>,
    by_one: BTreeMap<Guesser, BTreeSet<Vec<u8>>>,
}

/// An address and a name.
type Guesser = (Option<IpAddr>, String);

impl Users {
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let mut users = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, user) = user(line).map_err(|why| {
                Error::Config(format!("--users-file: line {}: {why}", number + 1))
            })?;
            users.insert(name, user);
        }
        if users.is_empty() {
            return Err(Error::Config(
                "--users-file: must hold a line `NAME read|act HASH` at least".to_owned(),
            ));
        }
        Ok(Self {
            known: users,
            key: random(),
            right: Mutex::default(),
            guesses: Mutex::default(),
            tries: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    pub(super) async fn identify(
        &self,
        headers: &HeaderMap,
        peer: Peer,
    ) -> Result<Identity, Refusal> {
        let Some((name, password)) = credentials(headers) else {
            return Err(Refusal::Unknown("log in with your name and password"));
        };
        let identity = named(&name)?;
        let user = self.known.get(&name);
        let fingerprint = self.fingerprint(&name, &password);
        let is_right = user.is_some() && self.remembers(&fingerprint);
        if !is_right {
            let who = (peer.network(), name);
            self.count(&who, &fingerprint)?;
            if !self.tried(user, password).await {
                return Err(Refusal::Wrong("the name or the password is wrong"));
            }
            self.take_back(&who, &fingerprint);
            self.remember(fingerprint);
        }
        let may_act = user.is_some_and(|user| user.may_act);
        Ok(Identity {
            may_act,
            ..identity
        })
    }

    /// Whether the password is the user's.
    async fn tried(&self, user: Option<&User>, password: String) -> bool {
        let Ok(place) = self.tries.clone().acquire_owned().await else {
            return false;
        };
        let hash = user.map_or(NOBODYS, |user| &user.hash).to_owned();
        let fits = tokio::task::spawn_blocking(move || {
            // The verification goes on even if the client goes away.
            let _place = place;
            let hash = PasswordHash::new(&hash);
            hash.is_ok_and(|hash| {
                Argon2::default()
                    .verify_password(password.as_bytes(), &hash)
                    .is_ok()
            })
        });
        fits.await.unwrap_or(false) && user.is_some()
    }

    fn fingerprint(&self, name: &str, password: &str) -> Vec<u8> {
        // HMAC accepts keys of any length.
        let Ok(mut hash) = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()) else {
            return Vec::new();
        };
        hash.update(&(name.len() as u64).to_be_bytes());
        hash.update(name.as_bytes());
        hash.update(password.as_bytes());
        hash.finalize().into_bytes().to_vec()
    }

    fn remembers(&self, fingerprint: &[u8]) -> bool {
        let mut right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        let known = right.get_mut(fingerprint);
        let known = known.filter(|used| !self.key.is_empty() && used.elapsed() < REMEMBERED);
        known.is_some_and(|used| {
            *used = Instant::now();
            true
        })
    }

    fn remember(&self, fingerprint: Vec<u8>) {
        let mut right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        if right.len() >= MOST_REMEMBERED {
            right.clear();
        }
        right.insert(fingerprint, Instant::now());
    }

    /// Counts a guess, before it is verified: many at once are no more than many in turn.
    fn count(&self, who: &Guesser, fingerprint: &[u8]) -> Result<(), Refusal> {
        let mut guesses = self.guesses.lock().unwrap_or_else(PoisonError::into_inner);
        let age = guesses.since.map_or(WINDOW, |since| since.elapsed());
        if age >= WINDOW {
            *guesses = Guesses {
                since: Some(Instant::now()),
                ..Guesses::default()
            };
        }
        let by_one = guesses.by_one.entry(who.clone()).or_default();
        if by_one.contains(fingerprint) {
            return Ok(());
        }
        if by_one.len() >= WRONG_BY_ONE {
            return Err(Refusal::TooOften(WINDOW.saturating_sub(age).as_secs() + 1));
        }
        by_one.insert(fingerprint.to_vec());
        Ok(())
    }

    /// Takes back the count of a password that was right.
    fn take_back(&self, who: &Guesser, fingerprint: &[u8]) {
        let mut guesses = self.guesses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(by_one) = guesses.by_one.get_mut(who) {
            by_one.remove(fingerprint);
        }
    }
}

fn user(line: &str) -> Result<(String, User), &'static str> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(role), Some(hash), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("must be `NAME read|act HASH`");
    };
    let may_act = match role {
        "read" => false,
        "act" => true,
        _ => return Err("the second word must be read or act"),
    };
    if !PasswordHash::new(hash).is_ok_and(|hash| hash.algorithm.as_str() == "argon2id") {
        return Err(
            "the third word must be an Argon2id hash, as `tidegate console hash-password` prints it",
        );
    }
    if name.contains(':') || named(name).is_err() {
        return Err("the name must have 1 to 200 characters and no colon");
    }
    let hash = hash.to_owned();
    Ok((name.to_owned(), User { may_act, hash }))
}

/// Name and password of an `Authorization: Basic` header.
fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: &str, password: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let encoded = STANDARD.encode(format!("{name}:{password}"));
        let value = HeaderValue::from_str(&format!("Basic {encoded}")).unwrap();
        headers.insert(AUTHORIZATION, value);
        headers
    }

    fn peer(address: &str) -> Peer {
        Peer(address.parse().ok())
    }

    /// Users with one password, whose hash takes no time.
    fn users(names: impl IntoIterator<Item = String>) -> Users {
        let params = argon2::Params::new(8, 1, 1, None).unwrap();
        let hasher = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let hash = hasher.hash_password(b"correct horse battery").unwrap();
        let lines = names
            .into_iter()
            .map(|name| format!("{name} read {hash}\n"));
        Users::parse(&lines.collect::<String>()).unwrap()
    }

    #[tokio::test]
    async fn a_password_is_right_or_wrong_and_wrong_ones_are_soon_not_tried() {
        let hash = hash_password("correct horse battery").unwrap();
        let users = Users::parse(&format!("# who\nada act {hash}\nbob read {hash}\n")).unwrap();
        let right = headers("ada", "correct horse battery");
        let peer = Peer::default();
        let ada = users.identify(&right, peer).await.unwrap();
        assert!(ada.may_act && ada.name == "ada");
        let bob = headers("bob", "correct horse battery");
        assert!(!users.identify(&bob, peer).await.unwrap().may_act);
        for number in 0..WRONG_BY_ONE {
            let guess = headers("ada", &format!("correct horse {number}"));
            let wrong = users.identify(&guess, peer).await;
            assert!(matches!(wrong, Err(Refusal::Wrong(_))), "{wrong:?}");
        }
        let tried = users
            .identify(&headers("ada", "another password"), peer)
            .await;
        assert!(matches!(tried, Err(Refusal::TooOften(1..=60))), "{tried:?}");
        // A remembered password still works.
        assert!(users.identify(&right, peer).await.is_ok());
        let nobody = users
            .identify(&headers("eve", "correct horse battery"), peer)
            .await;
        assert!(matches!(nobody, Err(Refusal::Wrong(_))));
        assert!(users.identify(&HeaderMap::new(), peer).await.is_err());
    }

    #[tokio::test]
    async fn guesses_that_come_at_once_are_no_more_than_guesses_in_turn() {
        let users = users(["ada".to_owned()]);
        let guesses = (0..120).map(|number| headers("ada", &format!("guess {number}")));
        let guesses: Vec<_> = guesses.collect();
        let answers = guesses
            .iter()
            .map(|guess| users.identify(guess, peer("192.0.2.1")));
        let answers = futures_util::future::join_all(answers).await;
        let tried = answers
            .iter()
            .filter(|answer| matches!(answer, Err(Refusal::Wrong(_))));
        assert_eq!(tried.count(), WRONG_BY_ONE);
        // From another place, and with the right password in many requests at once, nobody is refused.
        let right = headers("ada", "correct horse battery");
        let at_once = (0..20).map(|_| users.identify(&right, peer("192.0.2.2")));
        let at_once = futures_util::future::join_all(at_once).await;
        assert!(at_once.iter().all(Result::is_ok), "{at_once:?}");
        // What was right is remembered wherever it comes from.
        assert!(users.identify(&right, peer("192.0.2.1")).await.is_ok());
    }

    #[tokio::test]
    async fn wrong_passwords_under_other_names_keep_nobody_out() {
        let names = (0..100).map(|number| format!("stranger{number}"));
        let users = users(names.clone().chain(["bob".to_owned()]));
        let proxy = peer("192.0.2.1");
        for name in names {
            let wrong = users.identify(&headers(&name, "wrong"), proxy).await;
            assert!(matches!(wrong, Err(Refusal::Wrong(_))), "{wrong:?}");
        }
        let bob = headers("bob", "correct horse battery");
        assert!(users.identify(&bob, proxy).await.is_ok());
    }

    #[test]
    fn a_file_of_users_is_refused_by_line() {
        let hash = hash_password("correct horse battery").unwrap();
        for (text, named) in [
            (String::new(), "--users-file"),
            (format!("\nada {hash}"), "line 2: must be"),
            (format!("ada root {hash}"), "line 1: the second word"),
            ("ada act $2b$12$abc".to_owned(), "line 1: the third word"),
            (format!("a:b act {hash}"), "line 1: the name"),
        ] {
            let error = Users::parse(&text).err().unwrap().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(hash_password("short").is_err());
        assert!(PasswordHash::new(NOBODYS).is_ok());
    }
}
