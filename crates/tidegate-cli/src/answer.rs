//! Owns the answer of a verb, and how it gets to stdout: without commands to a terminal, and without an error
//! if the reader of a pipe has gone.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use serde_json::value::RawValue;
use tidegate::{Error, Json};
use tidegate_admin::logs::{PATIENCE, flush, write_line};

use crate::colour;
use crate::text::{is_command, shown};

/// The answer of a verb: one document for programs, and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub(crate) document: Json,
    pub(crate) text: String,
    /// The process's exit code.
    pub(crate) code: u8,
}

impl Answer {
    /// Creates the answer of a verb that succeeded: the document that `--json` prints, and the text that
    /// people read.
    pub fn new(document: impl Into<Json>, text: impl Into<String>) -> Self {
        Self {
            document: document.into(),
            text: text.into(),
            code: 0,
        }
    }

    /// Sets the exit code of the process, which is 0 otherwise.
    #[must_use]
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The document for programs.
    #[must_use]
    pub fn document(&self) -> Value {
        self.document.read().unwrap_or_default()
    }

    /// The text for people.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the verb did, or would do, anything of what was requested.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.code == 0
    }
}

pub(crate) fn document(report: &impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(report).map_err(|error| Error::Invalid(format!("report: {error}")))
}

/// The document of a verb that only the command line has, with its `action`.
pub(crate) fn own_document(action: &str, report: &impl serde::Serialize) -> Result<Value, Error> {
    let mut document = document(report)?;
    document["action"] = action.into();
    Ok(document)
}

/// Writes a text to stdout, without commands to a terminal. A closed pipe (`tidegate list | head`) is not a
/// failure.
pub(crate) fn print(text: &str) -> ExitCode {
    let text = printable(text);
    if colour::is_wanted(std::io::stdout().is_terminal()) {
        return write(&colour::painted(&text));
    }
    write(&text)
}

/// Writes a document to stdout. JSON's own escapes leave out some commands to terminals.
pub(crate) fn print_document(document: &Json) -> ExitCode {
    let mut text = String::new();
    for one in document.to_string().chars() {
        if is_command(one) {
            let mut units = [0; 2];
            let units = one.encode_utf16(&mut units).iter();
            text.extend(units.map(|unit| format!("\\u{unit:04x}")));
        } else {
            text.push(one);
        }
    }
    write(&text)
}

/// Writes a message to stderr behind the log, without commands to a terminal.
pub(crate) fn print_error(text: &str) {
    write_line(&printable(text));
    flush(PATIENCE);
}

/// Returns the lines of a text as [`shown`], except for tabs, which scripts for completions have. Commands in
/// the text begin with the name of the program that was called, in place of `tidegate`.
pub(crate) fn printable(text: &str) -> String {
    let program = program_name();
    let line = |line: &str| {
        let line = line.split('\t').map(shown).collect::<Vec<_>>().join("\t");
        let (indent, first) = line.split_at(line.len() - line.trim_start().len());
        let line = match first.strip_prefix("tidegate ") {
            Some(arguments) => format!("{indent}{program} {arguments}"),
            None => line,
        };
        line.replace(": tidegate ", &format!(": {program} "))
            .replace("`tidegate ", &format!("`{program} "))
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The name under which this program was called.
pub(crate) fn program_name() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_stem);
    name.map_or_else(
        || "tidegate".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// Writes a text to stdout as it is.
pub(crate) fn write(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            print_error(&format!("{}: stdout: {error}", program_name()));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Reads the JSON of a flag: the text itself, or @FILE, or - for stdin.
///
/// # Errors
/// [`Error::Invalid`] names the flag and what it must be.
pub fn json_argument(flag: &str, argument: &str) -> Result<Box<RawValue>, Error> {
    let refused = |why: String| Error::Invalid(format!("{flag}: {why}"));
    let unreadable = |error: std::io::Error| refused(format!("{argument}: {error}"));
    let text = if argument == "-" {
        std::io::read_to_string(std::io::stdin()).map_err(unreadable)?
    } else if let Some(file) = argument.strip_prefix('@') {
        std::fs::read_to_string(file).map_err(unreadable)?
    } else {
        argument.to_owned()
    };
    let json = serde_json::from_str(text.trim());
    json.map_err(|error| refused(format!("must be JSON, @FILE or -: {error}")))
}
