//! Owns the events in the buffer, which are leased and not yet finalized: which leases hold them, and which
//! may start. The lowest id starts first, and one event of a group at a time. It is pure.
//!
//! Only the events in a window of a lease may start. The database knows the end of the window before anything
//! in it starts. If this worker disappears, the events in the window are charged an attempt, and no others
//! are. An event whose worker has disappeared before is a suspect. It starts only when no other event is
//! between its start and its end, so that it affects no other event.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tidegate_core::lease::{Lease, LeaseDecision, LeasedEvent};
use tokio::time::Instant;
use uuid::Uuid;

use super::clocks::Reading;
use super::flush::{Change, FlushReport, WriteResult};
use super::leases::{Leases, Window, WindowRaise};

/// A group with an event that is ready or running, and the events that wait after it.
#[derive(Default)]
struct Group {
    line: VecDeque<LeasedEvent>,
    /// Whether its first event is ready.
    ready: bool,
    /// Events that were handed over to a worker and are not done.
    out: Vec<Lease>,
    /// The first event of the group that goes back to the queue. Nothing more of the group starts until that
    /// is written.
    closed: Option<i64>,
}

/// Payloads longer than this are counted until the ends of their events are written: handlers may keep them,
/// and the server does.
const LARGE: usize = 4096;

fn is_small(event: &LeasedEvent) -> bool {
    let payload = event.payload.as_ref();
    payload.is_none_or(|payload| payload.len() <= LARGE)
}

/// All events in the buffer.
#[derive(Default)]
pub(super) struct Buffer {
    leases: Leases,
    /// The events that are first in line: those without a group, and the first of each group that is not
    /// running.
    ready: BTreeMap<i64, LeasedEvent>,
    groups: HashMap<String, Group>,
    /// How many events wait in the lines of groups.
    behind: usize,
    /// Bytes of payload: of small events while they wait, of large ones until their ends are written.
    bytes: usize,
    /// The sizes of the large payloads.
    large: HashMap<i64, usize>,
    /// Kinds whose handlers may not start at present.
    barred: BTreeSet<String>,
    /// Since when a suspect is the next to start.
    suspect_since: Option<Instant>,
    /// Since when the windows are too wide.
    wide_since: Option<Instant>,
    /// Events were taken from this drain. No handler starts until the held events have been read again.
    is_uncertain: bool,
}

/// Waiting events that a flush has moved.
pub(super) struct AfterFlush {
    /// They went back to the queue.
    pub returned: Vec<LeasedEvent>,
    /// They must be released, because an earlier event of their group stays in its lease until it lapses.
    pub behind: Vec<LeasedEvent>,
    /// They are no longer ours.
    pub lost: Vec<LeasedEvent>,
}

/// How long other events wait for a suspect: before it starts, for those that run to end, and after its
/// start, for it to end. Longer waits would let one event stop all others.
pub(super) const SUSPECT_WAIT: Duration = Duration::from_secs(2);

/// How long windows are too wide before they close. A busy machine stops all handlers for shorter times, and
/// their pace is then as before.
const WIDE_FOR: Duration = Duration::from_millis(250);

/// Which events may start next.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartRule {
    /// Whether nothing starts while an earlier event waits for its window. A suspect is the exception: it
    /// waits until all windows are empty.
    pub in_order: bool,
    /// Whether events with a large payload may start too.
    pub large: bool,
}

/// How much of a lease to start next.
pub(super) struct WindowDemand {
    /// Start more when fewer events than this can start.
    pub few: usize,
    /// The size of a window in events.
    pub window: usize,
    /// How many handlers could start at once. As many events on their last attempt may start.
    pub permits: usize,
    pub now: Instant,
    /// Whether a lease is under way that brings events which may start at once.
    pub brings_window: bool,
    /// Since when the oldest of the running suspects has been running.
    pub suspect_runs: Option<Instant>,
}

impl Buffer {
    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Whether events were taken from this drain, so that the held events must be read again.
    pub(super) fn is_uncertain(&self) -> bool {
        self.is_uncertain
    }

    /// Sets the kinds whose handlers may not start at present.
    pub(super) fn bar(&mut self, kinds: BTreeSet<String>) {
        self.barred = kinds;
    }

    pub(super) fn has_barred(&self) -> bool {
        !self.barred.is_empty()
    }

    /// Processes a renewal. Leases that are missing from it are gone; others may have been cut.
    pub(super) fn on_renewed(
        &mut self,
        requested: &[Uuid],
        renewed: &[(Uuid, i32)],
        sent: Reading,
    ) {
        for (token, cuts) in renewed {
            self.is_uncertain |= self.leases.is_cut(*token, Some(*cuts));
            self.leases.note_renewal(*token, sent);
        }
        let found: HashSet<Uuid> = renewed.iter().map(|(token, _)| *token).collect();
        for token in requested.iter().filter(|token| !found.contains(token)) {
            self.is_uncertain |= self.leases.left(*token) > 0;
        }
    }

    /// Takes the leases that have no events left when the ends of these tokens are written.
    pub(super) fn take_over(&mut self, ends: impl Iterator<Item = Uuid>) -> HashSet<Uuid> {
        let mut counts: HashMap<Uuid, usize> = HashMap::new();
        for token in ends {
            *counts.entry(token).or_default() += 1;
        }
        counts.retain(|token, count| self.leases.left(*token) == *count);
        let over = self.leases.take_over().into_iter();
        over.chain(counts.into_keys()).collect()
    }

    /// Takes the leases that are marked as ended, to be removed.
    pub(super) fn take_ended(&mut self) -> Vec<Uuid> {
        self.leases.take_ended()
    }

    /// Learns what a flush has changed: which events have left, what may start, which leases are cut or over.
    pub(super) fn on_flushed(&mut self, flushed: &FlushReport) -> AfterFlush {
        let gone = flushed.state.left.as_ref();
        let returned = match gone.filter(|gone| !gone.is_empty()) {
            Some(gone) => self.remove(|lease| gone.contains(&lease.id)),
            None => Vec::new(),
        };
        for event in &returned {
            self.note_gone(event.lease);
        }
        for start in flushed.starts() {
            self.leases.started(start.token, start.upto);
        }
        for (token, mark) in flushed.lowered() {
            self.leases.note_lowered(token, mark);
        }
        let behind = flushed.changes.iter().flat_map(|one| self.apply(one));
        let behind = behind.collect();
        AfterFlush {
            returned,
            behind,
            lost: self.end_flush(flushed),
        }
    }

