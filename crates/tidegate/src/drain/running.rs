//! The part of the loop that deals with handlers: starts them, collects their ends, cuts those that do not
//! end, and decides which events go back to the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Drain;
use super::buffer::Pick;
use super::clocks::Reading;
use super::execute::{EventRun, Limits};
use super::flush::{Class, End, Release, Retry};
use super::settle::{Settled, count, settle};
use super::spans;
use super::workers::{PERMIT, Ran, Work, WorkEnd};
use crate::context::{Context, Flushed};
use crate::dispatch::Dispatch;
use crate::event::{DecodeError, Event};
use crate::handler::{Fault, HandlerError, Unhandled};
use crate::lease::{Fate, LeasedEvent};
use crate::outcome::{HandlerEnd, Status};
use crate::policy::Sharing;
use crate::queue::{Finalization, Retried, ending};
use crate::sealing;
use crate::trace::TraceContext;

/// A handler that does not react when its time is up blocks its thread. The loop gives up on it after this
/// time.
const OVERDUE: Duration = Duration::from_millis(500);

/// The most events of a group that are handed over behind its first event. The handler task asks the loop
/// once for all of them.
const MOST_CHAINED: usize = 31;

/// An event may wait for a program that has its key or knows its version. This is the shortest and the
/// longest delay before the next try.
const DEFER: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));

impl<D: Dispatch> Drain<D> {
    /// Starts handlers while there are events, free permits and time, and while the events in the buffer are
    /// certain.
    pub(super) fn start_handlers(&mut self) {
        if self.between.rereads {
            return self.recall(|_| true);
        }
        self.follow_limits();
        // Events chained behind others take no place of their own.
        let taken = self.running.len().saturating_sub(self.workers.chained());
        let taken = (taken * PERMIT).saturating_sub(self.spared());
        let mut permits = (self.workers.room() * PERMIT).saturating_sub(taken);
        let mut for_large = (self.workers.room_for_large() * PERMIT).saturating_sub(taken);
        let most_unwritten = self.most_unwritten();
        let in_order = self.options.concurrency == 1;
        let (now, spent) = (Instant::now(), self.is_spent());
        while permits > 0 && !spent && self.outbox.unwritten() < most_unwritten {
            let before = self.running.len();
            let pick = Pick {
                in_order,
                large: for_large > 0,
            };
            match self.buffer.pop(pick) {
                Some(event) if self.is_late(&event, now) => {
                    let fate = Fate::Expired;
                    // What is only swept does not count as leased.
                    self.report.leased -= 1;
                    self.start(LeasedEvent { fate, ..event }, now);
                }
                Some(event) if self.may_start(&event, now) => {
                    let part = PERMIT / self.sharing(&event).most;
                    self.start(event, now);
                    if self.running.len() > before {
                        permits = permits.saturating_sub(part);
                        for_large = for_large.saturating_sub(part);
                    }
                }
                Some(event) => self.release(event),
                None => break,
            }
        }
        self.workers.open();
    }

    /// Whether there is time for the event and its lease is certainly still valid. If this process was frozen
    /// or its machine suspended, another worker may be running the event.
    fn may_start(&self, event: &LeasedEvent, now: Instant) -> bool {
        !self.start_by(event).is_over(now) && self.budget.allows(&event.kind, now)
    }

    /// Whether the event's deadline has passed while it waited here (B13). It ends unless its lease may be
    /// lost.
    fn is_late(&self, event: &LeasedEvent, now: Instant) -> bool {
        let deadline = self.buffer.leases.deadline(event);
        event.fate == Fate::Run
            && deadline.is_some_and(|deadline| deadline.is_over(now))
            && !self.trusted_until(event).is_over(now)
    }

    /// Returns the time until which an event's lease can be trusted.
    fn trusted_until(&self, event: &LeasedEvent) -> Reading {
        let trusted = self.options.lease_timeout.mul_f64(0.9);
        let renewed = self.buffer.leases.renewed(event.lease.token);
        renewed.map_or_else(Reading::now, |renewed| renewed + trusted)
    }

    /// Returns the time before which an event must start: its lease can be trusted until then, and its
    /// deadline has not passed.
    fn start_by(&self, event: &LeasedEvent) -> Reading {
        let trusted = self.trusted_until(event);
        let deadline = self.buffer.leases.deadline(event);
        deadline.map_or(trusted, |deadline| deadline.earlier(trusted))
    }

