//! The part of the loop that leases. It requests more events ahead of the handlers, renews the leases in
//! hand, and notices when the queue is empty.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::time::Instant;
use uuid::Uuid;

use super::clocks::Reading;
use super::leaser::{FetchRequest, FetchResult, Fetched, LEASE_BYTES, Target, lease};
use super::leases::Window;
use super::scan::{ARRIVAL, ScanStep, WORTH};
use super::{Drain, Slot};
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::event::Event;
use crate::lease::{Fate, Lease};
use crate::queue::{DueSchedule, Fired, LeasedBatch};

/// The work in one window. It is several times the time until the database knows about the next window.
const WINDOW: Duration = Duration::from_millis(50);

/// The most starts of a limited service that are requested at once.
const MOST_AHEAD: usize = 1000;

/// What leases have shown about whether the queue is empty.
pub(super) struct Empty {
    pub seen: bool,
    /// When the last lease that has arrived was requested.
    pub looked_at: Instant,
    /// Since when there is no work in the buffer either.
    pub since: Option<Instant>,
    /// Whether the last lease left out kinds for which there was no time.
    pub kinds_left_out: bool,
}

impl<D: Dispatch> Drain<D> {
    /// Leases ahead: as soon as the waiting events are no more than one lease brings. With half of that, the
    /// leasing session, which is the busier one, was idle for a seventh of a drain of quick handlers (5 %
    /// slower). Also renews leases that are older than a third of their time.
    pub(super) fn send_lease(&mut self) {
        if !self.leasing.is_idle() || self.between.writes_back {
            return;
        }
        let now = Instant::now();
        let third = self.options.lease_timeout / 3;
        let renews = self
            .buffer
            .leases
            .oldest_renewal()
            .is_some_and(|renewed| now >= renewed + third);
        let may_lease = self.may_lease();
        let (ask, kinds) = self.what_to_ask(may_lease, now);
        let leases = ask.leases();
        // Not together with a firing. The answer to the firing shows whether another worker holds the
        // schedules.
        let looks = !matches!(ask, Target::Fire(_)) && !self.is_spent();
        let look = looks.then(|| self.scheduling.look(now)).flatten();
        let slots = self.slot_request(now);
        let beside = look.is_some() || !slots.is_empty();
        if matches!(ask, Target::Nothing) && !renews && !beside {
            return;
        }
        let first_window = if self.buffer.leases.has_suspect() {
            0
        } else {
            self.window()
        };
        self.between.brings_window = leases && first_window > 0;
        if let Some(session) = self.leasing.take() {
            let order = FetchRequest {
                worker: self.worker,
                held: self.buffer.leases.tokens(),
                trusted: self.buffer.leases.trusted(),
                over: if leases || renews {
                    self.buffer.leases.take_ended()
                } else {
                    Vec::new()
                },
                timeout: self.options.lease_timeout,
                renews,
                ask,
                kinds,
                slots,
                look,
                all_kinds: D::Event::KINDS,
                first_window: u32::try_from(first_window).unwrap_or(u32::MAX),
                sent: Reading::now(),
            };
            if let Some(spans) = &mut self.observers.spans {
                spans.leases();
            }
            self.leasing = Slot::Busy(lease(session, order).boxed());
        }
    }

    /// Requests one thing at a time: an event to try a service with, something for a limited service, or
    /// other events.
    fn what_to_ask(&mut self, may_lease: bool, now: Instant) -> (Target, Vec<&'static str>) {
        let mut kinds = self.budget.kinds_with_time(D::Event::KINDS);
        let due = self.scheduling.take_due();
        if !due.is_empty() {
            return (Target::Fire(due), kinds);
        }
        if let Some(probe) = self.services.due(now).filter(|_| may_lease) {
            self.services.note_requested(&probe, now);
            return (Target::Probe(probe), kinds);
        }
        let wants_more = may_lease && self.wants_more(now);
        let rest_first = std::mem::take(&mut self.limits.had_turn) && wants_more;
        if !rest_first && let Some(asked) = self.ask_for_limited(may_lease, &kinds, now) {
            self.limits.had_turn = true;
            return asked;
        }
        if !wants_more {
            return (Target::Nothing, kinds);
        }
        self.empty.kinds_left_out = kinds.len() < D::Event::KINDS.len();
        kinds.retain(|kind| !self.limits.has_kind(kind));
        let most = self.room_to_lease();
        let stretch = self.scan.next(most, self.is_idle());
        (Target::Events(stretch), kinds)
    }

