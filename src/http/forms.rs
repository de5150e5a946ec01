//! Receives forms and notices about them, as [`crate::app::submission`] reads them. One transaction stores
//! the data and publishes the event.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::future::BoxFuture;
use tokio_postgres::Transaction;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::Data;
use super::callers::Caller;
use super::jobs::{json, refused as by_the_queue};
use super::problem::{Common, Gated, Problem, Refusal, Unread};
use super::{Shared, committed};
use crate::app::forms::{self, Form};
use crate::app::submission::{Cancellation, Letter, Subject, SubmitReport, Viewed, read};
use tidegate::{Database, Error};

/// The routes for clients that submit forms and show letters to people.
pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(form))
        .routes(routes!(viewed))
}

/// The routes for the case system.
pub(super) fn letters() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(letter))
        .routes(routes!(cancellation))
}

/// Submits a form. Its `status` is optional. Its id must not have been used before.
#[utoipa::path(
    post, path = "/forms", tag = "forms", request_body = Form,
    responses(
        (status = 202, description = "The submission is stored and its event is published", body = Data<SubmitReport>),
        (status = 409, description = "A form with this id was submitted before", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid form; the message names the first invalid field", body = Refusal),
        Unread,
        Gated,
        Common
    )
)]
async fn form(
    state: State<Database>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Answered {
    take_in(state, Subject::Form, caller, &headers, body).await
}

/// Submits a grant letter for one of our cases or another one.
///
/// Processed once for each `source` and `external_id` of the client.
#[utoipa::path(
    post, path = "/letters", tag = "forms", request_body = Letter,
    responses(
        (status = 202, description = "The letter is stored and its event is published, or it was stored before", body = Data<SubmitReport>),
        (status = 422, description = "The body is JSON, but not a valid letter; the message names the first invalid field", body = Refusal),
        Unread,
        Gated,
        Common
    )
)]
async fn letter(
    state: State<Database>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Answered {
    take_in(state, Subject::Letter, caller, &headers, body).await
}

/// Reports that the case system cancelled a measure.
///
/// Processed once for each `source` and `external_id` of the client.
#[utoipa::path(
    post, path = "/cancellations", tag = "forms", request_body = Cancellation,
    responses(
        (status = 202, description = "The cancellation is stored, or was stored before. Its event is published if the case is one of ours", body = Data<SubmitReport>),
        (status = 422, description = "The body is JSON, but not a valid cancellation; the message names the first invalid field", body = Refusal),
        Unread,
        Gated,
        Common
    )
)]
async fn cancellation(
    state: State<Database>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Answered {
    take_in(state, Subject::Cancellation, caller, &headers, body).await
}

/// Reports that a grant letter of this form was viewed.
#[utoipa::path(
    post, path = "/forms/{id}/viewed", tag = "forms", request_body = Viewed,
    params(("id" = String, Path, description = "The form's id")),
    responses(
        (status = 202, description = "The event is published", body = Data<SubmitReport>),
        (status = 404, description = "This form has no grant with this number", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid notice of a view", body = Refusal),
        Unread,
        Gated,
        Common
    )
)]
async fn viewed(
    State(database): State<Database>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answered {
    json(&headers, &body)?;
    accepted(&database, &headers, |tx| {
        Box::pin(async move {
            let viewed: Viewed = read("viewed", &body)?;
            let event = forms::letter_of_form_viewed(tx, &id, &viewed.grant_number).await?;
            Ok(SubmitReport::published(event, Some(id)))
        })
    })
    .await
}

type Answered = Result<Response, Problem>;

async fn take_in(
    State(database): State<Database>,
    subject: Subject,
    caller: Caller,
    headers: &HeaderMap,
    body: Bytes,
) -> Answered {
    json(headers, &body)?;
    accepted(&database, headers, |tx| {
        Box::pin(async move { subject.take_in(tx, caller.client, &body).await })
    })
    .await
}

/// Stores the submission, and returns the result.
async fn accepted(
    database: &Database,
    headers: &HeaderMap,
    take_in: impl for<'a> FnOnce(&'a Transaction<'a>) -> BoxFuture<'a, Result<SubmitReport, Error>>
    + Send,
) -> Answered {
    let data = committed(database, headers, take_in)
        .await
        .map_err(refused)?;
    Ok((StatusCode::ACCEPTED, Json(Data { data })).into_response())
}

/// Returns the fault of the request in the words of the intake, which quote nothing from it.
fn refused(error: Error) -> Problem {
    match (&error, error.field()) {
        (Error::Invalid(text), _) if text == forms::HANDED_IN_BEFORE => {
            Problem::new(StatusCode::CONFLICT, "request_conflict", text)
        }
        (Error::Invalid(text), _) if text == forms::NO_GRANT_OF_FORM => {
            Problem::new(StatusCode::NOT_FOUND, "not_found", text)
        }
        (Error::Invalid(text), field) if !matches!(field, Some("payload" | "kind")) => {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            Problem::new(status, "validation_failed", text)
        }
        _ => by_the_queue(error),
    }
}
