//! The verb `blocked_groups`: lists the groups that wait for their first event.

use serde_json::Value;

use super::length;
use super::prelude::*;
use super::views::{limit, rows};
use crate::queue::documents;

/// List the groups whose first event waits for another attempt, its time or a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate blocked-groups --limit 20")]
pub struct BlockedGroupsRequest {
    /// Maximum number of groups to list, 1 to 10000, oldest first.
    #[arg(long, default_value = "50", value_parser = length())]
    pub limit: Option<u32>,
}

/// Groups whose first event holds back other events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct BlockedGroupsReport {
    /// With the columns of the view `tidegate.blocked_groups`, oldest first.
    #[schemars(with = "Vec<rows::BlockedGroup>")]
    pub groups: Vec<Value>,
}

statements! {
    /// Groups whose first event holds back other events, at most `$1`.
    pub(super) BLOCKED_GROUPS: "blocked_groups" [INT8] =
        "SELECT to_jsonb(b)::text FROM tidegate.blocked_groups AS b ORDER BY b.head_id LIMIT $1";
}

impl Verb for BlockedGroupsRequest {
    const NAME: &'static str = "blocked_groups";
    const LOGGED: Option<&'static [&'static str]> = Some(&[]);

    type Report = BlockedGroupsReport;

    async fn run(&self, service: &Service) -> Result<BlockedGroupsReport> {
        let (limit, client) = (limit(self.limit)?, service.looking().await?);
        let groups = documents(&client, &BLOCKED_GROUPS, &[&limit]).await?;
        Ok(BlockedGroupsReport { groups })
    }
}
