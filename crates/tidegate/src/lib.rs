//! Tidegate: a durable, at-least-once event queue in one Postgres database, drained by a short-lived
//! function.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tidegate::{Context, Dispatch, Done, HandlerResult, Handlers, NewEvent, Program, publish};
//!
//! #[derive(Serialize, Deserialize)]
//! struct OrderPlaced {
//!     order_id: i64,
//! }
//!
//! tidegate::events! {
//!     enum ShopEvent {
//!         OrderPlaced(OrderPlaced) = "order_placed",
//!     }
//! }
//!
//! struct Shop;
//!
//! impl Dispatch for Shop {
//!     type Event = ShopEvent;
//!
//!     fn handlers<'a>(&'a self, event: &'a ShopEvent, ctx: &'a Context) -> Handlers<'a> {
//!         match event {
//!             ShopEvent::OrderPlaced(order) => Handlers::one("book", book(order, ctx)),
//!         }
//!     }
//! }
//!
//! /// The commit of its transaction is its completion: what it writes is written exactly once.
//! async fn book(order: &OrderPlaced, ctx: &Context) -> HandlerResult {
//!     let transaction = ctx.transaction().await?;
//!     transaction.execute("INSERT INTO bookings (order_id) VALUES ($1)", &[&order.order_id]).await?;
//!     transaction.complete(Done::ok()).await
//! }
//!
//! /// Published with the order, or not at all.
//! async fn place(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//!     let transaction = client.transaction().await?;
//!     transaction.execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
//!     publish(&transaction, &NewEvent::of(&ShopEvent::OrderPlaced(OrderPlaced { order_id: 7 }))?).await?;
//!     Ok(transaction.commit().await?)
//! }
//!
//! /// What a shell runs: `tidegate_lambda::run(program())` is a Lambda function, `tidegate_cli::run(program())` a command line.
//! fn program() -> Program {
//!     Program::new(|_settings| Ok(Shop))
//! }
//! ```
//!
//! # Features
//!
//! None is on by default. `aws`: logins that AWS keeps, in Secrets Manager or as IAM tokens. `operate`: what operators ask for
//! and what the queue tells them, and the `Service` that both shells are made on. `logging`: what a shell
//! logs. `schedules`: periodic events; a program without it leaves them to others. `testing`: a test kit. `vendored-openssl`: builds OpenSSL in. `internals` is for this project's own tests; no promise
//! holds for it.
//!
//! # Layout
//!
//! A drain is a pipeline; each stage is a file in `src/`:
//!
//! 1. `budget`: how long the run has;
//! 2. `queue`: lease a batch (all SQL is there);
//! 3. `event`: decode each row in hand (`lease`) into the program's enum;
//! 4. `dispatch`: one `match` lists the handlers, `context` is what they may ask for, `batch` a call that they
//!    share, `fan_in` one that waits for others, `handler` what they answer;
//! 5. `outcome`: from verdicts to what is stored;
//! 6. `queue` again: finalize, retry, release;
//! 7. `drain`: the loop around it all, and its report.
//!
//! Beside it: `config` and `connect` (settings, secrets, TLS, connections), `migrate` (the schema), `retention` (cleanup: how
//! finished events leave the log), `schedule` (when periodic events are due), `operate` (what operators may ask for), `forget` (nothing is left of a person), `look` (what they may look at), `survey` (the same of a queue of any size), `doctor` (is
//! everything well?), `figures` and `metrics` (what CloudWatch is told), `wake` (a producer wakes a drain), `shards` (queues in several databases), `trace` (a trace crosses the queue), `xray` (and is
//! shown in X-Ray), `invocation` (both ends of the wire to Lambda and the command line), `intake` (messages from outside, each
//! once), `program` (a whole program, ready for a shell).
//!
//! Ids in the comments, such as B13 and I9, are those of the requirements and invariants: `docs/requirements.md` and
//! `docs/reliability.md` of the repository.

// What operators ask for is there without `operate` too; then only this crate sees it, and uses little of it.
#![cfg_attr(not(feature = "operate"), allow(dead_code, unused_imports))]

