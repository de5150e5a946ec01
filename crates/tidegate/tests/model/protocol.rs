//! The lease protocol as a transition system. Each action stands for one atomic statement or function of the
//! database (`queue/interleave.rs` of the core shows the atomicity), or for something that happens to a
//! worker.
//!
//! Three things are left out, because no property depends on them: `low`, which only avoids reading dead
//! versions; `passed_by`, whose groups a scan skips like a paused kind; and sizes and the hashes of groups.

use stateright::{Model, Property};

use crate::flaw::Flaw;
use crate::others::{cleanup, insert_replay};
use crate::promise;
use crate::scenario::Scenario;
use crate::state::{
    Ask, Call, Group, Hand, Handling, Held, Id, Mind, Publish, Set, Stage, State, Token, Verdict,
    Worker,
};

/// The protocol, whole or with one guard removed.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub scenario: Scenario,
    pub flaw: Option<Flaw>,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `lock_groups`, and `publish` up to its last line: the group is locked, the id is drawn, the row is
    /// inserted, and the producer's transaction is open.
    Draw(usize),
    /// The producer's COMMIT. It makes no difference whether the answer arrives.
    Commit(usize),
    /// The producer's ROLLBACK, or its death. The id is lost.
    Abort(usize),
    /// `lease` and `read_leased` in one step, and whether the answer arrives.
    Lease(Worker, Ask, bool),
    /// `lease`: reads the events in hand.
    Begin(Worker, Ask),
    /// `lease`: the scan.
    Scan(Token),
    /// `lease`: locks the worker's own leases and reads the facts.
    Look(Token),
    /// `lease`: reads only the facts. Only with [`Flaw::LocksBehindTheFacts`].
    Glimpse(Token),
    /// `lease`: locks the worker's own leases. Only with [`Flaw::LocksBehindTheFacts`].
    LockOwn(Token),
    /// `lease`: the cut, the insert and its COMMIT.
    Insert(Token),
    /// `lease` ends without a COMMIT.
    Fail(Token),
    /// `read_leased`.
    ReadLeased(Token),
    /// The answer reaches the worker.
    Arrive(Token),
    /// The worker abandons the call.
    Lose(Token),
    /// `start` up to this id, and whether the answer arrives.
    Start(Worker, Token, Id, bool),
    /// A handler starts. Nothing is written.
    Handle(Worker, Token, Id),
    /// A handler ends. Nothing is written.
    End(Worker, Token, Id, Verdict),
    /// `complete` reads the lease. Only with [`Flaw::NoFence`].
    Peek(Worker, Token, Id),
    /// `complete`, and whether the answer arrives.
    Complete(Worker, Token, Id, bool),
    /// `finalize`, and whether the answer arrives.
    Finalize(Worker, Token, Id, bool),
    /// `retry`, and whether the answer arrives.
    Retry(Worker, Token, Id, bool),
    /// `retry` of an event that is snoozed, and whether the answer arrives.
    Snooze(Worker, Token, Id, bool),
    /// `hand_back`, and whether the answer arrives.
    HandBack(Worker, Token, Id, bool),
    /// A handler's transaction writes the event's end, or its progress, and stays open.
    Hold(Token, Id),
    /// A guest's transaction takes the first ready event by `poll`, and stays open.
    Visit,
    /// It ends, and nothing of it stays.
    Close,
    /// `renew`.
    Renew(Worker),
    /// A worker dies with everything in its hands. Statements that it has sent may still arrive.
    Crash(Worker),
    /// The database's clock passes a lease's `expires_at`.
    Expire(Token),
    /// `sweep`.
    Sweep(Worker),
    /// `promote`, after the clock has passed `available_at`.
    Promote(Id),
    /// The paused kind is resumed.
    Resume,
    /// `requeue`.
    Requeue(Id),
    /// `cancel`.
    Cancel(Id),
    /// `replay`.
    Replay(Id),
    /// `replay` up to its insert. Only with [`Flaw::ReplaysNotSerialized`].
    LookAt(Id),
    /// Only the insert of `replay`. Only with [`Flaw::ReplaysNotSerialized`].
    InsertReplay(Id),
    /// `delete_expired`, after the clock has passed the row's retention.
    Cleanup(Id),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            publishes: vec![Publish::Planned; self.scenario.groups.len()],
            minds: vec![Mind::default(); usize::from(self.scenario.workers) + 1],
            ..State::default()
        };
        if self.scenario.published {
            for index in 0..self.scenario.groups.len() {
                self.step(&mut state, Action::Draw(index));
                self.step(&mut state, Action::Commit(index));
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.of_producers(state, actions);
        for worker in self.known_workers(state) {
            self.of_worker(state, worker, actions);
        }
        for call in &state.calls {
            self.of_call(state, call, actions);
        }
        self.of_the_clock(state, actions);
        self.of_operators(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        match self.flaw {
            None => promise::all(self.scenario.reaches),
            Some(_) => promise::all(&[]),
        }
    }
}

// The possible next steps.
impl Protocol {
    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

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
                    // Producers are also interchangeable.
                    let has_turn = index == 0
                        || self.scenario.groups[index - 1] != group
                        || state.publishes[index - 1] != Publish::Planned;
                    if has_turn && !self.is_group_locked(state, group) {
                        actions.push(Action::Draw(index));
                    }
                }
                Publish::Open(_) => {
                    actions.push(Action::Commit(index));
                    if self.scenario.aborts {
                        actions.push(Action::Abort(index));
                    }
                }
                Publish::Over => {}
            }
        }
    }

    /// Whether it is published in the transaction of the first event, and ends with it.
    fn is_second_of_one(&self, index: usize) -> bool {
        self.scenario.together && index == 1
    }

    /// Whether an open transaction has published to the group.
    fn is_group_locked(&self, state: &State, group: Group) -> bool {
        !self.has(Flaw::NoGroupLock)
            && group.is_some()
            && state
                .publishes
                .iter()
                .zip(self.scenario.groups)
                .any(|(publish, theirs)| matches!(publish, Publish::Open(_)) && *theirs == group)
    }

    /// Unless one is a poller, workers are interchangeable, so the second one appears only after the first
    /// one has begun.
    fn known_workers(&self, state: &State) -> std::ops::Range<Worker> {
        let has_begun = |worker: &Worker| {
            *state.mind(*worker) != Mind::default()
                || state.leases.iter().any(|lease| lease.worker == *worker)
                || state.calls.iter().any(|call| call.worker == *worker)
        };
        let idle = (0..self.scenario.workers)
            .find(|worker| !has_begun(worker) && self.scenario.poller.is_none());
        0..idle.map_or(self.scenario.workers, |idle| idle + 1)
    }

    fn of_worker(&self, state: &State, worker: Worker, actions: &mut Vec<Action>) {
        let mind = state.mind(worker);
        if mind.gone {
            return;
        }
        let polls = self.scenario.poller == Some(worker);
        if state.call_of(worker).is_none() && (!polls || mind.held.is_empty()) {
            self.of_leases(state, worker, actions);
            actions.push(Action::Sweep(worker));
        }
        let has_something = !mind.held.is_empty() || state.call_of(worker).is_some();
        if has_something && state.spent.crashes < self.scenario.allowed.crashes {
            actions.push(Action::Crash(worker));
        }
        let needs_renewal = |held: &Held| {
            let lease = state.lease(held.token);
            lease.is_none_or(|lease| lease.expired && !lease.ended)
                || self.has(Flaw::RenewByIdAlone)
        };
        if mind.held.iter().any(needs_renewal) {
            actions.push(Action::Renew(worker));
        }
        for held in &mind.held {
            self.of_starts(state, worker, held, actions);
        }
        for (held, hand) in mind.hands() {
            self.of_hand(state, worker, (held, hand), actions);
        }
    }

    fn of_leases(&self, state: &State, worker: Worker, actions: &mut Vec<Action>) {
        let mind = state.mind(worker);
        let walks = [true, false].into_iter();
        let walks_on = self.scenario.walks && mind.walk.reached > 0;
        for from_start in walks.filter(|from_start| *from_start || walks_on) {
            let start = if from_start { 0 } else { mind.walk.reached };
            let rows = self.scannable(state, start, state.in_leases()).count();
            let most = rows.min(usize::from(self.scenario.most));
            for most in 1..=u8::try_from(most).expect("a model is small") {
                for first_window in self.first_windows(mind).iter().copied() {
                    let ask = Ask {
                        from_start,
                        most,
                        first_window,
                    };
                    self.of_ask(state, worker, ask, actions);
                }
            }
        }
    }

    /// While a suspect is in hand, a lease has no first window.
    fn first_windows(&self, mind: &Mind) -> &'static [u8] {
        let any_suspect = mind.held.iter().any(|held| held.suspect);
        if any_suspect && !self.has(Flaw::WindowBesideSuspect) {
            return &[0];
        }
        self.scenario.first_windows
    }

    fn of_ask(&self, state: &State, worker: Worker, ask: Ask, actions: &mut Vec<Action>) {
        let can_be_lost = state.spent.lost < self.scenario.allowed.lost;
        if self.scenario.apart {
            actions.push(Action::Begin(worker, ask));
            return;
        }
        actions.push(Action::Lease(worker, ask, true));
        if can_be_lost {
            actions.push(Action::Lease(worker, ask, false));
        }
    }

    fn of_call(&self, state: &State, call: &Call, actions: &mut Vec<Action>) {
        let token = call.token;
        match call.stage {
            Stage::Begun { .. } => actions.push(Action::Scan(token)),
            Stage::Scanned { .. } if self.has(Flaw::LocksBehindTheFacts) => {
                actions.push(Action::Glimpse(token));
            }
            Stage::Scanned { .. } => actions.push(Action::Look(token)),
            Stage::Glimpsed { .. } => actions.push(Action::LockOwn(token)),
            Stage::Looked { .. } => actions.extend([Action::Insert(token), Action::Fail(token)]),
            Stage::Committed => actions.push(Action::ReadLeased(token)),
            Stage::Read(_) => actions.push(Action::Arrive(token)),
        }
        if call.awaited && state.spent.lost < self.scenario.allowed.lost {
            actions.push(Action::Lose(token));
        }
    }

    /// A further window of a lease: the whole lease at once, or one more handler.
    pub fn of_starts(&self, state: &State, worker: Worker, held: &Held, actions: &mut Vec<Action>) {
        let mind = state.mind(worker);
        let waiting = held.hands.iter().filter(|hand| {
            hand.id > held.started_to && hand.stage == Handling::Waiting && !hand.abandoned
        });
        let suspect_begun = mind
            .hands()
            .any(|(held, hand)| held.suspect && hand.id <= held.asked_to);
        let may = if held.suspect {
            let is_first = held.hands.iter().all(|hand| mind.has_turn(hand));
            let awaits_window = state
                .call_of(worker)
                .is_some_and(|call| call.ask.first_window > 0);
            let is_alone = !mind.any_begun_but(held.token);
            let beside = self.scenario.wait_ends
                && (!suspect_begun || self.has(Flaw::SuspectBesideSuspect))
                && !last_waits(mind);
            self.has(Flaw::SuspectBesideWindow)
                || is_first && (is_alone && !awaits_window || beside)
        } else {
            !suspect_begun || self.scenario.wait_ends || self.has(Flaw::SuspectBesideWindow)
        };
        let stays = |hand: &Hand| {
            suspect_begun && hand.last && !held.suspect && !self.has(Flaw::LastBesideSuspect)
        };
        if !may || !self.scenario.runs {
            return;
        }
        for hand in waiting.take_while(|hand| !stays(hand)) {
            actions.push(Action::Start(worker, held.token, hand.id, true));
            if state.spent.unheard < self.scenario.allowed.unheard {
                actions.push(Action::Start(worker, held.token, hand.id, false));
            }
        }
    }

    pub fn of_hand(
        &self,
        state: &State,
        worker: Worker,
        (held, hand): (&Held, &Hand),
        actions: &mut Vec<Action>,
    ) {
        let (token, id) = (held.token, hand.id);
        match hand.stage {
            Handling::Waiting if hand.abandoned => {
                actions.push(Action::End(worker, token, id, Verdict::Fail));
            }
            Handling::Waiting => {
                let is_begun = id <= held.started_to || self.has(Flaw::StartsAhead);
                if self.scenario.runs && is_begun && state.mind(worker).has_turn(hand) {
                    actions.push(Action::Handle(worker, token, id));
                }
                if state.spent.handed_back < self.scenario.allowed.handed_back {
                    self.of_give_back(state, worker, (token, id), Verdict::HandBack, actions);
                }
            }
            Handling::Running => {
                if self.scenario.opens && state.open.is_none() {
                    actions.push(Action::Hold(token, id));
                }
                actions.push(Action::End(worker, token, id, Verdict::Complete));
                if self.scenario.retries && hand.last {
                    actions.push(Action::End(worker, token, id, Verdict::Fail));
                } else if self.scenario.retries {
                    self.of_give_back(state, worker, (token, id), Verdict::Retry, actions);
                }
                if hand.snoozes < self.scenario.most_snoozes {
                    self.of_give_back(state, worker, (token, id), Verdict::Snooze, actions);
                }
            }
            Handling::Over(verdict @ (Verdict::Complete | Verdict::Fail)) => {
                self.of_end(state, worker, (token, hand), verdict, actions);
            }
            Handling::Over(verdict) => {
                self.of_give_back(state, worker, (token, id), verdict, actions);
            }
        }
    }

    /// An end waits for a lock on the event's row. If it ends the lease, it also waits for a lock on the
    /// lease.
    fn of_end(
        &self,
        state: &State,
        worker: Worker,
        (token, hand): (Token, &Hand),
        verdict: Verdict,
        actions: &mut Vec<Action>,
    ) {
        let locked = self.locked_leases(state).has(token);
        if locked || self.locked_rows(state).has(hand.id) {
            return;
        }
        if self.has(Flaw::NoFence) && !hand.peeked {
            if state.is_held(token, hand.id) {
                actions.push(Action::Peek(worker, token, hand.id));
            }
            return;
        }
        let act = |heard| match verdict {
            Verdict::Complete => Action::Complete(worker, token, hand.id, heard),
            _ => Action::Finalize(worker, token, hand.id, heard),
        };
        actions.push(act(true));
        if state.spent.unheard < self.scenario.allowed.unheard {
            actions.push(act(false));
        }
    }

    /// A give-back waits for a lock on one of the leases that it names, or on a row that leaves.
    pub fn of_give_back(
        &self,
        state: &State,
        worker: Worker,
        (token, id): (Token, Id),
        verdict: Verdict,
        actions: &mut Vec<Action>,
    ) {
        let named = self.named(state, worker);
        let leaving = self.leaving(state, worker, named, id);
        if self.is_locked(state, named, leaving) {
            return;
        }
        let act = |heard| match verdict {
            Verdict::Retry => Action::Retry(worker, token, id, heard),
            Verdict::Snooze => Action::Snooze(worker, token, id, heard),
            _ => Action::HandBack(worker, token, id, heard),
        };
        actions.push(act(true));
        if state.spent.unheard < self.scenario.allowed.unheard {
            actions.push(act(false));
        }
    }

    fn is_locked(&self, state: &State, tokens: Set, rows: Set) -> bool {
        !tokens.and(self.locked_leases(state)).is_empty()
            || !rows.and(self.locked_rows(state)).is_empty()
    }

    fn of_the_clock(&self, state: &State, actions: &mut Vec<Action>) {
        if state.open.is_some() {
            actions.push(Action::Close);
        } else if self.scenario.opens {
            actions.push(Action::Visit);
        }
        if state.spent.lapses < self.scenario.allowed.lapses {
            let running = state.leases.iter().filter(|lease| !lease.expired);
            actions.extend(running.map(|lease| Action::Expire(lease.token)));
        }
        let delayed = state.queue.iter().filter(|row| row.delayed);
        actions.extend(delayed.map(|row| Action::Promote(row.id)));
        if self.scenario.paused.is_some() && !state.resumed {
            actions.push(Action::Resume);
        }
        if self.scenario.cleanup {
            actions.extend(state.log.iter().map(|ended| Action::Cleanup(ended.id)));
            if self.has(Flaw::CleanupIgnoresState) {
                actions.extend(state.queue.iter().map(|row| Action::Cleanup(row.id)));
            }
        }
    }

    fn of_operators(&self, state: &State, actions: &mut Vec<Action>) {
        let allowed = self.scenario.allowed;
        for row in &state.queue {
            if state.spent.requeues < allowed.requeues && self.can_requeue(state, row.id) {
                actions.push(Action::Requeue(row.id));
            }
            if state.spent.cancels < allowed.cancels && self.can_cancel(state, row.id) {
                actions.push(Action::Cancel(row.id));
            }
            if self.has(Flaw::ReplayOfLive) && state.spent.replays < allowed.replays {
                actions.push(Action::Replay(row.id));
            }
        }
        if self.has(Flaw::ReplaysNotSerialized) {
            actions.extend(state.looks.iter().map(|id| Action::InsertReplay(*id)));
        }
        for ended in &state.log {
            let is_possible = !state
                .queue
                .iter()
                .any(|row| row.replay_of == Some(ended.id))
                && !self.is_group_locked(state, ended.group);
            let unserialized = self.has(Flaw::ReplaysNotSerialized);
            // Two operators replay once more than one operator.
            if is_possible && unserialized && state.spent.replays <= allowed.replays {
                actions.push(Action::LookAt(ended.id));
            } else if is_possible && state.spent.replays < allowed.replays {
                actions.push(Action::Replay(ended.id));
            }
        }
    }

    /// A cancel waits for a lock on the event's lease, or on the event.
    fn can_cancel(&self, state: &State, id: Id) -> bool {
        let leases = state.leases.iter().filter(|lease| lease.ids.has(id));
        let tokens: Set = leases.map(|lease| lease.token).collect();
        !self.is_locked(state, tokens, Set::one(id))
    }

    /// A requeue waits for a lock on a lease of the event's worker, or on a row that leaves.
    fn can_requeue(&self, state: &State, id: Id) -> bool {
        let owner = state.leases.iter().find(|lease| lease.ids.has(id));
        let Some(worker) = owner.map(|lease| lease.worker) else {
            return !self.is_locked(state, Set::default(), Set::one(id));
        };
        let theirs = state.leases.iter().filter(|lease| lease.worker == worker);
        let tokens: Set = theirs.map(|lease| lease.token).collect();
        let leaving = self.leaving(state, worker, tokens, id);
        !self.is_locked(state, tokens, leaving)
    }
}

