//! Owns the encryption of payloads. A sealed payload is an envelope that holds the encrypted payload and a
//! key for this one payload, which is wrapped with a key of the program. The queue, its log and their readers
//! see only the envelope. This module knows no SQL.

use std::collections::BTreeMap;
use std::fmt;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::future::{BoxFuture, FutureExt};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tidegate_core::config::{Lookup, read_secret_file};
use tidegate_core::connect::{SecretReader, secret_reader};
use tidegate_core::error::{Error, Result};
pub use tidegate_core::sealing::Unopened;
use tidegate_core::sealing::{Codec, Envelope, Sealed, begins_sealed, envelope, install};
use tokio::sync::OnceCell;

/// Part of what is sealed, so that nothing that was sealed for another purpose can pass for a payload.
const PURPOSE: &str = "tidegate payload 1:";

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const WRAPPED_BYTES: usize = NONCE_BYTES + KEY_BYTES + TAG_BYTES;

/// A payload's own key seals nothing else, so a constant nonce is safe.
const ONLY_NONCE: [u8; NONCE_BYTES] = [0; NONCE_BYTES];

/// The keys of a program: one of them seals, all of them open.
pub struct PayloadKeys {
    current: String,
    keys: BTreeMap<String, Aes256Gcm>,
}

impl fmt::Debug for PayloadKeys {
    /// Shows only the names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.keys()).finish()
    }
}

/// The keys in the form of their file or secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    current: String,
    keys: BTreeMap<String, String>,
}

impl PayloadKeys {
    /// Parses keys: `{"current": "2031-01", "keys": {"2031-01": "…", "2030-01": "…"}}`. Each key is 32 random
    /// bytes in base64, and the current one seals. A name has 1 to 100 characters: letters, digits, `.`, `_`
    /// and `-`.
    ///
    /// # Errors
    /// [`Error::Config`] says what is wrong, and quotes no key.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::Config(format!("payload keys: {why}"));
        let written: KeyFile = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let form = r#"must be {"current": NAME, "keys": {NAME: KEY}}"#;
            wrong(format!(
                "{form}, got something else at line {line}, column {column}"
            ))
        })?;
        let mut keys = BTreeMap::new();
        for (name, key) in written.keys {
            if !is_name(&name) {
                let needed = "1 to 100 letters, digits, '.', '_' and '-'";
                return Err(wrong(format!("a name must have {needed}")));
            }
            let bytes = BASE64.decode(key.trim()).ok();
            let Some(cipher) = bytes.and_then(|bytes| Aes256Gcm::new_from_slice(&bytes).ok())
            else {
                return Err(wrong(format!("{name}: must be 32 bytes in base64")));
            };
            keys.insert(name, cipher);
        }
        if !keys.contains_key(&written.current) {
            return Err(wrong(
                "current: must be the name of one of the keys".to_owned(),
            ));
        }
        Ok(Self {
            current: written.current,
            keys,
        })
    }

    /// Returns the name of the key that seals.
    pub fn current(&self) -> &str {
        &self.current
    }

    /// Seals the payload of an event of this kind.
    ///
    /// # Errors
    /// [`Error::Config`] when the system provides no random numbers.
    pub fn seal(&self, kind: &str, payload: &RawValue) -> Result<Box<RawValue>> {
        let (own, nonce): ([u8; KEY_BYTES], _) = (random()?, random()?);
        let with_own = Aes256Gcm::new(&own.into());
        let data = encrypt(&with_own, ONLY_NONCE, kind, payload.get().as_bytes())?;
        let wrapped = encrypt(&self.keys[&self.current], nonce, &self.current, &own)?;
        written(Envelope {
            v: 1,
            key: self.current.clone(),
            wrapped: BASE64.encode([&nonce[..], &wrapped].concat()),
            data: BASE64.encode(data),
        })
    }

    /// Opens the sealed payload of an event of this kind. Returns its JSON text.
    ///
    /// # Errors
    /// See [`Unopened`].
    pub fn open(&self, kind: &str, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let envelope = envelope(sealed)?;
        let Some(key) = self.keys.get(&envelope.key) else {
            return Err(Unopened::NoKey(envelope.key));
        };
        let decoded = |text: &str| BASE64.decode(text).map_err(|_| Unopened::Broken);
        let wrapped = decoded(&envelope.wrapped)?;
        let (nonce, wrapped) = wrapped.split_first_chunk().ok_or(Unopened::Broken)?;
        let own = decrypt(key, *nonce, &envelope.key, wrapped)?;
        let with_own = Aes256Gcm::new_from_slice(&own).map_err(|_| Unopened::Broken)?;
        decrypt(&with_own, ONLY_NONCE, kind, &decoded(&envelope.data)?)
    }
}

