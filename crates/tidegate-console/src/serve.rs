//! Serves a router on a socket, over HTTP/1.1 and without TLS. On AWS Lambda, `function` serves the same router.
//!
//! Idle and slow connections are bounded: there are limits for the number of connections, the time for a request's head, and the age of a
//! connection.

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
use tower::ServiceExt;

use crate::surround::REQUEST_TIMEOUT;
use crate::who::Peer;

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most open connections. Others wait until the system refuses them.
    pub connections: usize,
    /// The longest time for a request's head, and for the first byte of the next one.
    pub head: Duration,
    /// The longest time for a request. When the server stops, it waits this long for the requests under way.
    pub request: Duration,
}

/// The limits of the console.
const BOUNDS: Bounds = Bounds {
    connections: 128,
    head: Duration::from_secs(15),
    request: REQUEST_TIMEOUT,
};

/// The longest life of a connection.
const LIFETIME: Duration = Duration::from_mins(5);

/// The pause after a failed accept, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is ready; then waits for the requests under way, for at most as long as one of them may take.
///
/// # Errors
/// When no connection can be accepted any more.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_within(listener, router, BOUNDS, stop).await
}

/// Like [`serve`], with other limits and for any router.
///
/// # Errors
/// When no connection can be accepted any more.
pub async fn serve_within(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let open = Arc::new(Semaphore::new(bounds.connections));
    let graceful = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let (stream, peer, place) = tokio::select! {
            accepted = accept(&listener, &open) => accepted?,
            () = &mut stop => break,
        };
        let service = router.clone().map_request(
            move |mut request: hyper::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(peer);
                request
            },
        );
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // The client sees how the connection ended.
            let _ = tokio::time::timeout(LIFETIME, connection).await;
            drop(place);
        });
    }
    drop(listener);
    let patience = bounds.request + Duration::from_secs(1);
    let _ = tokio::time::timeout(patience, graceful.shutdown()).await;
    Ok(())
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    open: &Arc<Semaphore>,
) -> io::Result<(TcpStream, Peer, OwnedSemaphorePermit)> {
    let place = open.clone().acquire_owned();
    let place = place.await.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((stream, address)) => return Ok((stream, Peer(Some(address.ip())), place)),
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
