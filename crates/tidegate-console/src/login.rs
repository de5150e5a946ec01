//! Signs in by a link: its token is exchanged for a cookie, once.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, SET_COOKIE};
use axum::http::{Extensions, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};

use crate::form::Params;
use crate::problem::Problem;
use crate::shared::ConsoleState;
use crate::who::{COOKIE, SESSION_S};

pub(crate) async fn login(
    State(shared): State<Arc<ConsoleState>>,
    extensions: Extensions,
    Params(request): Params,
) -> Result<Response, Problem> {
    let settings = &shared.settings;
    let session = request
        .text("token")
        .and_then(|token| settings.auth.open(token));
    let Some(session) = session else {
        shared.refusals.note(&extensions);
        let text = if settings.auth.has_links() {
            "This link has already been used or is not valid. Restart the console to get a new one."
        } else {
            "This console does not use sign-in links."
        };
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "Sign in", text));
    };
    let cookie = settings.cookie(COOKIE, &session, Some(SESSION_S));
    let no_store = HeaderValue::from_static("no-store");
    let headers = cookie.map(|cookie| [(SET_COOKIE, cookie), (CACHE_CONTROL, no_store)]);
    let headers = headers.ok_or_else(Problem::not_found)?;
    Ok((headers, Redirect::to(settings.base.to("/").as_str())).into_response())
}
