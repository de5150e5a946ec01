//! The verb `note`: an operator's remark on an event.

use super::event_id;
use super::prelude::*;

/// Write a remark on an event, live or finished; show prints it.
///
/// The remark is kept with the audit, and goes when the event is forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate note 42 --text 'the customer was called' --reason 'ticket 17'"
)]
pub struct NoteRequest {
    /// Id of the event.
    #[arg(value_parser = event_id)]
    pub id: i64,
    /// The remark, 1 to 1000 characters.
    #[arg(long)]
    pub text: String,
    /// Change nothing; only report what would be done.
    #[arg(long)]
    #[serde(default)]
    pub dry_run: bool,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// The report of a note. For a dry run, what it would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct NoteReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// The event.
    pub id: i64,
    /// Why nothing was written: there is no such event.
    pub refused: Option<String>,
}

statements! {
    NOTE: "note" [INT8, TEXT, TEXT, TEXT, BOOL] = "SELECT @tidegate.note($1, $2, $3, $4, $5)::text";
}

impl Verb for NoteRequest {
    const NAME: &'static str = "note";

    type Report = NoteReport;

    parts! { ; audit }

    fn code(&self, report: &NoteReport) -> u8 {
        u8::from(report.refused.is_some())
    }

    async fn on(&self, client: &impl Queryable) -> Result<NoteReport> {
        let Audit { reason, actor } = &self.audit;
        let values: &[&(dyn ToSql + Sync)] = &[&self.id, &self.text, reason, actor, &self.dry_run];
        report(client, &NOTE, values).await
    }
}
