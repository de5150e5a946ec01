//! The verb `services`: lists the outside services that failed, are paused or are limited.

use tidegate_core::queue;

use super::ServiceStatus;
use super::prelude::*;

/// List the outside services that failed, are paused or are limited, and how many events wait for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate services --json")]
pub struct ServicesRequest {}

/// Outside services about which anything was reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ServicesReport {
    /// Services that are not called come first.
    ///
    /// Resume calls of a service: `tidegate service NAME --resume --reason TEXT`
    pub services: Vec<ServiceStatus>,
}

statements! {}

impl Verb for ServicesRequest {
    const NAME: &'static str = "services";

    type Report = ServicesReport;

    async fn run(&self, runtime: &Runtime) -> Result<ServicesReport> {
        let services = queue::services(&runtime.looking().await?).await?;
        Ok(ServicesReport { services })
    }
}
