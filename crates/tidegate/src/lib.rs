//! Tidegate is a durable, at-least-once event queue in one Postgres database. A short-lived function or a
//! cron job drains it.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tidegate::{Context, Dispatch, Done, HandlerResult, Handlers, Program, publish};
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
//! /// Commits its own writes together with the event's completion, so the booking is written exactly once.
//! async fn book(order: &OrderPlaced, ctx: &Context) -> HandlerResult {
//!     let transaction = ctx.transaction().await?;
//!     transaction.execute("INSERT INTO bookings (order_id) VALUES ($1)", &[&order.order_id]).await?;
//!     transaction.complete(Done::ok()).await
//! }
//!
//! /// Publishes the event in the same transaction as the order: both are stored, or neither is.
//! async fn place(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//!     let transaction = client.transaction().await?;
//!     transaction.execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
//!     publish(&transaction, &ShopEvent::OrderPlaced(OrderPlaced { order_id: 7 })).await?;
//!     Ok(transaction.commit().await?)
//! }
//!
//! /// The program: `tidegate_lambda::run(program())` runs it as a Lambda function,
//! /// `tidegate_cli::run(program())` as a command line.
//! fn program() -> Program {
//!     Program::new(|_settings| Ok(Shop))
//! }
//! ```
//!
//! # Features
//!
//! No feature is on by default.
//!
//! - `admin`: `Program` and what it is made of, on which the Lambda function and the command line are built:
//!   operators' requests and the reports on them with their JSON Schemas, views, checks, cleanup, metrics,
//!   the log. Includes `seal`.
//! - `seal`: seals payloads, that is, encrypts them with keys of the program.
//! - `testing`: a kit for testing a program's handlers.
//! - `vendored-openssl`: builds OpenSSL into the program.
//!
//! # Layout
//!
//! A drain is a pipeline. Each stage is a file or a folder of that name in `src/`:
//!
//! 1. `budget`: computes how long the run may take.
//! 2. `queue`: leases a batch of events. Each statement stands beside its call.
//! 3. `event`: decodes each leased row (`lease`) into the program's enum.
//! 4. `dispatch`: one `match` lists the handlers of an event. `handler` is what a handler returns, and
//!    `context` is what it may ask of the engine. `batch` lets events share one call to a service.
//! 5. `outcome`: computes what to store from the handlers' verdicts.
//! 6. `queue` again: finalizes, retries or releases each event.
//! 7. `drain`: the loop around all of this, and its report.
//!
//! The other modules, by subject:
//!
//! - Setting up: `config` (settings), `connect` (logins, TLS, connections), `migrate` (the schema), `policy`
//!   (how to handle the events of a kind), `admin::program` (a whole program, ready for a shell: the Lambda
//!   function or the command line; for one database or for several).
//! - Publishing: `schedule` (periodic events and when they are due), `intake` (messages from outside, each
//!   taken in once), `wake` (a producer starts a drain), `chain` (a drain starts the next one).
//! - Operating: `admin` (what operators request, a file for each verb, and their list; `admin::invocation` is
//!   the format of Lambda and of `--json`), `admin::views` (views that read a bounded number of rows),
//!   `time_arg` (times as operators write them), `doctor` (checks of a database), `status` (what reports of
//!   drains share with these).
//! - Storing: `retention` (how finished events leave the log) and `cleanup_run` (how a cleanup runs its
//!   steps), `sealing` and `seal` (encrypted payloads and their keys).
//! - Observing: `logs`, `numbers` (metrics for CloudWatch and for Prometheus), `trace` (carries a trace
//!   through the queue, and emits spans).
//! - `error` is the error type of all of them; `json` is JSON that passes through them; `testing` is the test
//!   kit.
//!
//! Ids in the comments, such as B13 and I9, name requirements and invariants. The repository's
//! `tests/requirements.md` lists them.

mod batch;
mod budget;
#[doc(hidden)]
pub mod chain;
mod cleanup_run;
pub mod config;
pub mod connect;
mod context;
mod dispatch;
#[doc(hidden)]
pub mod drain;
pub mod error;
mod event;
mod handler;
mod json;
#[doc(hidden)]
pub mod lease;
pub mod migrate;
#[doc(hidden)]
pub mod outcome;
mod policy;
#[doc(hidden)]
pub mod queue;
#[doc(hidden)]
pub mod schedule;
#[doc(hidden)]
pub mod sealing;
mod status;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;

#[cfg(feature = "seal")]
pub mod seal;

#[cfg(feature = "admin")]
pub mod admin;
#[cfg(feature = "admin")]
pub mod doctor;
#[cfg(feature = "admin")]
pub mod intake;
#[cfg(feature = "admin")]
pub mod logs;
#[cfg(feature = "admin")]
mod numbers;
#[cfg(feature = "admin")]
pub mod retention;
#[cfg(feature = "admin")]
mod time_arg;
#[cfg(feature = "admin")]
pub mod wake;

#[cfg(feature = "admin")]
pub use admin::program::{self, Program};
pub use batch::Batch;
pub use config::Lookup;
pub use connect::{Database, Transaction};
pub use context::{Context, FencedTransaction};
pub use dispatch::{Dispatch, Handlers};
pub use drain::{DrainError, DrainOptions, DrainReport, Hooks, StopReason, drain, drain_with};
pub use error::Error;
pub use event::{DecodeError, Event, NewEvent, Publishable, dedup_key, hex};
pub use handler::{Done, Fault, HandlerError, HandlerResult, Verdicts};
pub use json::Json;
#[cfg(feature = "admin")]
pub use numbers::{metrics, prometheus};
pub use outcome::RetryPolicy;
pub use policy::Policy;
pub use queue::{
    CatchUp, Job, JobStatus, PollRequest, PolledEvent, Published, job, publish, publish_batch,
};
pub use schedule::Schedule;
pub use status::{ServiceState, ServiceStatus};

/// The Postgres driver whose connections and transactions this API takes.
pub use tokio_postgres;

/// Includes the README of the crate, so that its example is compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;

/// Items that [`events!`] expands to. Not for direct use.
#[doc(hidden)]
pub mod export {
    pub use serde_json;
    pub use serde_json::value::RawValue;

    pub use crate::event::{check_kinds, decode, encode, is_kind, joined, lift};
}
