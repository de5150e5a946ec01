//! The verb `show`: everything that is stored about one event.

use tidegate_core::queue::documents;

use super::event_id;
use super::prelude::*;
use super::views::{Columns, rows, show, show_bare};

/// Show everything stored about one event, live or finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate show 42")]
pub struct ShowRequest {
    /// Id of the event.
    #[arg(value_parser = event_id)]
    pub id: i64,
}

/// Everything that is stored about an event.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ShowReport {
    /// All its columns. `in` is the name of its table.
    #[serde(flatten)]
    #[schemars(with = "rows::StoredEvent")]
    pub event: Columns,
    /// The latest 100 remarks of operators on it, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A remark on an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Note {
    /// When it was written, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// The operator's name.
    pub actor: Option<String>,
    /// The remark.
    pub text: String,
}

statements! {
    NOTES: "notes" [INT8] = "SELECT to_jsonb(n)::text FROM @tidegate.notes($1) AS n";
}

impl Verb for ShowRequest {
    const NAME: &'static str = "show";
    const LOGGED: Option<&'static [&'static str]> = Some(&["id", "kind", "status"]);

    type Report = ShowReport;

    async fn run(&self, runtime: &Runtime) -> Result<ShowReport> {
        let mut client = runtime.looking().await?;
        let event = match show(&client, self.id).await {
            Err(error) if error.is_corruption() => {
                // The transaction that has failed answers nothing more.
                client = runtime.looking().await?;
                show_bare(&client, self.id, &error).await?
            }
            event => event?,
        };
        let event = event.ok_or(Error::UnknownEvent(self.id))?;
        let notes = documents(&client, &NOTES, &[&self.id]).await?;
        Ok(ShowReport { event, notes })
    }
}
