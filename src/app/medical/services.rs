//! Owns the calls of the medical jobs to other systems, one method for each call. [`HttpService`] decides how
//! a call fails. This module decides what that means for a job.

use serde_json::json;
use tidegate::{Error, HandlerError, Lookup};
use uuid::Uuid;

use super::verdict::fault;
use crate::app::client::{HttpClient, HttpService};

/// The service that sends and resends one-time passwords.
pub const OTP: &str = "otp";
/// The service that sends text messages.
pub const SMS: &str = "sms";
/// The service that verifies electronic signatures.
pub const SIGNATURE: &str = "signature";

/// The three services.
#[derive(Debug, Clone)]
pub struct Services {
    otp: HttpService,
    sms: HttpService,
    signature: HttpService,
    /// Whether signed jobs are done without a look at their signatures.
    unverified: bool,
}

/// A notification for a patient. The services know the phone number; no number or name passes through here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// A one-time password that confirms an approval.
    Otp(Uuid),
    /// A message about a service request.
    Sms(Uuid, &'static str),
}

impl Services {
    /// Reads `OTP_URL`, `SMS_URL`, `SIGNATURE_URL` and `SIGNATURES`. Without a URL, the jobs that need the
    /// service wait and report the missing setting. With `SIGNATURES=unverified`, nobody verifies signatures.
    ///
    /// # Errors
    /// [`Error::Config`] if a URL is malformed, or `SIGNATURES` is another word.
    pub fn from_settings(lookup: Lookup<'_>, http: &HttpClient) -> Result<Self, Error> {
        let service = |name, variable| HttpService::from_setting(name, variable, lookup, http);
        let unverified = match lookup("SIGNATURES").as_deref() {
            None | Some("verified") => false,
            Some("unverified") => true,
            Some(other) => {
                let must = "SIGNATURES: must be verified or unverified";
                return Err(Error::Config(format!("{must}, got {other:?}")));
            }
        };
        let mut signature = service(SIGNATURE, "SIGNATURE_URL")?;
        signature.judges = true;
        Ok(Self {
            unverified,
            otp: service(OTP, "OTP_URL")?,
            sms: service(SMS, "SMS_URL")?,
            signature,
        })
    }

    /// Notifies the patient. That a message cannot be sent is the system's fault, never the user's (4xx), so
    /// the job is tried again.
    pub(super) async fn tell(
        &self,
        call: Call,
        patient_id: Uuid,
        key: &str,
    ) -> Result<(), HandlerError> {
        // The key makes the reference unique to this job, so a resend that a user requests is sent.
        let (service, path, reference) = match call {
            Call::Otp(id) => (&self.otp, "verifications", format!("approval/{id}/{key}")),
            Call::Sms(id, about) => {
                let reference = format!("service_request/{id}/{about}/{key}");
                (&self.sms, "messages", reference)
            }
        };
        let body = json!({"reference": reference, "patient_id": patient_id});
        service.tell(path, key, &body).await
    }

    /// What the settings give up, for the log and the doctor.
    pub(in crate::app) fn warnings(&self) -> Vec<&'static str> {
        let unverified = "signatures of medical jobs are not verified: SIGNATURES=unverified";
        Vec::from_iter(self.unverified.then_some(unverified))
    }

    pub(super) fn verify_signatures(&self) -> bool {
        !self.unverified
    }

    /// Verifies that this user signed the data.
    ///
    /// # Errors
    /// A rejection with 422 if the service refuses the signature. If the service cannot be reached or refuses
    /// our credentials, this is not the user's fault: the job waits.
    pub(super) async fn verify(
        &self,
        signed_data: &str,
        signer: Uuid,
        key: &str,
    ) -> Result<(), HandlerError> {
        let body = json!({"reference": key, "signed_data": signed_data, "signer": signer});
        let answer = self.signature.tell("verifications", key, &body).await;
        answer.map_err(|error| {
            if !error.is_rejection() {
                return error;
            }
            let needed = "a valid signature of the user is needed";
            fault("$.signed_data", "signature", needed)
        })
    }
}
