//! The verb `retention`: how long finished events are kept.

use tidegate_core::connect::Client;
use tidegate_core::queue::retention::{in_days, make_partitions};
use tidegate_core::queue::{documents, execute, refused};

use super::prelude::*;

/// Show how long finished events of each kind are kept, or change it for events of one kind that end from now
/// on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate retention order_placed --completed 7d --failed 30d --reason 'the disk is full'"
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
    /// Reason for the change, recorded in the audit.
    #[arg(long, requires = "kind")]
    pub reason: Option<String>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long, requires = "kind")]
    pub actor: Option<String>,
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
pub struct RetentionReport {
    /// All kinds, or the requested one, as it is after a change.
    ///
    /// A change holds for events that end from then on.
    pub kinds: Vec<KindRetention>,
}

statements! {
    RETENTIONS: "retentions" [TEXT] = "\
SELECT jsonb_build_object('kind', k.kind, 'retention_completed', k.retention_completed::text, 'retention_failed', k.retention_failed::text,
           'retention_completed_ms', (extract(epoch FROM k.retention_completed) * 1000)::int8,
           'retention_failed_ms', (extract(epoch FROM k.retention_failed) * 1000)::int8)::text
  FROM @tidegate.event_kind AS k WHERE $1 IS NULL OR k.kind = $1 ORDER BY k.kind";

    /// Two times, each in days and seconds. Null leaves a time unchanged.
    SET_RETENTION: "set_retention" [TEXT, INT4, FLOAT8, INT4, FLOAT8, TEXT, TEXT] = "\
SELECT FROM @tidegate.set_retention($1, make_interval(days => $2, secs => $3), make_interval(days => $4, secs => $5), $6, $7)";
}

impl RetentionRequest {
    /// Whether the request changes a retention, and does not only show it.
    pub fn changes(&self) -> bool {
        self.completed.is_some() || self.failed.is_some()
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

    /// Sets how long finished events are kept, from now on, and makes the partitions that this needs.
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
}

impl Verb for RetentionRequest {
    const NAME: &'static str = "retention";

    type Report = RetentionReport;

    fn actor(&mut self) -> Option<&mut Option<String>> {
        Some(&mut self.actor)
    }

    fn check(&self) -> Result<()> {
        let lacking = match (&self.kind, &self.reason) {
            (None, _) if self.changes() => "kind",
            (_, None) if self.changes() => "reason",
            _ => return Ok(()),
        };
        let text = format!("{lacking}: must be given with completed or failed");
        Err(Error::Invalid(text))
    }

    async fn run(&self, runtime: &Runtime) -> Result<RetentionReport> {
        if self.changes() {
            self.set(&runtime.database.session().await?).await?;
        }
        let kinds = self.kinds(&runtime.looking().await?).await?;
        Ok(RetentionReport { kinds })
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
