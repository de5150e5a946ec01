//! Owns the doctor's findings: what a check found, how bad it is, and how to repair it.

use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use crate::error::Error;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All is well.
    Ok,
    /// It works, but not well or not for long. Or it could not be checked.
    Warning,
    /// It does not work, or breaks a guarantee.
    Problem,
}

impl State {
    /// Returns the state as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "PROBLEM",
        }
    }
}

/// A check with what it found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub name: &'static str,
    /// How bad it is.
    pub state: State,
    /// What was found.
    pub finding: String,
    /// What to run: commands or SQL, one on each line. `None` when all is well or nothing can be run.
    pub remedy: Option<String>,
}

impl Finding {
    fn new(state: State, finding: String, remedy: Option<String>) -> Self {
        Self {
            name: "",
            state,
            finding,
            remedy,
        }
    }

    pub(super) fn ok(text: impl Into<String>) -> Self {
        Self::new(State::Ok, text.into(), None)
    }

    pub(super) fn warning(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Warning, text.into(), Some(remedy.into()))
    }

    pub(super) fn problem(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Problem, text.into(), Some(remedy.into()))
    }

    /// Creates the finding of what the program itself tells.
    pub(super) fn told(name: &'static str, text: &str) -> Self {
        let finding = Self::new(State::Warning, text.to_owned(), None);
        Self { name, ..finding }
    }

    /// Creates a problem that no command repairs. The text says what to do.
    pub(super) fn beyond_us(text: impl Into<String>) -> Self {
        Self::new(State::Problem, text.into(), None)
    }

    /// Creates the finding of a check that failed to run. It counts as a warning, because its result is
    /// unknown.
    pub(super) fn unchecked(error: &Error) -> Self {
        Self::new(
            State::Warning,
            format!("could not be checked: {error}"),
            None,
        )
    }
}

/// What a check found wrong: a text and a remedy for each thing.
pub(super) struct Wrong {
    pub(super) texts: Vec<String>,
    pub(super) remedies: Vec<String>,
}

impl Wrong {
    /// Collects a text and a remedy for each row.
    pub(super) fn of(rows: &[Row], wrong: impl Fn(&Row) -> (String, String)) -> Self {
        let (texts, mut remedies): (_, Vec<String>) = rows.iter().map(wrong).unzip();
        remedies.dedup();
        Self { texts, remedies }
    }

    /// Returns `ok` if nothing is wrong; otherwise the finding for the texts, which are separated like this,
    /// and for the remedies.
    pub(super) fn or_ok(
        &self,
        ok: impl Into<String>,
        separator: &str,
        finding: impl FnOnce(String, String) -> Finding,
    ) -> Finding {
        if self.texts.is_empty() {
            return Finding::ok(ok);
        }
        finding(self.texts.join(separator), self.remedies.join("\n"))
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
