//! The verb `migrate`: brings the schema up to date.

use tidegate_core::migrate::MigrateReport;

use super::prelude::*;

/// Bring the schema up to date and register this program's kinds of events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate migrate --roles")]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct MigrateRequest {
    /// Also create the roles tidegate_publish, tidegate_drain, tidegate_pull, tidegate_operate, tidegate_read
    /// and tidegate_jobs, and grant their privileges.
    #[arg(long)]
    pub roles: bool,
    /// Migrate even if only other programs have registered kinds in this queue; the programs then share it.
    #[arg(long)]
    pub share: bool,
    /// Print what this would do as SQL, and change nothing: what the database lacks, or without DATABASE_URL
    /// all that a new queue needs.
    #[arg(long, conflicts_with_all = ["targets", "share"])]
    pub print: bool,
    /// Store the targets and kinds of this file, in place of those that are stored.
    #[arg(long, value_name = "FILE", value_parser = text_of, hide = true)]
    pub targets: Option<String>,
    /// Only say what the file would change. The schema must be up to date.
    #[arg(long, requires = "targets", hide = true)]
    pub dry_run: bool,
}

/// Reads the file of a flag.
fn text_of(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

statements! {}

impl Verb for MigrateRequest {
    const NAME: &'static str = "migrate";

    type Report = MigrateReport;

    async fn run(&self, runtime: &Runtime) -> Result<MigrateReport> {
        runtime.migrate(self.clone()).await
    }
}
