//! The program `tidegate-relay`: it drains queues whose handlers are Lambda functions, HTTPS URLs, SQS queues
//! and `EventBridge` buses. A file declares them, and `tidegate-relay migrate --targets FILE` stores them in
//! the database, so one prebuilt program serves every queue.

mod file;
mod relay;
mod verbs;

use tidegate::Error;
use tidegate_admin::Program;
use tidegate_cli::CommandLine;

use self::file::listed;
pub use self::file::{FileFault, read};
pub use self::relay::{Passed, Relay};

/// Returns the program, for a shell.
pub fn program() -> Program {
    Program::new(|lookup| Ok(Relay::new(lookup))).targets(|text, options| {
        let (targets, warnings) = read(text, options)
            .map_err(|faults| Error::Invalid(format!("targets: {}", listed(&faults))))?;
        for warning in warnings {
            tracing::warn!("targets: line {warning}");
        }
        Ok(targets)
    })
}

/// Returns the command line: the verbs of every program, and those about the file.
#[must_use]
pub fn command_line() -> CommandLine {
    let all = CommandLine::new(program())
        .alone(verbs::check)
        .alone(verbs::try_out)
        .alone(verbs::permissions);
    #[cfg(feature = "console")]
    let all = all.verb(tidegate_console::console);
    all
}
