//! A whole program in one file: two kinds of events, their handlers, an event that comes each month, and a
//! command line with every verb.
//!
//! ```sh
//! export DATABASE_URL=postgres://…       # an empty database; `make db` serves one
//! cargo run --example shop -- migrate
//! cargo run --example shop -- publish order_placed --payload '{"order_id": 7}'
//! cargo run --example shop -- drain
//! cargo run --example shop -- status
//! ```
//!
//! To run the same program as a Lambda function, call `tidegate_lambda::run(program())` in a `main` of its
//! own.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate::{Context, Dispatch, Done, HandlerResult, Handlers, Lookup, Schedule};
use tidegate_admin::Program;

/// A customer has placed an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderPlaced {
    pub order_id: i64,
}

/// The parcel of an order is on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderShipped {
    pub order_id: i64,
    pub parcel: String,
}

tidegate::events! {
    #[derive(Debug)]
    pub(crate) enum ShopEvent {
        OrderPlaced(OrderPlaced) = "order_placed",
        OrderShipped(OrderShipped) = "order_shipped",
    }
}

/// Holds what the handlers need: here the prefix of parcel names, from the environment variable
/// `PARCEL_PREFIX`.
pub(crate) struct Shop {
    prefix: String,
}

impl Dispatch for Shop {
    type Event = ShopEvent;

    fn handlers<'a>(&'a self, event: &'a ShopEvent, ctx: &'a Context) -> Handlers<'a> {
        match event {
            ShopEvent::OrderPlaced(order) => {
                Handlers::one("ship", self.ship(order, ctx)).calls("carrier")
            }
            ShopEvent::OrderShipped(order) => Handlers::one("book", async {
                Done::with(&json!({"order": order.order_id, "parcel": order.parcel}))
            }),
        }
    }

    fn schedules(&self) -> Vec<Schedule<ShopEvent>> {
        let coffee = ShopEvent::OrderPlaced(OrderPlaced { order_id: 1 });
        vec![Schedule::cron("standing-order", "0 6 1 * *", coffee)]
    }
}

impl Shop {
    pub(crate) fn of(settings: Lookup<'_>) -> Self {
        let prefix = settings("PARCEL_PREFIX");
        Self {
            prefix: prefix.unwrap_or_else(|| "parcel".to_owned()),
        }
    }

    /// Calls the carrier once, whatever happens afterwards: the result of the step is stored with the event.
    async fn ship(&self, order: &OrderPlaced, ctx: &Context) -> HandlerResult {
        let ask_carrier = async { Ok(format!("{}-{}", self.prefix, order.order_id)) };
        let parcel = ctx.once("parcel", ask_carrier).await?;
        ctx.emit(&ShopEvent::OrderShipped(OrderShipped {
            order_id: order.order_id,
            parcel,
        }))?;
        Ok(Done::ok())
    }
}

/// Builds the program, for any shell.
pub(crate) fn program() -> Program {
    Program::new(|settings| Ok(Shop::of(settings)))
}

fn main() -> ExitCode {
    tidegate_cli::run(program())
}
