//! Owns what is stored of an event's attempts: how it ended, and what need not be repeated.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::NewEvent;
use crate::fault::Fault;
use crate::json::Json;

/// The status of a row in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Every handler has succeeded.
    Completed,
    /// A handler rejected the event. The row has its errors.
    CompletedWithErrors,
    /// The system gave up: no attempts are left, the deadline passed, no program handles the event or can
    /// read it, the service that it needs stayed down, or an operator cancelled it.
    Failed,
}

impl Status {
    /// Returns the status as it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::CompletedWithErrors => "COMPLETED_WITH_ERRORS",
            Self::Failed => "FAILED",
        }
    }
}

/// What earlier attempts have done for an event, stored with it so that a retry runs only the rest. This is
/// the `progress` column.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Handlers that have ended for good.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handlers: BTreeMap<String, HandlerRecord>,
    /// Results of sub-steps, under `handler/step`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, Json>,
    /// Services that the event has waited for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deferred: BTreeMap<String, Deferred>,
    /// `None` if no handler has snoozed the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snoozed: Option<Snoozed>,
    /// The most events that may share a call with this one, because a call that more of them shared has
    /// failed as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<u16>,
    /// `None` if no run has ended during an attempt of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Interrupted>,
}

/// How often a run has ended during an attempt of an event, so that the attempt had to begin again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    /// The number of runs.
    pub times: u32,
    /// The number of the attempt.
    pub attempt: u32,
}

/// How an event has waited for a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferred {
    /// How often the service had answered when the event was last put back.
    pub answers: i64,
    /// How many calls of it have cost the event no attempt.
    pub calls: u32,
}

/// How often handlers have snoozed an event, and the last reason.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Snoozed {
    /// The number of snoozes.
    pub times: u32,
    /// The reason, in the handler's words.
    pub why: String,
}

impl Progress {
    /// How often an event may be snoozed: every ten minutes for a week.
    const MOST_SNOOZES: u32 = 1000;

    /// How often runs may end during one attempt: as often as workers may go away.
    pub const MOST_INTERRUPTIONS: u32 = 10;

    /// Whether the event has been snoozed as often as it may.
    pub fn is_snoozed_out(&self) -> bool {
        let times = self.snoozed.as_ref().map_or(0, |snoozed| snoozed.times);
        times >= Self::MOST_SNOOZES
    }
}

/// A handler that ended for good.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HandlerRecord {
    /// Its result, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// Why it rejected the event. Empty when it succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// Follow-ups to publish when the event ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emitted: Vec<NewEvent>,
}
