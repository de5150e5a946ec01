//! The layers around every request: headers, a time limit, limits of size and number, and a page even if a
//! handler panics.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::from_fn_with_state;
use tidegate_http::{Bounds, FairQuota, limited, logged, serve_within};
use tokio::net::TcpListener;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::guard::{Guard, Pace, admit, by_name, explain};
use crate::shared::ConsoleState;

/// The longest time for a request, including its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(25);

/// The limits of the server.
const BOUNDS: Bounds = Bounds {
    connections: 128,
    head: Duration::from_secs(15),
    request: REQUEST_TIMEOUT,
};

/// Largest form, in bytes.
const FORM_LIMIT: usize = 512 * 1024;

/// The most requests at once, of all people and of each. Each can hold a database connection and a page in
/// memory.
const IN_FLIGHT: usize = 24;
const IN_FLIGHT_OF_ONE: usize = IN_FLIGHT / 2;

/// The content security policy: everything comes from this server, and no inline code runs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The layers of pages and actions: authentication and limits.
pub(crate) fn guarded(pages: Router, shared: &Arc<ConsoleState>) -> Router {
    let guard = Guard {
        shared: shared.clone(),
        pace: Arc::new(Pace::default()),
        places: FairQuota::new(IN_FLIGHT),
        people: FairQuota::new(IN_FLIGHT_OF_ONE),
    };
    pages
        .layer(from_fn_with_state(guard, admit))
        .layer(header(CACHE_CONTROL, "no-store"))
}

/// The layers of everything: pages, files, signing in.
pub(crate) fn around(routes: Router, shared: &Arc<ConsoleState>) -> Router {
    let named = HeaderName::from_static;
    let routes = routes.layer(DefaultBodyLimit::max(FORM_LIMIT));
    let routes = limited(routes, REQUEST_TIMEOUT)
        .layer(from_fn_with_state(shared.clone(), by_name))
        .layer(from_fn_with_state(shared.clone(), explain))
        .layer(header(named("content-security-policy"), POLICY))
        .layer(header(named("x-content-type-options"), "nosniff"))
        .layer(header(named("x-frame-options"), "DENY"))
        .layer(header(named("referrer-policy"), "no-referrer"))
        .layer(header(named("cross-origin-opener-policy"), "same-origin"))
        .layer(header(named("cross-origin-resource-policy"), "same-origin"))
        .layer(header(
            named("permissions-policy"),
            "camera=(), geolocation=(), microphone=()",
        ));
    logged(routes)
}

/// Serves the console until `stop` is ready; then waits for the requests under way, for at most as long as
/// one of them may take.
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

fn header(name: HeaderName, value: &'static str) -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
}
