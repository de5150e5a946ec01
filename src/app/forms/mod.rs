//! The forms system: applications for grants, from the form that is handed in to the letter that
//! answers it. Several parties act on an application, each at its own pace and each down at times,
//! so every step is an event of its own.
//!
//! ```text
//! form_submitted → form_archived → case_opened
//! grant_letter_received → grant_letter_archived → grant_saved
//! external_letter_received → external_letter_archived
//! form_cancelled            grant_letter_viewed
//! ```
//!
//! # Layout
//!
//! [`model`] is the form and the grant, [`events`] what the steps tell each other, [`intake`] how
//! forms and messages enter, `handlers` what each step does, [`services`] the three systems they
//! talk to; `store` holds the SQL.

pub mod events;
pub(crate) mod handlers;
pub mod intake;
pub mod model;
pub mod services;
mod store;

pub use intake::{
    HANDED_IN_BEFORE, NO_GRANT_OF_FORM, Received, cancel, letter_of_form_viewed, letter_viewed,
    receive_letter, submit, take_over,
};
pub use model::{
    Company, Contact, Employee, Expert, Form, FormStatus, Grant, Measure, Need, Private,
};
