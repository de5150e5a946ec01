//! Owns what waits to be written: ends, retries and what goes back, each with its number; what must wait before it is tried
//! again; and how far the database has been told.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::writer::{End, WriteBatch};
use crate::error::Error;

/// A full write is worth waiting this long for: one commit for many events.
const FLUSH_AGE: Duration = Duration::from_millis(10);

/// Ends whose follow-ups' groups are busy are tried again after this.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A write that failed is tried again after this, so often; then the run ends.
const REWRITES: (Duration, u32) = (Duration::from_millis(500), 3);

/// What waits to be written.
pub(super) struct Outbox {
    /// What the next write says.
    pub next: WriteBatch,
    /// Since when there is something in it.
    since: Instant,
    /// Ends whose follow-ups wait for another publisher, to be tried again then.
    pub busy: Vec<End>,
    busy_until: Instant,
    /// What has been noted so far, which is also the number of the last of it.
    noted: u64,
    /// The number up to which all is written.
    reached: (watch::Sender<u64>, watch::Receiver<u64>),
    /// Number of each group's last end that is not written yet.
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

    /// Events that have ended, or go back, and are not written.
    pub(super) fn unwritten(&self) -> usize {
        self.next.outcomes() + self.busy.len()
    }

    /// The next write's content, for who is about to add an outcome to it, which this numbers.
    pub(super) fn note(&mut self) -> &mut WriteBatch {
        if self.next.outcomes() == 0 {
            self.since = Instant::now();
        }
        self.noted += 1;
        self.next.up_to = self.noted;
        &mut self.next
    }

    /// The number of what was noted last.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    /// Notes the end of a group's event: who comes after it waits until it is written.
    pub(super) fn note_group(&mut self, group: String) {
        self.group_ends.insert(group, self.noted);
    }

    /// The number of a group's last end that is not written yet.
    pub(super) fn last_of(&self, group: &str) -> u64 {
        self.group_ends.get(group).copied().unwrap_or(0)
    }

    /// Tells the number up to which all is written.
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.reached.1.clone()
    }

    /// Whether what failed has waited long enough.
    pub(super) fn may_write(&self) -> bool {
        Instant::now() >= self.not_before
    }

    pub(super) fn has_aged(&self) -> bool {
        Instant::now() >= self.since + FLUSH_AGE
    }

    /// When what waits must be written.
    pub(super) fn due(&self) -> Instant {
        (self.since + FLUSH_AGE).max(self.not_before)
    }

    /// When busy ends are tried again, if there are any.
    pub(super) fn busy_until(&self) -> Option<Instant> {
        (!self.busy.is_empty()).then_some(self.busy_until)
    }

    /// Ends whose follow-ups had to wait are tried again.
    pub(super) fn take_up_busy(&mut self, at_once: bool) {
        let now = Instant::now();
        if !self.busy.is_empty() && (now >= self.busy_until || at_once) {
            self.busy_until = now + BUSY_PAUSE;
            let mut busy = std::mem::take(&mut self.busy);
            self.note().ends.append(&mut busy);
        }
    }

    /// Everything up to this number is written.
    pub(super) fn written(&mut self, up_to: u64) {
        self.reached.0.send_if_modified(|reached| {
            let further = up_to > *reached;
            *reached = up_to.max(*reached);
            further
        });
        self.group_ends.retain(|_, number| *number > up_to);
    }

    /// The last write succeeded.
    pub(super) fn note_success(&mut self) {
        self.failures = 0;
    }

    /// The last write failed as a whole. It is tried again, a few times; then this is the error that ends the run.
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
