//! Accepts and reads jobs (E1, E2, E3).

use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{MatchedPath, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tidegate::{Database, Error, Job, NewEvent, Transaction, publish};
use tidegate_core::{queue, statements};
use utoipa::openapi::path::{Operation, PathItem, Paths};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::{ContentBuilder, HttpMethod, Ref, Required};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;
use uuid::Uuid;

use super::answer::{self, AcceptedJob, Data, JobAnswer, LinkedJob};
use super::callers::Caller;
use super::links::{Link, LinkKeys};
use super::posted::Posted;
use super::problem::{Common, Gated, Problem, Refusal, Unread};
use super::{Shared, begin, connection};
use crate::app::medical;

/// The interval of the shipped drain schedule (`template.yaml`). The `eta` of a job is based on it.
const WAKE_INTERVAL: Duration = Duration::from_mins(1);

/// The path of a kind, without the kind.
const JOBS: &str = "/jobs/";

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(each_kind(routes!(submit)))
        .routes(routes!(read, unknown_kind))
}

/// Turns the one documented route into a route for each kind, each with its own payload.
fn each_kind(
    (mut schemas, template, method): UtoipaMethodRouter<Shared>,
) -> UtoipaMethodRouter<Shared> {
    let payloads = medical::schemas();
    let mut operations = template.paths.into_values();
    let operation = operations.find_map(|item| item.post).unwrap_or_default();
    let mut paths = Paths::new();
    for kind in medical::KINDS {
        let name = medical::schema_name(kind).unwrap_or_default();
        let operation = for_kind(operation.clone(), kind, name, &json!(payloads.get(name)));
        let item = PathItem::new(HttpMethod::Post, operation);
        paths.paths.insert(format!("{JOBS}{kind}"), item);
    }
    schemas.extend(payloads);
    (schemas, paths, method)
}

fn for_kind(mut operation: Operation, kind: &str, name: &str, payload: &Value) -> Operation {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(name)));
    let body = RequestBodyBuilder::new()
        .content("application/json", content.build())
        .required(Some(Required::True));
    operation.request_body = Some(body.build().into());
    operation.operation_id = Some(kind.to_owned());
    // The description in a schema, however the schema is composed.
    if let Some(description) = payload["description"].as_str() {
        operation.summary = Some(description.to_owned());
    }
    operation
}

/// Accepts a job of this kind. If an equal job is pending (equal except for `request_id`), the
/// answer is about that job, and no new job is created. It is therefore safe to repeat a request whose
/// answer was lost.
#[utoipa::path(
    post, path = "/jobs/{kind}", tag = "jobs",
    responses(
        (status = 202, description = "The job is accepted, or an equal job is already pending", body = Data<AcceptedJob>,
            headers(("location" = String, description = "The path of the job"), ("retry-after" = u32, description = "Seconds until `eta`"))),
        (status = 422, description = "The body is JSON, but not a valid request of this kind; `invalid` lists all faults", body = Refusal),
        Unread, Gated, Common
    )
)]
async fn submit(route: MatchedPath, mut posted: Posted) -> Result<Response, Problem> {
    let kind = route.as_str().trim_start_matches(JOBS);
    let caller = posted.caller;
    caller.speak_for(&mut posted.json, &["client_id", "user_id", "patient_id"])?;
    let job = medical::validate(kind, &posted.json)?;
    let accepted =
        posted.committed(move |tx| Box::pin(async move { accept(tx, &job, caller).await }));
    let (job, link) = accepted.await.map_err(refused)?;
    Ok(answer::accepted(job, &link))
}

/// Publishes the job and reads it back in one transaction (E2), with the id of its link.
async fn accept(
    transaction: &Transaction<'_>,
    job: &NewEvent,
    caller: Caller,
) -> Result<(Job, String), Error> {
    // Read the keys before publishing takes the lock of the patient's group, which is held until the
    // end.
    let keys = LinkKeys::read(transaction).await?;
    let id = publish(transaction, job).await?.id;
    let link = keys.sign(id, caller.client)?;
    let job = queue::job(transaction, id, WAKE_INTERVAL).await?;
    Ok((job.ok_or(Error::UnknownEvent(id))?, link))
}

/// Returns the state of a job.
#[utoipa::path(
    get, path = "/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, example = "1-AAAAAAAAAAAAAAAAAAAAAA", description = "The job's id with its signature, as in the link that the request for the job returned")),
    responses(
        (status = 200, description = "The job is pending, or it ended with a result or an error", body = Data<JobAnswer>,
            headers(("retry-after" = u32, description = "Seconds until `eta`, while it is pending"))),
        (status = 303, description = "The job is processed; the links lead to the entities that it created or changed", body = Data<LinkedJob>),
        (status = 404, description = "The caller has no such job, or it is no longer stored", body = Refusal),
        Gated, Common
    )
)]
async fn read(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|_| no_such_job())?;
    let link = Link::parse(&id).ok_or_else(no_such_job)?;
    let job = find(&shared.database, &link, caller).await?;
    Ok(answer::read(job.ok_or_else(no_such_job)?, &id))
}

async fn find(database: &Database, link: &Link, caller: Caller) -> Result<Option<Job>, Error> {
    let mut client = connection(database).await?;
    let transaction = begin(&mut client).await?;
    let keys = LinkKeys::read(&transaction).await?;
    let Some(id) = keys.verify(link, caller.client) else {
        return Ok(None);
    };
    if let Some(patient) = caller.patient
        && !is_about(&transaction, id, patient).await?
    {
        return Ok(None);
    }
    let job = queue::job(&transaction, id, WAKE_INTERVAL).await?;
    // Events of the other systems are not jobs.
    Ok(job.filter(|job| medical::KINDS.contains(&job.kind.as_str())))
}

statements! {
    IS_OF_GROUP: "patient of a job" [INT8, TEXT] =
        "SELECT FROM @tidegate.job($1) AS j WHERE j.group_key = $2";
}

/// Whether a job is about this patient, which its group shows.
async fn is_about(tx: &Transaction<'_>, id: i64, patient: Uuid) -> Result<bool, Error> {
    let rows = queue::query(tx, &IS_OF_GROUP, &[&id, &medical::group(patient)]).await?;
    Ok(!rows.is_empty())
}

/// Refuses an unknown kind. Each known kind has a path of its own.
#[utoipa::path(
    post, path = "/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "Any text that is not the name of a kind")),
    responses((status = 404, description = "There is no such kind of job", body = Refusal), Gated, Common)
)]
async fn unknown_kind() -> Problem {
    let known = medical::KINDS.join(", ");
    let message = format!("there is no such kind of job; the kinds are: {known}");
    Problem::new(StatusCode::NOT_FOUND, "unknown_kind", message)
}

fn no_such_job() -> Problem {
    Problem::because(StatusCode::NOT_FOUND, "there is no such job")
}

/// A refusal by the queue itself, in the queue's own words.
pub(super) fn refused(error: Error) -> Problem {
    match error.field() {
        Some("payload") => Problem::because(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
        Some("kind") => {
            tracing::error!(error = %error, "not ready");
            Problem::unavailable("this kind of job is not accepted yet; try again")
        }
        _ => error.into(),
    }
}
