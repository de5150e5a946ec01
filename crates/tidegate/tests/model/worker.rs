//! What a worker does with its leases: it runs handlers and sends statements.

use crate::flaw::Flaw;
use crate::protocol::Protocol;
use crate::state::{
    Breach, Call, Ended, Handling, Held, Id, Lease, Mind, Row, Set, State, Token, Verdict, Worker,
};

impl Protocol {
    /// `start`.
    pub fn start(&self, state: &mut State, worker: Worker, token: Token, upto: Id, heard: bool) {
        let mut cuts = None;
        if let Some(lease) = state.lease_mut(token) {
            lease.started_to = lease.started_to.max(upto);
            cuts = Some(lease.cuts);
        }
        let Some(held) = state.mind_mut(worker).held_mut(token) else {
            return;
        };
        held.asked_to = held.asked_to.max(upto);
        if !heard {
            return;
        }
        let is_whole = cuts == Some(held.cuts);
        if is_whole || cuts.is_some() && self.has(Flaw::CutsNotAsked) {
            held.started_to = held.started_to.max(upto);
        } else {
            Self::in_hand(state, worker);
        }
    }

    /// A handler starts.
    pub fn handle(state: &mut State, worker: Worker, token: Token, id: Id) {
        let Some(hand) = state.mind_mut(worker).hand_mut(token, id) else {
            return;
        };
        hand.stage = Handling::Running;
        let is_charged = hand.charged;
        if !state.is_held(token, id) {
            if !is_charged {
                state.breach(Breach::Uncounted);
            }
            return;
        }
        if state.row(id).is_some_and(Row::is_exhausted) {
            state.breach(Breach::TooOften);
        }
        if overtakes(state, worker, id) {
            state.breach(Breach::OutOfOrder);
        }
        if starts_beside(state.mind(worker), token, id) {
            state.breach(Breach::StartedBeside);
        }
        if let Some(lease) = state.lease_mut(token) {
            lease.ran = lease.ran.or(Set::one(id));
        }
    }

    /// A handler ends. Nothing is written.
    pub fn end(&self, state: &mut State, worker: Worker, token: Token, id: Id, verdict: Verdict) {
        if verdict == Verdict::Complete && self.has(Flaw::EffectApart) {
            effect(state, id);
        }
        if let Some(hand) = state.mind_mut(worker).hand_mut(token, id) {
            let fails = verdict == Verdict::Fail && !hand.abandoned;
            hand.stage = Handling::Over(verdict);
            if fails {
                state.witness.failed = state.witness.failed.or(Set::one(id));
            }
        }
    }

    /// `complete`, `complete_held` or `finalize` of one event. With the last event of its lease, it marks the
    /// lease as ended.
    pub fn complete(&self, state: &mut State, worker: Worker, token: Token, id: Id, heard: bool) {
        let Some(hand) = state.mind(worker).hand(token, id).cloned() else {
            return;
        };
        let cuts = state.lease(token).map(|lease| lease.cuts);
        let is_held = state.is_held(token, id);
        let ends = state.row(id).is_some()
            && match self.flaw {
                Some(Flaw::CompleteByIdAlone) => true,
                Some(Flaw::NoFence) => hand.peeked,
                _ => is_held,
            };
        let is_whole = state.mind(worker).held(token).map(|held| held.cuts) == cuts;
        let is_last = |held: &Held| held.hands.len() == 1;
        let is_over = state.mind(worker).held(token).is_some_and(is_last);
        if is_over && self.scenario.ended_stay {
            if let Some(lease) = state.lease_mut(token) {
                lease.ended = true;
            }
        } else if is_over || self.has(Flaw::OverTooEarly) {
            state.leases.retain(|lease| lease.token != token);
        }
        if ends {
            if !is_held {
                state.breach(Breach::StaleWrite);
            }
            let completes = hand.stage == Handling::Over(Verdict::Complete);
            if completes && !self.has(Flaw::EffectApart) {
                effect(state, id);
            }
            self.finish(state, id, completes, !hand.abandoned);
        } else {
            state.witness.refused = true;
        }
        if heard {
            drop_hands(state.mind_mut(worker), Set::one(id), Some(token));
            if !ends || !is_whole {
                Self::in_hand(state, worker);
            }
        }
    }

    /// Moves the event to the log.
    pub fn finish(&self, state: &mut State, id: Id, completed: bool, ran: bool) {
        let is_logged = state.ended(id).is_some();
        if self.has(Flaw::EndInTwoStatements) && !is_logged {
            let row = state.row(id).cloned();
            log(state, row, completed, ran);
            return;
        }
        let row = take_row(state, id);
        if !is_logged {
            log(state, row, completed, ran);
        }
    }

