//! The command line. It migrates, publishes, drains, and has the commands for operators and the web console.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_cli::CommandLine::new({{crate}}::program())
        .verb(tidegate_console::console)
        .run()
}
