//! Owns the vocabulary of events: the program's enum, an event to be published, and the decoding of a
//! payload. It knows neither SQL nor handlers. One macro, [`events!`](crate::events), ties each kind to its
//! payload type. So a kind without a variant, or a variant without a kind, does not compile.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::config::in_range;
use crate::error::{Error, Result};
use crate::trace::TraceContext;

/// The closed set of events that a program publishes and handles. Implemented by [`events!`](crate::events).
pub trait Event: Sized + Send + Sync + 'static {
    /// Every kind, as stored in the `kind` column (requirement A7).
    const KINDS: &'static [&'static str];

    /// Returns the kind of this event, one of [`Event::KINDS`].
    fn kind(&self) -> &'static str;

    /// Builds the variant of `kind` from its stored payload. A missing payload is read as JSON `null`.
    ///
    /// # Errors
    /// [`DecodeError::UnknownKind`] when no variant has this kind, [`DecodeError::Payload`] when the
    /// payload does not fit the variant's type.
    fn decode(kind: &str, payload: Option<&[u8]>) -> Result<Self, DecodeError>;

    /// Returns the payload as the JSON to store.
    ///
    /// # Errors
    /// When the payload's own `Serialize` fails, for example for a map whose keys are not strings.
    fn encode(&self) -> Result<Box<RawValue>, serde_json::Error>;
}

/// Why a stored row cannot be read as an event of this program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No variant has this kind.
    #[error("no handler for kind {0:?}")]
    UnknownKind(String),
    /// The payload does not fit the kind's type. The message names the field and the place in the payload,
    /// never its content.
    #[error("payload does not fit kind {kind:?}: {what} at line {line}, column {column}")]
    Payload {
        /// The row's kind.
        kind: &'static str,
        /// What was wrong, such as ``grant.amount: invalid type: string, expected i64``, `syntax error` or
        /// `eof`. It quotes only names of the program's type.
        what: String,
        /// Line in the payload's text, from 1; 0 when the decoder does not know it.
        line: usize,
        /// Column in that line, from 1; 0 when the decoder does not know it.
        column: usize,
    },
    /// This program does not read the payload's version. If the version is newer, the event waits for a newer
    /// program. If it is older, [`events!`](crate::events) lists no lift for it.
    #[error("payload of kind {kind:?} has version {version}, and this program reads version {known}{}", if version < known { ", with no lift to it" } else { "" })]
    Version {
        /// The row's kind.
        kind: &'static str,
        /// The payload's version.
        version: u32,
        /// The version that this program knows.
        known: u32,
    },
}

impl DecodeError {
    /// Keeps of a decoding error what is safe to store and log: its text may quote the payload. `text` is
    /// what was decoded.
    pub fn payload(kind: &'static str, text: &[u8], error: &serde_json::Error) -> Self {
        let what = match error.classify() {
            Category::Data => unquoted(error).unwrap_or_else(|| "data error".to_owned()),
            Category::Eof => "eof".to_owned(),
            Category::Syntax | Category::Io => "syntax error".to_owned(),
        };
        let field = if error.is_data() {
            field_at(read_before(text, error))
        } else {
            None
        };
        let field = field.map_or(String::new(), |field| field + ": ");
        Self::Payload {
            kind,
            what: field + &what,
            line: error.line(),
            column: error.column(),
        }
    }

    /// Whether a newer program may be able to read the payload.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Version { version, known, .. } if version > known)
    }
}

/// What serde calls the value that it has not expected.
const UNEXPECTED: [&str; 14] = [
    "boolean",
    "integer",
    "floating point",
    "character",
    "string",
    "byte array",
    "null",
    "sequence",
    "map",
    "enum",
    "unit variant",
    "newtype variant",
    "tuple variant",
    "struct variant",
];

/// Returns the text of an error of JSON, without what it quotes of the document.
pub fn describe(error: &serde_json::Error) -> String {
    if !error.is_data() {
        return error.to_string();
    }
    let what = unquoted(error).unwrap_or_else(|| "data error".to_owned());
    match error.line() {
        0 => what,
        line => format!("{what} at line {line} column {}", error.column()),
    }
}

