//! Owns the handlers of the forms system. A handler is a method of the one service it calls, so it
//! cannot call another one (A18). If that service is down, no other service is
//! called again because of it (A19).
//!
//! Every handler may run again for the same event (D8). For calls to a service, the idempotency key
//! and the reference make a repetition harmless. For writes to the database, one transaction
//! contains both the write and the end of the event.

use super::events::{
    Archived, CaseOpened, ExternalLetterArchived, ExternalLetterReceived, FormArchived,
    FormCancelled, FormEvent, FormSubmitted, GrantLetterArchived, GrantLetterReceived,
    GrantLetterViewed, GrantSaved,
};
use super::intake::group_of;
use super::model::{Form, FormStatus, Grant};
use super::services::{
    ARCHIVE, Archive, CASES, Cases, NOTIFICATIONS, Notice, Notifications, Part, Services,
};
use super::store;
use tidegate::{
    Context, Done, HandlerError, HandlerResult, Handlers, NewEvent, Transaction, Verdicts,
};

/// Returns the handlers of a step.
pub fn handlers<'a>(
    services: &'a Services,
    event: &'a FormEvent,
    ctx: &'a Context,
) -> Handlers<'a> {
    let Services {
        archive,
        cases,
        notifications,
    } = services;
    match event {
        FormEvent::FormSubmitted(event) => {
            Handlers::one("archive_form", archive.form(event, ctx)).calls(ARCHIVE)
        }
        FormEvent::FormArchived(event) => {
            Handlers::one("open_case", cases.open_case(event, ctx)).calls(CASES)
        }
        FormEvent::CaseOpened(event) => Handlers::one("archive_note", archive.note(event, ctx))
            .calls(ARCHIVE)
            .and("notify_received", notifications.received(event, ctx))
            .calls(NOTIFICATIONS),
        FormEvent::GrantLetterReceived(event) => {
            Handlers::one("archive_letter", archive.letter(event, ctx)).calls(ARCHIVE)
        }
        FormEvent::GrantLetterArchived(event) => {
            Handlers::one("save_grant", save_grant(event, ctx))
                .and("approve_form", approve_form(event, ctx))
        }
        FormEvent::GrantSaved(event) => {
            Handlers::one("notify_approved", notifications.approved(event, ctx))
                .calls(NOTIFICATIONS)
        }
        FormEvent::ExternalLetterReceived(event) => {
            Handlers::one("archive_letter", archive.external_letter(event, ctx)).calls(ARCHIVE)
        }
        FormEvent::ExternalLetterArchived(event) => {
            Handlers::one("save_external_grant", save_external_grant(event, ctx))
                .and("notify_external", notifications.external(event, ctx))
                .calls(NOTIFICATIONS)
        }
        FormEvent::FormCancelled(event) => {
            Handlers::one("notify_cancelled", notifications.cancelled(event, ctx))
                .calls(NOTIFICATIONS)
                .and("cancel_form", cancel_form(event, ctx))
        }
        FormEvent::GrantLetterViewed(event) => Handlers::one("count_view", count_view(event)),
    }
}

impl Archive {
    /// Archives a submitted form.
    async fn form(&self, event: &FormSubmitted, ctx: &Context) -> HandlerResult {
        let form = &event.form;
        let reference = ("form", form.id.as_str());
        let archived = self.store(ctx, reference, "Application", form).await?;
        let form_id = form.id.clone();
        let archived = FormArchived { form_id, archived };
        follow_up(ctx, &form.id, &FormEvent::FormArchived(archived))?;
        Ok(Done::ok())
    }

    /// Adds a note to the archive that a case was opened.
    async fn note(&self, event: &CaseOpened, ctx: &Context) -> HandlerResult {
        let reference = ("note", event.form_id.as_str());
        let stored = self.store(ctx, reference, "Case opened", &event.case);
        stored.await?;
        Ok(Done::ok())
    }

