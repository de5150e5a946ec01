//! The command line. It migrates, publishes, drains and has the commands for operators.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_cli::run({{crate}}::program())
}
