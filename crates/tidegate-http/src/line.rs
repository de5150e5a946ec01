//! The id of a request and its line in the log, a time limit, and an answer even if a handler panics.

use std::any::Any;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::middleware::map_request;
use axum::response::IntoResponse;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tracing::Span;
use tracing::field::Empty;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Answers with 503 what takes longer than this, and with 500 what panics.
pub fn limited(routes: Router, time: Duration) -> Router {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    routes
        .layer(TimeoutLayer::with_status_code(status, time))
        .layer(CatchPanicLayer::custom(panicked))
}

/// Gives every request an id, and a line in the log with its method, route, status and time, and nothing else
/// of it. Whoever identifies the caller records the caller's ids in the span of the request: `person`, or
/// `client_id`, `user_id` and `key_id`.
pub fn logged(routes: Router) -> Router {
    let trace = TraceLayer::new_for_http()
        .make_span_with(span)
        .on_request(())
        .on_body_chunk(())
        .on_eos(())
        .on_failure(())
        .on_response(log);
    routes
        .layer(PropagateRequestIdLayer::new(REQUEST_ID))
        .layer(trace)
        .layer(SetRequestIdLayer::new(REQUEST_ID, MakeRequestUuid))
        .layer(map_request(without_odd_id))
}

/// Removes a request id that is not a plain word, and duplicate request ids, because the id is logged.
async fn without_odd_id(mut request: Request) -> Request {
    let ids: Vec<&HeaderValue> = request.headers().get_all(REQUEST_ID).iter().collect();
    let sane = |id: &HeaderValue| {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(plain)
    };
    if ids.len() > 1 || ids.iter().any(|id| !sane(id)) {
        request.headers_mut().remove(REQUEST_ID);
    }
    request
}

/// Creates a span with method and route. It omits the path itself, which may contain anything.
fn span(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>();
    let id = request.headers().get(REQUEST_ID);
    tracing::info_span!(
        "request",
        method = %request.method(),
        route = route.map_or("none", MatchedPath::as_str),
        request_id = id.and_then(|id| id.to_str().ok()).unwrap_or_default(),
        person = Empty,
        client_id = Empty,
        user_id = Empty,
        key_id = Empty,
    )
}

fn log(response: &Response<Body>, latency: Duration, _: &Span) {
    let elapsed_ms = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(
        status = response.status().as_u16(),
        elapsed_ms,
        "request answered"
    );
}

/// The panic's own message may quote anything, so only the process's panic hook receives it.
fn panicked(_: Box<dyn Any + Send>) -> Response<Body> {
    tracing::error!("a request's handler panicked");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}
