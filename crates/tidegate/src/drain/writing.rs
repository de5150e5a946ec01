//! The part of the loop that writes ends, returns to the queue and starts, one round trip at a time.
//!
//! No lease is under way while an event goes back to the queue, or while the events in the buffer are read again
//! because some were taken away.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::time::Instant;
use uuid::Uuid;

use super::buffer::Wanted;
use super::flush::{Class, End, Flush, FlushResult, FlushState, Release, Retry, write};
use super::settle::count;
use super::{Drain, Slot};
use crate::budget::millis;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::handler::Fault;
use crate::lease::{Fate, Lease, LeasedEvent};
use crate::outcome::Status;
use crate::queue::InHand;

/// A retry with a delay below this may become ready without ever counting as delayed.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How long an end is tried again while the group of its follow-up is busy. Then the event goes back with the
/// work that is done, and keeps its attempt.
const BUSY: Duration = Duration::from_secs(2);

/// How many windows of events may wait for their start.
const WINDOWS_OPEN: usize = 4;

/// How long an event waits after it goes back through no fault of its own.
const BLAMELESS_DELAY: Duration = Duration::from_secs(1);

impl<D: Dispatch> Drain<D> {
    /// Writes when enough outcomes have accumulated, when they have waited long enough, when nothing else is
    /// going on, or when more events are to start.
    pub(super) fn send_write(&mut self) {
        if !self.writing.is_idle() || !self.outbox.may_write() {
            return;
        }
        self.outbox.take_up_busy(self.is_spent());
        self.start_more();
        if !self.is_write_due() {
            return;
        }
        let batch = self.next_batch();
        if batch.is_empty() {
            return;
        }
        if let Some(session) = self.writing.take() {
            self.between.writes_back = batch.is_exclusive();
            self.write_sent = Instant::now();
            if let Some(spans) = &mut self.observers.spans {
                spans.writes();
            }
            self.writing =
                Slot::Busy(write(session, batch, self.worker, self.services.clone()).boxed());
        }
    }

    fn is_write_due(&self) -> bool {
        let outcomes = self.outbox.next.outcomes();
        let enough = outcomes >= (self.options.batch / 2).max(1) as usize;
        let aged = self.outbox.has_aged();
        let quiet = self.running.is_empty() && !self.buffer.has_startable();
        let waits = outcomes > 0 || self.buffer.leases.has_over();
        let goes_back =
            (self.outbox.next.is_exclusive() || self.between.rereads) && self.leasing.is_idle();
        let tells = self.services.has_reports();
        !self.outbox.next.starts.is_empty()
            || !self.outbox.next.lowered.is_empty()
            || goes_back
            || tells
            || waits && (enough || aged || quiet)
    }

    /// Returns the content of the next write. Returns to the queue stay here while a lease is under way.
    fn next_batch(&mut self) -> Flush {
        let mut batch = std::mem::take(&mut self.outbox.next);
        batch.reports = self.services.take_reports();
        if self.leasing.is_idle() {
            if self.between.rereads {
                batch.reread = Some(self.buffer.leases.tokens());
            }
            self.retry_followers(&mut batch);
            batch.ran = self.started_behind(&batch);
        } else {
            self.outbox.next.retries = std::mem::take(&mut batch.retries);
            self.outbox.next.releases = std::mem::take(&mut batch.releases);
            self.outbox.hold_behind_retries(&mut batch.ends);
        }
        let mut ends: HashMap<Uuid, usize> = HashMap::new();
        for lease in batch.ends.iter().map(|end| end.finalization.lease) {
            *ends.entry(lease.token).or_default() += 1;
        }
        let over = self.buffer.leases.take_over().into_iter();
        let last = ends
            .iter()
            .filter(|(token, count)| self.buffer.leases.left(**token) == **count);
        batch.over = over.chain(last.map(|(token, _)| *token)).collect();
        batch
    }

