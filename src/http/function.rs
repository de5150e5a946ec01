//! The HTTP interface as a Lambda function, behind a function URL or an HTTP API. The same router as `tidegate serve`; no logic of its own.
//!
//! Give it a time limit above [`REQUEST_TIMEOUT`], lest it is cut before it can answer.
//! Settings that do not hold are not a failed start, as in the other function: every request is
//! answered with 503, and the log says why.

use tidegate::config::environment;
use tidegate::program::log_panics;
use tidegate::{Database, Error};

#[cfg(doc)]
use super::REQUEST_TIMEOUT;
use super::{router, unconfigured};

/// A function has one request at a time.
const CONNECTIONS: usize = 1;

/// Serves requests until the function is ended.
///
/// # Errors
/// When Lambda's runtime interface cannot be used.
pub fn run() -> Result<(), lambda_http::Error> {
    let logs = tidegate_lambda::start_logs(env!("CARGO_CRATE_NAME"));
    log_panics();
    let database = logs.and_then(|()| database());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(database))
}

async fn serve(database: Result<Database, Error>) -> Result<(), lambda_http::Error> {
    // While the first request is fetched.
    if let Ok(database) = &database {
        database.prepare();
    }
    let router = database.map_or_else(
        |error| {
            tracing::error!(error = %error, "settings do not hold; every request will fail");
            unconfigured()
        },
        router,
    );
    lambda_http::run(router).await
}

fn database() -> Result<Database, Error> {
    Database::from_settings(&environment, CONNECTIONS)
}
