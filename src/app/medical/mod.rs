//! The medical jobs system: 21 kinds of changes to a patient's data. Clients request them over an interface that
//! answers at once. The jobs of each patient are then handled one after the other.
//!
//! # Layout
//!
//! - [`payload`] defines what clients may request, and [`schema`] checks a request.
//! - [`value`] and [`entity`] define the parts of both, and [`content`] the signed contents.
//! - [`transition`] turns a job into a change. `rules` contains the rules of each kind.
//! - [`verdict`] builds the stored result of a job.
//! - [`record`] reads data, and confirms approvals at once.
//! - [`services`] notifies the patient and verifies signatures.
//! - `store` contains the SQL.
//!
//! # How to add a kind
//!
//! Add a payload in [`payload`], a variant in [`crate::app::Event`], and a `Transition` in `rules`. If one of them
//! is missing, the program does not compile.

pub mod content;
pub mod entity;
pub mod payload;
pub mod record;
mod rules;
pub mod schema;
pub mod services;
mod store;
pub mod transition;
pub mod value;
pub mod verdict;

use tokio_postgres::Transaction;
use uuid::Uuid;

use tidegate::{Error, NewEvent, Published, dedup_key, publish};

pub use payload::{Job, KINDS, Refusal, ValidJob, schema_name, schemas, validate};
pub use schema::FieldError;
pub(super) use transition::handlers;

/// Publishes a job in the caller's transaction. If an equal job is pending, it returns the id of that job (E2, E3).
/// Two jobs are equal if kind, parameters, user, client and patient are equal. The time and the request's id do not
/// matter. Approvals are never considered equal.
///
/// # Errors
/// As [`publish`].
pub async fn submit(tx: &Transaction<'_>, job: &ValidJob) -> Result<Published, Error> {
    publish(tx, &new_event(job)?).await
}

/// Returns the group of a patient's jobs. The jobs of a group are handled in order (E5).
#[must_use]
pub fn group(patient_id: Uuid) -> String {
    format!("patient:{patient_id}")
}

/// Builds the event of a job. All jobs of a patient are in one group (E5). The request's id is the correlation id.
fn new_event(job: &ValidJob) -> Result<NewEvent, Error> {
    let event = NewEvent::raw(job.kind, Some(job.payload.clone()))
        .group(group(job.patient_id))
        .correlation(job.request_id.clone());
    if job.kind == payload::ApprovalCreateJob::KIND {
        return Ok(event);
    }
    let failed = |error| Error::Invalid(format!("payload: {error}"));
    let mut parameters: serde_json::Value =
        serde_json::from_str(job.payload.get()).map_err(failed)?;
    if let Some(fields) = parameters.as_object_mut() {
        fields.remove("request_id");
    }
    let who = [job.user_id, job.client_id, job.patient_id].map(|id| id.to_string());
    let who = who.each_ref().map(String::as_str);
    Ok(event.dedup(dedup_key(job.kind, &parameters, &who).map_err(failed)?))
}
