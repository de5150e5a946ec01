//! Owns how a handler emits follow-ups that wait for other follow-ups. The database decides when such an event starts
//! (`sql/V0014__fan_in.sql`).

use uuid::Uuid;

use crate::context::Context;
use crate::event::{Event, NewEvent};
use crate::handler::{HandlerError, Verdicts};

/// The most events that one event may wait for.
pub(crate) const MOST_MEMBERS: usize = 10_000;

/// Follow-ups that belong together, so another follow-up can wait for all of them. See [`Context::emit_all`].
#[must_use = "`then` has an event wait for all of them; drop it with `let _ =` where none does"]
pub struct EmittedSet<'a> {
    ctx: &'a Context,
    /// `None` if the set is empty.
    id: Option<Uuid>,
}

impl EmittedSet<'_> {
    /// Publishes one more follow-up together with the set. It starts after all events of the set have ended, with
    /// whatever status. After an empty set it starts at once.
    ///
    /// # Errors
    /// As [`Context::emit`].
    pub fn then(self, event: &impl Event) -> Result<(), HandlerError> {
        self.then_new(NewEvent::of(event).reject("emit")?)
    }

    /// Like [`EmittedSet::then`], with the options of [`NewEvent`]. A delay counts from the publish: the event starts
    /// no earlier than that.
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
    /// Publishes follow-ups like [`Context::emit`], up to 10,000, and returns them as a set. Another follow-up can wait
    /// for all of them: `ctx.emit_all(&pages)?.then(&Document::Complete(id))?`. Its handlers learn with
    /// [`Context::members`] how the set's events ended.
    ///
    /// # Errors
    /// As [`Context::emit`]. Also a rejection, code `emit`, when there are too many events.
    pub fn emit_all<'e, E: Event>(
        &self,
        events: impl IntoIterator<Item = &'e E>,
    ) -> Result<EmittedSet<'_>, HandlerError> {
        let events = events.into_iter().map(NewEvent::of);
        let events: Vec<NewEvent> = events.collect::<Result<_, _>>().reject("emit")?;
        self.emit_all_new(events)
    }

    /// Like [`Context::emit_all`], with the options of [`NewEvent`].
    ///
    /// # Errors
    /// As [`Context::emit_new`]. Also a rejection, code `emit`, when there are too many events.
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
