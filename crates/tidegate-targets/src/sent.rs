//! Owns what a target receives of an event, whatever its form.

use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tidegate::Context;
use uuid::Builder;

/// One event in the form in which the requests of a target hold it.
pub(crate) struct Item {
    /// Which event it is, for the target: see [`Sent::message_id`].
    pub id: String,
    /// JSON text.
    pub text: String,
}

/// An event as targets receive it.
pub(crate) struct Sent<'a> {
    pub kind: &'a str,
    /// JSON text.
    pub payload: &'a str,
    pub event_id: i64,
    pub attempt: u32,
    /// Microseconds since 1970, when it was published.
    pub published: u128,
    pub group: Option<&'a str>,
    pub correlation_id: Option<&'a str>,
    pub traceparent: Option<String>,
}

impl<'a> Sent<'a> {
    pub(crate) fn new(ctx: &'a Context, kind: &'a str, payload: &'a str) -> Self {
        let published = ctx.created_at().duration_since(UNIX_EPOCH);
        Self {
            kind,
            payload,
            event_id: ctx.event_id(),
            attempt: ctx.attempt(),
            published: published.unwrap_or_default().as_micros(),
            group: ctx.group_key(),
            correlation_id: ctx.correlation_id(),
            traceparent: ctx.trace().map(ToString::to_string),
        }
    }

    /// Returns a key that is the same in every attempt, and another one for a replay and in another database:
    /// the one that `poll()` returns.
    pub(crate) fn idempotency_key(&self) -> String {
        format!("tidegate-{}-{}", self.event_id, self.published)
    }

    /// Returns the key as a UUID, because receivers expect one.
    pub(crate) fn message_id(&self) -> String {
        named(&self.idempotency_key())
    }

    /// Returns the id of the event as a number that sorts as text.
    pub(crate) fn sequence(&self) -> String {
        format!("{:020}", self.event_id)
    }

    /// Returns the attributes of a message: the kind, the ids, the trace.
    pub(crate) fn attributes(&self) -> Vec<(&'static str, String)> {
        let mut attributes = vec![
            ("kind", self.kind.to_owned()),
            ("tidegate_id", self.event_id.to_string()),
            ("idempotency_key", self.idempotency_key()),
        ];
        attributes.extend(
            self.correlation_id
                .map(|id| ("correlation_id", id.to_owned())),
        );
        attributes.extend(self.traceparent.clone().map(|trace| ("traceparent", trace)));
        attributes
    }
}

/// Returns the UUID of a name: version 8, from its SHA-256.
pub(crate) fn named(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// Returns the time in milliseconds since 1970.
pub(crate) fn now_ms() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis()
}

/// Returns the ids of the items of a request, and its body: the items between two texts. Their own texts are
/// freed, because many requests are under way at once.
pub(crate) fn packed(items: Vec<Item>, before: &str, after: &str) -> (Vec<String>, String) {
    let (ids, texts): (Vec<_>, Vec<_>) = items.into_iter().map(|item| (item.id, item.text)).unzip();
    (ids, format!("{before}{}{after}", texts.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sent;

    #[test]
    fn an_id_is_the_same_in_every_attempt_and_another_for_another_event() {
        let id = |event: &Sent<'_>| event.message_id();
        let first = sent("1", None);
        assert_eq!(
            id(&first),
            id(&Sent {
                attempt: 9,
                ..sent("2", None)
            })
        );
        assert_ne!(
            id(&first),
            id(&Sent {
                event_id: 8,
                ..sent("1", None)
            })
        );
        assert_ne!(
            id(&first),
            id(&Sent {
                published: 1,
                ..sent("1", None)
            })
        );
        assert_eq!(id(&first).len(), 36);
    }
}
