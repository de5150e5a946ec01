//! Requests to forget a person, and their reports.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// The person or thing that data is about, in the program's own terms: `patient=7f0c…`.
#[derive(Clone, PartialEq, Eq)]
pub struct Subject {
    /// One of [`Records::subjects`](crate::forget::Records::subjects).
    pub name: String,
    /// Its id.
    pub id: String,
}

impl std::fmt::Debug for Subject {
    /// Leaves out the id, which may identify a person (I9).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({:?})", self.name)
    }
}

/// Parses `patient=7f0c…`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_subject(text: &str) -> Result<Subject, String> {
    match text.split_once('=') {
        Some((name, id)) if !name.is_empty() && !id.is_empty() => Ok(Subject {
            name: name.to_owned(),
            id: id.to_owned(),
        }),
        _ => Err("must be NAME=ID, such as customer=42".to_owned()),
    }
}

/// Groups and correlation ids of a subject's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubjectKeys {
    /// Groups.
    pub groups: Vec<String>,
    /// Correlation ids.
    pub correlation_ids: Vec<String>,
}

/// A request to forget a person. It has at least one of `group`, `correlation_id`, `ids` and `subject`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetRequest {
    /// All events of this group.
    pub group: Option<String>,
    /// All events with this correlation id.
    pub correlation_id: Option<String>,
    /// These events, 1 to 10,000.
    pub ids: Option<Vec<i64>>,
    /// A subject of the program's own tables, with all its events: `NAME=ID`.
    #[serde(default, deserialize_with = "subject")]
    pub subject: Option<Subject>,
    /// The reason, for the audit; not blank, at most 1,000 characters. It should not name the subject.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
    /// Report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl std::fmt::Debug for ForgetRequest {
    /// Leaves out the subject, which may identify a person (I9).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForgetRequest(dry_run: {})", self.dry_run)
    }
}

fn subject<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Subject>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_subject(&text))
        .transpose()
        .map_err(serde::de::Error::custom)
}

/// The report of a forget. For a dry run, what it would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "forget")]
#[non_exhaustive]
pub struct ForgetReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Events, live and finished, whose content was removed. Only the record of their processing remains.
    pub forgotten: u64,
    /// How many of them were live, and ended as FAILED with the code `cancelled`.
    pub cancelled: u64,
    /// How many of them a handler may have been working on. What it does to other tables and services is not
    /// undone. Send the request again when the handler must have ended.
    pub in_hand: u64,
    /// How many events had been forgotten before.
    pub before: u64,
    /// How many ids name no event.
    pub unknown: u64,
    /// How many schedules of operators were removed, because they publish to these groups.
    #[serde(default)]
    pub schedules: u64,
    /// Rows of the program's own tables that were removed, by table.
    pub tables: BTreeMap<String, u64>,
    /// Whether new events appeared faster than they could be forgotten, as follow-ups or in the group. Send
    /// the request again.
    pub incomplete: bool,
}
