//! Owns what the medical jobs say to other systems, one method a call. How a call fails is
//! [`HttpService`]'s business; what that means for a job is decided here.

use serde_json::{Value, json};
use uuid::Uuid;

use super::schema::FieldError;
use super::verdict::invalid;
use crate::app::client::{HttpClient, HttpService};
use tidegate::{Error, HandlerError};

/// Starts and repeats one-time passwords.
pub const OTP: &str = "otp";
/// Sends text messages.
pub const SMS: &str = "sms";
/// Verifies electronic signatures.
pub const SIGNATURE: &str = "signature";

/// The three services.
#[derive(Debug, Clone)]
pub struct Services {
    otp: HttpService,
    sms: HttpService,
    signature: HttpService,
}

/// What a patient is to be told. The services know where; no number or name passes through here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// A one-time password that confirms an approval.
    Otp(Uuid),
    /// A message about a service request.
    Sms(Uuid, &'static str),
}

impl Services {
    /// Reads `OTP_URL`, `SMS_URL` and `SIGNATURE_URL`.
    ///
    /// # Errors
    /// [`Error::Config`] when one is malformed. Without the first two the jobs that need them wait
    /// and say so; without the third no signature is verified.
    pub fn from_settings(
        setting: impl Fn(&str) -> Option<String>,
        http: &HttpClient,
    ) -> Result<Self, Error> {
        let service =
            |name, variable| HttpService::from_setting(name, variable, &setting, http.clone());
        Ok(Self {
            otp: service(OTP, "OTP_URL")?,
            sms: service(SMS, "SMS_URL")?,
            signature: service(SIGNATURE, "SIGNATURE_URL")?,
        })
    }

    /// Tells the patient. A refusal is retried until the attempts are spent: that a message does not go out is
    /// the system's fault (500), never the user's (4xx).
    pub(super) async fn tell(
        &self,
        call: Call,
        patient_id: Uuid,
        key: &str,
    ) -> Result<(), HandlerError> {
        let (service, path, reference) = match call {
            Call::Otp(approval) => (&self.otp, "verifications", format!("approval/{approval}")),
            Call::Sms(request, about) => (
                &self.sms,
                "messages",
                format!("service_request/{request}/{about}"),
            ),
        };
        // The key makes the reference one of this job: a repetition asked for by a user goes out.
        let body = json!({
            "reference": format!("{reference}/{key}"),
            "patient_id": patient_id,
        });
        let answer: Result<Value, _> = service.post(path, key, &body).await;
        answer.map(drop).map_err(HandlerError::into_retry)
    }

    /// Whether there is somebody to ask about signatures: without `SIGNATURE_URL` nobody is.
    pub(super) fn verify_signatures(&self) -> bool {
        self.signature.is_configured()
    }

    /// Whether the data was signed, and by this user.
    ///
    /// # Errors
    /// A rejection, 422, when the service refuses the signature. One that cannot be asked, or does not let us ask, is no
    /// fault of the user's: the job waits.
    pub(super) async fn verify(
        &self,
        signed_data: &str,
        signer: Uuid,
        key: &str,
    ) -> Result<(), HandlerError> {
        let body = json!({"reference": key, "signed_data": signed_data, "signer": signer});
        let answer: Result<Value, _> = self.signature.post("verifications", key, &body).await;
        answer.map(drop).map_err(|error| {
            if !error.is_rejection() {
                return error;
            }
            let needed = "a valid signature of the user is needed";
            invalid(&[FieldError::new("$.signed_data", "signature", needed)])
        })
    }
}
