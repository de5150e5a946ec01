//! The second Lambda function: the HTTP interface of the medical jobs behind a function URL or an HTTP
//! API. The same router as `tidegate serve`; no logic of its own.
//!
//! Give it a time limit above [`tidegate::http::REQUEST_TIMEOUT`], lest it is cut before it can answer.
//! Settings that do not hold are not a failed start, as in the other function: every request is
//! answered with 503, and the log says why.

use tidegate::config::{details_of_ours_alone, environment, log_filter};
use tidegate::program::log_panics;
use tidegate::{Database, Error, http};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A function has one request at a time.
const CONNECTIONS: usize = 1;

fn main() -> Result<(), lambda_http::Error> {
    let filter = log_filter(&environment, LevelFilter::INFO);
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(LevelFilter::TRACE)
        .finish()
        .with(filter.as_ref().map_or_else(
            |_| Targets::new().with_default(LevelFilter::INFO),
            Clone::clone,
        ))
        .with(details_of_ours_alone())
        .init();
    log_panics();
    let database = filter.and_then(|_| database());
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
            http::unconfigured()
        },
        http::router,
    );
    lambda_http::run(router).await
}

fn database() -> Result<Database, Error> {
    Database::from_settings(&environment, CONNECTIONS)
}
