//! The verb `schedule`: changes a periodic event, or publishes it now.

use serde_json::Value;

use super::prelude::*;
use super::{CatchUp, json_argument};
use crate::periodic::Periodic;
use crate::queue::with_declared;
use crate::schedule;

/// Create, change, pause, resume or remove a periodic event, or publish it now.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate schedule nightly-report --kind night_fell --cron '30 2 * * *' --time-zone Europe/Kyiv --reason 'the office asks for it'\n  tidegate schedule nightly-report --pause --reason 'the office is closed'"
)]
pub struct ScheduleRequest {
    /// Name of the schedule: 1 to 100 letters, digits, '.', '_' and '-'.
    pub name: String,
    /// What to do with it.
    #[command(flatten)]
    #[serde(skip)]
    pub change: ScheduleAction,
    /// What it publishes, and when.
    #[command(flatten)]
    #[serde(skip)]
    pub recurring: Recurring,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// What to do with a schedule: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[group(required = true, multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[serde(default)]
pub struct ScheduleAction {
    /// Create or replace the schedule, with events of this kind; the kind must be registered.
    #[arg(long)]
    pub kind: Option<String>,
    /// Stop publishing; slots that pass meanwhile are skipped.
    #[arg(long)]
    pub pause: bool,
    /// Publish again, from the next slot on.
    #[arg(long)]
    pub resume: bool,
    /// Remove the schedule; one that a program declares cannot be removed.
    #[arg(long)]
    pub remove: bool,
    /// Publish its event now, in addition to its slots.
    #[arg(long)]
    pub run: bool,
}

/// What a schedule publishes, and when. Only for a schedule that is set.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Args)]
pub struct Recurring {
    /// Payload of its events: JSON text, @FILE to read a file, or - to read stdin; at most 64 KiB.
    #[arg(long, requires = "kind", value_parser = payload)]
    pub payload: Option<Value>,
    /// Publish at these times: minute, hour, day of the month, month and day of the week, such as '30 2 * *
    /// MON-FRI', or a name such as @daily.
    #[arg(long, requires = "kind", conflicts_with = "every")]
    pub cron: Option<String>,
    /// Publish at every multiple of this time since 1970, in UTC, such as 15m; whole seconds, 1s to 366d.
    #[arg(long, requires = "kind", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub every: Option<Duration>,
    /// Time zone of --cron, such as Europe/Kyiv [default: UTC].
    #[arg(long, requires = "cron")]
    pub time_zone: Option<String>,
    /// Group of its events.
    #[arg(long, requires = "kind")]
    pub group: Option<String>,
    /// Start each event within this time after its slot or never, 1s to 366d, such as 1h.
    #[arg(long, requires = "kind", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub start_within: Option<Duration>,
    /// Which missed slots a drain publishes later: none, last or all [default: last].
    #[arg(long, requires = "kind", value_parser = parse_catch_up)]
    pub catch_up: Option<CatchUp>,
}

/// Parses `none`, `last` or `all`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_catch_up(text: &str) -> Result<CatchUp, String> {
    let mut all = [CatchUp::None, CatchUp::Last, CatchUp::All].into_iter();
    all.find(|one| one.as_str() == text)
        .ok_or_else(|| format!("must be none, last or all, got {text:?}"))
}

/// Reads the payload of a flag.
fn payload(argument: &str) -> Result<Value, String> {
    let text = json_argument(argument)?;
    serde_json::from_str(text.get()).map_err(|error| format!("must be JSON: {error}"))
}

/// The report of a change of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

statements! {
    SET: "set_schedule" [TEXT, TEXT, TEXT] =
        with_declared!("SELECT tidegate.set_schedule(", ", $2, $3)::text");

    PAUSE: "pause_schedule" [TEXT, TEXT, TEXT] = "SELECT tidegate.pause_schedule($1, $2, $3)::text";

    RESUME: "resume_schedule" [TEXT, TEXT, TEXT] = "SELECT tidegate.resume_schedule($1, $2, $3)::text";

    REMOVE: "remove_schedule" [TEXT, TEXT, TEXT] = "SELECT tidegate.remove_schedule($1, $2, $3)::text";

    RUN: "run_schedule" [TEXT, TEXT, TEXT] = "SELECT tidegate.run_schedule($1, $2, $3)::text";
}

impl Recurring {
    fn periodic(&self) -> Periodic {
        Periodic {
            cron: self.cron.clone(),
            every: self.every,
            time_zone: self.time_zone.clone(),
            group: self.group.clone(),
            start_within: self.start_within,
            catch_up: self.catch_up.unwrap_or_default(),
        }
    }
}

impl ScheduleRequest {
    async fn set(&self, client: &impl Queryable, kind: &str) -> Result<ScheduleChange> {
        let periodic = self.recurring.periodic();
        let next_at = schedule::check(&periodic)?;
        let payload = self.recurring.payload.as_ref().map(ToString::to_string);
        let payload = schedule::sealed(kind, payload).await?;
        let declared = schedule::declared(&self.name, kind, payload, &periodic).text()?;
        let Audit { reason, actor } = &self.audit;
        let values: &[&(dyn ToSql + Sync)] = &[&declared, reason, actor];
        let change: ScheduleChange = report(client, &SET, values).await?;
        Ok(ScheduleChange {
            next_at: Some(next_at),
            ..change
        })
    }
}

impl Verb for ScheduleRequest {
    const NAME: &'static str = "schedule";

    type Report = ScheduleChange;

    parts! { change, recurring; audit }

    fn check(&self) -> Result<()> {
        let what = &self.change;
        let is_set = what.kind.is_some();
        let is_one = given(&[is_set, what.pause, what.resume, what.remove, what.run]) == 1;
        if is_one && (is_set || self.recurring == Recurring::default()) {
            return Ok(());
        }
        let text = "pause, resume, remove, run: one of them must be true, or kind given with cron or every";
        Err(Error::Invalid(text.to_owned()))
    }

    async fn on(&self, client: &impl Queryable) -> Result<ScheduleChange> {
        let statement = match &self.change {
            ScheduleAction {
                kind: Some(kind), ..
            } => return self.set(client, kind).await,
            ScheduleAction { pause: true, .. } => &PAUSE,
            ScheduleAction { resume: true, .. } => &RESUME,
            ScheduleAction { remove: true, .. } => &REMOVE,
            ScheduleAction { .. } => &RUN,
        };
        let Audit { reason, actor } = &self.audit;
        report(client, statement, &[&self.name, reason, actor]).await
    }
}
