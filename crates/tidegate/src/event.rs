//! Owns the vocabulary of events: the enum a crate brings, an event about to be published, an event
//! in hand under a lease. It knows neither SQL nor handlers. The one surprise: an event's kind and
//! its payload type are tied together in one place, [`events!`](crate::events), so a kind without a
//! variant, or a variant without a kind, does not compile.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::config::in_range;
use crate::error::Error;
use crate::trace::TraceContext;

/// The closed set of events a program publishes and handles. Made by [`events!`](crate::events).
pub trait Event: Sized + Send + Sync + 'static {
    /// Every kind, as stored in the `kind` column (requirement A7).
    const KINDS: &'static [&'static str];

    /// The kind of this event.
    fn kind(&self) -> &'static str;

    /// Builds the variant of `kind` from its stored payload; a missing payload is JSON `null`.
    ///
    /// # Errors
    /// [`DecodeError::UnknownKind`] when no variant has this kind, [`DecodeError::Payload`] when the
    /// payload does not fit the variant's type.
    fn decode(kind: &str, payload: Option<&[u8]>) -> Result<Self, DecodeError>;

    /// The payload as the JSON to store.
    ///
    /// # Errors
    /// When the payload's own `Serialize` fails, for example on a map with keys that are no strings.
    fn encode(&self) -> Result<Box<RawValue>, serde_json::Error>;
}

/// Why a stored row is no event of this program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No variant has this kind.
    #[error("no handler for kind {0:?}")]
    UnknownKind(String),
    /// The payload does not fit the kind's type. The message names the place, never the content.
    #[error("payload does not fit kind {kind:?}: {category} error at line {line}, column {column}")]
    Payload {
        /// The row's kind.
        kind: &'static str,
        /// What was wrong: `data` (wrong type or missing field), `syntax` or `eof`.
        category: &'static str,
        /// Line of the payload's text, from 1; 0 when the decoder does not know.
        line: usize,
        /// Column of that line, from 1; 0 when the decoder does not know.
        column: usize,
    },
}

impl DecodeError {
    /// Keeps the place and class of a decoding fault and drops its text, which may quote the payload.
    #[must_use]
    pub fn payload(kind: &'static str, error: &serde_json::Error) -> Self {
        let category = match error.classify() {
            serde_json::error::Category::Data => "data",
            serde_json::error::Category::Eof => "eof",
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => "syntax",
        };
        Self::Payload {
            kind,
            category,
            line: error.line(),
            column: error.column(),
        }
    }
}

/// Declares the event enum: variants, their kinds, their payload types.
///
/// ```
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
#[macro_export]
macro_rules! events {
    ($(#[$attr:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_attr:meta])* $variant:ident($payload:ty) = $kind:literal),+ $(,)?
    }) => {
        $(#[$attr])*
        $vis enum $name { $($(#[$variant_attr])* $variant($payload)),+ }

        impl $crate::Event for $name {
            const KINDS: &'static [&'static str] = &[$($kind),+];

            fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind),+ }
            }

            fn decode(kind: &str, payload: Option<&[u8]>) -> Result<Self, $crate::DecodeError> {
                match kind {
                    $($kind => $crate::export::serde_json::from_slice(payload.unwrap_or(b"null"))
                        .map(Self::$variant)
                        .map_err(|error| $crate::DecodeError::payload($kind, &error)),)+
                    unknown => Err($crate::DecodeError::UnknownKind(unknown.to_owned())),
                }
            }

            fn encode(&self) -> Result<Box<$crate::export::RawValue>, $crate::export::serde_json::Error> {
                match self { $(Self::$variant(payload) => $crate::export::to_raw_value(payload)),+ }
            }
        }
    };
}

/// An event to publish, with its options. Built from an enum value with [`NewEvent::of`], from raw
/// parts with [`NewEvent::raw`].
///
/// Its serialized form is how follow-ups are kept with an event that is not finished yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewEvent {
    pub(crate) kind: String,
    pub(crate) payload: Option<Box<RawValue>>,
    pub(crate) group_key: Option<String>,
    pub(crate) dedup_key: Option<String>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) delay: Option<Duration>,
    pub(crate) expires_at: Option<SystemTime>,
    pub(crate) expires_in: Option<Duration>,
    pub(crate) max_attempts: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    /// Of a follow-up it is never true.
    #[serde(skip)]
    pub(crate) replaces: bool,
}

impl NewEvent {
    /// How many attempts an event may be given.
    pub const MAX_ATTEMPTS: RangeInclusive<u16> = 1..=1000;

    /// An event of the program's own enum.
    ///
    /// # Errors
    /// When the payload's `Serialize` fails.
    pub fn of(event: &impl Event) -> Result<Self, serde_json::Error> {
        Ok(Self::raw(event.kind(), Some(event.encode()?)))
    }

