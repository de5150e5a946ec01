//! The second Lambda function: the HTTP interface of the medical jobs behind a function URL or an HTTP
//! API. The same router as `tidegate serve`; no logic of its own.
//!
//! Give it a time limit above [`tidegate::http::REQUEST_TIMEOUT`], lest it is cut before it can answer.
//! Settings that do not hold are not a failed start, as in the other function: every request is
//! answered with 503, and the log says why.

use tidegate::config::{self, environment, log_filter};
use tidegate::service::log_panics;
use tidegate::{Database, Error, http};

/// A function has one request at a time.
const CONNECTIONS: usize = 1;

fn main() -> Result<(), lambda_http::Error> {
    let filter = log_filter(&environment, "info");
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter.as_ref().map_or_else(|_| "info".into(), Clone::clone))
        .init();
    log_panics();
    let router = filter.and_then(|_| database()).map_or_else(
        |error| {
            tracing::error!(error = %error, "settings do not hold; every request will fail");
            http::unconfigured()
        },
        http::router,
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(lambda_http::run(router))
}

fn database() -> Result<Database, Error> {
    Database::new(&config::database_url(&environment)?, CONNECTIONS)
}
