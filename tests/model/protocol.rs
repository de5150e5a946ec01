//! The lease protocol as a transition system. Each action stands for one statement or function of the
//! database, which is atomic (`tests/it/interleave.rs` shows that it is), or for what befalls a worker.

use stateright::{Model, Property};

use crate::flaw::Flaw;
use crate::promise;
use crate::state::{
    Breach, Ended, Grant, Group, Id, Lease, Publish, Row, Spent, Stage, State, Token, Verdict,
    Walk, Worker,
};

/// How much there is of everything: it bounds the search.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// The groups of the events that are published, in any order.
    pub groups: &'static [Group],
    pub workers: Worker,
    pub max_attempts: u8,
    /// Leases of one event.
    pub leases: u8,
    pub allowed: Spent,
    pub cleanup: bool,
    /// Workers lease on behind what they have looked at, and use what they know of it.
    pub walks: bool,
    /// The first two events are published in one transaction.
    pub together: bool,
}

impl Scenario {
    /// All that can happen to one event, but for a replay.
    pub const ONE_EVENT: Self = Self {
        name: "one event",
        groups: &[None],
        workers: 2,
        max_attempts: 2,
        leases: 3,
        allowed: Spent {
            crashes: 0,
            requeues: 1,
            replays: 0,
            cancels: 1,
        },
        cleanup: true,
        walks: false,
        together: false,
    };
    /// One that ends, is replayed and cleaned up.
    pub const REPLAYED: Self = Self {
        name: "one event and its replay",
        leases: 2,
        allowed: Spent {
            crashes: 0,
            requeues: 0,
            replays: 1,
            cancels: 0,
        },
        ..Self::ONE_EVENT
    };
    /// Two producers, two workers, one group.
    pub const GROUP: Self = Self {
        name: "two events of a group",
        groups: &[Some(1), Some(1)],
        workers: 2,
        max_attempts: 2,
        leases: 2,
        allowed: Spent {
            crashes: 0,
            requeues: 0,
            replays: 0,
            cancels: 0,
        },
        cleanup: false,
        walks: false,
        together: false,
    };
    /// A group, and workers that walk.
    pub const WALK: Self = Self {
        name: "two events of a group, and walks",
        walks: true,
        ..Self::GROUP
    };
    /// The same without second attempts.
    pub const SHORT_WALK: Self = Self {
        name: "two events of a group, walks and one attempt",
        max_attempts: 1,
        leases: 1,
        ..Self::WALK
    };
    /// Another group's event, behind which a walk goes on while a group's first is not committed yet, or is in
    /// another's hands.
    pub const WALK_PAST: Self = Self {
        name: "two events of a group, one of another, and walks",
        groups: &[Some(1), Some(1), Some(2)],
        max_attempts: 1,
        leases: 1,
        ..Self::WALK
    };
    /// The same, with the group's events published in one transaction.
    pub const WALK_PAST_BOTH: Self = Self {
        name: "two events of a group in one transaction, one of another, and walks",
        together: true,
        ..Self::WALK_PAST
    };
    /// Walks beside an operator.
    pub const WALK_REQUEUED: Self = Self {
        name: "two events of a group, walks and a requeue",
        walks: true,
        ..Self::REQUEUED_GROUP
    };
    /// A group and an event beside it.
    pub const THREE_EVENTS: Self = Self {
        name: "two events of a group and one without",
        groups: &[Some(1), Some(1), None],
        max_attempts: 1,
        leases: 1,
        ..Self::GROUP
    };
    /// A group whose leases an operator ends.
    pub const REQUEUED_GROUP: Self = Self {
        name: "two events of a group, and a requeue",
        allowed: Spent {
            crashes: 0,
            requeues: 1,
            replays: 0,
            cancels: 0,
        },
        ..Self::GROUP
    };
    /// A group whose head an operator ends.
    pub const CANCELLED_GROUP: Self = Self {
        name: "two events of a group, and a cancel",
        allowed: Spent {
            crashes: 0,
            requeues: 0,
            replays: 0,
            cancels: 1,
        },
        ..Self::GROUP
    };
    /// A group into which a replay comes back, with a worker that crashes.
    pub const REPLAYED_GROUP: Self = Self {
        name: "two events of a group, a crash and a replay",
        max_attempts: 1,
        leases: 1,
        allowed: Spent {
            crashes: 1,
            requeues: 0,
            replays: 1,
            cancels: 0,
        },
        ..Self::GROUP
    };
}

