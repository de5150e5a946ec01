//! The third Lambda function: the web console, for people whom AWS IAM identifies.

fn main() -> Result<(), tidegate_console::function::Error> {
    let program = tidegate_job::app::program();
    if let Err(error) = tidegate_lambda::start_logs(program.origin()) {
        tracing::error!(%error, "a setting of logs or traces is not valid; the default is used");
    }
    tidegate_console::function::run(program)
}
