//! The verb `serve`: the router on a socket until it is stopped, for local use. In the cloud, the same router
//! runs as a function.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use serde_json::json;
use tidegate::Error;
use tidegate::config::environment;
use tidegate_admin::program::stop_signal;
use tidegate_cli::clap::Parser;
use tidegate_cli::{Answer, Ask};
use tidegate_http::{Bounds, listen_address, serve_within};
use tokio::net::TcpListener;

use super::{Access, REQUEST_TIMEOUT, Scrapes, measured, recording, waking};

/// The limits of the server: an idle connection cannot block others for long. Further connections wait until
/// the system refuses them.
const BOUNDS: Bounds = Bounds {
    connections: 256,
    head: Duration::from_secs(5),
    request: REQUEST_TIMEOUT,
};

/// Serve the HTTP interface of the jobs and forms until SIGTERM or Ctrl-C.
///
/// TIDEGATE_HTTP_AUTH sets how callers authenticate: keys, with API keys; none, not at all, because something
/// in front authenticates them. If it is not set, callers do not authenticate, and --listen must be a
/// loopback address.
#[derive(Parser)]
#[command(
    name = "serve",
    after_help = "Example:\n  tidegate serve --listen 127.0.0.1:8080"
)]
pub struct Serve {
    /// Address to listen on, IP:PORT; port 0 takes any free port.
    #[arg(long, default_value = "127.0.0.1:8080", value_parser = listen_address)]
    listen: SocketAddr,
    /// Serve metrics for Prometheus at /metrics; unless --listen is a loopback address, callers need the
    /// scope metrics [env: TIDEGATE_HTTP_METRICS=on].
    #[arg(long)]
    metrics: bool,
}

/// Serves until the process is stopped.
///
/// # Errors
/// [`Error::Config`] if the address cannot be used, or must not be used because callers would not be
/// authenticated.
pub async fn run(ask: Ask, request: Serve) -> Result<Answer, Error> {
    // Catches signals before it says that it listens: none may end the process without the verb's answer.
    let stop = stop_signal();
    let listen = request.listen;
    let access = Access::from_settings(&environment)?;
    if access.is_undecided() && !listen.ip().is_loopback() {
        return Err(Error::Config(format!(
            "--listen {listen}: must be a loopback address while TIDEGATE_HTTP_AUTH is not set, because callers would not \
             be authenticated; set it to keys, or to none if something in front authenticates the callers"
        )));
    }
    if access.needs_gateway() {
        return Err(Error::Config(
            "TIDEGATE_HTTP_AUTH: must be keys or none for serve: only AWS in front of the function verifies tokens and identities"
                .to_owned(),
        ));
    }
    let scrapes = Scrapes::from_settings(&environment, request.metrics, listen.ip().is_loopback())?;
    let failed = |error| Error::Config(format!("--listen {listen}: {error}"));
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let url = format!("http://{}", listener.local_addr().map_err(failed)?);
    ask.say(&format!("listening on {url}"));
    let database = &ask.runtime.database;
    let router = measured(database.clone(), access, scrapes);
    let router = waking(router, database, ask.runtime.wakes.clone(), false);
    let router = recording(router, tidegate_otel::installed().cloned());
    let served = serve(listener, router, stop).await;
    served.map_err(failed)?;
    let document = json!({"action": "serve", "url": url});
    Ok(Answer::new(document, "stopped"))
}

/// Serves until `stop` is ready. Then it finishes the requests in progress, but waits no longer than the time
/// limit of a request.
///
/// # Errors
/// If no more connections can be accepted.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_within(listener, router, BOUNDS, stop).await
}
