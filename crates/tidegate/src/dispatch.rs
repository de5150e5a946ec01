//! Owns the `match` from an event to its handlers.
//!
//! Listing handlers does not run them. [`Dispatch::handlers`] builds named futures, and the engine polls only
//! those that no earlier attempt has finished.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use tidegate_core::connect::Database;
use tidegate_core::error::Result;
use tidegate_core::event::Event;

use crate::context::Context;
use crate::handler::HandlerResult;
use crate::schedule::Schedule;

/// A program's dispatcher: one exhaustive `match` from event to handlers (requirement A12). A kind that is in
/// the enum but not in the `match` does not compile (E6):
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

    /// Lists the handlers of an event, in the order in which they run. It must do no work: the futures are
    /// lazy, and those that an earlier attempt finished are dropped without being polled.
    fn handlers<'a>(&'a self, event: &'a Self::Event, ctx: &'a Context) -> Handlers<'a>;

    /// Returns the kinds that this program handles, each once. By default, all of its enum.
    fn kinds(&self) -> Vec<&'static str> {
        Self::Event::KINDS.to_vec()
    }

    /// Returns the dispatcher for one run on this database, for handlers that are stored there. It is called
    /// before the run takes its first event, and its time is part of the budget.
    ///
    /// # Errors
    /// When the handlers cannot be read. The run then fails.
    fn for_run(self: Arc<Self>, _database: &Database) -> BoxFuture<'_, Result<Arc<Self>>> {
        std::future::ready(Ok(self)).boxed()
    }

    /// Examines what the handlers call, for the doctor: returns what is wrong with it, one text each. It
    /// changes nothing, and takes a few seconds at most.
    fn examine(&self) -> BoxFuture<'_, Vec<String>> {
        std::future::ready(Vec::new()).boxed()
    }

    /// Lists the periodic events, which are published at every slot of their schedule. `migrate` stores these
    /// schedules in the database, and removes those that are no longer listed.
    fn schedules(&self) -> Vec<Schedule<Self::Event>> {
        Vec::new()
    }

    /// Lists what the settings of this program give up, one text each, such as a check that they turn off.
    /// Every start logs them as warnings, and the doctor reports them.
    fn warnings(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// The handlers of one event.
#[must_use = "return it: only then they run"]
pub struct Handlers<'a>(pub(crate) Vec<Handler<'a>>);

/// A named handler and the lazy future that does its work.
pub(crate) struct Handler<'a> {
    /// Unique among the handlers of its kind. Stored with the event's results.
    pub name: &'static str,
    /// The one outside service that it calls (A18), if any.
    pub service: Option<&'static str>,
    pub work: BoxFuture<'a, HandlerResult>,
}

impl<'a> Handlers<'a> {
    /// Lists one handler. The name is stored with the event's results and must be unique among the handlers
    /// of its kind: if two have one name, none of them runs, and the attempt fails.
    pub fn one(name: &'static str, work: impl Future<Output = HandlerResult> + Send + 'a) -> Self {
        Self(Vec::new()).and(name, work)
    }

    /// Adds a handler for the same event. It runs whatever the handlers before it return (C10).
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

    /// Names the outside service that the handler listed last calls. Each handler calls one service (A18), so
    /// that a failure of one service does not repeat the call of another. If one must call a second service,
    /// see [`Context::call`].
    pub fn calls(mut self, service: impl Into<Option<&'static str>>) -> Self {
        if let Some(handler) = self.0.last_mut() {
            handler.service = service.into();
        }
        self
    }

    /// Returns the names of the handlers and the services that they call, in order, for documentation and
    /// tests. Runs nothing.
    pub fn list(&self) -> Vec<(&'static str, Option<&'static str>)> {
        self.0
            .iter()
            .map(|handler| (handler.name, handler.service))
            .collect()
    }
}
