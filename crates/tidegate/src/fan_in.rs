//! Owns what a handler says of follow-ups that wait for others. When such an event begins is the database's matter
//! (`sql/V0014__fan_in.sql`).

use uuid::Uuid;

use crate::context::Context;
use crate::event::{Event, NewEvent};
use crate::handler::{HandlerError, Verdicts};

/// An event waits for no more others than this.
pub(crate) const MOST_MEMBERS: usize = 10_000;

/// Follow-ups that belong together, for one that waits for them all; see [`Context::emit_all`].
#[must_use = "`then` has an event wait for all of them; drop it with `let _ =` where none does"]
pub struct EmittedSet<'a> {
    ctx: &'a Context,
    /// `None` if it is empty.
    id: Option<Uuid>,
}

impl EmittedSet<'_> {
    /// Publishes a further follow-up, with the others, which begins when all of them have ended, however they did. After an
    /// empty set it begins at once.
    ///
    /// # Errors
    /// As [`Context::emit`].
    pub fn then(self, event: &impl Event) -> Result<(), HandlerError> {
        self.then_new(NewEvent::of(event).reject("emit")?)
    }

    /// As [`EmittedSet::then`], with the options of [`NewEvent`]. A delay counts from the publish: it begins no earlier than that.
    ///
    /// # Errors
    /// As [`Context::emit_new`].
    pub fn then_new(self, event: NewEvent) -> Result<(), HandlerError> {
        self.ctx.emit_new(NewEvent {
            waits: self.id,
            ..event
        })
    }
}

impl Context {
    /// Publishes follow-ups as [`Context::emit`] does, up to 10,000, and lets another one wait for all of them:
    /// `ctx.emit_all(&pages)?.then(&Document::Complete(id))?`. That one's handlers learn with [`Context::members`] how they ended.
    ///
    /// # Errors
    /// As [`Context::emit`]; a rejection, code `emit`, when there are too many.
    pub fn emit_all<'e, E: Event>(
        &self,
        events: impl IntoIterator<Item = &'e E>,
    ) -> Result<EmittedSet<'_>, HandlerError> {
        let events = events.into_iter().map(NewEvent::of);
        let events: Vec<NewEvent> = events.collect::<Result<_, _>>().reject("emit")?;
        self.emit_all_new(events)
    }

    /// As [`Context::emit_all`], with the options of [`NewEvent`].
    ///
    /// # Errors
    /// As [`Context::emit_new`]; a rejection, code `emit`, when there are too many.
    pub fn emit_all_new(
        &self,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Result<EmittedSet<'_>, HandlerError> {
        let id = Uuid::new_v4();
        let mut members = 0;
        for event in events {
            members += 1;
            if members > MOST_MEMBERS {
                let why = format!("a set must have at most {MOST_MEMBERS} events, got more");
                return Err(HandlerError::reject("emit", why));
            }
            self.emit_new(NewEvent {
                set: Some(id),
                ..event
            })?;
        }
        let id = (members > 0).then_some(id);
        Ok(EmittedSet { ctx: self, id })
    }
}