/// Returns the text of a data error without what it quotes of the payload, or `None` for a text that serde
/// has not written: it may quote anything.
fn unquoted(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let is_name = |name: &str| !name.is_empty() && !name.contains('`');
    for ours in ["missing field `", "duplicate field `"] {
        let name = text.strip_prefix(ours);
        if let Some(name) = name.and_then(|name| name.strip_suffix('`')) {
            return is_name(name).then(|| text.to_owned());
        }
    }
    for what in ["unknown variant", "unknown field"] {
        if text.starts_with(&format!("{what} `")) && text.contains("`, there are no ") {
            return Some(what.to_owned());
        }
    }
    // The value may contain these words too, but what was expected comes last.
    let (found, expected) = text.rsplit_once(", expected ")?;
    let found = if let Some(length) = found.strip_prefix("invalid length ") {
        length.parse::<u64>().ok().map(|_| found.to_owned())?
    } else if let Some((what, value)) = found.split_once(": ") {
        let mut known = UNEXPECTED.iter();
        let class = value
            .split(['"', '`'])
            .next()
            .unwrap_or_default()
            .trim_end();
        let known = known.any(|known| *known == class);
        (matches!(what, "invalid type" | "invalid value") && known)
            .then(|| format!("{what}: {class}"))?
    } else {
        let what = ["unknown variant", "unknown field"].into_iter();
        let mut what = what.filter(|what| found.starts_with(&format!("{what} `")));
        what.next()?.to_owned()
    };
    Some(format!("{found}, expected {expected}"))
}

/// Returns what the decoder had read of a text when it failed.
fn read_before<'a>(text: &'a [u8], error: &serde_json::Error) -> &'a [u8] {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    &text[..text.len().min(before + error.column())]
}

/// Returns the path of the field at which this beginning of a payload ends, such as `grant.amount`, without
/// places in lists. `None` at the outermost value, and where a key does not look like a field's name: the
/// keys of a map are content.
fn field_at(read: &[u8]) -> Option<String> {
    // A whole object was read before the error was found, such as that a field is missing.
    let (read, is_whole) = match read {
        [inside @ .., b'}'] => (inside, true),
        _ => (read, false),
    };
    let (mut keys, mut text, mut at) = (Vec::<&[u8]>::new(), &read[..0], 0);
    while let Some(byte) = read.get(at) {
        match (byte, keys.last_mut()) {
            (b'"', _) => {
                let start = at + 1;
                at = start;
                while read.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if read[at] == b'\\' { 2 } else { 1 };
                }
                text = &read[start..at.min(read.len())];
            }
            (b':', Some(key)) => *key = text,
            (b',', Some(key)) => *key = b"",
            (b'{' | b'[', _) => keys.push(b""),
            (b'}' | b']', _) => drop(keys.pop()),
            _ => {}
        }
        at += 1;
    }
    if is_whole {
        keys.pop();
    }
    let is_name = |key: &&[u8]| {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        key.len() <= 40 && key[0].is_ascii_alphabetic() && key.iter().all(plain)
    };
    let keys: Vec<&[u8]> = keys.into_iter().filter(|key| !key.is_empty()).collect();
    let path = std::str::from_utf8(&keys.join(&b'.')).ok()?.to_owned();
    (!keys.is_empty() && keys.iter().all(is_name)).then_some(path)
}

