//! The verb `failures`: dead letters by kind, status and code.

use super::prelude::*;
use super::views::limit;
use super::{TimeArg, length, one_of, parse_time_arg};

/// List dead letters by cause: the events that failed or were rejected, by kind, status and code.
///
/// The counts are those of the figures, which outlive the events: in minutes up to two hours ago, in hours up
/// to two days ago, then in days.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate failures --since 2h\n  tidegate failures --kind order_placed --status FAILED"
)]
#[serde(default)]
pub struct FailuresRequest {
    /// Only events that ended at this time or later: an RFC 3339 time, or a duration such as 2h for two hours
    /// ago [default: 1d].
    #[arg(long, value_parser = parse_time_arg)]
    pub since: Option<TimeArg>,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only events that ended in this state: FAILED or COMPLETED_WITH_ERRORS.
    #[arg(long, value_parser = DEAD, ignore_case = true)]
    pub status: Option<String>,
    /// Maximum number of causes to list, 1 to 10000, the most frequent first.
    #[arg(long, default_value = "50", value_parser = length())]
    pub limit: Option<u32>,
}

/// The states of dead letters.
const DEAD: [&str; 2] = ["FAILED", "COMPLETED_WITH_ERRORS"];

/// Dead letters by cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct FailuresReport {
    /// The start of the minute, hour or day from which events are counted.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
    /// How many events ended FAILED.
    pub failed: u64,
    /// How many events ended `COMPLETED_WITH_ERRORS`: a handler rejected them.
    pub rejected: u64,
    /// The most frequent first.
    ///
    /// Look at the example: `tidegate show ID`
    ///
    /// List the events: `tidegate list --kind KIND --status STATUS --code CODE --since TIME`
    ///
    /// Replay them: `tidegate replay --kind KIND --status STATUS --code CODE --since TIME --reason TEXT`
    pub failures: Vec<Cause>,
    /// Whether there are more causes than the limit: a higher limit lists more.
    pub limit_reached: bool,
}

/// Dead letters of one kind, status and code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Cause {
    /// The number of events.
    pub events: u64,
    /// FAILED or `COMPLETED_WITH_ERRORS`.
    pub status: String,
    /// The code of their last error; empty if they had none. (other) stands for all codes of a kind beyond
    /// the first 50 of an hour.
    pub code: String,
    /// The kind; (unregistered) for all kinds that nobody has registered.
    pub kind: String,
    /// The highest of their ids.
    pub example: Option<i64>,
    /// The start of the minute, hour or day in which the first of them ended, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub first: String,
    /// The start of the minute, hour or day in which the last of them ended.
    #[schemars(extend("format" = "date-time"))]
    pub last: String,
    /// The last error of that event, at most 300 characters. Null if it is no longer stored.
    pub message: Option<String>,
}

statements! {
    /// Dead letters by cause: `$1`, or `$2` seconds ago, is the earliest end; `$3` selects a kind, `$4` a
    /// status, and `$5` is the most causes.
    FAILURES: "failures" [TIMESTAMPTZ, FLOAT8, TEXT, TEXT, INT8] = "\
WITH span AS MATERIALIZED (
    SELECT @tidegate.figures_since(coalesce($1, statement_timestamp() - make_interval(secs => $2))) AS since
), cause AS MATERIALIZED (
    SELECT m.kind, m.status, coalesce(m.code, '') AS code, least(sum(m.events), 1e17)::bigint AS events,
           min(m.minute) AS first, max(m.minute) AS last, max(m.last_id) AS example
      FROM @tidegate.ended((SELECT s.since FROM span AS s)) AS m
     WHERE m.status IN ('FAILED', 'COMPLETED_WITH_ERRORS') AND ($3::text IS NULL OR m.kind = $3) AND ($4::text IS NULL OR m.status = $4)
     GROUP BY 1, 2, 3
), listed AS MATERIALIZED (
    SELECT c.* FROM cause AS c ORDER BY c.events DESC, c.kind, c.status, c.code LIMIT $5
), message AS MATERIALIZED (
    SELECT e.id, left(e.last_error, 300) AS text FROM @tidegate.ends AS e WHERE e.id = ANY (ARRAY(SELECT l.example FROM listed AS l))
)
SELECT jsonb_build_object('since', (SELECT s.since FROM span AS s),
           'failed', (SELECT least(coalesce(sum(c.events), 0), 1e17)::bigint FROM cause AS c WHERE c.status = 'FAILED'),
           'rejected', (SELECT least(coalesce(sum(c.events), 0), 1e17)::bigint FROM cause AS c WHERE c.status <> 'FAILED'),
           'limit_reached', (SELECT count(*) FROM cause) > $5,
           'failures', coalesce((SELECT jsonb_agg(to_jsonb(l) || jsonb_build_object('message',
                                        (SELECT m.text FROM message AS m WHERE m.id = l.example LIMIT 1))
                                        ORDER BY l.events DESC, l.kind, l.status, l.code) FROM listed AS l), '[]'))::text";
}

impl Verb for FailuresRequest {
    const NAME: &'static str = "failures";
    const LOGGED: Option<&'static [&'static str]> = Some(&["failed", "rejected"]);

    type Report = FailuresReport;

    async fn run(&self, runtime: &Runtime) -> Result<FailuresReport> {
        let since = self.since.or(Some(TimeArg::Ago(Duration::from_hours(24))));
        let (since, ago) = TimeArg::parts(since);
        let status = one_of(self.status.as_ref(), &DEAD)?;
        let values: &[&(dyn ToSql + Sync)] =
            &[&since, &ago, &self.kind, &status, &limit(self.limit)?];
        report(&runtime.looking().await?, &FAILURES, values).await
    }
}
