//! Runs the HTTP interface as a Lambda function, behind a function URL or an HTTP API. It has the same router
//! as `tidegate serve`, and no logic of its own.
//!
//! Set a function timeout above [`REQUEST_TIMEOUT`], so that Lambda does not stop the function before it
//! answers. Invalid settings do not make the start fail: every request is answered with 503, and the log
//! contains the reason.

use axum::Router;
use tidegate::config::environment;
use tidegate::{Database, Error, wake};
use tidegate_admin::logs::{FlushAtExit, PATIENCE, flush};
use tidegate_admin::program::log_panics;
use tidegate_http::function::serve;

#[cfg(doc)]
use super::REQUEST_TIMEOUT;
use super::{Access, recording, router, unconfigured, waking};

/// A function handles one request at a time.
const CONNECTIONS: usize = 1;

/// Serves requests until the function is stopped.
///
/// # Errors
/// If Lambda's runtime interface cannot be used.
pub fn run() -> Result<(), lambda_http::Error> {
    let _flush = FlushAtExit;
    log_panics();
    tidegate_aws::install();
    let logs = tidegate_lambda::start_logs(env!("CARGO_CRATE_NAME"));
    let started = async || logs.and_then(|()| configured());
    serve(started, unconfigured(), || flush(PATIENCE))
}

/// Builds the router by the settings. A function URL may be public, and the function cannot know whether it
/// is. The setting for authentication is therefore required, even to say that callers are not authenticated.
fn configured() -> Result<Router, Error> {
    let access = Access::from_settings(&environment)?;
    if access.is_undecided() {
        return Err(Error::Config(
            "TIDEGATE_HTTP_AUTH: must be one or more of keys, jwt and iam, or none if something in front authenticates the callers; it is not set".to_owned(),
        ));
    }
    tidegate::seal::from_settings(&environment)?;
    let database = Database::from_settings(&environment, CONNECTIONS)?;
    // Opens a connection while the first request is fetched.
    database.prepare();
    let router = router(database.clone(), access);
    let router = waking(router, &database, wake::from_settings(&environment)?, true);
    Ok(recording(router, tidegate_otel::installed().cloned()))
}
