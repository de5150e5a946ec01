//! Two kinds of events and what handles them. `main.rs` runs them as a command line, `function.rs` as a Lambda function.

use serde::{Deserialize, Serialize};
use tidegate::migrate::Migrations;
use tidegate::{Context, Dispatch, Done, HandlerResult, Handlers, Program, Verdicts};

/// A customer has ordered something.
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderPlaced {
    pub order_id: i64,
}

/// It is on its way.
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

/// What the handlers need: settings, and clients of the services they talk to.
pub struct App;

impl Dispatch for App {
    type Event = Event;

    /// The handlers of each kind, each with the service that it calls. A kind without any does not compile.
    fn handlers<'a>(&'a self, event: &'a Event, ctx: &'a Context) -> Handlers<'a> {
        match event {
            Event::OrderPlaced(order) => Handlers::one("ship", ship(order, ctx)).calls("carrier"),
            Event::OrderShipped(order) => Handlers::one("book", book(order, ctx)),
        }
    }
}

/// Talks to a service. The verdict stands on the line that failed: wait for the service, or give up.
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

/// Stands for a call over the network. Handlers run at least once; by its key the carrier knows a call that it has answered.
async fn ask_carrier(order_id: i64, _key: &str) -> Result<Option<String>, std::io::Error> {
    Ok((order_id > 0).then(|| format!("parcel-{order_id}")))
}

/// Writes to the database: the commit of its transaction is its completion, so it happens exactly once.
async fn book(order: &OrderShipped, ctx: &Context) -> HandlerResult {
    let transaction = ctx.transaction().await?;
    let sql = "INSERT INTO shop.shipment (order_id, parcel) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    transaction
        .execute(sql, &[&order.order_id, &order.parcel])
        .await?;
    transaction.complete(Done::ok()).await
}

/// Tables of its own, which `migrate` makes after the queue's.
const TABLES: Migrations = tidegate::migrations!("{{crate}}":
    "migrations/V0001__create_shop.sql",
);

/// The whole program, for whoever runs it. Settings of your own are looked up here: `settings("CARRIER_URL")`.
pub fn program() -> Program {
    Program::new(|_settings| Ok(App)).tables(TABLES)
}
