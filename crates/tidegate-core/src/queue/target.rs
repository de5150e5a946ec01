//! The targets of programs whose handlers are stored in the database.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::error::SqlState;

use super::statement::statements;
use super::{Queryable, document, text};
use crate::error::{Error, Result};
use crate::policy::Policy;

statements! {
    TARGETS: "targets" [] = "SELECT @tidegate.targets()::text";

    /// A field that is null stands for the default.
    DECLARE_TARGETS: "declare_targets" [TEXT, TEXT] =
        "SELECT @tidegate.declare_targets(jsonb_strip_nulls($1::jsonb), $2)::text";
}

/// Targets, and the kinds of events that go to them, as a file declares them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Targets {
    /// The targets, by name.
    pub targets: BTreeMap<String, DeclaredTarget>,
    /// The kinds.
    pub kinds: BTreeMap<String, DeclaredKind>,
}

/// Where events are delivered, and how many at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeclaredTarget {
    /// How to call it: an object.
    pub address: Value,
    /// The most events at once, over all drains, 1 to 10,000.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The most starts a second, 0.0001 to 10,000.
    #[serde(default)]
    pub per_second: Option<f64>,
}

/// Where the events of a kind go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeclaredKind {
    /// The names of its targets, in order. Empty for a kind that is only pulled.
    pub targets: Vec<String>,
    /// How its events are handled.
    pub policy: Policy,
}

/// What was declared of one target or kind, and what is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Redeclared {
    /// What it was; `None` if it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What it is; `None` if it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// Returns the targets that are declared in this database. Before the first migration there are none.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn targets(client: &impl Queryable) -> Result<Targets> {
    match document(client, &TARGETS, &[]).await {
        Err(error) if is_not_migrated(&error) => Ok(Targets::default()),
        found => Ok(found?.unwrap_or_default()),
    }
}

fn is_not_migrated(error: &Error) -> bool {
    let missing = [
        &SqlState::UNDEFINED_FUNCTION,
        &SqlState::INVALID_SCHEMA_NAME,
    ];
    error.sqlstate().is_some_and(|code| missing.contains(&code))
}

/// Replaces the declared targets, and returns what differs by path, such as `targets.ship`.
///
/// # Errors
/// [`Error::Invalid`] names what is out of range; otherwise the database's error.
pub(crate) async fn declare_targets(
    client: &impl Queryable,
    targets: &Targets,
    actor: Option<&str>,
) -> Result<BTreeMap<String, Redeclared>> {
    let declared = text("targets", targets)?;
    let difference = document(client, &DECLARE_TARGETS, &[&declared, &actor]).await;
    Ok(difference.map_err(super::refused)?.unwrap_or_default())
}
