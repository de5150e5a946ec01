//! The command line: every verb of the queue, the verbs of this program, and `new`, which starts another
//! project.

use std::process::ExitCode;

use serde_json::{Map, Value};
use tidegate_cli::CommandLine;
use tidegate_job::{app, schemas};

fn main() -> ExitCode {
    let command_line = CommandLine::new(app::program())
        .starter()
        .verb(app::verb::receive_issuing)
        .verb(app::verb::submit);
    let command_line = described(command_line, schemas::of_application());
    #[cfg(feature = "full")]
    let command_line = served(command_line);
    command_line.run()
}

#[cfg(feature = "full")]
fn served(command_line: CommandLine) -> CommandLine {
    let command_line = command_line
        .verb(tidegate_job::http::verb::run)
        .verb(tidegate_console::console)
        .verb(tidegate_job::http::api_key)
        .verb(tidegate_job::http::link_key);
    described(command_line, schemas::of_servers())
}

fn described(command_line: CommandLine, schemas: Map<String, Value>) -> CommandLine {
    let schemas = schemas.into_iter();
    schemas.fold(command_line, |all, (verb, schema)| {
        all.schema(&verb, schema)
    })
}
