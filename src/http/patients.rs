//! Reads the entities of patients, which the links of a job lead to, and confirms approvals.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::answer::Data;
use super::callers::Caller;
use super::posted::Posted;
use super::problem::{Common, Gated, Problem, Refusal, Unread};
use super::{Shared, begin, connection};
use crate::app::medical::entity::{EntityKind, Record};
use crate::app::medical::payload::Confirmation;
use crate::app::medical::record::{self, Confirmed};

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(entity))
}

/// The route for who checks the passwords of patients.
pub(super) fn approvals() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(confirm))
}

type Place<T> = Result<Path<T>, PathRejection>;

/// Returns the current state of a patient's entity. The links of processed jobs lead here. A client that is
/// known reads what belongs to it, a service request that it uses, and what an active approval permits its
/// employee to read.
#[utoipa::path(
    get, path = "/patients/{patient_id}/{entities}/{id}", tag = "patients",
    params(
        ("patient_id" = Uuid, Path, description = "The id of the patient"),
        ("entities" = String, Path, example = "episodes", description = "The kind of entity in the plural, such as `episodes` or `service_requests`"),
        ("id" = Uuid, Path, description = "The id of the entity"),
        ("user_id" = Option<Uuid>, Query, description = "The employee who reads, if the credential names no user")
    ),
    responses(
        (status = 200, description = "The entity", body = Data<Record>),
        (status = 400, description = "`user_id` is no UUID", body = Refusal),
        (status = 404, description = "The patient has no entity of this kind with this id", body = Refusal),
        Gated, Common
    )
)]
async fn entity(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    place: Place<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let place = place.ok().and_then(|Path((patient, entities, id))| {
        let kind = EntityKind::of_plural(&entities)?;
        Some((uuid(&patient)?, kind, uuid(&id)?))
    });
    let (patient_id, kind, id) = place.ok_or_else(nothing)?;
    caller.reach(patient_id)?;
    let user_id = reader(caller, query.as_deref().unwrap_or_default())?;
    let mut client = connection(&shared.database).await?;
    let transaction = begin(&mut client).await?;
    let data = record::read(&transaction, patient_id, kind, id).await?;
    let data = data.ok_or_else(nothing)?;
    if let Some(client_id) = caller.client
        && !record::may_read(&transaction, &data, client_id, user_id).await?
    {
        let message = "the record belongs to another legal entity, and no active approval permits this user_id to read it";
        return Err(Problem::because(StatusCode::FORBIDDEN, message));
    }
    Ok(Json(Data { data }).into_response())
}

/// Confirms that the patient has agreed to an approval, which is active from then on. The caller must have
/// checked the one-time password. The legal entity that asked for the approval cannot confirm it. Repeating
/// the request changes nothing.
#[utoipa::path(
    post, path = "/patients/{patient_id}/approvals/{id}/confirmation", tag = "patients", request_body = Confirmation,
    params(
        ("patient_id" = Uuid, Path, description = "The id of the patient who agreed"),
        ("id" = Uuid, Path, description = "The id of the approval")
    ),
    responses(
        (status = 200, description = "The approval is active", body = Data<Record>),
        (status = 404, description = "The patient has no such approval", body = Refusal),
        (status = 422, description = "The body is JSON, but not a valid confirmation; `invalid` lists all faults", body = Refusal),
        Unread, Gated, Common
    )
)]
async fn confirm(place: Place<(String, String)>, mut posted: Posted) -> Result<Response, Problem> {
    let caller = posted.caller;
    caller.speak_for(&mut posted.json, &["client_id", "user_id"])?;
    let wanted = Confirmation::of(&posted.json)?;
    let place = place.ok();
    let place = place.and_then(|Path((patient, id))| Some((uuid(&patient)?, uuid(&id)?)));
    let (patient_id, id) = place.ok_or_else(nothing)?;
    caller.reach(patient_id)?;
    let confirmed = posted.committed(move |tx| {
        Box::pin(async move { record::confirm(tx, patient_id, id, &wanted).await })
    });
    match confirmed.await? {
        Confirmed::Active(data) => Ok(Json(Data { data: *data }).into_response()),
        Confirmed::Unknown => Err(nothing()),
        Confirmed::Asker => {
            let message = "client_id: must not be the legal entity that asked for the approval";
            Err(Problem::because(StatusCode::FORBIDDEN, message))
        }
    }
}

/// The employee who reads: the user of the credential, or the one that the query names.
fn reader(caller: Caller, query: &str) -> Result<Option<Uuid>, Problem> {
    let mut pairs = query.split('&');
    let named = pairs.find_map(|pair| pair.strip_prefix("user_id="));
    let mut said = named.map_or_else(|| json!({}), |id| json!({ "user_id": id }));
    caller.speak_for(&mut said, &["user_id"])?;
    let said = said["user_id"].as_str();
    let malformed = || Problem::because(StatusCode::BAD_REQUEST, "user_id: must be a UUID");
    said.map(|id| uuid(id).ok_or_else(malformed)).transpose()
}

/// Accepts what bodies accept: the form with hyphens, in lower or upper case.
fn uuid(text: &str) -> Option<Uuid> {
    let has_hyphens = text.len() == 36;
    Uuid::try_parse(text).ok().filter(|_| has_hyphens)
}

fn nothing() -> Problem {
    let message = "the patient has no entity of this kind with this id";
    Problem::because(StatusCode::NOT_FOUND, message)
}
