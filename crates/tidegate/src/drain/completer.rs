//! Owns the outcomes that wait to be written: ends, retries and releases, each with a number. It also owns
//! the session that writes them: it decides when to flush, what must wait before it is tried again, and what
//! a flush has changed. The statements of a flush are in `flush`.
//!
//! No lease is under way while an event goes back to the queue, or while the held events are read again
//! because some were taken from this drain.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tidegate_core::connect::Database;
use tidegate_core::error::Error;
use tidegate_core::lease::{Lease, LeaseDecision, LeasedEvent};
use tidegate_core::progress::Status;
use tidegate_core::queue::{Finalization, Retried};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::buffer::Buffer;
use super::flush::{
    Change, CountedAs, Flush, FlushReport, FlushResult, PendingEnd, Retry, Unwritable, WriteResult,
    flush,
};
use super::leases::WindowRaise;
use super::session::Lane;
use crate::context::{self, Context, Written};
use crate::outcome::HandlerEnd;
use crate::services::Services;

/// How long to wait for a fuller flush, one commit for many events: this long after the last outcome if no
/// further one comes, or after the first if others of its group may wait for it.
const FLUSH_AGE: Duration = Duration::from_millis(10);

/// The longest wait for a fuller flush. With handlers of 3 ms it halves the server's work for each event.
const LONGEST_FLUSH_AGE: Duration = Duration::from_millis(50);

/// How long to wait before an event that could not go back, because another session has locked it, is tried
/// again. This goes on until the run ends.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long to wait before a failed flush is tried again, and how often it is tried before the run ends.
const REWRITES: (Duration, u32) = (Duration::from_millis(500), 3);

/// How long an event waits after it goes back through no fault of its own.
const BLAMELESS_DELAY: Duration = Duration::from_secs(1);

/// A retry with a delay below this may become ready without ever counting as delayed.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The outcomes that wait to be written, and the session that writes them.
pub(super) struct Completer {
    worker: Uuid,
    services: Arc<Services>,
    session: Lane<FlushResult>,
    /// Whether the current flush lets events leave without an end, or reads them again.
    is_exclusive: bool,
    /// The content of the next flush.
    next: Flush,
    /// Since when it has content.
    since: Instant,
    /// When its last outcome came.
    latest: Instant,
    /// The returns of events that another session has locked. They are tried again at `busy_until`.
    busy: Flush,
    busy_until: Instant,
    /// How many outcomes were noted so far. This is also the number of the last one.
    noted: u64,
    /// Which of them are written.
    reached: (watch::Sender<Written>, watch::Receiver<Written>),
    /// The number of each group's last end that is not written yet.
    group_ends: HashMap<String, u64>,
    failures: u32,
    not_before: Instant,
    /// The delay of an event whose end cannot be written and that has no attempt left.
    longest_delay: Duration,
}

impl Completer {
    pub(super) fn new(
        database: &Database,
        worker: Uuid,
        services: Arc<Services>,
        longest_delay: Duration,
    ) -> Self {
        let now = Instant::now();
        Self {
            worker,
            services,
            session: Lane::new(database),
            is_exclusive: false,
            next: Flush::default(),
            since: now,
            latest: now,
            busy: Flush::default(),
            busy_until: now,
            noted: 0,
            reached: watch::channel(Written::default()),
            group_ends: HashMap::new(),
            failures: 0,
            not_before: now,
            longest_delay,
        }
    }

