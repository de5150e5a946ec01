//! Runs the handlers of one event in order, each within its time limit, and catches panics. It skips handlers
//! that an earlier attempt finished. It writes nothing to the database; the ends stay in the [`Context`].

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tidegate_core::trace;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::spans;
use crate::context::Context;
use crate::dispatch::{Dispatch, Handler};
use crate::handler::{HandlerError, HandlerResult};
use crate::outcome::HandlerEnd;
use crate::services::Services;

/// What a worker runs for an event.
pub(super) trait Run: Send + 'static {
    /// Runs the event's handlers, and returns whether the event that follows it may start at once. The worker
    /// creates the future itself. A future is large: moving it to the worker, and freeing it on another
    /// thread, took a tenth of the client's time.
    fn run(self) -> impl Future<Output = bool> + Send;
}

/// The time limits of handlers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimits {
    /// The limit of each handler.
    pub handler: Duration,
    /// The end of the run, which limits all of them.
    pub cut: Instant,
}

/// The handlers of one event, with the runtime, the position in the trace and the log span that they run in.
pub(super) struct EventRun<D: Dispatch> {
    pub app: Arc<D>,
    pub ctx: Arc<Context>,
    pub event: D::Event,
    pub limits: TimeLimits,
    pub services: Arc<Services>,
    pub span: Span,
}

impl<D: Dispatch> Run for EventRun<D> {
    fn run(self) -> impl Future<Output = bool> + Send {
        let span = self.span.clone();
        async move {
            // Not entered: a span is built when another begins below it, and this one is recorded at its end.
            self.ctx.record_on(spans::of_attempt());
            let position = self.ctx.trace().cloned();
            let work = execute(
                &*self.app,
                &self.ctx,
                &self.event,
                self.limits,
                &self.services,
            );
            // Boxed, because the wrapper holds the work twice. Without it, every event's future would be
            // larger, and copying it took a tenth of the drain's speed.
            let went_well = match position {
                Some(_) => Box::pin(trace::within(position, work)).await,
                None => work.await,
            };
            spans::note_end(&self.ctx);
            went_well
        }
        .instrument(span)
    }
}

/// Runs the handlers of an event that have not finished yet. Afterwards every handler has an end in `ctx`.
/// Returns whether the next event of its group may start at once.
pub(crate) async fn execute<D: Dispatch>(
    app: &D,
    ctx: &Context,
    event: &D::Event,
    limits: TimeLimits,
    services: &Services,
) -> bool {
    let listed = std::panic::catch_unwind(AssertUnwindSafe(|| app.handlers(event, ctx)));
    let handlers = match listed {
        Ok(handlers) => handlers.0,
        Err(panic) => {
            ctx.end_handler(Err(HandlerError::panicked(&*panic)));
            return false;
        }
    };
    if let Some(name) = listed_twice(&handlers) {
        let why = format!("two handlers of the event are called {name}");
        ctx.end_handler(Err(HandlerError::retry("handlers", why)));
        return false;
    }
    let left = skip_finished(ctx, handlers);
    let count = left.len();
    for (index, handler) in left.into_iter().enumerate() {
        let now = Instant::now();
        let limit = limits
            .handler
            .min(limits.cut.saturating_duration_since(now));
        let deadline = now + limit;
        let is_cut = limit < limits.handler;
        ctx.begin_handler(handler.name, deadline, is_cut, index + 1 < count);
        let service = handler.service;
        let refused = service.and_then(|service| services.refuse(service, ctx.event()));
        if let Some(refused) = refused {
            ctx.end_handler(Err(refused));
            continue;
        }
        let name = handler.name;
        let work = run(handler, deadline, limit, is_cut);
        let result = match spans::of_handler(ctx) {
            Some(recorded) => Box::pin(spans::handled(recorded, name, service, work)).await,
            None => work.await,
        };
        ctx.end_handler(match service {
            Some(service) => services.judge(service, ctx.event(), now.elapsed(), result),
            None => result,
        });
    }
    ctx.went_well()
}

/// Returns a name that two handlers have. The second would be taken for the first, which has finished.
fn listed_twice(handlers: &[Handler<'_>]) -> Option<&'static str> {
    let names = || handlers.iter().map(|handler| handler.name);
    let twice = |(at, name): &(usize, &str)| names().take(*at).any(|before| before == *name);
    names().enumerate().find(twice).map(|(_, name)| name)
}

/// Records the ends that earlier attempts left, and returns the handlers that must run.
fn skip_finished<'a>(ctx: &Context, handlers: Vec<Handler<'a>>) -> Vec<Handler<'a>> {
    let Some(progress) = &ctx.event().progress else {
        return handlers;
    };
    let (done, left): (Vec<_>, Vec<_>) = handlers
        .into_iter()
        .partition(|handler| progress.handlers.contains_key(handler.name));
    for handler in done {
        ctx.skip_handler(HandlerEnd::of(
            handler.name,
            &progress.handlers[handler.name],
        ));
    }
    left
}

async fn run(handler: Handler<'_>, deadline: Instant, limit: Duration, cut: bool) -> HandlerResult {
    let work = AssertUnwindSafe(handler.work).catch_unwind();
    match tokio::time::timeout_at(deadline, work).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(HandlerError::panicked(&*panic)),
        Err(_) => Err(HandlerError::timed_out(limit, cut)),
    }
}
