//! Receives forms and notices about them, as [`crate::app::submission`] reads them. One transaction stores
//! the data and publishes the event.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::answer::Data;
use super::jobs::refused as by_the_queue;
use super::posted::Posted;
use super::problem::{Common, Gated, Problem, Refusal, Unread};
use crate::app::forms::{self, Form, Letter, MeasureNotice, SubmitReport, Viewed};
use crate::app::submission::{Subject, read};
use tidegate::Error;

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
        .routes(routes!(decline))
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
async fn form(posted: Posted) -> Answered {
    take_in(Subject::Form, posted).await
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
        (status = 422, description = "The body is JSON, but not a valid cancellation; the message names the first invalid field", body = Refusal),
        Unread,
        Gated,
        Common
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
        (status = 422, description = "The body is JSON, but not a valid decision; the message names the first invalid field", body = Refusal),
        Unread,
        Gated,
        Common
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
        (status = 404, description = "This form has no grant with this number", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid notice of a view", body = Refusal),
        Unread,
        Gated,
        Common
    )
)]
async fn viewed(Path(id): Path<String>, mut posted: Posted) -> Answered {
    let json = posted.json.take();
    let done = posted.committed(|tx| {
        Box::pin(async move {
            let viewed = read("viewed", &json)?;
            forms::letter_viewed(tx, Some(&id), &viewed).await
        })
    });
    accepted(done.await)
}

type Answered = Result<Response, Problem>;

async fn take_in(subject: Subject, mut posted: Posted) -> Answered {
    let (client, json) = (posted.caller.client, posted.json.take());
    let done = posted
        .committed(move |tx| Box::pin(async move { subject.take_in(tx, client, &json).await }));
    accepted(done.await)
}

fn accepted(done: Result<SubmitReport, Error>) -> Answered {
    let data = done.map_err(refused)?;
    Ok((StatusCode::ACCEPTED, Json(Data { data })).into_response())
}

/// Returns the fault of the request in the words of the intake, which quote nothing from it.
fn refused(error: Error) -> Problem {
    let status = match (&error, error.field()) {
        (Error::Invalid(text), _) if text == forms::HANDED_IN_BEFORE => StatusCode::CONFLICT,
        (Error::Invalid(text), _) if text == forms::NO_GRANT_OF_FORM => StatusCode::NOT_FOUND,
        (Error::Invalid(_), field) if !matches!(field, Some("payload" | "kind")) => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        _ => return by_the_queue(error),
    };
    Problem::because(status, error.to_string())
}
