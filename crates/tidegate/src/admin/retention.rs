//! The verb `retention`: how long finished events are kept.

use serde_json::{Value, json};

use super::answer;
use super::prelude::*;
use super::program::{Failure, overrun};
use crate::budget::millis;
use crate::connect::Client;
use crate::drain::Hooks;
use crate::queue::retention::Done;
use crate::queue::{documents, execute, refused};
use crate::retention::{CleanupStop, stop_reason};
use crate::steps::{Steps, make_partitions};

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

/// How long finished events of a kind are kept, as the database writes intervals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KindRetention {
    /// The kind.
    pub kind: String,
    /// For COMPLETED events.
    pub retention_completed: String,
    /// For FAILED and `COMPLETED_WITH_ERRORS` events.
    pub retention_failed: String,
    /// Of COMPLETED ones, in milliseconds; a month counts as 30 days, a year as 365.25.
    pub retention_completed_ms: i64,
    /// Of the others, likewise.
    pub retention_failed_ms: i64,
}

/// How long finished events are kept, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct KindsReport {
    /// All kinds, or the requested one.
    pub kinds: Vec<KindRetention>,
}

/// What a change of retention did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct RetentionReport {
    /// The current retention of the kind.
    pub kinds: Vec<KindRetention>,
    /// The result for events that had already finished, if the change was applied to them.
    pub redated: Option<RedateReport>,
}

/// What became of finished events when a retention was applied to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct RedateReport {
    /// How many rows have a new expiry.
    pub rows: u64,
    /// How often a step did not get a lock in time.
    pub lock_timeouts: u64,
    /// How many steps were given up because of that.
    pub skipped: u64,
    /// How many milliseconds it took.
    pub elapsed_ms: u64,
    /// How many milliseconds it was allowed to take.
    pub budget_ms: u64,
    /// Why it ended.
    pub stop_reason: CleanupStop,
}

statements! {
    RETENTIONS: "retentions" [TEXT] = "\
SELECT jsonb_build_object('kind', k.kind, 'retention_completed', k.retention_completed::text, 'retention_failed', k.retention_failed::text,
           'retention_completed_ms', (extract(epoch FROM k.retention_completed) * 1000)::int8,
           'retention_failed_ms', (extract(epoch FROM k.retention_failed) * 1000)::int8)::text
  FROM tidegate.event_kind AS k WHERE $1 IS NULL OR k.kind = $1 ORDER BY k.kind";

    /// In days and seconds. Null leaves it unchanged.
    SET_RETENTION: "set_retention" [TEXT, INT4, FLOAT8, INT4, FLOAT8, TEXT, TEXT] = "\
SELECT FROM tidegate.set_retention($1, make_interval(days => $2, secs => $3), make_interval(days => $4, secs => $5), $6, $7)";
}

impl RetentionRequest {
    /// Whether it changes anything.
    fn changes(&self) -> bool {
        self.completed.is_some() || self.failed.is_some() || self.apply
    }

    async fn kinds(&self, client: &Client) -> Result<Vec<KindRetention>> {
        let kinds = documents(client, &RETENTIONS, &[&self.kind]).await?;
        match &self.kind {
            Some(kind) if kinds.is_empty() => Err(Error::Invalid(format!(
                "kind: {kind:?} is not registered; `tidegate retention` lists those that are"
            ))),
            _ => Ok(kinds),
        }
    }

    /// Sets how long finished events are kept, from now on.
    async fn set(&self, client: &Client) -> Result<()> {
        let (completed_days, completed_rest) = self.completed.map(in_days).unzip();
        let (failed_days, failed_rest) = self.failed.map(in_days).unzip();
        let values: &[&(dyn ToSql + Sync)] = &[
            &self.kind,
            &completed_days,
            &completed_rest,
            &failed_days,
            &failed_rest,
            &self.reason,
            &self.actor,
        ];
        let set = execute(client, &SET_RETENTION, values).await;
        set.map_err(refused)?;
        make_partitions(client).await
    }

    /// Applies the current retention to events that have already finished.
    async fn redate(&self, client: &Client, budget: Duration) -> Result<RedateReport> {
        let budget = self.budget.unwrap_or(budget);
        let mut steps = Steps::new(budget, None);
        let mut rows = 0;
        let state = json!({
            "stages": ["apply"],
            "kind": self.kind,
            "reason": self.reason,
            "actor": self.actor,
        });
        let on_done = |done: Done| rows += done.rows_redated;
        let ended = steps.walk(client, state, on_done).await;
        Ok(RedateReport {
            rows,
            stop_reason: stop_reason(ended)?,
            lock_timeouts: steps.lock_timeouts,
            skipped: steps.skipped,
            elapsed_ms: millis(steps.began.elapsed()),
            budget_ms: millis(budget),
        })
    }
}

/// Splits a time into whole days and the remaining seconds: "7 days" reads better than "168:00:00".
fn in_days(time: Duration) -> (i32, f64) {
    const DAY: u64 = 24 * 60 * 60;
    let days = time.as_secs() / DAY;
    let rest = time.saturating_sub(Duration::from_secs(days * DAY));
    (i32::try_from(days).unwrap_or(i32::MAX), rest.as_secs_f64())
}

impl Verb for RetentionRequest {
    const NAME: &'static str = "retention";

    type Report = Retention;

    fn actor(&mut self) -> Option<&mut Option<String>> {
        Some(&mut self.actor)
    }

    fn check(&self) -> Result<()> {
        let lacking = match (&self.kind, &self.reason) {
            (None, _) if self.changes() => "kind",
            (_, None) if self.changes() => "reason",
            _ => return Ok(()),
        };
        let text = format!("{lacking}: must be given with completed, failed or apply");
        Err(Error::Invalid(text))
    }

    async fn run(&self, service: &Service) -> Result<Retention> {
        let client = service.database.connect().await?;
        if !self.changes() {
            let kinds = self.kinds(&client).await?;
            return Ok(Retention::Kept(KindsReport { kinds }));
        }
        if self.completed.is_some() || self.failed.is_some() {
            self.set(&client).await?;
        }
        let redated = if self.apply {
            Some(self.redate(&client, service.options.budget).await?)
        } else {
            None
        };
        let kinds = self.kinds(&client).await?;
        Ok(Retention::Changed(RetentionReport { kinds, redated }))
    }

    async fn answer(
        &self,
        service: &Service,
        time: Option<Duration>,
        _: Hooks,
    ) -> Result<Value, Failure> {
        // Applying it watches its own time, as a cleanup does.
        let Some(most) = time.filter(|_| self.apply) else {
            return answer::<Self>(time, self.run(service)).await;
        };
        let budget = self.budget.unwrap_or(service.options.budget).min(most);
        let request = Self {
            budget: Some(budget),
            ..self.clone()
        };
        answer::<Self>(Some(overrun(most)), request.run(service)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_retention_needs_a_kind_and_a_reason() {
        let change = RetentionRequest {
            kind: Some("paid".to_owned()),
            failed: Some(Duration::from_hours(24)),
            ..RetentionRequest::default()
        };
        let refused = change.check().unwrap_err().to_string();
        assert!(refused.contains("reason: must be given"), "{refused}");
        let reason = Some("r".to_owned());
        let with_reason = RetentionRequest { reason, ..change };
        assert!(with_reason.check().is_ok() && with_reason.changes());
        let kind = None;
        let refused = RetentionRequest {
            kind,
            ..with_reason
        };
        let refused = refused.check().unwrap_err().to_string();
        assert!(refused.contains("kind: must be given"), "{refused}");
        assert!(RetentionRequest::default().check().is_ok());
    }
}
