//! The verb `blocked_groups`: lists the groups that wait for their first event.

use tidegate_core::queue::documents;

use super::length;
use super::prelude::*;
use super::views::limit;

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
    /// Oldest first.
    ///
    /// Look at the first event: `tidegate show ID`
    ///
    /// Release the group: `tidegate unblock GROUP --retry|--skip|--cancel --reason TEXT`
    pub groups: Vec<BlockedGroup>,
}

/// A group whose first event holds back other events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct BlockedGroup {
    /// The group.
    pub group_key: String,
    /// The number of events that wait behind its first event.
    pub waiting: u64,
    /// Its first event.
    #[schemars(title = "first event")]
    pub head_id: i64,
    /// That event's kind.
    #[schemars(title = "kind")]
    pub head_kind: String,
    /// The number of attempts of this event so far.
    pub attempts: u64,
    /// The number of attempts after which it fails.
    pub max_attempts: u64,
    /// When it was published.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    /// When its next attempt may start.
    #[schemars(extend("format" = "date-time"))]
    pub available_at: String,
    /// What its first event waits for, in one sentence.
    pub why: String,
    /// Its last error.
    pub last_error: Option<String>,
}

statements! {
    /// Groups whose first event holds back other events, at most `$1`.
    BLOCKED_GROUPS: "blocked_groups" [INT8] =
        "SELECT to_jsonb(b)::text FROM @tidegate.blocked_groups AS b ORDER BY b.head_id LIMIT $1";
}

impl Verb for BlockedGroupsRequest {
    const NAME: &'static str = "blocked_groups";
    const LOGGED: Option<&'static [&'static str]> = Some(&[]);

    type Report = BlockedGroupsReport;

    async fn run(&self, runtime: &Runtime) -> Result<BlockedGroupsReport> {
        let (limit, client) = (limit(self.limit)?, runtime.looking().await?);
        let groups = documents(&client, &BLOCKED_GROUPS, &[&limit]).await?;
        Ok(BlockedGroupsReport { groups })
    }
}
