//! Tests of connections, logins, roles and sealed payloads; several queues in one program.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

mod connect;
mod network;
mod pooler;
mod queues;
mod roles;
mod seal;
mod secret;
#[path = "../job/support.rs"]
mod support;
