//! Owns how AI checks are requested. It decides which messages are relevant, and stores the event of a
//! relevant one (B32), in the caller's transaction (B1).

use std::time::SystemTime;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use tidegate::{Database, Error, Lookup, NewEvent, Published, Transaction, publish};
use utoipa::ToSchema;

use super::{IssuingCheck, SCHEMAS, store};
use crate::app::schema;

/// Defines which bus messages are relevant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    kind: String,
    stage: String,
}

impl Default for Filter {
    fn default() -> Self {
        Self::from_settings(&|_| None)
    }
}

impl Filter {
    /// Reads `ISSUING_KIND` and `ISSUING_STAGE`: the `kind` and the `stage` of a relevant message. The
    /// defaults are `issuing` and `ai-check`.
    pub fn from_settings(lookup: Lookup<'_>) -> Self {
        Self {
            kind: lookup("ISSUING_KIND").unwrap_or_else(|| "issuing".to_owned()),
            stage: lookup("ISSUING_STAGE").unwrap_or_else(|| "ai-check".to_owned()),
        }
    }
}

/// The result of receiving a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "action", rename = "receive_issuing")]
pub struct ReceiveIssuingReport {
    /// Whether it requests a check. If not, nothing was stored.
    pub relevant: bool,
    /// The event that performs the check.
    pub id: Option<i64>,
    /// Whether that event is new. If not, nothing was stored.
    pub created: bool,
}

/// Receives one bus message. With the default [`Filter`], a relevant message is a JSON object with
///
/// ```json
/// {"kind": "issuing", "stage": "ai-check", "triggerId": "T1", "applicationId": "A1",
///  "dueAt": "2027-01-11T09:00:00Z", "startBefore": "2027-01-12T09:00:00Z"}
/// ```
///
/// A message with another `kind` or `stage` is irrelevant. A message without them is refused: if it were
/// ignored, nobody would notice the loss. `dueAt` is the time when the task is overdue; without it the task
/// is never overdue. `startBefore` is the deadline of the event (B13); without it there is no deadline. Both
/// may be missing or null. Other fields are allowed and ignored.
///
/// Events of one application have the same group, so its checks run one after the other (the seed's own
/// example of a group). They also have the same correlation id. If a message arrives again after its event
/// has ended, it creates a new event. The handler then finds out whether the check is done.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed. Otherwise database errors.
pub async fn receive(
    tx: &Transaction<'_>,
    filter: &Filter,
    message: &Value,
) -> Result<ReceiveIssuingReport, Error> {
    let Some(wanted) = Wanted::in_message(filter, message)? else {
        return Ok(ReceiveIssuingReport::default());
    };
    let application_id = &wanted.check.application_id;
    let event = wanted.check.event()?;
    let event = event
        .group(format!("application:{application_id}"))
        .correlation(application_id)
        .set_if(wanted.start_before, NewEvent::start_before);
    let Published { id, created, .. } = publish(tx, &event).await?;
    if created {
        store::plan(tx, &wanted.check, wanted.due_at).await?;
    }
    Ok(ReceiveIssuingReport {
        relevant: true,
        id: Some(id),
        created,
    })
}

/// The request of the action `receive_issuing`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// The whole message, relevant or not.
    message: Value,
}

/// Answers the action `receive_issuing`: receives a message in a transaction of its own.
///
/// # Errors
/// [`Error::Invalid`] names the field. Otherwise as [`receive`].
pub async fn answer(filter: Filter, database: Database, fields: Value) -> Result<Value, Error> {
    let refused = |error: serde_json::Error| Error::Invalid(format!("invocation: {error}"));
    let failed = |stage| move |source| Error::Database { stage, source };
    let request: Request = serde_json::from_value(fields).map_err(refused)?;
    let mut client = database.connect().await?;
    let tx = client.transaction().await.map_err(failed("begin"))?;
    let report = receive(&tx, &filter, &request.message).await?;
    tx.commit().await.map_err(failed("commit"))?;
    serde_json::to_value(report).map_err(refused)
}

