//! Signs in by a link: its token is exchanged for a cookie, once.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, SET_COOKIE};
use axum::response::{IntoResponse, Redirect, Response};

use crate::form::Asked;
use crate::problem::Problem;
use crate::shared::Shared;
use crate::who::COOKIE;

pub(crate) async fn login(
    State(shared): State<Arc<Shared>>,
    Asked(asked): Asked,
) -> Result<Response, Problem> {
    let settings = &shared.settings;
    let base = &settings.base;
    let session = asked
        .text("token")
        .and_then(|token| settings.auth.open(token));
    let Some(session) = session else {
        let text = if settings.auth.has_links() {
            "This link has already been used or is not valid. Restart the console to get a new one."
        } else {
            "This console does not use sign-in links."
        };
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "Sign in", text));
    };
    let secure = if settings.behind_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={session}; Path={}; HttpOnly; SameSite=Strict{secure}",
        base.cookie_path()
    );
    let headers = [(SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".to_owned())];
    Ok((headers, Redirect::to(base.to("/").as_str())).into_response())
}
