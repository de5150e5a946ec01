//! Owns the representation of a job for its client: the table "Reading a job" of requirements 1.3, row
//! by row. Every body is `{"data": …}`.

use std::time::SystemTime;

use axum::Json;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate::{Job, JobStatus};
use utoipa::ToSchema;

use crate::app::medical::FieldError;

/// The body of every answer except refusals.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Data<T: ToSchema> {
    /// The content of the answer.
    pub(super) data: T,
}

/// An entity and its path.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct Link {
    /// The kind of entity, such as `job` or `episode`.
    entity: String,
    /// Its path.
    href: String,
}

/// A job that was accepted.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum AcceptedJob {
    /// The job is waiting.
    Pending(Pending),
}

/// A job that is pending, or whose end has a result to report.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum JobAnswer {
    /// The job is waiting or being processed.
    Pending(Pending),
    /// The job is done.
    Processed(Responded),
    /// The job was refused with an expected error.
    Failed(Failed),
    /// The job was given up because of a system error.
    FailedWithError(Failed),
}

/// A finished job that created or changed entities.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum LinkedJob {
    /// The job is done.
    Processed(Linked),
}

/// A job in the queue.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Pending {
    /// When the job is expected to end: the next time that a drain runs, which is every minute from
    /// its acceptance on, once nothing holds it up. An earlier job of its patient does, the time of its next
    /// attempt, and the next try of a service that does not answer.
    #[schema(format = DateTime)]
    eta: String,
    /// The job itself.
    links: Vec<Link>,
}

/// The entities that a processed job created or changed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Linked {
    /// Always 200.
    status_code: u16,
    /// When it ended.
    #[schema(format = DateTime)]
    eta: String,
    /// Links to the entities. Empty for a cancelled package.
    links: Vec<Link>,
}

/// The result of a processed job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Responded {
    /// Always 200.
    status_code: u16,
    /// When it ended.
    #[schema(format = DateTime)]
    eta: String,
    /// The result itself: an object, or an empty string.
    response_data: Value,
}

/// Why a job was refused, or that it was given up.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Failed {
    /// The status code that a synchronous request would have returned: 403, 404, 409 or 422; 500 for a job
    /// that was given up.
    status_code: u16,
    /// When it ended.
    #[schema(format = DateTime)]
    eta: String,
    /// The reason.
    error: Expected,
}

/// The reason of an expected error. With the codes 403 and 404 it is only a text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Expected {
    /// Returned with the codes 409, 422 and 500.
    Typed {
        /// `request_conflict` (409), `validation_failed` (422) or `internal_error` (500). The reason of the
        /// last is for operators (`tidegate show`).
        #[serde(rename = "type")]
        kind: &'static str,
        /// Text for people.
        message: String,
        /// The faults of the request, with `validation_failed`.
        #[serde(skip_serializing_if = "Option::is_none")]
        invalid: Option<Vec<FieldError>>,
    },
    /// Returned with every other code.
    Text(String),
}

const GIVEN_UP: &str =
    "the job could not be processed; repeat the request, or give the operator the id of the job";

/// Answers a request whose job was accepted, or was already pending. `id` is the id in its link.
pub(super) fn accepted(job: Job, id: &str) -> Response {
    let headers = [(LOCATION, format!("/jobs/{id}")), wait(&job)];
    let data = AcceptedJob::Pending(pending(job, id));
    (StatusCode::ACCEPTED, headers, Json(Data { data })).into_response()
}

/// The header with the time until a job is expected to end, in whole seconds.
fn wait(job: &Job) -> (HeaderName, String) {
    let eta = humantime::parse_rfc3339(&job.eta).ok();
    let left = eta.and_then(|eta| eta.duration_since(SystemTime::now()).ok());
    let seconds = left.unwrap_or_default().as_secs() + 1;
    (RETRY_AFTER, seconds.to_string())
}

/// Answers a request that reads a job. `id` is the id in its link.
pub(super) fn read(job: Job, id: &str) -> Response {
    let data = match job.status {
        JobStatus::Pending => {
            let headers = [wait(&job)];
            let data = JobAnswer::Pending(pending(job, id));
            return (headers, Json(Data { data })).into_response();
        }
        JobStatus::Processed => return processed(job),
        JobStatus::Failed => JobAnswer::Failed(failed(job)),
        JobStatus::FailedWithError => JobAnswer::FailedWithError(Failed {
            status_code: 500,
            eta: job.eta,
            error: typed("internal_error", GIVEN_UP.to_owned(), None),
        }),
    };
    Json(Data { data }).into_response()
}

fn pending(Job { eta, .. }: Job, id: &str) -> Pending {
    let itself = Link {
        entity: "job".to_owned(),
        href: format!("/jobs/{id}"),
    };
    Pending {
        eta,
        links: vec![itself],
    }
}

/// The stored result of a job: one of the two.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Links(Vec<Link>),
    ResponseData(Value),
}

/// Answers 303 without `location`. There may be several links or none, and a client that followed a
/// redirect by itself would lose this body.
fn processed(job: Job) -> Response {
    let (status_code, eta) = (200, job.eta);
    match outcome(job.result) {
        Outcome::Links(links) => {
            let data = LinkedJob::Processed(Linked {
                status_code,
                eta,
                links,
            });
            (StatusCode::SEE_OTHER, Json(Data { data })).into_response()
        }
        Outcome::ResponseData(response_data) => {
            let data = JobAnswer::Processed(Responded {
                status_code,
                eta,
                response_data,
            });
            Json(Data { data }).into_response()
        }
    }
}

/// Converts the result of the job's only handler. Without a result, there are no links. A result that
/// is neither links nor data was truncated because it was too long, and is returned unchanged.
fn outcome(result: Option<Value>) -> Outcome {
    let Some(Value::Object(handlers)) = result else {
        return Outcome::Links(Vec::new());
    };
    let of_handler = handlers.into_iter().next();
    of_handler.map_or(Outcome::Links(Vec::new()), |(_, value)| {
        Outcome::deserialize(&value).unwrap_or(Outcome::ResponseData(value))
    })
}

fn failed(job: Job) -> Failed {
    let status_code = job.status_code.unwrap_or(409);
    let fault = job.errors.into_iter().next_back();
    let fault = fault.map(|fault| {
        (
            fault.message,
            fault.details.and_then(|json| json.read().ok()),
        )
    });
    let (message, details) = fault.unwrap_or_default();
    let error = match status_code {
        409 => typed("request_conflict", message, None),
        422 => typed("validation_failed", message, Some(invalid(details))),
        _ => Expected::Text(message),
    };
    Failed {
        status_code,
        eta: job.eta,
        error,
    }
}

fn typed(kind: &'static str, message: String, invalid: Option<Vec<FieldError>>) -> Expected {
    Expected::Typed {
        kind,
        message,
        invalid,
    }
}

/// The invalid fields that the handler found.
fn invalid(details: Option<Value>) -> Vec<FieldError> {
    let entries = details.and_then(|mut details| details.get_mut("invalid").map(Value::take));
    entries
        .and_then(|entries| serde_json::from_value(entries).ok())
        .unwrap_or_default()
}