/// The protocol, whole or with one guard removed.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub scenario: Scenario,
    pub flaw: Option<Flaw>,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `tidegate.publish` and `publish_batch` up to their last line: the group is locked, the id drawn, the
    /// row inserted, and the producer's transaction is open.
    Draw(usize),
    /// The producer's COMMIT. Whether the producer hears of it changes nothing.
    Commit(usize),
    /// The producer's ROLLBACK, or its end. The id is lost.
    Abort(usize),
    /// `LEASE`: scan, cut, choose at most so many, update. Where workers walk it begins a walk, and the number is
    /// how many rows it looks at.
    Lease(Worker, usize),
    /// A `LEASE` behind the cursor, with what the walk knows.
    LeaseOn(Worker, usize),
    /// A `LEASE` that leaps over the first row behind the cursor, where it leaves the cursor.
    Leap(Worker, usize),
    /// The answer to a statement that has arrived.
    Hear(Id, Token),
    /// The `scan` of a `LEASE` that locks nothing. Only with [`Flaw::NoOuterRecheck`].
    Scan(Worker),
    /// The `UPDATE` of a `LEASE` that locks nothing. Only with [`Flaw::NoOuterRecheck`].
    Take(Worker),
    /// A handler starts; nothing is written.
    Start(Id, Token),
    /// A worker sends `FINALIZE`, `RETRY` or `RELEASE`; also `RECLAIM`, by which it gives back what it never
    /// heard to have leased.
    Send(Id, Token, Verdict),
    /// The statement arrives, for the first time or again.
    Arrive(Id, Token),
    /// `RENEW`.
    Renew(Id, Token),
    /// A worker ends with all it has in hand. What it has sent may still arrive.
    Crash(Worker),
    /// The database's clock passes `lease_expires_at`.
    Expire(Id),
    /// `PROMOTE`, after the clock has passed `available_at`.
    Promote(Id),
    /// `tidegate.requeue` and `unblock(how => 'retry')`: both are `end_leases`.
    Requeue(Id),
    /// `tidegate.unblock(how => 'cancel')`: `end_by_operator`.
    Cancel(Id),
    /// `tidegate.replay`: `lock_replays`, `replay_candidates`, `insert_replays`.
    Replay(Id),
    /// `replay_candidates` alone. Only with [`Flaw::ReplaysNotSerialized`].
    Look(Id),
    /// `insert_replays` alone. Only with [`Flaw::ReplaysNotSerialized`].
    Insert(Id),
    /// `tidegate.sweep_events`.
    Sweep(Id),
    /// `tidegate.delete_expired` or `drop_log_partition`, after the clock has passed the row's retention.
    Cleanup(Id),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            publishes: vec![Publish::Planned; self.scenario.groups.len()],
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.of_producers(state, actions);
        self.of_workers(state, actions);
        self.of_grants(state, actions);
        self.of_rows(state, actions);
        self.of_operators(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promise::all(self.flaw.is_none())
    }
}

