//! Owns what a producer may request: the payloads of the 21 kinds, their schemas and events, the
//! confirmation of an approval, and the list of all faults of an invalid request.
//!
//! A payload is checked against the published schema itself, so the interface accepts exactly what
//! it promises. Serde decodes it afterwards, to get typed values.

use std::fmt;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::to_raw_value;
use tidegate::{NewEvent, dedup_key};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, OneOfBuilder};
use uuid::Uuid;

use super::authority::{Authority, Who};
use super::value::{
    AccessLevel, EpisodeCancellation, EpisodeChange, EpisodeClosing, EpisodeStatus, Period,
    Resource, Visit,
};
use super::{content, services};
use crate::app::schema::{Described, FieldError, Schemas, describe};

/// The fields that every job has, whatever its kind.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// The producer's own id of the request, for tracing. It is not part of the job's identity
    /// (E2).
    pub request_id: &'a str,
    /// The patient whose data the job changes. Jobs of one patient are handled in order (E5).
    pub patient_id: Uuid,
    /// The user who makes the request. This user is also the employee who signs, see
    /// [`super::content`].
    pub user_id: Uuid,
    /// The legal entity on whose behalf the user acts ("own organization").
    pub client_id: Uuid,
}

/// A payload of one of the 21 kinds.
pub trait Job: Serialize + DeserializeOwned + ToSchema + Send + Sync + 'static {
    /// The kind, as it appears in the queue and in the URL of the interface.
    const KIND: &'static str;

    /// Who may do it.
    const AUTHORITY: Authority;

    /// The external service that the job calls (A18). Jobs that verify a signature and notify the patient
    /// call two services and name the second one. A verified signature is not verified again.
    const SERVICE: Option<&'static str> = None;

    /// Returns the fields that all kinds have.
    fn common(&self) -> Common<'_>;

    /// Returns the base64 of the signed content, if the payload has one.
    fn signed_data(&self) -> Option<&str> {
        None
    }
}

/// The reason why no job was accepted.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// None of the 21 kinds has this name.
    UnknownKind,
    /// All faults of the payload, in the order of its fields.
    Fields(Vec<FieldError>),
}

