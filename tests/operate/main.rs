//! Tests of the verbs as people run them: migrate, look, act, clean up, the doctor.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod cleanup;
mod cli;
mod describe;
mod doctor;
mod figures;
mod forget;
mod look;
mod operate;
mod recipe;
mod records;
mod starter;
#[path = "../job/support.rs"]
mod support;
mod trace;
mod why;
mod width;
