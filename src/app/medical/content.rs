//! Owns the shapes of signed contents. The schema prescribes only the fields by which the jobs decide. All
//! other fields are stored as they were signed.

use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::entity::{EntityKind, EntityStatus};
use super::value::Date;

/// A signed content of one shape.
pub(crate) trait Content: ToSchema {
    /// The kind of the content's root.
    const ROOT: EntityKind;
    /// The field that holds the root. `None` if the whole content is the root.
    const ROOT_FIELD: Option<&'static str> = None;
    /// The fields that hold the entities below the root.
    const LISTS: &'static [(&'static str, EntityKind)] = &[];
}

/// An entity: the fields that the jobs look at. Other fields are stored but not checked.
macro_rules! entity {
    ($(#[$attr:meta])* $name:ident { $($(#[$field_attr:meta])* $field:ident: $type:ty),* }) => {
        $(#[$attr])*
        #[derive(Deserialize, ToSchema)]
        pub struct $name {
            /// Its id.
            pub id: Uuid,
            /// Its state. The default is the initial state of its kind.
            #[serde(default)]
            pub status: Option<EntityStatus>,
            /// The patient whom it is about: that of the job. A new entity needs it.
            #[serde(default)]
            pub subject: Option<Uuid>,
            /// What it is, as a code. A new entity needs it.
            #[serde(default)]
            #[schema(min_length = 1, max_length = 100)]
            pub code: Option<String>,
            /// The day on which it happened or was found, not in the future. A new entity needs it.
            #[serde(default)]
            pub date: Option<Date>,
            $($(#[$field_attr])* pub $field: $type),*
        }
    };
}

entity! {
    /// One entity of a package.
    PackageItem {}
}

entity! {
    /// The encounter that a package is about.
    Encounter {
        /// The episode of care it belongs to.
        episode: Uuid
    }
}

entity! {
    /// The result of an examination.
    DiagnosticReport {
        /// The employee who recorded it. This employee has to sign it.
        recorded_by: Uuid
    }
}

entity! {
    /// A procedure that was carried out.
    Procedure {
        /// The employee who recorded it. This employee has to sign a new procedure.
        #[serde(default)]
        recorded_by: Option<Uuid>
    }
}

entity! {
    /// A service that is requested.
    ServiceRequest {
        /// The employee who requests it. This employee has to sign it.
        requester_employee: Uuid
    }
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

impl Content for Procedure {
    const ROOT: EntityKind = EntityKind::Procedure;
}

impl Content for ServiceRequest {
    const ROOT: EntityKind = EntityKind::ServiceRequest;
}