    /// Archives the grant letter of a form.
    async fn letter(&self, event: &GrantLetterReceived, ctx: &Context) -> HandlerResult {
        let archived = GrantLetterArchived {
            form_id: event.form_id.clone(),
            archived: self
                .archived_letter(&event.letter_id, &event.grant, ctx)
                .await?,
            grant: event.grant.clone(),
        };
        let archived = FormEvent::GrantLetterArchived(archived);
        follow_up(ctx, &event.form_id, &archived)?;
        Ok(Done::ok())
    }

    /// Archives the grant letter for a case of another system.
    async fn external_letter(
        &self,
        event: &ExternalLetterReceived,
        ctx: &Context,
    ) -> HandlerResult {
        let archived = ExternalLetterArchived {
            archived: self
                .archived_letter(&event.letter_id, &event.grant, ctx)
                .await?,
            grant: event.grant.clone(),
        };
        ctx.emit(&FormEvent::ExternalLetterArchived(archived))?;
        Ok(Done::ok())
    }

    async fn archived_letter(
        &self,
        letter_id: &str,
        grant: &Grant,
        ctx: &Context,
    ) -> Result<Archived, HandlerError> {
        let reference = ("letter", letter_id);
        self.store(ctx, reference, "Grant letter", grant).await
    }
}

impl Cases {
    /// Opens a case for an archived form and stores its number. Later messages find the form by this
    /// number.
    async fn open_case(&self, event: &FormArchived, ctx: &Context) -> HandlerResult {
        let form_id = &event.form_id;
        let form = load(ctx, form_id).await?;
        let opened = match store::case_of(ctx, form_id).await? {
            Some(case) => case,
            None => self.open(ctx, &form, &event.archived).await?,
        };
        let tx = ctx.transaction().await?;
        let kept = store::keep_case(&tx, form_id, &opened).await.retryable()?;
        let opened = CaseOpened {
            form_id: form_id.clone(),
            case: kept.ok_or_else(|| missing(form_id))?,
        };
        follow_up(ctx, form_id, &FormEvent::CaseOpened(opened))?;
        tx.complete(Done::ok()).await
    }
}

impl Notifications {
    /// Notifies the company that its application was received.
    async fn received(&self, event: &CaseOpened, ctx: &Context) -> HandlerResult {
        let form = load(ctx, &event.form_id).await?;
        let reference = format!("form/{}/received", form.id);
        let notice = form_notice(&form, reference, "We have received your application");
        self.send(ctx, Part::Case, &notice).await?;
        Ok(Done::ok())
    }

    /// Notifies the company of its grant with a message and a new status.
    async fn approved(&self, event: &GrantSaved, ctx: &Context) -> HandlerResult {
        let form = load(ctx, &event.form_id).await?;
        for (part, text) in [
            (Part::Message, "Your application was approved"),
            (Part::Status, "Approved"),
        ] {
            let notice = form_notice(&form, of_grant(&event.grant, part), text);
            self.send_once(ctx, part, &notice).await?;
        }
        Ok(Done::ok())
    }

    /// Notifies a company of a grant for a case of another system. The company's page has no entry for
    /// that case yet, so there are three sub-steps: the entry, the message and the status.
    async fn external(&self, event: &ExternalLetterArchived, ctx: &Context) -> HandlerResult {
        for (part, text) in [
            (Part::Case, "Expert help"),
            (Part::Message, "You have a new grant letter"),
            (Part::Status, "Approved"),
        ] {
            let notice = Notice {
                reference: of_grant(&event.grant, part),
                group: format!("case/{}", event.grant.measure.case_number),
                company_number: &event.grant.company_number,
                text,
                contact: None,
            };
            self.send_once(ctx, part, &notice).await?;
        }
        Ok(Done::ok())
    }

    /// Notifies the company that its application was cancelled.
    async fn cancelled(&self, event: &FormCancelled, ctx: &Context) -> HandlerResult {
        let form = load(ctx, &event.form_id).await?;
        let notice = form_notice(&form, format!("form/{}/cancelled", form.id), "Cancelled");
        self.send(ctx, Part::Status, &notice).await?;
        Ok(Done::ok())
    }
}

