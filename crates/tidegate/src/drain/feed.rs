//! What goes from the queue to the handlers: what to lease next, what a lease has brought, and which of its
//! events start now.

use std::sync::Arc;

use tidegate_core::fault::Fault;
use tidegate_core::lease::{Lease, LeaseDecision, LeasedEvent};
use tidegate_core::progress::Status;
use tidegate_core::queue::{Claim, Grant, LeasedBatch};
use tokio::time::Instant;

use super::Drain;
use super::buffer::StartRule;
use super::clocks::Reading;
use super::execute::EventRun;
use super::fetcher::{FetchKind, FetchRequest, FetchResult, Fetched, LEASE_BYTES};
use super::flush::CountedAs;
use super::leases::Window;
use super::limits::{LimitInputs, ServiceLimits};
use super::workers::{AttemptStart, PERMIT, StartableEvent, Workers};
use crate::context::Context;
use crate::dispatch::Dispatch;
use crate::handler::Unhandled;

/// The most events of a group that are handed over behind its first event. The handler task requests one from
/// the loop once for all of them.
const MOST_CHAINED: usize = 31;

impl<D: Dispatch> Drain<D> {
    /// Fetches ahead: as soon as the waiting events are no more than one lease brings. With half of that, the
    /// leasing session, which is the busier one, was idle for a seventh of a drain of quick handlers (5 %
    /// slower).
    pub(super) fn send_fetch(&mut self) {
        if !self.fetcher.is_idle() || self.completer.is_exclusive() {
            return;
        }
        let now = Instant::now();
        let mut request = self.fetcher.request(self.buffer.leases());
        (request.fetch, request.kinds) = self.next_fetch(now);
        // Not together with a firing. The answer to the firing shows whether another drain holds the
        // schedules.
        if !matches!(request.fetch, FetchKind::Fire(_)) && !self.is_spent() {
            request.look = self.fetcher.scheduling.look(now);
        }
        request.keep = self.keep_slot(now);
        if !self.buffer.leases().has_suspect() {
            request.window = self.workers.window();
        }
        if self.fetcher.send(request, &mut self.buffer)
            && let Some(spans) = &mut self.observers.spans
        {
            spans.leases();
        }
    }

    /// Returns one thing to request: due schedules to fire, an event to try a service with, something for a
    /// limited service, or other events. Also returns the kinds of events.
    fn next_fetch(&mut self, now: Instant) -> (FetchKind, Vec<&'static str>) {
        let mut kinds = self.budget.kinds_with_time(&self.fetcher.all_kinds);
        let due = self.fetcher.scheduling.take_due();
        if !due.is_empty() {
            return (FetchKind::Fire(due), kinds);
        }
        let may_lease = self.may_lease();
        if let Some(probe) = self.services.calls.due(now).filter(|_| may_lease) {
            self.services.calls.note_requested(&probe, now);
            return (FetchKind::Probe(probe), kinds);
        }
        let wants_more = may_lease && self.wants_more(now);
        let most = self.room_to_lease();
        let rest_first = std::mem::take(&mut self.services.had_turn) && wants_more;
        let asks_limited = !rest_first && !self.services.is_empty();
        if asks_limited {
            let demand = LimitInputs {
                waiting: &|kinds| self.buffer.waiting_of(kinds),
                pace: self.workers.handled_in_a_second(),
                kinds: if may_lease { &kinds } else { &[] },
                most,
            };
            if let Some(limited) = self.services.next(&demand, now) {
                return limited;
            }
        }
        if !wants_more {
            return (FetchKind::Nothing, kinds);
        }
        self.fetcher.empty.kinds_left_out = kinds.len() < self.fetcher.all_kinds.len();
        kinds.retain(|kind| !self.services.has_kind(kind));
        let step = self.fetcher.scan.next(most, self.is_idle());
        (FetchKind::Events(step), kinds)
    }

