//! Owns how data enters the forms system: submitted forms, messages from the case system, and views
//! of a letter. Each function stores its row and publishes its event in the caller's transaction, so
//! one never exists without the other (B1). Therefore the parameter is a transaction, not a client.
//!
//! All events of a form are in one group, so a grant is never announced before the case. While one
//! event waits for a service, the later events of the same form wait behind it.

use serde::Serialize;
use serde_json::json;
use tidegate::connect::Transaction;
use utoipa::ToSchema;
use uuid::Uuid;

use super::events::{self, FormEvent};
use super::model::{Form, FormStatus, Letter, Measure, MeasureNotice, Progress, Viewed};
use super::store;
use tidegate::{Error, HandlerError, NewEvent, Published, publish};

/// The result of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SubmitReport {
    /// The event that processes it. Null if there is nothing to do.
    pub id: Option<i64>,
    /// The form that it is about, if it is one of ours.
    pub form_id: Option<String>,
    /// Whether it was submitted before. If so, nothing was stored.
    pub repeated: bool,
}

/// The error for a form whose id is already used.
pub const HANDED_IN_BEFORE: &str = "form.id: must be an id that was not submitted before";

/// The error for a view of a letter that belongs to another form.
pub const NO_GRANT_OF_FORM: &str = "grant_number: must be the number of a grant of this form";

/// Returns the group of a form's events.
pub(in crate::app) fn group_of(form_id: &str) -> String {
    format!("form:{form_id}")
}

/// Submits a form for a client: stores it with status submitted and publishes `form_submitted`. The fields
/// are checked where the form is read ([`crate::app::submission`]), as those of letters and notices are.
///
/// # Errors
/// [`Error::Invalid`] if its id is used. Otherwise database errors.
pub async fn submit(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    form: &Form,
) -> Result<SubmitReport, Error> {
    let form = Form {
        status: FormStatus::Submitted,
        ..form.clone()
    };
    if !store::submit(tx, client, &form).await? {
        return Err(Error::Invalid(HANDED_IN_BEFORE.to_owned()));
    }
    let id = form.id.clone();
    let event = FormEvent::FormSubmitted(events::FormSubmitted { form });
    published(tx, of_form(&id, &event)?, Some(id)).await
}

/// Returns a form with its progress, if this client submitted it.
///
/// # Errors
/// Database errors.
pub async fn read(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    form_id: &str,
) -> Result<Option<(Form, Progress)>, Error> {
    // The database stores no text with this character.
    if form_id.contains('\0') {
        return Ok(None);
    }
    store::progress(tx, client, form_id).await
}

/// Receives a grant letter, once for each source and external id of a client. Publishes
/// `grant_letter_received` if the case is one of ours, otherwise `external_letter_received`. If the case is
/// still being opened, `grant_letter_received` follows when its number is stored.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed. Otherwise database errors.
pub async fn receive_letter(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    letter: &Letter,
) -> Result<SubmitReport, Error> {
    let grant = letter.grant.clone();
    // Dates in one fixed format sort correctly as text.
    if grant.valid_to < grant.valid_from {
        let needed = "letter.grant.valid_to: must be a day not before valid_from";
        return Err(Error::Invalid(needed.to_owned()));
    }
    let form_id = store::form_of(tx, &grant.measure).await?;
    let key = (client, &*letter.source, &*letter.external_id);
    let content = (GRANT_LETTER, &json!(grant));
    let stored = store::keep_message(tx, &key, form_id.as_deref(), content).await?;
    let Some(letter_id) = stored else {
        return Ok(unpublished(true));
    };
    let event = if let Some(form_id) = form_id.clone() {
        let event = events::GrantLetterReceived {
            form_id: form_id.clone(),
            letter_id,
            grant,
        };
        of_form(&form_id, &FormEvent::GrantLetterReceived(event))?
    } else {
        let correlation = letter_id.clone();
        let event = events::ExternalLetterReceived { letter_id, grant };
        NewEvent::of(&FormEvent::ExternalLetterReceived(event))?.correlation(correlation)
    };
    published(tx, event, form_id).await
}

/// Receives a notice that the case system cancelled a measure, once for each source and external id of a
/// client. Publishes `form_cancelled` if the case is one of ours. If the case is still being opened, the
/// event follows when its number is stored.
///
/// # Errors
/// Database errors.
pub async fn cancel(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    notice: &MeasureNotice,
) -> Result<SubmitReport, Error> {
    ended(tx, client, ("cancellation", notice)).await
}