    pub(super) fn room_to_lease(&self) -> u64 {
        let leased = self.report.leased;
        self.options
            .max_events
            .map_or(u64::MAX, |limit| limit.saturating_sub(leased))
    }

    fn wants_more(&self, now: Instant) -> bool {
        let waiting = self.buffer.waiting() - self.waiting_for_limited();
        let enough =
            waiting > self.scan.want() as usize || self.buffer.bytes() as u64 > LEASE_BYTES;
        !enough && now >= self.scan.poll_at()
    }

    fn may_lease(&self) -> bool {
        let goes_back = self.outbox.next.is_exclusive() || self.between.rereads;
        !goes_back
            && self.outbox.unwritten() < self.most_unwritten()
            && self.room_to_lease() > 0
            && !self.is_spent()
    }

    pub(super) fn lease_arrived(&mut self, arrival: Fetched) {
        let Fetched {
            session,
            unsure,
            order,
            brought,
        } = arrival;
        self.buffer.leases.has_unknown |= unsure;
        self.leasing = Slot::Idle(Box::new(session));
        self.database_time += order.sent.steady.elapsed();
        self.between.brings_window = false;
        match brought {
            Ok(brought) => {
                let closed = brought.slots.closes();
                self.take_brought(order, brought);
                // This lease looked before the announcement, so its result does not count as the last look.
                if closed {
                    self.closed();
                }
            }
            // The events in the buffer are completed as far as possible, and the rest is given back.
            Err(error) => self.fail(error),
        }
    }

    fn take_brought(&mut self, order: FetchRequest, brought: FetchResult) {
        if let Some(renewed) = brought.renewed {
            self.take_renewed(&order.held, &renewed, order.sent);
        }
        self.on_slot_answer(&brought.slots, order.sent.steady);
        self.take_scheduled(brought.fired, brought.due);
        let mut batch = brought.batch;
        match order.ask {
            Target::Nothing | Target::Fire(_) => return,
            Target::Claim(claim) => {
                return self.take_grant(&claim, brought.grant, order.sent.steady);
            }
            Target::Probe(service) => {
                self.learn(&mut batch);
                self.empty.seen = false;
                if let Some(event) = batch.events.first() {
                    self.services.begin_probe(event.lease, service);
                }
            }
            Target::Limited(turn, stretch) => {
                self.limits
                    .arrived(&turn, stretch, brought.promoted, &mut batch);
                self.note_promoted(brought.promoted);
                self.learn(&mut batch);
            }
            Target::Events(stretch) => {
                let pace = (self.buffer.waiting(), self.pace(&stretch));
                let empty = self
                    .scan
                    .arrived(stretch, brought.promoted, &mut batch, pace);
                self.empty.seen = empty && self.is_idle();
                self.empty.looked_at = order.sent.steady;
                self.note_promoted(brought.promoted);
                self.learn(&mut batch);
            }
        }
        if batch.events.is_empty() && batch.unreadable.is_empty() {
            return;
        }
        self.report.batches += 1;
        let run = batch.events.iter().filter(|event| event.fate == Fate::Run);
        if let Some(spans) = &mut self.observers.spans {
            spans.leased(batch.events.len());
        }
        self.report.leased += (run.count() + batch.unreadable.len()) as u64;
        let window = Window {
            started_to: batch.started_to,
            suspect: batch.suspect,
        };
        let token = brought.token;
        let stale = self
            .buffer
            .insert(token, batch.events, &batch.unreadable, window, order.sent);
        self.lose(stale);
        for id in batch.unreadable {
            self.outbox.note().unreadable.push(Lease { id, token });
        }
    }

    /// Processes the results about schedules.
    fn take_scheduled(
        &mut self,
        fired: Option<Result<Vec<Fired>, Error>>,
        due: Option<Result<Vec<DueSchedule>, Error>>,
    ) {
        if let Some(fired) = fired {
            let published = self.scheduling.fired(fired);
            self.report.scheduled += published;
            if published > 0 {
                self.rescan();
            }
        }
        if let Some(due) = due {
            self.scheduling.found(due);
        }
    }

