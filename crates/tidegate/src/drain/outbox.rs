//! Owns the outcomes that wait to be written: ends, retries and returns, each with a number. It also owns
//! what must wait before it is tried again, and up to which number everything is written.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::flush::{End, Flush, Release, Retry};
use crate::context::Completions;
use crate::error::Error;
use crate::lease::Lease;

/// How long to wait for a fuller write: one commit for many events.
const FLUSH_AGE: Duration = Duration::from_millis(10);

/// How long to wait before trying again what waits for another session's lock.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long to wait before a failed write is tried again, and how often it is tried before the run ends.
const REWRITES: (Duration, u32) = (Duration::from_millis(500), 3);

/// The outcomes that wait to be written.
pub(super) struct Outbox {
    /// The content of the next write.
    pub next: Flush,
    /// Since when it has content.
    since: Instant,
    /// Ends that wait for a lock of another session, and ends of the same groups behind them. They are tried
    /// again at `busy_until`.
    pub busy: Vec<End>,
    /// The same for events that go back to the queue.
    pub busy_retries: Vec<Retry>,
    pub busy_releases: Vec<Release>,
    busy_until: Instant,
    /// How many outcomes were noted so far. This is also the number of the last one.
    noted: u64,
    /// Which of them are written.
    reached: (watch::Sender<Completions>, watch::Receiver<Completions>),
    /// The number of each group's last end that is not written yet.
    group_ends: HashMap<String, u64>,
    failures: u32,
    not_before: Instant,
}

