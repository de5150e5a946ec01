//! Everything of a queue that goes to Postgres. Programs depend on `tidegate`, which shows what they need of
//! this; the other crates of the project build on it.
//!
//! It owns the schema (`sql/`, [`migrate`]), every statement of the live queue beside its call ([`queue`]),
//! connections and logins ([`connect`]), settings ([`config`]), and what is stored of an event ([`event`],
//! [`lease`], [`progress`], [`fault`], [`policy`]).
//!
//! It knows no handler, no drain, no command line, no report and no cloud. Crates of clouds implement
//! [`connect::Cloud`], [`chain::StartDrain`] and [`chain::NextTick`].
//!
//! An event comes in by [`queue::publish`], is sealed if the process has keys ([`sealing`]), waits in
//! `event_queue`, goes out by [`queue::lease`] as a [`lease::LeasedEvent`], and comes back by
//! [`queue::complete`] or [`queue::finalize_under`] into the log, or by [`queue::retry`] into the queue.

pub mod chain;
pub mod cleanup_run;
pub mod config;
pub mod connect;
pub mod error;
pub mod event;
pub mod fault;
pub mod json;
pub mod lease;
pub mod migrate;
pub mod policy;
pub mod progress;
pub mod queue;
pub mod sealing;
pub mod status;
pub mod trace;

pub use error::Error;
pub use event::{DecodeError, Event, NewEvent};
pub use json::Json;

/// The Postgres driver whose connections and transactions this API takes.
pub use tokio_postgres;

/// What [`messaging_span!`] expands to.
pub use tracing;

/// Items that [`events!`] expands to. Not for direct use.
#[doc(hidden)]
pub mod export {
    pub use serde_json;
    pub use serde_json::value::RawValue;

    pub use crate::event::{check_kinds, decode, encode, is_kind, joined, lift};
}
