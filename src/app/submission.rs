//! Owns everything that clients submit to the forms system from outside: by a message, the command line or
//! HTTP. All of them use the same JSON, and call the functions of [`forms::intake`] in the caller's
//! transaction.
//!
//! | subject | JSON |
//! |---|---|
//! | `form` | a form, see [`Form`]; its `status` is optional |
//! | `letter` | `{"source", "external_id", "grant": {…}}`: a grant letter, for our case or another |
//! | `cancellation` | `{"source", "external_id", "measure": {"case_number", "measure_id"}}` |
//! | `decline` | as a cancellation: the application was declined |
//! | `viewed` | `{"grant_number"}`: a grant letter was viewed |
//!
//! A message names its subject in a field of its own: `"type": "letter"`. A message without `type` and with a
//! `kind` is one of the bus: it requests an AI check ([`checks::receive`]) or is irrelevant. Every other
//! message is refused, so that none is lost.

use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tidegate::connect::Transaction;
use utoipa::ToSchema;
use uuid::Uuid;

use super::checks::{self, Filter};
use super::forms::{self, Form, Letter, MeasureNotice, SubmitReport, Viewed};
use super::schema::{self, Described, Schemas, describe};
use tidegate::Error;
use tidegate::intake::Message;
use tidegate_cli::clap::{self, ValueEnum};

/// What clients can submit. The comments are the help's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// A form
    Form,
    /// A grant letter, for one of our cases or another one
    Letter,
    /// A notice that a measure was cancelled
    Cancellation,
    /// A decision that declines an application
    Decline,
    /// A notice that a grant letter was viewed
    Viewed,
}

impl Subject {
    /// Stores JSON of this subject, in the caller's transaction. `client` is the identified client that sent
    /// it, if any.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what is allowed, and quotes nothing. Otherwise database errors.
    pub async fn take_in(
        self,
        tx: &Transaction<'_>,
        client: Option<Uuid>,
        json: &Value,
    ) -> Result<SubmitReport, Error> {
        match self {
            Self::Form => forms::submit(tx, client, &read("form", json)?).await,
            Self::Letter => forms::receive_letter(tx, client, &read("letter", json)?).await,
            Self::Cancellation => forms::cancel(tx, client, &read("cancellation", json)?).await,
            Self::Decline => forms::decline(tx, client, &read("decline", json)?).await,
            Self::Viewed => forms::letter_viewed(tx, None, &read("viewed", json)?).await,
        }
    }
}

/// Receives a message from outside.
///
/// # Errors
/// [`Error::Invalid`] if nobody understands the message. Otherwise as [`Subject::take_in`] and
/// [`checks::receive`].
pub async fn receive(
    tx: &Transaction<'_>,
    filter: &Filter,
    message: &Message,
) -> Result<(), Error> {
    let mut said: Value = message.json()?;
    if said.get("type").is_none() && said.get("kind").is_some() {
        return checks::receive(tx, filter, &said).await.map(drop);
    }
    let subject = said["type"].as_str();
    let Some(Ok(subject)) = subject.map(|name| Subject::from_str(name, false)) else {
        let wanted = "must be form, letter, cancellation, decline or viewed; only messages with a kind have none";
        return Err(Error::Invalid(format!("type: {wanted}")));
    };
    // What names the subject is no part of it.
    if let Some(fields) = said.as_object_mut() {
        fields.retain(|name, _| name != "type" && name != "kind");
    }
    subject.take_in(tx, None, &said).await.map(drop)
}

/// Returns the schemas of everything that clients can submit.
pub(super) fn schemas() -> Described {
    let mut schemas = Described::new();
    describe::<Form>(&mut schemas);
    describe::<Letter>(&mut schemas);
    describe::<MeasureNotice>(&mut schemas);
    describe::<Viewed>(&mut schemas);
    schemas
}

/// Checks and decodes what a client submits. An error names the first invalid field.
pub(crate) fn read<T: ToSchema + DeserializeOwned>(what: &str, json: &Value) -> Result<T, Error> {
    static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::of(schemas()));
    let read = SCHEMAS.decode(json);
    read.map_err(|faults| schema::refused(what, &faults))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn i9_what_does_not_decode_is_told_by_its_place_and_not_quoted() {
        let grant = json!({"source": ["canary"], "external_id": "1", "grant": {}});
        for (json, says) in [
            (
                json!({"source": ["canary"]}),
                "letter.external_id: is needed",
            ),
            (grant, "letter.grant.grant_number: is needed"),
            (json!("canary"), "letter: must be object, got string"),
        ] {
            let error = read::<Letter>("letter", &json).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