/// Declares the event enum: its variants, their kinds and their payload types.
///
/// ```
/// # use tidegate_core as tidegate;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// pub struct OrderPlaced { pub order_id: i64 }
///
/// tidegate::events! {
///     /// What the shop publishes.
///     #[derive(Debug)]
///     pub enum ShopEvent {
///         /// An order was placed.
///         OrderPlaced(OrderPlaced) = "order_placed",
///         /// A tick without a payload.
///         NightFell(()) = "night_fell",
///     }
/// }
/// ```
///
/// When the shape of a payload changes, give the kind a version. The version is stored in the payload's field
/// `tidegate_version`; a payload without that field has version 1. For each older version, a lift converts
/// that shape to the current one. An event of a newer version than the program knows waits for a newer
/// program and costs no attempt.
///
/// ```
/// # use tidegate_core as tidegate;
/// # use serde::{Deserialize, Serialize};
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// pub struct OrderPlaced { pub order_id: i64, pub currency: String }
///
/// #[derive(Deserialize)]
/// pub struct OrderPlacedV1 { pub order_id: i64 }
///
/// tidegate::events! {
///     #[derive(Debug, PartialEq)]
///     pub enum ShopEvent {
///         OrderPlaced(OrderPlaced) = "order_placed" version 2 {
///             1 => |old: OrderPlacedV1| OrderPlaced { order_id: old.order_id, currency: "EUR".to_owned() },
///         },
///     }
/// }
///
/// # use tidegate::Event as _;
/// let old = ShopEvent::decode("order_placed", Some(br#"{"order_id": 7}"#))?;
/// assert_eq!(old, ShopEvent::OrderPlaced(OrderPlaced { order_id: 7, currency: "EUR".to_owned() }));
/// # Ok::<(), tidegate::DecodeError>(())
/// ```
///
/// A program with several parts declares the events of each part beside it, and an enum of these enums:
///
/// ```
/// # use tidegate_core as tidegate;
/// tidegate::events! { #[derive(Debug)] pub enum ShopEvent { NightFell(()) = "night_fell" } }
/// tidegate::events! { #[derive(Debug)] pub enum StockEvent { Counted(u32) = "counted" } }
/// tidegate::events! { #[derive(Debug)] pub enum Event { Shop(ShopEvent), Stock(StockEvent) } }
///
/// # use tidegate::Event as _;
/// assert_eq!(Event::KINDS, ["night_fell", "counted"]);
/// assert!(matches!(Event::decode("counted", Some(b"7"))?, Event::Stock(StockEvent::Counted(7))));
/// # Ok::<(), tidegate::DecodeError>(())
/// ```
///
/// Two variants with one kind do not compile (B4), also in two parts of a program:
///
/// ```compile_fail,E0080
/// # use tidegate_core as tidegate;
/// tidegate::events! {
///     pub enum ShopEvent { Opened(()) = "opened", Reopened(u32) = "opened" }
/// }
/// ```
///
/// A kind has 1 to 100 characters of `a-z`, `0-9`, `_`, `.` and `-`; another one does not compile:
///
/// ```compile_fail,E0080
/// # use tidegate_core as tidegate;
/// tidegate::events! { #[derive(Debug)] pub enum ShopEvent { Opened(()) = "Opened today" } }
/// ```
#[macro_export]
macro_rules! events {
    ($(#[$attr:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_attr:meta])* $variant:ident($payload:ty) = $kind:literal
            $(version $version:literal { $($old:literal => $lift:expr),* $(,)? })?),+ $(,)?
    }) => {
        $(#[$attr])*
        $vis enum $name { $($(#[$variant_attr])* $variant($payload)),+ }

        const _: () = $crate::export::check_kinds(<$name as $crate::Event>::KINDS);

        impl $crate::Event for $name {
            const KINDS: &'static [&'static str] = &[$($kind),+];

            fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind),+ }
            }

            fn decode(kind: &str, payload: Option<&[u8]>) -> Result<Self, $crate::DecodeError> {
                match kind {
                    $($kind => $crate::export::decode($kind, payload, $crate::events!(@version $($version)?), |_old, _text| {
                        $($(if _old == $old {
                            const { assert!($old > 0 && $old < $version, "a lift is from an older version") };
                            return Some($crate::export::lift(_text, $lift));
                        })*)?
                        None
                    }).map(Self::$variant),)+
                    unknown => Err($crate::DecodeError::UnknownKind(unknown.to_owned())),
                }
            }

            fn encode(&self) -> Result<Box<$crate::export::RawValue>, $crate::export::serde_json::Error> {
                match self { $(Self::$variant(payload) => $crate::export::encode(payload, $crate::events!(@version $($version)?))),+ }
            }
        }
    };
    ($(#[$attr:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_attr:meta])* $variant:ident($part:ty)),+ $(,)?
    }) => {
        $(#[$attr])*
        $vis enum $name { $($(#[$variant_attr])* $variant($part)),+ }

        const _: () = $crate::export::check_kinds(<$name as $crate::Event>::KINDS);

        impl $crate::Event for $name {
            const KINDS: &'static [&'static str] = &$crate::export::joined::<{ 0 $(+ <$part as $crate::Event>::KINDS.len())+ }>(
                &[$(<$part as $crate::Event>::KINDS),+],
            );

            fn kind(&self) -> &'static str {
                match self { $(Self::$variant(event) => $crate::Event::kind(event)),+ }
            }

            fn decode(kind: &str, payload: Option<&[u8]>) -> Result<Self, $crate::DecodeError> {
                $(if <$part as $crate::Event>::KINDS.contains(&kind) {
                    return <$part as $crate::Event>::decode(kind, payload).map(Self::$variant);
                })+
                Err($crate::DecodeError::UnknownKind(kind.to_owned()))
            }

            fn encode(&self) -> Result<Box<$crate::export::RawValue>, $crate::export::serde_json::Error> {
                match self { $(Self::$variant(event) => $crate::Event::encode(event)),+ }
            }
        }
    };
    (@version) => { 1 };
    (@version $version:literal) => { $version };
}

/// Joins the kinds of all parts of a program. `N` is how many there are.
pub const fn joined<const N: usize>(parts: &[&[&'static str]]) -> [&'static str; N] {
    let mut all = [""; N];
    let (mut part, mut of_part, mut at) = (0, 0, 0);
    while at < N {
        if of_part == parts[part].len() {
            (part, of_part) = (part + 1, 0);
            continue;
        }
        all[at] = parts[part][of_part];
        (of_part, at) = (of_part + 1, at + 1);
    }
    all
}

/// Does not compile if a kind has no allowed name ([`is_kind`]), or two kinds have the same.
///
/// # Panics
/// In these cases, while the program is compiled.
pub const fn check_kinds(kinds: &[&str]) {
    let mut at = 0;
    while at < kinds.len() {
        assert!(
            is_kind(kinds[at]),
            "a kind must have 1 to 100 characters of a-z, 0-9, _ . and -"
        );
        let mut before = 0;
        while before < at {
            assert!(
                !are_alike(kinds[before].as_bytes(), kinds[at].as_bytes()),
                "two variants have the same kind"
            );
            before += 1;
        }
        at += 1;
    }
}

/// Whether a program may have a kind of this name: 1 to 100 characters of `[a-z0-9_.-]`.
#[must_use]
pub const fn is_kind(name: &str) -> bool {
    let name = name.as_bytes();
    let mut at = 0;
    while at < name.len() {
        if !matches!(name[at], b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-') {
            return false;
        }
        at += 1;
    }
    !name.is_empty() && name.len() <= 100
}

const fn are_alike(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The payload field that holds the version.
const VERSION: &str = "tidegate_version";

/// Decodes a payload of the kind's current version `known`, or uses `lift` to convert an older version to it.
///
/// # Errors
/// [`DecodeError`] says why the text is no such payload.
pub fn decode<P: DeserializeOwned>(
    kind: &'static str,
    payload: Option<&[u8]>,
    known: u32,
    lift: impl FnOnce(u32, &[u8]) -> Option<Result<P, serde_json::Error>>,
) -> Result<P, DecodeError> {
    let text = payload.unwrap_or(b"null");
    let marked = marked(text).map_err(|error| {
        let what = unquoted(&error).unwrap_or_else(|| "data error".to_owned());
        let what = format!("{VERSION}: {what}");
        let (line, column) = (error.line(), error.column());
        DecodeError::Payload {
            kind,
            what,
            line,
            column,
        }
    })?;
    let (version, text) = marked
        .as_ref()
        .map_or((1, text), |(version, text)| (*version, text.as_slice()));
    let refused = |error| DecodeError::payload(kind, text, &error);
    if version == known {
        return serde_json::from_slice(text).map_err(refused);
    }
    let lifted = if version < known {
        lift(version, text)
    } else {
        None
    };
    match lifted {
        Some(lifted) => lifted.map_err(refused),
        None => Err(DecodeError::Version {
            kind,
            version,
            known,
        }),
    }
}

/// Returns the version in a payload, and the payload without that field, because a type may refuse unknown
/// fields.
fn marked(text: &[u8]) -> Result<Option<(u32, Vec<u8>)>, serde_json::Error> {
    // Nearly every payload has version 1 and does not say so. It must not be parsed twice.
    if !std::str::from_utf8(text).is_ok_and(|text| text.contains(VERSION)) {
        return Ok(None);
    }
    let Ok(mut fields) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(text) else {
        // This is no object, or it cannot be parsed. The actual decoding reports that.
        return Ok(None);
    };
    let Some(version) = fields.remove(VERSION) else {
        return Ok(None);
    };
    let version: NonZeroU32 = serde_json::from_str(version.get())?;
    Ok(Some((version.get(), serde_json::to_vec(&fields)?)))
}

/// Decodes a payload of an older version and lifts it.
///
/// # Errors
/// When the text is no payload of the old version.
pub fn lift<O: DeserializeOwned, P>(
    text: &[u8],
    lift: impl FnOnce(O) -> P,
) -> Result<P, serde_json::Error> {
    serde_json::from_slice(text).map(lift)
}

/// Encodes a payload for storage. Every version but the first is stored with the payload.
///
/// # Errors
/// When the payload cannot be written as JSON.
pub fn encode(payload: &impl Serialize, version: u32) -> Result<Box<RawValue>, serde_json::Error> {
    let raw = serde_json::value::to_raw_value(payload)?;
    if version == 1 {
        return Ok(raw);
    }
    let Some(fields) = raw.get().strip_prefix('{') else {
        let why = "a payload with versions must be a JSON object";
        return Err(serde::ser::Error::custom(why));
    };
    let comma = if fields == "}" { "" } else { "," };
    RawValue::from_string(format!("{{\"{VERSION}\":{version}{comma}{fields}"))
}

/// What can be published, and emitted as a follow-up: a value of the program's enum, or a [`NewEvent`], which
/// has options too. It is implemented for both, and for nothing else.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "must be a value of an enum of `tidegate::events!`, or a `NewEvent`",
    note = "a payload is not enough: wrap it in its variant, such as `ShopEvent::OrderPlaced(payload)`"
)]
pub trait Publishable {
    /// Returns the event as it is to be published.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the payload's `Serialize` fails.
    #[doc(hidden)]
    fn as_new(&self) -> Result<Cow<'_, NewEvent>>;
}

impl<E: Event> Publishable for E {
    fn as_new(&self) -> Result<Cow<'_, NewEvent>> {
        NewEvent::of(self).map(Cow::Owned)
    }
}

impl Publishable for NewEvent {
    fn as_new(&self) -> Result<Cow<'_, NewEvent>> {
        Ok(Cow::Borrowed(self))
    }
}

