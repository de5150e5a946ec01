//! Errors: a status, a title and a text. `guard` renders the page around them.

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use tidegate::Error;
use tidegate::tokio_postgres::error::SqlState;

use crate::who::Refusal;

/// What the handler of a request returns.
pub(crate) type Answered = Result<Response, Problem>;

/// An error instead of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub status: StatusCode,
    pub title: &'static str,
    pub text: String,
    retry_after: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, title: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            title,
            text: text.into(),
            retry_after: None,
        }
    }

    pub(crate) fn not_found() -> Self {
        let text = "This page does not exist.";
        Self::new(StatusCode::NOT_FOUND, "Not found", text)
    }

    pub(crate) fn forbidden(text: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Not allowed", text)
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        let title = "The request is not valid";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, title, text)
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.status == StatusCode::UNPROCESSABLE_ENTITY
    }

    pub(crate) fn conflict(text: impl Into<String>) -> Self {
        let title = "Nothing was done";
        Self::new(StatusCode::CONFLICT, title, text)
    }

    pub(crate) fn late(text: impl Into<String>) -> Self {
        let title = "The database took too long";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, title, text)
    }

    pub(crate) fn too_often(seconds: u64) -> Self {
        let text = format!("Try again in {seconds} s.");
        Self {
            retry_after: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "Too many requests", text)
        }
    }

    /// The error for a person who is not signed in.
    pub(crate) fn refused(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Unknown(text) | Refusal::Wrong(text) => {
                Self::new(StatusCode::UNAUTHORIZED, "Sign in", capital(text))
            }
            Refusal::NotPrivate => Self::forbidden("This console accepts only requests over TLS."),
        }
    }
}

/// Turns a text into a sentence.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let text = text.trim_start_matches("invocation: ").to_owned();
        match (&error, error.sqlstate()) {
            (Error::UnknownEvent(_), _) => {
                Self::new(StatusCode::NOT_FOUND, "No such event", capital(&text))
            }
            (Error::Invalid(_), _) => Self::invalid(text),
            (_, Some(&SqlState::INSUFFICIENT_PRIVILEGE)) => Self::forbidden(format!(
                "The console's database login does not have the right to do this. {text}"
            )),
            (
                Error::TimedOut {
                    stage: "connect", ..
                },
                _,
            ) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "Too busy",
                "All database sessions of the console are in use. Try again.",
            ),
            (_, Some(&SqlState::QUERY_CANCELED)) | (Error::TimedOut { .. }, _) => {
                Self::late("Narrow the request: a shorter time range, a kind or a status.")
            }
            _ => {
                tracing::error!(%error, "the console could not answer");
                Self::new(StatusCode::BAD_GATEWAY, "The database did not answer", text)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self);
        response
    }
}