// What may happen next.
impl Protocol {
    fn of_producers(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, publish) in state.publishes.iter().enumerate() {
            match publish {
                Publish::Planned if self.is_second_of_one(index) => {
                    if matches!(state.publishes[0], Publish::Open(_)) {
                        actions.push(Action::Draw(index));
                    }
                }
                Publish::Open(_) if self.is_second_of_one(index) => {}
                Publish::Planned => {
                    let group = self.scenario.groups[index];
                    // Producers are alike, too.
                    let has_turn = index == 0
                        || self.scenario.groups[index - 1] != group
                        || state.publishes[index - 1] != Publish::Planned;
                    if has_turn && !self.is_group_locked(state, group) {
                        actions.push(Action::Draw(index));
                    }
                }
                Publish::Open(_) => actions.extend([Action::Commit(index), Action::Abort(index)]),
                Publish::Over => {}
            }
        }
    }

    /// It is published in the first one's transaction, and shares its end.
    fn is_second_of_one(&self, index: usize) -> bool {
        self.scenario.together && index == 1
    }

    /// Somebody's open transaction has published to the group.
    fn is_group_locked(&self, state: &State, group: Group) -> bool {
        self.flaw != Some(Flaw::NoGroupLock)
            && group.is_some()
            && state
                .publishes
                .iter()
                .zip(self.scenario.groups)
                .any(|(publish, theirs)| matches!(publish, Publish::Open(_)) && *theirs == group)
    }

    fn of_workers(&self, state: &State, actions: &mut Vec<Action>) {
        for worker in self.known_workers(state) {
            let within_bound = |id: &&Id| {
                let story = &state.witness.events[usize::from(**id) - 1];
                story.leases < self.scenario.leases
            };
            let candidates = if self.scenario.walks {
                self.scan(state, worker, 0)
            } else {
                self.candidates(state, worker)
            };
            let most = candidates.iter().take_while(within_bound).count();
            let cursor = state.walk(worker).cursor;
            if cursor > 0 {
                let further = self.scan(state, worker, cursor);
                let most = further.iter().take_while(within_bound).count();
                actions.extend((1..=most).map(|page| Action::LeaseOn(worker, page)));
                actions.extend((1..most).map(|page| Action::Leap(worker, page)));
            }
            if self.flaw != Some(Flaw::NoOuterRecheck) {
                actions.extend((1..=most).map(|limit| Action::Lease(worker, limit)));
            } else if state.scans.iter().any(|(whose, _)| *whose == worker) {
                actions.push(Action::Take(worker));
            } else if most > 0 {
                actions.push(Action::Scan(worker));
            }
            let has_something = state
                .grants
                .iter()
                .any(|grant| grant.worker == worker && grant.stage != Stage::Gone);
            if has_something && state.spent.crashes < self.scenario.allowed.crashes {
                actions.push(Action::Crash(worker));
            }
        }
    }

    /// Workers are alike, so the second one comes only after the first one has begun.
    fn known_workers(&self, state: &State) -> std::ops::Range<Worker> {
        let busy = state.grants.iter().map(|grant| grant.worker);
        let scanning = state.scans.iter().map(|(worker, _)| *worker);
        let met = busy.chain(scanning).max().map_or(0, |last| last + 1);
        0..self.scenario.workers.min(met + 1)
    }

    fn of_grants(&self, state: &State, actions: &mut Vec<Action>) {
        for grant in &state.grants {
            let (id, token) = (grant.id, grant.token);
            let send = |verdict| Action::Send(id, token, verdict);
            match grant.stage {
                Stage::Held if grant.abandoned => actions.push(send(Verdict::Fail)),
                Stage::Held => {
                    actions.push(send(Verdict::Release));
                    if Self::is_first_of_its_group(state, grant) {
                        actions.push(Action::Start(id, token));
                    }
                }
                Stage::Running => {
                    actions.push(send(Verdict::Finalize));
                    actions.push(send(if grant.last {
                        Verdict::Fail
                    } else {
                        Verdict::Retry
                    }));
                    if self.flaw == Some(Flaw::ReleaseOfStarted) {
                        actions.push(send(Verdict::Release));
                    }
                }
                Stage::Sent { arrived, .. } => {
                    actions.push(Action::Arrive(id, token));
                    if self.scenario.walks && arrived && !grant.heard {
                        actions.push(Action::Hear(id, token));
                    }
                }
                Stage::Gone => {}
            }
            if matches!(grant.stage, Stage::Held | Stage::Running) {
                actions.push(Action::Renew(id, token));
            }
        }
    }

    /// A worker handles the events of a group one after the other.
    fn is_first_of_its_group(state: &State, grant: &Grant) -> bool {
        grant.group.is_none()
            || !state.grants.iter().any(|other| {
                (other.worker, other.group) == (grant.worker, grant.group)
                    && (other.stage == Stage::Running
                        || other.stage == Stage::Held && other.id < grant.id)
            })
    }

    fn of_rows(&self, state: &State, actions: &mut Vec<Action>) {
        for row in &state.queue {
            if !row.is_free() {
                actions.push(Action::Expire(row.id));
            }
            if row.delayed {
                actions.push(Action::Promote(row.id));
            }
            let lease_allows = row.is_free() || self.flaw == Some(Flaw::SweepIgnoresLease);
            if row.is_exhausted() && lease_allows && self.flaw != Some(Flaw::NoSweep) {
                actions.push(Action::Sweep(row.id));
            }
        }
        if self.scenario.cleanup {
            actions.extend(state.log.iter().map(|ended| Action::Cleanup(ended.id)));
            if self.flaw == Some(Flaw::CleanupIgnoresState) {
                actions.extend(state.queue.iter().map(|row| Action::Cleanup(row.id)));
            }
        }
    }

    fn of_operators(&self, state: &State, actions: &mut Vec<Action>) {
        let allowed = self.scenario.allowed;
        for row in &state.queue {
            if state.spent.requeues < allowed.requeues {
                actions.push(Action::Requeue(row.id));
            }
            if state.spent.cancels < allowed.cancels {
                actions.push(Action::Cancel(row.id));
            }
            if self.flaw == Some(Flaw::ReplayOfLive) && state.spent.replays < allowed.replays {
                actions.push(Action::Replay(row.id));
            }
        }
        if self.flaw == Some(Flaw::ReplaysNotSerialized) {
            actions.extend(state.looks.iter().map(|id| Action::Insert(*id)));
        }
        for ended in &state.log {
            let is_possible = !state
                .queue
                .iter()
                .any(|row| row.replay_of == Some(ended.id))
                && !self.is_group_locked(state, ended.group);
            let unserialized = self.flaw == Some(Flaw::ReplaysNotSerialized);
            // Two operators are one more than one.
            if is_possible && unserialized && state.spent.replays <= allowed.replays {
                actions.push(Action::Look(ended.id));
            } else if is_possible && state.spent.replays < allowed.replays {
                actions.push(Action::Replay(ended.id));
            }
        }
    }
}