    /// An event by kind and JSON text, for tools that do not know the enum.
    #[must_use]
    pub fn raw(kind: impl Into<String>, payload: Option<Box<RawValue>>) -> Self {
        Self {
            kind: kind.into(),
            payload,
            group_key: None,
            dedup_key: None,
            correlation_id: None,
            delay: None,
            expires_at: None,
            expires_in: None,
            max_attempts: None,
            traceparent: None,
            replaces: false,
        }
    }

    /// Events of one group are handled one at a time, in the order their publishes committed
    /// (requirement B10). 1 to 200 characters.
    #[must_use]
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.group_key = Some(key.into());
        self
    }

    /// While an event of this kind and key is live, publishing another returns the first one's id
    /// instead. 1 to 200 characters; [`dedup_key`] derives one.
    #[must_use]
    pub fn dedup(mut self, key: impl Into<String>) -> Self {
        self.dedup_key = Some(key.into());
        self
    }

    /// While the live event with the same [deduplication key](NewEvent::dedup) waits for its first attempt, this one takes its
    /// place: payload, delay, deadline, correlation id, limit of attempts and trace are replaced; id, group and place in line
    /// stay. One that has begun is kept, and [`Published::replaced`](crate::Published) tells. With a delay this is a debounce. Not for
    /// batches and follow-ups.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// Ties the event to a business object; follow-ups inherit it (A6). 1 to 200 characters.
    #[must_use]
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// Not handled before this long after the publish, by the database's clock.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Started before this instant or never (B13): past it the event ends FAILED, code `expired`.
    #[must_use]
    pub fn start_before(mut self, deadline: SystemTime) -> Self {
        self.expires_at = Some(deadline);
        self
    }

    /// As [`NewEvent::start_before`], this long after the publish by the database's clock.
    #[must_use]
    pub fn start_within(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    /// Attempts before the event is given up, 1 to 1000 (B6); the database's default otherwise.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// The W3C trace context it is published under, as an HTTP header carries it: its handlers
    /// continue that trace. Follow-ups of a handler have the handler's by themselves.
    #[must_use]
    pub fn traceparent(mut self, header: impl Into<String>) -> Self {
        self.traceparent = Some(header.into());
        self
    }

    /// The kind it will be stored under.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }
}

impl NewEvent {
    /// Checks what can be checked without the database, by the limits of the schema.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
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
        if text.len() > PAYLOAD_LIMIT {
            return Err(Error::Invalid(format!(
                "payload: must have at most {PAYLOAD_LIMIT} bytes, got {}",
                text.len()
            )));
        }
        if has_nul_escape(text) {
            return Err(Error::Invalid("payload: must have no \\u0000".to_owned()));
        }
        Ok(())
    }
}

/// Largest payload, in bytes.
pub const PAYLOAD_LIMIT: usize = 1_048_576;

/// Whether JSON text holds the escape of a NUL character, which jsonb refuses.
pub(crate) fn has_nul_escape(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        if rest[at..].starts_with("\\u0000") {
            return true;
        }
        // The character behind a backslash is ASCII in valid JSON; skip it, it may be a backslash.
        rest = rest.get(at + 2..).unwrap_or("");
    }
    false
}

/// Derives a deduplication key: SHA-256, in hex, over the kind, the canonical payload (object keys
/// sorted, no white space) and any further fields, such as the user who asks (requirement E2).
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
        // The length in front keeps ("ab", "c") and ("a", "bc") apart.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let bytes = hash.finalize();
    let hex = |text: String, byte: &u8| text + &format!("{byte:02x}");
    Ok(bytes.iter().fold(String::new(), hex))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    events! {
        #[derive(Debug, PartialEq)]
        enum Sample {
            Named(Vec<u8>) = "named",
            Empty(()) = "empty",
        }
    }

    #[test]
    fn a7_every_variant_survives_the_round_trip() {
        for event in [Sample::Named(vec![1, 2]), Sample::Empty(())] {
            let stored = event.encode().unwrap();
            assert_eq!(
                Sample::decode(event.kind(), Some(stored.get().as_bytes())).unwrap(),
                event
            );
            assert!(Sample::KINDS.contains(&event.kind()));
        }
    }

    #[test]
    fn b2_a_missing_payload_is_null() {
        assert_eq!(Sample::decode("empty", None).unwrap(), Sample::Empty(()));
    }

    #[test]
    fn a8_decode_errors_name_the_place_and_never_the_content() {
        let error = Sample::decode("named", Some(br#""the secret""#))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("named") && !error.contains("secret"),
            "{error}"
        );
        assert!(
            matches!(Sample::decode("other", None), Err(DecodeError::UnknownKind(kind)) if kind == "other")
        );
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
