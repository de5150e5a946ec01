//! Owns the shapes of signed contents. The schema prescribes only the fields that the jobs use to decide. All
//! other fields are stored as they were signed.

use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::entity::{EntityKind, EntityStatus};

/// A signed content of one shape.
pub(crate) trait Content: ToSchema {
    /// The kind of the content's root.
    const ROOT: EntityKind;
    /// The field that holds the root. `None` if the whole content is the root.
    const ROOT_FIELD: Option<&'static str> = None;
    /// The fields that hold the entities below the root.
    const LISTS: &'static [(&'static str, EntityKind)] = &[];
}

/// One entity of a package. Other fields are stored but not checked.
#[derive(Deserialize, ToSchema)]
pub struct PackageItem {
    /// Its id.
    pub id: Uuid,
    /// Its state. The default is the initial state of its kind.
    #[serde(default)]
    pub status: Option<EntityStatus>,
}

/// The encounter that a package is about.
#[derive(Deserialize, ToSchema)]
pub struct Encounter {
    /// Its id.
    pub id: Uuid,
    /// Its state. The default is `finished`.
    #[serde(default)]
    pub status: Option<EntityStatus>,
    /// The episode of care it belongs to.
    pub episode: Uuid,
}

/// A package: an entity with lists of entities below it.
macro_rules! package {
    ($(#[$attr:meta])* $name:ident { $field:ident: $root:ident, $($list:ident: [$kind:ident]),+ }) => {
        $(#[$attr])*
        #[derive(ToSchema, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "read as a schema; the entities stay JSON")]
        pub struct $name {
            $field: $root,
            $(#[serde(default)] $list: Vec<PackageItem>),+
        }

        impl Content for $name {
            const ROOT: EntityKind = EntityKind::$root;
            const ROOT_FIELD: Option<&'static str> = Some(stringify!($field));
            const LISTS: &'static [(&'static str, EntityKind)] =
                &[$((stringify!($list), EntityKind::$kind)),+];
        }
    };
}

package! {
    /// An encounter and everything that was recorded during it.
    EncounterPackage {
        encounter: Encounter,
        conditions: [Condition],
        observations: [Observation],
        immunizations: [Immunization],
        allergy_intolerances: [AllergyIntolerance],
        risk_assessments: [RiskAssessment],
        devices: [Device],
        medication_statements: [MedicationStatement],
        diagnostic_reports: [DiagnosticReport]
    }
}

package! {
    /// A diagnostic report with its observations.
    DiagnosticReportPackage {
        diagnostic_report: DiagnosticReport,
        observations: [Observation]
    }
}

/// The result of an examination.
#[derive(Deserialize, ToSchema)]
pub struct DiagnosticReport {
    /// Its id.
    pub id: Uuid,
    /// Its state. The default is `final`.
    #[serde(default)]
    pub status: Option<EntityStatus>,
    /// The employee who recorded it. This employee has to sign it.
    pub recorded_by: Uuid,
}

/// A procedure that was carried out.
#[derive(Deserialize, ToSchema)]
pub struct Procedure {
    /// Its id.
    pub id: Uuid,
    /// Its state. The default is `completed`.
    #[serde(default)]
    pub status: Option<EntityStatus>,
}

impl Content for Procedure {
    const ROOT: EntityKind = EntityKind::Procedure;
}

/// A service that is requested.
#[derive(Deserialize, ToSchema)]
pub struct ServiceRequest {
    /// Its id.
    pub id: Uuid,
    /// Its state. The default is `active`.
    #[serde(default)]
    pub status: Option<EntityStatus>,
    /// The employee who requests it. This employee has to sign it.
    pub requester_employee: Uuid,
}

impl Content for ServiceRequest {
    const ROOT: EntityKind = EntityKind::ServiceRequest;
}