    /// Whether nothing waits to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.busy.is_empty()
    }

    /// Whether no flush is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.session.is_idle()
    }

    /// Whether an event is about to go back to the queue.
    pub(super) fn has_returns(&self) -> bool {
        self.next.is_exclusive()
    }

    /// Whether the current flush lets events leave without an end, or reads them again.
    pub(super) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Returns the time spent waiting for the session.
    pub(super) fn database_time(&self) -> Duration {
        self.session.busy_time()
    }

    /// Waits for the current flush.
    pub(super) async fn flushed(&mut self) -> FlushResult {
        self.session.done().await
    }

    /// Returns how many events have ended, or go back, and are not written.
    pub(super) fn unwritten(&self) -> usize {
        self.next.outcomes() + self.busy.outcomes()
    }

    /// Returns the leases of events that have been started, and whose end or return is not written.
    pub(super) fn unwritten_leases(&self) -> impl Iterator<Item = Lease> {
        let flushes = [&self.next, &self.busy].into_iter();
        flushes.flat_map(|flush| {
            let ends = flush.ends.iter().map(|end| end.finalization.lease);
            ends.chain(flush.retries.iter().map(|retry| retry.retried.lease))
        })
    }

    /// Returns what a handler must know of the writes before its event: the last end of its group, and which
    /// are written.
    pub(super) fn progress(
        &self,
        group: Option<&str>,
        ahead: Option<Arc<Context>>,
    ) -> context::WrittenUpTo {
        let after = group.and_then(|group| self.group_ends.get(group));
        context::WrittenUpTo {
            ahead,
            after: after.copied().unwrap_or(0),
            progress: self.reached.1.clone(),
        }
    }

    /// Returns the content of the next flush, for a caller that is about to add one outcome. This call
    /// numbers that outcome.
    fn note(&mut self) -> &mut Flush {
        self.latest = Instant::now();
        if self.next.outcomes() == 0 {
            self.since = self.latest;
        }
        self.noted += 1;
        self.next.up_to = self.noted;
        &mut self.next
    }

    /// Adds an event's end. Its group opens at once, or only when this is written. Returns the end's number.
    pub(super) fn finish(
        &mut self,
        event: &LeasedEvent,
        finalization: Finalization,
        counted_as: CountedAs,
        work: Vec<HandlerEnd>,
        buffer: &mut Buffer,
    ) -> u64 {
        let handled = (!work.is_empty()).then_some(event.kind.as_str());
        self.services.note_left(event.lease, handled);
        // An event that starts behind an end which is then refused loses an attempt. This happens at most
        // once: an event whose end was refused before comes back with the results of its handlers.
        let holds_group = event.progress.is_some() || finalization.status != Status::Completed;
        self.note();
        let number = self.noted;
        if let Some(group) = &event.group_key {
            self.group_ends.insert(group.clone(), number);
            if !holds_group {
                buffer.open_group(group, event.lease);
            }
        }
        self.next.ends.push(PendingEnd {
            number,
            finalization,
            counted_as,
            group: event.group_key.clone(),
            attempt: (event.attempts, event.max_attempts),
            work,
            holds_group,
        });
        number
    }

    /// Adds the return of an event that is retried. Its group closes until that is written.
    pub(super) fn retry(&mut self, event: &LeasedEvent, retried: Retried, buffer: &mut Buffer) {
        self.services.note_left(event.lease, None);
        if let Some(group) = &event.group_key {
            buffer.close_group(group, event.lease.id);
        }
        self.note().retries.push(Retry {
            retried,
            group: event.group_key.clone(),
            leased: true,
            number: None,
        });
    }

    /// Adds the return of an event that was not started, with its attempt restored. Its group closes until
    /// that is written.
    pub(super) fn release(&mut self, event: LeasedEvent, buffer: &mut Buffer) {
        self.services.note_left(event.lease, None);
        if let Some(group) = &event.group_key {
            buffer.close_group(group, event.lease.id);
        }
        self.note().releases.push(event);
    }

    /// Adds the end of an event whose payload cannot be read.
    pub(super) fn end_unreadable(&mut self, lease: Lease) {
        self.note().unreadable.push(lease);
    }

    /// Whether more of a lease is about to start.
    pub(super) fn has_starts(&self) -> bool {
        !self.next.starts.is_empty()
    }

    /// Adds a window to open.
    pub(super) fn start(&mut self, start: WindowRaise) {
        self.next.starts.push(start);
    }

    /// Adds marks of leases that are to be lowered.
    pub(super) fn lower(&mut self, marks: Vec<(Uuid, i64, i64)>) {
        self.next.lowered = marks;
    }

    /// Notes that an outcome is not written, although later ones may be.
    fn keep_open(&mut self, number: u64) {
        self.reached.0.send_if_modified(|reached| {
            reached.open.insert(number);
            false
        });
    }

    /// Notes that such an outcome is written after all, or never will be.
    fn settled(&mut self, number: u64) {
        self.reached
            .0
            .send_if_modified(|reached| !reached.open.is_empty() && reached.open.remove(&number));
    }

    /// Whether a flush may be sent: none is under way, and a failed one has waited long enough.
    pub(super) fn may_flush(&self) -> bool {
        self.session.is_idle() && Instant::now() >= self.not_before
    }

    /// Returns when the outcomes have waited long enough for others.
    fn flush_at(&self) -> Instant {
        if self.group_ends.is_empty() {
            (self.latest + FLUSH_AGE).min(self.since + LONGEST_FLUSH_AGE)
        } else {
            self.since + FLUSH_AGE
        }
    }

    /// Returns when something must be flushed, if nothing else happens.
    pub(super) fn wake(&self, has_over: bool) -> Option<Instant> {
        let waits = self.is_idle() && (self.next.outcomes() > 0 || has_over);
        let due = waits.then(|| self.flush_at().max(self.not_before));
        let busy = (!self.busy.is_empty()).then_some(self.busy_until);
        due.into_iter().chain(busy).min()
    }

    /// Adds the returns that were busy to the next flush, when their time has come.
    pub(super) fn retry_busy(&mut self) {
        let now = Instant::now();
        if !self.busy.is_empty() && now >= self.busy_until {
            self.busy_until = now + BUSY_PAUSE;
            let mut busy = std::mem::take(&mut self.busy);
            let next = self.note();
            next.retries.append(&mut busy.retries);
            next.releases.append(&mut busy.releases);
        }
    }

    /// Whether it is time to flush: enough outcomes have accumulated, they have waited long enough, nothing
    /// else is going on (`quiet`), or more events are to start. `alone` says that no lease is under way.
    pub(super) fn is_due(&self, enough: usize, buffer: &Buffer, quiet: bool, alone: bool) -> bool {
        let outcomes = self.next.outcomes();
        let aged = Instant::now() >= self.flush_at();
        let waits = outcomes > 0 || buffer.leases().has_over();
        self.has_starts()
            || !self.next.lowered.is_empty()
            || alone && (self.next.is_exclusive() || buffer.is_uncertain())
            || self.services.has_reports()
            || waits && (outcomes >= enough || aged || quiet)
    }

    /// Sends the next flush. Returns to the queue stay here while a lease is under way, unless this flush is
    /// `alone`. `running` are the ids and groups of the events that run. Returns whether there was anything.
    pub(super) fn send<'a>(
        &mut self,
        alone: bool,
        buffer: &mut Buffer,
        running: impl Iterator<Item = (i64, Option<&'a str>)>,
    ) -> bool {
        let mut next = std::mem::take(&mut self.next);
        next.reports = self.services.take_reports();
        let heads = heads(next.retries.iter().chain(&self.busy.retries));
        if !heads.is_empty() {
            self.retry_followers(&mut next, &heads);
        }
        if alone {
            next.reread = buffer.is_uncertain().then(|| buffer.leases().tokens());
            if !heads.is_empty() {
                // These were started after one that goes back: it had ended, and its end was refused.
                let of_them =
                    |group: Option<&str>| group.is_some_and(|key| heads.contains_key(key));
                let ends = next.ends.iter().filter(|end| of_them(end.group.as_deref()));
                let running = running.filter(|(_, group)| of_them(*group));
                let running = running.map(|(id, _)| id);
                next.ran = running
                    .chain(ends.map(|end| end.finalization.lease.id))
                    .collect();
            }
        } else {
            self.next.retries = std::mem::take(&mut next.retries);
            self.next.releases = std::mem::take(&mut next.releases);
        }
        next.over = buffer.take_over(next.ends.iter().map(|end| end.finalization.lease.token));
        if next.is_empty() {
            return false;
        }
        self.is_exclusive = next.is_exclusive();
        let (worker, services) = (self.worker, self.services.clone());
        self.session
            .send(|session| flush(session, next, worker, services).boxed());
        true
    }

    /// Sends back the ends of events that follow an event that goes back. They keep the work that is done. An
    /// event that precedes it in the group has ended in order, and is written.
    fn retry_followers(&mut self, next: &mut Flush, heads: &HashMap<String, i64>) {
        let fault = Unwritable::behind().fault;
        for end in next.ends.extract_if(.., |end| is_behind(heads, end)) {
            self.keep_open(end.number);
            next.retries
                .push(end.into_retry(&fault, false, BLAMELESS_DELAY));
        }
    }

    /// Processes the answer to a flush.
    ///
    /// # Errors
    /// When flushes have failed too often.
    pub(super) fn on_flushed(
        &mut self,
        result: FlushResult,
        is_over: bool,
    ) -> Result<FlushReport, Error> {
        let FlushResult {
            session,
            mut flushed,
        } = result;
        self.session.put(session);
        self.is_exclusive = false;
        if let Some(error) = flushed.failed.take() {
            flushed.failed = Some(self.note_failure(error)?);
        }
        let mut releases = std::mem::take(&mut flushed.flush.releases);
        if let Some(left) = &flushed.state.left {
            // These were about to be released, and have left together with a preceding event.
            let gone = |event: &mut LeasedEvent| left.contains(&event.lease.id);
            releases.extend(self.next.releases.extract_if(.., gone));
        }
        for end in std::mem::take(&mut flushed.flush.ends) {
            self.take_end(end, &mut flushed);
        }
        for lease in std::mem::take(&mut flushed.flush.unreadable) {
            self.take_unreadable(lease, is_over, &mut flushed);
        }
        self.take_retries(is_over, &mut flushed);
        self.take_releases(releases, is_over, &mut flushed);
        if flushed.is_whole() {
            self.failures = 0;
            self.note_written(flushed.flush.up_to);
        }
        Ok(flushed)
    }

    fn take_end(&mut self, end: PendingEnd, flushed: &mut FlushReport) {
        let result = match flushed.state.of_end(&end) {
            Some(WriteResult::Refused(refusal)) => return self.refuse(end, refusal, flushed),
            Some(result) => result,
            None if flushed.is_whole() => WriteResult::Lost { returned: false },
            None => return self.next.ends.push(end),
        };
        let (lease, leased) = (end.finalization.lease, end.counted_as.was_leased());
        flushed.changes.push(Change {
            opens: end.holds_group,
            ..Change::new(lease, end.group, leased, result)
        });
    }

    /// Sends an event back, with the work that is done, because its end cannot be written.
    fn refuse(&mut self, end: PendingEnd, refusal: Unwritable, flushed: &mut FlushReport) {
        let (attempt, most) = end.attempt;
        let charged = end.finalization.ran && !refusal.blameless && attempt < most;
        let delay = if charged || refusal.blameless {
            BLAMELESS_DELAY
        } else {
            self.longest_delay
        };
        self.keep_open(end.number);
        let retry = end.into_retry(&refusal.fault, charged, delay);
        let (lease, group) = (retry.retried.lease, retry.group.clone());
        self.note().retries.push(retry);
        let result = WriteResult::Refused(refusal);
        flushed
            .changes
            .push(Change::new(lease, group, true, result));
    }

    fn take_unreadable(&mut self, lease: Lease, is_over: bool, flushed: &mut FlushReport) {
        let is_busy = flushed.state.refused.contains_key(&lease);
        let result = if flushed.state.failed.contains(&lease) {
            WriteResult::FAILED
        } else if is_busy && is_over {
            WriteResult::Abandoned
        } else if is_busy || !flushed.is_whole() {
            return self.next.unreadable.push(lease);
        } else {
            WriteResult::Lost { returned: false }
        };
        let change = Change::new(lease, None, true, result);
        flushed.changes.push(change);
    }

    fn take_retries(&mut self, is_over: bool, flushed: &mut FlushReport) {
        let retries = std::mem::take(&mut flushed.flush.retries);
        let state = &flushed.state;
        let Some(left) = &state.left else {
            return self.next.retries.extend(retries);
        };
        for retry in retries {
            let lease = retry.retried.lease;
            let is_busy = state.returns_busy.contains(&lease.id);
            if is_busy && !is_over {
                self.busy.retries.push(retry);
                continue;
            }
            if let Some(number) = retry.number {
                self.settled(number);
            }
            let counted_as = if retry.retried.is_snoozed() {
                CountedAs::Snoozed
            } else if retry.retried.deferred.is_empty() {
                CountedAs::Retried
            } else {
                CountedAs::Deferred
            };
            let is_torn = state.failed.contains(&lease);
            let result = if is_torn {
                WriteResult::FAILED
            } else if state.stuck.contains(&lease.id) || is_busy {
                WriteResult::Abandoned
            } else if left.contains(&lease.id) {
                WriteResult::Returned(counted_as, retry.retried.delay < AT_ONCE)
            } else {
                WriteResult::Lost { returned: true }
            };
            flushed.changes.push(Change {
                reopens: is_torn,
                ..Change::new(lease, retry.group, retry.leased, result)
            });
        }
    }

    fn take_releases(
        &mut self,
        releases: Vec<LeasedEvent>,
        is_over: bool,
        flushed: &mut FlushReport,
    ) {
        let state = &flushed.state;
        let Some(left) = &state.left else {
            return self.next.releases.extend(releases);
        };
        for event in releases {
            let lease = event.lease;
            let is_busy = state.returns_busy.contains(&lease.id);
            if is_busy && !is_over {
                self.busy.releases.push(event);
                continue;
            }
            let result = if is_busy {
                WriteResult::Abandoned
            } else if left.contains(&lease.id) {
                WriteResult::Returned(CountedAs::Released, false)
            } else {
                // Another worker has taken it. Or an earlier try, whose answer was lost, has released it with
                // the events that follow it.
                WriteResult::Lost { returned: true }
            };
            let leased = event.fate == LeaseDecision::Run;
            let change = Change::new(lease, event.group_key, leased, result);
            flushed.changes.push(change);
        }
    }

    /// Notes that everything up to this number is written, except what is kept open.
    fn note_written(&mut self, up_to: u64) {
        self.reached.0.send_if_modified(|reached| {
            let further = up_to > reached.up_to;
            reached.up_to = up_to.max(reached.up_to);
            further
        });
        let open: BTreeSet<u64> = self.reached.1.borrow().open.clone();
        self.group_ends
            .retain(|_, number| *number > up_to || open.contains(number));
    }

    /// Notes that the last flush failed as a whole. It is tried again a few times; after that, this returns
    /// the error that ends the run.
    fn note_failure(&mut self, error: Error) -> Result<Error, Error> {
        self.failures += 1;
        self.not_before = Instant::now() + REWRITES.0 * self.failures;
        tracing::warn!(error = %error, tries = self.failures, "outcomes could not be written");
        if self.failures > REWRITES.1 {
            return Err(error);
        }
        Ok(error)
    }
}

