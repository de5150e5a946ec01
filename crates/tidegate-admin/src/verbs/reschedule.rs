//! The verb `reschedule`: changes when waiting events start.

use std::time::SystemTime;

use super::prelude::*;
use super::selection::{BulkChange, selected};
use super::{Changed, Selection, parse_time};

/// Change when waiting events start, or their deadline.
///
/// Events that a worker holds are not changed; the report counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate reschedule --kind order_placed --now --reason 'the carrier is back'\n  tidegate reschedule --id 42 --delay 2h --no-deadline --reason 'after the move'"
)]
pub struct RescheduleRequest {
    /// Which events.
    #[command(flatten)]
    #[serde(skip)]
    pub select: Selection,
    /// When they start.
    #[command(flatten)]
    #[serde(skip)]
    pub start: StartAt,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// When events start, and their deadline. At most one of the first three and at most one of the others may be
/// set, and at least one of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[group(required = true, multiple = true)]
#[serde(default)]
pub struct StartAt {
    /// Start the events at the next drain.
    #[arg(long, conflicts_with_all = ["delay", "at"])]
    pub now: bool,
    /// Start the events this long from now, such as 30s or 2h.
    #[arg(long, value_parser = parse_duration, conflicts_with = "at")]
    #[serde(deserialize_with = "written")]
    pub delay: Option<Duration>,
    /// Start the events at this time, such as 2027-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    #[serde(deserialize_with = "written")]
    pub at: Option<SystemTime>,
    /// Set the deadline this long from now, such as 1h; events that have not started by then never start.
    #[arg(long, value_parser = parse_duration, conflicts_with_all = ["expires_at", "no_deadline"])]
    #[serde(deserialize_with = "written")]
    pub expires_in: Option<Duration>,
    /// Set the deadline to this time, such as 2027-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "no_deadline")]
    #[serde(deserialize_with = "written")]
    pub expires_at: Option<SystemTime>,
    /// Remove the deadline.
    #[arg(long)]
    pub no_deadline: bool,
}

/// The report of a reschedule. For a dry run, what it would reschedule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct RescheduleReport {
    /// How many events have a new start time or a new deadline.
    pub rescheduled: u64,
    /// How many events were skipped because a worker has leased them. Requeue or cancel these.
    pub in_hand: u64,
    /// How many events were skipped because they would hold up their groups for longer than allowed.
    pub too_late: u64,
    /// How many events have a deadline before their start, so they will end as expired.
    pub past_deadline: u64,
    /// The first 100 of them.
    #[schemars(length(max = 100))]
    pub past_deadline_ids: Vec<i64>,
    /// Which events, and which were skipped.
    #[serde(flatten)]
    pub changed: Changed,
}

statements! {
    /// A time is either an instant or a number of seconds from now.
    RESCHEDULE: "reschedule" [INT8_ARRAY, TEXT, TEXT, TEXT, TEXT, TEXT, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, TEXT, TEXT, INT4, INT8, BOOL, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, BOOL] =
        concat!("SELECT @tidegate.reschedule(", selected!(), ",
       available_at => coalesce($16, clock_timestamp() + make_interval(secs => $17)),
       expires_at => coalesce($18, clock_timestamp() + make_interval(secs => $19)),
       no_deadline => $20)::text");
}

impl Verb for RescheduleRequest {
    const NAME: &'static str = "reschedule";

    type Report = RescheduleReport;

    parts! { select, start; audit }

    fn check(&self) -> Result<()> {
        let start = &self.start;
        let starts = given(&[start.now, start.delay.is_some(), start.at.is_some()]);
        let ends = given(&[
            start.no_deadline,
            start.expires_in.is_some(),
            start.expires_at.is_some(),
        ]);
        let refused = match (starts, ends) {
            (0, 0) => {
                "now: must be true, or delay, at, expires_in, expires_at or no_deadline given"
            }
            (2.., _) => "now: must be given without delay and at, and these without each other",
            (_, 2..) => {
                "no_deadline: must be given without expires_in and expires_at, and these without each other"
            }
            _ => return Ok(()),
        };
        Err(Error::Invalid(refused.to_owned()))
    }

    fn code(&self, report: &RescheduleReport) -> u8 {
        self.select.code(&report.changed, report.rescheduled)
    }

    async fn run(&self, runtime: &Runtime) -> Result<RescheduleReport> {
        let start = &self.start;
        let delay = start.delay.map(|delay| delay.as_secs_f64());
        let from_now = delay.or(start.now.then_some(0.0));
        let expires_in = start.expires_in.map(|time| time.as_secs_f64());
        let change = BulkChange {
            statement: &RESCHEDULE,
            select: &self.select,
            audit: &self.audit,
            values: vec![
                &start.at,
                &from_now,
                &start.expires_at,
                &expires_in,
                &start.no_deadline,
            ],
        };
        let done = change.run(&runtime.database).await?;
        Ok(RescheduleReport {
            rescheduled: done.changed,
            in_hand: done.left.in_hand,
            too_late: done.left.too_late,
            past_deadline: done.left.past_deadline,
            past_deadline_ids: done.left.past_deadline_ids,
            changed: done.report,
        })
    }
}
