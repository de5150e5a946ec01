//! Owns the leases that hold what is in hand: how far each may start, what is left of it, when it was prolonged, and which
//! are over. Pure.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;
use uuid::Uuid;

use super::clocks::Reading;
use super::lanes::PLACE;
use crate::lease::{Lease, LeasedEvent};

/// A lease, while something of it is in hand.
struct Held {
    /// Handlers of events up to here may start.
    started_to: i64,
    suspect: bool,
    /// One of its events cannot be given back, and stays until the lease has run out after this drain.
    lapses: bool,
    /// How often something was taken from it that we know of.
    cuts: i32,
    /// When it was last prolonged, on this machine's clocks.
    renewed: Reading,
    /// Events whose end is not written.
    left: usize,
    /// Of them, those that may have started.
    open: usize,
    /// Ids behind the window, in order.
    rest: VecDeque<i64>,
}

/// How much of a lease may start when it arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Up to this id.
    pub started_to: i64,
    /// Its one event has outlived a worker before.
    pub suspect: bool,
}

/// All leases of which something is in hand, and those that are over.
#[derive(Default)]
pub(super) struct Leases {
    held: HashMap<Uuid, Held>,
    /// Events whose end is not written and which may have started, in all leases.
    open: usize,
    suspects: usize,
    /// Leases of which nothing is left, to be marked as ended.
    over: Vec<Uuid>,
    /// Leases that are marked, to be removed.
    ended: Vec<Uuid>,
}

impl Held {
    /// One of its events waits no more to be started, or has not ended any more.
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
    /// Takes in a lease of these events.
    pub(super) fn insert(
        &mut self,
        token: Uuid,
        ids: impl Iterator<Item = i64>,
        window: Window,
        renewed: Reading,
    ) {
        let (open, rest): (Vec<i64>, Vec<i64>) = ids.partition(|id| *id <= window.started_to);
        let mut rest = rest;
        rest.sort_unstable();
        self.open += open.len();
        self.suspects += usize::from(window.suspect);
        let held = Held {
            started_to: window.started_to,
            suspect: window.suspect,
            lapses: false,
            cuts: 0,
            renewed,
            left: open.len() + rest.len(),
            open: open.len(),
            rest: VecDeque::from(rest),
        };
        self.held.insert(token, held);
    }

    /// Whether the event is within its lease's window.
    pub(super) fn is_open(&self, event: &LeasedEvent) -> bool {
        let held = self.held.get(&event.lease.token);
        held.is_some_and(|held| event.lease.id <= held.started_to)
    }

    /// How many events are between their start and their end.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn is_suspect(&self, token: Uuid) -> bool {
        self.held.get(&token).is_some_and(|held| held.suspect)
    }

    pub(super) fn has_suspect(&self) -> bool {
        self.suspects > 0
    }

    /// A suspect is between its start and its end.
    pub(super) fn runs_suspect(&self) -> bool {
        let mut leases = self.held.values();
        self.suspects > 0 && leases.any(|held| held.suspect && held.open > 0)
    }

    /// The last event of a window of this size that begins with this event, which is behind the present one. Events that share
    /// a call count as one; `sharing` tells how many may.
    pub(super) fn window_end(
        &self,
        event: Lease,
        window: usize,
        sharing: impl Fn(i64) -> usize,
    ) -> Option<i64> {
        let rest = &self.held.get(&event.token)?.rest;
        let at = rest.partition_point(|id| *id < event.id);
        let mut room = window.max(1) * PLACE;
        let fits = |id: &&i64| {
            let part = PLACE / sharing(**id);
            let fits = part <= room;
            room = room.saturating_sub(part);
            fits
        };
        rest.range(at..).take_while(fits).last().copied()
    }

    /// The database knows that a lease may start up to here.
    pub(super) fn started(&mut self, token: Uuid, upto: i64) {
        let Some(held) = self.held.get_mut(&token) else {
            return;
        };
        held.started_to = held.started_to.max(upto);
        while held.rest.front().is_some_and(|id| *id <= upto) {
            held.rest.pop_front();
            held.open += 1;
            self.open += 1;
        }
    }

    /// An event's end is written, or it has left our hands.
    pub(super) fn let_go(&mut self, lease: Lease) {
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

    /// An event stays in its lease until that lapses, and is not waited for.
    pub(super) fn leave_to_lapse(&mut self, lease: Lease) {
        if let Some(held) = self.held.get_mut(&lease.token) {
            self.open -= held.close(lease.id);
            self.suspects -= usize::from(std::mem::take(&mut held.suspect));
            held.lapses = true;
        }
    }

    /// How many of a lease's events are in hand, or ended and not written.
    pub(super) fn left(&self, token: Uuid) -> usize {
        self.held.get(&token).map_or(0, |held| held.left)
    }

    /// Leases of which nothing is left, to be marked as ended in the database.
    pub(super) fn take_over(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.over)
    }

    /// Such a lease has been marked with its last event, or could not be.
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

    /// Leases that are marked, to be removed.
    pub(super) fn take_ended(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.ended)
    }

    /// Whether `cuts` says that something was taken from a lease that we did not know of. A lease that is gone, and
    /// of which we have something, was taken away whole.
    pub(super) fn is_cut(&self, token: Uuid, cuts: Option<i32>) -> bool {
        let held = self.held.get(&token);
        held.is_some_and(|held| cuts != Some(held.cuts))
    }

    /// What is in hand of a lease is known as it was when so much had been taken from it.
    pub(super) fn note_cuts(&mut self, token: Uuid, cuts: i32) {
        if let Some(held) = self.held.get_mut(&token) {
            held.cuts = cuts;
        }
    }

    /// A lease was prolonged by what was sent then.
    pub(super) fn note_renewal(&mut self, token: Uuid, sent: Reading) {
        if let Some(held) = self.held.get_mut(&token) {
            held.renewed = sent;
        }
    }

    /// When a lease was last prolonged.
    pub(super) fn renewed(&self, token: Uuid) -> Option<Reading> {
        self.held.get(&token).map(|held| held.renewed)
    }

    /// When the oldest lease was last prolonged.
    pub(super) fn oldest_renewal(&self) -> Option<Instant> {
        self.held.values().map(|held| held.renewed.steady).min()
    }

    /// The tokens of all leases.
    pub(super) fn tokens(&self) -> Vec<Uuid> {
        self.held.keys().copied().collect()
    }

    /// The tokens behind which more of a group may be leased: all but those of suspects, and of what will lapse.
    pub(super) fn trusted(&self) -> Vec<Uuid> {
        let held = self.held.iter();
        let trusted = held.filter(|(_, held)| !held.suspect && !held.lapses);
        trusted.map(|(token, _)| *token).collect()
    }
}
