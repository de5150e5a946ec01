//! The verb `retention`: how long finished events are kept.

use serde_json::Value;

use super::answer;
use super::prelude::*;
use super::program::{Failure, overrun};
use crate::drain::Hooks;
use crate::retention::{self, Change, KindsReport, RetentionReport};

/// Show how long finished events of each kind are kept, or change it for one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate retention order_placed --completed 7d --failed 30d --apply --reason 'the disk is full'"
)]
pub struct RetentionRequest {
    /// The kind; without it, all kinds are shown.
    pub kind: Option<String>,
    /// Keep COMPLETED events of this kind for this time, 0s to 3660d, such as 7d.
    #[arg(long, value_parser = parse_duration, requires_all = ["kind", "reason"])]
    #[serde(default, deserialize_with = "written")]
    pub completed: Option<Duration>,
    /// Keep FAILED and COMPLETED_WITH_ERRORS events of this kind for this time, 0s to 3660d, such as 30d.
    #[arg(long, value_parser = parse_duration, requires_all = ["kind", "reason"])]
    #[serde(default, deserialize_with = "written")]
    pub failed: Option<Duration>,
    /// Apply the new times also to events of this kind that have already finished.
    #[arg(long, requires_all = ["kind", "reason"])]
    #[serde(default)]
    pub apply: bool,
    /// Time limit for --apply, such as 30s [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, requires = "apply", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub budget: Option<Duration>,
    /// Reason for the change, recorded in the audit.
    #[arg(long, requires = "kind")]
    pub reason: Option<String>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long, requires = "kind")]
    pub actor: Option<String>,
}

/// The answer to a request about retention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Retention {
    /// The retention in effect.
    Kept(KindsReport),
    /// The result of a change.
    Changed(RetentionReport),
}

impl RetentionRequest {
    /// Returns the requested change, if there is one. The configured budget applies unless the request has
    /// its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field that a change lacks.
    fn change(&self, budget: Duration) -> Result<Option<Change>, Error> {
        if self.completed.is_none() && self.failed.is_none() && !self.apply {
            return Ok(None);
        }
        let lacks = |field: &str| {
            let text = format!("{field}: must be given with completed, failed or apply");
            Error::Invalid(text)
        };
        Ok(Some(Change {
            kind: self.kind.clone().ok_or_else(|| lacks("kind"))?,
            completed: self.completed,
            failed: self.failed,
            apply: self.apply,
            budget: self.budget.unwrap_or(budget),
            reason: self.reason.clone().ok_or_else(|| lacks("reason"))?,
            actor: self.actor.clone(),
        }))
    }
}

impl Verb for RetentionRequest {
    const NAME: &'static str = "retention";
    const CHANGES: bool = true;

    type Report = Retention;

    fn actor(&mut self) -> Option<&mut Option<String>> {
        Some(&mut self.actor)
    }

    async fn run(&self, service: &Service) -> Result<Retention, Error> {
        let Some(change) = self.change(service.options.budget)? else {
            let kinds = retention::kinds(&service.database, self.kind.as_deref());
            return Ok(Retention::Kept(kinds.await?));
        };
        let report = retention::change(&service.database, &change).await?;
        Ok(Retention::Changed(report))
    }

    async fn answer(
        &self,
        service: &Service,
        time: Option<Duration>,
        _: Hooks,
    ) -> Result<Value, Failure> {
        // Applying it watches its own time, as a cleanup does.
        let Some(most) = time.filter(|_| self.apply) else {
            return answer(time, self.run(service)).await;
        };
        let budget = self.budget.unwrap_or(service.options.budget).min(most);
        let asked = Self {
            budget: Some(budget),
            ..self.clone()
        };
        answer(Some(overrun(most)), asked.run(service)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_retention_needs_a_kind_and_a_reason() {
        let minute = Duration::from_mins(1);
        let change = RetentionRequest {
            kind: Some("paid".to_owned()),
            failed: Some(Duration::from_hours(24)),
            ..RetentionRequest::default()
        };
        let refused = change.change(minute).unwrap_err().to_string();
        assert!(refused.contains("reason: must be given"), "{refused}");
        let reason = Some("r".to_owned());
        let with_reason = RetentionRequest { reason, ..change };
        let change = with_reason.change(minute).unwrap().unwrap();
        assert_eq!((change.kind.as_str(), change.budget), ("paid", minute));
        let kind = None;
        let refused = RetentionRequest {
            kind,
            ..with_reason
        }
        .change(minute);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("kind: must be given"), "{refused}");
        assert_eq!(RetentionRequest::default().change(minute).unwrap(), None);
    }
}