/// An event to publish, with its options. Build it from an enum value with [`NewEvent::of`], or from a kind
/// and JSON text with [`NewEvent::raw`].
///
/// Follow-ups of an unfinished event are stored as this type's JSON.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[must_use = "publish it, or emit it"]
pub struct NewEvent {
    /// The kind, under which its handlers are found.
    pub kind: String,
    /// The payload as JSON text; `None` for an event without one.
    pub payload: Option<Box<RawValue>>,
    pub(crate) group_key: Option<String>,
    pub(crate) dedup_key: Option<String>,
    pub(crate) correlation_id: Option<String>,
    /// How long it waits before it is ready: see [`NewEvent::delay`].
    pub delay: Option<Duration>,
    pub(crate) expires_at: Option<SystemTime>,
    pub(crate) expires_in: Option<Duration>,
    /// See [`NewEvent::max_attempts`].
    pub max_attempts: Option<u16>,
    /// See [`NewEvent::traceparent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Never true for a follow-up.
    #[serde(skip)]
    pub replaces: bool,
}

impl NewEvent {
    /// The largest payload, in bytes.
    pub const PAYLOAD_LIMIT: usize = 1_048_576;

    /// How many attempts an event may have.
    pub const MAX_ATTEMPTS: RangeInclusive<u16> = 1..=1000;

