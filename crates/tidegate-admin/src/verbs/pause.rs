//! The verbs `pause` and `resume`: whether drains take events of a kind.

use super::prelude::*;

/// Stop drains from taking events of a kind; events that are being handled end normally.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate pause order_placed --reason 'the carrier is down'")]
pub struct PauseRequest {
    /// The kind of events; it must be registered.
    pub kind: String,
    /// Reason for the change, recorded in the audit.
    #[arg(long)]
    pub reason: Option<String>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}

/// Let drains take events of a paused kind again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate resume order_placed")]
pub struct ResumeRequest {
    /// What a pause says, too.
    #[command(flatten)]
    #[serde(skip)]
    pub of: PauseRequest,
}

/// The report of a pause or a resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct PauseReport {
    /// The kind.
    pub kind: String,
    /// Whether it is paused now. Events that are being handled end normally.
    pub paused: bool,
    /// False if it was already so.
    pub changed: bool,
}

statements! {
    PAUSE: "pause" [TEXT, TEXT, TEXT] = "SELECT @tidegate.pause($1, $2, $3)::text";

    RESUME: "resume" [TEXT, TEXT, TEXT] = "SELECT @tidegate.resume($1, $2, $3)::text";
}

impl Verb for PauseRequest {
    const NAME: &'static str = "pause";

    type Report = PauseReport;

    fn actor(&mut self) -> Option<&mut Option<String>> {
        Some(&mut self.actor)
    }

    async fn on(&self, client: &impl Queryable) -> Result<PauseReport> {
        report(client, &PAUSE, &[&self.kind, &self.reason, &self.actor]).await
    }
}

impl Verb for ResumeRequest {
    const NAME: &'static str = "resume";

    type Report = PauseReport;

    fn parts(&mut self) -> Vec<&mut dyn Part> {
        vec![&mut self.of]
    }

    fn actor(&mut self) -> Option<&mut Option<String>> {
        Some(&mut self.of.actor)
    }

    async fn on(&self, client: &impl Queryable) -> Result<PauseReport> {
        let of = &self.of;
        report(client, &RESUME, &[&of.kind, &of.reason, &of.actor]).await
    }
}