    /// Releases an event that has not started, with its attempt restored.
    pub(super) fn release(&mut self, event: LeasedEvent) {
        self.services.note_left(event.lease, None);
        if let Some(group) = &event.group_key {
            self.buffer.close_group(group);
        }
        self.outbox.note().releases.push(Release::of(event));
    }

    /// Releases the selected events that were handed over and have not started.
    pub(super) fn recall(&mut self, selected: impl Fn(&LeasedEvent) -> bool) {
        let running = &self.running;
        let waiting = |lease| running.get(&lease).is_some_and(|ctx| selected(ctx.event()));
        for lease in self.workers.take_waiting(waiting) {
            if let Some(ctx) = self.running.remove(&lease) {
                self.release(ctx.event().clone());
            }
        }
    }

    /// Starts one event, or ends it at once if there is nothing to run.
    fn start(&mut self, leased: LeasedEvent, now: Instant) {
        let swept = match leased.fate {
            Fate::Run => None,
            Fate::Expired => Some((
                Class::Expired,
                Fault::new("expired", "not started before its deadline"),
            )),
            Fate::Abandoned => Some((
                Class::Abandoned,
                Fault::new("abandoned", "its worker went away on the last attempt"),
            )),
        };
        if let Some((class, fault)) = swept {
            return self.give_up(&leased, &fault, class);
        }
        let payload = match sealing::opened(&leased.kind, leased.payload.as_deref()) {
            Ok(payload) => payload,
            Err(Unhandled::Later(error)) => return self.defer(&leased, error),
            Err(Unhandled::Never(fault)) => {
                return self.give_up(&leased, &fault, Class::Handled(Status::Failed));
            }
        };
        match D::Event::decode(&leased.kind, payload.as_deref()) {
            Ok(event) => {
                let group = leased.group_key.clone();
                let limited = self.limits.has_kind(&leased.kind);
                if limited {
                    self.limits
                        .start(&self.services, &leased.kind, leased.lease);
                    self.buffer.barred = self.limits.barred(&self.services, now);
                }
                let mut work = self.prepare(event, leased, None, now);
                let shares = work.part < PERMIT;
                if let Some(group) = group.filter(|_| self.workers.chains() && !limited && !shares)
                {
                    self.chain(&mut work, &group, now);
                }
                self.workers.push(work);
            }
            // It belongs to another program, like an event of an unknown kind.
            Err(error) if error.is_newer() => {
                let waits = HandlerError::retry("newer_version", error).blameless();
                self.defer(&leased, waits);
            }
            Err(error) => {
                let code = match error {
                    DecodeError::UnknownKind(_) => "no_handler",
                    DecodeError::Payload { .. } | DecodeError::Version { .. } => "undecodable",
                };
                self.give_up(
                    &leased,
                    &Fault::new(code, error),
                    Class::Handled(Status::Failed),
                );
            }
        }
    }

    /// Ends an event that no handler will see.
    fn give_up(&mut self, event: &LeasedEvent, fault: &Fault, class: Class) {
        self.services.note_left(event.lease, None);
        let settled = Settled::Finish(ending::given_up(event, fault));
        self.lines.ended(event, &settled, Duration::ZERO);
        if let Some(spans) = &self.observers.spans {
            spans.given_up(event, &fault.code);
        }
        if let Settled::Finish(end) = settled {
            self.finish(event, end, class, Vec::new());
        }
    }

    /// Puts back an event that no handler here can take. The delay grows with the age of the event, like the
    /// backoff of its own attempts. Otherwise many such events, which nothing ends, would keep drains busy
    /// for ever. An event that has held back its group for too long ends.
    fn defer(&mut self, event: &LeasedEvent, error: HandlerError) {
        if event.is_overdue {
            let why = "held back its group for longer than TIDEGATE_MAX_GROUP_DELAY";
            let fault = Fault::new("held_too_long", why);
            return self.give_up(event, &fault, Class::Handled(Status::Failed));
        }
        let age = event.created_at.elapsed().unwrap_or_default();
        let error = error.after((age / 4).clamp(DEFER.0, DEFER.1));
        self.services.note_left(event.lease, None);
        let end = HandlerEnd {
            handler: "read",
            result: Err(error),
            earlier: false,
            emitted: Vec::new(),
        };
        let settled = settle(event, &[end], &self.options.retry, fastrand::f64());
        self.lines.ended(event, &settled, Duration::ZERO);
        if let Settled::Retry(retried) = settled {
            self.note_retry(event, retried);
        }
    }