    fn room_to_lease(&self) -> u64 {
        let leased = self.report.leased;
        let most = self.options.max_events;
        most.map_or(u64::MAX, |limit| limit.saturating_sub(leased))
    }

    /// Whether too few events wait. Those that wait for a limited service do not count: they do not keep
    /// other events from being leased.
    fn wants_more(&self, now: Instant) -> bool {
        let mut waiting = self.buffer.waiting();
        if !self.services.is_empty() {
            waiting -= self.buffer.waiting_of(&self.services.kinds());
        }
        let scan = &self.fetcher.scan;
        let enough = waiting > scan.want() as usize || self.buffer.bytes() as u64 > LEASE_BYTES;
        !enough && now >= scan.poll_at()
    }

    fn may_lease(&self) -> bool {
        let goes_back = self.completer.has_returns() || self.buffer.is_uncertain();
        !goes_back
            && self.completer.unwritten() < self.most_unwritten()
            && self.room_to_lease() > 0
            && !self.is_spent()
    }

    /// Processes the answer to a fetch. After an error, the held events are completed as far as possible, and
    /// the rest is released.
    pub(super) fn on_fetched(&mut self, result: FetchResult) {
        let (request, mut fetched) = match self.fetcher.on_fetched(result) {
            Ok(fetched) => fetched,
            Err(error) => return self.fail(error),
        };
        if let Some(renewed) = &fetched.renewed {
            self.buffer.on_renewed(&request.held, renewed, request.sent);
        }
        if let Some(kept) = fetched.kept {
            self.slot_kept(kept, request.sent.steady);
        }
        for id in &fetched.given_up {
            self.observers.lines.failed(*id, "service_down");
            self.report.given_up += 1;
        }
        let scheduled = self.fetcher.on_scheduled(&mut fetched);
        self.report.scheduled += scheduled;
        if scheduled > 0 {
            self.rescan();
        }
        self.on_answer(request, fetched);
    }

    /// Processes what was requested besides renewals, schedules and slots.
    fn on_answer(&mut self, request: FetchRequest, mut fetched: Fetched) {
        let (batch, promoted, sent) = (&mut fetched.batch, fetched.promoted, request.sent);
        match request.fetch {
            FetchKind::Nothing | FetchKind::Fire(_) => return,
            FetchKind::Claim(claim) => return self.on_granted(&claim, fetched.grant, sent.steady),
            FetchKind::Probe(service) => {
                self.fetcher.empty.seen = false;
                if let Some(event) = batch.events.first() {
                    self.services.calls.begin_probe(event.lease, service);
                }
            }
            FetchKind::Limited(turn, step) => {
                self.fetcher.empty.seen &= batch.events.is_empty();
                self.services.arrived(&turn, step, promoted, batch);
            }
            FetchKind::Events(step) => {
                let (left, pace) = (self.buffer.waiting(), self.workers.pace(&step));
                let empty = self.fetcher.scan.arrived(step, promoted, batch, left, pace);
                let seen = empty && self.is_idle();
                if empty || !self.fetcher.scan.is_barren() {
                    self.fetcher.empty.note(seen, sent.steady);
                }
            }
        }
        // Delayed events that have become due may be behind the scans.
        if let Some(lowest) = promoted {
            self.back_to(lowest);
        }
        self.apply_lease_news(batch);
        if batch.events.is_empty() && batch.unreadable.is_empty() {
            return;
        }
        self.hold(fetched, sent);
    }

    /// Puts fetched events into the buffer.
    fn hold(&mut self, fetched: Fetched, sent: Reading) {
        let (batch, token) = (fetched.batch, fetched.token);
        self.report.batches += 1;
        let run = batch
            .events
            .iter()
            .filter(|event| event.fate == LeaseDecision::Run);
        self.report.leased += (run.count() + batch.unreadable.len()) as u64;
        if let Some(spans) = &mut self.observers.spans {
            spans.leased(batch.events.len());
        }
        let window = Window {
            started_to: batch.started_to,
            suspect: batch.suspect,
        };
        let unreadable = &batch.unreadable;
        let stale = self
            .buffer
            .insert(token, batch.events, unreadable, window, sent);
        self.lose(stale);
        for id in batch.unreadable {
            self.completer.end_unreadable(Lease { id, token });
        }
    }

