//! Owns the entities stored for a patient: their kinds, the states each kind can have, and the
//! conditions that jobs require. It contains neither SQL nor jobs.

use std::fmt;

use serde::de::IntoDeserializer;
use serde::de::value::{Error as Unknown, StrDeserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tidegate::HandlerError;
use utoipa::ToSchema;
use uuid::Uuid;

/// A kind of entity that is stored for a patient.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EntityKind {
    /// A course of care for one problem.
    Episode,
    /// One contact between a patient and a caregiver.
    Encounter,
    /// A diagnosis or complaint.
    Condition,
    /// A measurement or finding.
    Observation,
    /// A vaccination.
    Immunization,
    /// An allergy or intolerance.
    AllergyIntolerance,
    /// A risk assessment.
    RiskAssessment,
    /// A device in use.
    Device,
    /// A medicine that the patient takes.
    MedicationStatement,
    /// The result of an examination.
    DiagnosticReport,
    /// A procedure that was carried out.
    Procedure,
    /// A requested service.
    ServiceRequest,
    /// Access that was granted to an employee.
    Approval,
}

/// A state of an entity. A check constraint of the table defines which states each kind can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntityStatus {
    /// Waits for the patient's consent.
    New,
    /// In effect.
    Active,
    /// Ended as planned.
    Closed,
    /// Ended, and its record is complete.
    Finished,
    /// Recorded.
    Valid,
    /// Released.
    Final,
    /// In progress.
    InProgress,
    /// Completed.
    Completed,
    /// Recalled by the client that requested it.
    Recalled,
    /// Entered by mistake.
    EnteredInError,
}

impl EntityKind {
    /// The state of a new entity of this kind.
    pub(super) fn initial(self) -> EntityStatus {
        match self {
            Self::Encounter => EntityStatus::Finished,
            Self::Observation => EntityStatus::Valid,
            Self::Immunization | Self::Procedure => EntityStatus::Completed,
            Self::RiskAssessment | Self::DiagnosticReport => EntityStatus::Final,
            Self::Approval => EntityStatus::New,
            Self::Episode
            | Self::Condition
            | Self::AllergyIntolerance
            | Self::Device
            | Self::MedicationStatement
            | Self::ServiceRequest => EntityStatus::Active,
        }
    }

    /// Returns the kind with this plural, as it appears in [`EntityKind::href`].
    #[must_use]
    pub fn of_plural(plural: &str) -> Option<Self> {
        let name: StrDeserializer<'_, Unknown> = plural.strip_suffix('s')?.into_deserializer();
        Self::deserialize(name).ok()
    }

    /// Returns the path of the entity: `/patients/…/episodes/…`.
    #[must_use]
    pub fn href(self, patient_id: Uuid, id: Uuid) -> String {
        format!("/patients/{patient_id}/{self}s/{id}")
    }
}

/// The name that the database stores.
impl fmt::Display for EntityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The name that the database stores.
impl fmt::Display for EntityStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A stored entity.
#[derive(Deserialize)]
pub(super) struct Entity {
    pub kind: EntityKind,
    pub id: Uuid,
    pub status: EntityStatus,
    /// The legal entity that created it.
    pub organization_id: Uuid,
    /// The content that was requested or signed when the entity was created.
    pub content: Value,
    /// Facts that later jobs have added.
    pub facts: Value,
    /// Whether it has expired, by the database's clock. Only service requests expire.
    pub expired: bool,
}

impl Entity {
    pub(super) fn is(&self, status: EntityStatus) -> bool {
        self.status == status
    }

    /// Requires one of these states.
    ///
    /// # Errors
    /// 409 if the entity is in another state.
    pub(super) fn must_be(&self, allowed: &[EntityStatus]) -> Result<(), HandlerError> {
        let Self { kind, status, .. } = self;
        let names: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let needed = format!("the {kind} is {status}, needed is {}", names.join(" or "));
        demand(allowed.contains(status), conflict(needed))
    }

