//! Owns everything that clients submit to the forms system from outside: by a message, the command line or
//! HTTP. All of them use the same JSON, and call the functions of [`forms::intake`] in the caller's
//! transaction.
//!
//! | subject | JSON |
//! |---|---|
//! | `form` | a form, see [`Form`]; its `status` is optional |
//! | `letter` | `{"source", "external_id", "grant": {…}}`: a grant letter, for our case or another |
//! | `cancellation` | `{"source", "external_id", "measure": {"case_number", "measure_id"}}` |
//! | `viewed` | `{"grant_number"}`: a grant letter was viewed |
//!
//! A message names its subject in a field of its own: `"type": "letter"`. A message without `type`, or with
//! `kind`, is a bus message. It may request an AI check ([`checks::receive`]) or be irrelevant. Other fields
//! are allowed and ignored.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_postgres::Transaction;
use utoipa::ToSchema;
use uuid::Uuid;

use super::checks::{self, Filter};
use super::forms::{self, Form, Grant, Measure, MessageKey, SubmitReport};
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
    /// A notice that a grant letter was viewed
    Viewed,
}

/// A grant letter from the case system.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Letter {
    /// The system that sent it, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub source: String,
    /// The sender's own id of the letter, 1 to 200 characters. A letter of the same client and source with a
    /// known id is a repetition.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub external_id: String,
    /// The grant that the letter announces.
    pub grant: Grant,
}

/// A notice from the case system that a measure was cancelled.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Cancellation {
    /// The system that sent it, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub source: String,
    /// The sender's own id of the notice, 1 to 200 characters. A notice of the same client and source with a
    /// known id is a repetition.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub external_id: String,
    /// The cancelled measure.
    pub measure: Measure,
}

/// A notice that a grant letter was viewed.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct Viewed {
    /// The grant number of the letter, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub grant_number: String,
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
        json: &[u8],
    ) -> Result<SubmitReport, Error> {
        match self {
            Self::Form => {
                let form: Form = read("form", json)?;
                let event = forms::submit(tx, &form).await?;
                Ok(SubmitReport::published(&event, Some(form.id)))
            }
            Self::Letter => {
                let letter: Letter = read("letter", json)?;
                let key = MessageKey {
                    client,
                    source: &letter.source,
                    external_id: &letter.external_id,
                };
                forms::receive_letter(tx, key, &letter.grant).await
            }
            Self::Cancellation => {
                let told: Cancellation = read("cancellation", json)?;
                let key = MessageKey {
                    client,
                    source: &told.source,
                    external_id: &told.external_id,
                };
                forms::cancel(tx, key, &told.measure).await
            }
            Self::Viewed => {
                let viewed: Viewed = read("viewed", json)?;
                let event = forms::letter_viewed(tx, &viewed.grant_number).await?;
                Ok(SubmitReport::published(&event, None))
            }
        }
    }
}

/// Receives a message from outside.
///
/// # Errors
/// As [`Subject::take_in`] and [`checks::receive`].
pub async fn receive(
    tx: &Transaction<'_>,
    filter: &Filter,
    message: &Message,
) -> Result<(), Error> {
    let said: Value = message.json()?;
    let name = said.get("type").filter(|_| said.get("kind").is_none());
    let Some(name) = name else {
        checks::receive(tx, filter, &said).await?;
        return Ok(());
    };
    let subject = name.as_str().map(|name| Subject::from_str(name, false));
    let Some(Ok(subject)) = subject else {
        let wanted = "must be form, letter, cancellation or viewed, or be left out";
        return Err(Error::Invalid(format!("type: {wanted}")));
    };
    subject.take_in(tx, None, &message.body).await?;
    Ok(())
}

/// The decoder's own text may quote its input, so the error contains only the position where decoding
/// stopped.
pub(crate) fn read<T: DeserializeOwned>(what: &str, json: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let field = named(&error.to_string());
        let wanted = "must be JSON with all required fields, each of the right type";
        let place = format!("got something else at line {line}, column {column}{field}");
        Error::Invalid(format!("{what}: {wanted}, {place}"))
    })
}

/// Extracts the name of a missing field from the decoder's text. Field names are ours, not part of the input.
fn named(decoder: &str) -> String {
    let field = decoder.strip_prefix("missing field `");
    let field = field.and_then(|rest| rest.split('`').next());
    field.map_or_else(String::new, |field| {
        format!(" (the field {field:?} is missing)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i9_what_does_not_decode_is_told_by_its_place_and_not_quoted() {
        for (json, says) in [
            (&b"{\"source\": \"canary\""[..], "line 1, column 19"),
            (b"{\"source\": [\"canary\"]}", "line 1, column 11"),
            (
                b"{\"source\": \"canary\"}",
                "the field \"external_id\" is missing",
            ),
            (b"\"canary\"", "line 1"),
        ] {
            let error = read::<Letter>("letter", json).unwrap_err().to_string();
            assert!(error.starts_with("letter: must be JSON"), "{error}");
            assert!(error.contains(says), "{says}: {error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
