//! Owns how data enters the forms system: submitted forms, messages from the case system, and views
//! of a letter. Each function stores its row and publishes its event in the caller's transaction, so
//! one never exists without the other (B1). Therefore the parameter is a transaction, not a client.
//!
//! All events of a form are in one group, so a grant is never announced before the case. While one
//! event waits for a service, the later events of the same form wait behind it.

use serde::Serialize;
use serde_json::{Value, json};
use tidegate::{Error, NewEvent, Published, publish};
use tidegate_core::connect::{Queryable, Transaction};
use utoipa::ToSchema;
use uuid::Uuid;

use super::events::{self, FormEvent};
use super::model::{Form, FormStatus, Grant, Letter, Measure, MeasureNotice, Progress, Viewed};
use super::store;

/// The result of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SubmitReport {
    /// The event that processes it. Null if it was submitted before, or if it is about a case that no form
    /// has yet: it is kept until one has.
    pub id: Option<i64>,
    /// The form that it is about, if it is known to be one of ours. A letter or notice is told a client's
    /// form as `CLIENT/ID`.
    pub form_id: Option<String>,
    /// Whether it was submitted before. If so, nothing was stored.
    pub repeated: bool,
}

/// The error for a form whose id another form of its client has.
pub const HANDED_IN_BEFORE: &str = "form.id: must be an id that was not submitted before";

/// The error for a message whose id another message of its source has.
pub const ANOTHER_MESSAGE: &str =
    "external_id: must be an id that the source has not used for another message";

/// The error for a view of a letter that belongs to another form.
pub const NO_GRANT_OF_FORM: &str = "grant_number: must be the number of a grant of this form";

/// The error for an id that a form of an identified client may be stored under.
pub const ID_OF_A_CLIENT: &str =
    "form.id: must not begin with a UUID and a slash, because CLIENT/ID is the form of a client";

/// The id under which a form is stored. Each client has ids of its own, stored as `CLIENT/ID`. `None` if a
/// form without a client has such an id.
fn stored_id(client: Option<Uuid>, id: &str) -> Option<String> {
    if let Some(client) = client {
        return Some(format!("{client}/{id}"));
    }
    let first = id.split_once('/').map(|(first, _)| Uuid::try_parse(first));
    let is_of_client = matches!(first, Some(Ok(_)));
    (!is_of_client).then(|| id.to_owned())
}

/// The group of a form's events.
pub(super) fn group_of(form_id: &str) -> String {
    format!("form:{form_id}")
}

/// Submits a form for a client: stores it with status submitted and publishes `form_submitted`. If the client
/// has submitted an equal form, nothing happens. Events and services get the id under which it is stored. The
/// fields are checked where the form is read ([`crate::app::submission`]), as those of letters and notices
/// are.
///
/// # Errors
/// [`Error::Invalid`] if its id is used for another form. Otherwise database errors.
pub async fn submit(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    form: &Form,
) -> Result<SubmitReport, Error> {
    let own_id = form.id.clone();
    let id = stored_id(client, &own_id);
    let id = id.ok_or_else(|| Error::Invalid(ID_OF_A_CLIENT.to_owned()))?;
    let form = Form {
        id: id.clone(),
        status: FormStatus::Submitted,
        ..form.clone()
    };
    if !store::submit(tx, client, &form).await? {
        let stored = store::form(tx, &id).await?;
        let stored = stored.map(|stored| Form {
            status: FormStatus::Submitted,
            ..stored
        });
        if stored != Some(form) {
            return Err(Error::Invalid(HANDED_IN_BEFORE.to_owned()));
        }
        return Ok(unpublished(Some(own_id), true));
    }
    let event = FormEvent::FormSubmitted(events::FormSubmitted { form });
    published(tx, of_form(&id, &event)?, Some(own_id)).await
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
    let id = stored_id(client, form_id).filter(|id| !id.contains('\0'));
    let Some(id) = id else { return Ok(None) };
    let found = store::progress(tx, &id).await?;
    Ok(found.map(|(form, progress)| {
        let id = form_id.to_owned();
        (Form { id, ..form }, progress)
    }))
}

/// Receives a grant letter, once for each source and external id of a client. Publishes
/// `grant_letter_received` if the case is one of ours, otherwise `external_letter_received`. If the case may
/// be one of ours that is still being opened, that event waits for its number.
///
/// # Errors
/// [`Error::Invalid`] if the source has used the id for another message. Otherwise database errors.
pub async fn receive_letter(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    letter: &Letter,
) -> Result<SubmitReport, Error> {
    let grant = &letter.grant;
    let key = (client, &*letter.source, &*letter.external_id);
    of_case(tx, &key, &grant.measure, (GRANT_LETTER, json!(grant))).await
}

/// Receives a notice that the case system cancelled a measure, once for each source and external id of a
/// client. Publishes `form_cancelled` if the case is one of ours. If the case is still being opened, the
/// event follows when its number is stored.
///
/// # Errors
/// As [`receive_letter`].
pub async fn cancel(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    notice: &MeasureNotice,
) -> Result<SubmitReport, Error> {
    ended(tx, client, (CANCELLATION, notice)).await
}