impl Outbox {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            next: Flush::default(),
            since: now,
            busy: Vec::new(),
            busy_retries: Vec::new(),
            busy_releases: Vec::new(),
            busy_until: now,
            noted: 0,
            reached: watch::channel(Completions::default()),
            group_ends: HashMap::new(),
            failures: 0,
            not_before: now,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty() && !self.has_busy()
    }

    /// Returns how many events have ended, or go back, and are not written.
    pub(super) fn unwritten(&self) -> usize {
        self.next.outcomes() + self.busy.len() + self.busy_retries.len() + self.busy_releases.len()
    }

    fn has_busy(&self) -> bool {
        !(self.busy.is_empty() && self.busy_retries.is_empty() && self.busy_releases.is_empty())
    }

    /// Returns the leases of events that have been started, and whose end or return is not written.
    pub(super) fn unwritten_leases(&self) -> impl Iterator<Item = Lease> {
        let ends = self.next.ends.iter().chain(&self.busy);
        let retries = self.next.retries.iter().chain(&self.busy_retries);
        let ends = ends.map(|end| end.finalization.lease);
        ends.chain(retries.map(|back| back.retried.lease))
    }

    /// Returns the content of the next write, for a caller that is about to add one outcome. This call
    /// numbers that outcome.
    pub(super) fn note(&mut self) -> &mut Flush {
        if self.next.outcomes() == 0 {
            self.since = Instant::now();
        }
        self.noted += 1;
        self.next.up_to = self.noted;
        &mut self.next
    }

    /// Returns the number of the last noted outcome.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    /// Numbers an end that is about to be pushed.
    pub(super) fn note_number(&mut self) -> u64 {
        self.note();
        self.noted
    }

    /// Adds an end to the next write, or behind the ends of its group that are held.
    pub(super) fn push(&mut self, end: End) {
        if end.group.as_deref().is_some_and(|group| self.holds(group)) {
            self.hold(end);
        } else {
            self.next.ends.push(end);
        }
    }

    /// Whether an end of this group is held.
    pub(super) fn holds(&self, group: &str) -> bool {
        let of_group = |end: &End| end.group.as_deref() == Some(group);
        !self.busy.is_empty() && self.busy.iter().any(of_group)
    }

    /// Keeps an end that cannot be written yet.
    pub(super) fn hold(&mut self, mut end: End) {
        if !self.has_busy() {
            self.busy_until = Instant::now() + BUSY_PAUSE;
        }
        end.was_held = true;
        self.keep_open(end.number);
        let id = end.finalization.lease.id;
        let behind = |other: &mut End| {
            other.group.is_some() && other.group == end.group && other.finalization.lease.id > id
        };
        let behind: Vec<End> = self.next.ends.extract_if(.., behind).collect();
        self.busy.push(end);
        for end in behind {
            self.hold(end);
        }
    }

    /// Keeps back the ends of groups with an earlier event that is about to go back to the queue.
    pub(super) fn hold_behind_retries(&mut self, ends: &mut Vec<End>) {
        let mut heads: HashMap<&str, i64> = HashMap::new();
        for back in &self.next.retries {
            if let Some(group) = &back.group {
                let id = back.retried.lease.id;
                let head = heads.entry(group).or_insert(id);
                *head = id.min(*head);
            }
        }
        if heads.is_empty() {
            return;
        }
        let waits = |end: &mut End| {
            let head = end.group.as_deref().and_then(|group| heads.get(group));
            head.is_some_and(|head| end.finalization.lease.id > *head)
        };
        let held: Vec<End> = ends.extract_if(.., waits).collect();
        for end in held {
            self.hold(end);
        }
    }

    /// Notes that an outcome is not written, although later ones may be.
    pub(super) fn keep_open(&mut self, number: u64) {
        self.reached.0.send_if_modified(|reached| {
            reached.open.insert(number);
            false
        });
    }

    /// Notes that such an outcome is written after all, or never will be.
    pub(super) fn settled(&mut self, number: u64) {
        self.reached
            .0
            .send_if_modified(|reached| !reached.open.is_empty() && reached.open.remove(&number));
    }

    /// Notes the end of a group's event. Later events of the group wait until it is written.
    pub(super) fn note_group(&mut self, group: String) {
        self.group_ends.insert(group, self.noted);
    }

    /// Returns the number of a group's last end that is not written yet.
    pub(super) fn last_of(&self, group: &str) -> u64 {
        self.group_ends.get(group).copied().unwrap_or(0)
    }

    /// Returns a receiver of what is written.
    pub(super) fn progress(&self) -> watch::Receiver<Completions> {
        self.reached.1.clone()
    }

    /// Whether a failed write has waited long enough.
    pub(super) fn may_write(&self) -> bool {
        Instant::now() >= self.not_before
    }

    pub(super) fn has_aged(&self) -> bool {
        Instant::now() >= self.since + FLUSH_AGE
    }

    /// Returns when the waiting outcomes must be written.
    pub(super) fn due(&self) -> Instant {
        (self.since + FLUSH_AGE).max(self.not_before)
    }

    /// Returns when what is busy is tried again, if there is any.
    pub(super) fn busy_until(&self) -> Option<Instant> {
        self.has_busy().then_some(self.busy_until)
    }

    /// Adds what is busy to the next write, when its time has come or `at_once`.
    pub(super) fn take_up_busy(&mut self, at_once: bool) {
        let now = Instant::now();
        if self.has_busy() && (now >= self.busy_until || at_once) {
            self.busy_until = now + BUSY_PAUSE;
            let mut ends = std::mem::take(&mut self.busy);
            let mut retries = std::mem::take(&mut self.busy_retries);
            let mut releases = std::mem::take(&mut self.busy_releases);
            let next = self.note();
            next.ends.append(&mut ends);
            next.retries.append(&mut retries);
            next.releases.append(&mut releases);
        }
    }

    /// Notes that everything up to this number is written, except what is kept open.
    pub(super) fn written(&mut self, up_to: u64) {
        self.reached.0.send_if_modified(|reached| {
            let further = up_to > reached.up_to;
            reached.up_to = up_to.max(reached.up_to);
            further
        });
        let open: BTreeSet<u64> = self.reached.1.borrow().open.clone();
        self.group_ends
            .retain(|_, number| *number > up_to || open.contains(number));
    }

    /// Notes that the last write succeeded.
    pub(super) fn note_success(&mut self) {
        self.failures = 0;
    }

    /// Notes that the last write failed as a whole. It is tried again a few times; after that, this returns
    /// the error that ends the run.
    pub(super) fn note_failure(&mut self, error: Error) -> Result<Error, Error> {
        self.failures += 1;
        self.not_before = Instant::now() + REWRITES.0 * self.failures;
        tracing::warn!(error = %error, tries = self.failures, "outcomes could not be written");
        if self.failures > REWRITES.1 {
            return Err(error);
        }
        Ok(error)
    }
}