    /// Takes along the ends of events that follow an event that goes back. They go back with it, and keep the
    /// work that is done.
    fn retry_followers(&mut self, batch: &mut Flush) {
        let mut heads: HashMap<String, i64> = HashMap::new();
        for back in &batch.retries {
            if let Some(group) = &back.group {
                let id = back.retried.lease.id;
                let head = heads.entry(group.clone()).or_insert(id);
                *head = id.min(*head);
            }
        }
        if heads.is_empty() {
            return;
        }
        // An event that precedes it in the group has ended in order, and is written.
        let stays = |end: &End| {
            let head = end.group.as_ref().and_then(|group| heads.get(group));
            head.is_none_or(|head| end.finalization.lease.id < *head)
        };
        let fault = Fault::new(
            "unwritable",
            "the result was not stored, because an earlier event of the group is released",
        );
        for ends in [&mut batch.ends, &mut self.outbox.busy] {
            let (stay, leave) = std::mem::take(ends).into_iter().partition(stays);
            *ends = stay;
            for end in Vec::<End>::from_iter(leave) {
                batch.retries.push(end.back(&fault, false, BLAMELESS_DELAY));
            }
        }
    }

    /// Returns events that were started after one that goes back. That one had ended, and its end could not
    /// be written.
    fn started_behind(&self, batch: &Flush) -> Vec<i64> {
        let groups: HashSet<&str> = batch
            .retries
            .iter()
            .filter_map(|back| back.group.as_deref())
            .collect();
        if groups.is_empty() {
            return Vec::new();
        }
        let running = self
            .running
            .values()
            .map(|ctx| (ctx.event_id(), ctx.group_key()));
        let ended = batch
            .ends
            .iter()
            .map(|end| (end.finalization.lease.id, end.group.as_deref()));
        running
            .chain(ended)
            .filter(|(_, group)| group.is_some_and(|group| groups.contains(group)))
            .map(|(id, _)| id)
            .collect()
    }

    /// Requests that more of a lease may start, before the handlers run out of work.
    fn start_more(&mut self) {
        if self.between.rereads || self.is_spent() || !self.outbox.next.starts.is_empty() {
            return;
        }
        let shared = if self.options.concurrency == 1 {
            1
        } else {
            self.policies.most_shared()
        };
        if self.close_windows(shared) {
            return;
        }
        let wanted = Wanted {
            few: self.options.concurrency * shared,
            window: self.window(),
            places: self.options.concurrency.saturating_sub(self.running.len()),
            now: Instant::now(),
            brings_window: self.between.brings_window,
            suspect_runs: self.suspect_runs(),
            sharing: &|event| {
                if shared == 1 {
                    return 1;
                }
                self.policies.sharing_of(event).most
            },
        };
        if let Some(start) = self.buffer.start_more(&wanted) {
            self.outbox.next.starts.push(start);
        }
    }

    /// Returns since when the oldest running suspect has been running.
    fn suspect_runs(&self) -> Option<Instant> {
        if !self.buffer.leases.runs_suspect() {
            return None;
        }
        let running = self.workers.running().into_iter();
        let suspects = running.filter(|(lease, _)| self.buffer.leases.is_suspect(lease.token));
        suspects.map(|(_, since)| since).min()
    }

    /// Closes windows that the handlers' pace no longer fills: when quick events turn slow, thousands that
    /// have not started would be charged if this worker died. Returns whether it did.
    fn close_windows(&mut self, shared: usize) -> bool {
        let unstarted = self
            .buffer
            .leases
            .open()
            .saturating_sub(self.running.len() + self.outbox.unwritten());
        let fits = WINDOWS_OPEN * self.window().max(self.options.concurrency) * shared;
        let wide = unstarted + self.workers.waiting() > fits;
        if !self.buffer.stays_wide(wide, Instant::now()) {
            return false;
        }
        let handed_over = self.running.len();
        self.recall(|_| true);
        let started = self.running.keys().copied();
        let ended = self.outbox.unwritten_leases();
        let mut begun: HashMap<Uuid, i64> = HashMap::new();
        for lease in started.chain(ended) {
            let last = begun.entry(lease.token).or_insert(lease.id);
            *last = lease.id.max(*last);
        }
        self.outbox.next.lowered = self.buffer.close_windows(&begun);
        self.running.len() < handed_over || !self.outbox.next.lowered.is_empty()
    }

