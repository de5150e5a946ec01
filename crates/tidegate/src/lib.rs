//! Tidegate: a durable, at-least-once event queue in one Postgres database, drained by a short-lived
//! function.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tidegate::{Context, DATABASE_ONLY, Dispatch, Done, HandlerResult, Handlers, NewEvent, Program, publish};
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
//!             ShopEvent::OrderPlaced(order) => Handlers::one("book", DATABASE_ONLY, book(order, ctx)),
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
//! None is on by default. `aws`: logins that AWS keeps, in Secrets Manager or as IAM tokens. `logging`: what a shell logs.
//! `testing`: a test kit. `vendored-openssl`: builds OpenSSL in. `internals` is for this project's own tests; no promise
//! holds for it.
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

/// The driver that connections and transactions of this API are of.
pub use tokio_postgres;

/// What [`events!`] expands to; not for direct use.
#[doc(hidden)]
pub mod export {
    pub use serde_json;
    pub use serde_json::value::{RawValue, to_raw_value};
}
