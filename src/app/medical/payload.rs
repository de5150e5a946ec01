//! Owns what a producer may ask for: the payloads of the 21 kinds, their schemas,
//! and the list of everything that is wrong with a bad one.
//!
//! The surprise: a payload is checked against the very schema that is published for it, so what the
//! interface promises and what it accepts cannot differ. Serde comes second, for the types.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, OneOfBuilder, Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::schema::{self, FieldError};
use super::value::{
    AccessLevel, CompletedWith, EpisodeCancellation, EpisodeChange, EpisodeClosing, EpisodeStatus,
    Period, Resource, Visit,
};

/// What every job says of itself, whatever its kind.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// The producer's own id of the request, for tracing; no part of the job's identity (E2).
    pub request_id: &'a str,
    /// Whose data the job is about; jobs of one patient are handled in order (E5).
    pub patient_id: Uuid,
    /// Who asks. Also the employee who signs, see [`super::content`].
    pub user_id: Uuid,
    /// The legal entity on whose behalf the user asks: "own organization".
    pub client_id: Uuid,
}

/// A payload of one of the 21 kinds.
pub trait Job: Serialize + DeserializeOwned + ToSchema + Send + Sync + 'static {
    /// The kind, as it stands in the queue and in the address of the interface.
    const KIND: &'static str;

    /// The fields that all kinds have.
    fn common(&self) -> Common<'_>;

    /// Base64 of a signed content, if it has one.
    fn signed_data(&self) -> Option<&str>;
}

/// A payload that passed every check, ready for [`super::submit`].
#[derive(Debug, Clone)]
pub struct ValidJob {
    /// Its kind.
    pub kind: &'static str,
    pub(super) request_id: String,
    pub(super) patient_id: Uuid,
    pub(super) user_id: Uuid,
    pub(super) client_id: Uuid,
    pub(super) payload: Box<RawValue>,
}

/// Why there is no job.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// None of the 21 has this kind.
    UnknownKind,
    /// All that is wrong with the payload, in its own order.
    Fields(Vec<FieldError>),
}

/// Of all the fields the one of this name.
macro_rules! signed_data {
    ($job:ident: signed_data $($others:ident)*) => { Some(&$job.signed_data) };
    ($job:ident: $other:ident $($others:ident)*) => { signed_data!($job: $($others)*) };
    ($job:ident:) => { None };
}

