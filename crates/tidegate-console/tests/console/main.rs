//! Tests of the web console.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod console;
mod console_crowd;
