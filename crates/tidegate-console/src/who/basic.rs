//! Names and passwords. Verifying a password deliberately takes 19 MiB and tens of milliseconds, so a correct one is remembered for some
//! minutes, as a keyed hash.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
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

/// How long a correct password is remembered.
const REMEMBERED: Duration = Duration::from_mins(5);

/// The most remembered passwords.
const MOST_REMEMBERED: usize = 1000;

/// The most verifications at once, because each takes memory and a core.
const AT_ONCE: usize = 2;

/// The most wrong passwords in [`WINDOW`], for one address and name, and in total.
const WRONG_BY_ONE: u32 = 5;
const WRONG_BY_ALL: u32 = 50;
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
    wrong: Mutex<Wrong>,
    tries: Semaphore,
}

struct User {
    may_act: bool,
    hash: String,
}

#[derive(Default)]
struct Wrong {
    since: Option<Instant>,
    by_all: u32,
    by_one: BTreeMap<(Option<IpAddr>, String), u32>,
}

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
            wrong: Mutex::default(),
            tries: Semaphore::new(AT_ONCE),
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
        let user = self.known.get(&name);
        let fingerprint = self.fingerprint(&name, &password);
        let is_right = user.is_some() && self.remembers(&fingerprint);
        if !is_right {
            self.still_open(peer, &name)?;
            if !self.tried(user, password).await {
                self.note_wrong(peer, name);
                return Err(Refusal::Wrong("the name or the password is wrong"));
            }
            self.remember(fingerprint);
        }
        let identity = named(&name)?;
        let may_act = user.is_some_and(|user| user.may_act);
        Ok(Identity {
            may_act,
            ..identity
        })
    }

    /// Whether the password is the user's.
    async fn tried(&self, user: Option<&User>, password: String) -> bool {
        let Ok(_place) = self.tries.acquire().await else {
            return false;
        };
        let hash = user.map_or(NOBODYS, |user| &user.hash).to_owned();
        let fits = tokio::task::spawn_blocking(move || {
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
        let right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        let known = right.get(fingerprint);
        !self.key.is_empty() && known.is_some_and(|since| since.elapsed() < REMEMBERED)
    }

    fn remember(&self, fingerprint: Vec<u8>) {
        let mut right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        if right.len() >= MOST_REMEMBERED {
            right.clear();
        }
        right.insert(fingerprint, Instant::now());
    }

    fn still_open(&self, peer: Peer, name: &str) -> Result<(), Refusal> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let age = wrong.since.map_or(WINDOW, |since| since.elapsed());
        if age >= WINDOW {
            *wrong = Wrong::default();
            return Ok(());
        }
        let by_one = wrong
            .by_one
            .get(&(peer.0, name.to_owned()))
            .copied()
            .unwrap_or_default();
        if by_one >= WRONG_BY_ONE || wrong.by_all >= WRONG_BY_ALL {
            return Err(Refusal::TooOften(WINDOW.saturating_sub(age).as_secs() + 1));
        }
        Ok(())
    }

    fn note_wrong(&self, peer: Peer, name: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.since.get_or_insert_with(Instant::now);
        wrong.by_all += 1;
        *wrong.by_one.entry((peer.0, name)).or_default() += 1;
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
        for _ in 0..WRONG_BY_ONE {
            let wrong = users.identify(&headers("ada", "correct horse"), peer).await;
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
