//! Owns the leases of the events in the buffer: how far each may start, what is left of it, when it was
//! renewed, and which are over. It is pure.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tidegate_core::lease::{Lease, LeaseDecision, LeasedEvent};
use tokio::time::Instant;
use uuid::Uuid;

use super::clocks::Reading;

/// A request to start more of a lease, up to an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowRaise {
    pub token: Uuid,
    pub upto: i64,
}

impl WindowRaise {
    pub(super) fn of(event: Lease) -> Self {
        Self {
            token: event.token,
            upto: event.id,
        }
    }
}

/// A lease with events in the buffer.
struct BufferedLease {
    /// Events up to this id may start.
    started_to: i64,
    /// The same id as the database has it, which is never lower.
    mark: i64,
    suspect: bool,
    /// Whether one of its events cannot be given back. That event stays until the lease lapses after this
    /// drain.
    lapses: bool,
    /// How often events were taken from it, as far as we know.
    cuts: i32,
    /// When it was requested, and when it was last renewed, by this machine's clocks.
    taken: Reading,
    renewed: Reading,
    /// How many events have an end that is not written.
    left: usize,
    /// How many of them may have started.
    open: usize,
    /// The ids after the window, in order.
    rest: VecDeque<i64>,
    /// Those of its events that are on their last attempt.
    last: BTreeSet<i64>,
}

/// Deadlines are cut to this, because no drain holds an event for so long.
const FAR: Duration = Duration::from_hours(24 * 30);

/// How much of a lease may start when it arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// The last id that may start.
    pub started_to: i64,
    /// Whether its only event has outlived a worker before.
    pub suspect: bool,
}

/// All leases with events in the buffer, and those that are over.
#[derive(Default)]
pub(super) struct Leases {
    held: HashMap<Uuid, BufferedLease>,
    /// How many events, in all leases, may have started and have an end that is not written.
    open: usize,
    suspects: usize,
    /// Leases without events in the buffer, to be marked as ended.
    over: Vec<Uuid>,
    /// Leases that are marked, to be removed.
    ended: Vec<Uuid>,
}

impl BufferedLease {
    /// Removes one of its events, which no longer waits for its start or its end. Returns by how much `open`
    /// falls.
    fn close(&mut self, id: i64) -> usize {
        if id <= self.started_to {
            self.open -= 1;
            return 1;
        }
        if let Ok(at) = self.rest.binary_search(&id) {
            self.rest.remove(at);
        }
        0
    }
}

impl Leases {
    /// Adds a lease of these events, `last` of which are on their last attempt.
    pub(super) fn insert(
        &mut self,
        token: Uuid,
        ids: impl Iterator<Item = i64>,
        last: BTreeSet<i64>,
        window: Window,
        renewed: Reading,
    ) {
        let (open, rest): (Vec<i64>, Vec<i64>) = ids.partition(|id| *id <= window.started_to);
        let mut rest = rest;
        rest.sort_unstable();
        self.open += open.len();
        self.suspects += usize::from(window.suspect);
        let held = BufferedLease {
            started_to: window.started_to,
            mark: window.started_to,
            suspect: window.suspect,
            lapses: false,
            cuts: 0,
            taken: renewed,
            renewed,
            left: open.len() + rest.len(),
            open: open.len(),
            rest: VecDeque::from(rest),
            last,
        };
        self.held.insert(token, held);
    }

    /// Whether the event is in the window of its lease.
    pub(super) fn is_open(&self, event: &LeasedEvent) -> bool {
        let held = self.held.get(&event.lease.token);
        held.is_some_and(|held| event.lease.id <= held.started_to)
    }

    /// The time before which an event must start: its lease can be trusted until then, and its deadline has
    /// not passed.
    pub(super) fn start_by(&self, event: &LeasedEvent, timeout: Duration) -> Reading {
        let trusted = self.trusted_until(event, timeout);
        let deadline = self.deadline(event);
        deadline.map_or(trusted, |deadline| deadline.earlier(trusted))
    }

    /// Whether the event's deadline has passed while it waited here (B13), and its lease is certainly valid.
    pub(super) fn is_late(&self, event: &LeasedEvent, timeout: Duration, now: Instant) -> bool {
        event.fate == LeaseDecision::Run
            && self.deadline(event).is_some_and(|time| time.is_over(now))
            && !self.trusted_until(event, timeout).is_over(now)
    }

