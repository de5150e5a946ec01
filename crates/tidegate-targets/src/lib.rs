//! Handlers of events outside the program: targets. A Lambda function receives events in the shape of an SQS
//! event, and an HTTPS URL receives signed CloudEvents. An SQS queue or an EventBridge bus receives them to
//! pass them on.
//!
//! A target is a handler like any other. Attempts, groups, policies, services, the log and replay apply to
//! it. A request is sent once in an attempt; nothing is repeated inside of it.
//!
//! This crate owns how a target is addressed, the requests, and what an answer means. It knows no queue, no
//! database and no file: where targets are declared is for the program, as in `tidegate-relay`.
//!
//! [`Target::send`] encodes the event (`sent`), waits for others if the kind's policy wants a batch, and
//! sends one request. The answer becomes the verdict on each event (`outcome`): done, retry or reject, with
//! the events to publish next.
//!
//! ```no_run
//! use tidegate::{Context, Dispatch, Handlers};
//! use tidegate_targets::{Address, Lambda, Target};
//!
//! tidegate::events! {
//!     pub enum Shop {
//!         OrderPlaced(u64) = "order_placed",
//!     }
//! }
//!
//! struct Orders {
//!     ship: Target,
//! }
//!
//! impl Dispatch for Orders {
//!     type Event = Shop;
//!
//!     fn handlers<'a>(&'a self, event: &'a Shop, ctx: &'a Context) -> Handlers<'a> {
//!         match event {
//!             Shop::OrderPlaced(_) => Handlers::one("ship", self.ship.send(ctx, event)).calls("ship"),
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), tidegate::Error> {
//! let ship = Lambda {
//!     lambda: "arn:aws:lambda:eu-central-1:123456789012:function:ship:live".to_owned(),
//!     ..Lambda::default()
//! };
//! let orders = Orders { ship: Target::new("ship", Address::Lambda(ship))? };
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! - `settings`: the addresses of targets, the same in a file, in the database and in Rust.
//! - `sent`: what a target receives of an event.
//! - `outcome`: the grammar of answers, and what an answer means for each event.
//! - `lambda`, `https`, `sqs`, `eventbridge`: one kind of target each: the form of its requests, and its
//!   answers.
//! - `aws`: requests to AWS and their errors. `secret`: keys and tokens. `net`: hosts that are not called.

mod aws;
mod eventbridge;
mod https;
mod lambda;
mod net;
mod outcome;
mod secret;
mod sent;
mod settings;
mod sqs;
#[cfg(test)]
mod testing;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate::{Batch, Context, Done, Error, Event, HandlerError, HandlerResult};
use tracing::Instrument;

use self::outcome::{Answers, Next, Outcome, bad};
use self::sent::{Item, Sent};
pub use self::settings::{Address, EventBridge, Https, Lambda, Sqs};

/// Where events go. Cheap to clone; clones share their connections and the calls that events share. How many
/// events share a call is the kind's [`Policy::batch`](tidegate::Policy::batch).
#[derive(Clone)]
pub struct Target {
    name: &'static str,
    receiver: Arc<dyn Receiver>,
    calls: Arc<Batch<Item, Outcome>>,
}

/// What the program expects of a target.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected {
    /// The shortest time limit of its handlers. A function's own limit should be no longer.
    pub timeout: Option<Duration>,
    /// The most calls at once. A function should not have fewer reserved.
    pub calls: Option<u32>,
}

/// How long a look at a target may take.
const LOOK: Duration = Duration::from_secs(5);

/// A kind of target.
trait Receiver: Send + Sync {
    /// The most events, and the most bytes of their items, in one request.
    fn limits(&self) -> (usize, usize);

