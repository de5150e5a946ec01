//! The program `tidegate-relay`: a Lambda function where the environment has the interface of Lambda's
//! runtime, elsewhere a command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_none() {
        return tidegate_relay::command_line().run();
    }
    match tidegate_lambda::run(tidegate_relay::program()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-relay: {error}");
            ExitCode::FAILURE
        }
    }
}