    /// Creates an event from a value of the program's enum.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the payload's `Serialize` fails.
    pub fn of(event: &impl Event) -> Result<Self> {
        let payload = event.encode();
        let payload = payload.map_err(|error| Error::Invalid(format!("payload: {error}")))?;
        Ok(Self::raw(event.kind(), Some(payload)))
    }

    /// Creates an event from a kind and JSON text, for tools that do not know the enum.
    pub fn raw(kind: impl Into<String>, payload: Option<Box<RawValue>>) -> Self {
        Self {
            kind: kind.into(),
            payload,
            ..Self::default()
        }
    }

    /// Puts the event into a group. Events of one group are handled one at a time, in the order in which
    /// their publishes committed (requirement B10). The key has 1 to 200 characters.
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.group_key = Some(key.into());
        self
    }

    /// Sets a deduplication key of 1 to 200 characters. While an event of the same kind and key is live,
    /// publishing another one returns the id of the first instead. [`dedup_key`] derives a key.
    pub fn dedup(mut self, key: impl Into<String>) -> Self {
        self.dedup_key = Some(key.into());
        self
    }

    /// Replaces the live event that has the same [deduplication key](NewEvent::dedup), if that event still
    /// waits for its first attempt. Payload, delay, deadline, correlation id, attempt limit and trace are
    /// replaced. The id, the group and the place in line stay. An event that has started is kept;
    /// [`Published::replaced`](crate::queue::Published) reports which of the two happened. With a delay this
    /// is a debounce. Not allowed in batches or for follow-ups.
    pub fn replace(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// Ties the event to a business object. Follow-ups inherit the id (A6), which has 1 to 200 characters.
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// Handles the event no earlier than this long after the publish, by the database's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Sets a deadline for the start (B13). An event that has not started by then ends as FAILED with the
    /// code `expired`.
    pub fn start_before(mut self, deadline: SystemTime) -> Self {
        self.expires_at = Some(deadline);
        self
    }

    /// Like [`NewEvent::start_before`], but this long after the publish, by the database's clock.
    pub fn start_within(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    /// Sets the number of attempts before the event fails, 1 to 1000 (B6). Without this call, the database's
    /// default applies.
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets the W3C trace context of the publish, in the form of its HTTP header. The event's handlers
    /// continue that trace. Follow-ups take the trace of their handler without this call.
    pub fn traceparent(mut self, header: impl Into<String>) -> Self {
        self.traceparent = Some(header.into());
        self
    }

    /// Sets what may be given or not: `event.set_if(key, NewEvent::group)`.
    pub fn set_if<T>(self, given: Option<T>, set: impl FnOnce(Self, T) -> Self) -> Self {
        match given {
            Some(value) => set(self, value),
            None => self,
        }
    }

    /// Returns the kind under which the event will be stored.
    pub fn kind(&self) -> &str {
        &self.kind
    }
}

impl NewEvent {
    /// Checks the fields against the limits of the schema, as far as that is possible without the database.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what is allowed.
    pub fn check(&self) -> Result<()> {
        let length = |field: &str, value: Option<&str>, limit: usize| match value
            .map(|text| text.chars().count())
        {
            Some(count) if count == 0 || count > limit => Err(Error::Invalid(format!(
                "{field}: must have 1 to {limit} characters, got {count}"
            ))),
            _ if value.is_some_and(|text| text.contains('\0')) => Err(Error::Invalid(format!(
                "{field}: must have no NUL character"
            ))),
            _ => Ok(()),
        };
        if self.replaces && self.dedup_key.is_none() {
            let text = "dedup_key: must be given with on_duplicate replace, got none";
            return Err(Error::Invalid(text.to_owned()));
        }
        length("kind", Some(&self.kind), 100)?;
        length("group_key", self.group_key.as_deref(), 200)?;
        length("dedup_key", self.dedup_key.as_deref(), 200)?;
        length("correlation_id", self.correlation_id.as_deref(), 200)?;
        if let Some(attempts) = self.max_attempts {
            in_range("max_attempts", attempts, &Self::MAX_ATTEMPTS).map_err(Error::Invalid)?;
        }
        let traceparent = self.traceparent.as_deref();
        if traceparent.is_some_and(|header| TraceContext::parse(header).is_none()) {
            return Err(Error::Invalid(
                "traceparent: must be a W3C trace context such as 00-<32 hex digits>-<16 hex digits>-01"
                    .to_owned(),
            ));
        }
        let text = self.payload.as_ref().map_or("", |payload| payload.get());
        if text.len() > Self::PAYLOAD_LIMIT {
            return Err(Error::Invalid(format!(
                "payload: must have at most {} bytes, got {}",
                Self::PAYLOAD_LIMIT,
                text.len()
            )));
        }
        if has_nul_escape(text) {
            return Err(Error::Invalid("payload: must have no \\u0000".to_owned()));
        }
        Ok(())
    }
}

/// Whether JSON text contains the escape of a NUL character, which jsonb refuses.
pub fn has_nul_escape(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        if rest[at..].starts_with("\\u0000") {
            return true;
        }
        // In valid JSON the character after a backslash is ASCII. Skip it, because it may be a backslash
        // itself.
        rest = rest.get(at + 2..).unwrap_or("");
    }
    false
}

