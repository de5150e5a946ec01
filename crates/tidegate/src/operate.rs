//! Owns what an operator may request, and the reports: replay, requeue, cancel, reschedule, pause, resume,
//! retire, unblock, the policy of a kind, and whether a service is called. It knows no SQL. What could not be
//! done is part of the report and not an error, because the audit records the attempt too. Only arguments
//! that are not allowed are errors.

mod change;
mod forget;
mod policy;
mod schedule;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

pub use self::change::{CancelReport, CancelRequest, RescheduleReport, RescheduleRequest};
pub(crate) use self::change::{Change, DIGESTED, Selection};
pub use self::forget::{ForgetReport, ForgetRequest, Subject, SubjectKeys, parse_subject};
pub use self::policy::{PolicyReport, PolicyRequest};
pub use self::schedule::{ScheduleAction, ScheduleChange, ScheduleRequest, ScheduleStatus};
use crate::config::parse_duration;
pub use crate::periodic::{CatchUp, Periodic, parse_catch_up};
pub use crate::status::{ExpiringKind, ServiceState, ServiceStatus};

/// Reads a field of an invocation whose text has its own format. An error names the field.
pub(crate) fn named<'de, T, D: Deserializer<'de>>(
    field: &str,
    parse: fn(&str) -> Result<T, String>,
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)
        .map_err(|error| D::Error::custom(format!("{field}: {error}")))?;
    text.map(|text| parse(&text))
        .transpose()
        .map_err(|refused| D::Error::custom(format!("{field}: {refused}")))
}

/// Reads the field `budget` of an invocation.
pub(crate) fn budget<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    named("budget", parse_duration, deserializer)
}

/// A point in time, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// This instant.
    At(SystemTime),
    /// This long before the database's current time.
    Ago(Duration),
}

impl Moment {
    /// Splits a moment into a time, or seconds before the database's current time.
    pub(crate) fn parts(moment: Option<Self>) -> (Option<SystemTime>, Option<f64>) {
        match moment {
            None => (None, None),
            Some(Self::At(time)) => (Some(time), None),
            Some(Self::Ago(time)) => (None, Some(time.as_secs_f64())),
        }
    }
}

/// Parses a moment: an RFC 3339 time, or a duration that means "ago".
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_moment(text: &str) -> Result<Moment, String> {
    if let Some(time) = parse_rfc3339(text) {
        return Ok(Moment::At(time));
    }
    parse_duration(text).map(Moment::Ago).map_err(|_| {
        format!(
            "must be an RFC 3339 time such as 2026-01-31T12:00:00Z, or a duration such as 2h, meaning that long ago, got {text:?}"
        )
    })
}

/// Parses a point in time.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_time(text: &str) -> Result<SystemTime, String> {
    parse_rfc3339(text).ok_or_else(|| {
        format!("must be an RFC 3339 time such as 2026-01-31T12:00:00Z, got {text:?}")
    })
}

/// Parses an RFC 3339 time with any offset, because the library reads only UTC.
fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    if text.ends_with('Z') {
        return humantime::parse_rfc3339(text).ok();
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let time = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    let offset_by = Duration::from_secs(hours * 3600 + minutes * 60);
    match offset.as_bytes().first()? {
        b'+' => time.checked_sub(offset_by),
        b'-' => time.checked_add(offset_by),
        _ => None,
    }
}

/// A request to replay logged events as new ones. It has either `ids` or a filter with `since`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// The ids of the events, 1 to 10,000.
    pub ids: Option<Vec<i64>>,
    /// Only events of this kind.
    pub kind: Option<String>,
    /// Only events that ended with this status.
    pub status: Option<String>,
    /// Only events whose last error has this code.
    pub code: Option<String>,
    /// Only events that ended at this time or later.
    #[serde(default, deserialize_with = "since")]
    pub since: Option<Moment>,
    /// Only events that ended before this time.
    #[serde(default, deserialize_with = "until")]
    pub until: Option<Moment>,
    /// The reason, for the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
    /// The most events to replay, lowest ids first; 1 to 100,000, by default 10,000.
    pub limit: Option<i64>,
    /// Report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// With a filter: include events that were replayed before, that are replays, or that were cancelled.
    #[serde(default)]
    pub again: bool,
    /// Run only handlers that failed or never finished. The results of the other handlers are kept.
    #[serde(default)]
    pub failed_handlers_only: bool,
    /// The new deadline, from now, of events whose old deadline has passed.
    #[serde(default, deserialize_with = "expires_in")]
    pub expires_in: Option<Duration>,
    /// Replay nothing unless exactly the events of a dry run with this digest are chosen.
    pub digest: Option<String>,
}

/// A request to run live events again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequeueRequest {
    /// The ids of the events, 1 to 10,000.
    pub ids: Vec<i64>,
    /// The reason, for the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
}

