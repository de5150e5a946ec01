//! The layers around every request: headers, a time limit, limits of size and number, and a page even if a
//! handler panics.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::DefaultBodyLimit;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

use crate::guard::{Guard, Pace, admit, by_name, explain};
use crate::problem::Problem;
use crate::shared::Shared;

/// The longest time for a request, including its body.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(25);

/// Largest form, in bytes.
const FORM_LIMIT: usize = 512 * 1024;

/// The most requests at once. Each can hold a database connection and a page in memory.
const IN_FLIGHT: usize = 24;

/// The content security policy: everything comes from this server, and no inline code runs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The layers of pages and actions: authentication and limits.
pub(crate) fn guarded(pages: Router, shared: &Arc<Shared>) -> Router {
    let overloaded = |_| async {
        let text = "Too many requests at once. Try again.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too busy", text)
    };
    let guard = Guard {
        shared: shared.clone(),
        pace: Arc::new(Pace::default()),
    };
    pages
        .layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(overloaded))
                .layer(LoadShedLayer::new())
                .layer(GlobalConcurrencyLimitLayer::new(IN_FLIGHT)),
        )
        // Before a request takes a place: strangers who guess passwords have none.
        .layer(from_fn_with_state(guard, admit))
        .layer(header(CACHE_CONTROL, "no-store"))
}

/// The layers of everything: pages, files, signing in.
pub(crate) fn around(routes: Router, shared: &Arc<Shared>) -> Router {
    let panicked = |_| {
        tracing::error!("a request's handler panicked");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    };
    let named = HeaderName::from_static;
    routes
        .layer(DefaultBodyLimit::max(FORM_LIMIT))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::SERVICE_UNAVAILABLE,
            REQUEST_TIMEOUT,
        ))
        .layer(CatchPanicLayer::custom(panicked))
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
        ))
}

fn header(name: HeaderName, value: &'static str) -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
}
