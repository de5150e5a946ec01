//! Owns the encryption of payloads. A sealed payload is an envelope that holds the encrypted payload and a key for this
//! one payload, which is wrapped with a key of the program. The queue, its log and their readers see only the envelope.
//! This module knows no SQL.
//!
//! A process has one set of keys, as it has one log. So no publisher can forget to seal, and no function that publishes
//! needs the keys as a parameter.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
#[cfg(feature = "aws")]
use tokio::sync::OnceCell;

use crate::config::{Lookup, read_file};
#[cfg(feature = "aws")]
use crate::connect::SecretText;
use crate::error::Error;
use crate::event::NewEvent;
use crate::handler::{Fault, HandlerError, Unhandled};

/// The beginning of a sealed payload. The database checks the whole form, in `refusal()`.
const BEGINNING: &str = r#"{"tidegate_sealed":"#;

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
struct Written {
    current: String,
    keys: BTreeMap<String, String>,
}

/// A payload as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    tidegate_sealed: Envelope,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    /// The version of this format.
    v: u8,
    /// The name of the key that wraps the payload's own key.
    key: String,
    /// A nonce and the encrypted own key of the payload; base64.
    wrapped: String,
    /// The encrypted payload; base64.
    data: String,
}

/// Why a sealed payload cannot be opened. It quotes only the name of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unopened {
    /// This program has no key of this name.
    NoKey(String),
    /// The payload is not this program's, was changed, or belongs to an event of another kind.
    Broken,
}

impl fmt::Display for Unopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey(name) => write!(
                f,
                "the payload is sealed with the key {name:?}, which this program does not have"
            ),
            Self::Broken => f.write_str(
                "the sealed payload cannot be opened: it was changed, or its key differs",
            ),
        }
    }
}

impl PayloadKeys {
    /// Parses keys: `{"current": "2031-01", "keys": {"2031-01": "…", "2030-01": "…"}}`. Each key is 32 random bytes in
    /// base64, and the current one seals. A name has 1 to 100 characters: letters, digits, `.`, `_` and `-`.
    ///
    /// # Errors
    /// [`Error::Config`] says what is wrong, and quotes no key.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::Config(format!("payload keys: {why}"));
        let written: Written = serde_json::from_str(text).map_err(|error| {
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
    #[must_use]
    pub fn current(&self) -> &str {
        &self.current
    }

    /// Seals the payload of an event of this kind.
    ///
    /// # Errors
    /// [`Error::Config`] when the system provides no random numbers.
    pub fn seal(&self, kind: &str, payload: &RawValue) -> Result<Box<RawValue>, Error> {
        let own: [u8; KEY_BYTES] = random()?;
        let cipher = Aes256Gcm::new(&own.into());
        let about = format!("{PURPOSE}{kind}");
        let message = Payload {
            msg: payload.get().as_bytes(),
            aad: about.as_bytes(),
        };
        let data = cipher.encrypt(&Nonce::from(ONLY_NONCE), message);
        let data = data.map_err(|_| Error::Config("payload: too large to seal".to_owned()))?;
        let envelope = Envelope {
            v: 1,
            key: self.current.clone(),
            wrapped: self.wrap(&own)?,
            data: BASE64.encode(data),
        };
        written(envelope)
    }

    fn wrap(&self, own: &[u8]) -> Result<String, Error> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let about = format!("{PURPOSE}{}", self.current);
        let message = Payload {
            msg: own,
            aad: about.as_bytes(),
        };
        let wrapped = self.keys[&self.current].encrypt(&Nonce::from(nonce), message);
        let wrapped = wrapped.map_err(|_| Error::Config("payload keys: cannot wrap".to_owned()))?;
        Ok(BASE64.encode([&nonce[..], &wrapped].concat()))
    }

    /// Returns the payload in a seal.
    ///
    /// # Errors
    /// See [`Unopened`].
    pub fn open(&self, kind: &str, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let envelope = envelope(sealed)?;
        let own = self.unwrap(&envelope)?;
        let cipher = Aes256Gcm::new_from_slice(&own).map_err(|_| Unopened::Broken)?;
        let data = BASE64
            .decode(&envelope.data)
            .map_err(|_| Unopened::Broken)?;
        let about = format!("{PURPOSE}{kind}");
        let message = Payload {
            msg: &data,
            aad: about.as_bytes(),
        };
        let opened = cipher.decrypt(&Nonce::from(ONLY_NONCE), message);
        opened.map_err(|_| Unopened::Broken)
    }

    fn unwrap(&self, envelope: &Envelope) -> Result<Vec<u8>, Unopened> {
        let Some(key) = self.keys.get(&envelope.key) else {
            return Err(Unopened::NoKey(envelope.key.clone()));
        };
        let wrapped = BASE64
            .decode(&envelope.wrapped)
            .map_err(|_| Unopened::Broken)?;
        let (nonce, wrapped) = wrapped
            .split_at_checked(NONCE_BYTES)
            .ok_or(Unopened::Broken)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| Unopened::Broken)?;
        let about = format!("{PURPOSE}{}", envelope.key);
        let message = Payload {
            msg: wrapped,
            aad: about.as_bytes(),
        };
        key.decrypt(&Nonce::from(nonce), message)
            .map_err(|_| Unopened::Broken)
    }
}

