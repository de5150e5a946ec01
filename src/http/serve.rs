//! The router on a socket, for local use: no TLS, HTTP/1.1. In the cloud the same router is a function.

use std::io;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::REQUEST_TIMEOUT;

/// Serves until `stop` is ready; then lets requests under way end, but waits no longer than any of
/// them may take.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stopped) = oneshot::channel();
    let stop = async move {
        stop.await;
        let _ = stopping.send(());
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop);
    tokio::select! {
        ended = serving => ended,
        () = patience(stopped) => Ok(()),
    }
}

/// Ends when a stop was asked for and everything that was under way should have ended.
async fn patience(stopped: oneshot::Receiver<()>) {
    if stopped.await.is_err() {
        return std::future::pending().await;
    }
    tokio::time::sleep(REQUEST_TIMEOUT + Duration::from_secs(1)).await;
}
