//! Owns the calls of the forms system to its three services. [`HttpService`] decides how a call fails.
//!
//! Each call identifies its subject by a reference of our own (`form/…`, `grant/…`). The reference
//! stays the same when an event is replayed with another id, and therefore another idempotency key.
//! A service that already knows the reference answers with the object that it has. This also counts
//! as success.

use serde::Serialize;
use serde_json::{Value, json};
use tidegate::{Context, Error, HandlerError, Lookup};

use super::events::Archived;
use super::model::{Contact, Form, Measure};
use crate::app::client::{HttpClient, HttpService};

/// The document archive.
pub const ARCHIVE: &str = "archive";
/// The case system.
pub const CASES: &str = "cases";
/// The notification service.
pub const NOTIFICATIONS: &str = "notifications";

/// The three services.
#[derive(Debug, Clone)]
pub struct Services {
    pub(crate) archive: Archive,
    pub(crate) cases: Cases,
    pub(crate) notifications: Notifications,
}

impl Services {
    /// Reads `ARCHIVE_URL`, `CASES_URL` and `NOTIFICATIONS_URL`.
    ///
    /// # Errors
    /// [`Error::Config`] if a URL is malformed. A missing URL is no error here: the events that need
    /// it wait and report it.
    pub fn from_settings(lookup: Lookup<'_>, http: &HttpClient) -> Result<Self, Error> {
        let service = |name, variable| HttpService::from_setting(name, variable, lookup, http);
        let mut archive = service(ARCHIVE, "ARCHIVE_URL")?;
        archive.finds = true;
        Ok(Self {
            archive: Archive(archive),
            cases: Cases(service(CASES, "CASES_URL")?),
            notifications: Notifications(service(NOTIFICATIONS, "NOTIFICATIONS_URL")?),
        })
    }
}

/// The service that stores documents permanently.
#[derive(Debug, Clone)]
pub struct Archive(HttpService);

impl Archive {
    /// Stores a document, and returns where. Its reference says `what` it is, and of which `id`.
    pub(super) async fn store(
        &self,
        ctx: &Context,
        (what, id): (&str, &str),
        title: &str,
        content: &impl Serialize,
    ) -> Result<Archived, HandlerError> {
        let body = document((what, id), title, content);
        let key = ctx.idempotency_key(what);
        self.0.post("documents", &key, &body).await
    }

    /// Like [`Archive::store`], for a document whose place nobody needs to know.
    pub(super) async fn keep(
        &self,
        ctx: &Context,
        (what, id): (&str, &str),
        title: &str,
        content: &impl Serialize,
    ) -> Result<(), HandlerError> {
        let body = document((what, id), title, content);
        let key = ctx.idempotency_key(what);
        self.0.tell("documents", &key, &body).await
    }
}

fn document((what, id): (&str, &str), title: &str, content: &impl Serialize) -> Value {
    json!({"reference": format!("{what}/{id}"), "title": title, "content": content})
}

/// The service that decides on applications.
#[derive(Debug, Clone)]
pub struct Cases(HttpService);

impl Cases {
    pub(super) async fn open(
        &self,
        ctx: &Context,
        form: &Form,
        archived: &Archived,
    ) -> Result<Measure, HandlerError> {
        let body = json!({
            "reference": format!("form/{}", form.id),
            "company_number": form.company.number,
            "employee_national_id": form.employee.national_id,
            "start_date": form.need.start_date,
            "estimated_cost": form.need.estimated_cost,
            "document_id": archived.document_id,
            "journal_id": archived.journal_id,
        });
        let key = ctx.idempotency_key("case");
        let opened: Opened = self.0.post("cases", &key, &body).await?;
        Ok(Measure {
            case_number: opened.case_number,
            measure_id: opened.measure_id,
        })
    }
}

/// The answer of the case system, which may have further fields.
#[derive(serde::Deserialize)]
struct Opened {
    case_number: String,
    measure_id: String,
}

/// The service that notifies companies about their applications.
#[derive(Debug, Clone)]
pub struct Notifications(HttpService);

/// What a notification does: the name of the sub-step, and the path of the service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part(pub &'static str, &'static str);

impl Part {
    /// Adds an entry to the company's page.
    pub const CASE: Self = Self("case", "cases");
    /// Adds a message to an entry.
    pub const MESSAGE: Self = Self("message", "messages");
    /// Changes the status of an entry.
    pub const STATUS: Self = Self("status", "statuses");
}

/// A notification for a company about one application or grant.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Notice<'a> {
    /// What its texts are about: a key of `forms.notice`.
    #[serde(skip)]
    pub about: &'static str,
    /// Our own reference. The service recognizes a repetition by it.
    pub reference: String,
    /// Groups related entries on the company's page.
    pub group: String,
    pub company_number: &'a str,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<&'a Contact>,
}

impl Notifications {
    pub(super) async fn send(
        &self,
        ctx: &Context,
        Part(name, path): Part,
        notice: &Notice<'_>,
    ) -> Result<(), HandlerError> {
        let key = ctx.idempotency_key(name);
        self.0.tell(path, &key, notice).await
    }
}