    /// Leaves due schedules to the next run when there is no time left.
    pub(super) fn stop_scheduling(&mut self) {
        if self.scheduling.has_due() && self.is_spent() {
            self.scheduling.stop();
        }
    }

    /// Learns what a lease reports about services and kinds.
    fn learn(&mut self, batch: &mut LeasedBatch) {
        self.policies.learn(std::mem::take(&mut batch.policies));
        if self.services.learn(&batch.watched) {
            self.rescan();
        }
    }

    /// Moves the scans back to delayed events that have become due.
    fn note_promoted(&mut self, lowest: Option<i64>) {
        if let Some(lowest) = lowest {
            self.back_to(lowest);
        }
    }

    /// Moves the scans back to an event that may be ready.
    pub(super) fn back_to(&mut self, id: i64) {
        self.scan.back_to(id);
        self.limits.back_to(id);
    }

    /// Looks again from the start, for events that waited for a service that answers again.
    pub(super) fn rescan(&mut self) {
        self.back_to(1);
        self.scan.hurry();
        self.limits.hurry();
        self.empty.seen = false;
    }

    /// Processes a renewal. Leases that are missing from it are gone; others may have been cut.
    fn take_renewed(&mut self, asked: &[Uuid], renewed: &[(Uuid, i32)], sent: Reading) {
        for (token, cuts) in renewed {
            self.between.rereads |= self.buffer.leases.is_cut(*token, Some(*cuts));
            self.buffer.leases.note_renewal(*token, sent);
        }
        let found: HashSet<Uuid> = renewed.iter().map(|(token, _)| *token).collect();
        for token in asked.iter().filter(|token| !found.contains(token)) {
            self.between.rereads |= self.buffer.leases.left(*token) > 0;
        }
    }

    /// Returns how many events the handlers do in this time, at least as many as run at once. `None` before
    /// the first one has ended.
    fn handled_in(&self, time: Duration) -> Option<usize> {
        let each = time.as_nanos() / self.workers.typical()?.as_nanos().max(1);
        let each = usize::try_from(each).unwrap_or(usize::MAX);
        Some(each.max(1).saturating_mul(self.options.concurrency))
    }

    /// Returns how many events the handlers do in a second, at least as many as run at once.
    pub(super) fn handled_in_a_second(&self) -> usize {
        let least = self.options.concurrency;
        let known = self.handled_in(Duration::from_secs(1));
        known.map_or(least, |count| count.clamp(least, MOST_AHEAD))
    }

    /// Returns how many events one lease may bring: as many as the handlers do in [`WORTH`], or while a lease
    /// like this one is under way. While that is not known, it returns a small number. Events that share a
    /// call take one handler's place together.
    fn pace(&self, arrived: &ScanStep) -> u32 {
        let known = self.handled_in(arrived.under_way().clamp(WORTH, ARRIVAL));
        let most = known.unwrap_or(2 * self.options.concurrency);
        let shared = most.saturating_mul(self.policies.most_shared());
        u32::try_from(shared).unwrap_or(u32::MAX)
    }

    /// Returns how many events of a lease may start before the database must be notified again: as many as
    /// the handlers do in [`WINDOW`]. If this worker disappears, that many events lose an attempt.
    pub(super) fn window(&self) -> usize {
        let least = self.options.concurrency;
        let most = (self.options.batch as usize).max(least);
        let known = self.handled_in(WINDOW);
        known.map_or(least, |count| count.clamp(least, most))
    }

    /// Whether the queue was seen empty, and again when the linger time was over.
    pub(super) fn is_settled_empty(&mut self) -> bool {
        let now = Instant::now();
        if !self.empty.seen
            || !self.is_idle()
            || self.services.due(now).is_some()
            || !self.limits_are_quiet()
        {
            self.empty.since = None;
            return false;
        }
        // A drain that has announced its end has lingered before.
        let linger = if self.is_closing() {
            Duration::ZERO
        } else {
            self.options.linger
        };
        let over = *self.empty.since.get_or_insert(now) + linger;
        if now < over {
            return false;
        }
        if linger.is_zero() || self.empty.looked_at >= over {
            return true;
        }
        self.scan.hurry();
        false
    }
}