macro_rules! jobs {
    ($($(#[$attr:meta])* $name:ident = $kind:literal {
        $($(#[$field_attr:meta])* $field:ident: $type:ty),* $(,)?
    })+) => {
        /// The 21 kinds, in the order of the seed's table.
        pub const KINDS: &[&str] = &[$($kind),+];

        $(
        $(#[$attr])*
        #[derive(Clone, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The producer's own id of the request, for tracing.
            #[schema(min_length = 1, max_length = 100)]
            pub request_id: String,
            /// Whose data the job is about.
            pub patient_id: Uuid,
            /// Who asks.
            pub user_id: Uuid,
            /// The legal entity on whose behalf the user asks.
            pub client_id: Uuid,
            $($(#[$field_attr])* pub $field: $type),*
        }

        /// Shows no field: most of them are about a patient.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }

        impl Job for $name {
            const KIND: &'static str = $kind;

            fn common(&self) -> Common<'_> {
                Common {
                    request_id: &self.request_id,
                    patient_id: self.patient_id,
                    user_id: self.user_id,
                    client_id: self.client_id,
                }
            }

            fn signed_data(&self) -> Option<&str> {
                signed_data!(self: $($field)*)
            }
        }
        )+

        /// Checks a payload from outside (E1): all that is wrong with it, not only the first.
        ///
        /// # Errors
        /// See [`Refusal`]. No message quotes the payload.
        pub fn validate(kind: &str, payload: &Value) -> Result<ValidJob, Refusal> {
            match kind {
                $($kind => validate_as::<$name>(payload),)+
                _ => Err(Refusal::UnknownKind),
            }
        }

        /// The name of a kind's payload among [`schemas`].
        #[must_use]
        pub fn schema_name(kind: &str) -> Option<&'static str> {
            match kind {
                $($kind => Some(stringify!($name)),)+
                _ => None,
            }
        }

        /// Every schema by name: the 21 payloads, the signed contents and all they are made of.
        #[must_use]
        pub fn schemas() -> BTreeMap<String, RefOr<Schema>> {
            let mut schemas = Vec::new();
            $(
            schemas.push((<$name>::name().into_owned(), <$name>::schema()));
            <$name>::schemas(&mut schemas);
            )+
            super::content::schemas(&mut schemas);
            super::record::schemas(&mut schemas);
            with_exclusion(schemas.into_iter().collect())
        }
    };
}

jobs! {
    /// Lets somebody see or change some of the patient's data, once the patient agrees.
    ApprovalCreateJob = "approval_create_job" {
        /// The new approval's id.
        id: Uuid,
        /// What access is given to; either this or `service_request`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(min_items = 1, max_items = 50, nullable = false)]
        resources: Option<Vec<Resource>>,
        /// The service request whose resources access is given to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        service_request: Option<Uuid>,
        /// The employee who gets access.
        granted_to: Uuid,
        /// What the access is good for.
        access_level: AccessLevel,
    }
    /// Sends the one-time password of a new approval again.
    ApprovalResendJob = "approval_resend_job" {
        /// The approval.
        id: Uuid,
    }
    /// Marks parts of a diagnostic report package as entered in error.
    DiagnosticReportPackageCancelJob = "diagnostic_report_package_cancel_job" {
        /// Base64 of the signed package: as stored, but for the parts that are `entered_in_error`.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Stores a diagnostic report with its observations.
    DiagnosticReportPackageCreateJob = "diagnostic_report_package_create_job" {
        /// Base64 of the signed package: JSON with `diagnostic_report` and `observations`.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Marks an episode of care as entered in error.
    EpisodeCancelJob = "episode_cancel_job" {
        /// The episode.
        id: Uuid,
        /// Why.
        request_params: EpisodeCancellation,
    }
    /// Closes an episode of care, and the referrals it was opened for.
    EpisodeCloseJob = "episode_close_job" {
        /// The episode.
        id: Uuid,
        /// When and why.
        request_params: EpisodeClosing,
    }
    /// Opens an episode of care.
    EpisodeCreateJob = "episode_create_job" {
        /// The new episode's id.
        id: Uuid,
        /// What people call it.
        #[schema(min_length = 1, max_length = 1000)]
        name: String,
        /// What kind of care it is, a code.
        #[schema(min_length = 1, max_length = 100)]
        r#type: String,
        /// How it begins.
        status: EpisodeStatus,
        /// The legal entity that is in charge of it.
        managing_organization: Uuid,
        /// When it began.
        period: Period,
        /// The employee who is in charge of it.
        care_manager: Uuid,
        /// The service requests it is an answer to.
        #[schema(max_items = 50)]
        referral_requests: Vec<Uuid>,
    }
    /// Changes an episode's name and care manager.
    EpisodeUpdateJob = "episode_update_job" {
        /// The episode.
        id: Uuid,
        /// What it is to be from now on.
        request_params: EpisodeChange,
    }
    /// Marks parts of an encounter package as entered in error.
    PackageCancelJob = "package_cancel_job" {
        /// Base64 of the signed package: as stored, but for the parts that are `entered_in_error`.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Stores an encounter and all that was found and done at it.
    PackageCreateJob = "package_create_job" {
        /// The visit it was part of.
        visit: Visit,
        /// Base64 of the signed package: JSON with `encounter` and lists of what belongs to it.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Marks a procedure as entered in error.
    ProcedureCancelJob = "procedure_cancel_job" {
        /// The procedure.
        id: Uuid,
        /// Base64 of the signed procedure: as stored, but for status and its reasons.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Stores a procedure.
    ProcedureCreateJob = "procedure_create_job" {
        /// Base64 of the signed procedure, JSON.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Marks a service request as entered in error and tells the patient.
    ServiceRequestCancelJob = "service_request_cancel_job" {
        /// The service request.
        service_request_id: Uuid,
        /// Base64 of the signed service request.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Completes a service request whose episode was closed.
    ServiceRequestCloseJob = "service_request_close_job" {
        /// The service request.
        id: Uuid,
    }
    /// Completes a service request with what came of it.
    ServiceRequestCompleteJob = "service_request_complete_job" {
        /// The service request.
        service_request_id: Uuid,
        /// What came of it.
        completed_with: CompletedWith,
        /// Why it is complete.
        #[schema(min_length = 1, max_length = 1000)]
        status_reason: String,
    }
    /// Stores a service request.
    ServiceRequestCreateJob = "service_request_create_job" {
        /// Base64 of the signed service request, JSON.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Begins the service asked for.
    ServiceRequestProcessJob = "service_request_process_job" {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Takes a service request back and tells the patient.
    ServiceRequestRecallJob = "service_request_recall_job" {
        /// The service request.
        service_request_id: Uuid,
        /// Base64 of the signed service request, as stored.
        #[schema(min_length = 1, max_length = 1_000_000)]
        signed_data: String,
    }
    /// Gives a service request free for others to use.
    ServiceRequestReleaseJob = "service_request_release_job" {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Sends the patient the message about a service request again.
    ServiceRequestResendJob = "service_request_resend_job" {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Takes a service request on.
    ServiceRequestUseJob = "service_request_use_job" {
        /// The service request.
        service_request_id: Uuid,
        /// The employee who takes it on.
        used_by_employee: Uuid,
        /// The legal entity that takes it on.
        used_by_legal_entity: Uuid,
    }
}

static SCHEMAS: LazyLock<schema::Schemas> = LazyLock::new(|| schema::Schemas::of(schemas()));

/// Everything that is wrong with `value` as a `T`.
pub(super) fn check<T: ToSchema>(value: &Value) -> Vec<FieldError> {
    SCHEMAS.check(&T::name(), value)
}

fn validate_as<T: Job>(payload: &Value) -> Result<ValidJob, Refusal> {
    let errors = check::<T>(payload);
    if !errors.is_empty() {
        return Err(Refusal::Fields(errors));
    }
    // What the schema lets pass, serde takes: a test holds the two together.
    let undecodable = || FieldError::new("$", "schema", "does not decode");
    serde_json::from_value(payload.clone())
        .ok()
        .and_then(|job: T| ValidJob::of(&job).ok())
        .ok_or_else(|| Refusal::Fields(vec![undecodable()]))
}

impl ValidJob {
    /// A job made by the program itself.
    ///
    /// # Errors
    /// When the payload's `Serialize` fails.
    pub fn of<T: Job>(job: &T) -> Result<Self, serde_json::Error> {
        let Common {
            request_id,
            patient_id,
            user_id,
            client_id,
        } = job.common();
        Ok(Self {
            kind: T::KIND,
            request_id: request_id.to_owned(),
            patient_id,
            user_id,
            client_id,
            payload: to_raw_value(job)?,
        })
    }
}

/// An approval is for resources or for a service request: the one rule that no derive can say.
fn with_exclusion(mut schemas: BTreeMap<String, RefOr<Schema>>) -> BTreeMap<String, RefOr<Schema>> {
    let needs = |field: &str| ObjectBuilder::new().required(field);
    let either = OneOfBuilder::new()
        .item(needs("resources"))
        .item(needs("service_request"));
    if let Some(schema) = schemas.get_mut(&*ApprovalCreateJob::name()) {
        let both = AllOfBuilder::new().item(schema.clone()).item(either);
        *schema = both.into();
    }
    schemas
}

#[cfg(test)]
pub(in crate::app) mod tests {
    use serde_json::json;

    use super::*;

    /// A good payload of a kind.
    pub(in crate::app) fn sample(kind: &str) -> Value {
        let id = Uuid::nil();
        let mut payload =
            json!({"request_id": "r", "patient_id": id, "user_id": id, "client_id": id});
        let own = match kind {
            "approval_create_job" => json!({"id": id, "service_request": id, "granted_to": id,
                "access_level": "read"}),
            "episode_create_job" => json!({"id": id, "name": "Episode 1", "type": "primary_care",
                "status": "active", "managing_organization": id, "period": {"start": "2027-01-11"},
                "care_manager": id, "referral_requests": [id]}),
            "episode_update_job" => {
                json!({"id": id, "request_params": {"name": "Episode 1", "care_manager": id}})
            }
            "episode_close_job" => json!({"id": id, "request_params": {"status_reason": "cured",
                "period": {"end": "2027-01-12"}, "closing_summary": "Summary"}}),
            "episode_cancel_job" => json!({"id": id, "request_params": {"status_reason": "mistake",
                "explanatory_letter": "Letter"}}),
            "package_create_job" => json!({"signed_data": "e30=",
                "visit": {"id": id, "period": {"start": "2027-01-11", "end": "2027-01-11"}}}),
            "procedure_cancel_job" => json!({"id": id, "signed_data": "e30="}),
            "service_request_use_job" => json!({"service_request_id": id, "used_by_employee": id,
                "used_by_legal_entity": id}),
            "service_request_complete_job" => json!({"service_request_id": id,
                "completed_with": {"entity": "procedure", "id": id}, "status_reason": "done"}),
            "service_request_recall_job" | "service_request_cancel_job" => {
                json!({"service_request_id": id, "signed_data": "e30="})
            }
            "service_request_process_job"
            | "service_request_release_job"
            | "service_request_resend_job" => json!({"service_request_id": id}),
            "approval_resend_job" | "service_request_close_job" => json!({"id": id}),
            _ => json!({"signed_data": "e30="}),
        };
        for (name, field) in own.as_object().into_iter().flatten() {
            payload[name] = field.clone();
        }
        payload
    }

    #[test]
    fn e1_a_good_payload_is_stored_as_it_was_and_every_missing_field_is_told() {
        for kind in KINDS {
            let good = sample(kind);
            let job = validate(kind, &good).unwrap_or_else(|refusal| panic!("{kind}: {refusal:?}"));
            let stored: Value = serde_json::from_str(job.payload.get()).unwrap();
            assert_eq!(stored, good, "{kind}");
            for field in good.as_object().unwrap().keys() {
                let mut bad = good.clone();
                bad.as_object_mut().unwrap().remove(field);
                let Err(Refusal::Fields(errors)) = validate(kind, &bad) else {
                    panic!("{kind} without {field}")
                };
                assert_eq!(errors.len(), 1, "{kind} without {field}: {errors:?}");
            }
        }
    }

    #[test]
    fn a_payloads_debug_text_shows_none_of_it() {
        let payload: EpisodeCreateJob =
            serde_json::from_value(sample("episode_create_job")).unwrap();
        assert_eq!(format!("{payload:?}"), "EpisodeCreateJob { .. }");
    }
}
