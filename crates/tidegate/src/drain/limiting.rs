//! The part of the loop that deals with limited services: which kinds may start, and what to request from the
//! database for them.

use tokio::time::Instant;

use super::Drain;
use super::leaser::Target;
use super::limits::{Demand, Next};
use crate::dispatch::Dispatch;
use crate::event::Event;
use crate::queue::{Claim, Grant};

impl<D: Dispatch> Drain<D> {
    /// Learns which services are limited, and which of their events may start now. Events that were leased
    /// before their service was limited go back.
    pub(super) fn follow_limits(&mut self) {
        let kinds = self.limits.learn(&self.services);
        if !kinds.is_empty() {
            self.recall(|event| kinds.contains(&event.kind));
            for event in self.buffer.take_kinds(&kinds) {
                self.release(event);
            }
        }
        if !self.limits.is_empty() || !self.buffer.barred.is_empty() {
            self.buffer.barred = self.limits.barred(&self.services, Instant::now());
        }
    }

    /// Returns what to request next for a limited service.
    pub(super) fn ask_for_limited(
        &mut self,
        may_lease: bool,
        kinds: &[&'static str],
        now: Instant,
    ) -> Option<(Target, Vec<&'static str>)> {
        if self.limits.is_empty() {
            return None;
        }
        let demand = Demand {
            services: &self.services,
            waiting: &|kinds| self.buffer.waiting_of(kinds),
            pace: self.handled_in_a_second(),
            kinds: if may_lease { kinds } else { &[] },
        };
        match self.limits.next(&demand, now)? {
            Next::Claim(claim) => Some((Target::Claim(claim), Vec::new())),
            Next::Lease(turn, kinds, most) => {
                let most = most.min(self.room_to_lease());
                let stretch = self.limits.stretch(&turn, most)?;
                Some((Target::Limited(turn, stretch), kinds))
            }
        }
    }

    /// Returns how many events in the buffer wait for their start. They do not keep other events from being leased.
    pub(super) fn waiting_for_limited(&self) -> usize {
        if self.limits.is_empty() {
            return 0;
        }
        self.buffer.waiting_of(&self.limits.kinds())
    }

    /// Whether nothing is left to do for limited services, or other workers do it.
    pub(super) fn limits_are_quiet(&self) -> bool {
        let kinds = || self.budget.kinds_with_time(D::Event::KINDS);
        self.limits.is_empty() || self.limits.is_quiet(&kinds())
    }

    /// Processes the answer to a claim. Events in the buffer that wait for places of other workers go back, so that
    /// those can lease them.
    pub(super) fn take_grant(&mut self, claim: &Claim, grant: Grant, sent: Instant) {
        let kinds = self.limits.granted(&self.services, claim, grant, sent);
        if let Some(kinds) = kinds.cloned() {
            for event in self.buffer.take_kinds(&kinds) {
                self.release(event);
            }
        }
    }
}
