//! The medical jobs system: 21 kinds of changes to a patient's data, asked for over an interface
//! that answers at once and done one after the other for each patient.
//!
//! # Layout
//!
//! [`payload`] is what may be asked for, [`schema`] how a request is checked, [`value`] and [`entity`]
//! what both are made of, [`content`] what is signed. [`transition`] is the one way in which a job
//! becomes a change, `rules` what each kind demands, [`verdict`] what a job leaves behind, [`record`] what is read
//! and confirmed at once, [`services`] what the patient is told and who verifies signatures; `store` holds the SQL.
//!
//! # A further kind
//!
//! A payload in [`payload`], a variant in [`crate::app::Event`], a `Transition` in `rules`: with any of
//! them missing, the program does not compile.

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

/// Asks for a job, in the caller's transaction. While an equal one is pending it is that one's id that
/// comes back (E2, E3): equal in kind, parameters, user, client and patient, whatever the time and the
/// request's id. Approvals are never taken for each other.
///
/// # Errors
/// As [`publish`].
pub async fn submit(tx: &Transaction<'_>, job: &ValidJob) -> Result<Published, Error> {
    publish(tx, &new_event(job)?).await
}

/// The group of a patient's jobs, which are handled in order (E5).
#[must_use]
pub fn group(patient_id: Uuid) -> String {
    format!("patient:{patient_id}")
}

/// The jobs of a patient are one group (E5), and findable by the request's id.
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
