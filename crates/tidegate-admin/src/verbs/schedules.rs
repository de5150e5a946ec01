//! The verb `schedules`: lists the periodic events.

use tidegate::schedule;
use tidegate_core::queue::{Times, documents};

use super::prelude::*;
use super::views::limit;
use super::{CatchUp, length};

/// List the periodic events, with the last and the next slot of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate schedules --limit 20")]
pub struct SchedulesRequest {
    /// Maximum number of schedules to list, 1 to 10000: stopped ones first, then by next slot.
    #[arg(long, default_value = "50", value_parser = length())]
    pub limit: Option<u32>,
}

/// The schedules of periodic events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SchedulesReport {
    /// Schedules that have stopped come first, then the others by their next slot.
    pub schedules: Vec<ScheduleStatus>,
}

/// A schedule as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ScheduleStatus {
    /// Its name.
    pub name: String,
    /// The program that declares it.
    pub keeper: String,
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

statements! {
    SCHEDULES: "schedules" [INT8] = "\
SELECT jsonb_build_object(
           'name', s.name, 'keeper', s.keeper, 'kind', s.kind, 'cron', s.cron,
           'every_ms', (extract(epoch FROM s.every) * 1000)::int8, 'time_zone', s.time_zone, 'group_key', s.group_key,
           'start_within_ms', (extract(epoch FROM s.start_within) * 1000)::int8, 'catch_up', s.catch_up, 'state',
           CASE WHEN s.problem IS NOT NULL THEN 'stopped' WHEN s.paused THEN 'paused'
                WHEN k.kind IS NULL THEN 'unregistered_kind' WHEN k.paused THEN 'paused_kind'
                WHEN s.next_at <= clock_timestamp() AND isfinite(s.next_at) THEN 'due' ELSE 'waiting' END,
           'next_at', CASE WHEN isfinite(s.next_at) THEN s.next_at END, 'last_at', s.last_at,
           'last_event_id', s.last_event_id, 'fired_at', s.fired_at, 'problem', s.problem,
           'since_s', floor(extract(epoch FROM s.since))::int8)::text
  FROM @tidegate.schedule AS s LEFT JOIN @tidegate.event_kind AS k USING (kind)
 ORDER BY s.problem IS NULL, s.next_at, s.name LIMIT $1";
}

impl Verb for SchedulesRequest {
    const NAME: &'static str = "schedules";

    type Report = SchedulesReport;

    async fn run(&self, runtime: &Runtime) -> Result<SchedulesReport> {
        let (limit, client) = (limit(self.limit)?, runtime.looking().await?);
        let mut schedules: Vec<ScheduleStatus> = documents(&client, &SCHEDULES, &[&limit]).await?;
        schedules.iter_mut().for_each(complete);
        Ok(SchedulesReport { schedules })
    }
}

/// Fills in the next slot of a schedule for which no drain has computed it yet.
fn complete(status: &mut ScheduleStatus) {
    if status.next_at.is_some() || status.problem.is_some() {
        return;
    }
    let times = Times {
        cron: status.cron.clone(),
        every: status.every_ms.map(|every| every / 1000),
        time_zone: status.time_zone.clone(),
    };
    status.next_at = schedule::first_after(&times, status.since_s);
}
