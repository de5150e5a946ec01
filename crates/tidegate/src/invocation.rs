//! Owns the format of invocations: the requests that they carry and the answers to them. The format is the
//! same for Lambda and for `--json` on the command line. This module knows no SQL and starts nothing.

mod fit;

use std::cell::RefCell;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use self::fit::{ANSWER_LIMIT, fit};
use crate::chain::Chain;
use crate::config::{Lookup, parse_duration};
use crate::drain::DrainOptions;
use crate::error::Error;
use crate::look::{FirstRequest, ListRequest, ShowRequest};
use crate::operate::{
    CancelRequest, ExpiringKind, ForgetRequest, KindRequest, PolicyRequest, ReplayRequest,
    RequeueRequest, RescheduleRequest, ScheduleRequest, ServiceRequest, ServiceStatus,
    UnblockRequest, budget, named,
};
use crate::retention::{Change, CleanupOptions};

/// A request, by its `action`.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Leases and handles events until the queue is empty or the budget is spent.
    Drain(DrainRequest),
    /// Removes finished events whose retention is over, and ends live events that nothing will handle.
    Cleanup(CleanupRequest),
    /// Returns the queue's figures.
    Stats(NoOptions),
    /// Brings the schema up to date.
    Migrate(MigrateRequest),
    /// Publishes logged events again as new events.
    Replay(ReplayRequest),
    /// Runs live events again.
    Requeue(RequeueRequest),
    /// Ends live events.
    Cancel(CancelRequest),
    /// Changes the start time of waiting events.
    Reschedule(RescheduleRequest),
    /// Shows everything about one event.
    Show(ShowRequest),
    /// Lists events, newest first.
    List(ListRequest),
    /// Lists the groups that wait for their first event.
    BlockedGroups(FirstRequest),
    /// Lists the leases and their workers.
    Leases(FirstRequest),
    /// Lists the outside services that have failed.
    Services(NoOptions),
    /// Blocks calls to an outside service, or allows them again.
    Service(ServiceRequest),
    /// Pauses a kind: its events are not leased.
    Pause(KindRequest),
    /// Resumes a paused kind.
    Resume(KindRequest),
    /// Retires a kind: it can no longer be published.
    Retire(KindRequest),
    /// Shows or changes how events of a kind are handled.
    Policy(PolicyRequest),
    /// Acts on the first event of a group.
    Unblock(UnblockRequest),
    /// Erases the stored data of a person.
    Forget(ForgetRequest),
    /// Lists the schedules of periodic events.
    Schedules(FirstRequest),
    /// Changes a schedule, or publishes its event now.
    Schedule(ScheduleRequest),
    /// Shows or changes how long finished events are kept.
    Retention(RetentionRequest),
    /// Reports problems of the database, the schema and the queue.
    Doctor(NoOptions),
    /// An action that the program adds.
    Further {
        /// Its name.
        action: String,
        /// All fields of the request except `action`.
        fields: Value,
    },
}

/// The actions of every program.
pub(crate) const ACTIONS: [&str; 24] = [
    "drain",
    "cleanup",
    "replay",
    "requeue",
    "cancel",
    "reschedule",
    "stats",
    "migrate",
    "show",
    "list",
    "blocked_groups",
    "leases",
    "services",
    "service",
    "pause",
    "resume",
    "retire",
    "policy",
    "unblock",
    "forget",
    "schedules",
    "schedule",
    "retention",
    "doctor",
];

/// The action for messages in AWS envelopes, of a program with an intake.
const RECEIVE: &str = "receive";

/// The actions that exist, and the ones that `TIDEGATE_ACTIONS` allows here, as a list such as `drain,
/// cleanup`. For example, a function that a schedule starts need not be allowed to replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actions {
    /// The actions that the program adds.
    further: Vec<&'static str>,
    /// Whether the program has an intake for messages, which come in their own envelopes.
    receives: bool,
    /// The allowed actions. `None` allows all.
    allowed: Option<Vec<String>>,
}

impl Actions {
    /// Reads `TIDEGATE_ACTIONS`. If it is unset, all actions are allowed. `further` are the actions that the
    /// program adds. `receives` says whether the program takes in messages from outside.
    ///
    /// # Errors
    /// [`Error::Config`] if it names no action, or an unknown one.
    pub fn from_setting(
        lookup: Lookup<'_>,
        further: Vec<&'static str>,
        receives: bool,
    ) -> Result<Self, Error> {
        let mut actions = Self {
            further,
            receives,
            allowed: None,
        };
        let Some(text) = lookup("TIDEGATE_ACTIONS") else {
            return Ok(actions);
        };
        let named: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if let Some(unknown) = named.iter().find(|name| !actions.knows(name)) {
            return Err(Error::Config(format!(
                "TIDEGATE_ACTIONS: must be a comma-separated list of {}, got {unknown:?}",
                actions.list()
            )));
        }
        actions.allowed = Some(named);
        Ok(actions)
    }

