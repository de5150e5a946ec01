//! The integration tests: one binary, one Postgres for all, a database for each.

mod probe;
mod support;

mod checks;
mod drain;
mod forms;
mod harness;
mod process;
mod queue;
