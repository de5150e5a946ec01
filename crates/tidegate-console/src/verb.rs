//! The verb `console`, which serves the console until it is stopped.

use std::net::SocketAddr;

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use clap::Parser;
use serde_json::json;
use tidegate::Error;
use tidegate_admin::program::stop_signal;
use tidegate_cli::{Answer, Ask};
use tidegate_http::listen_address;
use tokio::net::TcpListener;

use crate::middleware::serve;
use crate::options::Options;
use crate::router;

/// Serve the web console until SIGTERM or Ctrl-C.
///
/// People who sign in have read-only access. With --allow act they may act too, and the audit names them.
#[derive(Parser)]
#[command(
    name = "console",
    after_help = "Example:\n  tidegate console\n  tidegate console --allow act --instance staging --colour amber"
)]
pub struct Console {
    /// The address to listen on; port 0 takes any free port.
    #[arg(long, env = "TIDEGATE_CONSOLE_LISTEN", default_value = "127.0.0.1:8081", value_parser = listen_address)]
    listen: SocketAddr,
    #[command(flatten)]
    options: Options,
}

/// The verb `console`, for [`tidegate_cli::CommandLine::verb`]. It serves until the process is stopped.
///
/// # Errors
/// [`Error::Config`] if an option is invalid, if strangers could get in, or if the address is not available.
pub async fn console(ask: Ask, request: Console) -> Result<Answer, Error> {
    // Catches signals before it says that it listens: none may end the process without the verb's answer.
    let stop = stop_signal();
    let listen = request.listen;
    let failed = |error| Error::Config(format!("--listen {listen}: {error}"));
    let operator = ask.runtime.actor.as_deref();
    let settings = request.options.settings(Some(listen), operator)?;
    let link = settings.auth.link().unwrap_or_default();
    let base = settings.base.path().to_owned();
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let url = format!("http://{}{base}", listener.local_addr().map_err(failed)?);
    ask.say(&format!(
        "listening on {url}{}",
        if link.is_empty() { "/" } else { "" }
    ));
    if !link.is_empty() {
        ask.say(&format!("open {url}{link} (the link works once)"));
    }
    let routes = mounted(&base, router(ask.runtime, settings));
    serve(listener, routes, stop).await.map_err(failed)?;
    Ok(Answer::new(
        json!({"action": "console", "url": url}),
        "stopped",
    ))
}

/// The routes below the base path.
pub(crate) fn mounted(base: &str, routes: Router) -> Router {
    if base.is_empty() {
        return routes;
    }
    let to = base.to_owned();
    let slash = format!("{base}/");
    Router::new()
        .nest(base, routes)
        .route(&slash, get(move || async move { Redirect::permanent(&to) }))
}