    fn all(&self) -> impl Iterator<Item = &'static str> {
        let receive = self.receives.then_some(RECEIVE);
        let own = self.further.iter().copied();
        ACTIONS.into_iter().chain(receive).chain(own)
    }

    fn knows(&self, name: &str) -> bool {
        self.all().any(|known| known == name)
    }

    /// Returns the actions as an error message lists them.
    fn list(&self) -> String {
        self.all().collect::<Vec<_>>().join(", ")
    }

    /// Decodes an invocation's payload. The envelope of an `EventBridge` schedule has no action, and counts
    /// as a drain (F1).
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what it must be.
    pub fn request(&self, payload: Value) -> Result<Request, Error> {
        let is_tick = is_scheduled_event(&payload);
        let Value::Object(mut fields) = payload else {
            let list = self.list();
            let text = format!("invocation: must be an object with an action: {list}");
            return Err(Error::Invalid(text));
        };
        let action = match fields.get("action") {
            None if is_tick => "drain",
            None => return Err(self.refused("is missing")),
            Some(Value::String(action)) => match self.all().find(|known| known == action) {
                Some(action) => action,
                None => return Err(self.refused(&format!("got {action:?}"))),
            },
            Some(_) => return Err(self.refused("got no string")),
        };
        self.check(action)?;
        if action == RECEIVE {
            let wanted = "must not be receive";
            let text = format!(
                "action: {wanted}, because messages arrive in the format of the AWS service that sends them"
            );
            return Err(Error::Invalid(text));
        }
        if is_tick && !fields.contains_key("action") {
            return Ok(Request::Drain(DrainRequest::default()));
        }
        fields.remove("action");
        asked(action, fields)
    }

    fn refused(&self, what: &str) -> Error {
        let list = self.list();
        Error::Invalid(format!("action: must be one of {list}; {what}"))
    }

    /// Whether a schedule sent this invocation.
    #[must_use]
    pub fn is_tick(payload: &Value) -> bool {
        is_scheduled_event(payload)
    }

    /// Refuses an action that is not allowed here.
    ///
    /// # Errors
    /// [`Error::Invalid`] lists the allowed actions.
    pub fn check(&self, action: &str) -> Result<(), Error> {
        match &self.allowed {
            Some(allowed) if !allowed.iter().any(|name| name == action) => {
                Err(Error::Invalid(format!(
                    "action: this function answers {} (TIDEGATE_ACTIONS), got {action:?}",
                    allowed.join(", ")
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Decodes the fields of a known action.
fn asked(action: &str, fields: Map<String, Value>) -> Result<Request, Error> {
    Ok(match action {
        "drain" => Request::Drain(decode(fields)?),
        "cleanup" => Request::Cleanup(decode(fields)?),
        "replay" => Request::Replay(decode(fields)?),
        "requeue" => Request::Requeue(decode(fields)?),
        "cancel" => Request::Cancel(decode(fields)?),
        "reschedule" => Request::Reschedule(decode(fields)?),
        "stats" => Request::Stats(decode(fields)?),
        "migrate" => Request::Migrate(decode(fields)?),
        "show" => Request::Show(decode(fields)?),
        "list" => Request::List(decode(fields)?),
        "blocked_groups" => Request::BlockedGroups(decode(fields)?),
        "leases" => Request::Leases(decode(fields)?),
        "services" => Request::Services(decode(fields)?),
        "service" => Request::Service(decode(fields)?),
        "pause" => Request::Pause(decode(fields)?),
        "resume" => Request::Resume(decode(fields)?),
        "retire" => Request::Retire(decode(fields)?),
        "policy" => Request::Policy(decode(fields)?),
        "unblock" => Request::Unblock(decode(fields)?),
        "forget" => Request::Forget(decode(fields)?),
        "schedules" => Request::Schedules(decode(fields)?),
        "schedule" => Request::Schedule(decode(fields)?),
        "retention" => Request::Retention(decode(fields)?),
        "doctor" => Request::Doctor(decode(fields)?),
        own => Request::Further {
            action: own.to_owned(),
            fields: Value::Object(fields),
        },
    })
}

/// Reads the options of an action. An error names the field: `serde` names unknown and missing fields itself.
/// For other errors, this names the field that was being read.
fn decode<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, Error> {
    let reading = RefCell::new(None);
    let noted = fields.into_iter().inspect(|(name, _)| {
        reading.replace(Some(name.clone()));
    });
    let after_all = std::iter::from_fn(|| {
        reading.replace(None);
        None
    });
    let read = T::deserialize(MapDeserializer::new(noted.chain(after_all)));
    read.map_err(|error: serde_json::Error| {
        let text = error.to_string();
        Error::Invalid(match &*reading.borrow() {
            None => format!("invocation: {text}"),
            Some(field) => {
                let prefix = format!("{field}: ");
                let text = text.strip_prefix(&prefix).unwrap_or(&text);
                format!("invocation: {field}: {}", in_words(text))
            }
        })
    })
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

/// The options of an action without options. Every field is refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

/// Options of a migration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrateRequest {
    /// Creates the database roles and grants their rights.
    #[serde(default)]
    pub roles: bool,
    /// Migrates even if only other programs' kinds are registered. Both programs share the queue from then
    /// on.
    #[serde(default)]
    pub share: bool,
}

/// Options of a drain. The environment supplies the ones that are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// The longest run. The invocation's own deadline also limits it.
    #[serde(default, deserialize_with = "budget")]
    pub budget: Option<Duration>,
    /// The most events in one lease call.
    pub batch: Option<u32>,
    /// The number of handlers that run at the same time.
    pub concurrency: Option<usize>,
    /// How long to keep polling an empty queue.
    #[serde(default, deserialize_with = "linger")]
    pub linger: Option<Duration>,
    /// The most events to lease in this run.
    pub max_events: Option<u64>,
    /// The drain's place in a chain of drains that start each other. The drain that starts it sets this
    /// field.
    pub chain: Option<Chain>,
}

/// Options of a cleanup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CleanupRequest {
    /// Changes nothing and reports what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// The longest run. The invocation's own deadline also limits it.
    #[serde(default, deserialize_with = "budget")]
    pub budget: Option<Duration>,
    /// Ends only live events that were published at least this long ago.
    #[serde(default, deserialize_with = "older_than")]
    pub older_than: Option<Duration>,
    /// The number of rows that one step reads or deletes.
    pub batch: Option<u32>,
    /// The name of the requester, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
}

impl CleanupRequest {
    /// Returns the options of this run. The request wins over the configured budget and actor, and these win
    /// over the defaults.
    #[must_use]
    pub fn over(&self, budget: Duration, actor: Option<String>) -> CleanupOptions {
        let default = CleanupOptions::default();
        CleanupOptions {
            dry_run: self.dry_run,
            budget: self.budget.unwrap_or(budget),
            older_than: self.older_than.unwrap_or(default.older_than),
            batch: self.batch.unwrap_or(default.batch),
            actor: self.actor.clone().or(actor),
            ..default
        }
    }
}

/// Shows how long finished events are kept. With `completed`, `failed` or `apply`, changes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionRequest {
    /// Only this kind. Required for a change.
    pub kind: Option<String>,
    /// How long to keep COMPLETED events of this kind.
    #[serde(default, deserialize_with = "completed")]
    pub completed: Option<Duration>,
    /// How long to keep FAILED and `COMPLETED_WITH_ERRORS` events of this kind.
    #[serde(default, deserialize_with = "failed")]
    pub failed: Option<Duration>,
    /// Applies the change to finished events of this kind as well.
    #[serde(default)]
    pub apply: bool,
    /// How long applying the change may take. The invocation's own deadline also limits it.
    #[serde(default, deserialize_with = "budget")]
    pub budget: Option<Duration>,
    /// The reason, for the audit; not blank, at most 1,000 characters. Required for a change.
    pub reason: Option<String>,
    /// The name of the requester, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
}

impl RetentionRequest {
    /// Returns the requested change, if there is one. The configured budget applies unless the request has
    /// its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field that a change lacks.
    pub(crate) fn change(&self, budget: Duration) -> Result<Option<Change>, Error> {
        if self.completed.is_none() && self.failed.is_none() && !self.apply {
            return Ok(None);
        }
        let lacks = |field: &str| {
            let text = format!("{field}: must be given with completed, failed or apply");
            Error::Invalid(text)
        };
        Ok(Some(Change {
            kind: self.kind.clone().ok_or_else(|| lacks("kind"))?,
            completed: self.completed,
            failed: self.failed,
            apply: self.apply,
            budget: self.budget.unwrap_or(budget),
            reason: self.reason.clone().ok_or_else(|| lacks("reason"))?,
            actor: self.actor.clone(),
        }))
    }
}

fn completed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("completed", parse_duration, deserializer)
}

fn failed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("failed", parse_duration, deserializer)
}

fn linger<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("linger", parse_duration, deserializer)
}

