//! Serves the router on a socket, for local use: HTTP/1.1 without TLS. In the cloud, the same router runs as a function.
//!
//! An idle connection cannot block others for long. There are limits on the number of open connections, on the time to
//! receive a request's head (including the first byte of the next one), and on the lifetime of a connection.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::REQUEST_TIMEOUT;

/// Maximum number of open connections. Further ones wait until the system refuses them.
pub const CONNECTIONS: usize = 256;

/// Time limit to receive the head of a request, and of an idle time between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum lifetime of a connection. The server does not wait for clients that do not read their answers.
const LIFETIME: Duration = Duration::from_mins(5);

/// Pause after accepting fails. The cause, such as too many open files, may be temporary.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is ready. Then it finishes the requests in progress, but waits no longer than the time limit of a
/// request.
///
/// # Errors
/// If no more connections can be accepted.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let open = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let (stream, place) = tokio::select! {
            accepted = accept(&listener, &open) => accepted?,
            () = &mut stop => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // The result does not matter: the client knows how the connection ended.
            let _ = tokio::time::timeout(LIFETIME, connection).await;
            drop(place);
        });
    }
    drop(listener);
    let patience = REQUEST_TIMEOUT + Duration::from_secs(1);
    let _ = tokio::time::timeout(patience, graceful.shutdown()).await;
    Ok(())
}

/// Accepts the next connection as soon as the limit permits.
async fn accept(
    listener: &TcpListener,
    open: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = open.clone().acquire_owned();
    let place = place.await.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok((stream, place)),
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
