//! Serves a router on a socket, over HTTP/1.1 and without TLS. On AWS Lambda, `function` serves the same
//! router.
//!
//! Idle and slow connections are bounded: there are limits for the number of connections, in total and of one
//! address, the time for a request's head, and the age of a connection. While half of the connections are in
//! use, an answered one is closed instead of kept.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

use crate::{FairQuota, Peer};

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most open connections. Others wait until the system refuses them. One address has three quarters
    /// of them at most, and further ones of it are closed.
    pub connections: usize,
    /// The longest time for a request's head, and for the first byte of the next one.
    pub head: Duration,
    /// The longest time for a request. When the server stops, it waits this long for the requests under way.
    pub request: Duration,
}

/// Parses the address that a server listens on.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let must = "must be host:port such as 127.0.0.1:8080, the host as an IP address";
    text.parse().map_err(|_| must.to_owned())
}

/// The longest life of a connection.
const LIFETIME: Duration = Duration::from_mins(5);

/// The pause after a failed accept, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves any router until `stop` is ready; then waits for the requests under way, for at most as long as one
/// of them may take. Each request has its [`Peer`] among its extensions.
///
/// # Errors
/// None at present: a connection that cannot be accepted is logged, and the next one is awaited.
pub async fn serve_within(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let open = Arc::new(Semaphore::new(bounds.connections));
    let shares = FairQuota::new(bounds.connections.div_ceil(4) * 3);
    let graceful = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let (stream, peer, place) = tokio::select! {
            accepted = accept(&listener, &open) => accepted?,
            () = &mut stop => break,
        };
        let Some(share) = shares.take(peer.network()) else {
            continue;
        };
        let free = open.clone();
        let marked = move |mut response: Response| {
            if free.available_permits() < bounds.connections / 2 {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            response
        };
        let service = ServiceExt::<Request<Incoming>>::map_response(router.clone(), marked);
        let service = service.map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // The client sees how the connection ended.
            let _ = tokio::time::timeout(LIFETIME, connection).await;
            drop((place, share));
        });
    }
    drop(listener);
    let patience = bounds.request + Duration::from_secs(1);
    let _ = tokio::time::timeout(patience, graceful.shutdown()).await;
    Ok(())
}

/// Waits for a place, then for a connection.
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

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::task::JoinHandle;

    use super::*;

    /// A server with few connections, which it keeps for longer than a test takes.
    async fn server() -> (std::net::SocketAddr, JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "ok" }));
        let bounds = Bounds {
            connections: 8,
            head: Duration::from_hours(1),
            request: Duration::from_hours(1),
        };
        let stop = std::future::pending();
        let serving = tokio::spawn(serve_within(listener, router, bounds, stop));
        (address, serving)
    }

    async fn connected(from: [u8; 4], to: std::net::SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// What is heard on a connection until it is closed.
    async fn heard(stream: &mut TcpStream) -> String {
        let mut heard = Vec::new();
        let end = stream.read_to_end(&mut heard);
        let end = tokio::time::timeout(Duration::from_mins(1), end);
        // In an orderly way or not.
        let _ = end.await.expect("the server closes the connection");
        String::from_utf8(heard).unwrap()
    }

    async fn ask(stream: &mut TcpStream) -> io::Result<()> {
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(request).await
    }

    #[tokio::test]
    async fn one_address_has_three_quarters_of_the_connections_and_others_the_rest() {
        let (address, serving) = server().await;
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(connected([127, 0, 0, 1], address).await);
        }
        let mut other = connected([127, 0, 0, 2], address).await;
        ask(&mut other).await.unwrap();
        assert!(heard(&mut other).await.starts_with("HTTP/1.1 200"));
        for more in &mut silent[6..] {
            assert_eq!(heard(more).await, "");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn while_half_of_the_connections_are_in_use_none_is_kept() {
        let (address, serving) = server().await;
        let mut kept = Vec::new();
        for _ in 0..6 {
            kept.push(connected([127, 0, 0, 1], address).await);
        }
        // Each has its place before the first one asks.
        let mut last = connected([127, 0, 0, 1], address).await;
        assert_eq!(heard(&mut last).await, "");
        for one in &mut kept[..2] {
            ask(one).await.unwrap();
            let heard = heard(one).await;
            assert!(heard.contains("connection: close"), "{heard}");
        }
        serving.abort();
    }
}