fn envelope(sealed: &[u8]) -> Result<Envelope, Unopened> {
    let sealed: Sealed = serde_json::from_slice(sealed).map_err(|_| Unopened::Broken)?;
    let envelope = sealed.tidegate_sealed;
    if envelope.v == 1 {
        Ok(envelope)
    } else {
        Err(Unopened::Broken)
    }
}

fn written(envelope: Envelope) -> Result<Box<RawValue>, Error> {
    let sealed = Sealed {
        tidegate_sealed: envelope,
    };
    to_raw_value(&sealed).map_err(|error| Error::Config(format!("payload: {error}")))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Error::Config(format!("payload keys: no random numbers: {error}")))?;
    Ok(bytes)
}

/// Whether a payload has exactly the form that [`PayloadKeys::seal`] writes, with any key. A payload that only begins like
/// it is plaintext.
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

/// Whether a payload was meant to be a sealed one: if it cannot be opened, no handler takes it for plaintext.
fn begins_sealed(payload: &[u8]) -> bool {
    payload.starts_with(BEGINNING.as_bytes())
}

/// Whether a key may have this name.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=100).contains(&name.len()) && name.bytes().all(plain)
}

/// Where the keys of this process come from.
enum Source {
    File(PayloadKeys),
    #[cfg(feature = "aws")]
    Secret(Box<SecretText>, OnceCell<PayloadKeys>),
}

/// The name of the source, and the source itself.
static SOURCE: OnceLock<(String, Source)> = OnceLock::new();

const FILE: &str = "TIDEGATE_PAYLOAD_KEYS_FILE";
const SECRET: &str = "TIDEGATE_PAYLOAD_KEYS_SECRET_ID";

/// Makes this process seal every payload that it publishes, and open those that it handles. The keys are in the file
/// `TIDEGATE_PAYLOAD_KEYS_FILE`, or in the secret `TIDEGATE_PAYLOAD_KEYS_SECRET_ID`, which is read at the first use.
/// Both have the form of [`PayloadKeys::parse`]. Without either, payloads are stored unsealed. The Lambda function and
/// the command line call this themselves; any other producer calls it once.
///
/// # Errors
/// [`Error::Config`] when both are set, when the file holds no keys, or when this process already has other keys.
pub fn from_settings(lookup: Lookup<'_>) -> Result<(), Error> {
    let (name, source) = match (lookup(FILE), lookup(SECRET)) {
        (None, None) => return Ok(()),
        (Some(_), Some(_)) => {
            return Err(Error::Config(format!(
                "{FILE}: must not be set with {SECRET}"
            )));
        }
        (Some(path), None) => {
            let text = read_file(FILE, &path)?;
            let text = String::from_utf8(text)
                .map_err(|_| Error::Config(format!("{FILE}: must be text")))?;
            (format!("{FILE} {path}"), Source::File(of(FILE, &text)?))
        }
        #[cfg(feature = "aws")]
        (None, Some(id)) => (
            format!("{SECRET} {id}"),
            Source::Secret(Box::new(SecretText::new(id)), OnceCell::new()),
        ),
        #[cfg(not(feature = "aws"))]
        (None, Some(_)) => {
            return Err(Error::Config(format!(
                "{SECRET}: must not be set: this program was built without AWS"
            )));
        }
    };
    let (known, _) = SOURCE.get_or_init(|| (name.clone(), source));
    if *known == name {
        return Ok(());
    }
    Err(Error::Config(format!(
        "{name}: this process has its keys from {known}"
    )))
}

