//! Owns the shapes of rows that reports pass on as the database writes them, for their JSON Schemas alone: nobody makes one.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

/// A time, RFC 3339.
struct Time;

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "format": "date-time"})
    }
}

/// Figures of one kind.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "it has the shape of a row that is passed on as it is"
)]
pub(crate) struct KindStats {
    /// The kind.
    kind: String,
    /// Live events that wait, but for those that are delayed.
    pending: u64,
    /// Live events in a worker's hands.
    processing: u64,
    /// Live events that wait for a planned time or for another attempt.
    delayed: u64,
    /// The most attempts of a live event.
    max_attempts_used: u64,
    /// Age of the oldest live event; null when there is none.
    oldest_age_ms: Option<u64>,
    /// Events that ended COMPLETED in the last hour.
    completed: u64,
    /// Events that ended `COMPLETED_WITH_ERRORS` in the last hour.
    completed_with_errors: u64,
    /// Events that ended FAILED in the last hour.
    failed: u64,
    /// Their attempts on average; null when none ended.
    attempts_per_event: Option<f64>,
    /// Half of them took no longer from publish to end.
    latency_p50_ms: Option<i64>,
    /// 95 of 100 took no longer.
    latency_p95_ms: Option<i64>,
    /// 99 of 100 took no longer.
    latency_p99_ms: Option<i64>,
    /// The share that did not end COMPLETED, 0 to 1.
    failure_rate: Option<f64>,
    /// All live events.
    events: u64,
    /// Live events whose worker has not renewed its lease.
    stuck: u64,
    /// Whether the kind is paused.
    paused: bool,
}

/// An event of a list.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "it has the shape of a row that is passed on as it is"
)]
pub(crate) struct ListedEvent {
    /// Its id.
    id: i64,
    /// Its kind.
    kind: String,
    /// PENDING, PROCESSING, COMPLETED, `COMPLETED_WITH_ERRORS` or FAILED.
    status: String,
    /// How often it was tried.
    attempts: u64,
    /// Its group.
    group_key: Option<String>,
    /// The business object it belongs to.
    correlation_id: Option<String>,
    /// When it was published.
    created_at: Time,
    /// When it ended; null while it is live.
    finished_at: Option<Time>,
    /// Its last error.
    last_error: Option<String>,
    /// False when the program that was asked does not have this kind; left out when it does.
    #[schemars(extend("const" = false), skip_serializing_if = "Option::is_none")]
    handled: Option<bool>,
}

/// Everything stored about an event. Which fields there are depends on the table it is in.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "it has the shape of a row that is passed on as it is"
)]
pub(crate) struct StoredEvent {
    /// Its table: `event_queue` for a live event, `event_log` for one that has ended.
    #[schemars(extend("enum" = ["event_queue", "event_log"]))]
    r#in: String,
    /// Its id.
    id: i64,
    /// Its kind.
    kind: String,
    /// As it was published, or sealed.
    payload: Value,
    /// Its group.
    group_key: Option<String>,
    /// Its deduplication key.
    dedup_key: Option<String>,
    /// The business object it belongs to.
    correlation_id: Option<String>,
    /// PENDING, PROCESSING, COMPLETED, `COMPLETED_WITH_ERRORS` or FAILED.
    status: String,
    /// How often it was tried.
    attempts: u64,
    /// Attempts before it is given up.
    max_attempts: u64,
    /// Every error so far, the last one last.
    errors: Vec<Value>,
    /// What has been done of it so far.
    progress: Value,
    /// When it was published.
    created_at: Time,
    /// Since when a worker has it, or when the last attempt began.
    processing_started_at: Option<Time>,
    /// The lease that holds it, or that ended it.
    lease_token: Option<String>,
    /// Of a live event, its deadline; of one that has ended, the end of its retention.
    expires_at: Option<Time>,
    /// The event whose handler emitted it.
    parent_id: Option<i64>,
    /// The event that it is a replay of.
    replay_of: Option<i64>,
    /// The W3C trace context that it was published under.
    traceparent: Option<String>,
    /// When it may start.
    #[schemars(skip_serializing_if = "Option::is_none")]
    available_at: Time,
    /// When it was last changed.
    #[schemars(skip_serializing_if = "Option::is_none")]
    updated_at: Time,
    /// When its lease runs out.
    #[schemars(skip_serializing_if = "Option::is_none")]
    lease_expires_at: Option<Time>,
    /// Its last error.
    #[schemars(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Whether it waits for a planned time or for another attempt.
    #[schemars(skip_serializing_if = "Option::is_none")]
    delayed: bool,
    /// How far the handler at work says that it has come.
    #[schemars(skip_serializing_if = "Option::is_none")]
    reported: Value,
    /// Results by handler.
    #[schemars(skip_serializing_if = "Option::is_none")]
    result: Value,
    /// When it ended.
    #[schemars(skip_serializing_if = "Option::is_none")]
    finished_at: Time,
    /// Its deadline while it was live.
    #[schemars(skip_serializing_if = "Option::is_none")]
    deadline: Option<Time>,
    /// When what it was about was taken away.
    #[schemars(skip_serializing_if = "Option::is_none")]
    forgotten_at: Option<Time>,
}

/// A group whose first event holds back others.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "it has the shape of a row that is passed on as it is"
)]
pub(crate) struct BlockedGroup {
    /// The group.
    group_key: String,
    /// Its first event.
    head_id: i64,
    /// That event's kind.
    head_kind: String,
    /// How often it was tried.
    attempts: u64,
    /// Attempts before it is given up.
    max_attempts: u64,
    /// When it is tried next.
    available_at: Time,
    /// Its last error.
    last_error: Option<String>,
    /// When it was published.
    created_at: Time,
    /// How many events wait behind it.
    waiting: u64,
}

/// What one worker holds.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    reason = "it has the shape of a row that is passed on as it is"
)]
pub(crate) struct Lease {
    /// The lease.
    token: String,
    /// The worker.
    worker: Option<String>,
    /// Since when.
    taken_at: Time,
    /// When it was last renewed.
    renewed_at: Time,
    /// When it runs out.
    expires_at: Time,
    /// Whether it has run out.
    expired: bool,
    /// How many of its events are still in hand.
    events: u64,
    /// How many of these may have started.
    started: u64,
    /// The lowest id of them.
    first_id: Option<i64>,
    /// The highest id of them.
    last_id: Option<i64>,
    /// How often operators have taken events out of it.
    cuts: u64,
}