/// Stores the grant of a form.
async fn save_grant(event: &GrantLetterArchived, ctx: &Context) -> HandlerResult {
    let form_id = &event.form_id;
    let tx = ctx.transaction().await?;
    let status = store::status_of(&tx, form_id).await.retryable()?;
    status.ok_or_else(|| missing(form_id))?;
    keep_grant(&tx, Some(form_id), &event.grant, &event.archived).await?;
    let saved = GrantSaved {
        form_id: form_id.clone(),
        grant: event.grant.clone(),
    };
    follow_up(ctx, form_id, &FormEvent::GrantSaved(saved))?;
    tx.complete(Done::ok()).await
}

/// Marks a form as approved. If the form was cancelled before, it stays cancelled, and the event's
/// result says so.
async fn approve_form(event: &GrantLetterArchived, ctx: &Context) -> HandlerResult {
    advance(&event.form_id, FormStatus::Approved, ctx).await
}

/// Stores a grant for a case of another system.
async fn save_external_grant(event: &ExternalLetterArchived, ctx: &Context) -> HandlerResult {
    let tx = ctx.transaction().await?;
    keep_grant(&tx, None, &event.grant, &event.archived).await?;
    tx.complete(Done::ok()).await
}

/// Marks a form as cancelled.
async fn cancel_form(event: &FormCancelled, ctx: &Context) -> HandlerResult {
    advance(&event.form_id, FormStatus::Cancelled, ctx).await
}

/// Does nothing. The queue's statistics count the view once its event is in the log.
#[expect(clippy::unused_async, reason = "a handler is a future")]
async fn count_view(_event: &GrantLetterViewed) -> HandlerResult {
    Ok(Done::ok())
}

/// Emits the next step of a form. It follows the form's other events.
fn follow_up(ctx: &Context, form_id: &str, event: &FormEvent) -> Result<(), HandlerError> {
    ctx.emit_new(NewEvent::of(event).reject("emit")?.group(group_of(form_id)))
}

/// Loads the stored form, which must exist.
async fn load(ctx: &Context, form_id: &str) -> Result<Form, HandlerError> {
    let form = store::load(ctx, form_id).await?;
    form.ok_or_else(|| missing(form_id))
}

async fn keep_grant(
    tx: &Transaction<'_>,
    form_id: Option<&str>,
    grant: &Grant,
    archived: &Archived,
) -> Result<(), HandlerError> {
    let kept = store::save_grant(tx, form_id, grant, archived).await;
    if kept.retryable()? {
        return Ok(());
    }
    Err(HandlerError::reject(
        "grant_of_another_form",
        format!("grant {} belongs to another form", grant.grant_number),
    ))
}

/// Changes the status of a form. That it already has this status is fine.
async fn advance(form_id: &str, wanted: FormStatus, ctx: &Context) -> HandlerResult {
    let tx = ctx.transaction().await?;
    if !store::advance(&tx, form_id, wanted).await.retryable()? {
        let status = store::status_of(&tx, form_id).await.retryable()?;
        let status = status.ok_or_else(|| missing(form_id))?;
        if status != wanted {
            let message = format!("form {form_id} is {status:?} and cannot become {wanted:?}");
            return Err(HandlerError::reject("form_status", message));
        }
    }
    tx.complete(Done::ok()).await
}

fn missing(form_id: &str) -> HandlerError {
    HandlerError::reject(
        "form_not_found",
        format!("forms.form has no submitted form {form_id}"),
    )
}

/// Returns the reference of a notification about a grant.
fn of_grant(grant: &Grant, part: Part) -> String {
    format!("grant/{}/{}", grant.grant_number, part.names().0)
}

fn form_notice<'a>(form: &'a Form, reference: String, text: &'static str) -> Notice<'a> {
    Notice {
        reference,
        group: format!("form/{}", form.id),
        company_number: &form.company.number,
        text,
        contact: Some(&form.company.contact),
    }
}
