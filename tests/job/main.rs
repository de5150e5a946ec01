//! Tests of the shipped application: forms, checks, medical jobs, and its HTTP interface.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod application;
mod callers;
mod checks;
mod contract;
mod forgotten;
mod forms;
mod golden;
mod http;
mod medical;
mod prometheus;
mod strangers;
mod support;