    /// Returns an event in the form in which requests hold it. An error is final for the event.
    fn item(&self, sent: &Sent<'_>) -> Result<Item, HandlerError>;

    /// Returns the kinds of events that its answers may publish, in the group of their event or in none;
    /// `None` if that is for the target to say.
    fn may_publish(&self) -> Option<&[String]> {
        None
    }

    /// Sends one request with these events, and returns an answer for each, or a failure of all.
    fn send(self: Arc<Self>, items: Vec<Item>) -> BoxFuture<'static, Answers>;

    /// Looks whether it can be called, without an event and within its own time limit.
    fn examine(&self, expected: Expected) -> BoxFuture<'_, Result<(), HandlerError>>;
}

impl Target {
    /// Creates a target. The name is that of its handler and of its service too.
    ///
    /// # Errors
    /// [`Error::Config`] names the field of the address and what it must be.
    pub fn new(name: &'static str, address: Address) -> Result<Self, Error> {
        let refused = |why: String| Error::Config(format!("{name}.{}", why.replace('\n', "; ")));
        address.check().map_err(refused)?;
        let receiver: Arc<dyn Receiver> = match address {
            Address::Lambda(at) => Arc::new(lambda::Function::new(name, at)),
            Address::Https(at) => Arc::new(https::Endpoint::new(name, at).map_err(refused)?),
            Address::Sqs(at) => Arc::new(sqs::Queue::new(at)),
            Address::EventBridge(at) => Arc::new(eventbridge::Bus::new(at)),
        };
        let sender = receiver.clone();
        let send = move |items: Vec<Item>| {
            let (events, bytes) = (items.len(), items.iter().map(|item| item.text.len()));
            let bytes = bytes.sum::<usize>();
            let span = tracing::info_span!("target", target = name, events, bytes);
            sender.clone().send(items).instrument(span)
        };
        let (items, bytes) = receiver.limits();
        let calls = Batch::limited(items, bytes, |item: &Item| item.text.len(), send);
        Ok(Self {
            name,
            receiver,
            calls: Arc::new(calls),
        })
    }

    /// Returns the name, for [`Handlers::one`](tidegate::Handlers::one) and
    /// [`Handlers::calls`](tidegate::Handlers::calls).
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Looks whether the target can be called as expected, without an event: whether we may, whether it is
    /// there, and, if we may see that, a function's time limit and reserved concurrency. Returns what is
    /// wrong, for [`Dispatch::examine`](tidegate::Dispatch::examine), after 5 s at most.
    pub async fn examine(&self, expected: Expected) -> Option<String> {
        let looked = tokio::time::timeout(LOOK, self.receiver.examine(expected)).await;
        let looked =
            looked.unwrap_or_else(|_| Err(aws::unreachable(format!("no answer within {LOOK:?}"))));
        let wrong = looked.err()?.to_string();
        let wrong = wrong.strip_prefix("retry: ").unwrap_or(&wrong);
        Some(format!("{}: {wrong}", self.name))
    }

    /// Sends the event to the target, and returns the target's verdict on it. The payload is sent in the form
    /// in which the program would publish it now.
    ///
    /// # Errors
    /// The verdict, if it is not success. A rejection, code `payload`, if the payload cannot be serialized.
    pub async fn send<E: Event>(&self, ctx: &Context, event: &E) -> HandlerResult {
        let payload = event.encode();
        let payload = payload.map_err(|error| HandlerError::reject("payload", error))?;
        let item = self
            .receiver
            .item(&Sent::new(ctx, event.kind(), payload.get()))?;
        let outcome = self.calls.call(ctx, item).await?;
        self.check(&outcome.follow_ups, ctx.group_key())?;
        for next in outcome.follow_ups {
            ctx.emit(&next.event)?;
        }
        outcome
            .result
            .map_or_else(|| Ok(Done::ok()), |result| Done::with(&result))
    }

    /// Refuses an answer that publishes what its target may not, before anything is published.
    fn check(&self, follow_ups: &[Next], own: Option<&str>) -> Result<(), HandlerError> {
        let Some(kinds) = self.receiver.may_publish() else {
            return Ok(());
        };
        let is_refused = |next: &Next| {
            let elsewhere = next.group.is_some() && next.group.as_deref() != own;
            elsewhere || !kinds.contains(&next.kind)
        };
        if follow_ups.iter().any(is_refused) {
            return Err(bad(
                "followUps: must be of kinds that the target's follow_ups lists, in the group of their event or in none",
            ));
        }
        Ok(())
    }
}
