//! Owns the shapes of the rows that reports pass on as the database writes them. They exist only for the JSON
//! Schemas; no code creates one.

#![expect(
    dead_code,
    reason = "they have the shapes of rows that are passed on as they are"
)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde_json::Value;

/// An event of a list.
#[derive(JsonSchema)]
pub(crate) struct ListedEvent {
    /// Its id.
    id: i64,
    /// Its kind.
    kind: String,
    /// PENDING, PROCESSING, COMPLETED, `COMPLETED_WITH_ERRORS` or FAILED.
    status: String,
    /// The number of attempts so far.
    attempts: u64,
    /// Its group.
    group_key: Option<String>,
    /// The business object that it belongs to.
    correlation_id: Option<String>,
    /// When it was published.
    created_at: Timestamp,
    /// When it ended; null if it is live.
    finished_at: Option<Timestamp>,
    /// Its last error.
    last_error: Option<String>,
    /// False if the queried program does not have this kind; absent otherwise.
    #[schemars(extend("const" = false), skip_serializing_if = "Option::is_none")]
    handled: Option<bool>,
    /// Why it has not ended, if `waiting` was requested.
    #[schemars(skip_serializing_if = "Option::is_none")]
    why: String,
}

/// Everything stored about an event.
#[derive(JsonSchema)]
pub(crate) struct StoredEvent {
    #[serde(flatten)]
    row: EventRow,
    #[serde(flatten)]
    content: EventContent,
}

/// An event, live or finished, as the view `tidegate.all_events` has it.
#[derive(JsonSchema)]
pub(crate) struct EventRow {
    /// Its table: `event_queue` for a live event, `event_log` for a finished one.
    #[schemars(extend("enum" = ["event_queue", "event_log"]))]
    r#in: String,
    /// Its id.
    id: i64,
    /// Why it has not ended, or how it ended, in one sentence.
    why: String,
    /// Its kind.
    kind: String,
    /// Its group.
    group_key: Option<String>,
    /// Its deduplication key.
    dedup_key: Option<String>,
    /// The business object that it belongs to.
    correlation_id: Option<String>,
    /// PENDING, PROCESSING, COMPLETED, `COMPLETED_WITH_ERRORS` or FAILED.
    status: String,
    /// The number of attempts so far.
    attempts: u64,
    /// The number of attempts after which it fails.
    max_attempts: u64,
    /// When it may start; null if it has ended, as all that only live events have.
    available_at: Option<Timestamp>,
    /// The start-before deadline: an event that has not started by then never starts.
    deadline: Option<Timestamp>,
    /// When it was published.
    created_at: Timestamp,
    /// When it was last changed.
    updated_at: Option<Timestamp>,
    /// When the current attempt began, or else the last one.
    processing_started_at: Option<Timestamp>,
    /// The lease that holds it or has ended it.
    lease_token: Option<String>,
    /// When its lease runs out.
    lease_expires_at: Option<Timestamp>,
    /// When it ended; null if it is live, as all that only ended events have.
    finished_at: Option<Timestamp>,
    /// The end of its retention.
    kept_until: Option<Timestamp>,
    /// When its personal data was erased.
    forgotten_at: Option<Timestamp>,
    /// Its last error.
    last_error: Option<String>,
    /// The event whose handler emitted it.
    parent_id: Option<i64>,
    /// The original event, if this one is a replay.
    replay_of: Option<i64>,
    /// Whether it waits for a planned time or for another attempt.
    delayed: bool,
}

/// What publisher and handlers wrote.
#[derive(JsonSchema)]
pub(crate) struct EventContent {
    /// The payload as published, or sealed.
    payload: Value,
    /// Results by handler.
    result: Value,
    /// The handlers that have finished so far, and saved progress.
    progress: Value,
    /// All errors so far, latest last.
    errors: Vec<Value>,
    /// The W3C trace context of its publish.
    traceparent: Option<String>,
    /// The progress that the running handler reports.
    reported: Value,
    /// Why the database cannot read the content, which is left out then.
    #[schemars(skip_serializing_if = "Option::is_none")]
    unreadable: Option<BTreeMap<String, String>>,
}