// The effect of each step.
impl Protocol {
    /// Applies an action that is possible in this state.
    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Draw(index) => state.publishes[index] = Publish::Open(state.draw()),
            Action::Commit(index) => self.end_publish(state, index, true),
            Action::Abort(index) => self.end_publish(state, index, false),
            Action::Handle(worker, token, id) => Self::handle(state, worker, token, id),
            Action::End(worker, token, id, verdict) => self.end(state, worker, token, id, verdict),
            Action::Renew(worker) => self.renew(state, worker),
            Action::Crash(worker) => crash(state, worker),
            Action::Sweep(worker) => self.sweep(state, worker),
            Action::Resume => state.resumed = true,
            Action::Requeue(id) => self.requeue(state, id),
            Action::Cancel(id) => self.cancel(state, id),
            Action::Replay(id) => {
                state.spent.replays += 1;
                insert_replay(state, id);
            }
            Action::LookAt(id) => {
                state.spent.replays += 1;
                state.looks.push(id);
            }
            Action::InsertReplay(id) => {
                let place = state.looks.iter().position(|other| *other == id);
                state
                    .looks
                    .remove(place.expect("an operator has looked before"));
                insert_replay(state, id);
            }
            Action::Cleanup(id) => cleanup(state, id),
            Action::Expire(token) => expire(state, token),
            Action::Hold(token, id) => self.hold(state, token, id),
            Action::Visit => self.visit(state),
            Action::Close => state.open = None,
            Action::Promote(id) => promote(state, id),
            _ => self.step_of_a_worker(state, action),
        }
        state.tidy();
    }

    fn step_of_a_worker(&self, state: &mut State, action: Action) {
        let (Action::Start(.., heard)
        | Action::Complete(.., heard)
        | Action::Finalize(.., heard)
        | Action::Retry(.., heard)
        | Action::Snooze(.., heard)
        | Action::HandBack(.., heard)) = action
        else {
            return self.step_of_a_call(state, action);
        };
        state.spent.unheard += u8::from(!heard);
        match action {
            Action::Start(worker, token, upto, _) => {
                self.start(state, worker, token, upto, heard);
            }
            Action::Complete(worker, token, id, _) | Action::Finalize(worker, token, id, _) => {
                self.complete(state, worker, token, id, heard);
            }
            Action::Retry(worker, token, id, _) => {
                self.give_back(state, worker, (token, id), Verdict::Retry, heard);
            }
            Action::Snooze(worker, token, id, _) => {
                self.give_back(state, worker, (token, id), Verdict::Snooze, heard);
            }
            Action::HandBack(worker, token, id, _) => {
                state.spent.handed_back += 1;
                self.give_back(state, worker, (token, id), Verdict::HandBack, heard);
            }
            _ => unreachable!("it is no write of a worker"),
        }
    }

    fn step_of_a_call(&self, state: &mut State, action: Action) {
        match action {
            Action::Lease(worker, ask, heard) => self.lease(state, worker, ask, heard),
            Action::Begin(worker, ask) => {
                self.begin(state, worker, ask);
            }
            Action::Scan(token) => self.scan(state, token),
            Action::Look(token) => self.look(state, token),
            Action::Glimpse(token) => Self::glimpse(state, token),
            Action::LockOwn(token) => self.lock_own(state, token),
            Action::Insert(token) => self.insert(state, token),
            Action::Fail(token) => state.calls.retain(|call| call.token != token),
            Action::ReadLeased(token) => self.read_leased(state, token),
            Action::Arrive(token) => self.arrive(state, token),
            Action::Lose(token) => Self::lose(state, token),
            Action::Peek(worker, token, id) => {
                if let Some(hand) = state.mind_mut(worker).hand_mut(token, id) {
                    hand.peeked = true;
                }
            }
            _ => unreachable!("it is no step of a lease"),
        }
    }
}

/// Whether an event on its last attempt has a window, but has not started. A worker opens it only for a
/// handler that starts at once, so no suspect begins in between.
fn last_waits(mind: &Mind) -> bool {
    let waits = |hand: &Hand| hand.last && hand.stage == Handling::Waiting;
    mind.hands()
        .any(|(held, hand)| !held.suspect && hand.id <= held.asked_to && waits(hand))
}

fn crash(state: &mut State, worker: Worker) {
    state.spent.crashes += 1;
    for call in &mut state.calls {
        call.awaited &= call.worker != worker;
    }
    let is_answered = |call: &Call| matches!(call.stage, Stage::Committed | Stage::Read(_));
    state
        .calls
        .retain(|call| call.awaited || !is_answered(call));
    *state.mind_mut(worker) = Mind {
        gone: true,
        ..Mind::default()
    };
}

fn expire(state: &mut State, token: Token) {
    state.spent.lapses += 1;
    if let Some(lease) = state.lease_mut(token) {
        lease.expired = true;
    }
}

fn promote(state: &mut State, id: Id) {
    if let Some(row) = state.row_mut(id) {
        row.delayed = false;
    }
}
