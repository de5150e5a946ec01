//! What comes back from the handlers: how each attempt ends, and what a flush of these ends has changed.

use std::time::Duration;

use tidegate_core::config::millis;
use tidegate_core::error::Error;
use tidegate_core::fault::Fault;
use tidegate_core::lease::{Lease, LeaseDecision, LeasedEvent};
use tidegate_core::progress::Status;
use tokio::time::Instant;

use super::Drain;
use super::buffer::WindowDemand;
use super::flush::{Change, CountedAs, FlushResult, WriteResult};
use super::settle::{AttemptResult, count, settle};
use super::workers::{WorkEnd, WorkOutcome};
use crate::context::Context;
use crate::dispatch::Dispatch;
use crate::ending;
use crate::handler::HandlerError;
use crate::outcome::HandlerEnd;

/// An event may wait for a program that has its key or knows its version. This is the shortest and the
/// longest delay before the next try.
const DEFER: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));

/// How many windows of events may wait for their start.
const WINDOWS_OPEN: usize = 4;

impl<D: Dispatch> Drain<D> {
    /// Collects the events whose handlers have ended.
    pub(super) fn on_ended(&mut self, ended: Vec<WorkEnd>) {
        for WorkEnd { lease, how } in ended {
            let Some(ctx) = self.workers.take(lease) else {
                continue;
            };
            match how {
                WorkOutcome::For(took) => self.settle(&ctx, took),
                WorkOutcome::Late => self
                    .completer
                    .release(ctx.event().clone(), &mut self.buffer),
                WorkOutcome::NotReached => self.buffer.reinsert(ctx.event().clone()),
            }
        }
    }

    /// Cuts handlers that ignore their limit, or that a stop signal overtook.
    pub(super) fn cut_overdue(&mut self) {
        for (ctx, took) in self.workers.cut_overdue(self.budget.cut()) {
            self.settle(&ctx, took);
        }
    }

    /// Decides the end of an event whose handlers ran.
    fn settle(&mut self, ctx: &Context, took: Duration) {
        let (event, (ends, published)) = (ctx.event(), ctx.take_ends());
        if !ends.iter().any(HandlerEnd::is_timed_out) {
            self.budget.learn(&event.kind, took);
        }
        let usual = self.options.retry;
        let retry = self.workers.policies().retry(&event.kind, usual);
        let settled = settle(event, &ends, &retry, fastrand::f64());
        self.observers.lines.ended(event, &settled, took);
        self.observers.attempted(ctx, &settled, &ends, took);
        match settled {
            AttemptResult::AlreadyFinished(status) => {
                self.report.published += published;
                count(&mut self.report, CountedAs::of(status, &ends));
                self.services
                    .calls
                    .note_left(event.lease, Some(&event.kind));
                self.buffer.note_gone(event.lease);
                if let Some(group) = &event.group_key {
                    self.buffer.open_group(group, event.lease);
                }
            }
            AttemptResult::Finish(end) => {
                let counted_as = CountedAs::of(end.status, &ends);
                let buffer = &mut self.buffer;
                let number = self.completer.finish(event, end, counted_as, ends, buffer);
                ctx.note_completion(number);
            }
            AttemptResult::Retry(retried) => {
                self.completer.retry(event, retried, &mut self.buffer);
            }
        }
    }

    /// Ends an event that no handler will see.
    pub(super) fn give_up(&mut self, event: &LeasedEvent, fault: &Fault, counted_as: CountedAs) {
        let settled = AttemptResult::Finish(ending::given_up(event, fault));
        self.observers.lines.ended(event, &settled, Duration::ZERO);
        if let Some(spans) = &mut self.observers.spans {
            spans.given_up(event, &fault.code);
        }
        if let AttemptResult::Finish(end) = settled {
            let (work, buffer) = (Vec::new(), &mut self.buffer);
            self.completer.finish(event, end, counted_as, work, buffer);
        }
    }

    /// Retries an event later that no handler here can take. The delay grows with the age of the event, like
    /// the backoff of its own attempts. Otherwise many such events, which nothing ends, would keep drains
    /// busy for ever. An event that has held back its group for too long ends.
    pub(super) fn defer(&mut self, event: &LeasedEvent, error: HandlerError) {
        if event.is_overdue {
            let why = "held back its group for longer than TIDEGATE_MAX_GROUP_DELAY";
            let fault = Fault::new("held_too_long", why);
            return self.give_up(event, &fault, CountedAs::Handled(Status::Failed));
        }
        let age = event.created_at.elapsed().unwrap_or_default();
        let error = error.after((age / 4).clamp(DEFER.0, DEFER.1));
        let end = HandlerEnd {
            handler: "read",
            result: Err(error),
            earlier: false,
            emitted: Vec::new(),
        };
        let settled = settle(event, &[end], &self.options.retry, fastrand::f64());
        self.observers.lines.ended(event, &settled, Duration::ZERO);
        if let AttemptResult::Retry(retried) = settled {
            self.completer.retry(event, retried, &mut self.buffer);
        }
    }

    /// Releases the selected events that were handed over and have not started.
    pub(super) fn recall(&mut self, selected: impl Fn(&LeasedEvent) -> bool) {
        for event in self.workers.recall(selected) {
            self.completer.release(event, &mut self.buffer);
        }
    }

