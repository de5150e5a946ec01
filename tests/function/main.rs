//! Tests of the Lambda function, what it takes in, what wakes it, its traces, and the relay.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod collector;
mod elastic;
mod function;
mod intake;
mod otel;
mod relay;
mod tick;

#[path = "../job/support.rs"]
mod support;
