//! Tidegate: a durable, at-least-once event queue in one Postgres database, drained by a short-lived
//! function.
//!
//! # Layout
//!
//! A drain is a pipeline; each stage is a file:
//!
//! 1. [`budget`]: how long the run has;
//! 2. [`queue`]: lease a batch (all SQL is there);
//! 3. [`event`]: decode each row in hand ([`lease`]) into the program's enum;
//! 4. [`dispatch`]: one `match` lists the handlers, [`context`] is what they may ask for, [`handler`] what they answer;
//! 5. [`outcome`]: from verdicts to what is stored;
//! 6. [`queue`] again: finalize, retry, release;
//! 7. [`mod@drain`]: the loop around it all, and its report.
//!
//! Beside it: [`config`] and [`connect`] (settings, secrets, TLS, connections), [`migrate`] (the schema),
//! [`retention`] (cleanup: how finished events leave the log), [`operate`] (what operators may ask for),
//! [`doctor`] (is everything well?), [`figures`] and [`metrics`] (what CloudWatch is told), [`trace`]
//! (a trace crosses the queue), [`xray`] (and is shown in X-Ray), [`invocation`] (both ends of the wire to Lambda and the command line),
//! [`program`] (a whole program, ready for a shell).

pub mod budget;
pub mod config;
pub mod connect;
pub mod context;
pub mod dispatch;
pub mod doctor;
pub mod drain;
pub mod error;
pub mod event;
pub mod figures;
pub mod handler;
pub mod invocation;
pub mod lease;
#[cfg(feature = "logging")]
pub mod logs;
pub mod metrics;
pub mod migrate;
pub mod operate;
pub mod outcome;
pub mod program;
pub mod queue;
pub mod retention;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;
pub mod xray;

pub use connect::Database;
pub use context::{Context, Transaction};
pub use dispatch::{DATABASE_ONLY, Dispatch, Handler, Handlers};
pub use drain::{DrainOptions, DrainReport, StopReason, drain};
pub use error::Error;
pub use event::{DecodeError, Event, NewEvent, dedup_key};
pub use handler::{Done, Fault, HandlerError, HandlerResult, Verdicts};
pub use program::{Program, Service};
pub use queue::{Published, publish, publish_batch};

/// What [`events!`] expands to; not for direct use.
#[doc(hidden)]
pub mod export {
    pub use serde_json;
    pub use serde_json::value::{RawValue, to_raw_value};
}
