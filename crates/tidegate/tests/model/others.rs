//! Producers, the sweep, the clock, operators and the cleanup.

use crate::flaw::Flaw;
use crate::protocol::Protocol;
use crate::state::{Breach, Id, Lease, Open, Publish, Row, Set, Stage, State, Token, Worker};
use crate::worker::take_row;

impl Protocol {
    /// COMMIT or ROLLBACK of the first event and of those published with it.
    pub fn end_publish(&self, state: &mut State, index: usize, is_commit: bool) {
        let second = (index == 0 && self.scenario.together).then_some(1);
        for index in std::iter::once(index).chain(second) {
            if is_commit {
                self.commit(state, index);
            }
            state.publishes[index] = Publish::Over;
        }
    }

    fn commit(&self, state: &mut State, index: usize) {
        if let Publish::Open(id) = state.publishes[index] {
            let group = self.scenario.groups[index];
            let delayed = self.scenario.delayed == Some(index);
            state.insert(Row {
                id,
                group,
                paused: self.scenario.paused == Some(index),
                attempts: 0,
                max_attempts: self.scenario.max_attempts,
                suspect: false,
                delayed,
                stray: delayed && group.is_some() && !self.has(Flaw::DelayedIsNoStray),
                snoozes: 0,
                replay_of: None,
            });
        }
    }

    /// `sweep`: frees leases under the caller's name that are not in its hands: their answers were lost, or
    /// they have ended. If all leases of another worker have expired that have not ended, either all of its
    /// leases break or none.
    pub fn sweep(&self, state: &mut State, worker: Worker) {
        let known = state.mind(worker).tokens();
        let locked = self.locked_leases(state);
        let unheard = state.leases.iter().filter(|lease| {
            lease.worker == worker && !known.has(lease.token) && !locked.has(lease.token)
        });
        for token in tokens(unheard).iter() {
            self.break_lease(state, token, false);
        }
        if self.has(Flaw::NoSweep) {
            return;
        }
        let workers: Set = state.leases.iter().map(|lease| lease.worker).collect();
        for dead in workers.minus(Set::one(worker)).iter() {
            let broken = self.breakable(state, dead);
            Self::judge_break(state, broken);
            for token in broken.iter() {
                self.break_lease(state, token, true);
            }
        }
    }

    /// The leases of a worker that a sweep breaks.
    fn breakable(&self, state: &State, dead: Worker) -> Set {
        let theirs = || {
            state
                .leases
                .iter()
                .filter(move |lease| lease.worker == dead)
        };
        let expired = tokens(theirs().filter(|lease| lease.expired));
        let ended = tokens(theirs().filter(|lease| lease.ended));
        if self.has(Flaw::SweepsSingleLeases) {
            return expired;
        }
        let all = tokens(theirs());
        let dead = if self.has(Flaw::SweepsAtTheFirst) {
            !expired.is_empty()
        } else {
            all.minus(ended).minus(expired).is_empty()
        };
        let is_over = !ended.and(expired).is_empty();
        let dead = dead || is_over && self.has(Flaw::EndedStandsForItsWorker);
        let dead = dead || self.has(Flaw::SweepsBeforeTime);
        let is_locked = !all.and(self.locked_leases(state)).is_empty();
        if dead && !is_locked {
            all
        } else {
            Set::default()
        }
    }

    /// The witness checks: only an expired worker is dead, and next to a suspect no event is charged whose
    /// lease the worker knew.
    fn judge_break(state: &mut State, broken: Set) {
        let leases: Vec<&Lease> = broken
            .iter()
            .filter_map(|token| state.lease(token))
            .collect();
        let too_early = leases.iter().any(|lease| !lease.expired && !lease.ended);
        let heard = leases.iter().filter(|lease| lease.heard);
        let charged: Set = heard
            .flat_map(|lease| lease.ids.iter().filter(|id| *id <= lease.started_to))
            .collect();
        let in_company = charged.len() > 1 && !charged.and(state.witness.lapsed).is_empty();
        let begun = leases
            .iter()
            .flat_map(|lease| lease.ids.iter().filter(|id| *id <= lease.started_to));
        let lapsed = begun.collect();
        state.witness.lapsed = state.witness.lapsed.or(lapsed);
        if too_early {
            state.breach(Breach::Forbidden);
        }
        if in_company {
            state.breach(Breach::NeighbourCharged);
        }
    }

