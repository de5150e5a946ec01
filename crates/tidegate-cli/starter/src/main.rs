//! The command line. It migrates, publishes, drains, and has the commands for operators and, if it is built
//! with the feature `console`, the web console.

use std::process::ExitCode;

fn main() -> ExitCode {
    let command_line = tidegate_cli::CommandLine::new({{crate}}::program());
    #[cfg(feature = "console")]
    let command_line = command_line.verb(tidegate_console::console);
    command_line.run()
}