macro_rules! jobs {
    ($($(#[$attr:meta])* $name:ident = $kind:literal for $who:ident $(else $code:literal)? $(calls $service:ident)? $(signs $signed:literal)? {
        $($(#[$field_attr:meta])* $field:ident: $type:ty),* $(,)?
    })+) => {
        /// The 21 kinds, in the order of the table of seed data.
        pub const KINDS: &[&str] = &[$($kind),+];

        /// Who may do a job of each kind.
        pub const AUTHORITIES: &[(&str, Authority)] = &[$(($kind, $name::AUTHORITY)),+];

        $(
        $(#[$attr])*
        #[derive(Clone, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The producer's own id of the request, for tracing.
            #[schema(min_length = 1, max_length = 100)]
            pub request_id: String,
            /// The patient whose data the job changes.
            pub patient_id: Uuid,
            /// The user who makes the request.
            pub user_id: Uuid,
            /// The legal entity on whose behalf the user acts.
            pub client_id: Uuid,
            $($(#[$field_attr])* pub $field: $type,)*
            $(
            #[doc = $signed]
            #[schema(min_length = 1, max_length = 1_000_000)]
            pub signed_data: String,
            )?
        }

        /// Prints no field, because most fields are about a patient.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }

        impl Job for $name {
            const KIND: &'static str = $kind;
            const AUTHORITY: Authority = Authority {
                who: Who::$who,
                code: [$(stringify!($code),)? "403"][0],
            };
            $(const SERVICE: Option<&'static str> = Some(services::$service);)?

            fn common(&self) -> Common<'_> {
                Common {
                    request_id: &self.request_id,
                    patient_id: self.patient_id,
                    user_id: self.user_id,
                    client_id: self.client_id,
                }
            }

            $(
            #[doc = $signed]
            fn signed_data(&self) -> Option<&str> {
                Some(&self.signed_data)
            }
            )?
        }
        )+

        /// Hands every kind and its payload to a macro.
        macro_rules! each_job {
            ($callback:ident) => { $callback! { $($(#[$attr])* $name = $kind;)+ } };
        }
        pub(super) use each_job;

        /// Checks a payload from outside (E1), and returns the event of its job, or all faults.
        ///
        /// # Errors
        /// See [`Refusal`]. No message quotes the payload.
        pub fn validate(kind: &str, payload: &Value) -> Result<NewEvent, Refusal> {
            match kind {
                $($kind => validate_as::<$name>(payload),)+
                _ => Err(Refusal::UnknownKind),
            }
        }

        /// Returns the name of a kind's payload in [`schemas`].
        #[must_use]
        pub fn schema_name(kind: &str) -> Option<&'static str> {
            match kind {
                $($kind => Some(stringify!($name)),)+
                _ => None,
            }
        }

        /// Returns every schema by name: the 21 payloads, the signed contents, and all their parts.
        #[must_use]
        pub fn schemas() -> Described {
            let mut schemas = Described::new();
            $(describe::<$name>(&mut schemas);)+
            describe::<content::EncounterPackage>(&mut schemas);
            describe::<content::DiagnosticReportPackage>(&mut schemas);
            describe::<content::Procedure>(&mut schemas);
            describe::<content::ServiceRequest>(&mut schemas);
            describe::<Confirmation>(&mut schemas);
            with_exclusion(schemas)
        }
    };
}

jobs! {
    /// Grants an employee access to some of the patient's data, once the patient agrees.
    ApprovalCreateJob = "approval_create_job" for Anyone calls OTP {
        /// The id of the new approval.
        id: Uuid,
        /// The resources that access is granted to. Either this field or `service_request` is
        /// required.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(min_items = 1, max_items = 50, nullable = false)]
        resources: Option<Vec<Resource>>,
        /// The service request whose resources access is granted to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        service_request: Option<Uuid>,
        /// The employee who gets access.
        granted_to: Uuid,
        /// The level of access.
        access_level: AccessLevel,
    }
    /// Sends the one-time password of a new approval again.
    ApprovalResendJob = "approval_resend_job" for Owner calls OTP {
        /// The approval.
        id: Uuid,
    }
    /// Marks parts of a diagnostic report package as entered in error.
    DiagnosticReportPackageCancelJob = "diagnostic_report_package_cancel_job" for Owner calls SIGNATURE
        signs "Base64 of the signed package: equal to the stored one, except for the parts marked `entered_in_error`." {}
    /// Stores a diagnostic report with its observations.
    DiagnosticReportPackageCreateJob = "diagnostic_report_package_create_job" for Signer else 409 calls SIGNATURE
        signs "Base64 of the signed package: JSON with `diagnostic_report` and `observations`." {}
    /// Marks an episode of care as entered in error.
    EpisodeCancelJob = "episode_cancel_job" for Owner else 409 {
        /// The episode.
        id: Uuid,
        /// Why.
        request_params: EpisodeCancellation,
    }
    /// Closes an episode of care, and the referrals it was opened for.
    EpisodeCloseJob = "episode_close_job" for Owner else 409 {
        /// The episode.
        id: Uuid,
        /// When and why.
        request_params: EpisodeClosing,
    }
    /// Opens an episode of care.
    EpisodeCreateJob = "episode_create_job" for Itself {
        /// The id of the new episode.
        id: Uuid,
        /// Its display name.
        #[schema(min_length = 1, max_length = 1000)]
        name: String,
        /// Code of the type of care.
        #[schema(min_length = 1, max_length = 100)]
        r#type: String,
        /// Its initial state.
        status: EpisodeStatus,
        /// The legal entity that manages it.
        managing_organization: Uuid,
        /// When it began.
        period: Period,
        /// The employee who manages it.
        care_manager: Uuid,
        /// The service requests that led to this episode.
        #[schema(max_items = 50)]
        referral_requests: Vec<Uuid>,
    }
    /// Changes an episode's name and care manager.
    EpisodeUpdateJob = "episode_update_job" for OwnerOrApproved {
        /// The episode.
        id: Uuid,
        /// The new values.
        request_params: EpisodeChange,
    }
    /// Marks parts of an encounter package as entered in error.
    PackageCancelJob = "package_cancel_job" for Owner calls SIGNATURE
        signs "Base64 of the signed package: equal to the stored one, except for the parts marked `entered_in_error`." {}
    /// Stores an encounter and everything that was recorded during it.
    PackageCreateJob = "package_create_job" for OwnerOrApproved calls SIGNATURE
        signs "Base64 of the signed package: JSON with `encounter` and lists of the entities that belong to it."
    {
        /// The visit it was part of.
        visit: Visit,
    }
    /// Marks a procedure as entered in error.
    ProcedureCancelJob = "procedure_cancel_job" for Owner else 409 calls SIGNATURE
        signs "Base64 of the signed procedure: equal to the stored one, except for the status and its reasons."
    {
        /// The procedure.
        id: Uuid,
    }
    /// Stores a procedure.
    ProcedureCreateJob = "procedure_create_job" for Signer calls SIGNATURE
        signs "Base64 of the signed procedure, JSON." {}
    /// Marks a service request as entered in error and notifies the patient.
    ServiceRequestCancelJob = "service_request_cancel_job" for Owner calls SMS
        signs "Base64 of the signed service request."
    {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Completes a service request whose episode was closed.
    ServiceRequestCloseJob = "service_request_close_job" for OwnerOrUser {
        /// The service request.
        id: Uuid,
    }
    /// Completes a service request and records its result.
    ServiceRequestCompleteJob = "service_request_complete_job" for User else 409 {
        /// The service request.
        service_request_id: Uuid,
        /// The result of the service request.
        completed_with: Resource,
        /// Reason for the completion.
        #[schema(min_length = 1, max_length = 1000)]
        status_reason: String,
    }
    /// Stores a service request.
    ServiceRequestCreateJob = "service_request_create_job" for Signer else 409 calls SIGNATURE
        signs "Base64 of the signed service request, JSON." {}
    /// Starts the requested service.
    ServiceRequestProcessJob = "service_request_process_job" for User else 409 {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Recalls a service request and notifies the patient.
    ServiceRequestRecallJob = "service_request_recall_job" for Owner calls SMS
        signs "Base64 of the signed service request, as stored."
    {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Releases a service request, so that another legal entity can use it.
    ServiceRequestReleaseJob = "service_request_release_job" for OwnerOrUser {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Sends the patient the message about a service request again.
    ServiceRequestResendJob = "service_request_resend_job" for Owner calls SMS {
        /// The service request.
        service_request_id: Uuid,
    }
    /// Assigns a service request to an employee and a legal entity.
    ServiceRequestUseJob = "service_request_use_job" for Itself {
        /// The service request.
        service_request_id: Uuid,
        /// The employee who provides the service.
        used_by_employee: Uuid,
        /// The legal entity that provides the service.
        used_by_legal_entity: Uuid,
    }
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
    /// The legal entity that checked the password. It must not be the one that asked for the approval.
    pub client_id: Uuid,
}

impl Confirmation {
    /// Checks a confirmation from outside and returns all its faults.
    ///
    /// # Errors
    /// [`Refusal::Fields`], which quotes nothing from the request.
    pub fn of(json: &Value) -> Result<Self, Refusal> {
        SCHEMAS.decode(json).map_err(Refusal::Fields)
    }
}

pub(super) static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::of(schemas()));

fn validate_as<T: Job>(payload: &Value) -> Result<NewEvent, Refusal> {
    let job: T = SCHEMAS.decode(payload).map_err(Refusal::Fields)?;
    let event = event_of(&job);
    event.map_err(|_| Refusal::Fields(vec![FieldError::new("$", "schema", "does not encode")]))
}

/// Builds the event of a job. All jobs of a patient are in one group (E5). The request's id is the
/// correlation id.
///
/// If an equal job is pending, a publish returns the id of that job (E2, E3). Two jobs are equal if kind,
/// parameters, user, client and patient are equal. The time and the request's id do not matter.
pub(super) fn event_of<T: Job>(job: &T) -> Result<NewEvent, serde_json::Error> {
    let common = job.common();
    let event = NewEvent::raw(T::KIND, Some(to_raw_value(job)?))
        .group(group(common.patient_id))
        .correlation(common.request_id);
    let mut parameters = serde_json::to_value(job)?;
    if let Some(fields) = parameters.as_object_mut() {
        fields.remove("request_id");
    }
    let who = [common.user_id, common.client_id, common.patient_id].map(|id| id.to_string());
    let who = who.each_ref().map(String::as_str);
    Ok(event.dedup(dedup_key(T::KIND, &parameters, &who)?))
}

/// Returns the group of a patient's jobs. The jobs of a group are handled in order (E5).
#[must_use]
pub fn group(patient_id: Uuid) -> String {
    format!("patient:{patient_id}")
}

/// Adds the rule that an approval has either resources or a service request. No derive can express
/// this rule.
fn with_exclusion(mut schemas: Described) -> Described {
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

    /// Returns a valid payload of a kind.
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
            let event = validate(kind, &good);
            let event = event.unwrap_or_else(|refusal| panic!("{kind}: {refusal:?}"));
            assert_eq!(json!(event)["payload"], good, "{kind}");
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
