//! Tests of connections, logins, roles and sealed payloads; several queues in one program.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod connect;
mod pooler;
mod queues;
mod roles;
mod seal;
mod secret;

#[path = "../job/support.rs"]
mod support;
