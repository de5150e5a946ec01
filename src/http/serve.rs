//! Serves the router on a socket, for local use. In the cloud, the same router runs as a function.
//!
//! The server is the console's, with limits of its own: an idle connection cannot block others for long.

use std::io;
use std::time::Duration;

use axum::Router;
use tidegate_console::{Bounds, serve_within};
use tokio::net::TcpListener;

use super::REQUEST_TIMEOUT;

/// Maximum number of open connections. Further ones wait until the system refuses them.
pub const CONNECTIONS: usize = 256;

/// Time limit to receive the head of a request, and of an idle time between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

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
    let bounds = Bounds {
        connections: CONNECTIONS,
        head: HEAD_TIMEOUT,
        request: REQUEST_TIMEOUT,
    };
    serve_within(listener, router, bounds, stop).await
}
