//! The integration tests: one binary, one Postgres for all, a database for each.

mod support;

mod forms;
mod harness;
