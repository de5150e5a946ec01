//! Owns how data enters the forms system: submitted forms, messages from the case system, and views
//! of a letter. Each function stores its row and publishes its event in the caller's transaction, so
//! one never exists without the other (B1). Therefore the parameter is a transaction, not a client.
//!
//! All events of a form are in one group, so a grant is never announced before the case. While one
//! event waits for a service, the later events of the same form wait behind it.

use serde::Serialize;
use tokio_postgres::Transaction;

use super::events::{
    ExternalLetterReceived, FormCancelled, FormEvent, FormSubmitted, GrantLetterReceived,
    GrantLetterViewed,
};
use super::model::{Form, FormStatus, Grant, Measure, text};
use super::store::{self, MessageKey, StoredMessage};
use tidegate::{Error, NewEvent, Published, publish};

/// The result of receiving a message from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// It concerns one of our forms.
    Ours {
        /// The form.
        form_id: String,
        /// The event that will process it.
        event: Published,
    },
    /// It concerns a case of another system, but must be processed too.
    External {
        /// The event that will process it.
        event: Published,
    },
    /// It concerns a case of another system and needs no processing. It is stored.
    Unrelated,
    /// It was received before. Nothing is stored or published.
    Duplicate,
}

/// The error for a form whose id is already used.
pub const HANDED_IN_BEFORE: &str = "form.id: must be an id that was not submitted before";

/// The error for a view of a letter that belongs to another form.
pub const NO_GRANT_OF_FORM: &str = "grant_number: must be the number of a grant of this form";

/// Returns the group of a form's events.
pub(in crate::app) fn group_of(form_id: &str) -> String {
    format!("form:{form_id}")
}

/// Submits a form: stores it with status submitted and publishes `form_submitted`. It replaces a
/// stored draft with the same id.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed. Otherwise database errors.
pub async fn submit(tx: &Transaction<'_>, form: &Form) -> Result<Published, Error> {
    let form = Form {
        status: FormStatus::Submitted,
        ..form.clone()
    };
    store_new(tx, &form).await?;
    let id = form.id.clone();
    publish(
        tx,
        &of_form(&id, &FormEvent::FormSubmitted(FormSubmitted { form }))?,
    )
    .await
}

/// Takes over a form for which another system has already opened a case. It stores both and publishes
/// nothing. From then on, messages about that case concern this form.
///
/// # Errors
/// As [`submit`].
pub async fn take_over(tx: &Transaction<'_>, form: &Form, case: &Measure) -> Result<(), Error> {
    case.check()?;
    store_new(tx, form).await?;
    store::keep_case(tx, &form.id, case).await?;
    Ok(())
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
) -> Result<Received, Error> {
    grant.check()?;
    let form_id = store::form_of(tx, &grant.measure).await?;
    let stored = keep(tx, key, "grant_letter", form_id.as_deref(), grant).await?;
    let Some(letter_id) = stored else {
        return Ok(Received::Duplicate);
    };
    let grant = grant.clone();
    let Some(form_id) = form_id else {
        let event = ExternalLetterReceived {
            letter_id: letter_id.clone(),
            grant,
        };
        let event = new_event(&FormEvent::ExternalLetterReceived(event))?.correlation(letter_id);
        return Ok(Received::External {
            event: publish(tx, &event).await?,
        });
    };
    let event = GrantLetterReceived {
        form_id: form_id.clone(),
        letter_id,
        grant,
    };
    let event = of_form(&form_id, &FormEvent::GrantLetterReceived(event))?;
    Ok(Received::Ours {
        form_id,
        event: publish(tx, &event).await?,
    })
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
) -> Result<Received, Error> {
    measure.check()?;
    let form_id = store::form_of(tx, measure).await?;
    if keep(tx, key, "cancellation", form_id.as_deref(), measure)
        .await?
        .is_none()
    {
        return Ok(Received::Duplicate);
    }
    let Some(form_id) = form_id else {
        return Ok(Received::Unrelated);
    };
    let event = FormCancelled {
        form_id: form_id.clone(),
        measure: measure.clone(),
    };
    let event = of_form(&form_id, &FormEvent::FormCancelled(event))?;
    Ok(Received::Ours {
        form_id,
        event: publish(tx, &event).await?,
    })
}

/// Records that a grant letter was viewed. Publishes `grant_letter_viewed` outside the form's group,
/// because a count need not wait for other events.
///
/// # Errors
/// As [`receive_letter`].
pub async fn letter_viewed(tx: &Transaction<'_>, grant_number: &str) -> Result<Published, Error> {
    text("grant_number", grant_number, 100)?;
    let form_id = store::form_of_grant(tx, grant_number).await?;
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
    if store::form_of_grant(tx, grant_number).await?.as_deref() != Some(form_id) {
        return Err(Error::Invalid(NO_GRANT_OF_FORM.to_owned()));
    }
    letter_viewed(tx, grant_number).await
}

async fn store_new(tx: &Transaction<'_>, form: &Form) -> Result<(), Error> {
    form.check()?;
    if store::submit(tx, form).await? {
        return Ok(());
    }
    Err(Error::Invalid(HANDED_IN_BEFORE.to_owned()))
}

/// Stores a message. Returns `None` if it is already stored.
async fn keep(
    tx: &Transaction<'_>,
    key: MessageKey<'_>,
    subject: &'static str,
    form_id: Option<&str>,
    content: &impl Serialize,
) -> Result<Option<String>, Error> {
    text("source", key.source, 100)?;
    text("external_id", key.external_id, 200)?;
    let content = store::json("forms.message", content)?;
    store::keep_message(
        tx,
        &StoredMessage {
            key,
            subject,
            form_id,
            content,
        },
    )
    .await
}

fn of_form(form_id: &str, event: &FormEvent) -> Result<NewEvent, Error> {
    Ok(new_event(event)?
        .correlation(form_id)
        .group(group_of(form_id)))
}

fn new_event(event: &FormEvent) -> Result<NewEvent, Error> {
    NewEvent::of(event).map_err(|error| Error::Invalid(format!("payload: {error}")))
}