    /// `retry` or `hand_back` of one event. The event leaves the lease it was in hand under, and the later
    /// events of its group leave all leases of the worker.
    pub fn give_back(
        &self,
        state: &mut State,
        worker: Worker,
        (token, id): (Token, Id),
        verdict: Verdict,
        heard: bool,
    ) {
        let hand = state.mind(worker).hand(token, id);
        let before = hand.map_or(0, |hand| hand.snoozes);
        let left = self.take_back(state, worker, (token, id), verdict);
        if left.is_empty() {
            state.witness.refused = true;
        } else if verdict == Verdict::Retry {
            charge_retry(state, id);
        } else if verdict == Verdict::Snooze {
            self.snooze(state, id, before);
        }
        if !heard {
            return self.doubt(state.mind_mut(worker), (token, id), verdict);
        }
        drop_hands(state.mind_mut(worker), left, None);
        drop_hands(state.mind_mut(worker), Set::one(id), Some(token));
        if left.is_empty() {
            Self::in_hand(state, worker);
        } else {
            overtake(state, worker);
        }
    }

    /// The event becomes ready later. Its worker has read how often it had been snoozed before.
    fn snooze(&self, state: &mut State, id: Id, before: u8) {
        let Some(row) = state.row_mut(id) else {
            return;
        };
        row.delayed = true;
        row.attempts += u8::from(self.has(Flaw::SnoozeCharges));
        if !self.has(Flaw::SnoozesForgotten) {
            row.snoozes = before + 1;
        }
        let snoozed = &mut state.witness.snoozed[usize::from(id) - 1];
        *snoozed += 1;
        if *snoozed > self.scenario.most_snoozes {
            state.breach(Breach::SnoozedTooOften);
        }
    }

    /// Returns the events that left.
    fn take_back(
        &self,
        state: &mut State,
        worker: Worker,
        (token, id): (Token, Id),
        verdict: Verdict,
    ) -> Set {
        let (by_id_alone, counted) = match verdict {
            Verdict::Retry | Verdict::Snooze => (self.has(Flaw::RetryByIdAlone), Set::one(id)),
            _ => (self.has(Flaw::HandBackByIdAlone), Set::default()),
        };
        let is_held = state.is_held(token, id);
        let mut left = Set::default();
        if is_held || self.has(Flaw::GivesBackOutOfAnyLease) {
            let named = self.named(state, worker);
            left = self.hand_back(state, worker, named, id, counted, false);
        } else if by_id_alone && state.row(id).is_some() {
            left = Set::one(id);
        }
        if !is_held && !left.is_empty() {
            state.breach(Breach::StaleWrite);
        }
        left
    }

    /// If a give-back has no answer, the worker starts neither the event nor those that leave with it until
    /// an answer arrives.
    fn doubt(&self, mind: &mut Mind, (token, id): (Token, Id), verdict: Verdict) {
        if self.has(Flaw::StartsWhatItGaveBack) {
            return;
        }
        let group = mind.hand(token, id).and_then(|hand| hand.group);
        for hand in mind.held.iter_mut().flat_map(|held| &mut held.hands) {
            let is_behind = group.is_some() && hand.group == group && hand.id > id;
            if is_behind && hand.stage == Handling::Waiting && !self.has(Flaw::StartsWhatLeftAlong)
            {
                hand.stage = Handling::Over(Verdict::HandBack);
            }
        }
        if let Some(hand) = mind.hand_mut(token, id) {
            hand.stage = Handling::Over(verdict);
        }
    }

    /// The tokens that a give-back names: leases in hand, the lease being taken, and leases whose answer was
    /// lost.
    pub fn named(&self, state: &State, worker: Worker) -> Set {
        let mind = state.mind(worker);
        let mut named = mind.tokens();
        if !self.has(Flaw::LostNotNamed) {
            named = named.or(mind.lost);
        }
        if let Some(call) = state.call_of(worker)
            && !self.has(Flaw::UnderWayNotNamed)
        {
            named = named.or(Set::one(call.token));
        }
        named
    }

    /// `hand_back`: an event and the later events of its group leave these leases of the worker. Returns all
    /// events that left. The caller charges the attempts of those in `counted` that were started.
    pub fn hand_back(
        &self,
        state: &mut State,
        worker: Worker,
        named: Set,
        id: Id,
        counted: Set,
        foreign_hand: bool,
    ) -> Set {
        let leaving = self.leaving(state, worker, named, id);
        for row in &mut state.queue {
            if leaving.has(row.id) && row.group.is_some() && !self.has(Flaw::NoStrayAtGiveBack) {
                row.stray = true;
            }
        }
        let mut uncounted = Set::default();
        for lease in &mut state.leases {
            let hole = lease.ids.and(leaving);
            if lease.worker != worker || !named.has(lease.token) || hole.is_empty() {
                continue;
            }
            uncounted = uncounted.or(lease.ran.and(hole).minus(counted));
            lease.ids = lease.ids.minus(hole);
            lease.ran = lease.ran.minus(hole);
            lease.cuts += u8::from(foreign_hand);
        }
        if !uncounted.is_empty() {
            state.breach(Breach::Uncounted);
        }
        state.leases.retain(|lease| !lease.ids.is_empty());
        leaving
    }

