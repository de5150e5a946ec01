//! The verb `unblock`: acts on the first event of a group.

use super::prelude::*;

/// Retry, skip or cancel the first event of a group, which holds back the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate unblock customer-3 --skip --reason 'a document is missing'"
)]
pub struct UnblockRequest {
    /// The group whose first event to act on.
    pub group: String,
    /// What to do with it.
    #[command(flatten)]
    #[serde(skip)]
    pub how: UnblockHow,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// What to do with the first event of a group: exactly one of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
#[group(required = true, multiple = false)]
#[serde(default)]
pub struct UnblockHow {
    /// Run the event at the next drain.
    #[arg(long)]
    pub retry: bool,
    /// End the event with code skipped, and publish its unfinished handlers again at the end of the group.
    #[arg(long)]
    pub skip: bool,
    /// End the event FAILED with code cancelled.
    #[arg(long)]
    pub cancel: bool,
}

/// The action on the first event of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnblockAction {
    /// Run it at the next drain.
    Retry,
    /// End it, and publish its unfinished work again after the group's other events.
    Skip,
    /// End it.
    Cancel,
}

/// The report of an unblock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct UnblockReport {
    /// The group.
    pub group_key: String,
    /// The requested action.
    pub how: UnblockAction,
    /// The event that was changed: the first of the group.
    pub id: Option<i64>,
    /// The new event with its unfinished handlers, after the group's other events.
    pub new_id: Option<i64>,
    /// Why nothing was done.
    pub refused: Option<String>,
}

statements! {
    UNBLOCK: "unblock" [TEXT, BOOL, BOOL, BOOL, TEXT, TEXT] =
        "SELECT @tidegate.unblock($1, CASE WHEN $2 THEN 'retry' WHEN $3 THEN 'skip' WHEN $4 THEN 'cancel' END, $5, $6)::text";
}

impl Verb for UnblockRequest {
    const NAME: &'static str = "unblock";
    const LOGGED: Option<&'static [&'static str]> = Some(&["how", "id", "new_id"]);

    type Report = UnblockReport;

    parts! { how; audit }

    fn check(&self) -> Result<()> {
        if given(&[self.how.retry, self.how.skip, self.how.cancel]) == 1 {
            return Ok(());
        }
        let refused = "retry, skip, cancel: one of them must be true";
        Err(Error::Invalid(refused.to_owned()))
    }

    fn code(&self, report: &UnblockReport) -> u8 {
        u8::from(report.id.is_none())
    }

    async fn on(&self, client: &impl Queryable) -> Result<UnblockReport> {
        let UnblockHow {
            retry,
            skip,
            cancel,
        } = &self.how;
        let Audit { reason, actor } = &self.audit;
        let values: &[&(dyn ToSql + Sync)] = &[&self.group, retry, skip, cancel, reason, actor];
        report(client, &UNBLOCK, values).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_does_exactly_one_thing_and_says_why() {
        for (request, refused) in [
            (
                json!({"group": "g", "skip": true, "cancel": true, "reason": "r"}),
                "retry, skip, cancel: one of them must be true",
            ),
            (
                json!({"group": "g", "skip": "yes", "reason": "r"}),
                "skip: must be true or false, got string \"yes\"",
            ),
            (json!({"group": "g", "skip": true}), "reason"),
        ] {
            let fields = request.as_object().unwrap().clone();
            let error = super::super::invocation::read::<UnblockRequest>(fields).unwrap_err();
            assert!(error.to_string().contains(refused), "{error}");
        }
    }

    #[test]
    fn the_log_learns_of_no_group() {
        let logged = UnblockRequest::LOGGED.unwrap();
        assert!(!logged.contains(&"group_key") && !logged.contains(&"refused"));
    }
}