/// A request to pause, resume or retire a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindRequest {
    /// The kind, which must be registered.
    pub kind: String,
    /// The reason, for the audit; at most 1,000 characters. Required to retire a kind.
    pub reason: Option<String>,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
}

/// The action on the first event of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnblockAction {
    /// Run it at the next drain.
    Retry,
    /// End it, and publish its unfinished work again after the group's other events.
    Skip,
    /// End it.
    Cancel,
}

impl UnblockAction {
    /// Returns the action's name in reports and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Cancel => "cancel",
        }
    }
}

/// A request to unblock a group. As JSON it has the command line's options: `group`, and `retry`, `skip` or
/// `cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "UnblockOptions")]
pub struct UnblockRequest {
    /// The group.
    pub group_key: String,
    /// What to do with its first event.
    pub how: UnblockAction,
    /// The reason, for the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
}

/// An [`UnblockRequest`] in the form of the command line and of JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnblockOptions {
    group: String,
    #[serde(default)]
    retry: bool,
    #[serde(default)]
    skip: bool,
    #[serde(default)]
    cancel: bool,
    reason: String,
    actor: Option<String>,
}

impl TryFrom<UnblockOptions> for UnblockRequest {
    type Error = &'static str;

    fn try_from(asked: UnblockOptions) -> Result<Self, Self::Error> {
        let how = match (asked.retry, asked.skip, asked.cancel) {
            (true, false, false) => UnblockAction::Retry,
            (false, true, false) => UnblockAction::Skip,
            (false, false, true) => UnblockAction::Cancel,
            _ => return Err("retry, skip, cancel: one of them must be true"),
        };
        Ok(Self {
            group_key: asked.group,
            how,
            reason: asked.reason,
            actor: asked.actor,
        })
    }
}

/// The report of a replay. For a dry run, what the replay would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "replay")]
#[non_exhaustive]
pub struct ReplayReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Events in the log that match the request.
    pub matched: u64,
    /// Those of them that can be replayed, up to the limit.
    pub eligible: u64,
    /// Those of them that were published again.
    pub replayed: u64,
    /// The first 100 new events.
    pub events: Vec<Replayed>,
    /// Whether eligible events were left out, because of the limit or because a replay may touch at most
    /// 2,000 groups. Send the request again for the rest.
    pub limit_reached: bool,
    /// Eligible events by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Events that were not eligible.
    pub skipped_count: u64,
    /// Events that were not eligible, by reason.
    pub skipped_reasons: BTreeMap<String, u64>,
    /// The first 100 events that were not eligible.
    pub skipped: Vec<Skipped>,
    /// Eligible events that need a new deadline.
    pub passed_deadlines: PassedDeadlines,
    /// Why nothing at all was replayed.
    pub refused: Option<String>,
    /// The digest of the eligible events' ids. Two different sets have different digests.
    #[serde(default)]
    pub digest: String,
    /// How the replay would change the order in groups; only for a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_risks: Option<OrderRisks>,
}

/// A replay of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replayed {
    /// The new event.
    pub id: i64,
    /// The original event in the log.
    pub replay_of: i64,
}

/// An event that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// The event's id.
    pub id: i64,
    /// Why it was left out.
    pub reason: String,
    /// The event that stands in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<i64>,
}

/// Events whose start-before time has passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PassedDeadlines {
    /// How many.
    pub count: u64,
    /// The first ten.
    pub ids: Vec<i64>,
}

/// The changes of order in groups: replays run later in their group than the originals did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OrderRisks {
    /// How many groups the replay touches.
    pub groups: u64,
    /// How many of them have live events, which the replays would wait for.
    pub groups_with_live_events: u64,
    /// The first 100 groups with live events.
    pub live_events: Vec<BusyGroup>,
    /// How many of them have later events that have already ended.
    pub groups_overtaken: u64,
    /// The first 100 groups with such events.
    pub overtaken: Vec<OvertakenGroup>,
}

/// A group with live events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BusyGroup {
    /// The group.
    pub group_key: String,
    /// How many live events it has.
    pub live: u64,
}

/// A group whose later events have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OvertakenGroup {
    /// The group.
    pub group_key: String,
    /// How many events after the first one to be replayed have ended.
    pub ended: u64,
    /// The id of the last of them.
    pub last_id: i64,
    /// When the latest of them ended, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub last_finished_at: String,
}

/// The report of a requeue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "requeue")]
#[non_exhaustive]
pub struct RequeueReport {
    /// How many events now wait for the next drain.
    pub requeued: u64,
    /// Their ids.
    pub ids: Vec<i64>,
    /// Those of them whose deadline has passed. The next drain ends them as expired.
    pub past_deadline: Vec<i64>,
    /// How many ids name no live event.
    pub skipped_count: u64,
    /// The first 100 of these ids.
    pub skipped: Vec<Skipped>,
}

