//! Owns the doctor's findings: what a check found, how bad it is, and how to repair it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_core::error::Result;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All is well.
    Ok,
    /// It works, but not well or not for long. Or it could not be checked.
    Warning,
    /// It does not work, or breaks a guarantee.
    #[schemars(title = "PROBLEM")]
    Problem,
}

/// A check with what it found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub name: String,
    /// How bad it is.
    pub state: State,
    /// What was found.
    pub finding: String,
    /// What to run: commands or SQL, one on each line. `None` when all is well or nothing can be run.
    #[schemars(extend("format" = "commands"))]
    pub remedy: Option<String>,
}

impl Finding {
    /// Creates a finding that has no name yet. An empty remedy is none.
    fn new(state: State, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = remedy.into();
        Self {
            name: String::new(),
            state,
            finding: finding.into(),
            remedy: (!remedy.is_empty()).then_some(remedy),
        }
    }

    pub(super) fn ok(text: impl Into<String>) -> Self {
        Self::new(State::Ok, text, "")
    }

    pub(super) fn warning(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Warning, text, remedy)
    }

    pub(super) fn problem(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Problem, text, remedy)
    }

    /// Names a finding after its check. A check that could not run is a warning: its result is unknown.
    pub(super) fn of(name: &str, found: Result<Self>) -> Self {
        let found = found
            .unwrap_or_else(|error| Self::warning(format!("could not be checked: {error}"), ""));
        Self {
            name: name.to_owned(),
            ..found
        }
    }
}

/// What the doctor found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DoctorReport {
    /// Whether every check is ok.
    pub ok: bool,
    /// All checks that were run.
    pub checks: Vec<Finding>,
}
