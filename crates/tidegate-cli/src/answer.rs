//! Owns what a verb may say: an answer, or why there is none.

use std::io::Read;
use std::process::ExitCode;

use serde_json::Value;
use serde_json::value::RawValue;
use tidegate::{DrainError, DrainReport, Error};

/// What a verb has to say: one document for programs, a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub(crate) document: Value,
    pub(crate) text: String,
    /// The process's exit code.
    pub(crate) code: u8,
}

impl Answer {
    /// Of a verb that is done: what `--json` prints, and what people read.
    pub fn new(document: Value, text: impl Into<String>) -> Self {
        Self {
            document,
            text: text.into(),
            code: 0,
        }
    }
}

/// Why a verb failed, with the counts of a drain that came some way.
pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) report: Option<Box<DrainReport>>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            report: None,
        }
    }
}

impl From<DrainError> for Failed {
    fn from(error: DrainError) -> Self {
        Self {
            error: error.source,
            report: Some(error.report),
        }
    }
}

/// A report as a document.
pub(crate) fn document(report: &impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(report).map_err(|error| Error::Invalid(format!("report: {error}")))
}

/// Writes to stdout; a closed pipe (`tidegate list | head`) is no failure of ours.
pub(crate) fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

/// Reads a flag's JSON: as it stands, or @FILE, or - for stdin.
///
/// # Errors
/// [`Error::Invalid`] names the flag and what must be.
pub fn json_argument(flag: &str, argument: &str) -> Result<Box<RawValue>, Error> {
    let unreadable = |error: std::io::Error| Error::Invalid(format!("{flag}: {argument}: {error}"));
    let text = if argument == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        text
    } else if let Some(file) = argument.strip_prefix('@') {
        std::fs::read_to_string(file).map_err(unreadable)?
    } else {
        argument.to_owned()
    };
    serde_json::from_str(text.trim())
        .map_err(|error| Error::Invalid(format!("{flag}: must be JSON, @FILE or -: {error}")))
}