/// The report of a pause or a resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct PauseReport {
    /// `pause` or `resume`.
    pub action: String,
    /// The kind.
    pub kind: String,
    /// Whether it is paused now.
    pub paused: bool,
    /// False if the kind was already in this state.
    pub changed: bool,
}

/// A request to pause, resume or limit a service. As JSON it has the command line's options: `name`, and
/// `pause`, `resume`, or `limit` and `per_second`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "ServiceOptions")]
pub struct ServiceRequest {
    /// Its name, as handlers give it; 1 to 100 characters.
    pub service: String,
    /// What to do with it.
    pub action: ServiceAction,
    /// The reason, for the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
}

/// The action on a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceAction {
    /// Stop all calls; events that need the service wait.
    Pause,
    /// Allow calls again, even if the service has not answered.
    Resume,
    /// Limit the calls, over all drains.
    Limit {
        /// The most events that call it at once, 1 to 10,000. 0 removes the limit, `None` leaves it as it is.
        max_running: Option<u32>,
        /// The most events that start per second, 0.0001 to 10,000. 0 removes the limit, `None` leaves it as
        /// it is.
        per_second: Option<f64>,
    },
}

/// A [`ServiceRequest`] in the form of the command line and of JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceOptions {
    name: String,
    #[serde(default)]
    pause: bool,
    #[serde(default)]
    resume: bool,
    limit: Option<u32>,
    per_second: Option<f64>,
    reason: String,
    actor: Option<String>,
}

impl TryFrom<ServiceOptions> for ServiceRequest {
    type Error = &'static str;

    fn try_from(asked: ServiceOptions) -> Result<Self, Self::Error> {
        let (max_running, per_second) = (asked.limit, asked.per_second);
        let limits = max_running.is_some() || per_second.is_some();
        let action = match (asked.pause, asked.resume, limits) {
            (true, false, false) => ServiceAction::Pause,
            (false, true, false) => ServiceAction::Resume,
            (false, false, true) => ServiceAction::Limit {
                max_running,
                per_second,
            },
            _ => return Err("pause, resume: one of them must be true, or a limit given"),
        };
        Ok(Self {
            service: asked.name,
            action,
            reason: asked.reason,
            actor: asked.actor,
        })
    }
}

/// The report of a change of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ServiceChange {
    /// `pause_service`, `resume_service` or `limit_service`.
    pub action: String,
    /// The service.
    pub service: String,
    /// Whether it is called now.
    pub state: ServiceState,
    /// False if the service was already in this state.
    pub changed: bool,
    /// Whether a service of this name was known before. If not, the name may be misspelled.
    pub known: bool,
    /// The most events that call it at once now, if the request was about limits and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// The most events that start per second now, if the request was about limits and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
}

/// The report of a retirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "retire")]
#[non_exhaustive]
pub struct RetireReport {
    /// The kind.
    pub kind: String,
}

/// The report of an unblock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "unblock")]
#[non_exhaustive]
pub struct UnblockReport {
    /// The group.
    pub group_key: String,
    /// The requested action.
    pub how: UnblockAction,
    /// The event that was changed; `None` if nothing was done.
    pub id: Option<i64>,
    /// The new event after the group's other events; only for `skip`.
    pub new_id: Option<i64>,
    /// Why nothing was done.
    pub refused: Option<String>,
}

pub(crate) fn since<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Moment>, D::Error> {
    named("since", parse_moment, deserializer)
}

pub(crate) fn until<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Moment>, D::Error> {
    named("until", parse_moment, deserializer)
}

fn expires_in<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("expires_in", parse_duration, deserializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::At(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn an_actions_name_is_the_one_in_reports() {
        use UnblockAction::{Cancel, Retry, Skip};
        for action in [Retry, Skip, Cancel] {
            assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
        }
    }

    #[test]
    fn f5_a_moment_is_a_time_in_any_zone_or_a_duration_ago() {
        for (text, moment) in [
            ("1970-01-02T00:00:00Z", at(86_400)),
            ("1970-01-02T02:30:00+02:30", at(86_400)),
            ("1970-01-01T19:00:00-05:00", at(86_400)),
            ("2h", Moment::Ago(Duration::from_hours(2))),
        ] {
            assert_eq!(parse_moment(text), Ok(moment), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "1970-01-02",
            "1970-01-02T00:00:00",
            "1970-01-02T00:00:00+2:00",
            "1970-01-02T00:00:00+24:00",
            "1970-01-02T00:00:00ø00:00",
            "-2h",
        ] {
            let refused = parse_moment(text).unwrap_err();
            assert!(
                refused.contains(&format!("{text:?}")) && refused.contains("ago"),
                "{refused}"
            );
        }
    }
}
