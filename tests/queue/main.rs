//! Tests of the queue's statements and the lease: what is published, leased, ended and pulled, in which
//! order, by which plans.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod batch;
mod carrier;
mod change;
mod contract;
mod guards;
mod holds;
mod interleave;
mod payload;
mod plans;
mod pull;
mod queue;
mod replace;
mod roundtrip;
mod scenes;
#[path = "../job/support.rs"]
mod support;
mod upgrade;
mod versions;
mod walk;
