//! The views of one event: all that is stored about it, and its content.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Service;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::queue::statement::statements;
use crate::queue::{Queryable, document};

statements! {
    /// Everything stored about one event, live or logged. `row_to_json` keeps the payload's text. `to_jsonb`
    /// would print `1e131071` as 131,072 digits, and turn a payload of 2.5 KB into a gigabyte.
    SHOW: "show" [INT8] = "\
SELECT row_to_json(e)::text FROM (SELECT *, 'event_queue' AS \"in\", tidegate.why(id) AS why FROM tidegate.events WHERE id = $1) AS e
UNION ALL
SELECT row_to_json(l)::text FROM (SELECT *, 'event_log' AS \"in\", tidegate.why(id) AS why FROM tidegate.logged($1)) AS l";

    /// What is stored about one event in the row itself.
    BARE: "bare" [INT8] = "\
SELECT to_jsonb(e)::text
  FROM (SELECT 'event_queue' AS \"in\", id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, created_at
          FROM tidegate.events WHERE id = $1
        UNION ALL
        SELECT 'event_log', id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, created_at
          FROM tidegate.logged($1)) AS e";

    /// One event without its content, live or finished. If a copied database used an id twice, the live event
    /// wins.
    EVENT: "event" [INT8] = "\
SELECT (to_jsonb(e) || jsonb_build_object('why', tidegate.why(e.id)))::text
  FROM (SELECT 'event_queue' AS \"in\", id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts,
               available_at, expires_at AS deadline, created_at, processing_started_at, NULL::timestamptz AS finished_at,
               NULL::timestamptz AS kept_until, lease_expires_at, last_error, parent_id, replay_of, delayed
          FROM tidegate.events WHERE id = $1
        UNION ALL
        SELECT 'event_log', l.id, l.kind, l.group_key, l.dedup_key, l.correlation_id, l.status, l.attempts, l.max_attempts,
               NULL, l.deadline, l.created_at, l.processing_started_at, l.finished_at,
               l.expires_at, NULL, e.last_error, l.parent_id, l.replay_of, false
          FROM tidegate.event_log AS l JOIN tidegate.ends AS e ON e.id = l.id AND e.finished_at = l.finished_at
         WHERE l.id = $1 AND e.id = $1) AS e
 ORDER BY e.\"in\" DESC, e.finished_at DESC LIMIT 1";

    /// The content of one event as stored text, so that numbers are not rounded.
    CONTENT: "content" [INT8] = "\
SELECT row_to_json(c)::text
  FROM (SELECT 1 AS place, q.payload::text, NULL::text AS result, q.progress::text, q.errors::text, q.traceparent
          FROM tidegate.event_queue AS q WHERE q.id = $1
        UNION ALL
        SELECT 2, l.payload::text, l.result::text, l.progress::text, l.errors::text, l.traceparent
          FROM tidegate.event_log AS l WHERE l.id = $1) AS c
 ORDER BY c.place LIMIT 1";

    /// The progress that the running handler of one event reports.
    WORK: "work" [INT8] = "SELECT to_jsonb(w)::text FROM tidegate.at_work AS w WHERE w.id = $1";
}

/// The columns of an event by name, each as its text.
pub type Columns = BTreeMap<String, Json>;

/// Returns all columns of one event, with its table in `in`; `None` when there is no such event.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn show(client: &impl Queryable, id: i64) -> Result<Option<Columns>> {
    let event: Option<Columns> = document(client, &SHOW, &[&id]).await?;
    Ok(event.map(|mut event| {
        // In the queue this column is the deadline, and in the log the end of the retention.
        let is_live = event.get("in").map(Json::get) == Some("\"event_queue\"");
        let name = if is_live { "deadline" } else { "kept_until" };
        if let Some(time) = event.remove("expires_at") {
            event.insert(name.to_owned(), time);
        }
        event
    }))
}

/// Returns the columns of one event that are always readable, for one of which the database cannot read the
/// others.
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
    /// Returns the id of the trace.
    pub fn trace_id(&self) -> Option<&str> {
        self.traceparent.as_deref()?.split('-').nth(1)
    }

    /// Whether the payload is sealed.
    pub fn is_sealed(&self) -> bool {
        let payload = self.payload.as_deref().unwrap_or_default();
        payload.trim_start().starts_with("{\"tidegate_sealed\":")
    }
}

impl Service {
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
                // The page shows what there is without it.
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