    /// Learns what a lease reports about services and kinds.
    fn apply_lease_news(&mut self, batch: &mut LeasedBatch) {
        let policies = std::mem::take(&mut batch.policies);
        self.workers.policies().replace_stored(policies);
        if self.services.calls.apply_stored_states(&batch.watched) {
            self.rescan();
        }
    }

    /// Processes the answer to a claim. Held events that wait for places of other drains go back, so that
    /// those can lease them.
    fn on_granted(&mut self, claim: &Claim, grant: Grant, sent: Instant) {
        if let Some(kinds) = self.services.granted(claim, grant, sent) {
            for event in self.buffer.take_kinds(&kinds) {
                self.completer.release(event, &mut self.buffer);
            }
        }
    }

    /// Leaves due schedules to the next run when there is no time left.
    pub(super) fn stop_scheduling(&mut self) {
        if self.fetcher.scheduling.has_due() && self.is_spent() {
            self.fetcher.scheduling.stop();
        }
    }

    /// Moves the scans back to an event that may be ready.
    pub(super) fn back_to(&mut self, id: i64) {
        self.fetcher.scan.back_to(id);
        self.services.back_to(id);
    }

    /// Looks again from the start, for events that waited for a service that answers again.
    pub(super) fn rescan(&mut self) {
        self.back_to(1);
        self.fetcher.scan.hurry();
        self.services.hurry();
        self.fetcher.empty.seen = false;
    }

    /// Whether the queue was seen empty, and again when the linger time was over.
    pub(super) fn is_settled_empty(&mut self) -> bool {
        // For limited services, nothing is left to do either, or other drains do it.
        let is_quiet = |services: &ServiceLimits| {
            services.is_empty()
                || services.is_quiet(&self.budget.kinds_with_time(&self.fetcher.all_kinds))
        };
        if !self.fetcher.empty.seen
            || !self.is_idle()
            || self.services.calls.due(Instant::now()).is_some()
            || !is_quiet(&self.services)
        {
            self.fetcher.note_busy();
            return false;
        }
        self.fetcher.has_lingered(self.options.linger)
    }

    /// Starts handlers while there are events, permits and time, and while the held events are certain.
    pub(super) fn start_handlers(&mut self) {
        if self.buffer.is_uncertain() {
            return self.recall(|_| true);
        }
        self.follow_limits();
        let (mut permits, mut for_large) = self.workers.permits();
        let most_unwritten = self.most_unwritten();
        let in_order = self.options.concurrency == 1;
        let (now, spent) = (Instant::now(), self.is_spent());
        let timeout = self.options.lease_timeout;
        while permits > 0 && !spent && self.completer.unwritten() < most_unwritten {
            let before = self.workers.count();
            let pick = StartRule {
                in_order,
                large: for_large > 0,
            };
            match self.buffer.pop(pick) {
                Some(event) if self.buffer.leases().is_late(&event, timeout, now) => {
                    let fate = LeaseDecision::Expired;
                    // What is only swept does not count as leased.
                    self.report.leased -= 1;
                    self.start(LeasedEvent { fate, ..event }, now);
                }
                Some(event) if self.may_start(&event, now) => {
                    let part = PERMIT / self.workers.sharing(&event).most;
                    self.start(event, now);
                    if self.workers.count() > before {
                        permits = permits.saturating_sub(part);
                        for_large = for_large.saturating_sub(part);
                    }
                }
                Some(event) => self.completer.release(event, &mut self.buffer),
                None => break,
            }
        }
        self.workers.pool().open();
    }