    /// An event whose row an open transaction has locked stays in the lease, with the earlier ones of its
    /// group.
    fn break_lease(&self, state: &mut State, token: Token, charges: bool) {
        let place = state.leases.iter().position(|lease| lease.token == token);
        let place = place.expect("it was there");
        let mut lease = state.leases.remove(place);
        let locked = state.open.map_or(Set::default(), |open| open.rows);
        let stays = |id: &Id| !state.behind(*id).or(Set::one(*id)).and(locked).is_empty();
        let stay: Set = lease.ids.iter().filter(stays).collect();
        if !stay.is_empty() {
            let ids = stay;
            state.leases.insert(
                place,
                Lease {
                    ids,
                    ..lease.clone()
                },
            );
            lease.ids = lease.ids.minus(stay);
        }
        for id in lease.ids.iter() {
            let is_begun = id <= lease.started_to;
            let is_charged = charges
                && (is_begun || self.has(Flaw::LapseChargesUnstarted))
                && !self.has(Flaw::LapseChargesNothing);
            if let Some(row) = state.row_mut(id) {
                row.stray |= row.group.is_some() && !self.has(Flaw::NoStrayAtLapse);
                row.suspect |= is_charged && !self.has(Flaw::LapseLeavesNoMark);
            }
            if is_charged {
                charge(state, &lease, id);
            } else if lease.ran.has(id) {
                state.breach(Breach::Uncounted);
            }
        }
    }

    /// A handler's transaction locks the row of its event. The commit may take long.
    pub fn hold(&self, state: &mut State, token: Token, id: Id) {
        let leases = if self.has(Flaw::HandlersLockTheirLease) {
            Set::one(token)
        } else {
            Set::default()
        };
        let rows = Set::one(id);
        state.open = Some(Open { id, rows, leases });
    }

    /// A guest's transaction locks the row of the event that it takes. Others do not see its lease yet.
    pub fn visit(&self, state: &mut State) {
        let first = self.scannable(state, 0, state.in_leases()).next();
        let id = first.map_or(0, |row| row.id);
        let mut rows: Set = first.into_iter().map(|row| row.id).collect();
        let mut leases = Set::default();
        if self.has(Flaw::GuestsSweep) {
            let expired = || state.leases.iter().filter(|lease| lease.expired);
            leases = tokens(expired());
            rows = expired().fold(rows, |rows, lease| rows.or(lease.ids));
        }
        if self.has(Flaw::GuestsPromote) {
            let delayed = state.queue.iter().filter(|row| row.delayed);
            rows = rows.or(delayed.map(|row| row.id).collect());
        }
        if self.has(Flaw::GuestsTakeFromLeases) {
            leases = tokens(state.leases.iter());
        }
        state.open = Some(Open { id, rows, leases });
    }

    /// `requeue`: the worker loses the event and the later events of its group. Attempts that may have begun
    /// count, but never use up the last attempt.
    pub fn requeue(&self, state: &mut State, id: Id) {
        state.spent.requeues += 1;
        let owner = state.leases.iter().find(|lease| lease.ids.has(id));
        if let Some(worker) = owner.map(|lease| lease.worker) {
            let theirs = |lease: &&Lease| lease.worker == worker;
            let before: Vec<Lease> = state.leases.iter().filter(theirs).cloned().collect();
            let named = tokens(before.iter());
            let left = self.leaving(state, worker, named, id);
            self.hand_back(state, worker, named, id, left, true);
            for lease in &before {
                for left in lease.ids.and(left).iter() {
                    self.charge_requeued(state, lease, left, left == id);
                }
            }
        }
        if let Some(row) = state.row_mut(id) {
            row.delayed = false;
            row.stray |= row.group.is_some();
            row.max_attempts = row.max_attempts.max(row.attempts + 1);
        }
    }

