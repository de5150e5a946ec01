//! The verb `leases`: lists the leases and their workers.

use tidegate_core::queue::documents;

use super::length;
use super::prelude::*;
use super::views::limit;

/// List the leases: which worker holds how many events, and since when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate leases --limit 20")]
pub struct LeasesRequest {
    /// Maximum number of leases to list, 1 to 10000, oldest first.
    #[arg(long, default_value = "50", value_parser = length())]
    pub limit: Option<u32>,
}

/// The leases and their workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct LeasesReport {
    /// Oldest first.
    ///
    /// Expired: the worker has stopped responding, and the next drain takes its events back: `tidegate drain`
    ///
    /// Take an event from its worker: `tidegate requeue --id ID --reason TEXT`
    pub leases: Vec<LeaseStatus>,
}

/// A lease and its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Whether it has run out.
    pub expired: bool,
    /// The number of its events that have not been finalized yet.
    pub events: u64,
    /// The number of these events that may have started.
    pub started: u64,
    /// The lowest id of these events.
    pub first_id: Option<i64>,
    /// The highest id of these events.
    pub last_id: Option<i64>,
    /// When it was taken.
    #[schemars(extend("format" = "date-time"))]
    pub taken_at: String,
    /// When it was last renewed.
    #[schemars(extend("format" = "date-time"))]
    pub renewed_at: String,
    /// When it runs out.
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
    /// Where the worker runs: its host and process, its log stream, or what `TIDEGATE_WORKER` says. Null: it
    /// is no drain, or another drain has taken its slot.
    pub name: Option<String>,
    /// The worker.
    pub worker: Option<String>,
    /// The lease.
    pub token: String,
    /// The number of times that operators have removed events from it.
    pub cuts: i64,
}

statements! {
    LEASES: "leases" [INT8] =
        "SELECT to_jsonb(l)::text FROM @tidegate.leases AS l ORDER BY l.taken_at, l.token LIMIT $1";
}

impl Verb for LeasesRequest {
    const NAME: &'static str = "leases";

    type Report = LeasesReport;

    async fn run(&self, runtime: &Runtime) -> Result<LeasesReport> {
        let (limit, client) = (limit(self.limit)?, runtime.looking().await?);
        let leases = documents(&client, &LEASES, &[&limit]).await?;
        Ok(LeasesReport { leases })
    }
}
