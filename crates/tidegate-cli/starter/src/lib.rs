//! Two kinds of events and their handlers. `main.rs` runs the program as a command line, `function.rs` as a
//! Lambda function.

use serde::{Deserialize, Serialize};
use tidegate::migrate::Migrations;
use tidegate::{Context, Dispatch, Done, HandlerResult, Handlers, Verdicts};
use tidegate_admin::Program;

/// A customer has placed an order.
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderPlaced {
    pub order_id: i64,
}

/// The parcel of an order is on its way.
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderShipped {
    pub order_id: i64,
    pub parcel: String,
}

tidegate::events! {
    /// Every kind of event, with its payload and the name it is stored under.
    #[derive(Debug)]
    pub enum Event {
        OrderPlaced(OrderPlaced) = "order_placed",
        OrderShipped(OrderShipped) = "order_shipped",
    }
}

/// Holds what the handlers need: settings, and clients for the services that they call.
pub struct App;

impl Dispatch for App {
    type Event = Event;

    /// Lists the handlers of each kind, each with the service that it calls. A kind without handlers does not
    /// compile.
    fn handlers<'a>(&'a self, event: &'a Event, ctx: &'a Context) -> Handlers<'a> {
        match event {
            Event::OrderPlaced(order) => Handlers::one("ship", ship(order, ctx)).calls("carrier"),
            Event::OrderShipped(order) => Handlers::one("book", book(order, ctx)),
        }
    }
}

/// Calls a service. Each line that can fail states its verdict: wait for the service, or reject the event.
async fn ship(order: &OrderPlaced, ctx: &Context) -> HandlerResult {
    let key = ctx.idempotency_key("ship");
    let parcel = ask_carrier(order.order_id, &key).await.unavailable()?;
    let parcel = parcel.reject("no_such_order")?;
    ctx.emit(&Event::OrderShipped(OrderShipped {
        order_id: order.order_id,
        parcel,
    }))?;
    Ok(Done::ok())
}

/// Stands in for a network call. A handler may run more than once. The key lets the carrier recognize a
/// repeated call.
async fn ask_carrier(order_id: i64, _key: &str) -> Result<Option<String>, std::io::Error> {
    Ok((order_id > 0).then(|| format!("parcel-{order_id}")))
}

/// Writes to the database. The commit of the transaction also completes the handler, so the write happens
/// exactly once.
async fn book(order: &OrderShipped, ctx: &Context) -> HandlerResult {
    let transaction = ctx.transaction().await?;
    let sql = "INSERT INTO shop.shipment (order_id, parcel) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    transaction
        .execute(sql, &[&order.order_id, &order.parcel])
        .await?;
    transaction.complete(Done::ok()).await
}

/// The program's own tables. `migrate` creates them after those of the queue.
const TABLES: Migrations = tidegate::migrations!("{{crate}}":
    "migrations/V0001__create_shop.sql",
);

/// Builds the program for the command line and the function. Read your own settings here, for example
/// `settings("CARRIER_URL")`.
pub fn program() -> Program {
    Program::new(|_settings| Ok(App)).tables(TABLES)
}