/// Returns the first event of each group that goes back with these retries.
fn heads<'a>(retries: impl Iterator<Item = &'a Retry>) -> HashMap<String, i64> {
    let mut heads: HashMap<String, i64> = HashMap::new();
    for retry in retries {
        if let Some(group) = &retry.group {
            let id = retry.retried.lease.id;
            let head = heads.entry(group.clone()).or_insert(id);
            *head = id.min(*head);
        }
    }
    heads
}

/// Whether an end belongs to an event that follows one of these in its group.
fn is_behind(heads: &HashMap<String, i64>, end: &PendingEnd) -> bool {
    let head = end.group.as_ref().and_then(|group| heads.get(group));
    head.is_some_and(|head| end.finalization.lease.id >= *head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flush_waits_while_outcomes_come_but_not_for_long_and_not_if_a_group_waits() {
        let database = Database::new("postgres://nobody@127.0.0.1:1/none", 1).unwrap();
        let delay = Duration::from_secs(1);
        let mut completer = Completer::new(&database, Uuid::nil(), Arc::default(), delay);
        let began = completer.since;
        let mut at = |latest: u64| {
            completer.latest = began + Duration::from_millis(latest);
            completer.flush_at().duration_since(began).as_millis()
        };
        assert_eq!([at(0), at(8), at(45)], [10, 18, 50]);
        completer.group_ends.insert("g".to_owned(), 1);
        assert_eq!(completer.flush_at(), began + FLUSH_AGE);
    }
}
