//! Tests of a drain at work: handlers, retries, services, limits, schedules, processes that die.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod drain;
mod elastic;
mod guest;
mod interrupted;
mod limits;
mod load;
mod periodic;
mod policy;
mod process;
mod progress;
mod sandbox;
mod service;
mod shop;
mod slots;
mod snooze;
mod steady;
#[path = "../job/support.rs"]
mod support;
mod tick;
mod waits;
mod wake;
