//! Owns an error of a handler in the form in which it is stored.

use std::borrow::Cow;
use std::fmt::Display;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::event;
use crate::json::Json;

/// The longest message that is stored for one fault, in characters. A handler may produce megabytes.
const MOST_MESSAGE: usize = 2000;

/// The longest details that are stored for one fault, in bytes of JSON.
const MOST_DETAILS: usize = 16 << 10;

/// One error of a handler, as stored in the `errors` array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "give it to a HandlerError"]
pub struct Fault {
    /// Short and stable, for programs: `timeout`, `409`, `not_found`.
    pub code: Cow<'static, str>,
    /// For people. It is stored, so never put personal data or secrets here.
    pub message: String,
    /// What programs need beyond the code, such as the invalid fields of a request. If it has more than 16
    /// KiB of JSON, only its length is stored, as `{"left_out_bytes": …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Json>,
}

impl Fault {
    /// Creates a fault without details.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self {
            code: code.into(),
            message: message.to_string(),
            details: None,
        }
    }

    /// Returns the fault in the form in which it is stored: without NUL characters, which Postgres cannot
    /// store, and cut to the limits. Details with such a character are left out.
    pub fn storable(&self) -> Self {
        let cut = |text: &str, most: usize| -> String {
            text.chars().filter(|c| *c != '\0').take(most).collect()
        };
        let details = self.details.clone().map(|details| {
            let text = details.get();
            if text.len() > MOST_DETAILS || event::has_nul_escape(text) {
                return json!({"left_out_bytes": text.len()}).into();
            }
            details
        });
        Self {
            code: cut(&self.code, 100).into(),
            message: cut(&self.message, MOST_MESSAGE),
            details,
        }
    }

    /// Adds details for programs.
    pub fn with_details(mut self, details: impl Into<Json>) -> Self {
        self.details = Some(details.into());
        self
    }
}
