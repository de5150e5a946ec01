//! Tidegate is a durable, at-least-once event queue in one Postgres database. A short-lived function or a cron job
//! drains it.
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
//! /// Commits its own writes together with the completion of the event, so the booking is written exactly once.
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
//!     publish(&transaction, &NewEvent::of(&ShopEvent::OrderPlaced(OrderPlaced { order_id: 7 }))?).await?;
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
//! - `aws`: logs in to the database with a secret of AWS Secrets Manager or with an IAM token.
//! - `logging`: sets up the log of a program.
//! - `operate`: operators' requests and the reports on them, and `Service`, on which the Lambda function and the
//!   command line are built.
//! - `schema`: JSON Schemas of the reports.
//! - `schedules`: periodic events (cron expressions, time zones, intervals). A program without this feature leaves the
//!   schedules of a queue to programs that have it.
//! - `seal`: seals payloads, that is, encrypts them with keys of the program.
//! - `testing`: a kit for testing a program's handlers.
//! - `vendored-openssl`: builds OpenSSL into the program.
//! - `internals`: for this project's own tests only. It may change at any time.
//!
//! # Layout
//!
//! A drain is a pipeline. Each stage is a file or a folder of that name in `src/`:
//!
//! 1. `budget`: computes how long the run may take.
//! 2. `queue`: leases a batch of events. The statements are in `queue/sql`.
//! 3. `event`: decodes each leased row (`lease`) into the program's enum.
//! 4. `dispatch`: one `match` lists the handlers of an event. `handler` is what a handler returns, and `context` is
//!    what it may ask of the engine. `batch` lets events share one call to a service.
//! 5. `outcome`: computes what to store from the handlers' verdicts.
//! 6. `queue` again: finalizes, retries or releases each event.
//! 7. `drain`: the loop around all of this, and its report.
//!
//! The other modules, by subject:
//!
//! - Setting up: `config` (settings), `connect` (logins, TLS, connections), `migrate` (the schema), `policy` (how to
//!   handle the events of a kind), `program` (a whole program, ready for a shell: the Lambda function or the command
//!   line; for one database or for several).
//! - Publishing: `schedule` (periodic events), `intake` (messages from outside, each taken in once), `wake` (a producer
//!   starts a drain), `chain` (a drain starts the next one).
//! - Operating: `operate` and `change` (operators' requests and the changes that they make), `look` (views for
//!   operators), `survey` (views that read a bounded number of rows), `doctor` (checks of a database), `invocation`
//!   (the requests and answers of Lambda and of the command line).
//! - Storing: `retention` (how finished events leave the log), `forget` (removes the data of a person), `seal`
//!   (encrypts payloads).
//! - Observing: `logs`, `figures` and `metrics` (numbers for CloudWatch), `prometheus` (numbers for Prometheus),
//!   `trace` (carries a trace through the queue, and emits spans).
//! - `error` is the error type of all of them; `testing` is the test kit.
//!
//! Ids in the comments, such as B13 and I9, name requirements and invariants. The repository's `docs/requirements.md`
//! and `docs/reliability.md` list them.

// The operators' modules are compiled without the feature `operate` too. Then they are private, and this crate uses
// little of them.
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
mod figures;
mod handler;
#[cfg(feature = "logging")]
pub mod logs;
pub mod migrate;
mod policy;
#[cfg(feature = "operate")]
pub mod prometheus;
pub mod retention;
#[cfg(feature = "schema")]
mod rows;
#[cfg(all(feature = "schedules", feature = "internals"))]
pub mod schedule;
#[cfg(all(feature = "schedules", not(feature = "internals")))]
mod schedule;
#[cfg(not(feature = "schedules"))]
#[path = "schedule_without.rs"]
mod schedule;
#[cfg(feature = "schema")]
pub mod schema;
#[cfg(feature = "seal")]
pub mod seal;
#[cfg(not(feature = "seal"))]
#[path = "seal_without.rs"]
mod seal;
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
pub use handler::{Done, Fault, HandlerError, HandlerResult, Verdicts};
pub use operate::{ServiceState, ServiceStatus};
pub use outcome::RetryPolicy;
pub use policy::Policy;
pub use program::Program;
pub use queue::{Job, JobStatus, Published, job, publish, publish_batch};

#[cfg(feature = "schedules")]
pub use schedule::{CatchUp, Schedule};

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

    pub use crate::event::{decode, encode, joined, lift};
}
