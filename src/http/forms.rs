//! Receives forms and notices about them, as [`crate::app::submission`] reads them. One transaction stores
//! the data and publishes the event. A form with its steps can be read by the client that submitted it.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use tidegate::Error;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::Data;
use super::callers::Caller;
use super::jobs::refused as by_the_queue;
use super::posted::Posted;
use super::problem::{Common, Gated, Problem, Refusal, Unread};
use super::{Shared, begin, connection};
use crate::app::forms::{self, Form, Letter, MeasureNotice, Progress, SubmitReport, Viewed};
use crate::app::submission::{Subject, read};

/// The routes for clients that submit forms and show letters to people.
pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(form))
        .routes(routes!(progress))
        .routes(routes!(viewed))
}

/// The routes for the case system.
pub(super) fn letters() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(letter))
        .routes(routes!(cancellation))
        .routes(routes!(decline))
}

/// Submits a form. Repeating the request is safe: an equal form of the same client changes nothing.
#[utoipa::path(
    post, path = "/forms", tag = "forms", request_body = Form,
    responses(
        (status = 202, description = "The form is stored and its event is published, or it was stored before", body = Data<SubmitReport>,
            headers(("location" = String, description = "The path of the form"))),
        (status = 409, description = "The client has submitted another form with this id", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid form; `invalid` lists all faults", body = Refusal),
        Unread, Gated, Common
    )
)]
async fn form(posted: Posted) -> Answered {
    let id = posted.json["id"].as_str().unwrap_or_default();
    let path = format!("/forms/{}", segment(id));
    let answer = take_in(Subject::Form, posted).await?;
    Ok(([(LOCATION, path)], answer).into_response())
}

/// An id as a segment of a path (RFC 3986).
fn segment(id: &str) -> String {
    let escaped = id.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    escaped.collect()
}

/// A form with its progress.
#[derive(Serialize, ToSchema)]
struct FormAnswer {
    /// The form, with its status.
    form: Form,
    #[serde(flatten)]
    progress: Progress,
}

/// Returns a form with its steps, to the client that submitted it.
#[utoipa::path(
    get, path = "/forms/{id}", tag = "forms",
    params(("id" = String, Path, description = "The form's id")),
    responses(
        (status = 200, description = "The form", body = Data<FormAnswer>),
        (status = 404, description = "The client has submitted no such form, or it is no longer stored", body = Refusal),
        Gated, Common
    )
)]
async fn progress(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let nothing = || Problem::because(StatusCode::NOT_FOUND, "there is no such form");
    let Path(id) = id.map_err(|_| nothing())?;
    let mut client = connection(&shared.database).await?;
    let transaction = begin(&mut client).await?;
    let found = forms::read(&transaction, caller.client, &id).await?;
    let (form, progress) = found.ok_or_else(nothing)?;
    let data = FormAnswer { form, progress };
    Ok(Json(Data { data }).into_response())
}

/// Submits a grant letter for one of our cases or another one.
///
/// Processed once for each `source` and `external_id` of the client.
#[utoipa::path(
    post, path = "/letters", tag = "forms", request_body = Letter,
    responses(
        (status = 202, description = "The letter is stored and its event is published, or it was stored before", body = Data<SubmitReport>),
        (status = 409, description = "The source has used this `external_id` for another message", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid letter; `invalid` lists all faults", body = Refusal),
        Unread, Gated, Common
    )
)]
async fn letter(posted: Posted) -> Answered {
    take_in(Subject::Letter, posted).await
}

/// Reports that the case system cancelled a measure.
///
/// Processed once for each `source` and `external_id` of the client.
#[utoipa::path(
    post, path = "/cancellations", tag = "forms", request_body = MeasureNotice,
    responses(
        (status = 202, description = "The cancellation is stored, or was stored before. Its event is published if the case is one of ours", body = Data<SubmitReport>),
        (status = 409, description = "The source has used this `external_id` for another message", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid cancellation; `invalid` lists all faults", body = Refusal),
        Unread, Gated, Common
    )
)]
async fn cancellation(posted: Posted) -> Answered {
    take_in(Subject::Cancellation, posted).await
}

/// Reports that the case system declined the application of a measure.
///
/// Processed once for each `source` and `external_id` of the client.
#[utoipa::path(
    post, path = "/declines", tag = "forms", request_body = MeasureNotice,
    responses(
        (status = 202, description = "The decision is stored, or was stored before. Its event is published if the case is one of ours", body = Data<SubmitReport>),
        (status = 409, description = "The source has used this `external_id` for another message", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid decision; `invalid` lists all faults", body = Refusal),
        Unread, Gated, Common
    )
)]
async fn decline(posted: Posted) -> Answered {
    take_in(Subject::Decline, posted).await
}

/// Reports that a grant letter of this form was viewed.
#[utoipa::path(
    post, path = "/forms/{id}/viewed", tag = "forms", request_body = Viewed,
    params(("id" = String, Path, description = "The form's id")),
    responses(
        (status = 202, description = "The event is published", body = Data<SubmitReport>),
        (status = 404, description = "The client has submitted no such form, or the form has no grant with this number", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid notice of a view", body = Refusal),
        Unread, Gated, Common
    )
)]
async fn viewed(Path(id): Path<String>, posted: Posted) -> Answered {
    let client = posted.caller.client;
    let viewed = read(&posted.json)?;
    let done = posted.committed(move |tx| {
        Box::pin(async move { forms::letter_viewed(tx, Some((client, &id)), &viewed).await })
    });
    accepted(done.await)
}

type Answered = Result<Response, Problem>;

async fn take_in(subject: Subject, posted: Posted) -> Answered {
    let client = posted.caller.client;
    let submission = subject.read(&posted.json)?;
    let done =
        posted.committed(move |tx| Box::pin(async move { submission.take_in(tx, client).await }));
    accepted(done.await)
}

fn accepted(done: Result<SubmitReport, Error>) -> Answered {
    let data = done.map_err(refused)?;
    Ok((StatusCode::ACCEPTED, Json(Data { data })).into_response())
}

/// The fault of the request in the words of the intake, which quote nothing from it.
fn refused(error: Error) -> Problem {
    let conflicts = [forms::HANDED_IN_BEFORE, forms::ANOTHER_MESSAGE];
    let status = match &error {
        Error::Invalid(text) if conflicts.contains(&&**text) => StatusCode::CONFLICT,
        Error::Invalid(text) if text == forms::NO_GRANT_OF_FORM => StatusCode::NOT_FOUND,
        Error::Invalid(text) if text == forms::ID_OF_A_CLIENT => StatusCode::UNPROCESSABLE_ENTITY,
        _ => return by_the_queue(error),
    };
    Problem::because(status, error.to_string())
}
