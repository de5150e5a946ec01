//! The verb `service`: whether and how often an outside service is called.

use super::ServiceState;
use super::prelude::*;

/// Pause or resume all calls of an outside service, or limit them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate service carrier --pause --reason 'maintenance until six'\n  tidegate service carrier --limit 4 --per-second 20 --reason 'our contract allows no more'"
)]
pub struct ServiceRequest {
    /// Name of the service, exactly as the handlers use it.
    #[arg(value_name = "SERVICE")]
    pub name: String,
    /// What to do with it.
    #[command(flatten)]
    #[serde(skip)]
    pub change: ServiceAction,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// Whether a service is called, or its limits. A pause, a resume and limits exclude each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Args)]
#[group(required = true, multiple = true)]
#[serde(default)]
pub struct ServiceAction {
    /// Stop all calls of the service; events that need it wait.
    #[arg(long, conflicts_with_all = ["resume", "limit", "per_second"])]
    pub pause: bool,
    /// Allow calls of the service again, even if it did not answer before.
    #[arg(long, conflicts_with_all = ["limit", "per_second"])]
    pub resume: bool,
    /// Maximum number of events that call the service at once, over all drains, 1 to 10000; 0 removes the
    /// limit.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub limit: Option<u32>,
    /// Maximum number of events that start per second and call the service, over all drains, 0.0001 to 10000;
    /// 0 removes the limit.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub per_second: Option<f64>,
}

/// The report of a change of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ServiceChange {
    /// `pause_service`, `resume_service` or `limit_service`.
    pub action: String,
    /// The service.
    pub service: String,
    /// Whether it is called now.
    pub state: ServiceState,
    /// False if it was already so.
    pub changed: bool,
    /// False if nothing was known of a service of this name before: it must be spelled as handlers spell it.
    pub known: bool,
    /// The most events that call it at once.
    ///
    /// Missing if the request was not about limits, or if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// The most events that start per second and call it.
    ///
    /// Missing if the request was not about limits, or if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
}

statements! {
    PAUSE: "pause_service" [TEXT, TEXT, TEXT] = "SELECT @tidegate.pause_service($1, $2, $3)::text";

    RESUME: "resume_service" [TEXT, TEXT, TEXT] = "SELECT @tidegate.resume_service($1, $2, $3)::text";

    LIMIT: "limit_service" [TEXT, INT4, FLOAT8, TEXT, TEXT] =
        "SELECT @tidegate.limit_service($1, $2, $3, $4, $5)::text";
}

impl Verb for ServiceRequest {
    const NAME: &'static str = "service";
    const ACTIONS: &'static [&'static str] = &["pause_service", "resume_service", "limit_service"];

    type Report = ServiceChange;

    parts! { change; audit }

    fn check(&self) -> Result<()> {
        let limits = self.change.limit.is_some() || self.change.per_second.is_some();
        match (self.change.pause, self.change.resume, limits) {
            (true, false, false) | (false, true, false) | (false, false, true) => Ok(()),
            _ => {
                let text = "pause, resume: one of them must be true, or a limit given";
                Err(Error::Invalid(text.to_owned()))
            }
        }
    }

    async fn on(&self, client: &impl Queryable) -> Result<ServiceChange> {
        let Audit { reason, actor } = &self.audit;
        let statement = match self.change {
            ServiceAction { pause: true, .. } => &PAUSE,
            ServiceAction { resume: true, .. } => &RESUME,
            ServiceAction {
                limit, per_second, ..
            } => {
                let running = limit.map(|count| i32::try_from(count).unwrap_or(i32::MAX));
                let values: &[&(dyn ToSql + Sync)] =
                    &[&self.name, &running, &per_second, reason, actor];
                return report(client, &LIMIT, values).await;
            }
        };
        report(client, statement, &[&self.name, reason, actor]).await
    }
}
