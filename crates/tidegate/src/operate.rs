//! Owns what an operator may ask for and is answered: replay, requeue, cancel, reschedule, pause, resume, retire, unblock, a kind's policy, and that a service is
//! called or not. It knows no SQL. One surprise: what could not be done is no error but part of the report, because the
//! audit tells of the try as well; only arguments that are not allowed are errors.

mod change;
mod forget;
mod policy;
mod schedule;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize};

pub use self::change::{CancelReport, CancelRequest, RescheduleReport, RescheduleRequest};
pub(crate) use self::change::{Change, Selection};
pub use self::forget::{
    ForgetReport, ForgetRequest, RewrapReport, RewrapRequest, Subject, SubjectKeys, parse_subject,
};
pub use self::policy::{PolicyReport, PolicyRequest};
pub use self::schedule::{
    CatchUp, Periodic, ScheduleAction, ScheduleChange, ScheduleRequest, ScheduleStatus,
    parse_catch_up,
};
use crate::config::{named, parse_duration};

/// A point in time as people give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// This instant.
    At(SystemTime),
    /// This long before now, by the database's clock.
    Ago(Duration),
}

impl Moment {
    /// As a time, or as seconds before the database's now.
    pub(crate) fn parts(moment: Option<Self>) -> (Option<SystemTime>, Option<f64>) {
        match moment {
            None => (None, None),
            Some(Self::At(time)) => (Some(time), None),
            Some(Self::Ago(time)) => (None, Some(time.as_secs_f64())),
        }
    }
}

/// A moment: an RFC 3339 time, or a duration that means "ago".
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

/// A point in time.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_time(text: &str) -> Result<SystemTime, String> {
    parse_rfc3339(text).ok_or_else(|| {
        format!("must be an RFC 3339 time such as 2026-01-31T12:00:00Z, got {text:?}")
    })
}

/// With any offset; the library reads UTC alone.
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

/// Which logged events to put back as new ones, and why. Either `ids` or a filter with `since`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// These, 1 to 10,000.
    pub ids: Option<Vec<i64>>,
    /// Only events of this kind.
    pub kind: Option<String>,
    /// Only events that ended like this.
    pub status: Option<String>,
    /// Only events whose last error has this code.
    pub code: Option<String>,
    /// Only events that ended then or later.
    #[serde(default, deserialize_with = "since")]
    pub since: Option<Moment>,
    /// Only events that ended before.
    #[serde(default, deserialize_with = "until")]
    pub until: Option<Moment>,
    /// For the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// Who says to be asking, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
    /// At most this many, lowest ids first; 1 to 100,000, by default 10,000.
    pub limit: Option<i64>,
    /// Tell what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// With a filter: also events that were replayed before, are replays, or were cancelled.
    #[serde(default)]
    pub again: bool,
    /// Run only handlers that failed or never finished; the others' results are kept.
    #[serde(default)]
    pub failed_handlers_only: bool,
    /// The new deadline of events whose old one has passed, from now.
    #[serde(default, deserialize_with = "expires_in")]
    pub expires_in: Option<Duration>,
    /// Replay nothing unless exactly the events of a dry run with this digest are chosen.
    pub digest: Option<String>,
}

/// Which live events to run again, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequeueRequest {
    /// These, 1 to 10,000.
    pub ids: Vec<i64>,
    /// For the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// Who says to be asking, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
}

/// Which kind to pause, resume or retire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindRequest {
    /// Must be registered.
    pub kind: String,
    /// For the audit; at most 1,000 characters. A kind is retired only for a reason.
    pub reason: Option<String>,
    /// Who says to be asking, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
}

/// What to do with the first event of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnblockAction {
    /// Run it at the next drain.
    Retry,
    /// End it, and put what is left to do of it behind the group's other events.
    Skip,
    /// End it.
    Cancel,
}

impl UnblockAction {
    /// The action's name in reports and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Cancel => "cancel",
        }
    }
}

/// Which group to unblock, and why. As JSON it has the command line's options: `group`, and `retry`, `skip` or `cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "UnblockOptions")]
pub struct UnblockRequest {
    /// The group.
    pub group_key: String,
    /// What to do with its first event.
    pub how: UnblockAction,
    /// For the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// Who says to be asking, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
}

/// An [`UnblockRequest`] as the command line and JSON have it.
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

/// What a replay did or, as a dry run, would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename = "replay")]
#[non_exhaustive]
pub struct ReplayReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Events in the log that were asked for.
    pub matched: u64,
    /// Those of them that nothing stood in the way of, up to the limit.
    pub eligible: u64,
    /// Those of them that are new events now.
    pub replayed: u64,
    /// The new events, the first 100.
    pub events: Vec<Replayed>,
    /// More were eligible than the limit, or than may touch 2,000 groups; ask again for the rest.
    pub limit_reached: bool,
    /// Eligible events by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Events that were not eligible.
    pub skipped_count: u64,
    /// By reason.
    pub skipped_reasons: BTreeMap<String, u64>,
    /// The first 100 of them.
    pub skipped: Vec<Skipped>,
    /// Eligible events that must be given a new deadline.
    pub passed_deadlines: PassedDeadlines,
    /// Why nothing at all was replayed.
    pub refused: Option<String>,
    /// Names the eligible events: two sets of them never share it.
    #[serde(default)]
    pub digest: String,
    /// What the replay would do to the order of groups; of a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_risks: Option<OrderRisks>,
}