    /// Learns what became of an event. Returns the events that must be released because of that.
    fn apply(&mut self, change: &Change) -> Vec<LeasedEvent> {
        let (lease, group) = (change.lease, change.group.as_deref());
        match &change.result {
            WriteResult::Refused(_) => {
                if let Some(group) = group {
                    self.close_group(group, lease.id);
                }
            }
            WriteResult::Abandoned => return self.abandon(lease, group),
            result => {
                self.note_gone(lease);
                self.is_uncertain |= matches!(result, WriteResult::Lost { .. });
                let returned = matches!(
                    result,
                    WriteResult::Returned(..) | WriteResult::Lost { returned: true }
                );
                if let Some(group) = group {
                    if change.opens {
                        self.open_group(group, lease);
                    }
                    // After an event went back with the events that follow it, those of the group that still
                    // wait here were taken from us before or since.
                    self.is_uncertain |= returned && self.has_waiting(group);
                    if change.reopens || returned {
                        self.reopen_group(group, lease);
                    }
                }
            }
        }
        Vec::new()
    }

    /// Ends the processing of a flush: notices cut or lost leases. Returns the events that are no longer
    /// ours.
    fn end_flush(&mut self, flushed: &FlushReport) -> Vec<LeasedEvent> {
        for token in &flushed.flush.over {
            self.leases.note_over(*token, flushed.is_whole());
        }
        for (token, cuts) in &flushed.state.cuts {
            self.is_uncertain |= self.leases.is_cut(*token, *cuts);
        }
        let Some(held) = &flushed.state.reread else {
            return Vec::new();
        };
        self.is_uncertain = false;
        self.keep_only(held)
    }

    /// Adds a lease. The events of one group come in order, as a lease returns them. Returns the events that
    /// were taken from an older lease, are now leased again, and have not ended for the older lease.
    pub(super) fn insert(
        &mut self,
        token: Uuid,
        events: Vec<LeasedEvent>,
        unreadable: &[i64],
        window: Window,
        renewed: Reading,
    ) -> Vec<LeasedEvent> {
        let ids = events.iter().map(|event| event.lease.id);
        let ids = ids.chain(unreadable.iter().copied());
        let last = events.iter().filter(|event| event.is_last());
        let last = last.map(|event| event.lease.id).collect();
        self.leases.insert(token, ids, last, window, renewed);
        events
            .into_iter()
            .filter_map(|event| self.push(event))
            .collect()
    }

    fn push(&mut self, event: LeasedEvent) -> Option<LeasedEvent> {
        let bytes = event.payload.as_ref().map_or(0, Vec::len);
        self.bytes += bytes;
        if bytes > LARGE {
            let before = self.large.insert(event.lease.id, bytes);
            self.bytes -= before.unwrap_or(0);
        }
        if let Some(key) = &event.group_key {
            if let Some(group) = self.groups.get_mut(key) {
                group.line.push_back(event);
                self.behind += 1;
                return None;
            }
            let group = Group {
                ready: true,
                ..Group::default()
            };
            self.groups.insert(key.clone(), group);
        }
        let stale = self.ready.insert(event.lease.id, event)?;
        self.waits_no_more(&stale);
        Some(stale)
    }

    /// Whether the event may be taken next: its handlers may start, or it needs none.
    fn is_startable(&self, event: &LeasedEvent) -> bool {
        event.fate != LeaseDecision::Run || self.leases.is_open(event) && !self.is_barred(event)
    }

    fn is_barred(&self, event: &LeasedEvent) -> bool {
        !self.barred.is_empty()
            && event.fate == LeaseDecision::Run
            && self.barred.contains(&event.kind)
    }

    /// Returns the next event to start. Its group stays closed until [`Buffer::open_group`], except for
    /// [`Buffer::pop_behind`].
    pub(super) fn pop(&mut self, pick: StartRule) -> Option<LeasedEvent> {
        let mut ready = self.ready.values().filter(|event| !self.is_barred(event));
        let first = ready.find(|event| {
            self.is_startable(event) || pick.in_order && !self.leases.is_suspect(event.lease.token)
        });
        let may_start =
            |event: &&LeasedEvent| self.is_startable(event) && (pick.large || is_small(event));
        let id = first.filter(may_start)?.lease.id;
        let event = self.ready.remove(&id)?;
        self.hand_over(&event);
        Some(event)
    }

    fn hand_over(&mut self, event: &LeasedEvent) {
        self.waits_no_more(event);
        let key = event.group_key.as_ref();
        if let Some(group) = key.and_then(|key| self.groups.get_mut(key)) {
            group.ready = false;
            group.out.push(event.lease);
        }
    }

    /// Returns the event that follows the handed-over events of a group, if it may be handed over too. It
    /// starts only when those events have ended well.
    pub(super) fn behind(&self, key: &str) -> Option<&LeasedEvent> {
        let group = self
            .groups
            .get(key)
            .filter(|group| group.closed.is_none())?;
        let next = group.line.front()?;
        let may_start =
            is_small(next) && next.fate == LeaseDecision::Run && self.is_startable(next);
        (may_start && !self.leases.is_suspect(next.lease.token)).then_some(next)
    }

    /// Puts back an event that was handed over to follow another one of its group and has not started. It
    /// waits again.
    pub(super) fn reinsert(&mut self, event: LeasedEvent) {
        let key = event.group_key.as_ref();
        if let Some(group) = key.and_then(|key| self.groups.get_mut(key)) {
            group.out.retain(|lease| *lease != event.lease);
            self.bytes += event.payload.as_ref().map_or(0, Vec::len);
            self.behind += 1;
            let place = group
                .line
                .partition_point(|other| other.lease.id < event.lease.id);
            group.line.insert(place, event);
        }
    }

