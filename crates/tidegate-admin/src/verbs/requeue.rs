//! The verb `requeue`: takes live events from their workers.

use super::Skipped;
use super::prelude::*;

/// Take live events from their workers, and run them again at the next drain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate requeue --id 42 --reason 'its worker hangs'")]
pub struct RequeueRequest {
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1.., required = true)]
    pub ids: Vec<i64>,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// The report of a requeue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct RequeueReport {
    /// How many events now wait for the next drain.
    pub requeued: u64,
    /// Their ids.
    pub ids: Vec<i64>,
    /// Those of them whose deadline has passed: the next drain ends them as expired.
    pub past_deadline: Vec<i64>,
    /// How many ids name no live event.
    pub skipped_count: u64,
    /// The first 100 of these ids.
    #[schemars(length(max = 100))]
    pub skipped: Vec<Skipped>,
}

statements! {
    REQUEUE: "requeue" [INT8_ARRAY, TEXT, TEXT] = "SELECT @tidegate.requeue($1, $2, $3)::text";
}

impl Verb for RequeueRequest {
    const NAME: &'static str = "requeue";

    type Report = RequeueReport;

    parts! { ; audit }

    fn code(&self, report: &RequeueReport) -> u8 {
        u8::from(report.requeued == 0)
    }

    async fn on(&self, client: &impl Queryable) -> Result<RequeueReport> {
        let Audit { reason, actor } = &self.audit;
        report(client, &REQUEUE, &[&self.ids, reason, actor]).await
    }
}
