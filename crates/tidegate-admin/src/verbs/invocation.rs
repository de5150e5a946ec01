//! Owns the format of invocations: the requests that they carry and the answers to them. The format is the
//! same for Lambda and for `--json` on the command line. This module knows no SQL and starts nothing.

use std::cell::RefCell;

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde_json::{Map, Value};
use tidegate_core::config::Lookup;
use tidegate_core::error::{Error, Result};
use tidegate_core::json::Json;

use super::{ACTIONS, DrainRequest, Request, Verb};

/// The most bytes of an answer, which is a little less than the 6 MB that AWS accepts from a function
/// (<https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html>). AWS replaces a longer answer
/// with an error that contains nothing of the answer.
pub const ANSWER_LIMIT: usize = 6_000_000;

/// Passes the answer on, if it is not too long.
///
/// # Errors
/// [`Error::Invalid`] says how to ask for less.
pub(super) fn within_limit(answer: Json) -> Result<Json> {
    let length = answer.get().len();
    if length <= ANSWER_LIMIT {
        return Ok(answer);
    }
    Err(Error::Invalid(format!(
        "limit: must be lower, for the answer would have {length} bytes, and at most {ANSWER_LIMIT} are possible; \
         `before` asks for the next page, and the command line shows an event of any size"
    )))
}

/// The action for messages in the envelopes of AWS services. Only a program with an intake has it.
const RECEIVE: &str = "receive";

/// The actions that `TIDEGATE_ACTIONS` allows here, as a list such as `drain,cleanup`, or `!drain` for all
/// but that. For example, a function that a schedule starts need not be allowed to replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actions(Vec<&'static str>);

impl Actions {
    /// Reads `TIDEGATE_ACTIONS`. If it is unset, all actions are allowed. `further` are the actions that the
    /// program adds. `receives` says whether the program takes in messages from outside.
    ///
    /// # Errors
    /// [`Error::Config`] if it names no action, or an unknown one.
    pub fn from_setting(
        lookup: Lookup<'_>,
        further: &[&'static str],
        receives: bool,
    ) -> Result<Self> {
        let mut known = [ACTIONS, further].concat();
        known.extend(receives.then_some(RECEIVE));
        let Some(text) = lookup("TIDEGATE_ACTIONS") else {
            return Ok(Self(known));
        };
        let listed = text.trim_start_matches('!');
        let named: Vec<&str> = listed.split(',').map(str::trim).collect();
        if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
            return Err(Error::Config(format!(
                "TIDEGATE_ACTIONS: must be a comma-separated list of {}, or one of those to leave out behind !, got {unknown:?}",
                known.join(", ")
            )));
        }
        known.retain(|one| named.contains(one) != text.starts_with('!'));
        Ok(Self(known))
    }

    /// Decodes an invocation's payload. The envelope of an `EventBridge` schedule has no action, and counts
    /// as a drain (F1).
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what it must be.
    pub fn request(&self, payload: Value) -> Result<Request> {
        if is_scheduled_event(&payload) && payload.get("action").is_none() {
            self.check("drain")?;
            return Ok(Request::Drain(DrainRequest::default()));
        }
        let payload = match payload {
            // A pipe of EventBridge always sends an array, with what its template makes of each message.
            Value::Array(mut all) if all.iter().all(|one| is_bare(one) && *one == all[0]) => {
                all.pop().unwrap_or_default()
            }
            payload => payload,
        };
        let Value::Object(mut fields) = payload else {
            let list = self.0.join(", ");
            let text = format!("invocation: must be an object with an action: {list}");
            return Err(Error::Invalid(text));
        };
        let action = match fields.remove("action") {
            None => return Err(self.refused("is missing")),
            Some(Value::String(action)) => self.check(&action)?,
            Some(_) => return Err(self.refused("got no string")),
        };
        if action == RECEIVE {
            let text = "action: must not be receive, because messages arrive in the format of the AWS service that sends them";
            return Err(Error::Invalid(text.to_owned()));
        }
        Request::read(action, fields)
    }

    fn refused(&self, what: &str) -> Error {
        let list = self.0.join(", ");
        Error::Invalid(format!(
            "action: must be one of {list}, which TIDEGATE_ACTIONS allows; {what}"
        ))
    }

    /// Returns an action that is allowed here.
    ///
    /// # Errors
    /// [`Error::Invalid`] lists the allowed actions.
    pub fn check(&self, action: &str) -> Result<&'static str> {
        let allowed = self.0.iter().find(|known| **known == action);
        let refused = || self.refused(&format!("got {action:?}"));
        allowed.copied().ok_or_else(refused)
    }
}

/// The fields of an invocation that are left to be read.
pub struct Fields {
    left: Map<String, Value>,
    /// The names of all fields that could be read.
    known: Vec<&'static str>,
    /// The field that is being read.
    reading: RefCell<Option<String>>,
}