/// The check that a relevant message requests.
#[derive(Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Wanted {
    #[serde(flatten)]
    check: IssuingCheck,
    #[serde(default, deserialize_with = "instant")]
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<SystemTime>,
    #[serde(default, deserialize_with = "instant")]
    #[schema(value_type = Option<String>, format = DateTime)]
    start_before: Option<SystemTime>,
}

impl Wanted {
    /// Reads the check that the message requests; `None` if the message is irrelevant.
    pub(crate) fn in_message(filter: &Filter, message: &Value) -> Result<Option<Self>, Error> {
        if !message.is_object() {
            return Err(Error::Invalid("message: must be a JSON object".to_owned()));
        }
        // In this order: messages of other kinds need no stage.
        for (field, wanted) in [("kind", &filter.kind), ("stage", &filter.stage)] {
            let text = message[field].as_str();
            let text = text.ok_or_else(|| Error::Invalid(format!("{field}: must be text")))?;
            if text != wanted {
                return Ok(None);
            }
        }
        let wanted = SCHEMAS.decode(message).map(Some);
        wanted.map_err(|faults| schema::refused("", &faults))
    }
}

/// Reads a time in RFC 3339 and UTC, the only format that cannot be misread.
fn instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let instant = text.map(|text| humantime::parse_rfc3339(&text));
    instant.transpose().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A relevant message in which one field has another value. Null is equivalent to a missing field.
    fn message_with(field: &str, value: Value) -> Value {
        let mut message = json!({"kind": "issuing", "stage": "ai-check", "triggerId": "T1",
            "applicationId": "A1", "dueAt": "2027-01-11T09:00:00Z", "more": [1]});
        message[field] = value;
        message
    }

    fn in_message(message: &Value) -> Result<Option<Wanted>, Error> {
        Wanted::in_message(&Filter::default(), message)
    }

    #[test]
    fn which_messages_are_relevant_is_a_setting() {
        let set = |name: &str| (name == "ISSUING_KIND").then(|| "permit".to_owned());
        let filter = Filter::from_settings(&set);
        let permit = message_with("kind", json!("permit"));
        assert!(Wanted::in_message(&filter, &permit).unwrap().is_some());
        assert_eq!(in_message(&permit).unwrap(), None);
        let issuing = message_with("more", Value::Null);
        assert_eq!(Wanted::in_message(&filter, &issuing).unwrap(), None);
    }

    #[test]
    fn b32_only_an_issuing_at_the_stage_of_the_ai_check_is_relevant() {
        let wanted = in_message(&message_with("more", Value::Null)).unwrap();
        let wanted = wanted.unwrap();
        assert_eq!(wanted.check.trigger_id, "T1");
        assert_eq!(wanted.check.application_id, "A1");
        assert!(wanted.due_at.is_some() && wanted.start_before.is_none());
        for (field, value) in [("kind", json!("payment")), ("stage", json!("signing"))] {
            let foreign = in_message(&message_with(field, value)).unwrap();
            assert_eq!(foreign, None, "{field}");
        }
    }

    #[test]
    fn b32_a_bad_field_of_a_message_that_may_be_relevant_is_named_and_not_quoted() {
        for (field, value) in [
            ("kind", json!(7)),
            ("kind", Value::Null),
            ("stage", Value::Null),
            ("triggerId", Value::Null),
            ("triggerId", json!(1)),
            ("triggerId", json!("")),
            ("triggerId", json!(" \t")),
            ("triggerId", json!("secret\0")),
            ("applicationId", json!("secret".repeat(17))),
            ("applicationId", json!({})),
            ("dueAt", json!("secret")),
            ("dueAt", json!("infinity")),
            ("dueAt", json!("2027-02-30T00:00:00Z")),
            ("startBefore", json!(1_800_000_000)),
        ] {
            let error = in_message(&message_with(field, value)).expect_err(field);
            let error = error.to_string();
            assert!(error.starts_with(&format!("{field}: ")), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let error = in_message(&json!([])).expect_err("an array");
        assert!(error.to_string().starts_with("message: "), "{error}");
    }
}
