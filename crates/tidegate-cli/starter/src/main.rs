//! The command line: migrate, publish, drain, look, operate.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_cli::run({{crate}}::program())
}