/// Reads a request with its parts, and refuses a field that none of them has.
pub(super) fn read<V: Verb>(left: Map<String, Value>) -> Result<V> {
    let mut fields = Fields {
        left,
        known: Vec::new(),
        reading: RefCell::default(),
    };
    let mut request: V = fields.take()?;
    let parts = request.parts().into_iter();
    let read = parts.map(|part| part.read(&mut fields));
    let mut wrong: Vec<Error> = read.filter_map(Result::err).collect();
    if let Some(audit) = request.audit() {
        match fields.take() {
            Ok(given) => *audit = given,
            Err(error) => wrong.push(error),
        }
    }
    if let Some(unknown) = fields.left.keys().next() {
        let known: Vec<String> = fields
            .known
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        let expected = match known.as_slice() {
            [] => "there are no fields".to_owned(),
            _ => format!("expected one of {}", known.join(", ")),
        };
        let text = format!("invocation: unknown field `{unknown}`, {expected}");
        return Err(Error::Invalid(text));
    }
    if let Some(error) = wrong.into_iter().next() {
        return Err(error);
    }
    let refused = |error| match error {
        Error::Invalid(text) => Error::Invalid(format!("invocation: {text}")),
        other => other,
    };
    request.check().map_err(refused)?;
    Ok(request)
}

impl Fields {
    /// Takes the fields of a struct out. An error names the field: `serde` itself names a missing one, and
    /// for other errors the field that was being read is added.
    pub(super) fn take<T: DeserializeOwned>(&mut self) -> Result<T> {
        let read = T::deserialize(&mut *self);
        read.map_err(|error: serde_json::Error| {
            let text = error.to_string();
            Error::Invalid(match self.reading.take() {
                None => format!("invocation: {text}"),
                Some(field) => format!("invocation: {field}: {}", in_words(&text)),
            })
        })
    }
}

impl<'de> Deserializer<'de> for &mut Fields {
    type Error = serde_json::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.known.extend(names);
        let left = &mut self.left;
        let taken = names.iter().filter_map(|name| left.remove_entry(*name));
        let noted = taken.inspect(|(name, _)| {
            self.reading.replace(Some(name.clone()));
        });
        let after_all = std::iter::from_fn(|| {
            self.reading.replace(None);
            None
        });
        visitor.visit_map(MapDeserializer::new(noted.chain(after_all)))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        std::mem::take(&mut self.left).deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Says what a field must be, for readers who do not know Rust's types.
fn in_words(error: &str) -> String {
    let mistyped = ["invalid type: ", "invalid value: "];
    let mut mistyped = mistyped
        .iter()
        .filter_map(|start| error.strip_prefix(start));
    let Some((got, expected)) = mistyped
        .next()
        .and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return error.to_owned();
    };
    let expected = match expected {
        "i64" => "a whole number",
        "u16" | "u32" | "u64" | "usize" => "a whole number, not negative",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        other => other,
    };
    format!("must be {expected}, got {got}")
}

/// Whether this is a request that is nothing but its action.
fn is_bare(payload: &Value) -> bool {
    let fields = payload.as_object();
    fields.is_some_and(|fields| fields.len() == 1 && fields.contains_key("action"))
}

