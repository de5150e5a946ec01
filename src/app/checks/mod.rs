//! The AI checks: before an application is issued, a slow service checks it.
//!
//! ```text
//! message ─ filter ─→ issuings-ai-checks ─→ overdue: ended
//!                            ↑            ├→ two or more checks are NEW: put off, as a new event
//!                            └────────────┘
//!                                         └→ checked, answer stored
//! ```
//!
//! The meaning of NEW needs care. The requirement only says: count the rows of `issuing_check` whose
//! `work_statusom` is NEW; if there are two or more, save the event anew. If a row were NEW as soon as
//! its message arrives, three simultaneous messages would wait for each other forever. Therefore a row
//! is PLANNED until its check begins, NEW while the AI service works on it, and then DONE. It is OVERDUE
//! if the check came too late.
//!
//! Two checks run at a time: the policy of the kind sees to that, without a look at the rows. The gate also
//! counts the checks that another system performs.
//!
//! # Layout
//!
//! This file contains the payload of the event. [`intake`] receives messages, and `handler` contains
//! the four steps. `store` contains the SQL.

pub(crate) mod handler;
pub mod intake;
mod store;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::schema::{self, Described, Schemas, describe};

pub use intake::{Filter, ReceiveIssuingReport, answer, receive};
use tidegate::{Error, NewEvent, dedup_key};

tidegate::events! {
    /// What the checks system does.
    #[derive(Debug)]
    pub enum CheckEvent {
        /// An application needs an AI check before it is issued.
        IssuingsAiChecks(IssuingCheck) = "issuings-ai-checks",
    }
}

/// The payload of `issuings-ai-checks`: `{"triggerId", "applicationId"}` and nothing else (B32).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuingCheck {
    /// The trigger that made the check necessary. One trigger causes one check of an application.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub trigger_id: String,
    /// The application to check.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub application_id: String,
}

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::of(schemas()));

/// The schemas of messages and payloads.
pub(super) fn schemas() -> Described {
    let mut schemas = Described::new();
    describe::<intake::Wanted>(&mut schemas);
    schemas
}

impl IssuingCheck {
    /// Checks both ids, regardless of the publisher.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what is allowed. It does not quote the value.
    pub fn check(&self) -> Result<(), Error> {
        let faults = SCHEMAS.check::<Self>(&json!(self));
        if faults.is_empty() {
            return Ok(());
        }
        Err(schema::refused("payload", &faults))
    }

    /// A key that is the same for every event of this check, in every database. It identifies the check, not
    /// the event, because one check may need several events.
    fn key(&self) -> Result<String, serde_json::Error> {
        dedup_key("issuing-check", self, &[])
    }

    /// Builds the event that requests this check. While it is live, there is no second one.
    fn event(&self) -> Result<NewEvent, Error> {
        let event = NewEvent::of(&CheckEvent::IssuingsAiChecks(self.clone()))?;
        let key = self.key();
        let key = key.map_err(|error| Error::Invalid(format!("payload: {error}")))?;
        Ok(event.dedup(key))
    }
}