mod batch;
mod budget;
#[cfg(not(feature = "operate"))]
mod chain;
#[cfg(feature = "operate")]
pub mod chain;
mod change;
pub mod config;
pub mod connect;
mod context;
mod dispatch;
mod error;
mod event;
mod fan_in;
mod figures;
mod handler;
#[cfg(feature = "logging")]
pub mod logs;
pub mod migrate;
mod policy;
pub mod retention;
#[cfg(feature = "seal")]
mod rewrap;
#[cfg(not(feature = "seal"))]
use seal as rewrap;
#[cfg(all(feature = "schedules", feature = "internals"))]
pub mod schedule;
#[cfg(all(feature = "schedules", not(feature = "internals")))]
mod schedule;
#[cfg(not(feature = "schedules"))]
#[path = "schedule_without.rs"]
mod schedule;
#[cfg(feature = "seal")]
pub mod seal;
#[cfg(not(feature = "seal"))]
#[path = "seal_without.rs"]
mod seal;
#[cfg(feature = "operate")]
pub mod shards;
#[cfg(not(feature = "operate"))]
mod survey;
#[cfg(feature = "operate")]
pub mod survey;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;
#[cfg(not(feature = "operate"))]
mod wake;
#[cfg(feature = "operate")]
pub mod wake;
mod xray;

#[cfg(not(feature = "operate"))]
mod doctor;
#[cfg(feature = "operate")]
pub mod doctor;
#[cfg(not(feature = "operate"))]
mod drain;
#[cfg(feature = "operate")]
pub mod drain;
#[cfg(not(feature = "operate"))]
mod forget;
#[cfg(feature = "operate")]
pub mod forget;
#[cfg(not(feature = "operate"))]
mod intake;
#[cfg(feature = "operate")]
pub mod intake;
#[cfg(not(feature = "operate"))]
mod invocation;
#[cfg(feature = "operate")]
pub mod invocation;
#[cfg(not(feature = "internals"))]
mod lease;
#[cfg(feature = "internals")]
pub mod lease;
#[cfg(not(feature = "operate"))]
mod look;
#[cfg(feature = "operate")]
pub mod look;
#[cfg(not(feature = "operate"))]
mod metrics;
#[cfg(feature = "operate")]
pub mod metrics;
#[cfg(not(feature = "operate"))]
mod operate;
#[cfg(feature = "operate")]
pub mod operate;
#[cfg(not(feature = "internals"))]
mod outcome;
#[cfg(feature = "internals")]
pub mod outcome;
#[cfg(not(feature = "operate"))]
mod program;
#[cfg(feature = "operate")]
pub mod program;
#[cfg(not(feature = "operate"))]
mod queue;
#[cfg(feature = "operate")]
pub mod queue;

pub use batch::Batch;
pub use config::Lookup;
pub use connect::Database;
pub use context::{Context, Transaction};
pub use dispatch::{Dispatch, Handlers};
pub use drain::{DrainError, DrainOptions, DrainReport, Hooks, StopReason, drain, drain_with};
pub use error::Error;
pub use event::{DecodeError, Event, NewEvent, PAYLOAD_LIMIT, dedup_key};
pub use fan_in::EmittedSet;
pub use handler::{Done, Fault, HandlerError, HandlerResult, Verdicts};
pub use operate::{ServiceState, ServiceStatus};
pub use outcome::{Member, RetryPolicy};
pub use policy::Policy;
pub use program::Program;
pub use queue::{Job, JobStatus, Published, job, publish, publish_batch};

#[cfg(feature = "schedules")]
pub use schedule::{CatchUp, Schedule};

/// The driver that connections and transactions of this API are of.
pub use tokio_postgres;

/// The page of the crate: its example is compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;

/// What [`events!`] expands to; not for direct use.
#[doc(hidden)]
pub mod export {
    pub use serde_json;
    pub use serde_json::value::RawValue;

    pub use crate::event::{decode, encode, lift};
}