    pub(super) fn written(&mut self, round: FlushResult) -> Result<(), Error> {
        let FlushResult {
            session,
            batch,
            written,
            failed,
        } = round;
        self.writing = Slot::Idle(Box::new(session));
        self.database_time += self.write_sent.elapsed();
        if let Some(spans) = &mut self.observers.spans {
            spans.written(batch.outcomes());
        }
        self.between.writes_back = false;
        let whole = failed.is_none();
        match failed {
            None => self.outbox.note_success(),
            Some(error) => {
                let error = self.outbox.note_failure(error)?;
                self.fail(error);
            }
        }
        self.take_gone(&batch, &written);
        if whole {
            for start in &batch.starts {
                self.buffer.leases.started(start.token, start.upto);
            }
        }
        for (token, _, mark) in batch
            .lowered
            .iter()
            .filter(|(token, ..)| written.lowered.contains(token))
        {
            self.buffer.leases.note_lowered(*token, *mark);
        }
        let up_to = batch.up_to;
        self.take_ends(batch.ends, &written, whole);
        self.take_unreadable(&batch.unreadable, &written, whole);
        self.take_backs(batch.retries, &written);
        self.take_releases(batch.releases, &written);
        for token in &batch.over {
            self.buffer.leases.note_over(*token, whole);
        }
        self.notice_cuts(&written);
        if whole {
            self.outbox.written(up_to);
        }
        if written.service_opened {
            self.rescan();
        }
        self.report.published += written.published;
        self.scan.hurry();
        self.observers
            .progress(&self.report, millis(self.budget.elapsed()));
        Ok(())
    }

    /// Removes waiting events that have left our hands.
    fn take_gone(&mut self, batch: &Flush, written: &FlushState) {
        let Some(left) = &written.left else { return };
        let named: HashSet<i64> = batch
            .retries
            .iter()
            .map(|back| back.retried.lease.id)
            .collect();
        // Looks at once for events that are free again, and not only with the next walk.
        if let Some(lowest) = left.iter().filter(|id| !named.contains(id)).min() {
            self.back_to(*lowest);
        }
        for event in self.buffer.remove(|lease| left.contains(&lease.id)) {
            self.buffer.note_gone(event.lease);
            self.report.released +=
                u64::from(event.fate == Fate::Run && !named.contains(&event.lease.id));
        }
        // These events were about to be given back, and have left together with a preceding event.
        let (gone, waiting) = std::mem::take(&mut self.outbox.next.releases)
            .into_iter()
            .partition(|release| left.contains(&release.event.lease.id));
        self.outbox.next.releases = waiting;
        self.take_releases(gone, written);
    }

    fn take_ends(&mut self, ends: Vec<End>, written: &FlushState, whole: bool) {
        for mut end in ends {
            let lease = end.finalization.lease;
            if written.has_ended(&end.finalization) {
                let class = if written.unstorable.contains(&lease) {
                    Class::Handled(Status::Failed)
                } else {
                    end.class
                };
                count(&mut self.report, class);
                self.buffer.note_gone(lease);
                self.outbox.settled(end.number);
                self.open_held(&end);
                self.reopen_held(&end);
            } else if let Some(reason) = written.refused.get(&lease) {
                let fault = Fault::new(
                    "unwritable",
                    format!("the result cannot be stored: {reason}"),
                );
                self.take_back_end(end, &fault, written.blameless.contains(&lease));
            } else if written.busy.contains(&lease.id) {
                let since = *end.busy_since.get_or_insert_with(Instant::now);
                if since.elapsed() < BUSY && !self.is_spent() {
                    self.hold(end);
                } else {
                    let fault = Fault::new(
                        "group_busy",
                        "another transaction holds a lock that the end of this event needs",
                    );
                    self.take_back_end(end, &fault, true);
                }
            } else if written.held.contains(&lease) {
                self.hold(end);
            } else if whole {
                self.lose_end(&end);
            } else {
                self.outbox.next.ends.push(end);
            }
        }
    }

