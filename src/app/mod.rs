//! Owns the shipped events and the one `match` from each to its handlers. It knows nothing of how
//! they are queued, leased or retried.

pub mod forms;
pub mod service;

use std::env;

use crate::context::Context;
use crate::error::Error;
use crate::handler::{DATABASE_ONLY, Dispatch, Handlers};

use forms::events::{
    CaseOpened, ExternalLetterArchived, ExternalLetterReceived, FormArchived, FormCancelled,
    FormSubmitted, GrantLetterArchived, GrantLetterReceived, GrantLetterViewed, GrantSaved,
};
use forms::handlers;
use forms::services::{ARCHIVE, CASES, NOTIFICATIONS, Services};
use service::HttpClient;

crate::events! {
    /// Every event this program publishes and handles.
    #[derive(Debug)]
    pub enum Event {
        /// A form was handed in.
        FormSubmitted(FormSubmitted) = "form_submitted",
        /// The archive has the form.
        FormArchived(FormArchived) = "form_archived",
        /// The case system has opened a case for it.
        CaseOpened(CaseOpened) = "case_opened",
        /// A grant letter came for a form.
        GrantLetterReceived(GrantLetterReceived) = "grant_letter_received",
        /// The archive has the letter.
        GrantLetterArchived(GrantLetterArchived) = "grant_letter_archived",
        /// The grant is stored.
        GrantSaved(GrantSaved) = "grant_saved",
        /// A grant letter came for a case that is not ours.
        ExternalLetterReceived(ExternalLetterReceived) = "external_letter_received",
        /// The archive has that letter.
        ExternalLetterArchived(ExternalLetterArchived) = "external_letter_archived",
        /// The case system cancelled a form's measure.
        FormCancelled(FormCancelled) = "form_cancelled",
        /// Somebody looked at a grant letter.
        GrantLetterViewed(GrantLetterViewed) = "grant_letter_viewed",
    }
}

/// The shipped program: its events' handlers and the services they talk to.
#[derive(Debug, Clone)]
pub struct App {
    forms: Services,
}

impl App {
    /// Reads the services' base URLs from the environment: `ARCHIVE_URL`, `CASES_URL`,
    /// `NOTIFICATIONS_URL`. The handlers of a service that is not set retry; everything else works.
    ///
    /// # Errors
    /// [`Error::Config`] when one is malformed; names it and what is allowed.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_settings(|name| {
            env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// As [`App::from_env`], from anything that knows settings by name.
    ///
    /// # Errors
    /// As [`App::from_env`].
    pub fn from_settings(setting: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let http = HttpClient::default();
        Ok(Self {
            forms: Services::from_settings(&setting, &http)?,
        })
    }
}

impl Dispatch for App {
    type Event = Event;

    #[expect(
        clippy::too_many_lines,
        reason = "one arm a kind, in one place, is the point of it"
    )]
    fn handlers<'a>(&'a self, event: &'a Event, ctx: &'a Context) -> Handlers<'a> {
        let Services {
            archive,
            cases,
            notifications,
        } = &self.forms;
        match event {
            Event::FormSubmitted(event) => Handlers::one(
                "archive_form",
                ARCHIVE,
                handlers::archive_form(archive, event, ctx),
            ),
            Event::FormArchived(event) => {
                Handlers::one("open_case", CASES, handlers::open_case(cases, event, ctx))
            }
            Event::CaseOpened(event) => Handlers::one(
                "archive_note",
                ARCHIVE,
                handlers::archive_note(archive, event, ctx),
            )
            .and(
                "notify_received",
                NOTIFICATIONS,
                handlers::notify_received(notifications, event, ctx),
            ),
            Event::GrantLetterReceived(event) => Handlers::one(
                "archive_letter",
                ARCHIVE,
                handlers::archive_letter(archive, event, ctx),
            ),
            Event::GrantLetterArchived(event) => Handlers::one(
                "save_grant",
                DATABASE_ONLY,
                handlers::save_grant(event, ctx),
            )
            .and(
                "approve_form",
                DATABASE_ONLY,
                handlers::approve_form(event, ctx),
            ),
            Event::GrantSaved(event) => Handlers::one(
                "notify_approved",
                NOTIFICATIONS,
                handlers::notify_approved(notifications, event, ctx),
            ),
            Event::ExternalLetterReceived(event) => Handlers::one(
                "archive_letter",
                ARCHIVE,
                handlers::archive_external_letter(archive, event, ctx),
            ),
            Event::ExternalLetterArchived(event) => Handlers::one(
                "save_external_grant",
                DATABASE_ONLY,
                handlers::save_external_grant(event, ctx),
            )
            .and(
                "notify_external",
                NOTIFICATIONS,
                handlers::notify_external(notifications, event, ctx),
            ),
            Event::FormCancelled(event) => Handlers::one(
                "notify_cancelled",
                NOTIFICATIONS,
                handlers::notify_cancelled(notifications, event, ctx),
            )
            .and(
                "cancel_form",
                DATABASE_ONLY,
                handlers::cancel_form(event, ctx),
            ),
            Event::GrantLetterViewed(event) => {
                Handlers::one("count_view", DATABASE_ONLY, handlers::count_view(event))
            }
        }
    }
}