    /// Takes out the event that [`Buffer::behind`] returns.
    pub(super) fn pop_behind(&mut self, key: &str) -> Option<LeasedEvent> {
        self.behind(key)?;
        let event = self.groups.get_mut(key)?.line.pop_front()?;
        self.behind -= 1;
        self.hand_over(&event);
        Some(event)
    }

    fn waits_no_more(&mut self, event: &LeasedEvent) {
        let bytes = event.payload.as_ref().map_or(0, Vec::len);
        if bytes <= LARGE {
            self.bytes -= bytes;
        }
    }

    fn forget_large(&mut self, id: i64) {
        if !self.large.is_empty() {
            self.bytes -= self.large.remove(&id).unwrap_or(0);
        }
    }

    /// Whether an event can start now.
    pub(super) fn has_startable(&self) -> bool {
        self.ready.values().any(|event| self.is_startable(event))
    }

    /// Returns the next window to open, if one is needed: when too few events can start before the first one
    /// that cannot. The window of that event opens first, because a younger lease may have come with a larger
    /// window.
    ///
    /// While a suspect is ready, no new windows open, so that the open ones become empty. The suspect starts
    /// when nothing else is between its start and its end, and no lease under way will change that. A suspect
    /// in the line of its group stops nothing, because an earlier event of the group may not have a window
    /// yet.
    ///
    /// All this lasts for [`SUSPECT_WAIT`]. Then the suspect starts beside those that still run, and after
    /// the same time again others start beside it, but no other suspect, and no event on its last attempt.
    pub(super) fn start_more(&mut self, wanted: &WindowDemand) -> Option<WindowRaise> {
        if let Some(since) = wanted.suspect_runs.filter(|_| self.leases.runs_suspect()) {
            let is_long = wanted.now >= since + SUSPECT_WAIT;
            return is_long.then(|| self.next_window(wanted, true)).flatten();
        }
        let Some(suspect) = self.ready_suspect() else {
            self.suspect_since = None;
            // A suspect with a window that is about to start.
            let starts = self.leases.runs_suspect();
            return (!starts).then(|| self.next_window(wanted, false)).flatten();
        };
        let since = *self.suspect_since.get_or_insert(wanted.now);
        if self.leases.open() == 0 && !wanted.brings_window || wanted.now >= since + SUSPECT_WAIT {
            self.suspect_since = None;
            return Some(WindowRaise::of(suspect));
        }
        self.ahead_of_open().map(WindowRaise::of)
    }

    fn next_window(&self, wanted: &WindowDemand, beside_suspect: bool) -> Option<WindowRaise> {
        let waits = |event: &LeasedEvent| {
            self.is_barred(event)
                || beside_suspect && (self.leases.is_suspect(event.lease.token) || event.is_last())
        };
        let may_start = self.ready.values().filter(|event| !waits(event));
        let mut next = may_start.take(wanted.few);
        let shut = next.find(|event| !self.is_startable(event))?.lease;
        let upto = if self.leases.is_last(shut) {
            // Only what starts at once: if this worker dies, it is charged, and so ends.
            let starts_at_once = |id| self.ready.get(&id).is_some_and(|event| !waits(event));
            let places = if self.has_startable() {
                0
            } else {
                wanted.permits
            };
            self.leases.last_window_end(shut, places, starts_at_once)?
        } else {
            self.leases.window_end(shut, wanted.window)?
        };
        Some(WindowRaise {
            token: shut.token,
            upto,
        })
    }

    /// Notes whether the windows are too wide for the pace of the handlers. Returns whether that has lasted
    /// for so long that they must close.
    pub(super) fn stays_wide(&mut self, wide: bool, now: Instant) -> bool {
        if !wide {
            self.wide_since = None;
        }
        wide && now >= *self.wide_since.get_or_insert(now) + WIDE_FOR
    }

    /// Closes the windows of events that have not started, because they would wait in them for too long.
    /// Returns the marks that the database must lower. `started` are the events that were started.
    pub(super) fn close_windows(
        &mut self,
        started: impl Iterator<Item = Lease>,
    ) -> Vec<(Uuid, i64, i64)> {
        let mut begun: HashMap<Uuid, i64> = HashMap::new();
        for lease in started {
            let last = begun.entry(lease.token).or_insert(lease.id);
            *last = lease.id.max(*last);
        }
        let mut waiting: HashMap<Uuid, Vec<i64>> = HashMap::new();
        for event in self.all_waiting() {
            let ids = waiting.entry(event.lease.token).or_default();
            ids.push(event.lease.id);
        }
        self.leases.close_windows(&begun, &waiting)
    }

    /// Returns an event without a window that a later event of its group with a window waits for. Without a
    /// window for it, the open windows would never become empty.
    fn ahead_of_open(&self) -> Option<Lease> {
        if self.has_startable() {
            return None;
        }
        let mut shut = self
            .ready
            .values()
            .filter(|event| !self.leases.is_suspect(event.lease.token) && !self.is_barred(event));
        let ahead = shut.find(|event| {
            let group = event
                .group_key
                .as_ref()
                .and_then(|key| self.groups.get(key));
            group.is_some_and(|group| group.line.iter().any(|event| self.is_startable(event)))
        });
        ahead.map(|event| event.lease)
    }

    /// Returns the first suspect that no earlier event of its group precedes.
    fn ready_suspect(&self) -> Option<Lease> {
        if !self.leases.has_suspect() {
            return None;
        }
        let runs =
            |event: &&LeasedEvent| event.fate == LeaseDecision::Run && !self.is_startable(event);
        let mut leases = self.ready.values().filter(|event| !self.is_barred(event));
        let mut leases = leases.by_ref().filter(runs);
        leases
            .find(|event| self.leases.is_suspect(event.lease.token))
            .map(|event| event.lease)
    }

    /// Notes that the group's event ended. The next one may start if no other event of the group is handed
    /// over.
    pub(super) fn open_group(&mut self, key: &str, ended: Lease) {
        let Some(group) = self.groups.get_mut(key) else {
            return;
        };
        let out = group.out.len();
        group.out.retain(|lease| *lease != ended);
        // An event that was not handed over does not count: the group may have been removed and created
        // again.
        if group.out.len() < out {
            self.open_next(key);
        }
    }

