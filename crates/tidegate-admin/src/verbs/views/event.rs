//! The views of one event: all that is stored about it, and its content.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::error::{Error, Result};
use tidegate_core::json::Json;
use tidegate_core::queue::{Queryable, document};
use tidegate_core::statements;

use super::Runtime;

statements! {
    /// Everything stored about one event, live or logged. `row_to_json` keeps the payload's text. `to_jsonb`
    /// would print `1e131071` as 131,072 digits, and turn a payload of 2.5 KB into a gigabyte.
    SHOW: "show" [INT8] = "\
SELECT row_to_json(s)::text
  FROM (SELECT e.*, @tidegate.why(e.id) AS why, c.payload, c.result, c.progress, c.errors, c.traceparent, c.reported
          FROM @tidegate.all_events AS e
          JOIN @tidegate.event_contents AS c ON c.id = e.id AND c.finished_at IS NOT DISTINCT FROM e.finished_at
         WHERE e.id = $1 AND c.id = $1
         ORDER BY e.finished_at DESC LIMIT 1) AS s";

    /// The columns of one event that stand in the row itself, so they are readable even if others are not.
    BARE: "bare" [INT8] = "\
SELECT to_jsonb(b)::text
  FROM (SELECT \"in\", id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, created_at
          FROM @tidegate.all_events WHERE id = $1 ORDER BY finished_at DESC LIMIT 1) AS b";

    /// One event without its content.
    EVENT: "event" [INT8] = "\
SELECT (to_jsonb(e) || jsonb_build_object('why', @tidegate.why(e.id)))::text
  FROM @tidegate.all_events AS e WHERE e.id = $1 ORDER BY e.finished_at DESC LIMIT 1";

    /// The content of one event as stored text, so that numbers are not rounded.
    CONTENT: "content" [INT8] = "\
SELECT row_to_json(c)::text
  FROM (SELECT payload::text, result::text, progress::text, errors::text, traceparent
          FROM @tidegate.event_contents WHERE id = $1 ORDER BY finished_at DESC LIMIT 1) AS c";

    /// The progress that the running handler of one event reports.
    WORK: "work" [INT8] = "SELECT to_jsonb(w)::text FROM @tidegate.at_work AS w WHERE w.id = $1";
}

/// The fields of an event in the order of a person's questions: what is it, why is it so, since when, what
/// went wrong, what belongs to it.
const ORDER: &str = "id kind status why created_at available_at deadline processing_started_at lease_expires_at \
    finished_at kept_until attempts max_attempts last_error errors notes reported group_key correlation_id dedup_key \
    parent_id replay_of progress result";

/// Returns the place of a field among those of an event. Unknown fields come behind the known ones, and the
/// payload comes last.
pub fn place(field: &str) -> usize {
    let place = ORDER.split(' ').position(|known| known == field);
    place.unwrap_or(ORDER.len() + usize::from(field == "payload"))
}

/// The columns of an event by name, each as its text.
pub type Columns = BTreeMap<String, Json>;

/// Returns all columns of one event, with its table in `in`; `None` when there is no such event.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn show(client: &impl Queryable, id: i64) -> Result<Option<Columns>> {
    document(client, &SHOW, &[&id]).await
}

/// Returns the columns in an event's row itself, when the database cannot read the others. `why` is the
/// database's error, which `unreadable` repeats.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn show_bare(client: &impl Queryable, id: i64, why: &Error) -> Result<Option<Columns>> {
    let event: Option<Columns> = document(client, &BARE, &[&id]).await?;
    Ok(event.map(|mut event| {
        let reason = json!({"content": why.to_string()});
        event.insert("unreadable".to_owned(), reason.into());
        event
    }))
}

/// Everything about one event, with its content only if that was requested.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Dossier {
    /// Its columns. `in` is the name of its table.
    pub event: Value,
    /// Payload, results, progress and errors. `None` if they were not requested.
    pub content: Option<Content>,
    /// The progress that the running handler reports.
    pub work: Option<Value>,
}

/// The payload of an event and the output of its handlers, as stored text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[non_exhaustive]
pub struct Content {
    /// The payload. It can be sealed.
    pub payload: Option<String>,
    /// Results by handler.
    pub result: Option<String>,
    /// Saved progress.
    pub progress: Option<String>,
    /// All errors so far.
    pub errors: Option<String>,
    /// The trace context of its publisher.
    pub traceparent: Option<String>,
}

impl Content {
    /// The trace id in `traceparent`; `None` if the event has no trace context.
    pub fn trace_id(&self) -> Option<&str> {
        self.traceparent.as_deref()?.split('-').nth(1)
    }

    /// Whether the payload is sealed, judged by its first characters.
    pub fn is_sealed(&self) -> bool {
        let payload = self.payload.as_deref().unwrap_or_default();
        payload.trim_start().starts_with("{\"tidegate_sealed\":")
    }
}

impl Runtime {
    /// Returns one event, with its content if that is requested.
    ///
    /// # Errors
    /// [`Error::UnknownEvent`]; if the database fails, for example because the login may not read the
    /// content.
    pub async fn dossier(&self, id: i64, with_content: bool) -> Result<Dossier> {
        let client = self.looking().await?;
        let event = document(&client, &EVENT, &[&id]).await?;
        let event = event.ok_or(Error::UnknownEvent(id))?;
        let work = document(&client, &WORK, &[&id]).await?;
        let content = if with_content {
            match document(&client, &CONTENT, &[&id]).await {
                // The caller shows the event without its content.
                Err(error) if error.is_corruption() => None,
                content => content?,
            }
        } else {
            None
        };
        Ok(Dossier {
            event,
            content,
            work,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_payload_is_known_and_a_trace_has_its_id() {
        let content = Content {
            payload: Some(r#"{"tidegate_sealed":{"v":1}}"#.to_owned()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            ..Content::default()
        };
        assert!(content.is_sealed() && !Content::default().is_sealed());
        assert_eq!(content.trace_id(), Some("0af7651916cd43dd8448eb211c80319c"));
    }
}
