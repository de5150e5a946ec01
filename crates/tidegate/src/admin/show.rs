//! The verb `show`: everything that is stored about one event.

use serde_json::Value;

use super::event_id;
use super::prelude::*;
use crate::look::rows;
use crate::queue::{self, Lineage};

/// Show everything stored about one event, live or finished, with the events it came from and led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate show 42")]
pub struct ShowRequest {
    /// Id of the event.
    #[arg(value_parser = event_id)]
    pub id: i64,
}

/// Everything that is stored about an event.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "show")]
#[non_exhaustive]
pub struct ShowReport {
    /// All its columns. `in` is the name of its table.
    #[serde(flatten)]
    #[schemars(with = "rows::StoredEvent")]
    pub event: Value,
    /// Its ancestors and descendants. `None` if the event has just ended and was cleaned up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
}

impl Verb for ShowRequest {
    const NAME: &'static str = "show";
    const CHANGES: bool = false;
    const LOGGED: Option<&'static [&'static str]> = Some(&["id", "kind", "status"]);

    type Report = ShowReport;

    async fn run(&self, service: &Service) -> Result<ShowReport, Error> {
        let client = service.looking().await?;
        let event = queue::show(&client, self.id).await?;
        let event = event.ok_or(Error::UnknownEvent(self.id))?;
        let lineage = queue::lineage(&client, self.id).await?;
        Ok(ShowReport { event, lineage })
    }
}