    /// Keeps an end that cannot be written yet. Until it is, no later event of its group starts, ends or
    /// commits.
    fn hold(&mut self, end: End) {
        if let Some(group) = &end.group {
            self.buffer.close_group(group);
        }
        self.outbox.hold(end);
    }

    /// Opens the group of a written end that was held, unless another end of the group still is.
    fn reopen_held(&mut self, end: &End) {
        if let Some(group) = end.group.as_deref().filter(|_| end.was_held)
            && !self.outbox.holds(group)
        {
            self.buffer.reopen_group(group, end.finalization.lease);
        }
    }

    /// Handles an end that was not ours to write. The event, and the events that follow it, belong to another
    /// worker.
    fn lose_end(&mut self, end: &End) {
        if let Class::Handled(_) = end.class {
            self.count_lost(end.finalization.lease);
        }
        self.buffer.note_gone(end.finalization.lease);
        self.outbox.settled(end.number);
        self.open_held(end);
        self.reopen_held(end);
        self.between.rereads = true;
    }

    fn open_held(&mut self, end: &End) {
        if let (Some(group), true) = (&end.group, end.holds_group) {
            self.buffer.open_group(group, end.finalization.lease);
        }
    }

    /// Sends an event back, with the work that is done, because its end cannot be written.
    fn take_back_end(&mut self, end: End, fault: &Fault, blameless: bool) {
        let (attempt, most) = end.attempt;
        let charged = end.finalization.ran && !blameless && attempt < most;
        let delay = if charged || blameless {
            BLAMELESS_DELAY
        } else {
            self.options.retry.max
        };
        self.lines.unwritable(end.finalization.lease, &fault.code);
        if let Some(group) = &end.group {
            // Later events of the group that have not started need not be charged.
            self.recall(|event| event.group_key.as_ref() == Some(group));
            self.buffer.close_group(group);
        }
        self.outbox.keep_open(end.number);
        let back = end.back(fault, charged, delay);
        self.outbox.note().retries.push(back);
    }

    fn take_unreadable(&mut self, leases: &[Lease], written: &FlushState, whole: bool) {
        for lease in leases {
            if written.has_ended_unreadable(lease) {
                self.report.failed += 1;
                self.buffer.note_gone(*lease);
            } else if written.busy.contains(&lease.id) {
                self.abandon(*lease, None, true);
            } else if whole {
                self.count_lost(*lease);
                self.buffer.note_gone(*lease);
                self.between.rereads = true;
            } else {
                self.outbox.next.unreadable.push(*lease);
            }
        }
    }

    fn take_backs(&mut self, backs: Vec<Retry>, written: &FlushState) {
        let Some(left) = &written.left else {
            return self.outbox.next.retries.extend(backs);
        };
        for back in backs {
            let lease = back.retried.lease;
            if written.returns_busy.contains(&lease.id) && self.waits(back.busy_since) {
                let busy_since = back.busy_since.or(Some(Instant::now()));
                self.outbox.busy_retries.push(Retry { busy_since, ..back });
                continue;
            }
            if let Some(number) = back.number {
                self.outbox.settled(number);
            }
            if written.stuck.contains(&lease.id) || written.returns_busy.contains(&lease.id) {
                self.abandon(lease, back.group.as_deref(), back.leased);
                continue;
            }
            self.buffer.note_gone(lease);
            if left.contains(&lease.id) {
                let counted = if back.retried.is_snoozed() {
                    &mut self.report.snoozed
                } else if back.retried.deferred.is_empty() {
                    &mut self.report.retried
                } else {
                    &mut self.report.deferred
                };
                *counted += u64::from(back.leased);
                if back.retried.delay < AT_ONCE {
                    self.back_to(lease.id);
                }
            } else {
                if back.leased {
                    self.count_lost(lease);
                }
                self.between.rereads = true;
            }
            self.reopen_group(back.group.as_deref(), lease);
        }
    }