// What each step does.
impl Protocol {
    /// Applies an action that is possible in this state.
    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Draw(index) => state.publishes[index] = Publish::Open(state.draw()),
            Action::Commit(index) => self.end_publish(state, index, true),
            Action::Abort(index) => self.end_publish(state, index, false),
            Action::Lease(worker, most) => self.lease(state, worker, most),
            Action::LeaseOn(worker, page) => self.lease_on(state, worker, page, false),
            Action::Leap(worker, page) => self.lease_on(state, worker, page, true),
            Action::Hear(id, token) => self.hear(state, id, token),
            Action::Scan(worker) => {
                let ids = self.candidates(state, worker);
                if !ids.is_empty() {
                    state.scans.push((worker, ids));
                }
            }
            Action::Take(worker) => {
                let place = state.scans.iter().position(|(whose, _)| *whose == worker);
                let (_, ids) = state
                    .scans
                    .remove(place.expect("a worker has looked before"));
                self.take(state, worker, &ids);
            }
            Action::Start(id, token) => {
                state.story(id).starts += 1;
                set_stage(state, id, token, Stage::Running);
            }
            Action::Send(id, token, verdict) => self.send(state, id, token, verdict),
            Action::Arrive(id, token) => self.arrive(state, id, token),
            Action::Renew(id, token) => self.renew(state, id, token),
            Action::Crash(worker) => crash(state, worker),
            Action::Expire(id) => {
                if let Some(lease) = state.row_mut(id).and_then(|row| row.lease.as_mut()) {
                    lease.expired = true;
                }
            }
            Action::Promote(id) => {
                if let Some(row) = state.row_mut(id) {
                    row.delayed = false;
                }
            }
            Action::Requeue(id) => self.requeue(state, id),
            Action::Cancel(id) => self.cancel(state, id),
            Action::Look(id) => {
                state.spent.replays += 1;
                state.looks.push(id);
            }
            Action::Insert(id) => {
                let place = state.looks.iter().position(|other| *other == id);
                state
                    .looks
                    .remove(place.expect("an operator has looked before"));
                insert_replay(state, id);
            }
            Action::Replay(id) => {
                state.spent.replays += 1;
                insert_replay(state, id);
            }
            Action::Sweep(id) => sweep(state, id),
            Action::Cleanup(id) => cleanup(state, id),
        }
    }

    /// Of the first one and of what was published with it.
    fn end_publish(&self, state: &mut State, index: usize, is_commit: bool) {
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
            state.insert(Row {
                id,
                group: self.scenario.groups[index],
                attempts: 0,
                max_attempts: self.scenario.max_attempts,
                delayed: false,
                lease: None,
                replay_of: None,
            });
        }
    }

    /// `scan`, behind an id: what is ready and not the worker's, in id order.
    fn scan(&self, state: &State, worker: Worker, after: Id) -> Vec<Id> {
        let is_scanned = |row: &&Row| {
            row.id > after
                && !row.delayed
                && row.is_free()
                && !state.is_held_by(row, worker)
                && (self.flaw != Some(Flaw::NoSweep) || !row.is_exhausted())
        };
        state
            .queue
            .iter()
            .filter(is_scanned)
            .map(|row| row.id)
            .collect()
    }

    /// `cut`: something of the row's group, in another's hands or nobody's, stands ahead of it.
    fn is_cut(&self, state: &State, worker: Worker, id: Id, scan: &[Id]) -> bool {
        let group = state.row(id).and_then(|row| row.group);
        self.flaw != Some(Flaw::NoGroupCut)
            && group.is_some()
            && state.queue.iter().any(|ahead| {
                (ahead.group, ahead.id < id) == (group, true)
                    && is_strange(state, worker, ahead, scan)
            })
    }

    /// What a lease may take: `scan` without what stands behind `cut`, in id order.
    fn candidates(&self, state: &State, worker: Worker) -> Vec<Id> {
        let scan = self.scan(state, worker, 0);
        let is_free = |id: &Id| !self.is_cut(state, worker, *id, &scan);
        scan.iter().copied().filter(is_free).collect()
    }

    fn lease(&self, state: &mut State, worker: Worker, most: usize) {
        if self.scenario.walks {
            state.set_walk(worker, Walk::default());
            return self.lease_on(state, worker, most, false);
        }
        let mut ids = self.candidates(state, worker);
        ids.truncate(most);
        self.take(state, worker, &ids);
    }

    /// A lease that looks at so many rows behind the cursor, or behind the row that it leaps over, asks only for the groups
    /// that the walk does not know to be clear, and remembers what it has met (`src/drain/behind.rs`).
    fn lease_on(&self, state: &mut State, worker: Worker, page: usize, leaps: bool) {
        let mut walk = state.walk(worker);
        let mut scan = self.scan(state, worker, walk.cursor);
        let after = if leaps { scan.remove(0) } else { walk.cursor };
        let begins = after == 0;
        scan.truncate(page);
        let Some(last) = scan.last().copied() else {
            return;
        };
        let group_of = |id: Id| state.row(id).and_then(|row| row.group);
        let is_known = scan.iter().any(|id| group_of(*id).is_some())
            && (begins || after <= walk.seen_to || self.flaw == Some(Flaw::KnowsWhatItLeapsOver));
        let is_recent = |id: Id| match self.flaw {
            Some(Flaw::KnowsTheUncommitted) => false,
            Some(Flaw::GoesByIds) => !begins && id > walk.drawn,
            _ => !begins && !walk.began.contains(&id),
        };
        let recent: Vec<Group> = scan
            .iter()
            .filter(|id| is_recent(**id))
            .map(|id| group_of(*id))
            .collect();
        let clear_to = match lowest_in_hand(state, worker) {
            Some(lowest) if self.flaw != Some(Flaw::TrustsItsHands) => after.min(lowest - 1),
            _ => after,
        };
        let met: Vec<u8> = state
            .queue
            .iter()
            .filter(|row| row.id > clear_to && row.id <= last)
            .filter(|row| is_strange(state, worker, row, &scan))
            .filter_map(|row| row.group)
            .collect();
        let may_be_cut = |id: Id| {
            !is_known
                || recent.contains(&group_of(id))
                || group_of(id)
                    .is_some_and(|group| met.contains(&group) || walk.doubtful.contains(&group))
        };
        let chosen: Vec<Id> = scan
            .iter()
            .copied()
            .filter(|id| !may_be_cut(*id) || !self.is_cut(state, worker, *id, &scan))
            .collect();
        if begins {
            walk.began.clone_from(&state.witness.committed);
            if self.flaw == Some(Flaw::GoesByIds) {
                walk.drawn = Id::try_from(state.witness.events.len()).expect("a model is small");
            }
        }
        if !leaps {
            walk.cursor = last;
        }
        if is_known {
            walk.seen_to = walk.seen_to.max(walk.cursor);
            if self.flaw != Some(Flaw::ForgetsWhatItMet) {
                walk.doubtful.extend(met);
            }
        }
        state.set_walk(worker, walk);
        self.take(state, worker, &chosen);
    }

    /// What has not ended is out of the worker's hands: its group is doubtful.
    fn hear(&self, state: &mut State, id: Id, token: Token) {
        let ended = state.ended(id).and_then(|ended| ended.token);
        let Some(grant) = state.grant_mut(id, token) else {
            return;
        };
        grant.heard = true;
        let (worker, group) = (grant.worker, grant.group);
        if ended == Some(token) || self.flaw == Some(Flaw::ForgetsWhatWentBack) {
            return;
        }
        let mut walk = state.walk(worker);
        // Before a walk there is nothing behind.
        if walk.cursor > 0 {
            walk.doubtful.extend(group);
            state.set_walk(worker, walk);
        }
    }

    fn take(&self, state: &mut State, worker: Worker, ids: &[Id]) {
        for id in ids {
            note_order(state, worker, *id, ids);
        }
        for id in ids.iter().copied() {
            let Some(row) = state.row(id).cloned() else {
                continue;
            };
            if !row.is_free() {
                state.breach(Breach::LeasedTwice);
            }
            let counts = !row.is_exhausted() || self.flaw == Some(Flaw::NoAttemptCheck);
            let attempts = row.attempts + u8::from(counts);
            let story = state.story(id);
            story.leases += 1;
            story.uncounted += u8::from(!counts);
            let token = story.leases;
            story.holder = Some(token);
            let is_barred = row.group.is_some()
                && state.grants.iter().any(|grant| {
                    (grant.worker, grant.group) == (worker, row.group) && grant.bars_its_group()
                });
            let lease = Lease {
                token,
                expired: false,
            };
            if let Some(row) = state.row_mut(id) {
                (row.attempts, row.lease) = (attempts, Some(lease));
            }
            state.grants.push(Grant {
                id,
                token,
                worker,
                group: row.group,
                abandoned: !counts,
                last: attempts >= row.max_attempts,
                stage: if is_barred { RELEASED } else { Stage::Held },
                heard: false,
            });
        }
        state
            .grants
            .sort_unstable_by_key(|grant| (grant.id, grant.token));
    }

    fn send(&self, state: &mut State, id: Id, token: Token, verdict: Verdict) {
        let sent = Stage::Sent {
            verdict,
            arrived: false,
        };
        set_stage(state, id, token, sent);
        if verdict == Verdict::Finalize && self.flaw == Some(Flaw::EffectApart) {
            state.story(id).effects += 1;
        }
        let Some(sender) = state.grant(id, token).cloned() else {
            return;
        };
        if sender.group.is_some() && matches!(verdict, Verdict::Retry | Verdict::Release) {
            // The rest of its run goes back with it.
            for behind in &mut state.grants {
                if (behind.worker, behind.group) == (sender.worker, sender.group)
                    && behind.stage == Stage::Held
                    && behind.id > id
                {
                    behind.stage = RELEASED;
                }
            }
        }
    }

    fn arrive(&self, state: &mut State, id: Id, token: Token) {
        let Some(grant) = state.grant(id, token).cloned() else {
            return;
        };
        let Stage::Sent { verdict, .. } = grant.stage else {
            return;
        };
        let arrived = true;
        set_stage(state, id, token, Stage::Sent { verdict, arrived });
        let matches = state.row(id).is_some_and(|row| {
            self.flaw == Some(Flaw::NoTokenCheck)
                || row.lease.is_some_and(|lease| lease.token == token)
        });
        if !matches {
            state.witness.refused = true;
            return;
        }
        if state.story(id).holder != Some(token) {
            state.breach(Breach::StaleWrite);
        }
        match verdict {
            Verdict::Finalize | Verdict::Fail => {
                if verdict == Verdict::Finalize && self.flaw != Some(Flaw::EffectApart) {
                    state.story(id).effects += 1;
                }
                self.finish(state, id, Some(token));
            }
            Verdict::Retry => give_back(state, id, |row| row.delayed = true),
            Verdict::Release => {
                let counted = !grant.abandoned;
                state.story(id).uncounted += u8::from(counted);
                let kept = self.flaw == Some(Flaw::ReleaseCounts) || !counted;
                give_back(state, id, |row| {
                    row.attempts = row.attempts.saturating_sub(u8::from(!kept));
                });
            }
        }
    }

    /// The move to the log, with the token that the row has.
    fn finish(&self, state: &mut State, id: Id, by: Option<Token>) {
        let is_logged = state.ended(id).is_some();
        if self.flaw == Some(Flaw::FinalizeInTwoStatements) && !is_logged {
            let row = state.row(id).cloned();
            log(state, row, by);
            return;
        }
        let row = take_row(state, id);
        if !is_logged {
            log(state, row, by);
        }
    }

    fn renew(&self, state: &mut State, id: Id, token: Token) {
        let holder = state.story(id).holder;
        let ignores_token = self.flaw == Some(Flaw::RenewWithoutToken);
        let Some(lease) = state.row_mut(id).and_then(|row| row.lease.as_mut()) else {
            return;
        };
        if lease.expired && (lease.token == token || ignores_token) {
            lease.expired = false;
            if holder != Some(token) {
                state.breach(Breach::StaleWrite);
            }
        }
    }

    fn requeue(&self, state: &mut State, id: Id) {
        state.spent.requeues += 1;
        let keeps = self.flaw == Some(Flaw::RequeueKeepsToken);
        let lease = state.row(id).and_then(|row| row.lease);
        give_back(state, id, |row| {
            row.delayed = false;
            row.max_attempts = row.max_attempts.max(row.attempts + 1);
            row.lease = lease.filter(|_| keeps).map(|lease| Lease {
                expired: true,
                ..lease
            });
        });
    }

    fn cancel(&self, state: &mut State, id: Id) {
        state.spent.cancels += 1;
        let row = take_row(state, id);
        let token = row
            .as_ref()
            .and_then(|row| row.lease)
            .map(|lease| lease.token);
        log(state, row, None);
        if self.flaw == Some(Flaw::CancelKeepsToken)
            && let Some(ended) = state.log.last_mut()
        {
            ended.token = token;
        }
    }
}

