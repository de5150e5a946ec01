//! The command line: every verb of the queue, six verbs of this program, and `new`, which starts another
//! project.

use std::process::ExitCode;

use tidegate_cli::CommandLine;
use tidegate_job::{app, http, schemas};

fn main() -> ExitCode {
    let command_line = CommandLine::new(app::program())
        .starter()
        .verb(app::verb::receive_issuing)
        .verb(app::verb::submit)
        .verb(http::verb::run)
        .verb(tidegate_console::console)
        .verb(http::api_key)
        .verb(http::link_key);
    let schemas = schemas::of_own_verbs().into_iter();
    schemas
        .fold(command_line, |all, (verb, schema)| all.schema(verb, schema))
        .run()
}