    pub fn leaving(&self, state: &State, worker: Worker, named: Set, id: Id) -> Set {
        let theirs = |lease: &&Lease| lease.worker == worker && named.has(lease.token);
        let own = state.leases.iter().filter(theirs);
        let own = own.fold(Set::default(), |ids, lease| ids.or(lease.ids));
        if !own.has(id) {
            return Set::default();
        }
        if self.has(Flaw::FollowersStay) {
            return Set::one(id);
        }
        Set::one(id).or(state.behind(id).and(own))
    }

    /// `renew` of all leases that the worker holds.
    pub fn renew(&self, state: &mut State, worker: Worker) {
        let tokens = state.mind(worker).tokens();
        let in_hand: Set = state
            .mind(worker)
            .hands()
            .map(|(_, hand)| hand.id)
            .collect();
        let mut is_stale = false;
        for lease in &mut state.leases {
            let is_ours = tokens.has(lease.token) && lease.worker == worker;
            let by_id = self.has(Flaw::RenewByIdAlone) && !lease.ids.and(in_hand).is_empty();
            if is_ours || by_id {
                is_stale |= lease.expired && !is_ours;
                lease.expired = false;
            }
        }
        if is_stale {
            state.breach(Breach::StaleWrite);
        }
        if tokens.iter().any(|token| state.lease(token).is_none()) {
            state.witness.refused = true;
            Self::in_hand(state, worker);
        }
    }

    /// `in_hand`, after a loss: the worker forgets events that have left its leases.
    pub fn in_hand(state: &mut State, worker: Worker) {
        let mut mind = state.mind(worker).clone();
        for held in &mut mind.held {
            let lease = state.lease(held.token);
            let ids = lease.map_or(Set::default(), |lease| lease.ids);
            held.hands.retain(|hand| ids.has(hand.id));
            if let Some(lease) = lease {
                held.cuts = lease.cuts;
                held.started_to = lease.started_to;
                held.asked_to = held.asked_to.max(lease.started_to);
            }
        }
        *state.mind_mut(worker) = mind;
        overtake(state, worker);
    }
}

/// The lease in progress was requested before an event left the worker's hands.
fn overtake(state: &mut State, worker: Worker) {
    let theirs = |call: &&mut Call| call.awaited && call.worker == worker;
    for call in state.calls.iter_mut().filter(theirs) {
        call.overtaken = true;
    }
}

fn drop_hands(mind: &mut Mind, ids: Set, only: Option<Token>) {
    for held in &mut mind.held {
        if only.is_none_or(|only| only == held.token) {
            held.hands.retain(|hand| !ids.has(hand.id));
        }
    }
}

/// Whether an earlier committed event of its group is live, and this worker has not finished it under a lease
/// that it holds.
fn overtakes(state: &State, worker: Worker, id: Id) -> bool {
    let group = state.row(id).and_then(|row| row.group);
    let committed = &state.witness.committed;
    let earlier = committed.iter().take_while(|other| **other != id);
    let earlier: Set = earlier.copied().collect();
    let mind = state.mind(worker);
    let is_handled = |row: &Row| {
        mind.hands().any(|(held, hand)| {
            hand.id == row.id && hand.is_handled() && state.is_held(held.token, row.id)
        })
    };
    group.is_some()
        && state
            .queue
            .iter()
            .any(|row| row.group == group && earlier.has(row.id) && !is_handled(row))
}

/// Whether a suspect of this worker runs that could take this event's suspicion or its last attempt along.
fn starts_beside(mind: &Mind, token: Token, id: Id) -> bool {
    let is_tender = mind.held(token).is_some_and(|held| held.suspect)
        || mind.hand(token, id).is_some_and(|hand| hand.last);
    let mut others = mind.hands().filter(|(_, hand)| hand.id != id);
    is_tender && others.any(|(held, hand)| held.suspect && hand.stage == Handling::Running)
}

fn effect(state: &mut State, id: Id) {
    state.witness.effects[usize::from(id) - 1] += 1;
}

pub fn take_row(state: &mut State, id: Id) -> Option<Row> {
    let place = state.queue.iter().position(|row| row.id == id)?;
    Some(state.queue.remove(place))
}

fn charge_retry(state: &mut State, id: Id) {
    if let Some(row) = state.row_mut(id) {
        row.attempts += 1;
        row.delayed = true;
        state.witness.failed = state.witness.failed.or(Set::one(id));
    }
}

fn log(state: &mut State, row: Option<Row>, completed: bool, ran: bool) {
    let Some(row) = row else {
        return;
    };
    if !completed && !state.witness.failed.has(row.id) {
        state.breach(Breach::GivenUpUnfailed);
    }
    state.log.push(Ended {
        id: row.id,
        group: row.group,
        attempts: row.attempts + u8::from(ran),
        max_attempts: row.max_attempts,
        completed,
    });
}
