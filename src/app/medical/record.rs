//! Owns what is done with a patient's data at once, beside the jobs: it is read where the links of a job's answer lead to,
//! and a new approval is confirmed.
//!
//! The surprise: a confirmation is no job. The patient is there and waits for the answer, and it changes the one row that
//! it has locked, so there is no order of jobs that it could disturb. It stands in the audit like every other change.

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

/// Something that is kept of a patient.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Record {
    /// What it is.
    pub entity: EntityKind,
    /// Its id.
    pub id: Uuid,
    /// Whose it is.
    pub patient_id: Uuid,
    /// What it is part of: an encounter's episode, an observation's encounter or report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub parent_id: Option<Uuid>,
    /// The legal entity that it belongs to, or that asked for it.
    pub organization_id: Uuid,
    /// Its state.
    pub status: EntityStatus,
    /// What was asked for or signed.
    #[schema(value_type = Object)]
    pub content: Map<String, Value>,
    /// What later jobs have said of it: who uses it, why it was closed.
    #[schema(value_type = Object)]
    pub facts: Map<String, Value>,
    /// When its time is over; only service requests have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    pub expires_at: Option<String>,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// Word that the patient has agreed to an approval: whoever tells it has checked the one-time password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// The caller's own id of the request, for tracing.
    #[schema(min_length = 1, max_length = 100)]
    pub request_id: String,
    /// Who asks.
    pub user_id: Uuid,
    /// The legal entity on whose behalf the user asks; it has to be the one that asked for the approval.
    pub client_id: Uuid,
}

/// What came of a confirmation.
pub enum Confirmed {
    /// The approval is in force, from now on or since an earlier confirmation.
    Active(Box<Record>),
    /// The patient has no such approval.
    Unknown,
    /// Another legal entity has asked for it.
    Foreign,
    /// It was taken back.
    Over,
}

/// What stands in the audit in place of a job's kind.
const CONFIRMATION: &str = "approval_confirmation";

impl Confirmation {
    /// Checks a confirmation from outside: all that is wrong with it.
    ///
    /// # Errors
    /// [`Refusal::Fields`], which quotes nothing.
    pub fn of(json: &Value) -> Result<Self, Refusal> {
        let errors = payload::check::<Self>(json);
        if !errors.is_empty() {
            return Err(Refusal::Fields(errors));
        }
        let undecodable = |_| FieldError::new("$", "schema", "does not decode");
        Self::deserialize(json).map_err(|error| Refusal::Fields(vec![undecodable(error)]))
    }
}

/// The schema of [`Confirmation`], for [`payload::check`].
pub(super) fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((Confirmation::name().into_owned(), Confirmation::schema()));
}

/// Something of this patient's, as it is kept.
///
/// # Errors
/// The database's.
pub async fn read(
    tx: &Transaction<'_>,
    patient_id: Uuid,
    kind: EntityKind,
    id: Uuid,
) -> Result<Option<Record>, Error> {
    store::read(tx.client(), patient_id, kind, id).await
}

/// Puts a new approval in force, in the caller's transaction. Once more changes nothing.
///
/// # Errors
/// The database's.
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
