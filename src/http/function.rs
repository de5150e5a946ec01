//! The HTTP interface as a Lambda function, behind a function URL or an HTTP API. The same router as `tidegate serve`; no logic of its own.
//!
//! Give it a time limit above [`REQUEST_TIMEOUT`], lest it is cut before it can answer.
//! Settings that do not hold are not a failed start, as in the other function: every request is
//! answered with 503, and the log says why.

use tidegate::config::environment;
use tidegate::program::log_panics;
use tidegate::{Database, Error, Telemetry, wake};

#[cfg(doc)]
use super::REQUEST_TIMEOUT;
use super::{Access, Wakes, recording, router, unconfigured, waking};

/// A function has one request at a time.
const CONNECTIONS: usize = 1;

/// Serves requests until the function is ended.
///
/// # Errors
/// When Lambda's runtime interface cannot be used.
pub fn run() -> Result<(), lambda_http::Error> {
    let logs = tidegate_lambda::start_logs(env!("CARGO_CRATE_NAME"));
    log_panics();
    let settings = logs.and_then(|()| settings());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(settings))
}

struct Settings {
    database: Database,
    access: Access,
    /// The function that drains, if it is to be woken.
    wakes: Option<String>,
    telemetry: Option<Telemetry>,
}

async fn serve(settings: Result<Settings, Error>) -> Result<(), lambda_http::Error> {
    // While the first request is fetched.
    if let Ok(settings) = &settings {
        settings.database.prepare();
    }
    let router = settings.map_or_else(
        |error| {
            tracing::error!(error = %error, "settings do not hold; every request will fail");
            unconfigured()
        },
        |Settings {
             database,
             access,
             wakes,
             telemetry,
         }| {
            let wakes = Wakes::function(&database, wakes, true);
            recording(waking(router(database, access), wakes), telemetry)
        },
    );
    lambda_http::run(router).await
}

/// A function may be open to everybody, and cannot tell: it has to be told that nobody need be asked.
fn settings() -> Result<Settings, Error> {
    let access = Access::from_settings(&environment)?;
    if access.is_undecided() {
        return Err(Error::Config(
            "TIDEGATE_HTTP_AUTH: must be keys, jwt or keys,jwt, or none where something in front knows the callers; it is not set".to_owned(),
        ));
    }
    tidegate::seal::from_settings(&environment)?;
    Ok(Settings {
        database: Database::from_settings(&environment, CONNECTIONS)?,
        access,
        wakes: wake::from_settings(&environment)?,
        telemetry: Telemetry::from_settings(&environment)?,
    })
}