/// Whether this is a message from a schedule of `EventBridge`:
/// <https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-rule-schedule.html>.
pub fn is_scheduled_event(payload: &Value) -> bool {
    payload["detail-type"] == "Scheduled Event"
        && matches!(
            payload["source"].as_str(),
            Some("aws.events" | "aws.scheduler")
        )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::retention::CleanupOptions;
    use tidegate::drain::DrainOptions;

    fn decode(payload: Value) -> Result<Request, Error> {
        Actions::from_setting(&|_| None, &["greet"], false)?.request(payload)
    }

    #[test]
    fn f1_a_scheduled_event_is_a_drain() {
        let envelope = json!({"version": "0", "source": "aws.events", "detail-type": "Scheduled Event", "detail": {}});
        assert_eq!(
            decode(envelope).unwrap(),
            Request::Drain(DrainRequest::default())
        );
    }

    #[test]
    fn options_are_read_in_snake_case_with_durations_as_people_write_them() {
        let request =
            decode(json!({"action": "drain", "budget": "500ms", "max_events": 3})).unwrap();
        let Request::Drain(drain) = request else {
            panic!("not a drain")
        };
        assert_eq!(drain.budget, Some(Duration::from_millis(500)));
        assert_eq!(drain.over(&DrainOptions::default()).max_events, Some(3));
    }

    #[test]
    fn a_cleanup_takes_what_is_not_asked_from_the_settings() {
        let query = json!({"action": "cleanup", "dry_run": true, "older_than": "1h"});
        let Request::Cleanup(cleanup) = decode(query).unwrap() else {
            panic!("not a cleanup")
        };
        let options = cleanup.over(Duration::from_secs(7), None);
        let expected = CleanupOptions {
            dry_run: true,
            older_than: Duration::from_hours(1),
            budget: Duration::from_secs(7),
            ..CleanupOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn what_operators_ask_for_is_refused_by_the_fields_name_and_what_it_must_be() {
        for (payload, named) in [
            (json!({"action": "show"}), "missing field `id`"),
            (
                json!({"action": "show", "id": "7"}),
                "id: must be a whole number, got string \"7\"",
            ),
            (json!({"action": "list", "groups": "g"}), "groups"),
            (
                json!({"action": "list", "kind": 5, "limit": 9}),
                "kind: must be a string, got integer `5`",
            ),
            (
                json!({"action": "list", "until": 5}),
                "until: must be a string, got integer `5`",
            ),
            (
                json!({"action": "leases", "limit": "all"}),
                "limit: must be a whole number",
            ),
            (json!({"action": "services", "name": "post"}), "name"),
            (
                json!({"action": "service", "name": "post", "reason": "r"}),
                "pause, resume: one of them must be true",
            ),
            (json!({"action": "pause"}), "kind"),
            (
                json!({"action": "schedule", "name": "s", "pause": true, "run": true, "reason": "r"}),
                "pause, resume, run: one of them must be true",
            ),
            (
                json!({"action": "schedule", "name": "s", "pause": true, "cron": "@daily", "reason": "r"}),
                "cron",
            ),
            (
                json!({"action": "retention", "failed": "long"}),
                "failed: must be a duration",
            ),
            (json!({"action": "doctor", "checks": []}), "checks"),
        ] {
            let error = decode(payload).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn what_a_pipe_sends_for_a_burst_of_messages_is_one_request() {
        let one = decode(json!({"action": "drain"})).unwrap();
        for burst in [1, 10] {
            let sent = vec![json!({"action": "drain"}); burst];
            assert_eq!(decode(sent.into()).unwrap(), one);
        }
    }

    #[test]
    fn an_action_of_the_programs_own_has_fields_of_its_own() {
        let query = decode(json!({"action": "greet", "whom": "all"})).unwrap();
        let fields = json!({"whom": "all"});
        let expected = Request::Further {
            action: "greet".to_owned(),
            fields,
        };
        assert_eq!(query, expected);
    }

    #[test]
    fn only_actions_that_are_listed_are_allowed_and_a_list_of_others_is_refused() {
        let setting = |text: &'static str| {
            let lookup = move |name: &str| (name == "TIDEGATE_ACTIONS").then(|| text.to_owned());
            Actions::from_setting(&lookup, &["greet"], true)
        };
        let allowed = setting("drain, stats, greet").unwrap();
        let tick = json!({"source": "aws.scheduler", "detail-type": "Scheduled Event"});
        for payload in [
            json!({"action": "stats"}),
            tick.clone(),
            json!({"action": "greet"}),
        ] {
            assert!(allowed.request(payload.clone()).is_ok(), "{payload}");
        }
        let error = allowed.request(json!({"action": "migrate"})).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("drain, stats") && error.contains("migrate"),
            "{error}"
        );
        assert!(setting("stats").unwrap().request(tick.clone()).is_err());
        let but = setting("!drain, stats").unwrap();
        assert!(but.request(tick).is_err() && but.check("stats").is_err());
        assert!(but.check("greet").is_ok() && but.check("migrate").is_ok());
        assert!(decode(json!({"action": "migrate"})).is_ok());
        for text in ["drain,explode", "drain,", " ", "!", "!explode"] {
            let error = setting(text).unwrap_err().to_string();
            assert!(
                error.contains("TIDEGATE_ACTIONS") && error.contains("migrate"),
                "{error}"
            );
        }
    }

    #[test]
    fn unknown_fields_and_actions_are_refused_by_name() {
        for (payload, named) in [
            (json!({"action": "drain", "budgt": "1s"}), "budgt"),
            (json!({"action": "migrate", "force": true}), "force"),
            (json!({"action": "cleanup", "dryrun": true}), "dryrun"),
            (
                json!({"action": "cleanup", "older_than": "old"}),
                "older_than: must be a duration",
            ),
            (json!({"action": "explode"}), "explode"),
            (
                json!({"action": "drain", "batch": -1}),
                "batch: must be a whole number, not negative",
            ),
            (json!({"action": "replay", "ids": [1]}), "reason"),
            (
                json!({"action": "requeue", "ids": [1], "since": "1h"}),
                "since",
            ),
            (
                json!({"action": "replay", "reason": "r", "since": "soon"}),
                "since: must be an RFC 3339 time",
            ),
            (
                json!({"action": "replay", "reason": "r", "expires_in": 5}),
                "expires_in",
            ),
            (json!({}), "action"),
            (json!([]), "action"),
            (json!([{"action": "drain"}, {"action": "stats"}]), "action"),
            (json!([{"action": "show", "id": 1}]), "action"),
            (json!([{}, {}]), "action"),
            (json!({"action": 7}), "action"),
            (
                json!({"action": "drain", "budget": "soon"}),
                "budget: must be a duration",
            ),
        ] {
            let error = decode(payload).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
