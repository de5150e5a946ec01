//! Owns every refusal. All have the body `{"error": {"type", "message", "invalid"?}}`, including the
//! router's own 404 and 405. A refusal never repeats what the client sent.

use axum::Json;
use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use tidegate::Error;
use tokio_postgres::error::SqlState;
use utoipa::{IntoResponses, ToSchema};

use crate::app::medical::{self, FieldError};

/// The body of every refusal.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Refusal {
    /// The fault.
    pub error: Reason,
}

/// The reason for refusing a request.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Reason {
    /// Short stable name, for programs.
    #[serde(rename = "type")]
    #[schema(example = "not_found")]
    pub kind: &'static str,
    /// Text for people. Never contains any part of the request's body.
    pub message: String,
    /// All faults of the request, up to 1,000, with the type `validation_failed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<FieldError>,
}

/// The most faults in a list: the answer to a body full of faults must not be ten times its size.
const MOST_INVALID: usize = 1000;

/// A refusal with its status.
#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    reason: Reason,
    /// A header that tells the client how to continue.
    header: Option<Box<(HeaderName, HeaderValue)>>,
}

impl Problem {
    /// Creates a refusal of this type.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let invalid = Vec::new();
        let reason = Reason {
            kind,
            message,
            invalid,
        };
        let is_passing = [429, 503].contains(&status.as_u16());
        let header = is_passing.then(|| Box::new((RETRY_AFTER, HeaderValue::from_static("1"))));
        Self {
            status,
            reason,
            header,
        }
    }

    /// Adds the challenge of RFC 6750: a credential is needed, or the given one is invalid for this
    /// reason.
    pub(super) fn challenge(mut self, error: &str) -> Self {
        let realm = "Bearer realm=\"tidegate\"";
        let text = match error {
            "" => realm.to_owned(),
            error => format!("{realm}, {error}"),
        };
        let text = HeaderValue::try_from(text).ok();
        self.header = text.map(|text| Box::new((WWW_AUTHENTICATE, text)));
        self
    }

    /// Refuses for now. The same request may succeed later.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::because(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Whether the credential was refused, or the lack of one.
    pub(super) fn is_about_the_credential(&self) -> bool {
        [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&self.status)
    }

    /// Creates the refusal for a plain status.
    pub(super) fn of(status: StatusCode) -> Self {
        let (kind, message) = usual(status);
        Self::new(status, kind, message)
    }

    /// Creates a refusal of the usual type of its status, for this reason.
    pub(super) fn because(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, usual(status).0, message)
    }
}