fn older_than<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("older_than", parse_duration, deserializer)
}

impl DrainRequest {
    /// Returns the options of this run. The request wins over the configured values.
    #[must_use]
    pub fn over(&self, configured: &DrainOptions) -> DrainOptions {
        DrainOptions {
            budget: self.budget.unwrap_or(configured.budget),
            batch: self.batch.unwrap_or(configured.batch),
            concurrency: self.concurrency.unwrap_or(configured.concurrency),
            linger: self.linger.unwrap_or(configured.linger),
            max_events: self.max_events.or(configured.max_events),
            ..configured.clone()
        }
    }
}

/// Whether this is a message from a schedule of `EventBridge`:
/// <https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-rule-schedule.html>.
#[must_use]
pub fn is_scheduled_event(payload: &Value) -> bool {
    payload["detail-type"] == "Scheduled Event"
        && matches!(
            payload["source"].as_str(),
            Some("aws.events" | "aws.scheduler")
        )
}

/// Queue figures, of the whole queue and by kind (C13).
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "stats")]
#[non_exhaustive]
pub struct StatsReport {
    /// Live events.
    pub backlog: u64,
    /// Age of the oldest live event.
    pub oldest_age_ms: u64,
    /// Leased events.
    pub in_flight: u64,
    /// Events that wait for a planned time or for another attempt.
    pub delayed: u64,
    /// Leased events whose lease has run out because their worker died or froze.
    pub stuck: u64,
    /// Groups whose first event waits while other events wait behind it.
    pub blocked_groups: u64,
    /// Events that ended `COMPLETED_WITH_ERRORS` or FAILED in the last day.
    pub dead_letters_last_day: u64,
    /// Events that ended in the last hour.
    pub finished_last_hour: u64,
    /// Events that ended in the last minute, per second.
    pub throughput_per_second: f64,
    /// Events that will pass their start-before deadline before they start (B13), soonest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expiring: Vec<ExpiringKind>,
    /// Services that are not called, with the events that wait for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services_down: Vec<ServiceStatus>,
    /// One object per kind, with the columns of the view `tidegate.stats`.
    #[schemars(with = "Vec<crate::look::rows::KindStats>")]
    pub kinds: Vec<Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(payload: Value) -> Result<Request, Error> {
        Actions::from_setting(&|_| None, vec!["greet"], false)?.request(payload)
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
        let asked = json!({"action": "cleanup", "dry_run": true, "older_than": "1h"});
        let Request::Cleanup(cleanup) = decode(asked).unwrap() else {
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
            (
                json!({"action": "unblock", "group": "g", "skip": true, "cancel": true, "reason": "r"}),
                "retry, skip, cancel: one of them must be true",
            ),
            (
                json!({"action": "unblock", "group": "g", "skip": "yes", "reason": "r"}),
                "skip: must be true or false, got string \"yes\"",
            ),
            (json!({"action": "unblock", "group": "g"}), "reason"),
            (json!({"action": "pause"}), "kind"),
            (
                json!({"action": "schedule", "name": "s", "pause": true, "run": true, "reason": "r"}),
                "pause, resume, remove, run: one of them must be true",
            ),
            (
                json!({"action": "schedule", "name": "s", "pause": true, "cron": "@daily", "reason": "r"}),
                "pause, resume, remove, run: one of them must be true",
            ),
            (
                json!({"action": "schedule", "name": "s", "kind": "k", "every": "often", "reason": "r"}),
                "every: must be a duration",
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
    fn a_change_of_retention_needs_a_kind_and_a_reason() {
        let minute = Duration::from_mins(1);
        let asked = |text| decode(json!({"action": "retention", "failed": "1d", "kind": text}));
        let Request::Retention(change) = asked(Some("paid")).unwrap() else {
            panic!("not of retention")
        };
        let refused = change.change(minute).unwrap_err().to_string();
        assert!(refused.contains("reason: must be given"), "{refused}");
        let reason = Some("r".to_owned());
        let with_reason = RetentionRequest { reason, ..change };
        let change = with_reason.change(minute).unwrap().unwrap();
        assert_eq!((change.kind.as_str(), change.budget), ("paid", minute));
        let kind = None;
        let refused = RetentionRequest {
            kind,
            ..with_reason
        }
        .change(minute);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("kind: must be given"), "{refused}");
        assert_eq!(RetentionRequest::default().change(minute).unwrap(), None);
    }

    #[test]
    fn an_action_of_the_programs_own_has_fields_of_its_own() {
        let asked = decode(json!({"action": "greet", "whom": "all"})).unwrap();
        let fields = json!({"whom": "all"});
        let expected = Request::Further {
            action: "greet".to_owned(),
            fields,
        };
        assert_eq!(asked, expected);
    }

    #[test]
    fn only_actions_that_are_listed_are_allowed_and_a_list_of_others_is_refused() {
        let setting = |text: &'static str| {
            let lookup = move |name: &str| (name == "TIDEGATE_ACTIONS").then(|| text.to_owned());
            Actions::from_setting(&lookup, vec!["greet"], true)
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
        assert!(setting("stats").unwrap().request(tick).is_err());
        assert!(decode(json!({"action": "migrate"})).is_ok());
        for text in ["drain,explode", "drain,", " "] {
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
