//! Tests of the Lambda function, what it takes in, what wakes it, its traces, and the
//! console as a function.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod collector;
mod console_function;
mod elastic;
mod function;
mod intake;
mod otel;
mod tick;

#[path = "../job/support.rs"]
mod support;
