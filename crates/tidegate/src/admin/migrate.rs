//! The verb `migrate`: brings the schema up to date.

use super::prelude::*;
use crate::migrate::MigrateReport;

/// Bring the schema up to date and register this program's kinds of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate migrate --roles")]
#[serde(default)]
pub struct MigrateRequest {
    /// Also create the roles tidegate_publish, tidegate_drain, tidegate_pull, tidegate_operate, tidegate_read
    /// and tidegate_jobs, and grant their privileges.
    #[arg(long)]
    pub roles: bool,
    /// Migrate even if only other programs have registered kinds in this queue; the programs then share it.
    #[arg(long)]
    pub share: bool,
}

statements! {}

impl Verb for MigrateRequest {
    const NAME: &'static str = "migrate";

    type Report = MigrateReport;

    async fn run(&self, service: &Service) -> Result<MigrateReport> {
        service.migrate(*self).await
    }

    /// A migration is not a drain: it may take as long as the invocation.
    fn on_all(&self, service: &Service, time: Option<Duration>) -> Result<Option<Duration>> {
        Ok(Some(time.unwrap_or(service.options.budget)))
    }
}