    /// Whether this legal entity uses the service request.
    pub(super) fn is_used_by(&self, client_id: Uuid) -> bool {
        self.facts["used_by_legal_entity"] == json!(client_id)
    }

    /// Whether it belongs to this legal entity, or is used by it.
    pub(super) fn serves(&self, client_id: Uuid) -> bool {
        self.organization_id == client_id || self.is_used_by(client_id)
    }

    /// Requires that the entity has not expired.
    ///
    /// # Errors
    /// 409 if it has expired.
    pub(super) fn must_not_be_expired(&self) -> Result<(), HandlerError> {
        let expired = format!("the {} has expired", self.kind);
        demand(!self.expired, conflict(expired))
    }

    /// Requires that the content equals the stored one, except for the status and its reasons.
    ///
    /// # Errors
    /// 409 if any other field differs.
    pub(super) fn must_equal(&self, content: &Value) -> Result<(), HandlerError> {
        let differs = format!("the content of the {} is not the stored one", self.kind);
        demand(same_but_status(&self.content, content), conflict(differs))
    }
}

/// The fields that a cancellation may change.
const STATUS_FIELDS: [&str; 3] = ["status", "status_reason", "explanatory_letter"];

fn same_but_status(stored: &Value, given: &Value) -> bool {
    let bare = |value: &Value| {
        let mut value = value.clone();
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| !STATUS_FIELDS.contains(&name.as_str()));
        }
        value
    };
    same(&bare(stored), &bare(given))
}

/// Compares two values as JSON. The database may write a number differently than it was given: 1e2
/// becomes 100.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let both = one.as_f64().zip(other.as_f64());
            one == other || both.is_some_and(|(one, other)| one.total_cmp(&other).is_eq())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(name, one)| other.get(name).is_some_and(|other| same(one, other));
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}

/// Requires a condition.
///
/// # Errors
/// `error`, if the condition does not hold.
pub(super) fn demand(holds: bool, error: HandlerError) -> Result<(), HandlerError> {
    if holds { Ok(()) } else { Err(error) }
}

/// An expected error: the request conflicts with the stored data.
pub(super) fn conflict(message: impl fmt::Display) -> HandlerError {
    HandlerError::reject("409", message)
}

/// An expected error: the requested entity does not exist.
pub(super) fn not_found(what: impl fmt::Display) -> HandlerError {
    HandlerError::reject("404", format!("{what} not found"))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_interface() {
        for (kind, name, plural) in [
            (EntityKind::Episode, "episode", "episodes"),
            (
                EntityKind::AllergyIntolerance,
                "allergy_intolerance",
                "allergy_intolerances",
            ),
            (
                EntityKind::ServiceRequest,
                "service_request",
                "service_requests",
            ),
        ] {
            assert_eq!(kind.to_string(), name);
            assert_eq!(
                kind.href(Uuid::nil(), Uuid::nil()).split('/').nth(3),
                Some(plural)
            );
            assert_eq!(EntityKind::of_plural(plural), Some(kind));
        }
        for none in ["episode", "episodess", "Episodes", "s", "", "jobs"] {
            assert_eq!(EntityKind::of_plural(none), None, "{none}");
        }
        assert_eq!(EntityStatus::EnteredInError.to_string(), "entered_in_error");
    }

    #[test]
    fn contents_are_compared_without_their_status_and_numbers_by_value() {
        let stored = json!({"id": 1, "status": "final", "value": {"n": 100, "list": [1, 2]}});
        let given = json!({"id": 1, "status": "entered_in_error", "status_reason": "x",
            "explanatory_letter": "y", "value": {"list": [1, 2.0], "n": 1e2}});
        assert!(same_but_status(&stored, &given));
        for other in [
            json!({"id": 1, "value": {"n": 101, "list": [1, 2]}}),
            json!({"id": 1, "value": {"n": 100, "list": [2, 1]}}),
            json!({"id": 1, "value": {"n": 100, "list": [1, 2], "status": "inner"}}),
        ] {
            assert!(!same_but_status(&stored, &other), "{other}");
        }
    }
}
