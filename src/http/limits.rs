//! Owns what applies to every request in both shells: a request id, a log line without the payload, a
//! time limit, size limits, and an answer even if a handler panics.
//!
//! Header fields are limited here and not in a server, because in front of the function there is no
//! server of ours. Under `tidegate serve`, hyper first applies its own limits of 100 fields and 400
//! KiB.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::IntoResponse;
use tidegate::NewEvent;
use tower_http::set_header::SetResponseHeaderLayer;
use utoipa_axum::router::OpenApiRouter;

use super::problem::{Problem, in_one_shape};
use tidegate_http::{FairQuota, is_for_this_machine, limited, logged};

/// Maximum size of a body, in bytes: the largest payload and white space around it. Signed content is
/// base64 inside the payload, so it has at most three quarters of this size.
pub const BODY_LIMIT: usize = NewEvent::PAYLOAD_LIMIT + 64 * 1024;

/// Maximum number of header fields of a request.
pub const HEADER_COUNT: usize = 64;

/// Maximum size of the header fields of a request, names and values together, in bytes.
pub const HEADER_BYTES: usize = 16 * 1024;

/// Time limit of a request, which includes receiving its body. After it, the answer asks the client to
/// retry. It is below the 29 s of an API gateway.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of requests at the same time on one group of routes, such as those about jobs. The answer
/// to further ones asks the client to retry. This limits the memory for bodies. The pool limits the work.
pub const IN_FLIGHT: usize = 64;

/// Maximum number of requests of one client at the same time, on all routes, because a request holds its
/// place while it waits for its body.
pub const IN_FLIGHT_OF_ONE: usize = IN_FLIGHT / 4;

/// Maximum number of credentials from one address that are looked up at the same time, of those that were not
/// good before. Further ones wait: behind a proxy, all callers have its address. This is half of the pool's
/// connections by default, so that others have some.
pub const LOOK_UPS_OF_ONE: usize = 4;

/// Time limit to receive a body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Wraps these routes in everything that applies to every request.
pub(super) fn around(routes: Router) -> Router {
    let nosniff = SetResponseHeaderLayer::overriding(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    // The last layer is the outermost: everything inside it is answered with an id and a log line.
    let routes = routes
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(from_fn(within_header_limits));
    let routes = limited(routes, REQUEST_TIMEOUT)
        .layer(map_response(in_one_shape))
        .layer(nosniff);
    logged(routes)
}

/// Refuses requests while [`IN_FLIGHT`] requests are in progress on these routes.
pub(super) fn bounded<S: Clone + Send + Sync + 'static>(
    routes: OpenApiRouter<S>,
) -> OpenApiRouter<S> {
    routes.layer(from_fn_with_state(FairQuota::new(IN_FLIGHT), in_a_place))
}

/// Prevents caching of answers, because they are about patients and change.
pub(super) fn uncached<S: Clone + Send + Sync + 'static>(
    routes: OpenApiRouter<S>,
) -> OpenApiRouter<S> {
    let no_store = HeaderValue::from_static("no-store");
    routes.layer(SetResponseHeaderLayer::overriding(CACHE_CONTROL, no_store))
}

/// A body takes memory as it arrives, so it is received only when the request has a place.
async fn in_a_place(
    State(places): State<FairQuota<()>>,
    request: Request,
    next: Next,
) -> Result<Response<Body>, Problem> {
    let overloaded = || Problem::unavailable("too many requests at once; try again");
    let _place = places.take(()).ok_or_else(overloaded)?;
    Ok(next.run(received(request).await?).await)
}

/// Reads the whole body, in bounded time: 408 if it takes too long, 413 if it is too large.
async fn received(request: Request) -> Result<Request, Problem> {
    let (parts, body) = request.into_parts();
    let whole = Request::from_parts(parts.clone(), body);
    let read = Bytes::from_request(whole, &());
    let Ok(body) = tokio::time::timeout(BODY_TIMEOUT, read).await else {
        let seconds = BODY_TIMEOUT.as_secs();
        let message = format!("the body must arrive within {seconds} seconds");
        let status = StatusCode::REQUEST_TIMEOUT;
        return Err(Problem::new(status, "request_timeout", message));
    };
    let body = body.map_err(|refused| Problem::of(refused.status()))?;
    Ok(Request::from_parts(parts, body.into()))
}

/// Refuses a request that does not name this machine as its server. While callers are not
/// authenticated, a page of another site must not read or send anything through a browser on this
/// machine.
pub(super) async fn for_this_machine(request: Request, next: Next) -> Response<Body> {
    if is_for_this_machine(request.headers(), request.uri()) {
        return next.run(request).await;
    }
    let message = "while TIDEGATE_HTTP_AUTH is not set, the host must be localhost, 127.0.0.1 or [::1]; \
                   set it to none if something in front identifies the callers";
    let status = StatusCode::MISDIRECTED_REQUEST;
    Problem::new(status, "misdirected_request", message).into_response()
}

async fn within_header_limits(request: Request, next: Next) -> Response<Body> {
    let headers = request.headers();
    let size = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    if headers.len() <= HEADER_COUNT && headers.iter().map(size).sum::<usize>() <= HEADER_BYTES {
        return next.run(request).await;
    }
    let needed = format!("must have at most {HEADER_COUNT} header fields and {HEADER_BYTES} bytes");
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    Problem::new(status, "headers_too_large", needed).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::http::header::CONTENT_TYPE;
    use axum::routing::get;
    use tower::Service;

    use super::*;

    async fn answer(routes: Router) -> (StatusCode, String) {
        let request = Request::get("/").body(Body::empty()).unwrap();
        let response = around(routes).call(request).await.unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let status = response.status();
        let body = to_bytes(response.into_body(), BODY_LIMIT).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_panic_is_a_500_of_the_usual_shape_and_does_not_tell_its_text() {
        async fn panics() {
            panic!("canary");
        }
        let (status, body) = answer(Router::new().route("/", get(panics))).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(
            body.contains("internal_error") && !body.contains("canary"),
            "{body}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_takes_too_long_is_a_503_of_the_usual_shape() {
        let routes = Router::new().route("/", get(std::future::pending::<()>));
        let (status, body) = answer(routes).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("unavailable"), "{body}");
    }

    #[tokio::test]
    async fn a_request_beyond_those_in_flight_is_told_to_come_again() {
        let slow = OpenApiRouter::new().route("/", get(std::future::pending::<()>));
        let (mut routes, _) = bounded(slow).split_for_parts();
        let request = || Request::get("/").body(Body::empty()).unwrap();
        let mut waiting: Vec<_> = (0..IN_FLIGHT)
            .map(|_| Box::pin(routes.call(request())))
            .collect();
        for one in &mut waiting {
            assert!(futures_util::poll!(one).is_pending());
        }
        let answer = routes.call(request()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
