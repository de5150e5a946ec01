//! Whom an operator asks to forget, which payloads to seal anew, and what is answered.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Whom something is about, in the program's own words: `patient=7f0c…`.
#[derive(Clone, PartialEq, Eq)]
pub struct Subject {
    /// One of [`Records::subjects`](crate::forget::Records::subjects).
    pub name: String,
    /// Which one.
    pub id: String,
}

impl std::fmt::Debug for Subject {
    /// Without the id: it may be a person's (I9).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({:?})", self.name)
    }
}

/// Reads `patient=7f0c…`.
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

/// Whom to forget, and why. At least one of `group`, `correlation_id`, `ids` and `subject`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetRequest {
    /// All events of this group.
    pub group: Option<String>,
    /// All events with this correlation id.
    pub correlation_id: Option<String>,
    /// These events, 1 to 10,000.
    pub ids: Option<Vec<i64>>,
    /// Whomever the program's own tables are about, with all its events: `NAME=ID`.
    #[serde(default, deserialize_with = "subject")]
    pub subject: Option<Subject>,
    /// For the audit; not blank, at most 1,000 characters. It should not name the subject.
    pub reason: String,
    /// Who says to be asking, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
    /// Tell what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl std::fmt::Debug for ForgetRequest {
    /// Without whom: it may be a person (I9).
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

/// What was forgotten or, as a dry run, would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "forget")]
#[non_exhaustive]
pub struct ForgetReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Events of which only what happened is left, live and finished.
    pub forgotten: u64,
    /// Those of them that were live, and ended FAILED `cancelled`.
    pub cancelled: u64,
    /// Those of them that a handler may have been at work on. What it does to other tables and services, nobody undoes; ask
    /// again when it must have ended.
    pub in_hand: u64,
    /// Events that had been forgotten before.
    pub before: u64,
    /// Ids of no event.
    pub unknown: u64,
    /// Operators' schedules of the groups that were removed.
    #[serde(default)]
    pub schedules: u64,
    /// Rows of the program's own tables that were removed, by table.
    pub tables: BTreeMap<String, u64>,
    /// Events came of those faster than they could be forgotten, or new ones of the group; ask again.
    pub incomplete: bool,
}

/// Why payloads are to be sealed with the current key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewrapRequest {
    /// For the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// Who says to be asking, for the audit; 1 to 200 characters.
    pub actor: Option<String>,
    /// Tell what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was sealed anew or, as a dry run, would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "rewrap")]
#[non_exhaustive]
pub struct RewrapReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// The key that seals.
    pub key: String,
    /// Payloads that had another key.
    pub rewrapped: u64,
    /// Payloads that were not sealed before.
    pub sealed: u64,
    /// Payloads with a key that this program has not, by its name.
    pub no_key: BTreeMap<String, u64>,
    /// Payloads whose seal does not hold, the first 100 events.
    pub broken: Vec<i64>,
}
