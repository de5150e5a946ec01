//! The verb `serve`: the HTTP interface, until it is stopped.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

use std::net::SocketAddr;

use serde_json::json;
use tidegate::Error;
use tidegate::config::environment;
use tidegate::program::stop_signal;
use tidegate_cli::clap::Parser;
use tidegate_cli::{Answer, Ask};
use tokio::net::TcpListener;

use super::{Access, Scrapes, Wakes, measured, recording, serve, waking};

/// Serve the HTTP interface of the jobs and forms until SIGTERM or Ctrl-C.
///
/// The variable TIDEGATE_HTTP_AUTH says how callers are known: keys, by API keys; jwt, by an issuer's tokens; none, where something in front knows them. Unless it
/// does, nobody is asked, and only this machine is served.
#[derive(Parser)]
#[command(
    name = "serve",
    after_help = "Example:\n  tidegate serve --listen 127.0.0.1:8080"
)]
pub struct Serve {
    /// Where to listen; port 0 is any free one.
    #[arg(long, default_value = "127.0.0.1:8080", value_parser = listen_address)]
    listen: SocketAddr,
    /// Serve metrics for Prometheus at /metrics [env: TIDEGATE_HTTP_METRICS=on]. Beyond this machine, a caller needs the scope metrics.
    #[arg(long)]
    metrics: bool,
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "must be host:port such as 127.0.0.1:8080, the host as an IP address".to_owned()
    })
}

/// Serves until the process is stopped.
///
/// # Errors
/// [`Error::Config`] if the address cannot be used, or must not be used because callers would not be authenticated.
pub async fn run(ask: Ask, asked: Serve) -> Result<Answer, Error> {
    let listen = asked.listen;
    let access = Access::from_settings(&environment)?;
    if access.is_undecided() && !listen.ip().is_loopback() {
        return Err(Error::Config(format!(
            "--listen {listen}: must be a loopback address while TIDEGATE_HTTP_AUTH is not set, for nobody would be asked \
             who they are; set it to keys or jwt, or to none where something in front knows the callers"
        )));
    }
    let scrapes = Scrapes::from_settings(&environment, asked.metrics, listen.ip().is_loopback())?;
    let failed = |error| Error::Config(format!("--listen {listen}: {error}"));
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let url = format!("http://{}", listener.local_addr().map_err(failed)?);
    ask.say(&format!("listening on {url}"));
    let database = &ask.service.database;
    let wakes = Wakes::function(database, ask.service.wakes.clone(), false);
    let router = waking(measured(database.clone(), access, scrapes), wakes);
    let router = recording(router, ask.service.options.telemetry.clone());
    let served = serve(listener, router, stop_signal()).await;
    served.map_err(failed)?;
    Ok(Answer::new(
        json!({"action": "serve", "url": url}),
        "stopped",
    ))
}
