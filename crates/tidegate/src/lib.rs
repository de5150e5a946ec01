//! Tidegate is a durable, at-least-once event queue in one Postgres database. A short-lived function or a
//! cron job drains it.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tidegate::{
//!     Context, Database, Dispatch, Done, DrainOptions, HandlerResult, Handlers, drain, publish,
//! };
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
//! /// Handles what is ready, from a timer.
//! async fn run(database: &Database) -> Result<(), Box<dyn std::error::Error>> {
//!     drain(database, Shop.into(), &DrainOptions::default()).await?;
//!     Ok(())
//! }
//! ```
//!
//! A whole program for a Lambda function or a command line is `Program` of the crate `tidegate_admin`.
//!
//! # Features
//!
//! No feature is on by default.
//!
//! - `seal`: seals payloads, that is, encrypts them with keys of the program.
//! - `testing`: a kit for testing a program's handlers.
//! - `schema`: JSON Schemas of the reports.
//! - `vendored-openssl`: builds OpenSSL into the program.
//!
//! # Layout
//!
//! This crate owns what an event is to a program and how a run works. What goes to Postgres is the crate
//! `tidegate_core`, of which the names that a program needs are shown here. It knows no cloud and no server.
//!
//! A drain is a pipeline. Each stage is a file or a folder of that name in `src/`, or in `tidegate_core`:
//!
//! 1. `budget`: computes how long the run may take.
//! 2. `queue` (core): leases a batch of events. Each statement stands beside its call.
//! 3. `event` (core): decodes each leased row (`lease`) into the program's enum.
//! 4. `dispatch`: one `match` lists the handlers of an event. `handler` is what a handler returns, and
//!    `context` is what it may ask of the engine. `batch` lets events share one call to a service.
//! 5. `outcome`: computes what becomes of the event from the handlers' verdicts, and `ending` what to store.
//! 6. `queue` again: finalizes, retries or releases each event.
//! 7. `drain`: the loop around all of this, and its report.
//!
//! The other modules, by subject:
//!
//! - `schedule`: periodic events and when they are due; `policies`: how to handle the events of a kind;
//!   `wake`: a producer starts a drain; `intake`: messages from outside, each taken in once; `seal`: payloads
//!   encrypted with keys of the program; `testing`: the test kit.
//!
//! Ids in the comments, such as B13 and I9, name requirements and invariants. The repository's
//! `tests/requirements.md` lists them.

mod batch;
pub mod budget;
mod context;
mod dispatch;
pub mod drain;
mod ending;
mod handler;
mod outcome;
mod policies;
pub mod schedule;
mod services;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "seal")]
pub mod seal;

pub mod intake;
pub mod wake;

pub use batch::Batch;
pub use context::{Context, FencedTransaction};
pub use dispatch::{Dispatch, Handlers};
pub use drain::{DrainError, DrainOptions, DrainReport, Hooks, StopReason, drain, drain_with};
pub use handler::{Done, HandlerError, HandlerResult, Verdicts};
pub use outcome::RetryPolicy;
pub use schedule::Schedule;
pub use tidegate_core::config::Lookup;
pub use tidegate_core::connect::{Database, Transaction};
pub use tidegate_core::error::Error;
pub use tidegate_core::event::{DecodeError, Event, NewEvent, Publishable, dedup_key};
pub use tidegate_core::fault::Fault;
pub use tidegate_core::policy::Policy;
pub use tidegate_core::queue::{
    CatchUp, Job, JobStatus, PollRequest, PolledEvent, Published, job, publish, publish_batch,
};
pub use tidegate_core::status::{ServiceState, ServiceStatus};
pub use tidegate_core::{Json, events, migrations, tokio_postgres};

/// Settings, as a program reads its own.
pub mod config {
    pub use tidegate_core::config::{
        environment, is_loopback, parse_duration, read, read_secret_file,
    };
}

/// Connections to the database of a queue.
pub mod connect {
    pub use tidegate_core::connect::{Client, Schema, Trust};
}

/// The queue's schema and a program's own tables.
pub mod migrate {
    pub use tidegate_core::migrate::{
        Migrate, MigrateReport, Migrations, Payloads, StoredSettings, check,
    };
}

/// The position of the running work in a trace.
pub mod trace {
    pub use tidegate_core::trace::{TraceContext, current, within};
}

/// Drains that start each other.
pub mod chain {
    pub use tidegate_core::chain::{Chain, MOST_HOPS, NextTick, StartDrain};
}

/// Includes the README of the crate, so that its example is compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