fn lowest_in_hand(state: &State, worker: Worker) -> Option<Id> {
    let in_hand =
        |grant: &&Grant| grant.worker == worker && grant.stage != Stage::Gone && !grant.heard;
    let hands = state.grants.iter().filter(in_hand);
    hands.map(|grant| grant.id).min()
}

/// Live, in another's hands or nobody's, and not about to be leased.
fn is_strange(state: &State, worker: Worker, row: &Row, scan: &[Id]) -> bool {
    !scan.contains(&row.id) && !state.is_held_by(row, worker)
}

const RELEASED: Stage = Stage::Sent {
    verdict: Verdict::Release,
    arrived: false,
};

fn set_stage(state: &mut State, id: Id, token: Token, next: Stage) {
    if let Some(grant) = state.grant_mut(id, token) {
        grant.stage = next;
    }
}

/// Whether everything of its group that was committed earlier is leased before it.
fn note_order(state: &mut State, worker: Worker, id: Id, chosen: &[Id]) {
    let group = state.row(id).and_then(|row| row.group);
    if group.is_none() {
        return;
    }
    let place = state
        .witness
        .committed
        .iter()
        .position(|other| *other == id);
    let earlier = &state.witness.committed[..place.unwrap_or(0)];
    let overtakes = state.queue.iter().any(|row| {
        row.group == group
            && earlier.contains(&row.id)
            && !state.is_held_by(row, worker)
            && !(chosen.contains(&row.id) && row.id < id)
    });
    if overtakes {
        state.breach(Breach::OutOfOrder);
    }
}