    /// A lease is not trusted up to its end: if this process was frozen or its machine suspended, another
    /// drain may be running the event.
    fn trusted_until(&self, event: &LeasedEvent, timeout: Duration) -> Reading {
        let held = self.held.get(&event.lease.token);
        held.map_or_else(Reading::now, |held| held.renewed + timeout.mul_f64(0.9))
    }

    /// When the event's deadline passes, if it has one.
    fn deadline(&self, event: &LeasedEvent) -> Option<Reading> {
        let left = event
            .expires_in
            .filter(|_| event.fate == LeaseDecision::Run)?;
        let left = left.min(FAR);
        let held = self.held.get(&event.lease.token)?;
        Some(held.taken + left)
    }

    /// Whether the event is on its last attempt.
    pub(super) fn is_last(&self, event: Lease) -> bool {
        let held = self.held.get(&event.token);
        held.is_some_and(|held| held.last.contains(&event.id))
    }

    /// Returns how many events are between their start and their end.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn is_suspect(&self, token: Uuid) -> bool {
        self.held.get(&token).is_some_and(|held| held.suspect)
    }

    pub(super) fn has_suspect(&self) -> bool {
        self.suspects > 0
    }

    /// Whether a suspect is between its start and its end.
    pub(super) fn runs_suspect(&self) -> bool {
        let mut leases = self.held.values();
        self.suspects > 0 && leases.any(|held| held.suspect && held.open > 0)
    }

    /// Returns the last event of a window of this size that begins with this event, which is after the
    /// present window. The window ends before an event on its last attempt.
    pub(super) fn window_end(&self, event: Lease, window: usize) -> Option<i64> {
        let BufferedLease { rest, last, .. } = self.held.get(&event.token)?;
        let at = rest.partition_point(|id| *id < event.id);
        let window = rest.range(at..).take(window.max(1));
        window.take_while(|id| !last.contains(id)).last().copied()
    }

    /// Returns the last event of a window of at most `places` events that are on their last attempt, and for
    /// which `ready` says that nothing else precedes them. It begins with this event.
    pub(super) fn last_window_end(
        &self,
        event: Lease,
        places: usize,
        ready: impl Fn(i64) -> bool,
    ) -> Option<i64> {
        let BufferedLease { rest, last, .. } = self.held.get(&event.token)?;
        let at = rest.partition_point(|id| *id < event.id);
        let starts = rest.range(at..).take(places);
        let starts = starts.take_while(|id| last.contains(id) && ready(**id));
        starts.last().copied()
    }

    /// Closes the windows again: events after the id that `begun` returns for their lease have not been
    /// started. Returns the marks that the database must lower: the token, the present mark and the new one.
    pub(super) fn close_windows(
        &mut self,
        begun: &HashMap<Uuid, i64>,
        waiting: &HashMap<Uuid, Vec<i64>>,
    ) -> Vec<(Uuid, i64, i64)> {
        let mut lowered = Vec::new();
        for (token, ids) in waiting {
            let Some(held) = self.held.get_mut(token) else {
                continue;
            };
            let begun = begun.get(token).copied().unwrap_or(0);
            let shut = ids
                .iter()
                .filter(|id| **id > begun && **id <= held.started_to);
            let mut shut: Vec<i64> = shut.copied().collect();
            // What is left to lapse has been started, and nobody here counts it any more.
            if held.suspect || held.lapses || shut.is_empty() {
                continue;
            }
            shut.sort_unstable_by(|one, other| other.cmp(one));
            held.open -= shut.len();
            self.open -= shut.len();
            for id in shut {
                held.rest.push_front(id);
            }
            held.started_to = begun;
            lowered.push((*token, held.mark, begun));
        }
        lowered
    }

    pub(super) fn note_lowered(&mut self, token: Uuid, mark: i64) {
        if let Some(held) = self.held.get_mut(&token) {
            held.mark = mark.max(held.started_to);
        }
    }

    /// Opens the window of a lease up to this id, which the database knows by now.
    pub(super) fn started(&mut self, token: Uuid, upto: i64) {
        let Some(held) = self.held.get_mut(&token) else {
            return;
        };
        held.mark = held.mark.max(upto);
        held.started_to = held.started_to.max(upto);
        while held.rest.front().is_some_and(|id| *id <= upto) {
            held.rest.pop_front();
            held.open += 1;
            self.open += 1;
        }
    }

    /// Removes an event whose end is written, or that this drain no longer holds.
    pub(super) fn note_gone(&mut self, lease: Lease) {
        let Some(held) = self.held.get_mut(&lease.token) else {
            return;
        };
        held.left -= 1;
        self.open -= held.close(lease.id);
        if held.left == 0 {
            self.suspects -= usize::from(held.suspect);
            self.held.remove(&lease.token);
            self.over.push(lease.token);
        }
    }

    /// Leaves an event in its lease until the lease lapses. Nothing here waits for the event any more.
    pub(super) fn abandon(&mut self, lease: Lease) {
        if let Some(held) = self.held.get_mut(&lease.token) {
            self.open -= held.close(lease.id);
            self.suspects -= usize::from(std::mem::take(&mut held.suspect));
            held.lapses = true;
        }
    }

    /// Returns how many of a lease's events are in the buffer, or have an end that is not written.
    pub(super) fn left(&self, token: Uuid) -> usize {
        self.held.get(&token).map_or(0, |held| held.left)
    }

    /// Takes the leases without events in the buffer, to be marked as ended in the database.
    pub(super) fn take_over(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.over)
    }

    /// Records whether a lease without events was marked together with its last event.
    pub(super) fn note_over(&mut self, token: Uuid, written: bool) {
        self.over.retain(|other| *other != token);
        if written {
            self.ended.push(token);
        } else if !self.held.contains_key(&token) {
            self.over.push(token);
        }
    }

    /// Whether leases are to be marked.
    pub(super) fn has_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// Takes the leases that are marked, to be removed.
    pub(super) fn take_ended(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.ended)
    }

    /// Whether `cuts` shows that events were taken from a lease without our knowledge. A lease that is gone
    /// while we have events of it was removed as a whole.
    pub(super) fn is_cut(&self, token: Uuid, cuts: Option<i32>) -> bool {
        let held = self.held.get(&token);
        held.is_some_and(|held| cuts != Some(held.cuts))
    }

    /// Sets how often events had been taken from a lease when its events in the buffer were read.
    pub(super) fn note_cuts(&mut self, token: Uuid, cuts: i32) {
        if let Some(held) = self.held.get_mut(&token) {
            held.cuts = cuts;
        }
    }

    /// The renewal counts from when it was `sent`, because the database cannot have done it before.
    pub(super) fn note_renewal(&mut self, token: Uuid, sent: Reading) {
        if let Some(held) = self.held.get_mut(&token) {
            held.renewed = sent;
        }
    }

    /// Returns the oldest time of the last renewal, over all leases.
    pub(super) fn oldest_renewal(&self) -> Option<Instant> {
        self.held.values().map(|held| held.renewed.steady).min()
    }

    pub(super) fn tokens(&self) -> Vec<Uuid> {
        self.held.keys().copied().collect()
    }

    /// Returns the tokens after which more events of a group may be leased: all but those of suspects and of
    /// leases that will lapse.
    pub(super) fn trusted(&self) -> Vec<Uuid> {
        let held = self.held.iter();
        let trusted = held.filter(|(_, held)| !held.suspect && !held.lapses);
        trusted.map(|(token, _)| *token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b13_a_deadline_counts_from_the_lease_and_is_that_of_what_is_to_run() {
        let mut leases = Leases::default();
        let window = Window {
            started_to: 9,
            suspect: false,
        };
        let requested = Reading::now();
        let mut event = LeasedEvent::sample(1, None);
        let token = event.lease.token;
        leases.insert(token, [1].into_iter(), BTreeSet::new(), window, requested);
        let since = |deadline: Option<Reading>| deadline.map(|at| at.steady - requested.steady);
        assert_eq!(since(leases.deadline(&event)), None);
        let left = Duration::from_secs(3);
        event.expires_in = Some(left);
        leases.note_renewal(token, requested + Duration::from_mins(1));
        assert_eq!(since(leases.deadline(&event)), Some(left));
        event.expires_in = Some(Duration::MAX);
        assert_eq!(since(leases.deadline(&event)), Some(FAR));
        event.fate = LeaseDecision::Expired;
        assert_eq!(since(leases.deadline(&event)), None);
    }
}
