//! Owns how data enters the forms system: submitted forms, messages from the case system, and views
//! of a letter. Each function stores its row and publishes its event in the caller's transaction, so
//! one never exists without the other (B1). Therefore the parameter is a transaction, not a client.
//!
//! All events of a form are in one group, so a grant is never announced before the case. While one
//! event waits for a service, the later events of the same form wait behind it.

use serde::Serialize;
use serde_json::json;
use tokio_postgres::Transaction;
use utoipa::ToSchema;

use super::events::{
    ExternalLetterReceived, FormCancelled, FormEvent, FormSubmitted, GrantLetterReceived,
    GrantLetterViewed,
};
use super::model::{Form, FormStatus, Grant, Measure};
use super::store::{self, MessageKey};
use crate::app::field::text;
use tidegate::{Error, NewEvent, Published, publish};

/// The result of a submission.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct SubmitReport {
    /// The event that processes it. Null if there is nothing to do.
    pub id: Option<i64>,
    /// The form that it is about, if it is one of ours.
    pub form_id: Option<String>,
    /// Whether it was submitted before. If so, nothing was stored.
    pub repeated: bool,
}

impl SubmitReport {
    pub(crate) fn published(event: &Published, form_id: Option<String>) -> Self {
        Self {
            id: Some(event.id),
            form_id,
            ..Self::default()
        }
    }

    fn unpublished(repeated: bool) -> Self {
        Self {
            repeated,
            ..Self::default()
        }
    }
}

/// The error for a form whose id is already used.
pub const HANDED_IN_BEFORE: &str = "form.id: must be an id that was not submitted before";

/// The error for a view of a letter that belongs to another form.
pub const NO_GRANT_OF_FORM: &str = "grant_number: must be the number of a grant of this form";

/// Returns the group of a form's events.
pub(in crate::app) fn group_of(form_id: &str) -> String {
    format!("form:{form_id}")
}

/// Submits a form: stores it with status submitted and publishes `form_submitted`.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed. Otherwise database errors.
pub async fn submit(tx: &Transaction<'_>, form: &Form) -> Result<Published, Error> {
    let form = Form {
        status: FormStatus::Submitted,
        ..form.clone()
    };
    form.check()?;
    if !store::submit(tx.client(), &form).await? {
        return Err(Error::Invalid(HANDED_IN_BEFORE.to_owned()));
    }
    let id = form.id.clone();
    let event = FormEvent::FormSubmitted(FormSubmitted { form });
    publish(tx, &of_form(&id, &event)?).await
}

/// Receives a grant letter, once for each key. Publishes
/// `grant_letter_received` if the case is one of ours, otherwise `external_letter_received`.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed. Otherwise database errors.
pub async fn receive_letter(
    tx: &Transaction<'_>,
    key: MessageKey<'_>,
    grant: &Grant,
) -> Result<SubmitReport, Error> {
    grant.check()?;
    let form_id = store::form_of(tx.client(), &grant.measure).await?;
    let stored = keep(tx, &key, "grant_letter", form_id.as_deref(), grant).await?;
    let Some(letter_id) = stored else {
        return Ok(SubmitReport::unpublished(true));
    };
    let grant = grant.clone();
    let event = if let Some(form_id) = form_id.clone() {
        let event = GrantLetterReceived {
            form_id: form_id.clone(),
            letter_id,
            grant,
        };
        of_form(&form_id, &FormEvent::GrantLetterReceived(event))?
    } else {
        let correlation = letter_id.clone();
        let event = ExternalLetterReceived { letter_id, grant };
        new_event(&FormEvent::ExternalLetterReceived(event))?.correlation(correlation)
    };
    let event = publish(tx, &event).await?;
    Ok(SubmitReport::published(&event, form_id))
}

/// Receives a notice that the case system cancelled a measure, once for each key. Publishes
/// `form_cancelled` if the case is one of ours.
///
/// # Errors
/// As [`receive_letter`].
pub async fn cancel(
    tx: &Transaction<'_>,
    key: MessageKey<'_>,
    measure: &Measure,
) -> Result<SubmitReport, Error> {
    measure.check()?;
    let form_id = store::form_of(tx.client(), measure).await?;
    let stored = keep(tx, &key, "cancellation", form_id.as_deref(), measure).await?;
    let (Some(_), Some(form_id)) = (&stored, form_id) else {
        return Ok(SubmitReport::unpublished(stored.is_none()));
    };
    let event = FormEvent::FormCancelled(FormCancelled {
        form_id: form_id.clone(),
        measure: measure.clone(),
    });
    let event = publish(tx, &of_form(&form_id, &event)?).await?;
    Ok(SubmitReport::published(&event, Some(form_id)))
}

/// Records that a grant letter was viewed. Publishes `grant_letter_viewed` outside the form's group,
/// because a count need not wait for other events.
///
/// # Errors
/// As [`receive_letter`].
pub async fn letter_viewed(tx: &Transaction<'_>, grant_number: &str) -> Result<Published, Error> {
    text("grant_number", grant_number, 100)?;
    let form_id = store::form_of_grant(tx.client(), grant_number).await?;
    let event = GrantLetterViewed {
        grant_number: grant_number.to_owned(),
        form_id: form_id.clone(),
    };
    let event = new_event(&FormEvent::GrantLetterViewed(event))?;
    let event = match form_id {
        Some(form_id) => event.correlation(form_id),
        None => event,
    };
    publish(tx, &event).await
}

/// Like [`letter_viewed`], for the letter about a grant of this form.
///
/// # Errors
/// As [`receive_letter`].
pub async fn letter_of_form_viewed(
    tx: &Transaction<'_>,
    form_id: &str,
    grant_number: &str,
) -> Result<Published, Error> {
    text("grant_number", grant_number, 100)?;
    if store::form_of_grant(tx.client(), grant_number)
        .await?
        .as_deref()
        != Some(form_id)
    {
        return Err(Error::Invalid(NO_GRANT_OF_FORM.to_owned()));
    }
    letter_viewed(tx, grant_number).await
}

/// Stores a message. Returns `None` if it is already stored.
async fn keep(
    tx: &Transaction<'_>,
    key: &MessageKey<'_>,
    subject: &str,
    form_id: Option<&str>,
    content: &impl Serialize,
) -> Result<Option<String>, Error> {
    text("source", key.source, 100)?;
    text("external_id", key.external_id, 200)?;
    store::keep_message(tx.client(), key, subject, form_id, &json!(content)).await
}

fn of_form(form_id: &str, event: &FormEvent) -> Result<NewEvent, Error> {
    Ok(new_event(event)?
        .correlation(form_id)
        .group(group_of(form_id)))
}

fn new_event(event: &FormEvent) -> Result<NewEvent, Error> {
    NewEvent::of(event).map_err(|error| Error::Invalid(format!("payload: {error}")))
}