/// A replay of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// The new event.
    pub id: i64,
    /// The logged one.
    pub replay_of: i64,
}

/// An event that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The event's id.
    pub id: i64,
    /// What kept it from being done.
    pub reason: String,
    /// The event that stands in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<i64>,
}

/// Events whose start-before time has passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedDeadlines {
    /// How many.
    pub count: u64,
    /// The first ten.
    pub ids: Vec<i64>,
}

/// Where a replay would come at another place in its group than the original did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderRisks {
    /// Groups touched.
    pub groups: u64,
    /// Those of them whose live events the replays would wait behind.
    pub groups_with_live_events: u64,
    /// The first 100 of them.
    pub live_events: Vec<BusyGroup>,
    /// Those of them in which events behind the originals have ended already.
    pub groups_overtaken: u64,
    /// The first 100 of them.
    pub overtaken: Vec<OvertakenGroup>,
}

/// A group with live events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyGroup {
    /// The group.
    pub group_key: String,
    /// Its live events.
    pub live: u64,
}

/// A group whose later events have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvertakenGroup {
    /// The group.
    pub group_key: String,
    /// Ended events behind the first one to be replayed.
    pub ended: u64,
    /// The last of them.
    pub last_id: i64,
    /// When the latest of them ended, RFC 3339.
    pub last_finished_at: String,
}

/// What a requeue did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename = "requeue")]
#[non_exhaustive]
pub struct RequeueReport {
    /// How many events wait for the next drain now.
    pub requeued: u64,
    /// Their ids.
    pub ids: Vec<i64>,
    /// Those of them whose deadline has passed: the next drain ends them as expired.
    pub past_deadline: Vec<i64>,
    /// Ids that are no live events.
    pub skipped_count: u64,
    /// The first 100 of them.
    pub skipped: Vec<Skipped>,
}

/// What a pause or a resume did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PauseReport {
    /// `pause` or `resume`.
    pub action: String,
    /// The kind.
    pub kind: String,
    /// Whether it is paused now.
    pub paused: bool,
    /// False when it was so before.
    pub changed: bool,
}

/// What is known of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// It answers, as far as anybody knows.
    #[default]
    Closed,
    /// It does not: what needs it waits until it is tried again.
    Open,
    /// One event is being tried.
    Probing,
    /// An operator keeps it from being called.
    Paused,
}

/// A service as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServiceStatus {
    /// Its name, as handlers give it.
    pub service: String,
    /// Whether it is called.
    pub state: ServiceState,
    /// Since when it is, or is not.
    pub since: String,
    /// Calls in a row that it has not answered.
    pub failures: u32,
    /// When it is tried again.
    pub retry_at: Option<String>,
    /// When it was told to have answered.
    pub answered_at: Option<String>,
    /// The code of the last failure.
    pub last_error: Option<String>,
    /// Kinds of events that wait for it when it is not called.
    pub kinds: Vec<String>,
    /// How many events that call it run at once at most, over all drains.
    pub max_running: Option<u32>,
    /// How many of them start in a second at most.
    pub per_second: Option<f64>,
    /// How many of its places drains have now.
    pub places: u32,
    /// How many events do.
    pub waiting: u64,
    /// When the oldest of them was published.
    pub oldest: Option<String>,
}

/// Events of a kind that will pass their deadline before they are started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpiringKind {
    /// The kind.
    pub kind: String,
    /// How many at least.
    pub events: u64,
    /// The earliest of their deadlines, RFC 3339.
    pub first_deadline: String,
}

/// Which service to pause, to resume or to limit. As JSON it has the command line's options: `name`, and `pause`, `resume`, or
/// `limit` and `per_second`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "ServiceOptions")]
pub struct ServiceRequest {
    /// Its name, as handlers give it; 1 to 100 characters.
    pub service: String,
    /// What to do with it.
    pub action: ServiceAction,
    /// For the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// Who says to be asking, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
}

/// What to do with a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceAction {
    /// No handler calls it, and what needs it waits.
    Pause,
    /// It is called again, also when it has not answered.
    Resume,
    /// It is called no more often than this, over all drains.
    Limit {
        /// How many events that call it run at once, 1 to 10,000; 0 is any number, `None` leaves it as it is.
        max_running: Option<u32>,
        /// How many of them start in a second, 0.0001 to 10,000; 0 is any number, `None` leaves it as it is.
        per_second: Option<f64>,
    },
}

/// A [`ServiceRequest`] as the command line and JSON have it.
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

/// What a change of a service did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServiceChange {
    /// `pause_service`, `resume_service` or `limit_service`.
    pub action: String,
    /// The service.
    pub service: String,
    /// Whether it is called now.
    pub state: ServiceState,
    /// False when it was so before.
    pub changed: bool,
    /// Whether anybody had told of a service of this name before: else it may be misspelled.
    pub known: bool,
    /// How many events that call it run at once now, if that was what was asked for and there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// How many of them start in a second, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
}

/// What a retirement did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename = "retire")]
#[non_exhaustive]
pub struct RetireReport {
    /// The kind.
    pub kind: String,
}

/// What an unblock did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename = "unblock")]
#[non_exhaustive]
pub struct UnblockReport {
    /// The group.
    pub group_key: String,
    /// What was asked for.
    pub how: UnblockAction,
    /// The event it was done to; `None` when nothing was done.
    pub id: Option<i64>,
    /// The new event behind the others, of a skip.
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
