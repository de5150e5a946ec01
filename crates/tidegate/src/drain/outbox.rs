//! Owns the outcomes that wait to be written: ends, retries and returns, each with a number. It also owns what must
//! wait before it is tried again, and up to which number everything is written.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::writer::{End, WriteBatch};
use crate::error::Error;

/// How long to wait for a fuller write: one commit for many events.
const FLUSH_AGE: Duration = Duration::from_millis(10);

/// How long to wait before trying ends again whose follow-ups' groups are busy.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long to wait before a failed write is tried again, and how often it is tried before the run ends.
const REWRITES: (Duration, u32) = (Duration::from_millis(500), 3);

/// The outcomes that wait to be written.
pub(super) struct Outbox {
    /// The content of the next write.
    pub next: WriteBatch,
    /// Since when it has content.
    since: Instant,
    /// Ends whose follow-ups wait for another publisher. They are tried again at `busy_until`.
    pub busy: Vec<End>,
    busy_until: Instant,
    /// How many outcomes were noted so far. This is also the number of the last one.
    noted: u64,
    /// The number up to which everything is written.
    reached: (watch::Sender<u64>, watch::Receiver<u64>),
    /// The number of each group's last end that is not written yet.
    group_ends: HashMap<String, u64>,
    failures: u32,
    not_before: Instant,
}

impl Outbox {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            next: WriteBatch::default(),
            since: now,
            busy: Vec::new(),
            busy_until: now,
            noted: 0,
            reached: watch::channel(0),
            group_ends: HashMap::new(),
            failures: 0,
            not_before: now,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.busy.is_empty()
    }

    /// Returns how many events have ended, or go back, and are not written.
    pub(super) fn unwritten(&self) -> usize {
        self.next.outcomes() + self.busy.len()
    }

    /// Returns the content of the next write, for a caller that is about to add one outcome. This call numbers that
    /// outcome.
    pub(super) fn note(&mut self) -> &mut WriteBatch {
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

    /// Notes the end of a group's event. Later events of the group wait until it is written.
    pub(super) fn note_group(&mut self, group: String) {
        self.group_ends.insert(group, self.noted);
    }

    /// Returns the number of a group's last end that is not written yet.
    pub(super) fn last_of(&self, group: &str) -> u64 {
        self.group_ends.get(group).copied().unwrap_or(0)
    }

    /// Returns a receiver of the number up to which everything is written.
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
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

    /// Returns when busy ends are tried again, if there are any.
    pub(super) fn busy_until(&self) -> Option<Instant> {
        (!self.busy.is_empty()).then_some(self.busy_until)
    }

    /// Adds busy ends to the next write, when their time has come or `at_once`.
    pub(super) fn take_up_busy(&mut self, at_once: bool) {
        let now = Instant::now();
        if !self.busy.is_empty() && (now >= self.busy_until || at_once) {
            self.busy_until = now + BUSY_PAUSE;
            let mut busy = std::mem::take(&mut self.busy);
            self.note().ends.append(&mut busy);
        }
    }

    /// Notes that everything up to this number is written.
    pub(super) fn written(&mut self, up_to: u64) {
        self.reached.0.send_if_modified(|reached| {
            let further = up_to > *reached;
            *reached = up_to.max(*reached);
            further
        });
        self.group_ends.retain(|_, number| *number > up_to);
    }

    /// Notes that the last write succeeded.
    pub(super) fn note_success(&mut self) {
        self.failures = 0;
    }

    /// Notes that the last write failed as a whole. It is tried again a few times; after that, this returns the error
    /// that ends the run.
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
