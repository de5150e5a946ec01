//! Serves a router as a Lambda function, behind a function URL or an HTTP API.

use std::fmt::Display;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{map_request, map_response};
use axum::response::Response;
use lambda_http::request::RequestContext;

pub use lambda_http::Error;

use crate::Peer;

/// Serves the requests of a function until it ends, with the second router if the first cannot be made. Calls
/// `flush` before each answer, because the function is frozen after it, and its lines with it. Each request
/// has its [`Peer`] among its extensions: the address that AWS has seen.
///
/// # Errors
/// When Lambda's runtime interface cannot be used.
pub fn serve<E: Display>(
    start: impl AsyncFnOnce() -> Result<Router, E>,
    unconfigured: Router,
    flush: fn(),
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let routes = start().await.unwrap_or_else(|error| {
            tracing::error!(%error, "the settings are not valid; every request will fail");
            unconfigured
        });
        let routes = routes.layer(map_request(from_its_peer));
        let flushed = move |answer: Response| async move {
            flush();
            answer
        };
        lambda_http::run(routes.layer(map_response(flushed))).await
    })
}

/// Adds the address that AWS has seen.
async fn from_its_peer(mut request: Request) -> Request {
    let address = match request.extensions().get() {
        Some(RequestContext::ApiGatewayV2(context)) => context.http.source_ip.as_deref(),
        _ => None,
    };
    let peer = Peer(address.and_then(|address| address.parse().ok()));
    request.extensions_mut().insert(peer);
    request
}
