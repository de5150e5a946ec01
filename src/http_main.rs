//! The second Lambda function: the HTTP interface of the medical jobs behind a function URL or an HTTP
//! API. The same router as `tidegate serve`; no logic of its own.
//!
//! Give it a time limit above [`tidegate::http::REQUEST_TIMEOUT`], lest it is cut before it can answer.
//! Settings that do not hold are not a failed start, as in the other function: every request is
//! answered with 503, and the log says why.

use tidegate::config::{self, environment};
use tidegate::{Database, Error, http};
use tracing_subscriber::EnvFilter;

/// A function has one request at a time.
const CONNECTIONS: usize = 1;

fn main() -> Result<(), lambda_http::Error> {
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let router = database().map(http::router).unwrap_or_else(|error| {
        tracing::error!(error = %error, "settings do not hold; every request will fail");
        http::unconfigured()
    });
    runtime.block_on(lambda_http::run(router))
}

fn database() -> Result<Database, Error> {
    Database::new(&config::database_url(&environment)?, CONNECTIONS)
}