    /// Releases all events that have not started, with their attempts restored, when no handler may start any
    /// more (F2).
    pub(super) fn release_rest(&mut self) {
        if self.is_idle() || !self.is_spent() {
            return;
        }
        self.recall(|_| true);
        for event in self.buffer.take_all() {
            self.completer.release(event, &mut self.buffer);
        }
    }

    /// Flushes when enough outcomes have accumulated, when they have waited long enough, when nothing else is
    /// going on, or when more events are to start.
    pub(super) fn send_flush(&mut self) {
        if !self.completer.may_flush() {
            return;
        }
        self.completer.retry_busy();
        self.start_more();
        let enough = (self.options.batch / 2).max(1) as usize;
        let quiet = self.workers.count() == 0 && !self.buffer.has_startable();
        let alone = self.fetcher.is_idle();
        let is_due = self.completer.is_due(enough, &self.buffer, quiet, alone);
        if is_due
            && self
                .completer
                .send(alone, &mut self.buffer, self.workers.groups())
            && let Some(spans) = &mut self.observers.spans
        {
            spans.writes();
        }
    }

    /// Requests that more of a lease may start, before the handlers run out of work.
    fn start_more(&mut self) {
        if self.buffer.is_uncertain() || self.is_spent() || self.completer.has_starts() {
            return;
        }
        let shared = self.workers.most_shared();
        if self.close_windows(shared) {
            return;
        }
        let running = self.workers.count();
        let needed = WindowDemand {
            few: self.options.concurrency * shared,
            window: self.workers.window() * shared,
            permits: self.options.concurrency.saturating_sub(running),
            now: Instant::now(),
            brings_window: self.fetcher.brings_window(),
            suspect_runs: self.workers.suspect_runs(self.buffer.leases()),
        };
        if let Some(start) = self.buffer.start_more(&needed) {
            self.completer.start(start);
        }
    }

    /// Closes windows that the handlers' pace no longer fills: when quick events turn slow, thousands that
    /// have not started would be charged if this drain died. Returns whether it did.
    fn close_windows(&mut self, shared: usize) -> bool {
        let handed_over = self.workers.count();
        let started = handed_over + self.completer.unwritten();
        let unstarted = self.buffer.leases().open().saturating_sub(started);
        let fits = WINDOWS_OPEN * self.workers.window().max(self.options.concurrency) * shared;
        let wide = unstarted + self.workers.pool().waiting() > fits;
        if !self.buffer.stays_wide(wide, Instant::now()) {
            return false;
        }
        self.recall(|_| true);
        let begun = self
            .workers
            .leases()
            .chain(self.completer.unwritten_leases());
        let marks = self.buffer.close_windows(begun);
        let closed = self.workers.count() < handed_over || !marks.is_empty();
        self.completer.lower(marks);
        closed
    }

    /// Processes the answer to a flush.
    pub(super) fn on_flushed(&mut self, result: FlushResult) -> Result<(), Error> {
        let is_over = self.budget.is_over();
        let flushed = self.completer.on_flushed(result, is_over)?;
        if let Some(spans) = &mut self.observers.spans {
            spans.written(flushed.outcomes);
        }
        let has_left = |id: &i64| !flushed.retried.contains(id);
        // Looks at once for events that are free again, and not only with the next scan.
        let left = flushed.state.left.iter().flatten().copied();
        if let Some(lowest) = left.filter(has_left).min() {
            self.back_to(lowest);
        }
        let after = self.buffer.on_flushed(&flushed);
        for event in after.returned {
            self.report.released +=
                u64::from(event.fate == LeaseDecision::Run && has_left(&event.lease.id));
        }
        for event in after.behind {
            self.completer.release(event, &mut self.buffer);
        }
        for change in &flushed.changes {
            self.on_change(change);
        }
        self.lose(after.lost);
        if let Some(held) = &flushed.state.reread {
            self.workers.notify_lost(held);
        }
        if flushed.state.service_opened {
            self.rescan();
        }
        self.report.published += flushed.state.published;
        if let Some(error) = flushed.failed {
            self.fail(error);
        }
        self.fetcher.scan.hurry();
        self.observers
            .progress(&self.report, millis(self.budget.elapsed()));
        Ok(())
    }

    /// Counts what became of an event, and looks for what may start because of it.
    fn on_change(&mut self, change: &Change) {
        match &change.result {
            WriteResult::Ended(counted_as) => count(&mut self.report, *counted_as),
            WriteResult::Refused(refusal) => {
                let code = &refusal.fault.code;
                self.observers.lines.unwritable(change.lease, code);
                if let Some(group) = &change.group {
                    // Later events of the group that have not started need not be charged.
                    self.recall(|event| event.group_key.as_ref() == Some(group));
                }
            }
            WriteResult::Returned(counted_as, at_once) => {
                if change.leased {
                    count(&mut self.report, *counted_as);
                }
                if *at_once {
                    self.back_to(change.lease.id);
                }
            }
            WriteResult::Abandoned | WriteResult::Lost { .. } => {
                if change.leased {
                    self.count_lost(change.lease);
                }
            }
        }
    }

    /// Counts waiting events that are no longer ours.
    pub(super) fn lose(&mut self, events: Vec<LeasedEvent>) {
        for event in events {
            self.services.calls.note_left(event.lease, None);
            self.buffer.note_gone(event.lease);
            if event.fate == LeaseDecision::Run {
                self.count_lost(event.lease);
            }
        }
    }

    fn count_lost(&mut self, lease: Lease) {
        self.observers.lines.lost(lease);
        self.report.lease_lost += 1;
    }
}
