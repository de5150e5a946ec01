//! Owns the operations on a patient's data that are done at once, without a job: reading the entities that the links of a
//! job's result lead to, and confirming a new approval.
//!
//! A confirmation is not a job, because the patient is present and waits for the answer. It changes only one row, which it
//! locks, so it cannot disturb the order of the jobs. The audit records it like every other change.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_postgres::Transaction;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::entity::{EntityKind, EntityStatus};
use super::payload::{self, Common, Refusal};
use super::schema::FieldError;
use super::store::{self, Author, Change};
use tidegate::Error;

/// An entity stored for a patient.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Record {
    /// Its kind.
    pub entity: EntityKind,
    /// Its id.
    pub id: Uuid,
    /// The patient it belongs to.
    pub patient_id: Uuid,
    /// The entity it is part of: an encounter's episode, an observation's encounter or report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub parent_id: Option<Uuid>,
    /// The legal entity that owns it or requested it.
    pub organization_id: Uuid,
    /// Its state.
    pub status: EntityStatus,
    /// The content that was requested or signed.
    #[schema(value_type = Object)]
    pub content: Map<String, Value>,
    /// Facts that later jobs have added: who uses it, why it was closed.
    #[schema(value_type = Object)]
    pub facts: Map<String, Value>,
    /// When it expires. Only service requests expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    pub expires_at: Option<String>,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// Confirms that the patient has agreed to an approval. The caller has already checked the one-time password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// The caller's own id of the request, for tracing.
    #[schema(min_length = 1, max_length = 100)]
    pub request_id: String,
    /// The user who makes the request.
    pub user_id: Uuid,
    /// The legal entity on whose behalf the user acts. It must be the one that requested the approval.
    pub client_id: Uuid,
}

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

impl Confirmation {
    /// Checks a confirmation from outside and returns all its faults.
    ///
    /// # Errors
    /// [`Refusal::Fields`], which quotes nothing from the request.
    pub fn of(json: &Value) -> Result<Self, Refusal> {
        let errors = payload::check::<Self>(json);
        if !errors.is_empty() {
            return Err(Refusal::Fields(errors));
        }
        let undecodable = |_| FieldError::new("$", "schema", "does not decode");
        Self::deserialize(json).map_err(|error| Refusal::Fields(vec![undecodable(error)]))
    }
}

/// Adds the schema of [`Confirmation`], for [`payload::check`].
pub(super) fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((Confirmation::name().into_owned(), Confirmation::schema()));
}

/// Reads an entity of this patient.
///
/// # Errors
/// Database errors.
pub async fn read(
    tx: &Transaction<'_>,
    patient_id: Uuid,
    kind: EntityKind,
    id: Uuid,
) -> Result<Option<Record>, Error> {
    store::read(tx.client(), patient_id, kind, id).await
}

/// Activates a new approval, in the caller's transaction. Repeating the call changes nothing.
///
/// # Errors
/// Database errors.
pub async fn confirm(
    tx: &Transaction<'_>,
    patient_id: Uuid,
    id: Uuid,
    asked: &Confirmation,
) -> Result<Confirmed, Error> {
    let (client, kind) = (tx.client(), EntityKind::Approval);
    let found = store::find(client, patient_id, &[(kind, id)]).await?;
    let Some(approval) = found.first() else {
        return Ok(Confirmed::Unknown);
    };
    if approval.organization_id != asked.client_id {
        return Ok(Confirmed::Foreign);
    }
    match approval.status {
        EntityStatus::New => activate(tx, patient_id, id, asked).await?,
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
    asked: &Confirmation,
) -> Result<(), Error> {
    let author = Author {
        event_id: None,
        event_kind: CONFIRMATION,
        common: Common {
            request_id: &asked.request_id,
            patient_id,
            user_id: asked.user_id,
            client_id: asked.client_id,
        },
    };
    let change = Change {
        kind: EntityKind::Approval,
        id,
        status: EntityStatus::Active,
        content: json!({}),
        facts: json!({}),
    };
    store::change(tx.client(), &author, &[change]).await
}
