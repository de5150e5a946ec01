//! The verb `cleanup`: removes finished events whose retention has ended.

use tidegate::drain::{Hooks, OVERRUN};

use super::prelude::*;
use super::program::Failure;
use super::{answer, bounds};
use crate::retention::{CleanupHooks, CleanupOptions, CleanupReport};

/// Remove finished events whose retention has ended, and end live ones that nobody will handle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate cleanup --dry-run")]
pub struct CleanupRequest {
    /// Change nothing; only report what would be done.
    #[arg(long)]
    #[serde(default)]
    pub dry_run: bool,
    /// Time limit of the whole run, such as 30s [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub budget: Option<Duration>,
    /// End live events only if they were published at least this long ago, such as 1h [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub older_than: Option<Duration>,
    /// Number of rows to examine or delete in one step, 1 to 100000 [default: 10000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(bounds(&CleanupOptions::BATCH)))]
    pub batch: Option<u32>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}

impl CleanupRequest {
    /// Returns the options of this run. The request wins over the configured budget and actor, and these win
    /// over the defaults.
    pub fn over(&self, budget: Duration, actor: Option<String>) -> CleanupOptions {
        let default = CleanupOptions::default();
        CleanupOptions {
            dry_run: self.dry_run,
            budget: self.budget.unwrap_or(budget),
            older_than: self.older_than.unwrap_or(default.older_than),
            batch: self.batch.unwrap_or(default.batch),
            actor: self.actor.clone().or(actor),
            ..default
        }
    }
}

statements! {}

impl Verb for CleanupRequest {
    const NAME: &'static str = "cleanup";

    type Report = CleanupReport;

    async fn run(&self, runtime: &Runtime) -> Result<CleanupReport> {
        let options = self.over(runtime.options.budget, runtime.actor.clone());
        runtime.cleanup(&options, CleanupHooks::default()).await
    }

    async fn answer(
        &self,
        runtime: &Runtime,
        time: Option<Duration>,
        hooks: Hooks,
    ) -> Result<Json, Failure> {
        let mut options = self.over(runtime.options.budget, runtime.actor.clone());
        options.budget = time.map_or(options.budget, |time| time.min(options.budget));
        let hooks = CleanupHooks {
            stop: hooks.stop,
            ..CleanupHooks::default()
        };
        // The database may not answer during the last step, and the caller's own deadline must not pass
        // first.
        let time = time.map(|time| time + OVERRUN);
        answer::<Self>(time, runtime.cleanup(&options, hooks)).await
    }
}
