//! The verb `policy`: handles a kind's events differently from what its program declares.

use serde_json::{Map, Value, json};

use super::prelude::*;

/// Show or change how events of a kind are handled: attempts, time limit, backoff, concurrency and batches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate policy order_placed\n  tidegate policy order_placed --handler-timeout 5s --attempts 3 --reason 'the carrier is slow'\n  tidegate policy order_placed --reset attempts --reason 'it is quick again'"
)]
pub struct PolicyRequest {
    /// The kind of events.
    pub kind: String,
    /// Maximum number of attempts of events published from now on, 1 to 1000.
    #[arg(long, allow_negative_numbers = true)]
    pub attempts: Option<u16>,
    /// Time limit of a handler, such as 5s; at most 15m, and at most nine tenths of a lease.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub handler_timeout: Option<Duration>,
    /// Delay after the first attempt, such as 10s, at most 24h; it doubles with each further attempt.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub backoff: Option<Duration>,
    /// Maximum delay between two attempts, such as 10m; at most 24h.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub backoff_max: Option<Duration>,
    /// Maximum number of events of this kind that run at once, over all drains, 1 to 10000.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub concurrency: Option<u32>,
    /// Maximum number of events in one batch, 1 to 1000; only for kinds whose handler takes batches.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub batch: Option<u16>,
    /// Maximum time that the first event of a batch waits for more events, such as 200ms; at most 1m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub batch_within: Option<Duration>,
    /// How long an event waits for an outside service that does not answer, such as 24h, before it ends
    /// FAILED.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(default, deserialize_with = "written")]
    pub give_up_after: Option<Duration>,
    /// Return this field to the program's own value: attempts, handler-timeout, backoff, backoff-max,
    /// concurrency, batch, batch-within or give-up-after; may be given several times.
    #[arg(long, value_name = "FIELD")]
    #[serde(default)]
    pub reset: Vec<String>,
    /// Reason for the change, recorded in the audit; required if anything changes.
    #[arg(long)]
    pub reason: Option<String>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}

/// The names of a policy's fields in requests, and in the database.
pub const POLICY_FIELDS: [(&str, &str); 8] = [
    ("attempts", "max_attempts"),
    ("handler_timeout", "handler_timeout_ms"),
    ("backoff", "backoff_ms"),
    ("backoff_max", "backoff_max_ms"),
    ("concurrency", "concurrency"),
    ("batch", "batch"),
    ("batch_within", "batch_within_ms"),
    ("give_up_after", "give_up_after_ms"),
];

impl PolicyRequest {
    /// Returns the change in the form in which it is stored. Null sets a field back to what the program
    /// declares.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `reset` names an unknown field, or a field that the request also sets.
    fn change(&self) -> Result<Value> {
        let millis = |time: Option<Duration>| {
            time.map(|time| json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
        };
        let given = [
            self.attempts.map(Value::from),
            millis(self.handler_timeout),
            millis(self.backoff),
            millis(self.backoff_max),
            self.concurrency.map(Value::from),
            self.batch.map(Value::from),
            millis(self.batch_within),
            millis(self.give_up_after),
        ];
        let fields = POLICY_FIELDS.iter().zip(given);
        let mut change: Map<String, Value> = fields
            .filter_map(|((_, stored), value)| Some(((*stored).to_owned(), value?)))
            .collect();
        for name in &self.reset {
            // The command line writes them as its flags.
            let field = name.replace('-', "_");
            let Some((_, stored)) = POLICY_FIELDS.iter().find(|(known, _)| *known == field) else {
                let known = POLICY_FIELDS.map(|(name, _)| name).join(", ");
                let why = format!("reset: must be of {known}, got {name:?}");
                return Err(Error::Invalid(why));
            };
            if change.insert((*stored).to_owned(), Value::Null).is_some() {
                let why =
                    format!("reset: must not name {name} twice, or together with a new value");
                return Err(Error::Invalid(why));
            }
        }
        if !change.is_empty() && self.reason.is_none() {
            return Err(Error::Invalid(
                "reason: must be given if anything changes".to_owned(),
            ));
        }
        Ok(Value::Object(change))
    }
}

/// The policy of a kind, after a change or without one. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct PolicyReport {
    /// The kind.
    pub kind: String,
    /// Whether anything was changed.
    pub changed: bool,
    /// The fields that the program declares.
    pub declared: Map<String, Value>,
    /// The values that operators have set instead.
    pub overridden: Map<String, Value>,
    /// The values in effect.
    pub policy: Map<String, Value>,
}

statements! {
    SET_POLICY: "set_policy" [TEXT, TEXT, TEXT, TEXT] =
        "SELECT tidegate.set_policy($1, $2::jsonb, $3, $4)::text";
}

impl Verb for PolicyRequest {
    const NAME: &'static str = "policy";

    type Report = PolicyReport;

    fn actor(&mut self) -> Option<&mut Option<String>> {
        Some(&mut self.actor)
    }

    async fn on(&self, client: &impl Queryable) -> Result<PolicyReport> {
        let change = self.change()?.to_string();
        let values: &[&(dyn ToSql + Sync)] = &[&self.kind, &change, &self.reason, &self.actor];
        report(client, &SET_POLICY, values).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_what_was_given_and_what_is_reset() {
        let request = PolicyRequest {
            attempts: Some(3),
            backoff: Some(Duration::from_secs(2)),
            reset: vec!["concurrency".to_owned()],
            reason: Some("r".to_owned()),
            ..PolicyRequest::default()
        };
        let stored = json!({"max_attempts": 3, "backoff_ms": 2000, "concurrency": null});
        assert_eq!(request.change().unwrap(), stored);
        assert_eq!(PolicyRequest::default().change().unwrap(), json!({}));
        for (reset, reason, shown) in [
            (&["speed"][..], Some("r"), "reset: must be of attempts"),
            (&["attempts"], Some("r"), "reset: must not name attempts"),
            (&["concurrency"], None, "reason: must be given"),
        ] {
            let request = PolicyRequest {
                reset: reset.iter().map(|name| (*name).to_owned()).collect(),
                reason: reason.map(str::to_owned),
                ..request.clone()
            };
            let refused = request.change().unwrap_err().to_string();
            assert!(refused.contains(shown), "{refused}");
        }
    }
}