/// Encrypts a text and binds it to what it is about: a payload to its kind, a wrapped key to the name of the
/// key that wraps it.
fn encrypt(
    cipher: &Aes256Gcm,
    nonce: [u8; NONCE_BYTES],
    about: &str,
    text: &[u8],
) -> Result<Vec<u8>> {
    let about = format!("{PURPOSE}{about}");
    let message = Payload {
        msg: text,
        aad: about.as_bytes(),
    };
    let encrypted = cipher.encrypt(&Nonce::from(nonce), message);
    encrypted.map_err(|_| Error::Config("payload: too large to seal".to_owned()))
}

fn decrypt(
    cipher: &Aes256Gcm,
    nonce: [u8; NONCE_BYTES],
    about: &str,
    text: &[u8],
) -> Result<Vec<u8>, Unopened> {
    let about = format!("{PURPOSE}{about}");
    let message = Payload {
        msg: text,
        aad: about.as_bytes(),
    };
    let decrypted = cipher.decrypt(&Nonce::from(nonce), message);
    decrypted.map_err(|_| Unopened::Broken)
}

fn written(envelope: Envelope) -> Result<Box<RawValue>> {
    let sealed = Sealed {
        tidegate_sealed: envelope,
    };
    to_raw_value(&sealed).map_err(|error| Error::Config(format!("payload: {error}")))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Error::Config(format!("payload keys: no random numbers: {error}")))?;
    Ok(bytes)
}

/// Whether a payload has exactly the form that [`PayloadKeys::seal`] writes, with any key. A payload that
/// only begins like it is plaintext.
fn is_sealed(payload: &[u8]) -> bool {
    if !begins_sealed(payload) {
        return false;
    }
    let Ok(envelope) = envelope(payload) else {
        return false;
    };
    let wrapped = BASE64.decode(&envelope.wrapped);
    let data = BASE64.decode(&envelope.data);
    is_name(&envelope.key)
        && wrapped.is_ok_and(|wrapped| wrapped.len() == WRAPPED_BYTES)
        && data.is_ok_and(|data| !data.is_empty())
        && written(envelope).is_ok_and(|form| form.get().as_bytes() == payload)
}

/// Whether a key may have this name.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=100).contains(&name.len()) && name.bytes().all(plain)
}

const FILE: &str = "TIDEGATE_PAYLOAD_KEYS_FILE";
const SECRET: &str = "TIDEGATE_PAYLOAD_KEYS_SECRET_ID";

/// Makes this process seal every payload that it publishes, and open those that it handles. The keys are in
/// the file `TIDEGATE_PAYLOAD_KEYS_FILE`, or in the secret `TIDEGATE_PAYLOAD_KEYS_SECRET_ID`, which is read
/// at the first use. Both have the form of [`PayloadKeys::parse`]. Without either, payloads are stored
/// unsealed. The Lambda function and the command line call this themselves; any other producer calls it once.
///
/// # Errors
/// [`Error::Config`] when both are set, when the file holds no keys, or when this process already has other
/// keys.
pub fn from_settings(lookup: Lookup<'_>) -> Result<()> {
    match (lookup(FILE), lookup(SECRET)) {
        (None, None) => Ok(()),
        (Some(_), Some(_)) => Err(Error::Config(format!(
            "{FILE}: must not be set with {SECRET}"
        ))),
        (Some(path), None) => {
            let refused = |why| Error::Config(format!("{FILE}: {why}"));
            let text = read_secret_file(&path).map_err(refused)?;
            let keys = Keys {
                read: None,
                keys: OnceCell::new_with(Some(of(FILE, &text)?)),
            };
            install(&format!("{FILE} {path}"), Box::new(keys))
        }
        (None, Some(id)) => {
            let keys = Keys {
                read: Some(secret_reader(SECRET, id.clone())?),
                keys: OnceCell::new(),
            };
            install(&format!("{SECRET} {id}"), Box::new(keys))
        }
    }
}

/// Parses the keys of a setting. The error names the setting.
fn of(setting: &str, text: &str) -> Result<PayloadKeys> {
    PayloadKeys::parse(text).map_err(|error| match error {
        Error::Config(why) => Error::Config(format!("{setting}: {why}")),
        other => other,
    })
}

/// The keys of a process. Those in a secret are read at the first use.
struct Keys {
    read: Option<SecretReader>,
    keys: OnceCell<PayloadKeys>,
}

