//! Requests to view and change schedules, and their reports.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::named;
use crate::config::parse_duration;
use crate::periodic::{CatchUp, Periodic};

/// A request to change a schedule. As JSON it has the command line's options: `name`, and `pause`, `resume`,
/// `remove`, `run`, or `kind` with `cron` or `every`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "ScheduleOptions")]
pub struct ScheduleRequest {
    /// The schedule's name: 1 to 100 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// What to do with it.
    pub action: ScheduleAction,
    /// The reason, for the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
}

/// The action on a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleAction {
    /// Create it or, if operators keep it, change it.
    Set(Periodic),
    /// Stop publishing. Slots that pass in the meantime are skipped.
    Pause,
    /// Publish again, from the next slot on.
    Resume,
    /// Remove a schedule that operators keep.
    Remove,
    /// Publish its event now, in addition to its slots.
    Run,
}

/// A [`ScheduleRequest`] in the form of the command line and of JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command line"
)]
struct ScheduleOptions {
    name: String,
    #[serde(default)]
    pause: bool,
    #[serde(default)]
    resume: bool,
    #[serde(default)]
    remove: bool,
    #[serde(default)]
    run: bool,
    kind: Option<String>,
    payload: Option<Value>,
    cron: Option<String>,
    #[serde(default, deserialize_with = "every")]
    every: Option<Duration>,
    time_zone: Option<String>,
    group: Option<String>,
    #[serde(default, deserialize_with = "start_within")]
    start_within: Option<Duration>,
    catch_up: Option<CatchUp>,
    reason: String,
    actor: Option<String>,
}

impl TryFrom<ScheduleOptions> for ScheduleRequest {
    type Error = &'static str;

    fn try_from(asked: ScheduleOptions) -> Result<Self, Self::Error> {
        let is_set = asked.payload.is_some()
            || asked.cron.is_some()
            || asked.every.is_some()
            || asked.time_zone.is_some()
            || asked.group.is_some()
            || asked.start_within.is_some()
            || asked.catch_up.is_some();
        let switches = (asked.pause, asked.resume, asked.remove, asked.run);
        let action = match (switches, asked.kind) {
            ((false, false, false, false), Some(kind)) => ScheduleAction::Set(Periodic {
                kind,
                payload: asked.payload,
                cron: asked.cron,
                every: asked.every,
                time_zone: asked.time_zone,
                group: asked.group,
                start_within: asked.start_within,
                catch_up: asked.catch_up.unwrap_or_default(),
            }),
            ((true, false, false, false), None) if !is_set => ScheduleAction::Pause,
            ((false, true, false, false), None) if !is_set => ScheduleAction::Resume,
            ((false, false, true, false), None) if !is_set => ScheduleAction::Remove,
            ((false, false, false, true), None) if !is_set => ScheduleAction::Run,
            _ => {
                return Err(
                    "pause, resume, remove, run: one of them must be true, or kind given with cron or every",
                );
            }
        };
        Ok(Self {
            name: asked.name,
            action,
            reason: asked.reason,
            actor: asked.actor,
        })
    }
}

fn every<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("every", parse_duration, deserializer)
}

fn start_within<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("start_within", parse_duration, deserializer)
}

/// The report of a change of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "schedule")]
#[non_exhaustive]
pub struct ScheduleChange {
    /// The schedule.
    pub name: String,
    /// `set`, `paused`, `resumed`, `removed` or `run`.
    pub change: String,
    /// False if the schedule was already in this state.
    pub changed: bool,
    /// Whether it is paused now.
    pub paused: bool,
    /// The event that `run` published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<i64>,
    /// The first slot from now on of a schedule that was set, by this program's clock, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub next_at: Option<String>,
}

/// A schedule as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ScheduleStatus {
    /// Its name.
    pub name: String,
    /// The program that declares it; `None` if operators keep it.
    pub keeper: Option<String>,
    /// The kind of its events.
    pub kind: String,
    /// The cron expression. A schedule has this or `every_ms`.
    pub cron: Option<String>,
    /// Milliseconds from one slot to the next.
    pub every_ms: Option<i64>,
    /// The time zone of the expression.
    pub time_zone: String,
    /// The events' group.
    pub group_key: Option<String>,
    /// How many milliseconds after its slot an event may start.
    pub start_within_ms: Option<i64>,
    /// What happens to slots that passed while no drain ran.
    pub catch_up: CatchUp,
    /// `waiting`, `due`, `paused`, `paused_kind`, `unregistered_kind` or `stopped`.
    pub state: String,
    /// The next slot, RFC 3339; `None` when there is none.
    #[schemars(extend("format" = "date-time"))]
    pub next_at: Option<String>,
    /// The last slot for which an event was published.
    #[schemars(extend("format" = "date-time"))]
    pub last_at: Option<String>,
    /// The id of that event.
    pub last_event_id: Option<i64>,
    /// When that event was published.
    #[schemars(extend("format" = "date-time"))]
    pub fired_at: Option<String>,
    /// Why the schedule has stopped.
    pub problem: Option<String>,
    /// The time from which to compute the next slot while it is not stored.
    #[serde(skip_serializing)]
    pub(crate) since_s: i64,
}
