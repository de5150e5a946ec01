//! Owns the calls of the forms system to its three services, one method for each call.
//! [`HttpService`] decides how a call fails.
//!
//! Each call identifies its subject by a reference of our own (`form/…`, `grant/…`). The reference
//! stays the same when an event is replayed with another id, and therefore another idempotency key.
//! A service that already knows the reference answers with the object that it has. This also counts
//! as success.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::model::{Form, Grant, Measure};
use crate::app::client::{HttpClient, HttpService};
use tidegate::{Error, HandlerError};

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
    pub fn from_settings(
        setting: impl Fn(&str) -> Option<String>,
        http: &HttpClient,
    ) -> Result<Self, Error> {
        let service =
            |name, variable| HttpService::from_setting(name, variable, &setting, http.clone());
        Ok(Self {
            archive: Archive(service(ARCHIVE, "ARCHIVE_URL")?),
            cases: Cases(service(CASES, "CASES_URL")?),
            notifications: Notifications(service(NOTIFICATIONS, "NOTIFICATIONS_URL")?),
        })
    }
}

/// The service that stores documents permanently.
#[derive(Debug, Clone)]
pub struct Archive(HttpService);

/// The place of a document in the archive.
#[derive(Debug, Deserialize)]
pub(super) struct Archived {
    pub document_id: String,
    pub journal_id: String,
}

impl Archive {
    pub(super) async fn form(&self, key: &str, form: &Form) -> Result<Archived, HandlerError> {
        self.document(
            key,
            &format!("form/{}", form.id),
            "Application",
            &json!(form),
        )
        .await
    }

    pub(super) async fn note(
        &self,
        key: &str,
        form_id: &str,
        measure: &Measure,
    ) -> Result<Archived, HandlerError> {
        self.document(
            key,
            &format!("note/{form_id}"),
            "Case opened",
            &json!(measure),
        )
        .await
    }

    pub(super) async fn letter(
        &self,
        key: &str,
        letter_id: &str,
        grant: &Grant,
    ) -> Result<Archived, HandlerError> {
        self.document(
            key,
            &format!("letter/{letter_id}"),
            "Grant letter",
            &json!(grant),
        )
        .await
    }

    async fn document(
        &self,
        key: &str,
        reference: &str,
        title: &str,
        content: &Value,
    ) -> Result<Archived, HandlerError> {
        let body = json!({"reference": reference, "title": title, "content": content});
        self.0.post_or_find("documents", key, &body).await
    }
}

/// The service that decides on applications.
#[derive(Debug, Clone)]
pub struct Cases(HttpService);

impl Cases {
    pub(super) async fn open(
        &self,
        key: &str,
        form: &Form,
        document_id: &str,
        journal_id: &str,
    ) -> Result<Measure, HandlerError> {
        let body = json!({
            "reference": format!("form/{}", form.id),
            "company_number": form.company.number,
            "employee_national_id": form.employee.national_id,
            "start_date": form.need.start_date,
            "estimated_cost": form.need.estimated_cost,
            "document_id": document_id,
            "journal_id": journal_id,
        });
        self.0.post("cases", key, &body).await
    }
}

/// The service that notifies companies about their applications.
#[derive(Debug, Clone)]
pub struct Notifications(HttpService);

/// The answers of the service. Both count as success, because the company has been notified.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Told {
    Created,
    Duplicate,
}

#[derive(Debug, Deserialize)]
struct Notified {
    result: Told,
}

/// A notification for a company about one application or grant.
#[derive(Debug, Serialize)]
pub(super) struct Notice<'a> {
    /// Our own reference. The service recognizes a repetition by it.
    pub reference: String,
    /// Groups related entries on the company's page.
    pub group: String,
    pub company_number: &'a str,
    pub text: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<&'a super::model::Contact>,
}

impl Notifications {
    /// Adds an entry to the company's page.
    pub(super) async fn case(&self, key: &str, notice: &Notice<'_>) -> Result<(), HandlerError> {
        self.send("cases", key, notice).await
    }

    /// Adds a message to an entry.
    pub(super) async fn message(&self, key: &str, notice: &Notice<'_>) -> Result<(), HandlerError> {
        self.send("messages", key, notice).await
    }

    /// Changes the status of an entry.
    pub(super) async fn status(&self, key: &str, notice: &Notice<'_>) -> Result<(), HandlerError> {
        self.send("statuses", key, notice).await
    }

    async fn send(&self, path: &str, key: &str, notice: &Notice<'_>) -> Result<(), HandlerError> {
        let Notified {
            result: Told::Created | Told::Duplicate,
        } = self.0.post(path, key, notice).await?;
        Ok(())
    }
}