    fn open_next(&mut self, key: &str) {
        let Some(group) = self.groups.get_mut(key) else {
            return;
        };
        if group.closed.is_some() || group.ready || !group.out.is_empty() {
            return;
        }
        match group.line.pop_front() {
            Some(next) => {
                group.ready = true;
                self.behind -= 1;
                self.ready.insert(next.lease.id, next);
            }
            None => drop(self.groups.remove(key)),
        }
    }

    /// Notes that this event of the group goes back to the queue. Nothing of the group starts until that is
    /// written. A first event that is ready goes back into the line.
    pub(super) fn close_group(&mut self, key: &str, back: i64) {
        let group = self.groups.entry(key.to_owned()).or_default();
        group.closed = Some(group.closed.map_or(back, |first| first.min(back)));
        let of_group = |event: &&LeasedEvent| event.group_key.as_deref() == Some(key);
        let head = self
            .ready
            .values()
            .find(of_group)
            .map(|event| event.lease.id);
        if let Some(head) = head.and_then(|id| self.ready.remove(&id)) {
            group.ready = false;
            group.line.push_front(head);
            self.behind += 1;
        }
    }

    /// Whether an event of the group waits.
    pub(super) fn has_waiting(&self, key: &str) -> bool {
        let group = self.groups.get(key);
        group.is_some_and(|group| group.ready || !group.line.is_empty())
    }

    /// Notes that the return to the queue is written. The rest of the group may start, unless an earlier
    /// event of it has yet to go back.
    pub(super) fn reopen_group(&mut self, key: &str, back: Lease) {
        let Some(group) = self.groups.get_mut(key) else {
            return;
        };
        group.out.retain(|lease| *lease != back);
        if group.closed.is_some_and(|first| first < back.id) {
            return;
        }
        group.closed = None;
        self.open_next(key);
    }

    /// Removes waiting events that are no longer ours.
    pub(super) fn remove(&mut self, gone: impl Fn(Lease) -> bool) -> Vec<LeasedEvent> {
        let ready = self.ready.extract_if(.., |_, event| gone(event.lease));
        let mut removed: Vec<LeasedEvent> = ready.map(|(_, event)| event).collect();
        let heads: Vec<String> = removed
            .iter()
            .filter_map(|event| event.group_key.clone())
            .collect();
        for group in self.groups.values_mut() {
            if group.line.iter().any(|event| gone(event.lease)) {
                let line = std::mem::take(&mut group.line);
                let (out, stay): (VecDeque<_>, VecDeque<_>) =
                    line.into_iter().partition(|event| gone(event.lease));
                self.behind -= out.len();
                removed.extend(out);
                group.line = stay;
            }
        }
        for head in heads {
            if let Some(group) = self.groups.get_mut(&head) {
                group.ready = false;
            }
            self.open_next(&head);
        }
        for event in &removed {
            self.waits_no_more(event);
        }
        removed
    }

    /// Returns how many events of these kinds wait.
    pub(super) fn waiting_of(&self, kinds: &BTreeSet<String>) -> usize {
        self.all_waiting()
            .filter(|event| kinds.contains(&event.kind))
            .count()
    }

    /// Removes the waiting events of these kinds.
    pub(super) fn take_kinds(&mut self, kinds: &BTreeSet<String>) -> Vec<LeasedEvent> {
        let of_kinds = self
            .all_waiting()
            .filter(|event| kinds.contains(&event.kind));
        let leases: HashSet<Lease> = of_kinds.map(|event| event.lease).collect();
        self.remove(|lease| leases.contains(&lease))
    }

    fn all_waiting(&self) -> impl Iterator<Item = &LeasedEvent> {
        let behind = self.groups.values().flat_map(|group| &group.line);
        self.ready.values().chain(behind)
    }

    /// Removes the waiting events that `now` does not list, because they belong to another worker. Also takes
    /// over how often events were taken from each lease.
    pub(super) fn keep_only(&mut self, now: &[tidegate_core::queue::InHand]) -> Vec<LeasedEvent> {
        let held: HashSet<(Uuid, i64)> = now.iter().map(|held| (held.token, held.id)).collect();
        for found in now {
            self.leases.note_cuts(found.token, found.cuts);
        }
        // Compares by lease, not by id: an event that an operator took may have been leased again, and
        // then waits here twice.
        self.remove(|lease| !held.contains(&(lease.token, lease.id)))
    }

    /// Removes all waiting events, at the end of the run.
    pub(super) fn take_all(&mut self) -> Vec<LeasedEvent> {
        self.behind = 0;
        let behind = self.groups.values_mut().flat_map(|group| {
            group.ready = false;
            std::mem::take(&mut group.line)
        });
        let all: Vec<LeasedEvent> = std::mem::take(&mut self.ready)
            .into_values()
            .chain(behind)
            .collect();
        for event in &all {
            self.waits_no_more(event);
        }
        all
    }

    /// Notes that an event's end is written, or that the event is no longer ours.
    pub(super) fn note_gone(&mut self, lease: Lease) {
        self.forget_large(lease.id);
        self.leases.note_gone(lease);
    }

    /// Notes that an event has ended and that nothing can be written for it. It stays in its lease, which is
    /// held and renewed like the others, until the lease lapses. Nothing here waits for it. Returns the later
    /// events of its group, which must go back.
    fn abandon(&mut self, lease: Lease, key: Option<&str>) -> Vec<LeasedEvent> {
        self.leases.abandon(lease);
        self.forget_large(lease.id);
        let Some((key, group)) = key.and_then(|key| Some((key, self.groups.get_mut(key)?))) else {
            return Vec::new();
        };
        group.out.retain(|other| *other != lease);
        let behind = Vec::from(std::mem::take(&mut group.line));
        // Those go back in its place.
        let next = behind.first().map(|event| event.lease.id);
        group.closed = group.closed.filter(|first| *first < lease.id).or(next);
        self.behind -= behind.len();
        for event in &behind {
            self.waits_no_more(event);
        }
        if behind.is_empty() {
            self.reopen_group(key, lease);
        }
        behind
    }

    /// Returns how many events wait.
    pub(super) fn waiting(&self) -> usize {
        self.ready.len() + self.behind
    }