    fn note_retry(&mut self, event: &LeasedEvent, retried: Retried) {
        if let Some(group) = &event.group_key {
            self.buffer.close_group(group);
        }
        self.outbox.note().retries.push(Retry {
            retried,
            group: event.group_key.clone(),
            leased: true,
            number: None,
            busy_since: None,
        });
    }

    /// Hands over the events of a group that follow its first event, together with it.
    fn chain(&mut self, work: &mut Work<EventRun<D>>, group: &str, now: Instant) {
        let mut ahead = self.running.get(&work.lease).cloned();
        while work.then.len() < MOST_CHAINED {
            let Some(next) = self
                .buffer
                .behind(group)
                .filter(|next| self.may_start(next, now) && !self.limits.has_kind(&next.kind))
                .filter(|next| self.sharing(next).most == 1)
            else {
                return;
            };
            // An event that cannot be decoded ends without a handler, when it is its turn.
            let Ok(payload) = sealing::opened(&next.kind, next.payload.as_deref()) else {
                return;
            };
            let Ok(event) = D::Event::decode(&next.kind, payload.as_deref()) else {
                return;
            };
            let Some(next) = self.buffer.pop_behind(group) else {
                return;
            };
            let lease = next.lease;
            work.then.push_back(self.prepare(event, next, ahead, now));
            ahead = self.running.get(&lease).cloned();
        }
    }

    /// Creates an event's work, chained behind the event `ahead` in its group if that one has not ended yet.
    /// A chained event keeps its payload, because it may be put back.
    fn prepare(
        &mut self,
        event: D::Event,
        mut leased: LeasedEvent,
        ahead: Option<Arc<Context>>,
        now: Instant,
    ) -> Work<EventRun<D>> {
        let lease = leased.lease;
        let start_by = self.start_by(&leased);
        if ahead.is_none() {
            leased.payload = None;
        }
        let after = leased
            .group_key
            .as_ref()
            .map_or(0, |group| self.outbox.last_of(group));
        let flushed = Flushed {
            ahead,
            after,
            progress: self.outbox.progress(),
        };
        let usual = self.options.handler_timeout;
        let most = self.options.lease_timeout.mul_f64(0.9);
        let limit = self.policies.handler_timeout(&leased.kind, usual, most);
        let sharing = self.sharing(&leased);
        let mut ctx = Context::new(leased, Some(self.database.clone()), flushed, now + limit);
        if let Some(spans) = &self.observers.spans {
            spans.place(&mut ctx);
        }
        ctx.share_calls(sharing, self.worker);
        let limits = Limits {
            handler: limit,
            cut: self.budget.cut(),
        };
        let span = tracing::info_span!(
            "event",
            event.id = lease.id,
            event.kind = event.kind(),
            event.attempt = ctx.attempt(),
            trace_id = ctx.trace().map(TraceContext::trace_id),
            span_id = ctx.trace().map(TraceContext::span_id),
            parent_span_id = ctx.trace().and_then(TraceContext::parent_span_id),
        );
        if self.observers.spans.is_some() {
            // Within the log's span, so that the lines of handlers stay within it, too.
            ctx.record_on(span.in_scope(spans::of_attempt));
        }
        let ctx = Arc::new(ctx);
        let handlers = EventRun {
            app: self.app.clone(),
            ctx: ctx.clone(),
            event,
            limits,
            services: self.services.clone(),
            span,
        };
        self.running.insert(lease, ctx);
        Work {
            lease,
            start_by,
            part: PERMIT / sharing.most,
            handlers,
            then: VecDeque::new(),
        }
    }

    /// Returns how many events share a call with this one. None do if the order of all events must be kept.
    pub(super) fn sharing(&self, event: &LeasedEvent) -> Sharing {
        if self.options.concurrency == 1 {
            return Sharing::NONE;
        }
        self.policies.sharing_of(event)
    }

    /// Returns the number of permits that running events leave free because they share them.
    fn spared(&self) -> usize {
        if self.policies.most_shared() == 1 {
            return 0;
        }
        let sharing = self.running.values().map(|ctx| ctx.sharing().most);
        sharing.map(|most| PERMIT - PERMIT / most).sum()
    }

