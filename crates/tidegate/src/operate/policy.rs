//! Requests to handle a kind's events differently from what its program declares.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::named;
use crate::config::parse_duration;
use crate::error::Error;

/// A request to change the policy of a kind, field by field. Without any field, it changes nothing and
/// returns the current policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// The kind.
    pub kind: String,
    /// The number of attempts before an event fails, for events published from now on; 1 to 1,000.
    pub attempts: Option<u16>,
    /// How long a handler may take, 1 ms to 15 min.
    #[serde(default, deserialize_with = "handler_timeout")]
    pub handler_timeout: Option<Duration>,
    /// The delay after the first attempt, which doubles with each attempt; 1 ms to 24 h.
    #[serde(default, deserialize_with = "backoff")]
    pub backoff: Option<Duration>,
    /// The longest delay, 1 ms to 24 h.
    #[serde(default, deserialize_with = "backoff_max")]
    pub backoff_max: Option<Duration>,
    /// The most events that run at once, over all drains; 1 to 10,000.
    pub concurrency: Option<u32>,
    /// The most events that share one call of a batch, 1 to 1,000.
    pub batch: Option<u16>,
    /// The longest time that the first event of a batch waits for the others, at most 1 min.
    #[serde(default, deserialize_with = "batch_within")]
    pub batch_within: Option<Duration>,
    /// The fields to set back to what the program declares: `attempts`, `handler_timeout`, `backoff`,
    /// `backoff_max`, `concurrency`, `batch`, `batch_within`.
    #[serde(default)]
    pub reset: Vec<String>,
    /// The reason, for the audit; not blank, at most 1,000 characters. Required for a change.
    pub reason: Option<String>,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
}

/// The names of the fields in requests, and in the database.
const FIELDS: [(&str, &str); 7] = [
    ("attempts", "max_attempts"),
    ("handler_timeout", "handler_timeout_ms"),
    ("backoff", "backoff_ms"),
    ("backoff_max", "backoff_max_ms"),
    ("concurrency", "concurrency"),
    ("batch", "batch"),
    ("batch_within", "batch_within_ms"),
];

impl PolicyRequest {
    /// Returns the change in the form in which it is stored. Null sets a field back to what the program
    /// declares.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `reset` names an unknown field, or a field that the request also sets.
    pub(crate) fn change(&self) -> Result<Value, Error> {
        let millis = |time: Option<Duration>| {
            time.map(|time| json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
        };
        let given = [
            self.attempts.map(Value::from),
            millis(self.handler_timeout),
            millis(self.backoff),
            millis(self.backoff_max),
            self.concurrency.map(Value::from),
            self.batch.map(Value::from),
            millis(self.batch_within),
        ];
        let fields = FIELDS.iter().zip(given);
        let mut change: Map<String, Value> = fields
            .filter_map(|((_, stored), value)| Some(((*stored).to_owned(), value?)))
            .collect();
        for name in &self.reset {
            let Some((_, stored)) = FIELDS.iter().find(|(known, _)| known == name) else {
                let known = FIELDS.map(|(name, _)| name).join(", ");
                let why = format!("reset: must be of {known}, got {name:?}");
                return Err(Error::Invalid(why));
            };
            if change.insert((*stored).to_owned(), Value::Null).is_some() {
                let why =
                    format!("reset: must not name {name} twice, or together with a new value");
                return Err(Error::Invalid(why));
            }
        }
        if !change.is_empty() && self.reason.is_none() {
            return Err(Error::Invalid(
                "reason: must be given if anything changes".to_owned(),
            ));
        }
        Ok(Value::Object(change))
    }
}

/// The policy of a kind, after a change or without one. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "policy")]
#[non_exhaustive]
pub struct PolicyReport {
    /// The kind.
    pub kind: String,
    /// Whether anything was changed.
    pub changed: bool,
    /// The fields that the program declares.
    pub declared: Map<String, Value>,
    /// The values that operators have set instead.
    pub overridden: Map<String, Value>,
    /// The values in effect.
    pub policy: Map<String, Value>,
}

fn handler_timeout<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    named("handler_timeout", parse_duration, deserializer)
}

fn backoff<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("backoff", parse_duration, deserializer)
}

fn backoff_max<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("backoff_max", parse_duration, deserializer)
}

fn batch_within<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("batch_within", parse_duration, deserializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_what_was_given_and_what_is_reset() {
        let asked = PolicyRequest {
            attempts: Some(3),
            backoff: Some(Duration::from_secs(2)),
            reset: vec!["concurrency".to_owned()],
            reason: Some("r".to_owned()),
            ..PolicyRequest::default()
        };
        let stored = json!({"max_attempts": 3, "backoff_ms": 2000, "concurrency": null});
        assert_eq!(asked.change().unwrap(), stored);
        assert_eq!(PolicyRequest::default().change().unwrap(), json!({}));
        for (reset, reason, told) in [
            (&["speed"][..], Some("r"), "reset: must be of attempts"),
            (&["attempts"], Some("r"), "reset: must not name attempts"),
            (&["concurrency"], None, "reason: must be given"),
        ] {
            let asked = PolicyRequest {
                reset: reset.iter().map(|name| (*name).to_owned()).collect(),
                reason: reason.map(str::to_owned),
                ..asked.clone()
            };
            let refused = asked.change().unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }
}
