//! Owns the handlers of the forms system. A handler is a method of the one service it calls, so it cannot
//! call another one (A18). If that service is down, no other service is called again because of it (A19).
//!
//! Every handler may run again for the same event (D8). For calls to a service, the idempotency key
//! and the reference make a repetition harmless. For writes to the database, one transaction
//! contains both the write and the end of the event.

use tidegate::{Context, Done, HandlerError, HandlerResult, Handlers, NewEvent};

use super::events::{self, FormEvent};
use super::intake::{external, group_of, taken_in};
use super::model::{Form, FormStatus, Grant};
use super::services::{
    ARCHIVE, Archive, CASES, Cases, NOTIFICATIONS, Notice, Notifications, Part, Services,
};
use super::store;
use uuid::Uuid;

/// The handlers of each step, each with the service that it calls.
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
        }
        FormEvent::FormDeclined(event) => {
            Handlers::one("archive_decision", archive.decision(event, ctx))
                .calls(ARCHIVE)
                .and("notify_declined", notifications.declined(event, ctx))
                .calls(NOTIFICATIONS)
        }
        // The queue's statistics count the view once its event is in the log.
        FormEvent::GrantLetterViewed(_) => Handlers::one("count_view", async { Ok(Done::ok()) }),
    }
}

impl Archive {
    /// Archives a submitted form.
    async fn form(&self, event: &events::FormSubmitted, ctx: &Context) -> HandlerResult {
        let form = &event.form;
        let reference = ("form", form.id.as_str());
        let archived = self.store(ctx, reference, "Application", form).await?;
        let form_id = form.id.clone();
        let archived = events::FormArchived { form_id, archived };
        follow_up(ctx, &form.id, &FormEvent::FormArchived(archived))?;
        Ok(Done::ok())
    }

    /// Adds a note to the archive that a case was opened.
    async fn note(&self, event: &events::CaseOpened, ctx: &Context) -> HandlerResult {
        let reference = ("note", event.form_id.as_str());
        let stored = self.keep(ctx, reference, "Case opened", &event.case);
        stored.await?;
        Ok(Done::ok())
    }

    /// Archives the grant letter of a form.
    async fn letter(&self, event: &events::GrantLetterReceived, ctx: &Context) -> HandlerResult {
        let reference = ("letter", event.letter_id.as_str());
        let grant = event.grant.clone();
        let archived = events::GrantLetterArchived {
            form_id: event.form_id.clone(),
            archived: self.store(ctx, reference, "Grant letter", &grant).await?,
            grant,
        };
        let archived = FormEvent::GrantLetterArchived(archived);
        follow_up(ctx, &event.form_id, &archived)?;
        Ok(Done::ok())
    }

    /// Archives the decision that declined a form.
    async fn decision(&self, event: &events::FormDeclined, ctx: &Context) -> HandlerResult {
        let reference = ("letter", event.letter_id.as_str());
        let archived = self.keep(ctx, reference, "Declined", &event.measure);
        archived.await?;
        Ok(Done::ok())
    }

    /// Archives the grant letter for a case of another system. If a form has got the case meanwhile, the
    /// letter has an event of the form, and there is nothing to do.
    async fn external_letter(
        &self,
        event: &events::ExternalLetterReceived,
        ctx: &Context,
    ) -> HandlerResult {
        let letter_id = Uuid::try_parse(&event.letter_id).ok();
        let client = ctx.connection().await?;
        let (form_id, waits_for) = store::letter(&*client, letter_id, &event.grant).await?;
        drop(client);
        if form_id.is_some() {
            return Ok(Done::ok());
        }
        if waits_for.is_some() {
            ctx.emit(&external(event.clone(), waits_for.as_deref())?)?;
            return Ok(Done::ok().put_off());
        }
        let reference = ("letter", event.letter_id.as_str());
        let grant = event.grant.clone();
        let archived = events::ExternalLetterArchived {
            archived: self.store(ctx, reference, "Grant letter", &grant).await?,
            grant,
        };
        ctx.emit(&FormEvent::ExternalLetterArchived(archived))?;
        Ok(Done::ok())
    }
}

impl Cases {
    /// Opens a case for an archived form and stores its number. Later messages find the form by this
    /// number. Messages that came earlier are taken in now.
    async fn open_case(&self, event: &events::FormArchived, ctx: &Context) -> HandlerResult {
        let form_id = &event.form_id;
        let form = store::load(ctx, form_id).await?;
        let opened = match store::case_of(ctx, form_id).await? {
            Some(case) => case,
            None => self.open(ctx, &form, &event.archived).await?,
        };
        let tx = ctx.transaction().await?;
        let case = store::keep_case(&tx, form_id, &opened).await?;
        let opened = events::CaseOpened {
            form_id: form_id.clone(),
            case: case.clone(),
        };
        follow_up(ctx, form_id, &FormEvent::CaseOpened(opened))?;
        for message in store::adopt(&tx, form_id, &case).await? {
            let event = taken_in(&tx, form_id, &case, message).await?;
            follow_up(ctx, form_id, &event)?;
        }
        tx.complete(Done::ok()).await
    }
}

impl Notifications {
    /// Notifies the company that its application was received.
    async fn received(&self, event: &events::CaseOpened, ctx: &Context) -> HandlerResult {
        let form = store::load(ctx, &event.form_id).await?;
        let notice = form_notice(&form, "received");
        self.notify(ctx, notice, &[Part::CASE]).await
    }