    /// Collects the events whose handlers have ended.
    pub(super) fn handlers_ended(&mut self, ended: Vec<WorkEnd>) {
        for WorkEnd { lease, how } in ended {
            let Some(ctx) = self.running.remove(&lease) else {
                continue;
            };
            match how {
                Ran::For(took) => {
                    let (ends, published) = ctx.take_ends();
                    self.settle(&ctx, ends, published, took);
                }
                Ran::Late => self.release(ctx.event().clone()),
                Ran::NotReached => self.buffer.reinsert(ctx.event().clone()),
            }
        }
    }

    /// Decides the end of an event whose handlers ran.
    fn settle(&mut self, ctx: &Context, ends: Vec<HandlerEnd>, published: u64, took: Duration) {
        let event = ctx.event();
        let timed_out = ends.iter().any(HandlerEnd::is_timed_out);
        if !timed_out {
            self.budget.learn(&event.kind, took);
        }
        let retry = self.policies.retry(&event.kind, self.options.retry);
        let settled = settle(event, &ends, &retry, fastrand::f64());
        let ended = settled.status().map(|_| event.kind.as_str());
        self.services.note_left(event.lease, ended);
        self.lines.ended(event, &settled, took);
        self.observers.attempted(ctx, &settled, &ends, took);
        match settled {
            Settled::AlreadyFinished(status) => {
                self.report.published += published;
                count(&mut self.report, Class::Handled(status));
                self.buffer.note_gone(event.lease);
                self.open_group(event);
            }
            Settled::Finish(end) => {
                let class = Class::Handled(end.status);
                self.finish(event, end, class, ends);
                ctx.note_completion(self.outbox.noted());
            }
            Settled::Retry(retried) => self.note_retry(event, retried),
        }
    }

    /// Records an event's end, to be written in the next round.
    fn finish(
        &mut self,
        event: &LeasedEvent,
        end: Finalization,
        class: Class,
        work: Vec<HandlerEnd>,
    ) {
        // An event that starts behind an end which is then refused loses an attempt. This happens at most
        // once: an event whose end was refused before comes back with the results of its handlers.
        let holds_group = event.progress.is_some() || end.status != Status::Completed;
        let number = self.outbox.note_number();
        self.outbox.push(End {
            number,
            finalization: end,
            class,
            group: event.group_key.clone(),
            attempt: (event.attempts, event.max_attempts),
            work,
            busy_since: None,
            was_held: false,
            holds_group,
        });
        if let Some(group) = &event.group_key {
            self.outbox.note_group(group.clone());
        }
        if !holds_group {
            self.open_group(event);
        }
    }

    fn open_group(&mut self, event: &LeasedEvent) {
        if let Some(group) = &event.group_key {
            self.buffer.open_group(group, event.lease);
        }
    }

    /// Releases all events that have not started, with their attempts restored, when no handler may start any
    /// more (F2).
    pub(super) fn release_rest(&mut self) {
        if self.is_idle() || !self.is_spent() {
            return;
        }
        self.recall(|_| true);
        let rest = self.buffer.take_all();
        if !rest.is_empty() {
            let rest = rest.into_iter().map(Release::of);
            self.outbox.note().releases.extend(rest);
        }
    }

    /// Cuts handlers that ignore their limit, or that a stop signal overtook.
    pub(super) fn cut_overdue(&mut self) {
        let now = Instant::now();
        let cut = self.budget.cut();
        for (lease, started) in self.workers.running() {
            let deadline = self.running.get(&lease).map(|ctx| ctx.deadline().min(cut));
            if deadline.is_none_or(|deadline| now < deadline.max(started) + OVERDUE)
                || !self.workers.cut(lease)
            {
                continue;
            }
            let Some(ctx) = self.running.remove(&lease) else {
                continue;
            };
            let (mut ends, published) = ctx.take_ends();
            let error = HandlerError::timed_out(started.elapsed(), now >= cut);
            let handler = ctx.running_handler();
            ends.push(HandlerEnd {
                handler,
                result: Err(error),
                earlier: false,
                emitted: Vec::new(),
            });
            self.settle(&ctx, ends, published, started.elapsed());
        }
    }
}
