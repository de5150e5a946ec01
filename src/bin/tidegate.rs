//! The command line: every verb of the queue, and two of this program.

use std::process::ExitCode;

use tidegate_cli::CommandLine;
use tidegate_job::{app, http};

fn main() -> ExitCode {
    CommandLine::new(app::program())
        .verb(app::checks::verb::receive_issuing)
        .verb(http::verb::run)
        .run()
}
