//! The integration tests: one binary, one Postgres for all, a database for each.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod probe;
mod support;

mod drain;
mod forms;
mod harness;
mod process;
mod queue;
