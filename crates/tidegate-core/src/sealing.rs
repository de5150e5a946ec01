//! Owns what happens to payloads between the program and the queue: the program's codec seals those that are
//! published and opens those that are handled. Without a codec, payloads stay as they are, and an event with
//! a sealed one waits for a program that has its key.
//!
//! A process has one codec, as it has one log. So no publisher can forget to seal, and no function that
//! publishes needs the keys as a parameter.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::event::NewEvent;

/// The beginning of a sealed payload. The database checks the whole form, in `refusal()`.
const BEGINNING: &str = r#"{"tidegate_sealed":"#;

/// A payload as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// The only field, whose name tells it from other payloads.
    pub tidegate_sealed: Envelope,
}

/// What is in a sealed payload.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The version of this format.
    pub v: u8,
    /// The name of the key that wraps the payload's own key.
    pub key: String,
    /// A nonce and the encrypted own key of the payload; base64.
    pub wrapped: String,
    /// The encrypted payload; base64.
    pub data: String,
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

/// Seals and opens the payloads of a process.
pub trait Codec: Send + Sync {
    /// Waits until the keys are there.
    ///
    /// # Errors
    /// When they cannot be read.
    fn ready(&self) -> BoxFuture<'_, Result<()>>;

    /// Seals the payload of an event of this kind; `None` if it is sealed already, or if [`Codec::ready`] was
    /// not awaited.
    ///
    /// # Errors
    /// When the payload cannot be sealed.
    fn seal(&self, kind: &str, payload: &RawValue) -> Result<Option<Box<RawValue>>>;

    /// Opens the sealed payload of an event of this kind. Returns its JSON text.
    ///
    /// # Errors
    /// See [`Unopened`].
    fn open(&self, kind: &str, sealed: &[u8]) -> Result<Vec<u8>, Unopened>;
}

/// Where the codec's keys come from, and the codec.
static CODEC: OnceLock<(String, Box<dyn Codec>)> = OnceLock::new();

/// Makes this process use a codec. The name says where its keys come from.
///
/// # Errors
/// [`Error::Config`] when this process already has another one.
pub fn install(name: &str, codec: Box<dyn Codec>) -> Result<()> {
    let (known, _) = CODEC.get_or_init(|| (name.to_owned(), codec));
    if *known == name {
        return Ok(());
    }
    Err(Error::Config(format!(
        "{name}: this process has its keys from {known}"
    )))
}

fn codec() -> Option<&'static dyn Codec> {
    CODEC.get().map(|(_, codec)| &**codec)
}

/// Waits until the keys of this process are there, if it has any.
///
/// # Errors
/// When they cannot be read.
pub async fn ready() -> Result<()> {
    match codec() {
        None => Ok(()),
        Some(codec) => codec.ready().await,
    }
}

/// Reads a sealed payload.
///
/// # Errors
/// [`Unopened::Broken`] when it has another form.
pub fn envelope(sealed: &[u8]) -> Result<Envelope, Unopened> {
    let sealed: Sealed = serde_json::from_slice(sealed).map_err(|_| Unopened::Broken)?;
    let envelope = sealed.tidegate_sealed;
    if envelope.v == 1 {
        Ok(envelope)
    } else {
        Err(Unopened::Broken)
    }
}

/// Whether a payload was meant to be a sealed one: if it cannot be opened, no handler takes it for plaintext.
pub fn begins_sealed(payload: &[u8]) -> bool {
    payload.starts_with(BEGINNING.as_bytes())
}

/// Seals the payload of an event that is to be published, if this process has keys and it is not sealed
/// already.
///
/// # Errors
/// When the payload cannot be sealed.
pub fn sealed(event: &NewEvent) -> Result<Cow<'_, NewEvent>> {
    let (Some(codec), Some(payload)) = (codec(), &event.payload) else {
        return Ok(Cow::Borrowed(event));
    };
    let Some(payload) = codec.seal(&event.kind, payload)? else {
        return Ok(Cow::Borrowed(event));
    };
    Ok(Cow::Owned(NewEvent {
        payload: Some(payload),
        ..event.clone()
    }))
}

/// Returns a stored payload as it was before it was sealed. A payload that is not sealed is returned
/// unchanged.
///
/// # Errors
/// See [`Unopened`].
pub fn opened<'a>(
    kind: &str,
    payload: Option<&'a [u8]>,
) -> Result<Option<Cow<'a, [u8]>>, Unopened> {
    let Some(sealed) = payload.filter(|payload| begins_sealed(payload)) else {
        return Ok(payload.map(Cow::Borrowed));
    };
    let opened = match codec() {
        Some(codec) => codec.open(kind, sealed),
        None => envelope(sealed).and_then(|envelope| Err(Unopened::NoKey(envelope.key))),
    };
    opened.map(|payload| Some(Cow::Owned(payload)))
}
