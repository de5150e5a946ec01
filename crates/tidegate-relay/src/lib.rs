//! The program `tidegate-relay`: it drains queues whose handlers are Lambda functions, HTTPS URLs, SQS queues
//! and `EventBridge` buses. A file declares them, and `tidegate-relay migrate --targets FILE` stores them in
//! the database, so one prebuilt program serves every queue.
//!
//! It owns the file and its faults (`file`), the verbs about it (`verbs`), and the handlers of the kinds that
//! a database declares ([`Relay`]). It does not know what a payload means, or how a target is called:
//! `tidegate_targets` does that.
//!
//! At the beginning of a run, [`Relay`] reads from the database which targets and kinds are declared. An
//! event is decoded as [`Passed`], with its payload as it is, and each target of its kind is one of its
//! handlers. A kind with a target that this process cannot call is left out, and its events wait.

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
