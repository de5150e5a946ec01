//! Tests of the shipped application: forms, checks, medical jobs, and its HTTP interface.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod application;
mod callers;
mod checks;
mod contract;
mod forms;
mod golden;
mod http;
mod medical;
mod prometheus;
mod strangers;
mod support;