/// Receives the decision of the case system to decline an application, once for each source and external id
/// of a client. Publishes `form_declined` if the case is one of ours. If the case is still being opened, the
/// event follows when its number is stored.
///
/// # Errors
/// As [`receive_letter`].
pub async fn decline(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    notice: &MeasureNotice,
) -> Result<SubmitReport, Error> {
    ended(tx, client, (DECLINE, notice)).await
}

/// The subjects of messages about a case.
const GRANT_LETTER: &str = "grant_letter";
const CANCELLATION: &str = "cancellation";
const DECLINE: &str = "decline";

async fn ended(
    tx: &Transaction<'_>,
    client: Option<Uuid>,
    (subject, notice): (&str, &MeasureNotice),
) -> Result<SubmitReport, Error> {
    let key = (client, &*notice.source, &*notice.external_id);
    let measure = &notice.measure;
    of_case(tx, &key, measure, (subject, json!(measure))).await
}

/// Stores a message about a case, and publishes its event.
async fn of_case(
    tx: &Transaction<'_>,
    key: &store::MessageKey<'_>,
    measure: &Measure,
    (subject, content): (&str, Value),
) -> Result<SubmitReport, Error> {
    let form_id = store::form_of(tx, measure).await?;
    let stored = store::keep_message(tx, key, form_id.as_deref(), (subject, &content)).await?;
    let Some(letter_id) = stored else {
        if !store::is_kept(tx, key, (subject, &content)).await? {
            return Err(Error::Invalid(ANOTHER_MESSAGE.to_owned()));
        }
        return Ok(unpublished(form_id, true));
    };
    let Some(form_id) = form_id else {
        if subject != GRANT_LETTER {
            return Ok(unpublished(None, false));
        }
        let grant = granted(content)?;
        let (_, waits_for) = store::letter(tx, None, &grant).await?;
        let letter = events::ExternalLetterReceived { letter_id, grant };
        return published(tx, external(letter, waits_for.as_deref())?, None).await;
    };
    let message = (subject.to_owned(), letter_id, content);
    let event = taken_in(tx, &form_id, measure, message).await?;
    published(tx, of_form(&form_id, &event)?, Some(form_id)).await
}

/// Takes in a stored message about a form's case: gives the form the status that the message asks for, unless
/// the form has ended otherwise, and returns the message's event. So the first end to arrive stands, whenever
/// a drain runs.
pub(super) async fn taken_in(
    client: &impl Queryable,
    form_id: &str,
    measure: &Measure,
    (subject, letter_id, content): store::Message,
) -> Result<FormEvent, Error> {
    let (form_id, measure) = (form_id.to_owned(), measure.clone());
    let status = match &*subject {
        GRANT_LETTER => FormStatus::Approved,
        DECLINE => FormStatus::Declined,
        _ => FormStatus::Cancelled,
    };
    store::advance(client, &form_id, status).await?;
    Ok(match status {
        FormStatus::Approved => FormEvent::GrantLetterReceived(events::GrantLetterReceived {
            form_id,
            letter_id,
            grant: granted(content)?,
        }),
        FormStatus::Declined => FormEvent::FormDeclined(events::FormDeclined {
            form_id,
            letter_id,
            measure,
        }),
        _ => FormEvent::FormCancelled(events::FormCancelled { form_id, measure }),
    })
}

fn granted(content: Value) -> Result<Grant, Error> {
    let needed = "forms.message: must have a grant as the content of a letter";
    serde_json::from_value(content).map_err(|_| Error::Invalid(needed.to_owned()))
}

/// The event of a letter about a case that no form has. If the company has a form whose case is still being
/// opened, the letter may be about that case, so it waits behind the form's events.
pub(super) fn external(
    letter: events::ExternalLetterReceived,
    waits_for: Option<&str>,
) -> Result<NewEvent, Error> {
    let letter_id = letter.letter_id.clone();
    let event = NewEvent::of(&FormEvent::ExternalLetterReceived(letter))?.correlation(letter_id);
    let group = waits_for.map(group_of);
    Ok(event.set_if(group, NewEvent::group))
}

/// Records that a grant letter was viewed. With `of`, the letter must be of this client's form. Publishes
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
    if let Some((client, own_id)) = of
        && (form_id.is_none() || form_id != stored_id(client, own_id))
    {
        return Err(Error::Invalid(NO_GRANT_OF_FORM.to_owned()));
    }
    let mut event = NewEvent::of(&FormEvent::GrantLetterViewed(events::GrantLetterViewed {
        grant_number,
        form_id: form_id.clone(),
    }))?;
    if let Some(form_id) = &form_id {
        event = event.correlation(form_id);
    }
    let told = of.map(|(_, own_id)| own_id.to_owned()).or(form_id);
    published(tx, event, told).await
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

fn unpublished(form_id: Option<String>, repeated: bool) -> SubmitReport {
    SubmitReport {
        id: None,
        form_id,
        repeated,
    }
}

fn of_form(form_id: &str, event: &FormEvent) -> Result<NewEvent, Error> {
    let event = NewEvent::of(event)?.correlation(form_id);
    Ok(event.group(group_of(form_id)))
}