/// Derives a deduplication key (requirement E2). It is the SHA-256, in hex, of the kind, the canonical
/// payload and any further fields, such as the id of the user who makes the request. In the canonical
/// payload, object keys are sorted and there is no white space.
///
/// # Errors
/// When the payload's `Serialize` fails.
pub fn dedup_key(
    kind: &str,
    payload: &impl Serialize,
    fields: &[&str],
) -> Result<String, serde_json::Error> {
    let mut canonical = serde_json::to_value(payload)?;
    canonical.sort_all_objects();
    let canonical = canonical.to_string();
    let mut hash = Sha256::new();
    for part in [kind, &canonical].into_iter().chain(fields.iter().copied()) {
        // The length in front distinguishes ("ab", "c") from ("a", "bc").
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    Ok(hex(&hash.finalize()))
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digits = |text: String, byte: &u8| text + &format!("{byte:02x}");
    bytes.iter().fold(String::new(), digits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    events! {
        #[derive(Debug, PartialEq)]
        enum Example {
            Named(Vec<u8>) = "named",
            Empty(()) = "empty",
            Changed(Pieces) = "changed" version 3 {
                1 => |old: u8| Pieces { count: old.into(), unit: "piece".to_owned() },
                2 => lifted,
            },
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pieces {
        count: u32,
        unit: String,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct PiecesV2 {
        count: u32,
    }

    fn lifted(PiecesV2 { count }: PiecesV2) -> Pieces {
        Pieces {
            count,
            unit: "pair".to_owned(),
        }
    }

    fn changed(count: u32, unit: &str) -> Example {
        Example::Changed(Pieces {
            count,
            unit: unit.to_owned(),
        })
    }

    #[test]
    fn an_older_payload_is_lifted_and_a_newer_one_is_told() {
        let decode = |text: &str| Example::decode("changed", Some(text.as_bytes()));
        assert_eq!(decode("7").unwrap(), changed(7, "piece"));
        let second = r#"{"count": 7, "tidegate_version": 2}"#;
        assert_eq!(decode(second).unwrap(), changed(7, "pair"));
        let third = r#" { "unit": "\"tidegate_version\"", "tidegate_version" : 3, "count": 7}"#;
        assert_eq!(decode(third).unwrap(), changed(7, "\"tidegate_version\""));
        let newer = decode(r#"{"tidegate_version": 4}"#).unwrap_err();
        assert!(newer.is_newer(), "{newer}");
        assert!(
            newer.to_string().contains("version 4") && newer.to_string().contains("version 3"),
            "{newer}"
        );
    }

    #[test]
    fn a_version_that_nobody_can_read_is_told_and_fails() {
        let decode = |kind, text: &str| Example::decode(kind, Some(text.as_bytes())).unwrap_err();
        for text in [
            r#"{"count": 7, "unit": "x"}"#,
            r#"{"tidegate_version": 2, "count": "many"}"#,
            r#"{"tidegate_version": "3", "count": 7, "unit": "x"}"#,
            r#"{"tidegate_version": 0}"#,
            r#"{"tidegate_version": -1}"#,
            r#"{"tidegate_version": 4.5}"#,
        ] {
            let error = decode("changed", text);
            assert!(!error.is_newer(), "{text}: {error}");
        }
        // A kind that declares no versions has version 1.
        assert!(decode("named", r#"{"tidegate_version": 2}"#).is_newer());
    }

    #[test]
    fn a_version_is_stored_with_its_payload_and_the_first_is_not() {
        let stored = changed(7, "pair").encode().unwrap();
        assert_eq!(
            stored.get(),
            r#"{"tidegate_version":3,"count":7,"unit":"pair"}"#
        );
        assert_eq!(Example::Named(vec![1]).encode().unwrap().get(), "[1]");
        let error = encode(&[1], 2).unwrap_err().to_string();
        assert!(error.contains("must be a JSON object"), "{error}");
    }

    #[test]
    fn a7_every_variant_survives_the_round_trip() {
        for event in [
            Example::Named(vec![1, 2]),
            Example::Empty(()),
            changed(7, "pair"),
        ] {
            let stored = event.encode().unwrap();
            assert_eq!(
                Example::decode(event.kind(), Some(stored.get().as_bytes())).unwrap(),
                event
            );
            assert!(Example::KINDS.contains(&event.kind()));
        }
    }

    #[test]
    fn b2_a_missing_payload_is_null() {
        assert_eq!(Example::decode("empty", None).unwrap(), Example::Empty(()));
    }

    #[test]
    fn a8_decode_errors_name_the_place_and_never_the_content() {
        let error = Example::decode("named", Some(br#""the secret""#))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("named") && !error.contains("secret"),
            "{error}"
        );
        assert!(
            matches!(Example::decode("other", None), Err(DecodeError::UnknownKind(kind)) if kind == "other")
        );
    }

    events! {
        #[derive(Debug)]
        enum Nested {
            Order(Order) = "order",
        }
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        grant: Option<Amount>,
        lines: Option<Vec<Amount>>,
        by_name: Option<BTreeMap<String, Amount>>,
        pair: Option<(u8, u8)>,
        state: Option<OrderState>,
        day: Option<std::net::IpAddr>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Amount {
        amount: i64,
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum OrderState {
        Open,
        Closed,
    }

    /// Payloads of an order, and what is told of them.
    const UNREADABLE: &[(&str, &str)] = &[
        (
            r#"{"grant": {"amount": "canary"}}"#,
            "grant.amount: invalid type: string, expected i64",
        ),
        (
            r#"{"grant": {"amount": "canary\", expected canary"}}"#,
            "grant.amount: invalid type: string, expected i64",
        ),
        (
            "{\"lines\": [{\"amount\": 1},\n {\"amount\": 777.5}]}",
            "lines.amount: invalid type: floating point, expected i64",
        ),
        (
            r#"{"grant": {"amount": 99999999999999999999777}}"#,
            "grant.amount: invalid type: floating point, expected i64",
        ),
        (
            r#"{"grant": {"amount": 18446744073709551615}}"#,
            "grant.amount: invalid value: integer, expected i64",
        ),
        (
            r#"{"grant": {"canary": "}"}}"#,
            "grant: missing field `amount`",
        ),
        (
            r#"{"grant": {"amount": 1, "amount": 777}}"#,
            "grant: duplicate field `amount`",
        ),
        (
            r#"{"grant": ["canary"]}"#,
            "grant: invalid type: string, expected i64",
        ),
        (
            r#"{"pair": [7]}"#,
            "pair: invalid length 1, expected a tuple of size 2",
        ),
        (
            r#"{"state": "canary`, expected canary"}"#,
            "state: unknown variant, expected `open` or `closed`",
        ),
        (
            r#"{"state": {"canary": 7}}"#,
            "state: unknown variant, expected `open` or `closed`",
        ),
        (
            r#"{"pair": [1, 2], "canary": 7}"#,
            "unknown field, expected one of `grant`, `lines`, `by_name`, `pair`, `state`, `day`",
        ),
        (
            r#"{"by_name": {"Canary Person": {"amount": null}}}"#,
            "invalid type: null, expected i64",
        ),
        (r#"{"day": "canary"}"#, "day: data error"),
        (
            r#"["canary"]"#,
            "invalid type: string, expected struct Amount",
        ),
        (r#"{"grant": {"amount": canary"#, "syntax error"),
        (r#"{"grant": {"amount": 777"#, "eof"),
    ];

    #[test]
    fn i9_a_decode_error_names_the_field_and_what_was_expected_and_quotes_nothing() {
        for (text, what) in UNREADABLE {
            let error = Nested::decode("order", Some(text.as_bytes())).unwrap_err();
            let told = error.to_string();
            let begins = format!("payload does not fit kind \"order\": {what} at line ");
            assert!(told.starts_with(&begins), "{text}: {told}");
            let quoted = ["canary", "Canary", "777"];
            assert!(!quoted.iter().any(|part| told.contains(part)), "{told}");
        }
    }

    #[test]
    fn a_text_that_only_looks_like_serdes_is_dropped() {
        for text in [
            "invalid type: canary, expected canary",
            "canary: string, expected canary",
            "invalid length canary, expected canary",
            "missing field `a` of `canary`",
            "canary",
        ] {
            let error: serde_json::Error = serde::de::Error::custom(text);
            assert_eq!(unquoted(&error), None, "{text}");
        }
        let error: serde_json::Error =
            serde::de::Error::custom("unknown field `, expected canary`, there are no fields");
        assert_eq!(unquoted(&error).unwrap(), "unknown field");
    }

    #[test]
    fn a_kind_has_1_to_100_plain_characters() {
        let longest = "a".repeat(100);
        for good in ["order_placed", "issuings-ai-checks", "a.7", &longest] {
            assert!(is_kind(good), "{good}");
        }
        let too_long = "a".repeat(101);
        for bad in ["", "Opened", "a b", "é", "a:b", &too_long] {
            assert!(!is_kind(bad), "{bad}");
        }
    }

    #[test]
    fn dedup_key_ignores_field_order_and_tells_field_borders_apart() {
        let one = dedup_key("k", &json!({"a": 1, "b": [2]}), &["ab", "c"]).unwrap();
        let two = dedup_key("k", &json!({"b": [2], "a": 1}), &["ab", "c"]).unwrap();
        let other = dedup_key("k", &json!({"a": 1, "b": [2]}), &["a", "bc"]).unwrap();
        assert_eq!(one, two);
        assert_ne!(one, other);
        assert_eq!(one.len(), 64);
    }
}
