//! A handler that calls an HTTP service, and what each answer means for the event.

use std::process::ExitCode;
use std::time::Duration;

use reqwest::{Client, Response};
use serde::{Deserialize, Serialize};
use tidegate::{
    Context, Dispatch, Done, Error, HandlerError, HandlerResult, Handlers, Lookup, Verdicts,
};
use tidegate_admin::Program;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderPlaced {
    pub order_id: i64,
}

/// The carrier's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Label {
    parcel: String,
}

tidegate::events! {
    #[derive(Debug)]
    pub(crate) enum ShopEvent {
        OrderPlaced(OrderPlaced) = "order_placed",
    }
}

/// The client is made once and keeps its connections.
pub(crate) struct Shop {
    pub http: Client,
    pub carrier: String,
}

impl Dispatch for Shop {
    type Event = ShopEvent;

    fn handlers<'a>(&'a self, event: &'a ShopEvent, ctx: &'a Context) -> Handlers<'a> {
        match event {
            ShopEvent::OrderPlaced(order) => {
                Handlers::one("ship", self.ship(order, ctx)).calls("carrier")
            }
        }
    }
}

impl Shop {
    /// `settings` reads the environment. A setting that is missing is told before anything runs.
    pub(crate) fn of(settings: Lookup<'_>) -> Result<Self, Error> {
        let carrier = settings("CARRIER_URL");
        let carrier =
            carrier.ok_or_else(|| Error::Config("CARRIER_URL: must be set".to_owned()))?;
        let http = Client::builder().timeout(Duration::from_secs(10)).build();
        let http = http.map_err(|error| Error::Config(error.to_string()))?;
        Ok(Self { http, carrier })
    }

    async fn ship(&self, order: &OrderPlaced, ctx: &Context) -> HandlerResult {
        let label = self.http.post(format!("{}/labels", self.carrier));
        let label = label.header("Idempotency-Key", ctx.idempotency_key("label"));
        let answer = label.json(order).send().await.unavailable()?; // no connection, or too late
        let label: Label = accepted(answer)?.json().await.unavailable()?; // broken off, or not JSON
        Done::with(&label)
    }
}

/// Returns the answer, if its status is a success. Otherwise returns what the status means for the event.
fn accepted(answer: Response) -> Result<Response, HandlerError> {
    let status = answer.status();
    let why = format!("the carrier answered {status}");
    match status.as_u16() {
        200..300 => Ok(answer),
        // About this request, and it stays so: the event ends, for a person to look at.
        400 | 404 | 409 | 410 | 422 => Err(HandlerError::reject("refused", why)),
        // Perhaps about this request: costs an attempt.
        500 => Err(HandlerError::call_failed("500", why)),
        // About the service, or our credentials: the event waits, and keeps its attempt.
        _ => Err(HandlerError::unavailable("unavailable", why)),
    }
}

fn main() -> ExitCode {
    tidegate_cli::run(Program::new(Shop::of))
}