    /// Learns which services are limited, and which of their events may start now. Events that were leased
    /// before their service was limited go back.
    fn follow_limits(&mut self) {
        let kinds = self.services.refresh();
        if !kinds.is_empty() {
            self.recall(|event| kinds.contains(&event.kind));
            for event in self.buffer.take_kinds(&kinds) {
                self.completer.release(event, &mut self.buffer);
            }
        }
        if !self.services.is_empty() || self.buffer.has_barred() {
            self.buffer.bar(self.services.barred(Instant::now()));
        }
    }

    /// Whether there is time for the event, and its lease is certainly still valid.
    fn may_start(&self, event: &LeasedEvent, now: Instant) -> bool {
        let start_by = self.start_by(event);
        !start_by.is_over(now) && self.budget.allows(&event.kind, now)
    }

    fn start_by(&self, event: &LeasedEvent) -> Reading {
        let leases = self.buffer.leases();
        leases.start_by(event, self.options.lease_timeout)
    }

    /// Starts one event, or ends it at once if there is nothing to run.
    fn start(&mut self, leased: LeasedEvent, now: Instant) {
        let swept = match leased.fate {
            LeaseDecision::Run => None,
            LeaseDecision::Expired => Some((
                CountedAs::Expired,
                "expired",
                "not started before its deadline",
            )),
            LeaseDecision::Abandoned => {
                let why = "its worker went away on the last attempt";
                Some((CountedAs::Abandoned, "abandoned", why))
            }
            LeaseDecision::Exhausted => {
                let why = "it has had as many attempts as it may have";
                Some((CountedAs::Abandoned, "attempts_exhausted", why))
            }
        };
        if let Some((counted_as, code, why)) = swept {
            return self.give_up(&leased, &Fault::new(code, why), counted_as);
        }
        let event = match Workers::<D>::read(&leased) {
            Ok(event) => event,
            Err(Unhandled::Later(error)) => return self.defer(&leased, error),
            Err(Unhandled::Never(fault)) => {
                return self.give_up(&leased, &fault, CountedAs::Handled(Status::Failed));
            }
        };
        let group = leased.group_key.clone();
        let limited = self.services.has_kind(&leased.kind);
        if limited {
            self.services.start(&leased.kind, leased.lease);
            self.buffer.bar(self.services.barred(now));
        }
        let mut work = self.prepare(event, leased, None, now);
        let chains = self.workers.pool().chains() && !limited && work.part == PERMIT;
        if let Some(group) = group.filter(|_| chains) {
            self.chain(&mut work, &group, now);
        }
        self.workers.pool().push(work);
    }

    /// Creates an event's work, chained behind the event `ahead` in its group if that one has not ended yet.
    fn prepare(
        &mut self,
        event: D::Event,
        leased: LeasedEvent,
        ahead: Option<Arc<Context>>,
        now: Instant,
    ) -> StartableEvent<EventRun<D>> {
        let launch = AttemptStart {
            start_by: self.start_by(&leased),
            flushed: self.completer.progress(leased.group_key.as_deref(), ahead),
            spans: self.observers.spans.as_ref(),
            cut: self.budget.cut(),
            now,
        };
        self.workers.prepare(event, leased, launch)
    }

    /// Hands over the events of a group that follow its first event, together with it.
    fn chain(&mut self, work: &mut StartableEvent<EventRun<D>>, group: &str, now: Instant) {
        let mut ahead = self.workers.context(work.lease);
        while work.then.len() < MOST_CHAINED {
            let next = self.buffer.behind(group).filter(|next| {
                self.may_start(next, now)
                    && !self.services.has_kind(&next.kind)
                    && self.workers.sharing(next).most == 1
            });
            // An event that cannot be read ends without a handler, when it is its turn.
            let Some(Ok(event)) = next.map(Workers::<D>::read) else {
                return;
            };
            let Some(next) = self.buffer.pop_behind(group) else {
                return;
            };
            let lease = next.lease;
            work.then.push_back(self.prepare(event, next, ahead, now));
            ahead = self.workers.context(lease);
        }
    }
}
