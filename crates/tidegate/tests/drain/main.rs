//! Tests of a drain at work: handlers, retries, limits, pulls, replacements, processes that die.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod batch;
mod drain;
mod guards;
mod guest;
mod interrupted;
mod limits;
mod network;
mod policy;
mod process;
mod progress;
mod pull;
mod replace;
mod roundtrip;
mod slots;
mod snooze;
mod upgrade;
mod versions;
mod waits;
mod wake;
mod walk;
