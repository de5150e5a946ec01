//! Owns the `match` from an event to its handlers.
//!
//! Listing is not running: [`Dispatch::handlers`] builds futures and names them; the
//! engine polls only those that an earlier attempt has not finished.

use futures_util::future::{BoxFuture, FutureExt};

use crate::context::Context;
use crate::event::Event;
use crate::handler::HandlerResult;
#[cfg(feature = "schedules")]
use crate::schedule::Schedule;

/// A program's dispatcher: one exhaustive `match` from event to handlers (requirement A12). A kind
/// that is added to the enum and not to the `match` does not compile (E6):
///
/// ```compile_fail,E0004
/// use tidegate::{Context, Dispatch, Done, Handlers};
///
/// tidegate::events! {
///     pub enum Shop {
///         Opened(()) = "opened",
///         Closed(()) = "closed",
///     }
/// }
///
/// struct App;
///
/// impl Dispatch for App {
///     type Event = Shop;
///
///     fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
///         match event {
///             Shop::Opened(()) => Handlers::one("greet", async { Ok(Done::ok()) }),
///         }
///     }
/// }
/// ```
pub trait Dispatch: Send + Sync + 'static {
    /// The program's event enum.
    type Event: Event;

    /// Lists the handlers of an event, in the order they run. Must only list: the futures are lazy,
    /// and those that an earlier attempt finished are dropped unpolled.
    fn handlers<'a>(&'a self, event: &'a Self::Event, ctx: &'a Context) -> Handlers<'a>;

    /// Lists the events that are published again and again, at slots of the clock. `migrate` brings them into the database,
    /// and takes those back that are no longer listed.
    #[cfg(feature = "schedules")]
    fn schedules(&self) -> Vec<Schedule<Self::Event>> {
        Vec::new()
    }
}

/// The handlers of one event.
pub struct Handlers<'a>(pub(crate) Vec<Handler<'a>>);

/// A named handler and the lazy future that does its work.
pub(crate) struct Handler<'a> {
    /// Unique among the handlers of its kind; stored with the event's results.
    pub name: &'static str,
    /// The one external service it calls (A18), if any.
    pub service: Option<&'static str>,
    pub work: BoxFuture<'a, HandlerResult>,
}

impl<'a> Handlers<'a> {
    /// One handler: its name, unique among those of its kind and stored with the event's results, and its work.
    pub fn one(name: &'static str, work: impl Future<Output = HandlerResult> + Send + 'a) -> Self {
        Self(Vec::new()).and(name, work)
    }

    /// A further handler for the same event; it runs whatever became of the ones before it (C10).
    #[must_use]
    pub fn and(
        mut self,
        name: &'static str,
        work: impl Future<Output = HandlerResult> + Send + 'a,
    ) -> Self {
        self.0.push(Handler {
            name,
            service: None,
            work: work.boxed(),
        });
        self
    }

    /// The external service that the last of these calls: one for each handler (A18), so that none is called a second time
    /// because another one failed.
    #[must_use]
    pub fn calls(mut self, service: impl Into<Option<&'static str>>) -> Self {
        if let Some(handler) = self.0.last_mut() {
            handler.service = service.into();
        }
        self
    }

    /// Names and the services they call, in order, for documentation and tests; runs nothing.
    #[must_use]
    pub fn list(&self) -> Vec<(&'static str, Option<&'static str>)> {
        self.0
            .iter()
            .map(|handler| (handler.name, handler.service))
            .collect()
    }
}