    /// Returns the bytes of payload in the buffer, without those of small events that have started.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::queue::InHand;

    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);

    const ANY: StartRule = StartRule {
        in_order: false,
        large: true,
    };
    const IN_ORDER: StartRule = StartRule {
        in_order: true,
        large: true,
    };

    fn window(started_to: i64, suspect: bool) -> Window {
        Window {
            started_to,
            suspect,
        }
    }

    fn event(id: i64, group: Option<&str>, token: Uuid) -> LeasedEvent {
        let mut event = LeasedEvent::sample(id, group);
        event.lease.token = token;
        event
    }

    fn buffer(events: &[(i64, Option<&str>)], started_to: i64) -> Buffer {
        let mut buffer = Buffer::default();
        let events = events.iter().map(|(id, group)| event(*id, *group, ONE));
        buffer.insert(
            ONE,
            events.collect(),
            &[],
            window(started_to, false),
            Reading::now(),
        );
        buffer
    }

    fn wanted(few: usize, window: usize) -> WindowDemand {
        WindowDemand {
            few,
            window,
            permits: few,
            now: Instant::now(),
            brings_window: false,
            suspect_runs: None,
        }
    }

    fn ids(events: &[LeasedEvent]) -> Vec<i64> {
        let mut ids: Vec<i64> = events.iter().map(|event| event.lease.id).collect();
        ids.sort_unstable();
        ids
    }

    fn of(id: i64) -> Lease {
        Lease { id, token: ONE }
    }

    fn popped(buffer: &mut Buffer) -> Vec<i64> {
        std::iter::from_fn(|| buffer.pop(ANY).map(|event| event.lease.id)).collect()
    }

    fn end(buffer: &mut Buffer, id: i64, token: Uuid) {
        buffer.note_gone(Lease { id, token });
    }

    #[test]
    fn a2_the_lowest_id_goes_first_and_one_of_a_group_at_a_time() {
        let mut buffer = buffer(
            &[
                (1, Some("a")),
                (2, Some("a")),
                (3, None),
                (4, Some("b")),
                (5, Some("a")),
            ],
            9,
        );
        assert_eq!(popped(&mut buffer), [1, 3, 4]);
        buffer.open_group("a", of(1));
        assert_eq!(popped(&mut buffer), [2]);
        buffer.open_group("b", of(4));
        assert_eq!(buffer.waiting(), 1);
    }

    #[test]
    fn only_what_the_database_knows_may_start_is_started() {
        let mut buffer = buffer(&[(1, None), (2, None), (3, None), (4, None)], 1);
        assert_eq!(popped(&mut buffer), [1]);
        assert!(!buffer.has_startable());
        let start = buffer.start_more(&wanted(1, 2)).unwrap();
        assert_eq!((start.token, start.upto), (ONE, 3));
        buffer.leases.started(start.token, start.upto);
        assert_eq!(popped(&mut buffer), [2, 3]);
    }

    #[test]
    fn a_window_goes_on_where_the_first_that_may_not_start_is() {
        let mut buffer = buffer(&[(1, Some("a")), (2, None)], 0);
        buffer.insert(
            TWO,
            vec![event(3, Some("a"), TWO)],
            &[],
            window(3, false),
            Reading::now(),
        );
        // The event of the second lease may start, but waits for one of the first lease that may not.
        assert!(!buffer.has_startable());
        assert_eq!(
            buffer.start_more(&wanted(1, 1)),
            Some(WindowRaise {
                token: ONE,
                upto: 1
            })
        );
    }

    #[test]
    fn a_suspect_is_started_when_nothing_else_is_between_start_and_end() {
        let mut buffer = buffer(&[(1, None), (2, None)], 1);
        buffer.insert(
            TWO,
            vec![event(3, None, TWO)],
            &[],
            window(0, true),
            Reading::now(),
        );
        assert_eq!(buffer.leases.trusted(), [ONE]);
        assert_eq!(popped(&mut buffer), [1]);
        assert_eq!(
            buffer.start_more(&wanted(8, 8)),
            None,
            "event 1 has not ended"
        );
        end(&mut buffer, 1, ONE);
        let under_way = WindowDemand {
            brings_window: true,
            ..wanted(8, 8)
        };
        assert_eq!(
            buffer.start_more(&under_way),
            None,
            "a lease under way brings more"
        );
        let start = buffer.start_more(&wanted(8, 8)).unwrap();
        assert_eq!((start.token, start.upto), (TWO, 3));
        buffer.leases.started(start.token, start.upto);
        assert_eq!(popped(&mut buffer), [3]);
        assert_eq!(
            buffer.start_more(&wanted(8, 8)),
            None,
            "and the others wait for it"
        );
        end(&mut buffer, 3, TWO);
        assert_eq!(
            buffer.start_more(&wanted(8, 8)),
            Some(WindowRaise {
                token: ONE,
                upto: 2
            })
        );
    }

    #[test]
    fn i10_nobody_waits_for_a_suspect_for_long_and_none_runs_beside_another() {
        let mut buffer = buffer(&[(1, None), (4, None), (6, None)], 1);
        for (id, token) in [(3, TWO), (5, Uuid::from_u128(3))] {
            let suspect = vec![event(id, None, token)];
            buffer.insert(token, suspect, &[], window(0, true), Reading::now());
        }
        let mut last = event(2, None, Uuid::from_u128(4));
        last.attempts = last.max_attempts;
        let token = last.lease.token;
        buffer.insert(token, vec![last], &[], window(0, false), Reading::now());
        assert_eq!(popped(&mut buffer), [1]);
        let began = Instant::now();
        let at = |now: Instant, suspect_runs: Option<Instant>| WindowDemand {
            now,
            suspect_runs,
            ..wanted(8, 8)
        };
        assert_eq!(buffer.start_more(&at(began, None)), None, "event 1 runs");
        // Event 1 does not end: the suspect starts beside it.
        let later = began + SUSPECT_WAIT;
        let start = buffer.start_more(&at(later, None)).unwrap();
        assert_eq!((start.token, start.upto), (TWO, 3));
        buffer.leases.started(start.token, start.upto);
        assert_eq!(popped(&mut buffer), [3]);
        // The suspect does not end either: others start beside it, but no suspect, and none on its last
        // attempt.
        assert_eq!(buffer.start_more(&at(later, Some(later))), None);
        let much_later = later + SUSPECT_WAIT;
        let start = buffer.start_more(&at(much_later, Some(later))).unwrap();
        assert_eq!((start.token, start.upto), (ONE, 6));
        buffer.leases.started(start.token, start.upto);
        assert_eq!(popped(&mut buffer), [4, 6]);
        assert_eq!(buffer.start_more(&at(much_later, Some(later))), None);
    }

    #[test]
    fn windows_close_when_they_stay_too_wide_and_not_for_a_busy_moment() {
        let (mut buffer, began) = (Buffer::default(), Instant::now());
        let mut stays_wide = |wide, after| buffer.stays_wide(wide, began + after);
        assert!(!stays_wide(true, Duration::ZERO));
        assert!(!stays_wide(false, WIDE_FOR / 2));
        assert!(!stays_wide(true, WIDE_FOR));
        assert!(stays_wide(true, WIDE_FOR * 2));
    }

    #[test]
    fn i10_an_event_on_its_last_attempt_gets_a_window_only_when_it_starts_at_once() {
        let mut events: Vec<LeasedEvent> = (1..=6).map(|id| event(id, None, ONE)).collect();
        for event in &mut events[2..5] {
            event.attempts = event.max_attempts;
        }
        let mut buffer = Buffer::default();
        buffer.insert(ONE, events, &[], window(0, false), Reading::now());
        let with_permits = |permits| WindowDemand {
            permits,
            ..wanted(8, 100)
        };
        let mut next = |permits| {
            let start = buffer.start_more(&with_permits(permits))?;
            buffer.leases.started(start.token, start.upto);
            Some(popped(&mut buffer))
        };
        assert_eq!(next(8), Some(vec![1, 2]), "the window ends before 3");
        assert_eq!(next(0), None, "there is no place for 3");
        assert_eq!(next(2), Some(vec![3, 4]));
        assert_eq!(next(2), Some(vec![5]));
        assert_eq!(next(0), Some(vec![6]));
    }

    #[test]
    fn i10_windows_close_again_over_what_has_not_started() {
        let mut buffer = buffer(&[(1, None), (2, None), (3, None), (4, None)], 4);
        assert_eq!(buffer.pop(ANY).unwrap().lease.id, 1);
        let begun = || [Lease { id: 1, token: ONE }].into_iter();
        assert_eq!(buffer.close_windows(begun()), [(ONE, 4, 1)]);
        assert!(!buffer.has_startable() && buffer.leases.open() == 1);
        // The database still has the higher mark until the next write.
        assert_eq!(buffer.close_windows(begun()), []);
        buffer.leases.note_lowered(ONE, 1);
        let start = buffer.start_more(&wanted(8, 2)).unwrap();
        assert_eq!(start.upto, 3);
        buffer.leases.started(start.token, start.upto);
        assert_eq!(popped(&mut buffer), [2, 3]);
    }

    #[test]
    fn a_suspect_in_line_behind_one_without_a_window_holds_nobody_up() {
        let mut buffer = buffer(&[(1, Some("a")), (2, None)], 0);
        let suspect = vec![event(3, Some("a"), TWO)];
        buffer.insert(TWO, suspect, &[], window(0, true), Reading::now());
        let start = buffer.start_more(&wanted(8, 1)).unwrap();
        assert_eq!((start.token, start.upto), (ONE, 1));
    }

    /// Creates leases of about thirty events, some with suspects and some with groups. Returns the number of
    /// events and the suspects.
    fn random_hand(random: &mut fastrand::Rng) -> (Buffer, i64, HashSet<i64>) {
        let mut buffer = Buffer::default();
        let mut last = 0;
        let mut suspects = HashSet::new();
        // No event of a suspect's group is leased after it.
        let mut groups = vec![None, Some("a"), Some("b"), Some("c")];
        while last < 30 {
            let token = Uuid::from_u128(random.u128(1..));
            let suspect = random.u8(0..4) == 0;
            let first = last + 1;
            last += if suspect { 1 } else { random.i64(1..8) };
            let mut events = Vec::new();
            for id in first..=last {
                let group = random.choice(groups.iter().copied()).flatten();
                groups.retain(|other| !suspect || *other != group || group.is_none());
                events.push(event(id, group, token));
            }
            // A lease brings no window while a suspect is in the buffer.
            let wide = suspects.is_empty() && !suspect;
            let started_to = if wide { random.i64(0..=last) } else { 0 };
            if suspect {
                suspects.insert(last);
            }
            buffer.insert(
                token,
                events,
                &[],
                window(started_to, suspect),
                Reading::now(),
            );
        }
        (buffer, last, suspects)
    }

    /// Whatever leases come, each event starts once and in the order of its group, and no suspect runs beside
    /// another event.
    #[test]
    fn everything_in_hand_comes_to_its_end() {
        for seed in 0..2_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut buffer, count, suspects) = random_hand(&mut random);
            let mut running: Vec<LeasedEvent> = Vec::new();
            // These were handed over together with the previous event of their group.
            let mut behind: VecDeque<LeasedEvent> = VecDeque::new();
            let mut ended = Vec::new();
            while ended.len() < usize::try_from(count).unwrap() {
                while running.len() < 3
                    && let Some(event) = buffer.pop(ANY)
                {
                    let group = event.group_key.clone();
                    running.push(event);
                    if let Some(next) = group.and_then(|key| buffer.pop_behind(&key)) {
                        behind.push_back(next);
                    }
                }
                let beside = running
                    .iter()
                    .any(|event| suspects.contains(&event.lease.id));
                assert!(
                    !beside || buffer.leases.open() == 1,
                    "seed {seed}: a suspect runs beside another"
                );
                let (few, window) = (random.usize(1..4), random.usize(1..4));
                let start = buffer.start_more(&wanted(few, window));
                let goes_on = start.is_some() || !running.is_empty();
                assert!(goes_on, "seed {seed}: nothing goes on");
                if let Some(start) = start {
                    buffer.leases.started(start.token, start.upto);
                }
                if !running.is_empty() && random.bool() {
                    let event = running.swap_remove(random.usize(..running.len()));
                    if let Some(group) = &event.group_key {
                        let next = behind
                            .iter()
                            .position(|next| next.group_key.as_ref() == Some(group));
                        running.extend(next.and_then(|place| behind.remove(place)));
                        buffer.open_group(group, event.lease);
                    }
                    buffer.note_gone(event.lease);
                    ended.push((event.group_key, event.lease.id));
                }
            }
            for key in ["a", "b", "c"] {
                let of_group = ended
                    .iter()
                    .filter(|(group, _)| group.as_deref() == Some(key));
                assert!(of_group.is_sorted(), "seed {seed}: out of order");
            }
        }
    }

    #[test]
    fn expired_events_need_no_window() {
        let mut late = event(7, None, ONE);
        late.fate = LeaseDecision::Expired;
        let mut buffer = Buffer::default();
        buffer.insert(ONE, vec![late], &[], window(0, true), Reading::now());
        assert_eq!(popped(&mut buffer), [7]);
    }

    #[test]
    fn what_stands_behind_is_handed_over_with_the_head_and_the_next_waits_for_both() {
        let all: Vec<_> = (1..=4).map(|id| (id, Some("a"))).collect();
        let mut buffer = buffer(&all, 3);
        assert!(buffer.behind("a").is_some_and(|event| event.lease.id == 2));
        assert_eq!(popped(&mut buffer), [1]);
        for id in [2, 3] {
            assert_eq!(buffer.pop_behind("a").unwrap().lease.id, id);
        }
        assert!(buffer.behind("a").is_none(), "4 has no window yet");
        for id in [1, 2] {
            buffer.open_group("a", of(id));
            assert_eq!(buffer.ready.len(), 0);
        }
        let stale = Lease { id: 3, token: TWO };
        buffer.open_group("a", stale);
        assert_eq!(buffer.ready.len(), 0, "3 has not ended under this lease");
        buffer.open_group("a", of(3));
        assert_eq!(buffer.ready.len(), 1);
    }

    #[test]
    fn what_was_handed_over_and_not_reached_waits_again_in_its_place() {
        let all: Vec<_> = (1..=4).map(|id| (id, Some("a"))).collect();
        let mut buffer = buffer(&all, 4);
        assert_eq!(popped(&mut buffer), [1]);
        let behind: Vec<_> = (2..=3).filter_map(|_| buffer.pop_behind("a")).collect();
        for event in behind.into_iter().rev() {
            buffer.reinsert(event);
        }
        for id in 1..=4 {
            buffer.open_group("a", of(id));
            assert_eq!(
                popped(&mut buffer),
                (id + 1..=4).take(1).collect::<Vec<_>>()
            );
        }
        assert_eq!((buffer.waiting(), buffer.bytes()), (0, 0));
    }

    #[test]
    fn what_goes_back_opens_its_group_when_nothing_of_it_is_handed_over() {
        let all: Vec<_> = (1..=4).map(|id| (id, Some("a"))).collect();
        let mut buffer = buffer(&all, 4);
        assert_eq!(popped(&mut buffer), [1]);
        buffer.pop_behind("a");
        buffer.close_group("a", 1);
        buffer.open_group("a", of(2));
        buffer.reopen_group("a", of(1));
        buffer.reopen_group("a", of(1));
        assert_eq!((buffer.ready.len(), buffer.behind), (1, 1));
    }

    #[test]
    fn a_closed_group_starts_nothing_until_what_goes_back_is_written() {
        let mut buffer = buffer(&[(1, Some("a")), (2, Some("a")), (3, Some("a"))], 9);
        assert_eq!(popped(&mut buffer), [1]);
        buffer.close_group("a", 2);
        buffer.close_group("a", 1);
        buffer.close_group("a", 3);
        buffer.insert(
            TWO,
            vec![event(4, Some("a"), TWO)],
            &[],
            window(9, false),
            Reading::now(),
        );
        buffer.open_group("a", of(1));
        assert!(!buffer.has_startable());
        assert_eq!(ids(&buffer.remove(|_| true)), [2, 3, 4]);
        let later = vec![event(2, Some("a"), TWO)];
        buffer.insert(TWO, later, &[], window(9, false), Reading::now());
        buffer.reopen_group("a", of(2));
        assert!(!buffer.has_startable(), "1 has yet to go back");
        assert_eq!(ids(&buffer.remove(|_| true)), [2]);
        buffer.reopen_group("a", of(1));
        assert_eq!(buffer.waiting(), 0);
        buffer.insert(
            Uuid::nil(),
            vec![event(5, Some("a"), Uuid::nil())],
            &[],
            window(9, false),
            Reading::now(),
        );
        assert_eq!(popped(&mut buffer), [5]);
    }

    #[test]
    fn an_event_that_had_ended_and_goes_back_takes_the_ready_one_behind_it_along() {
        let mut buffer = buffer(&[(1, Some("a")), (2, Some("a"))], 9);
        assert_eq!(popped(&mut buffer), [1]);
        buffer.open_group("a", of(1));
        buffer.close_group("a", 1);
        assert!(!buffer.has_startable());
        assert_eq!(ids(&buffer.remove(|_| true)), [2]);
    }

    #[test]
    fn what_the_database_does_not_know_to_be_ours_is_not_ours() {
        let mut buffer = buffer(&[(1, None), (2, Some("a")), (3, Some("a"))], 9);
        assert!(
            !buffer.leases.is_cut(ONE, Some(0))
                && buffer.leases.is_cut(ONE, Some(1))
                && buffer.leases.is_cut(ONE, None)
        );
        let now = [InHand {
            token: ONE,
            cuts: 1,
            started_to: 9,
            id: 1,
        }];
        assert_eq!(ids(&buffer.keep_only(&now)), [2, 3]);
        assert!(!buffer.leases.is_cut(ONE, Some(1)));
        assert_eq!(popped(&mut buffer), [1]);
    }

    #[test]
    fn what_was_taken_away_and_leased_again_waits_under_its_new_lease() {
        let mut buffer = buffer(&[(1, None), (2, Some("a"))], 9);
        let again = vec![event(1, None, TWO), event(2, Some("a"), TWO)];
        let stale = buffer.insert(TWO, again, &[], window(9, false), Reading::now());
        assert_eq!(stale[0].lease, Lease { id: 1, token: ONE });
        let now = [1, 2].map(|id| InHand {
            token: TWO,
            cuts: 0,
            started_to: 9,
            id,
        });
        let gone = buffer.keep_only(&now);
        assert_eq!(
            (gone.len(), gone[0].lease),
            (1, Lease { id: 2, token: ONE })
        );
        for event in stale.into_iter().chain(gone) {
            buffer.note_gone(event.lease);
        }
        assert_eq!(buffer.leases.take_over(), [ONE]);
        assert_eq!(
            (popped(&mut buffer), buffer.leases.left(TWO)),
            (vec![1, 2], 2)
        );
    }

    #[test]
    fn a_lease_is_over_when_nothing_of_it_is_left() {
        let mut buffer = buffer(&[(1, None), (2, None)], 1);
        end(&mut buffer, 1, ONE);
        assert!(!buffer.leases.has_over() && buffer.leases.left(ONE) == 1);
        end(&mut buffer, 2, ONE);
        assert_eq!(buffer.leases.take_over(), [ONE]);
        assert!(buffer.leases.tokens().is_empty());
    }

    #[test]
    fn taking_all_empties_it() {
        let mut buffer = buffer(&[(1, Some("a")), (2, Some("a")), (3, None)], 9);
        buffer.pop(ANY);
        assert_eq!(ids(&buffer.take_all()), [2, 3]);
        assert_eq!(buffer.waiting(), 0);
    }

    #[test]
    fn a2_an_older_event_behind_its_window_is_not_left_behind_by_a_younger_lease_with_a_larger_one()
    {
        let mut buffer = buffer(&[(1, None), (2, None)], 0);
        let younger = [event(3, None, TWO), event(4, None, TWO)];
        buffer.insert(TWO, younger.to_vec(), &[], window(4, false), Reading::now());
        assert!(
            buffer.pop(IN_ORDER).is_none(),
            "one at a time: 1 goes first"
        );
        let start = WindowRaise {
            token: ONE,
            upto: 1,
        };
        assert_eq!(buffer.start_more(&wanted(2, 1)), Some(start));
        buffer.leases.started(start.token, start.upto);
        let started = |event: Option<LeasedEvent>| event.unwrap().lease.id;
        assert_eq!(started(buffer.pop(IN_ORDER)), 1);
        assert_eq!(
            started(buffer.pop(ANY)),
            3,
            "side by side: 3 does not wait for 2"
        );
        let start = WindowRaise {
            token: ONE,
            upto: 2,
        };
        assert_eq!(buffer.start_more(&wanted(1, 1)), Some(start));
    }

    #[test]
    fn a2_a_suspect_that_waits_for_the_others_does_not_hold_them_up() {
        let mut buffer = Buffer::default();
        let suspect = vec![event(1, None, ONE)];
        buffer.insert(ONE, suspect, &[], window(0, true), Reading::now());
        let other = vec![event(2, None, TWO)];
        buffer.insert(TWO, other, &[], window(2, false), Reading::now());
        assert_eq!(buffer.start_more(&wanted(1, 1)), None);
        assert_eq!(buffer.pop(IN_ORDER).unwrap().lease.id, 2);
    }

    #[test]
    fn what_lapses_stays_in_its_lease_and_nothing_waits_for_it_or_comes_behind_it() {
        let mut buffer = buffer(&[(1, Some("g")), (2, Some("g")), (3, None)], 3);
        assert_eq!(buffer.pop(ANY).unwrap().lease.id, 1);
        let stuck = Lease { id: 1, token: ONE };
        assert_eq!(ids(&buffer.abandon(stuck, Some("g"))), [2]);
        assert!(buffer.leases.trusted().is_empty());
        assert_eq!(popped(&mut buffer), [3]);
        assert_eq!(buffer.waiting(), 0);
        for id in [2, 3] {
            buffer.note_gone(Lease { id, token: ONE });
        }
        assert!(!buffer.leases.has_over(), "the lease is not over");
        assert_eq!(buffer.leases.tokens(), [ONE]);
        let mut suspect = event(4, None, TWO);
        suspect.attempts = 2;
        buffer.insert(TWO, vec![suspect], &[], window(0, true), Reading::now());
        assert!(
            buffer.start_more(&wanted(1, 1)).is_some(),
            "a suspect's turn comes"
        );
    }

    #[test]
    fn large_payloads_count_until_their_ends_are_written_and_small_ones_while_they_wait() {
        let mut buffer = Buffer::default();
        let mut events = [event(1, None, ONE), event(2, None, ONE)];
        events[0].payload = Some(vec![0; LARGE + 1]);
        events[1].payload = Some(vec![0; 10]);
        buffer.insert(ONE, events.to_vec(), &[], window(2, false), Reading::now());
        assert_eq!(buffer.bytes(), LARGE + 11);
        assert_eq!(popped(&mut buffer), [1, 2]);
        assert_eq!(buffer.bytes(), LARGE + 1);
        // An operator took it and it was leased again, while the first run still goes on.
        let mut again = events[0].clone();
        again.lease.token = TWO;
        buffer.insert(TWO, vec![again], &[], window(1, false), Reading::now());
        assert_eq!(buffer.bytes(), LARGE + 1);
        for token in [ONE, TWO] {
            buffer.note_gone(Lease { id: 1, token });
        }
        buffer.note_gone(Lease { id: 2, token: ONE });
        assert_eq!(buffer.bytes(), 0);
    }

    #[test]
    fn a_suspect_is_not_handed_over_behind_another_event() {
        let mut buffer = buffer(&[(1, Some("a"))], 1);
        let suspect = vec![event(2, Some("a"), TWO)];
        buffer.insert(TWO, suspect, &[], window(0, true), Reading::now());
        buffer.leases.started(TWO, 2);
        assert_eq!(popped(&mut buffer), [1]);
        assert!(buffer.pop_behind("a").is_none());
        buffer.open_group("a", of(1));
        assert_eq!(popped(&mut buffer), [2]);
    }
}