    /// Notifies the company of its grant with a message and a new status.
    async fn approved(&self, event: &events::GrantSaved, ctx: &Context) -> HandlerResult {
        let form = ended(FormStatus::Approved, &event.form_id, ctx).await?;
        // A form may get several grants.
        let notice = Notice {
            reference: format!("form/{}/{}", form.id, of_grant(&event.grant)),
            ..form_notice(&form, "approved")
        };
        self.notify(ctx, notice, &[Part::MESSAGE, Part::STATUS])
            .await
    }

    /// Notifies a company of a grant for a case of another system. The company's page has no entry for
    /// that case yet, so there are three sub-steps: the entry, the message and the status.
    async fn external(
        &self,
        event: &events::ExternalLetterArchived,
        ctx: &Context,
    ) -> HandlerResult {
        let notice = Notice {
            about: "external",
            reference: of_grant(&event.grant),
            group: format!("case/{}", event.grant.measure.case_number),
            company_number: &event.grant.company_number,
            text: String::new(),
            contact: None,
        };
        self.notify(ctx, notice, &[Part::CASE, Part::MESSAGE, Part::STATUS])
            .await
    }

    /// Notifies the company that its application was cancelled.
    async fn cancelled(&self, event: &events::FormCancelled, ctx: &Context) -> HandlerResult {
        let form = ended(FormStatus::Cancelled, &event.form_id, ctx).await?;
        let notice = form_notice(&form, "cancelled");
        self.notify(ctx, notice, &[Part::STATUS]).await
    }

    /// Notifies the company that its application was declined, with a message and a new status.
    async fn declined(&self, event: &events::FormDeclined, ctx: &Context) -> HandlerResult {
        let form = ended(FormStatus::Declined, &event.form_id, ctx).await?;
        let notice = form_notice(&form, "declined");
        self.notify(ctx, notice, &[Part::MESSAGE, Part::STATUS])
            .await
    }

    /// Sends a company the parts of a notice, each once. `forms.notice` has their texts.
    async fn notify(&self, ctx: &Context, notice: Notice<'_>, parts: &[Part]) -> HandlerResult {
        let about = notice.about;
        let mut texts = store::notice(ctx, about).await?;
        for part in parts.iter().copied() {
            let missing = || format!("forms.notice has no text for {about}, {}", part.0);
            let missing = || HandlerError::retry("notice_missing", missing());
            let notice = Notice {
                reference: format!("{}/{}", notice.reference, part.0),
                text: texts.remove(part.0).ok_or_else(missing)?,
                ..notice.clone()
            };
            ctx.once(part.0, self.send(ctx, part, &notice)).await?;
        }
        Ok(Done::ok())
    }
}

/// Stores the grant of a form.
async fn save_grant(event: &events::GrantLetterArchived, ctx: &Context) -> HandlerResult {
    let form_id = &event.form_id;
    let form = store::load(ctx, form_id).await?;
    // A form that was approved is never declined later.
    if form.status == FormStatus::Declined {
        return Err(did_not_stand(&form));
    }
    let tx = ctx.transaction().await?;
    store::save_grant(&tx, Some(form_id), &event.grant, &event.archived).await?;
    let saved = events::GrantSaved {
        form_id: form_id.clone(),
        grant: event.grant.clone(),
    };
    follow_up(ctx, form_id, &FormEvent::GrantSaved(saved))?;
    tx.complete(Done::ok()).await
}

/// Stores a grant for a case of another system.
async fn save_external_grant(
    event: &events::ExternalLetterArchived,
    ctx: &Context,
) -> HandlerResult {
    let tx = ctx.transaction().await?;
    store::save_grant(&tx, None, &event.grant, &event.archived).await?;
    tx.complete(Done::ok()).await
}

/// Emits the next step of a form. It follows the form's other events.
fn follow_up(ctx: &Context, form_id: &str, event: &FormEvent) -> Result<(), HandlerError> {
    ctx.emit(&NewEvent::of(event)?.group(group_of(form_id)))
}

/// Loads a form, to tell its company how it ended. If the form has ended otherwise, that end stands: nobody
/// is told "Approved" of an application that was cancelled or declined.
async fn ended(end: FormStatus, form_id: &str, ctx: &Context) -> Result<Form, HandlerError> {
    let form = store::load(ctx, form_id).await?;
    // A message ends its form, but an event that was published by hand does not.
    if [end, FormStatus::Submitted].contains(&form.status) {
        return Ok(form);
    }
    Err(did_not_stand(&form))
}

/// The verdict on a message about a form that has ended otherwise: a person has to look at it.
fn did_not_stand(form: &Form) -> HandlerError {
    HandlerError::reject(
        "form_status",
        format!("form {} is {}", form.id, form.status),
    )
}

/// The reference of notifications about a grant.
fn of_grant(grant: &Grant) -> String {
    format!("grant/{}", grant.grant_number)
}

fn form_notice<'a>(form: &'a Form, about: &'static str) -> Notice<'a> {
    Notice {
        about,
        reference: format!("form/{}/{about}", form.id),
        group: format!("form/{}", form.id),
        company_number: &form.company.number,
        text: String::new(),
        contact: Some(&form.company.contact),
    }
}