fn crash(state: &mut State, worker: Worker) {
    state.spent.crashes += 1;
    for grant in &mut state.grants {
        if grant.worker == worker && matches!(grant.stage, Stage::Held | Stage::Running) {
            grant.stage = Stage::Gone;
        }
    }
    state.scans.retain(|(scanning, _)| *scanning != worker);
    state.set_walk(worker, Walk::default());
}

/// The row is pending again.
fn give_back(state: &mut State, id: Id, change: impl FnOnce(&mut Row)) {
    state.story(id).holder = None;
    if let Some(row) = state.row_mut(id) {
        row.lease = None;
        change(row);
    }
}

fn take_row(state: &mut State, id: Id) -> Option<Row> {
    let place = state.queue.iter().position(|row| row.id == id)?;
    Some(state.queue.remove(place))
}

fn log(state: &mut State, row: Option<Row>, by: Option<Token>) {
    let Some(row) = row else {
        return;
    };
    let story = state.story(row.id);
    (story.holder, story.ended_by) = (None, by);
    state.log.push(Ended {
        id: row.id,
        group: row.group,
        attempts: row.attempts,
        max_attempts: row.max_attempts,
        token: by.and(row.lease).map(|lease| lease.token),
    });
}

/// A replay is a new event behind all of its group.
fn insert_replay(state: &mut State, original: Id) {
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
        attempts: 0,
        max_attempts,
        delayed: false,
        lease: None,
        replay_of: Some(original),
    });
}

fn sweep(state: &mut State, id: Id) {
    if state.row(id).is_some_and(|row| !row.is_free()) {
        state.breach(Breach::Forbidden);
    }
    let row = take_row(state, id);
    log(state, row, None);
}

fn cleanup(state: &mut State, id: Id) {
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
