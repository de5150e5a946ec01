//! The part of the loop that leases: asks for more ahead of the handlers, prolongs what is in hand, and sees when the queue is
//! empty.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::time::Instant;
use uuid::Uuid;

use super::leaser::{Arrival, Brought, LEASE_BYTES, LeaseOrder, lease};
use super::leases::Window;
use super::{Drain, Slot};
use crate::dispatch::Dispatch;
use crate::event::Event;
use crate::lease::{Fate, Lease};
use crate::queue::Troubled;

/// A window is this much work: about what passes until the database has been told of the next one, several times over.
const WINDOW: Duration = Duration::from_millis(50);

/// What leases have said of the queue being empty.
pub(super) struct Empty {
    pub seen: bool,
    /// When the last lease that has arrived was asked for.
    pub looked_at: Instant,
    /// Since when there is nothing to do either.
    pub since: Option<Instant>,
    /// The last lease left out kinds that there was no time for.
    pub kinds_left_out: bool,
}

impl<D: Dispatch> Drain<D> {
    /// Leases ahead: as soon as no more than one lease's worth of events waits. With half of that the leasing
    /// session, the busier one, was idle for a seventh of a drain of quick handlers (5 % slower). Prolongs leases that are
    /// older than a third of their time.
    pub(super) fn send_lease(&mut self) {
        if !self.leasing.is_idle() || self.between.writes_back {
            return;
        }
        let now = Instant::now();
        let third = self.options.lease_timeout / 3;
        let renews = self
            .hand
            .leases
            .oldest_renewal()
            .is_some_and(|renewed| now >= renewed + third);
        let may_lease = self.may_lease();
        let probe = self.services.due(now).filter(|_| may_lease);
        let stretch = (probe.is_none() && may_lease && self.wants_more(now)).then(|| {
            let most = self.room_to_lease();
            self.walk.next(most, self.is_idle())
        });
        let leases = stretch.is_some() || probe.is_some();
        if let Some(probe) = &probe {
            self.services.note_asked(probe, now);
        }
        if !leases && !renews {
            return;
        }
        let first_window = if self.hand.leases.has_suspect() {
            0
        } else {
            self.window()
        };
        let kinds = self.budget.kinds_with_time(D::Event::KINDS);
        if leases {
            self.empty.kinds_left_out = kinds.len() < D::Event::KINDS.len();
            self.between.brings_window = first_window > 0;
        }
        if let Some(session) = self.leasing.take() {
            let order = LeaseOrder {
                worker: self.worker,
                held: self.hand.leases.tokens(),
                trusted: self.hand.leases.trusted(),
                over: if leases {
                    self.hand.leases.take_ended()
                } else {
                    Vec::new()
                },
                timeout: self.options.lease_timeout,
                renews,
                stretch,
                probe,
                kinds,
                first_window: u32::try_from(first_window).unwrap_or(u32::MAX),
                sent: now,
            };
            self.leasing = Slot::Busy(lease(session, order).boxed());
        }
    }

    fn room_to_lease(&self) -> u64 {
        let leased = self.report.leased;
        self.options
            .max_events
            .map_or(u64::MAX, |limit| limit.saturating_sub(leased))
    }

    fn wants_more(&self, now: Instant) -> bool {
        let enough = self.hand.waiting() > self.walk.want() as usize
            || self.hand.bytes() as u64 > LEASE_BYTES;
        !enough && now >= self.walk.poll_at()
    }

    fn may_lease(&self) -> bool {
        let goes_back = self.outbox.next.is_exclusive() || self.between.rereads;
        !goes_back
            && self.outbox.unwritten() < self.most_unwritten()
            && self.room_to_lease() > 0
            && !self.is_spent()
    }

    pub(super) fn lease_arrived(&mut self, arrival: Arrival) {
        let Arrival {
            session,
            order,
            brought,
        } = arrival;
        self.leasing = Slot::Idle(Box::new(session));
        self.between.brings_window = false;
        match brought {
            Ok(brought) => self.take_brought(order, brought),
            // What is in hand is brought to its end as far as that goes, and given back.
            Err(error) => self.fail(error),
        }
    }

    fn take_brought(&mut self, order: LeaseOrder, brought: Brought) {
        if let Some(renewed) = brought.renewed {
            self.take_renewed(&order.held, &renewed, order.sent);
        }
        let mut batch = brought.batch;
        if let Some(service) = order.probe {
            self.learn_services(&batch.troubled);
            self.empty.seen = false;
            if let Some(event) = batch.events.first() {
                self.services.begin_probe(event.lease, service);
            }
        } else {
            let Some(stretch) = order.stretch else { return };
            let left = self.hand.waiting();
            let empty = self
                .walk
                .arrived(stretch, brought.promoted, &mut batch, left);
            self.empty.seen = empty && self.is_idle();
            self.empty.looked_at = order.sent;
            self.learn_services(&batch.troubled);
        }
        if batch.events.is_empty() && batch.unreadable.is_empty() {
            return;
        }
        self.report.batches += 1;
        let run = batch.events.iter().filter(|event| event.fate == Fate::Run);
        self.report.leased += (run.count() + batch.unreadable.len()) as u64;
        let window = Window {
            started_to: batch.started_to,
            suspect: batch.suspect,
        };
        let token = brought.token;
        let stale = self
            .hand
            .take_in(token, batch.events, &batch.unreadable, window, order.sent);
        self.lose(stale);
        for id in batch.unreadable {
            self.outbox.note().unreadable.push(Lease { id, token });
        }
    }

    fn learn_services(&mut self, troubled: &[Troubled]) {
        if self.services.learn(troubled) {
            self.look_again();
        }
    }

    /// What waited for a service that answers again stands behind the cursor.
    pub(super) fn look_again(&mut self) {
        self.walk.back_to(1);
        self.walk.hurry();
        self.empty.seen = false;
    }

    /// Leases that did not come back are gone, or were cut.
    fn take_renewed(&mut self, asked: &[Uuid], renewed: &[(Uuid, i32)], sent: Instant) {
        for (token, cuts) in renewed {
            self.between.rereads |= self.hand.leases.is_cut(*token, Some(*cuts));
            self.hand.leases.note_renewal(*token, sent);
        }
        let found: HashSet<Uuid> = renewed.iter().map(|(token, _)| *token).collect();
        for token in asked.iter().filter(|token| !found.contains(token)) {
            self.between.rereads |= self.hand.leases.left(*token) > 0;
        }
    }

    /// How many events of a lease may start without the database being told anew: as many as the handlers do in
    /// [`WINDOW`]. If this worker goes away, so many lose an attempt.
    pub(super) fn window(&self) -> usize {
        let least = self.options.concurrency;
        let Some(typical) = self.lanes.typical() else {
            return least;
        };
        let each = WINDOW.as_nanos() / typical.as_nanos().max(1);
        let each = usize::try_from(each).unwrap_or(usize::MAX);
        each.saturating_mul(least)
            .clamp(least, (self.options.batch as usize).max(least))
    }

    /// The queue was seen empty, and again when linger was over.
    pub(super) fn is_settled_empty(&mut self) -> bool {
        if !self.empty.seen || !self.is_idle() || self.services.due(Instant::now()).is_some() {
            self.empty.since = None;
            return false;
        }
        let now = Instant::now();
        let over = *self.empty.since.get_or_insert(now) + self.options.linger;
        if now < over {
            return false;
        }
        if self.options.linger.is_zero() || self.empty.looked_at >= over {
            return true;
        }
        self.walk.hurry();
        false
    }
}
