//! The verb `drain`: leases and handles events. The command line adds a flag of its own.

use clap::builder::TypedValueParser;
use tidegate::drain::{DrainOptions, DrainReport, Hooks};
use tidegate_core::chain::Chain;

use super::prelude::*;
use super::program::{Failure, the_callers};
use super::{bounds, document};

/// Lease and handle events until the queue is empty or the budget is spent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
pub struct DrainRequest {
    /// Time limit of the whole run, such as 30s [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub budget: Option<Duration>,
    /// Maximum number of events in one lease, 1 to 10000 [env: TIDEGATE_BATCH] [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(bounds(&DrainOptions::BATCH)))]
    pub batch: Option<u32>,
    /// Maximum number of handlers that run at once, 1 to 1000; with 1 a single drain is first in, first out
    /// while nothing fails [env: TIDEGATE_CONCURRENCY] [default: 8].
    #[arg(long, value_parser = clap::value_parser!(u16).range(bounds(&DrainOptions::CONCURRENCY)).map(usize::from))]
    pub concurrency: Option<usize>,
    /// Keep polling an empty queue for this long, such as 10s [env: TIDEGATE_LINGER] [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub linger: Option<Duration>,
    /// Maximum number of events to lease in the whole run, at least 1 [default: no limit].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: Option<u64>,
    /// The drain's place in a chain of drains that start each other. The drain that starts it sets this
    /// field.
    #[arg(skip)]
    pub chain: Option<Chain>,
}

impl DrainRequest {
    /// Returns the options of this run. The request wins over the configured values.
    pub fn over(&self, configured: &DrainOptions) -> DrainOptions {
        DrainOptions {
            budget: self.budget.unwrap_or(configured.budget),
            batch: self.batch.unwrap_or(configured.batch),
            concurrency: self.concurrency.unwrap_or(configured.concurrency),
            linger: self.linger.unwrap_or(configured.linger),
            max_events: self.max_events.or(configured.max_events),
            ..configured.clone()
        }
    }
}

statements! {}

impl Verb for DrainRequest {
    const NAME: &'static str = "drain";

    type Report = DrainReport;

    async fn run(&self, runtime: &Runtime) -> Result<DrainReport> {
        let options = self.over(&runtime.options);
        let drained = runtime.drain(&options, Hooks::default()).await;
        drained.map_err(|failed| failed.source)
    }

    async fn answer(
        &self,
        runtime: &Runtime,
        time: Option<Duration>,
        hooks: Hooks,
    ) -> Result<Json, Failure> {
        let mut options = self.over(&runtime.options);
        options.check().map_err(the_callers)?;
        options.budget = time.map_or(options.budget, |time| time.min(options.budget));
        let chain = self.chain.or(hooks.chain);
        let hooks = Hooks { chain, ..hooks };
        Ok(document::<Self>(&runtime.drain(&options, hooks).await?)?)
    }
}
