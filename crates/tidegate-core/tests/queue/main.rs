//! Tests of the queue's statements and the lease: what is published, leased and ended, in which order, and
//! what guards it.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod contract;
mod holds;
mod interleave;
mod queue;
mod scenes;
