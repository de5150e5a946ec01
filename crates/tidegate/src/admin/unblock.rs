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
pub struct UnblockHow {
    /// Run the event at the next drain.
    #[arg(long)]
    #[serde(default)]
    pub retry: bool,
    /// End the event with code skipped, and publish its unfinished handlers again at the end of the group.
    #[arg(long)]
    #[serde(default)]
    pub skip: bool,
    /// End the event FAILED with code cancelled.
    #[arg(long)]
    #[serde(default)]
    pub cancel: bool,
}

impl UnblockHow {
    /// Returns what is to be done, if it is exactly one thing.
    #[must_use]
    pub fn action(self) -> Option<UnblockAction> {
        match (self.retry, self.skip, self.cancel) {
            (true, false, false) => Some(UnblockAction::Retry),
            (false, true, false) => Some(UnblockAction::Skip),
            (false, false, true) => Some(UnblockAction::Cancel),
            _ => None,
        }
    }
}

impl From<UnblockAction> for UnblockHow {
    fn from(action: UnblockAction) -> Self {
        Self {
            retry: action == UnblockAction::Retry,
            skip: action == UnblockAction::Skip,
            cancel: action == UnblockAction::Cancel,
        }
    }
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

impl UnblockAction {
    /// Returns the action's name in reports and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Cancel => "cancel",
        }
    }
}

/// The report of an unblock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "unblock")]
#[non_exhaustive]
pub struct UnblockReport {
    /// The group.
    pub group_key: String,
    /// The requested action.
    pub how: UnblockAction,
    /// The event that was changed; `None` if nothing was done.
    pub id: Option<i64>,
    /// The new event after the group's other events; only for `skip`.
    pub new_id: Option<i64>,
    /// Why nothing was done.
    pub refused: Option<String>,
}

statement! { UNBLOCK = "unblock"(TEXT, TEXT, TEXT, TEXT):
"SELECT tidegate.unblock($1, $2, $3, $4)::text" }

impl UnblockRequest {
    /// Acts on the first event of the group over this connection.
    ///
    /// # Errors
    /// As [`Verb::run`].
    pub async fn on(&self, client: &impl Queryable) -> Result<UnblockReport, Error> {
        let how = self.how.action().map(UnblockAction::as_str);
        let Audit { reason, actor } = &self.audit;
        report(client, &UNBLOCK, &[&self.group, &how, reason, actor]).await
    }
}

impl Verb for UnblockRequest {
    const NAME: &'static str = "unblock";
    const STATEMENTS: &'static [&'static Statement] = &[&UNBLOCK];
    const LOGGED: Option<&'static [&'static str]> = Some(&["how", "id", "new_id"]);

    type Report = UnblockReport;

    parts! { how; audit }

    fn check(&self) -> Result<(), Error> {
        let refused = "retry, skip, cancel: one of them must be true";
        let action = self.how.action().map(drop);
        action.ok_or_else(|| Error::Invalid(refused.to_owned()))
    }

    async fn run(&self, service: &Service) -> Result<UnblockReport, Error> {
        self.on(&service.database.connect().await?).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_actions_name_is_the_one_in_reports() {
        use UnblockAction::{Cancel, Retry, Skip};
        for action in [Retry, Skip, Cancel] {
            assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
            assert_eq!(UnblockHow::from(action).action(), Some(action));
        }
        assert_eq!(UnblockHow::default().action(), None);
    }

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
