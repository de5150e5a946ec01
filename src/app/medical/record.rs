//! Owns the operations on a patient's data that are done at once, without a job: reading the entities that
//! the links of a job's result lead to, and confirming a new approval.
//!
//! A confirmation is not a job, because the patient is present and waits for the answer. It changes only one
//! row, which it locks, so it cannot disturb the order of the jobs. The audit records it like every other
//! change. Consent is what the patient gives, so it comes from who has checked the password, and never from
//! the legal entity that asked.

use serde_json::json;
use tidegate::Error;
use tidegate_core::connect::{Queryable, Transaction};
use uuid::Uuid;

use super::entity::{EntityKind, EntityStatus, Record};
use super::payload::{ApprovalResendJob, Common, Confirmation, Job};
pub use super::store::read;
use super::store::{self, CHANGE, EntityRow, Patient};
use super::value::AccessLevel;

/// Whether a legal entity may read a record: one that belongs to it, a service request that it uses, or what
/// an active approval permits its employee `user_id` to read.
///
/// # Errors
/// Database errors.
pub async fn may_read(
    client: &impl Queryable,
    record: &Record,
    client_id: Uuid,
    user_id: Option<Uuid>,
) -> Result<bool, Error> {
    let used_by = record.facts.get("used_by_legal_entity");
    if record.organization_id == client_id || used_by == Some(&json!(client_id)) {
        return Ok(true);
    }
    let named = (record.patient_id, record.entity, record.id);
    store::reaches(client, named, (client_id, user_id), AccessLevel::Read).await
}

/// The outcome of a confirmation.
pub enum Confirmed {
    /// The approval is active, either from now on or since an earlier confirmation.
    Active(Box<Record>),
    /// The patient has no such approval.
    Unknown,
    /// The legal entity that asked for the approval confirms it, which it must not.
    Asker,
}

/// The audit stores this name in place of a job's kind.
const CONFIRMATION: &str = "approval_confirmation";

/// Activates a new approval, in the caller's transaction. Repeating the call changes nothing.
///
/// # Errors
/// Database errors.
pub async fn confirm(
    tx: &Transaction<'_>,
    patient_id: Uuid,
    id: Uuid,
    request: &Confirmation,
) -> Result<Confirmed, Error> {
    let kind = EntityKind::Approval;
    let patient = Patient {
        client: tx.conn(),
        common: Common {
            request_id: &request.request_id,
            patient_id,
            user_id: request.user_id,
            client_id: request.client_id,
        },
        authority: ApprovalResendJob::AUTHORITY,
    };
    let Some(approval) = patient.find(kind, id).await? else {
        return Ok(Confirmed::Unknown);
    };
    if approval.organization_id == request.client_id {
        return Ok(Confirmed::Asker);
    }
    match approval.status {
        EntityStatus::New => {
            let change = EntityRow::change(kind, id, EntityStatus::Active);
            let by = (None, CONFIRMATION);
            patient.write(&CHANGE, by, &[change]).await?;
        }
        EntityStatus::Active => {}
        // No job takes an approval back.
        _ => return Ok(Confirmed::Unknown),
    }
    let record = read(&patient.client, patient_id, kind, id).await?;
    Ok(record.map_or(Confirmed::Unknown, |record| {
        Confirmed::Active(Box::new(record))
    }))
}
