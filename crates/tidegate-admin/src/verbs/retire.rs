//! The verb `retire`: removes a kind that no program handles any more.

use super::prelude::*;

/// Remove a kind that no program handles any more, so that it can no longer be published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate retire order_placed --reason 'orders have a service of their own'"
)]
pub struct RetireRequest {
    /// The kind of events; it must have no live events, and this program must not handle it.
    pub kind: String,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// The report of a retirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct RetireReport {
    /// The kind.
    pub kind: String,
}

statements! {
    RETIRE: "retire" [TEXT, TEXT, TEXT] = "SELECT @tidegate.retire($1, $2, $3)::text";
}

impl Verb for RetireRequest {
    const NAME: &'static str = "retire";

    type Report = RetireReport;

    parts! { ; audit }

    async fn on(&self, client: &impl Queryable) -> Result<RetireReport> {
        let Audit { reason, actor } = &self.audit;
        report(client, &RETIRE, &[&self.kind, reason, actor]).await
    }

    async fn run(&self, runtime: &Runtime) -> Result<RetireReport> {
        if runtime.handled().await?.contains(&self.kind.as_str()) {
            let other = "must be one that this program does not handle";
            let text = format!("kind: {other}, got {:?}", self.kind);
            return Err(Error::Invalid(text));
        }
        self.on(&runtime.database.session().await?).await
    }
}
