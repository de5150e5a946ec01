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
use tidegate::intake::Message;
use tidegate::{Error, Transaction};
use utoipa::ToSchema;
use uuid::Uuid;

use super::checks::{self, Filter};
use super::forms::{self, Form, Letter, MeasureNotice, SubmitReport, Viewed};
use super::schema::{self, Described, FieldError, Schemas, describe};
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
        let name = format!("{self:?}").to_lowercase();
        let read = self.read(json);
        let submission = read.map_err(|faults| schema::refused(&name, &faults))?;
        submission.take_in(tx, client).await
    }

    /// Checks and decodes JSON of this subject.
    ///
    /// # Errors
    /// All faults.
    pub(crate) fn read(self, json: &Value) -> Result<Submission, Vec<FieldError>> {
        match self {
            Self::Form => read(json).map(Submission::Form),
            Self::Letter => read::<Letter>(json).and_then(dated).map(Submission::Letter),
            Self::Cancellation => read(json).map(Submission::Cancellation),
            Self::Decline => read(json).map(Submission::Decline),
            Self::Viewed => read(json).map(Submission::Viewed),
        }
    }
}

/// What a client submits, once it is read.
pub(crate) enum Submission {
    Form(Form),
    Letter(Letter),
    Cancellation(MeasureNotice),
    Decline(MeasureNotice),
    Viewed(Viewed),
}

impl Submission {
    /// Stores it, in the caller's transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its id is used for something else. Otherwise database errors.
    pub(crate) async fn take_in(
        self,
        tx: &Transaction<'_>,
        client: Option<Uuid>,
    ) -> Result<SubmitReport, Error> {
        match self {
            Self::Form(form) => forms::submit(tx, client, &form).await,
            Self::Letter(letter) => forms::receive_letter(tx, client, &letter).await,
            Self::Cancellation(notice) => forms::cancel(tx, client, &notice).await,
            Self::Decline(notice) => forms::decline(tx, client, &notice).await,
            Self::Viewed(viewed) => forms::letter_viewed(tx, None, &viewed).await,
        }
    }
}

/// Refuses a letter whose grant ends before it begins. Dates in one fixed format sort correctly as text.
fn dated(letter: Letter) -> Result<Letter, Vec<FieldError>> {
    if letter.grant.valid_from <= letter.grant.valid_to {
        return Ok(letter);
    }
    let needed = "must be a day not before valid_from";
    Err(vec![FieldError::new("$.grant.valid_to", "date", needed)])
}

/// Receives a message from outside.
///
/// # Errors
/// [`Error::Invalid`] if the message has no known `type` and no `kind`. Otherwise as [`Subject::take_in`] and
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

/// The schemas of everything that clients can submit.
pub(super) fn schemas() -> Described {
    let mut schemas = Described::new();
    describe::<Form>(&mut schemas);
    describe::<Letter>(&mut schemas);
    describe::<MeasureNotice>(&mut schemas);
    describe::<Viewed>(&mut schemas);
    schemas
}

/// Checks and decodes what a client submits.
///
/// # Errors
/// All faults.
pub(crate) fn read<T: ToSchema + DeserializeOwned>(json: &Value) -> Result<T, Vec<FieldError>> {
    static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::of(schemas()));
    SCHEMAS.decode(json)
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
            let faults = read::<Letter>(&json).unwrap_err();
            let error = schema::refused("letter", &faults).to_string();
            assert!(error.contains(says), "{says}: {error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