    /// `cancel`: the event ends, whichever worker holds it. An attempt that may have begun counts, and the
    /// worker is notified.
    pub fn cancel(&self, state: &mut State, id: Id) {
        state.spent.cancels += 1;
        let owner = state.leases.iter_mut().find(|lease| lease.ids.has(id));
        if let Some(lease) = owner {
            lease.cuts += u8::from(!self.has(Flaw::CancelTellsNobody));
            let before = lease.clone();
            if id <= before.started_to && !self.has(Flaw::CancelChargesNothing) {
                charge(state, &before, id);
            } else if before.ran.has(id) {
                state.breach(Breach::Uncounted);
            }
        }
        state.witness.failed = state.witness.failed.or(Set::one(id));
        self.finish(state, id, false, false);
    }

    fn charge_requeued(&self, state: &mut State, lease: &Lease, id: Id, is_named: bool) {
        let is_spared = self.has(Flaw::RequeueChargesNothing)
            || !is_named && self.has(Flaw::RequeueChargesNoFollower);
        if id > lease.started_to || is_spared {
            if lease.ran.has(id) {
                state.breach(Breach::Uncounted);
            }
            return;
        }
        if let Some(row) = state.row_mut(id) {
            row.max_attempts = row.max_attempts.max(row.attempts + 2);
        }
        charge(state, lease, id);
    }
}

fn tokens<'a>(leases: impl Iterator<Item = &'a Lease>) -> Set {
    leases.map(|lease| lease.token).collect()
}

/// Charges an attempt that may have begun under this lease, if one was left.
fn charge(state: &mut State, lease: &Lease, id: Id) {
    if id > lease.started_to {
        state.breach(Breach::ChargedUnstarted);
    }
    let Some(row) = state.row_mut(id) else {
        return;
    };
    if row.is_exhausted() {
        if lease.ran.has(id) {
            state.breach(Breach::Uncounted);
        }
        return;
    }
    row.attempts += 1;
    state.witness.failed = state.witness.failed.or(Set::one(id));
    let arriving = state
        .calls
        .iter_mut()
        .filter_map(|call| match &mut call.stage {
            Stage::Read(held) => held.as_mut(),
            _ => None,
        });
    let known = state.minds.iter_mut().flat_map(|mind| &mut mind.held);
    for held in known
        .chain(arriving)
        .filter(|held| held.token == lease.token)
    {
        for hand in held.hands.iter_mut().filter(|hand| hand.id == id) {
            hand.charged = true;
        }
    }
}

/// A replay is a new event behind all events of its group.
pub fn insert_replay(state: &mut State, original: Id) {
    let is_live = state.row(original).is_some();
    let has_live_replay = state
        .queue
        .iter()
        .any(|row| row.replay_of == Some(original));
    if is_live || has_live_replay {
        state.breach(Breach::Forbidden);
    }
    let of_live = state.row(original).map(|row| (row.group, row.max_attempts));
    let of_ended = state
        .ended(original)
        .map(|ended| (ended.group, ended.max_attempts));
    let Some((group, max_attempts)) = of_ended.or(of_live) else {
        return;
    };
    let id = state.draw();
    state.insert(Row {
        id,
        group,
        paused: false,
        attempts: 0,
        max_attempts,
        suspect: false,
        delayed: false,
        stray: false,
        snoozes: 0,
        replay_of: Some(original),
    });
}

pub fn cleanup(state: &mut State, id: Id) {
    if take_row(state, id).is_some() {
        state.breach(Breach::Forbidden);
        return;
    }
    let before = state.log.len();
    state.log.retain(|ended| ended.id != id);
    if state.log.len() < before {
        state.purged.push(id);
        state.purged.sort_unstable();
    }
}