/// Parses the keys of a setting. The error names the setting.
fn of(setting: &str, text: &str) -> Result<PayloadKeys, Error> {
    PayloadKeys::parse(text).map_err(|error| match error {
        Error::Config(why) => Error::Config(format!("{setting}: {why}")),
        other => other,
    })
}

/// Returns the keys of this process, if it has any.
///
/// # Errors
/// When their secret cannot be read, or holds no keys.
#[cfg_attr(
    not(feature = "aws"),
    expect(clippy::unused_async, reason = "only a secret has to be waited for")
)]
pub(crate) async fn keys() -> Result<Option<&'static PayloadKeys>, Error> {
    match SOURCE.get() {
        None => Ok(None),
        Some((_, Source::File(keys))) => Ok(Some(keys)),
        #[cfg(feature = "aws")]
        Some((_, Source::Secret(secret, keys))) => {
            let read = async || of(SECRET, &secret.read().await?);
            keys.get_or_try_init(read).await.map(Some)
        }
    }
}

/// Returns the keys of this process, if it has any and [`keys`] was awaited.
fn keys_now() -> Option<&'static PayloadKeys> {
    match SOURCE.get() {
        None => None,
        Some((_, Source::File(keys))) => Some(keys),
        #[cfg(feature = "aws")]
        Some((_, Source::Secret(_, keys))) => keys.get(),
    }
}

/// Returns an event as it is to be published: with its payload sealed, if this process has keys and the payload is not
/// sealed already.
///
/// # Errors
/// When the payload cannot be sealed.
pub(crate) fn sealed(event: &NewEvent) -> Result<Cow<'_, NewEvent>, Error> {
    let (Some(keys), Some(payload)) = (keys_now(), &event.payload) else {
        return Ok(Cow::Borrowed(event));
    };
    if is_sealed(payload.get().as_bytes()) {
        return Ok(Cow::Borrowed(event));
    }
    let payload = Some(keys.seal(&event.kind, payload)?);
    Ok(Cow::Owned(NewEvent {
        payload,
        ..event.clone()
    }))
}

/// Returns a stored payload as it was before it was sealed. A payload that is not sealed is returned unchanged.
///
/// # Errors
/// [`Unhandled`]: without its key the event is retried later, and the attempt is not charged to it.
pub(crate) fn opened<'a>(
    kind: &str,
    payload: Option<&'a [u8]>,
) -> Result<Option<Cow<'a, [u8]>>, Unhandled> {
    let Some(sealed) = payload.filter(|payload| begins_sealed(payload)) else {
        return Ok(payload.map(Cow::Borrowed));
    };
    let opened = match keys_now() {
        Some(keys) => keys.open(kind, sealed),
        None => envelope(sealed).and_then(|envelope| Err(Unopened::NoKey(envelope.key))),
    };
    match opened {
        Ok(payload) => Ok(Some(Cow::Owned(payload))),
        // Another program, or this one with corrected settings, can handle it.
        Err(why @ Unopened::NoKey(_)) => Err(Unhandled::Later(
            HandlerError::retry("sealed", why).blameless(),
        )),
        Err(why @ Unopened::Broken) => Err(Unhandled::Never(Fault::new("sealed", why))),
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
        for (text, wanted) in [
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
                refused.contains(wanted) && !refused.contains("c2Vj"),
                "{refused}"
            );
        }
        assert_eq!(format!("{:?}", keys("old")), r#"["new", "old"]"#);
    }
}
