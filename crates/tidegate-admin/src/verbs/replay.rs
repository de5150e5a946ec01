//! The verb `replay`: publishes finished events again (B22, F5).

use std::collections::BTreeMap;

use super::prelude::*;
use super::{Skipped, TimeArg, parse_time_arg};

/// Publish finished events again as new events, selected by id or by filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate replay --kind order_placed --status FAILED --since 2h --reason 'the carrier was down' --dry-run"
)]
#[serde(default)]
pub struct ReplayRequest {
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Option<Vec<i64>>,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only events that ended in this state: COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long, value_parser = upper)]
    pub status: Option<String>,
    /// Only dead letters whose last error has this code.
    #[arg(long)]
    pub code: Option<String>,
    /// Only events that ended at this time or later: an RFC 3339 time, or a duration such as 2h for two hours
    /// ago.
    #[arg(long, value_parser = parse_time_arg)]
    pub since: Option<TimeArg>,
    /// Only events that ended before this time, written like --since.
    #[arg(long, value_parser = parse_time_arg)]
    pub until: Option<TimeArg>,
    /// Maximum number of events to replay, 1 to 100000, lowest ids first [default: 10000].
    #[arg(long)]
    pub limit: Option<i64>,
    /// Change nothing; only report what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// With a filter: include events that were replayed before, are replays themselves, or were cancelled.
    #[arg(long)]
    pub again: bool,
    /// Run only handlers that failed or did not finish, and keep the results of the others.
    #[arg(long)]
    pub failed_handlers_only: bool,
    /// New deadline, counted from now, for events whose old one has passed, such as 1h.
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "written")]
    pub expires_in: Option<Duration>,
    /// Digest from a dry run with --json: replay only if exactly the events of that dry run would be
    /// replayed.
    #[arg(long)]
    pub digest: Option<String>,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

#[expect(clippy::unnecessary_wraps, reason = "the parser of a flag may fail")]
fn upper(text: &str) -> Result<String, String> {
    Ok(text.to_uppercase())
}

/// The report of a replay. For a dry run, what the replay would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// How many events in the log match the request.
    pub matched: u64,
    /// How many of them can be replayed, up to the limit.
    pub eligible: u64,
    /// How many of them were published again.
    pub replayed: u64,
    /// The first 100 new events.
    #[schemars(length(max = 100))]
    pub events: Vec<Replayed>,
    /// Whether more events are left, because of the limit or because a replay may touch at most
    /// 2,000 groups. Send the request again for the rest.
    pub limit_reached: bool,
    /// Events that can be replayed, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// How many events were skipped, because they cannot be replayed.
    pub skipped_count: u64,
    /// Why, and how many for each reason.
    pub skipped_reasons: BTreeMap<String, u64>,
    /// The first 100 of them.
    #[schemars(length(max = 100))]
    pub skipped: Vec<Skipped>,
    /// Events that need a new deadline to be replayed.
    pub passed_deadlines: PassedDeadlines,
    /// Why nothing at all was replayed.
    pub refused: Option<String>,
    /// The digest of the eligible events' ids. Two different sets have different digests.
    #[serde(default)]
    pub digest: String,
}

/// A replay of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replayed {
    /// The new event.
    pub id: i64,
    /// The original event in the log.
    pub replay_of: i64,
}

/// Events whose start-before time has passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PassedDeadlines {
    /// How many events need a new deadline: see `expires_in`.
    pub count: u64,
    /// The first ten.
    pub ids: Vec<i64>,
}

statements! {
    /// A time is either an instant or a number of seconds ago.
    REPLAY: "replay" [INT8_ARRAY, TEXT, TEXT, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, TEXT, TEXT, INT8, BOOL, BOOL, BOOL, FLOAT8, TEXT, TEXT] = "\
SELECT @tidegate.replay(ids => $1, kind => $2, status => $3,
                       since => coalesce($4, clock_timestamp() - make_interval(secs => $5)),
                       until => coalesce($6, clock_timestamp() - make_interval(secs => $7)),
                       reason => $8, actor => $9, \"limit\" => $10, dry_run => $11, again => $12,
                       failed_handlers_only => $13, expires_in => make_interval(secs => $14),
                       code => $15, digest => $16)::text";
}

impl Verb for ReplayRequest {
    const NAME: &'static str = "replay";

    type Report = ReplayReport;

    parts! { ; audit }

    /// 1 if the replay was refused, or if the request names ids and none of these events can be replayed.
    fn code(&self, report: &ReplayReport) -> u8 {
        let done = if report.dry_run {
            report.eligible
        } else {
            report.replayed
        };
        u8::from(report.refused.is_some() || (self.ids.is_some() && done == 0))
    }

    async fn on(&self, client: &impl Queryable) -> Result<ReplayReport> {
        let (since, since_ago) = TimeArg::parts(self.since);
        let (until, until_ago) = TimeArg::parts(self.until);
        let expires_in = self.expires_in.as_ref().map(Duration::as_secs_f64);
        let values: &[&(dyn ToSql + Sync)] = &[
            &self.ids,
            &self.kind,
            &self.status,
            &since,
            &since_ago,
            &until,
            &until_ago,
            &self.audit.reason,
            &self.audit.actor,
            &self.limit,
            &self.dry_run,
            &self.again,
            &self.failed_handlers_only,
            &expires_in,
            &self.code,
            &self.digest,
        ];
        report(client, &REPLAY, values).await
    }
}
