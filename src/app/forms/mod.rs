//! The forms system: applications for grants, from the submitted form to the letter that answers
//! it. Several systems process an application. Each works at its own pace and may be down at times, so every
//! step is an event of its own.
//!
//! ```text
//! form_submitted → form_archived → case_opened
//! grant_letter_received → grant_letter_archived → grant_saved
//! external_letter_received → external_letter_archived
//! form_cancelled            form_declined            grant_letter_viewed
//! ```
//!
//! # Layout
//!
//! - [`model`] defines the form and the grant, and [`events`] the payloads of the steps.
//! - [`intake`] receives forms and messages.
//! - `handlers` contains the work of each step, and [`services`] the three systems that the
//!   handlers call.
//! - `store` contains the SQL.

pub mod events;
pub(crate) mod handlers;
pub mod intake;
pub mod model;
pub mod services;
mod store;

pub use intake::{
    ANOTHER_MESSAGE, HANDED_IN_BEFORE, ID_OF_A_CLIENT, NO_GRANT_OF_FORM, SubmitReport, cancel,
    decline, letter_viewed, read, receive_letter, submit,
};
pub use model::{Form, Grant, Letter, Measure, MeasureNotice, Progress, Viewed};
