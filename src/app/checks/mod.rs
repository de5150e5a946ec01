//! The AI checks: an application is about to be issued, and a slow service is asked about it first.
//!
//! ```text
//! message ─ filter ─→ issuings-ai-checks ─→ overdue: ended
//!                            ↑            ├→ two or more checks are NEW: put off, as a new event
//!                            └────────────┘
//!                                         └→ checked, answer stored
//! ```
//!
//! The surprise is what NEW means. What the system is asked for is only: count the rows of
//! `issuing_check` whose `work_statusom` is NEW; from two on, save the event anew. Were a row NEW from
//! its message on, three messages at once would wait for each other for ever. So a row is PLANNED
//! until its check begins, NEW while the AI service works on it, DONE once it has answered, and the
//! gate lets two checks run at a time.
//!
//! # Layout
//!
//! This file holds the event's payload, [`intake`] how messages enter, `handler` the four steps;
//! `store` holds the SQL; `answer` and [`verb`] are how a message is received from outside.

mod answer;
pub(crate) mod handler;
pub mod intake;
mod store;
pub mod verb;

use serde::{Deserialize, Serialize};

use super::Event;
use tidegate::{Error, NewEvent, dedup_key};

pub use answer::{ReceiveIssuingReport, answer};
pub use intake::{Filter, Received, receive};

/// The payload of `issuings-ai-checks`: `{"triggerId", "applicationId"}` and nothing else (B32).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuingCheck {
    /// What made the check necessary; a trigger is checked once for an application.
    pub trigger_id: String,
    /// The application to check.
    pub application_id: String,
}

/// Longest id, in characters.
const ID_LIMIT: usize = 100;

impl IssuingCheck {
    /// Checks both ids, whoever published them.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what is allowed; it does not quote the value.
    pub fn check(&self) -> Result<(), Error> {
        for (field, id) in [
            ("triggerId", &self.trigger_id),
            ("applicationId", &self.application_id),
        ] {
            let blank = id.trim().is_empty();
            if blank || id.chars().count() > ID_LIMIT || id.contains('\0') {
                return Err(Error::Invalid(format!(
                    "{field}: must be text of 1 to {ID_LIMIT} characters, not only blanks, without NUL"
                )));
            }
        }
        Ok(())
    }

    /// The same for every event about this check, in every database: what is told apart by it are
    /// checks, not events, since one check may take several of them.
    fn key(&self) -> Result<String, serde_json::Error> {
        dedup_key("issuing-check", self, &[])
    }

    /// The event that asks for this check. While it lives there is no second one.
    fn event(&self) -> Result<NewEvent, serde_json::Error> {
        let event = NewEvent::of(&Event::IssuingsAiChecks(self.clone()))?;
        Ok(event.dedup(self.key()?))
    }
}
