//! What `make run` shows: sample events of the job's three systems, and a stand-in for the services that the
//! job calls. Uses only the job's public names. Everything can be published repeatedly.

mod checks;
mod forms;
mod jobs;
#[path = "../../tests/support/services.rs"]
mod services;
mod stand_in;

use std::process::ExitCode;

use clap::Parser;
use tidegate::Database;
use tidegate::connect::Client;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Publish sample events, or stand in for the services that their handlers call.
#[derive(Parser)]
enum Sample {
    /// Publish what the forms system publishes.
    Forms,
    /// Pass on messages that may ask for AI checks.
    Checks,
    /// Ask for medical jobs, at least one of each family.
    Jobs,
    /// Ask for an approval, whose job needs the service for one-time passwords.
    Approval,
    /// Run a stand-in for all services until the input closes.
    Services,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Sample::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(sample: &Sample) -> Outcome<()> {
    match sample {
        Sample::Forms => forms::publish(&mut client().await?).await,
        Sample::Checks => checks::publish(&mut client().await?).await,
        Sample::Jobs => jobs::publish(&mut client().await?, false).await,
        Sample::Approval => jobs::publish(&mut client().await?, true).await,
        Sample::Services => stand_in::run().await,
    }
}

async fn client() -> Outcome<Client> {
    let url =
        std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL: a postgres:// URL is needed")?;
    Ok(Database::new(&url, 1)?.connect().await?)
}