/// Receives the decision of the case system to decline an application, once for each source and external id
/// of a client. Publishes `form_declined` if the case is one of ours. If the case is still being opened, the
/// event follows when its number is stored.
///
/// # Errors
/// Database errors.
pub async fn decline(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    notice: &MeasureNotice,
) -> Result<SubmitReport, Error> {
    ended(tx, client, (DECLINE, notice)).await
}

/// The subjects of a grant letter, and of a notice that declines an application.
const GRANT_LETTER: &str = "grant_letter";
const DECLINE: &str = "decline";

/// Returns the event of a stored message that came before the number of its case.
pub(super) fn early(
    (subject, letter_id, content): store::Message,
    form_id: String,
    measure: Measure,
) -> Result<FormEvent, HandlerError> {
    if subject != GRANT_LETTER {
        return Ok(ending((&subject, letter_id), form_id, measure));
    }
    let event = events::GrantLetterReceived {
        form_id,
        letter_id,
        grant: serde_json::from_value(content)?,
    };
    Ok(FormEvent::GrantLetterReceived(event))
}

/// Returns the event of a stored notice that ends a form.
fn ending((subject, letter_id): (&str, String), form_id: String, measure: Measure) -> FormEvent {
    if subject == DECLINE {
        FormEvent::FormDeclined(events::FormDeclined {
            form_id,
            letter_id,
            measure,
        })
    } else {
        FormEvent::FormCancelled(events::FormCancelled { form_id, measure })
    }
}

/// Keeps a notice that ends a form, and publishes its event. The notice of a case that no form has yet waits
/// for the form.
async fn ended(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    (subject, notice): (&str, &MeasureNotice),
) -> Result<SubmitReport, Error> {
    let form_id = store::form_of(tx, &notice.measure).await?;
    let key = (client, &*notice.source, &*notice.external_id);
    let content = (subject, &json!(notice.measure));
    let stored = store::keep_message(tx, &key, form_id.as_deref(), content).await?;
    let repeated = stored.is_none();
    let (Some(letter_id), Some(form_id)) = (stored, form_id) else {
        return Ok(unpublished(repeated));
    };
    let measure = notice.measure.clone();
    let event = ending((subject, letter_id), form_id.clone(), measure);
    published(tx, of_form(&form_id, &event)?, Some(form_id)).await
}

/// Records that a grant letter was viewed: of a client and its form, if these are named. Publishes
/// `grant_letter_viewed` outside the form's group, because a count need not wait for other events.
///
/// # Errors
/// [`Error::Invalid`] if the client has no such form, or the form no such grant. Otherwise database errors.
pub async fn letter_viewed(
    tx: &Transaction<'_>,
    of: Option<(Option<Uuid>, &str)>,
    viewed: &Viewed,
) -> Result<SubmitReport, Error> {
    let grant_number = viewed.grant_number.clone();
    let form_id = store::form_of_grant(tx, &grant_number).await?;
    if let Some((client, of_form)) = of {
        let is_its = form_id.as_deref() == Some(of_form);
        if !is_its || !store::is_of(tx, client, of_form).await? {
            return Err(Error::Invalid(NO_GRANT_OF_FORM.to_owned()));
        }
    }
    let mut event = NewEvent::of(&FormEvent::GrantLetterViewed(events::GrantLetterViewed {
        grant_number,
        form_id: form_id.clone(),
    }))?;
    if let Some(form_id) = &form_id {
        event = event.correlation(form_id);
    }
    published(tx, event, form_id).await
}

async fn published(
    tx: &Transaction<'_>,
    event: NewEvent,
    form_id: Option<String>,
) -> Result<SubmitReport, Error> {
    let Published { id, .. } = publish(tx, &event).await?;
    Ok(SubmitReport {
        id: Some(id),
        form_id,
        repeated: false,
    })
}

fn unpublished(repeated: bool) -> SubmitReport {
    SubmitReport {
        id: None,
        form_id: None,
        repeated,
    }
}

fn of_form(form_id: &str, event: &FormEvent) -> Result<NewEvent, Error> {
    let event = NewEvent::of(event)?.correlation(form_id);
    Ok(event.group(group_of(form_id)))
}
