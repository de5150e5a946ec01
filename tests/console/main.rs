//! Tests of the web console.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod console;
mod console_crowd;
mod console_function;
#[path = "../job/support.rs"]
mod support;
