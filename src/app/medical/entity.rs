//! Owns what is kept of a patient: the kinds of entities and the states each of them can be in.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is kept of a patient.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EntityKind {
    /// A course of care for one problem.
    Episode,
    /// One contact of patient and care giver.
    Encounter,
    /// A diagnosis or complaint.
    Condition,
    /// A measurement or finding.
    Observation,
    /// A vaccination.
    Immunization,
    /// An allergy or intolerance.
    AllergyIntolerance,
    /// An assessment of a risk.
    RiskAssessment,
    /// A device in use.
    Device,
    /// A medicine that is taken.
    MedicationStatement,
    /// The result of an examination.
    DiagnosticReport,
    /// Something that was done.
    Procedure,
    /// Something that is asked for.
    ServiceRequest,
    /// Access that was given to somebody.
    Approval,
}
