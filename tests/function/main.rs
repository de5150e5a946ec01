//! Tests of the Lambda function, what it takes in, its traces, and the relay.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod collector;
mod function;
mod intake;
mod otel;
mod relay;
#[path = "../job/support.rs"]
mod support;
