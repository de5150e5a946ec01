//! Owns the operations on a patient's data that are done at once, without a job: reading the entities that
//! the links of a job's result lead to, and confirming a new approval.
//!
//! A confirmation is not a job, because the patient is present and waits for the answer. It changes only one
//! row, which it locks, so it cannot disturb the order of the jobs. The audit records it like every other
//! change.

use tokio_postgres::Transaction;
use uuid::Uuid;

use super::entity::{EntityKind, EntityStatus, Record};
use super::payload::{Common, Confirmation};
pub use super::store::read;
use super::store::{self, Author, CHANGE, EntityRow};
use tidegate::Error;

/// The outcome of a confirmation.
pub enum Confirmed {
    /// The approval is active, either from now on or since an earlier confirmation.
    Active(Box<Record>),
    /// The patient has no such approval.
    Unknown,
    /// Another legal entity requested it.
    Foreign,
    /// It was recalled.
    Over,
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
    let (client, kind) = (tx.client(), EntityKind::Approval);
    let found = store::find(client, patient_id, &[(kind, id)]).await?;
    let Some(approval) = found.first() else {
        return Ok(Confirmed::Unknown);
    };
    if approval.organization_id != request.client_id {
        return Ok(Confirmed::Foreign);
    }
    match approval.status {
        EntityStatus::New => activate(tx, patient_id, id, request).await?,
        EntityStatus::Active => {}
        _ => return Ok(Confirmed::Over),
    }
    let record = store::read(client, patient_id, kind, id).await?;
    Ok(record.map_or(Confirmed::Unknown, |record| {
        Confirmed::Active(Box::new(record))
    }))
}

async fn activate(
    tx: &Transaction<'_>,
    patient_id: Uuid,
    id: Uuid,
    request: &Confirmation,
) -> Result<(), Error> {
    let author = Author {
        event_id: None,
        event_kind: CONFIRMATION,
        common: Common {
            request_id: &request.request_id,
            patient_id,
            user_id: request.user_id,
            client_id: request.client_id,
        },
    };
    let change = EntityRow::change(EntityKind::Approval, id, EntityStatus::Active);
    store::write(tx.client(), CHANGE, &author, &[change]).await
}
