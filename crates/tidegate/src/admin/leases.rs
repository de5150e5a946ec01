//! The verb `leases`: lists the leases and their workers.

use serde_json::Value;

use super::length;
use super::prelude::*;
use super::views::{limit, rows};
use crate::queue::documents;

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
    /// With the columns of the view `tidegate.leases`, oldest first.
    #[schemars(with = "Vec<rows::Lease>")]
    pub leases: Vec<Value>,
}

statements! {
    LEASES: "leases" [INT8] =
        "SELECT to_jsonb(l)::text FROM tidegate.leases AS l ORDER BY l.taken_at, l.token LIMIT $1";
}

impl Verb for LeasesRequest {
    const NAME: &'static str = "leases";

    type Report = LeasesReport;

    async fn run(&self, service: &Service) -> Result<LeasesReport> {
        let (limit, client) = (limit(self.limit)?, service.looking().await?);
        let leases = documents(&client, &LEASES, &[&limit]).await?;
        Ok(LeasesReport { leases })
    }
}