/// The type of the refusals with a status, and what they say if there is no better reason.
fn usual(status: StatusCode) -> (&'static str, &'static str) {
    match status {
        StatusCode::UNAUTHORIZED => ("unauthorized", "a credential is required"),
        StatusCode::FORBIDDEN => ("forbidden", "the credential does not permit this"),
        StatusCode::NOT_FOUND => ("not_found", "there is nothing here"),
        StatusCode::METHOD_NOT_ALLOWED => (
            "method_not_allowed",
            "this method is not allowed; the header `allow` lists the allowed methods",
        ),
        StatusCode::CONFLICT => (
            "request_conflict",
            "the request conflicts with what is stored",
        ),
        StatusCode::PAYLOAD_TOO_LARGE => ("payload_too_large", "the body is too large"),
        StatusCode::UNPROCESSABLE_ENTITY => ("validation_failed", "the request is not valid"),
        StatusCode::TOO_MANY_REQUESTS => (
            "too_many_requests",
            "too many requests from this caller; try again after the time in `retry-after`",
        ),
        StatusCode::SERVICE_UNAVAILABLE => ("unavailable", "no answer in time; try again"),
        status if status.is_client_error() => ("bad_request", "the request is malformed"),
        _ => ("internal_error", "the request failed; the log says why"),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let body = Refusal { error: self.reason };
        let mut response = (self.status, Json(body)).into_response();
        if let Some((name, value)) = self.header.map(|header| *header) {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<medical::Refusal> for Problem {
    fn from(refusal: medical::Refusal) -> Self {
        match refusal {
            medical::Refusal::Fields(invalid) => invalid.into(),
            medical::Refusal::UnknownKind => Self::of(StatusCode::NOT_FOUND),
        }
    }
}

/// All faults of a request, as a list (E1).
impl From<Vec<FieldError>> for Problem {
    fn from(mut invalid: Vec<FieldError>) -> Self {
        let message = match invalid.len() {
            1 => "1 mistake in the request".to_owned(),
            many => format!("{many} mistakes in the request"),
        };
        invalid.truncate(MOST_INVALID);
        let mut problem = Self::because(StatusCode::UNPROCESSABLE_ENTITY, message);
        problem.reason.invalid = invalid;
        problem
    }
}

/// Converts every refusal in another format to ours: those of the router and of layers.
pub(super) async fn in_one_shape(response: Response<Body>) -> Response<Body> {
    let (status, headers) = (response.status(), response.headers());
    let refused = status.is_client_error() || status.is_server_error();
    let is_ours = headers.get(CONTENT_TYPE) == Some(&HeaderValue::from_static("application/json"));
    if !refused || is_ours {
        return response;
    }
    let mut shaped = Problem::of(status).into_response();
    for (name, value) in headers {
        if name != CONTENT_TYPE && name != CONTENT_LENGTH {
            shaped.headers_mut().insert(name, value.clone());
        }
    }
    shaped
}

/// An infrastructure failure. It is logged here, once. The client does not learn the internal reasons.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        if is_passing(&error) {
            tracing::warn!(error = %error, "request failed for now");
            let why = "the service is busy or its database cannot be reached; try again";
            return Self::unavailable(why);
        }
        tracing::error!(error = %error, "request failed");
        Self::of(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Whether the same request may succeed later: no connection, no free connection, a lost connection, a
/// timeout, or a database that is not migrated yet.
fn is_passing(error: &Error) -> bool {
    let passing = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::INVALID_SCHEMA_NAME,
    ];
    error.is_connection_lost()
        || error.is_transient()
        || error.is_wait()
        || error.sqlstate().is_some_and(|state| {
            // Class 53 means that the database lacks resources, such as connections or disk space.
            passing.contains(state) || state.code().starts_with("53")
        })
}

/// Refusals of any request with a body, before the body is understood.
#[derive(IntoResponses)]
#[expect(
    dead_code,
    reason = "only documents; made by the layers, and by reading the body"
)]
pub(super) enum Unread {
    /// The body is not JSON
    #[response(status = 400)]
    NoJson(Refusal),
    /// The body has not arrived within 5 seconds
    #[response(status = 408)]
    Slow(Refusal),
    /// The body is larger than 1 MiB and 64 KiB, or the data to store is larger than 1 MiB
    #[response(status = 413)]
    TooLarge(Refusal),
    /// The body's content type is not application/json
    #[response(status = 415)]
    Type(Refusal),
}

/// Refusals of requests that need a known caller.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only documents; made by the gate")]
pub(super) enum Gated {
    /// The credential is missing or invalid
    #[response(status = 401, headers(("www-authenticate" = String, description = "The required credential, as in RFC 6750")))]
    Unknown(Refusal),
    /// The credential does not permit this request, or the request contradicts it
    #[response(status = 403)]
    Forbidden(Refusal),
    /// The caller has too many requests at once: try again after `retry-after` seconds
    #[response(status = 429, headers(("retry-after" = u32, description = "Seconds to wait")))]
    TooMany(Refusal),
}

/// Refusals of any request.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only documents; made by the layers")]
pub(super) enum Common {
    /// The host is not this machine, while callers are not authenticated
    #[response(status = 421)]
    Host(Refusal),
    /// Too many or too large header fields
    #[response(status = 431)]
    Headers(Refusal),
    /// The request failed; the log contains the reason
    #[response(status = 500)]
    Internal(Refusal),
    /// The server is busy or timed out, or the database cannot be reached: try again after
    /// `retry-after` seconds
    #[response(status = 503, headers(("retry-after" = u32, description = "Seconds to wait")))]
    Unavailable(Refusal),
}