    /// Whether an event that cannot go back now is tried again. At the end of the run there is no time for
    /// it.
    fn waits(&self, busy_since: Option<Instant>) -> bool {
        !self.is_spent() && busy_since.is_none_or(|since| since.elapsed() < BUSY)
    }

    /// Leaves an event in its lease, because the database refuses its return. If it were free, it would run
    /// again at once.
    fn abandon(&mut self, lease: Lease, group: Option<&str>, leased: bool) {
        if leased {
            self.count_lost(lease);
        }
        let behind = self.buffer.abandon(lease, group);
        if let Some(group) = group.filter(|_| behind.is_empty()) {
            self.buffer.reopen_group(group, lease);
        }
        for event in behind {
            self.release(event);
        }
    }

    fn take_releases(&mut self, events: Vec<Release>, written: &FlushState) {
        let Some(left) = &written.left else {
            return self.outbox.next.releases.extend(events);
        };
        for Release { event, busy_since } in events {
            let leased = event.fate == Fate::Run;
            if written.returns_busy.contains(&event.lease.id) {
                if self.waits(busy_since) {
                    let busy_since = busy_since.or(Some(Instant::now()));
                    self.outbox
                        .busy_releases
                        .push(Release { event, busy_since });
                } else {
                    self.abandon(event.lease, event.group_key.as_deref(), leased);
                }
                continue;
            }
            self.buffer.note_gone(event.lease);
            if left.contains(&event.lease.id) {
                self.report.released += u64::from(leased);
            } else {
                // Another worker has taken it. Or an earlier try, whose answer was lost, has given it back
                // with the events that follow it.
                self.between.rereads = true;
                if leased {
                    self.count_lost(event.lease);
                }
            }
            self.reopen_group(event.group_key.as_deref(), event.lease);
        }
    }

    /// Opens a group after an event went back with the events that follow it. Events of the group that still
    /// wait here were taken from us before or since.
    fn reopen_group(&mut self, group: Option<&str>, back: Lease) {
        if let Some(group) = group {
            self.between.rereads |= self.buffer.has_waiting(group);
            self.buffer.reopen_group(group, back);
        }
    }

    /// Reacts to cut or lost leases: the events in the buffer are read again before anything starts.
    fn notice_cuts(&mut self, written: &FlushState) {
        for (token, cuts) in &written.cuts {
            self.between.rereads |= self.buffer.leases.is_cut(*token, *cuts);
        }
        if let Some(now) = &written.in_hand {
            self.between.rereads = false;
            let gone = self.buffer.keep_only(now);
            self.lose(gone);
            self.notify_lost(now);
        }
    }

    /// Notifies handlers whose event is no longer ours.
    fn notify_lost(&self, now: &[InHand]) {
        let held: HashSet<(Uuid, i64)> = now.iter().map(|held| (held.token, held.id)).collect();
        for (lease, ctx) in &self.running {
            if !held.contains(&(lease.token, lease.id)) {
                ctx.note_taken_away();
            }
        }
    }

    /// Counts waiting events that are no longer ours.
    pub(super) fn lose(&mut self, events: Vec<LeasedEvent>) {
        for event in events {
            self.services.note_left(event.lease, None);
            self.buffer.note_gone(event.lease);
            if event.fate == Fate::Run {
                self.count_lost(event.lease);
            }
        }
    }

    fn count_lost(&mut self, lease: Lease) {
        self.lines.lost(lease);
        self.report.lease_lost += 1;
    }
}
