//! Tests of the verbs as programs call them, schedules, plans, figures, cleanup.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod change;
mod cleanup;
mod figures;
mod forget;
mod operate;
mod payload;
mod periodic;
mod plans;
mod recipe;
