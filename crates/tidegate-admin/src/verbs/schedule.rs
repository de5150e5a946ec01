//! The verb `schedule`: pauses or resumes a periodic event, or publishes it now.

use super::prelude::*;

/// Pause or resume a periodic event, or publish it now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate schedule nightly-report --run --reason 'the report got lost'\n  tidegate schedule nightly-report --pause --reason 'the office is closed'"
)]
pub struct ScheduleRequest {
    /// Name of the schedule.
    pub name: String,
    /// What to do with it.
    #[command(flatten)]
    #[serde(skip)]
    pub change: ScheduleAction,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// What to do with a schedule: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[group(required = true, multiple = false)]
#[serde(default)]
pub struct ScheduleAction {
    /// Stop publishing; slots that pass meanwhile are skipped.
    #[arg(long)]
    pub pause: bool,
    /// Publish again, from the next slot on.
    #[arg(long)]
    pub resume: bool,
    /// Publish its event now, in addition to its slots.
    #[arg(long)]
    pub run: bool,
}

/// The report of a change of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ScheduleChange {
    /// The schedule.
    pub name: String,
    /// `paused`, `resumed` or `run`.
    pub change: String,
    /// False if it was already so.
    pub changed: bool,
    /// Whether it is paused now. Slots that pass meanwhile are skipped.
    pub paused: bool,
    /// The event that `run` published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<i64>,
}

statements! {
    PAUSE: "pause_schedule" [TEXT, TEXT, TEXT] = "SELECT @tidegate.pause_schedule($1, $2, $3)::text";

    RESUME: "resume_schedule" [TEXT, TEXT, TEXT] = "SELECT @tidegate.resume_schedule($1, $2, $3)::text";

    RUN: "run_schedule" [TEXT, TEXT, TEXT] = "SELECT @tidegate.run_schedule($1, $2, $3)::text";
}

impl Verb for ScheduleRequest {
    const NAME: &'static str = "schedule";

    type Report = ScheduleChange;

    parts! { change; audit }

    fn check(&self) -> Result<()> {
        let ScheduleAction { pause, resume, run } = self.change;
        if given(&[pause, resume, run]) == 1 {
            return Ok(());
        }
        let text = "pause, resume, run: one of them must be true";
        Err(Error::Invalid(text.to_owned()))
    }

    async fn on(&self, client: &impl Queryable) -> Result<ScheduleChange> {
        let statement = match &self.change {
            ScheduleAction { pause: true, .. } => &PAUSE,
            ScheduleAction { resume: true, .. } => &RESUME,
            ScheduleAction { .. } => &RUN,
        };
        let Audit { reason, actor } = &self.audit;
        report(client, statement, &[&self.name, reason, actor]).await
    }
}