impl Codec for Keys {
    fn ready(&self) -> BoxFuture<'_, Result<()>> {
        async {
            if let Some(read) = &self.read {
                let read = async || of(SECRET, &read().await?);
                self.keys.get_or_try_init(read).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn seal(&self, kind: &str, payload: &RawValue) -> Result<Option<Box<RawValue>>> {
        match self.keys.get() {
            Some(keys) if !is_sealed(payload.get().as_bytes()) => {
                keys.seal(kind, payload).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn open(&self, kind: &str, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        match self.keys.get() {
            Some(keys) => keys.open(kind, sealed),
            None => Err(Unopened::NoKey(envelope(sealed)?.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "//79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";

    fn keys(current: &str) -> PayloadKeys {
        let text =
            format!(r#"{{"current": "{current}", "keys": {{"old": "{OLD}", "new": "{NEW}"}}}}"#);
        PayloadKeys::parse(&text).unwrap()
    }

    fn payload(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn what_is_sealed_shows_nothing_and_opens_to_the_letter() {
        let keys = keys("old");
        for text in [
            r#"{"name": "canary \u00e6",  "n": 1e400}"#,
            "null",
            "[]",
            r#""\ud83c\udf0a""#,
        ] {
            let sealed = keys.seal("act", &payload(text)).unwrap();
            assert!(is_sealed(sealed.get().as_bytes()) && !sealed.get().contains("canary"));
            assert_eq!(
                keys.open("act", sealed.get().as_bytes()).unwrap(),
                text.as_bytes()
            );
            let again = keys.seal("act", &payload(text)).unwrap();
            assert_ne!(again.get(), sealed.get(), "a key of its own");
        }
    }

    #[test]
    fn what_was_changed_or_moved_to_another_kind_does_not_open() {
        let keys = keys("old");
        let sealed = keys.seal("act", &payload("[1]")).unwrap();
        let text = sealed.get();
        assert_eq!(keys.open("note", text.as_bytes()), Err(Unopened::Broken));
        let other = keys.seal("act", &payload("[2]")).unwrap();
        let mut mixed: Sealed = serde_json::from_str(text).unwrap();
        let other: Sealed = serde_json::from_str(other.get()).unwrap();
        mixed.tidegate_sealed.wrapped = other.tidegate_sealed.wrapped;
        let mixed = written(mixed.tidegate_sealed).unwrap();
        assert_eq!(
            keys.open("act", mixed.get().as_bytes()),
            Err(Unopened::Broken)
        );
        for wrong in [r#"{"tidegate_sealed":1}"#, r#"{"tidegate_sealed":{}}"#, "{"] {
            assert_eq!(keys.open("act", wrong.as_bytes()), Err(Unopened::Broken));
        }
        for plain in [
            text.replace('}', ",\"name\":\"canary\"}"),
            text.replacen(':', ": ", 2),
            text.replace("\"v\":1", "\"v\":2"),
            text.replace("\"old\"", "\"old canary\""),
            text.replace("\"wrapped\":\"", "\"wrapped\":\"canary++"),
            text.replace("\"data\":\"", "\"data\":\"a canary"),
            r#"{"tidegate_sealed":0,"name":"canary"}"#.to_owned(),
        ] {
            assert!(!is_sealed(plain.as_bytes()), "{plain}");
        }
        let shorter = text.replace(r#""wrapped":""#, r#""wrapped":"="#);
        assert_eq!(keys.open("act", shorter.as_bytes()), Err(Unopened::Broken));
    }

    #[test]
    fn keys_that_are_none_are_refused_and_not_quoted() {
        for (text, why) in [
            ("", r#"must be {"current": NAME"#),
            (
                r#"{"current": "a", "keys": {"a": "c2VjcmV0"}}"#,
                "a: must be 32 bytes in base64",
            ),
            (
                r#"{"current": "a", "keys": {"a": "secret!"}}"#,
                "a: must be 32 bytes in base64",
            ),
            (
                r#"{"current": "a", "keys": {}}"#,
                "current: must be the name of one of the keys",
            ),
            (
                r#"{"current": "a b", "keys": {"a b": "secret"}}"#,
                "a name must have 1 to 100 letters",
            ),
        ] {
            let refused = PayloadKeys::parse(text).unwrap_err().to_string();
            assert!(
                refused.contains(why) && !refused.contains("c2Vj"),
                "{refused}"
            );
        }
        assert_eq!(format!("{:?}", keys("old")), r#"["new", "old"]"#);
    }
}
