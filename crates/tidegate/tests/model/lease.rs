//! `tidegate.lease`, statement by statement, and how the worker uses its answer.

use crate::flaw::Flaw;
use crate::protocol::Protocol;
use crate::state::{
    Ask, Breach, Call, Facts, Hand, Handling, Held, Id, Lease, Page, Row, Set, Stage, State, Token,
    Walk, Worker, in_leases,
};

impl Protocol {
    /// The whole call. The answer arrives or is lost.
    pub fn lease(&self, state: &mut State, worker: Worker, ask: Ask, heard: bool) {
        let token = self.begin(state, worker, ask);
        self.scan(state, token);
        self.look(state, token);
        if !heard {
            Self::lose(state, token);
        }
        self.insert(state, token);
        if heard {
            self.read_leased(state, token);
            self.arrive(state, token);
        }
    }

    /// Reads the events in hand.
    pub fn begin(&self, state: &mut State, worker: Worker, ask: Ask) -> Token {
        let token = state.free_token();
        let mind = state.mind(worker);
        let named = |held: &&Held| !held.suspect || self.has(Flaw::SuspectsDoNotBar);
        let held = mind.held.iter().filter(named).map(|held| held.token);
        let (held, mut walk) = (held.collect(), mind.walk);
        if ask.from_start || walk.reached == 0 {
            walk = Walk {
                seen: self.written(state),
                ..Walk::default()
            };
        }
        state.calls.push(Call {
            token,
            worker,
            ask,
            held,
            walk,
            start: walk.reached,
            locked: Set::default(),
            stage: Stage::Begun {
                active: state.in_leases(),
            },
            awaited: true,
            overtaken: false,
        });
        token
    }

    /// The events that count as written before a walk that begins now.
    fn written(&self, state: &State) -> Set {
        if self.has(Flaw::YoungById) {
            return Set::up_to(state.witness.drawn);
        }
        state.witness.committed.iter().copied().collect()
    }

    /// The scan: in id order, `FOR NO KEY UPDATE SKIP LOCKED`. A suspect is leased alone, and no event behind
    /// one.
    pub fn scan(&self, state: &mut State, token: Token) {
        let mut call = take_call(state, token);
        let Stage::Begun { active } = call.stage else {
            unreachable!("a call begins with what is in hand");
        };
        let rows = self.scannable(state, call.start, active);
        let rows: Vec<&Row> = rows.take(usize::from(call.ask.most)).collect();
        call.locked = rows.iter().map(|row| row.id).collect();
        let first_suspect = rows.iter().position(|row| row.suspect);
        let kept = match first_suspect {
            _ if self.has(Flaw::SuspectsInCompany) => rows.len(),
            Some(0) => 1,
            Some(place) => place,
            None => rows.len(),
        };
        let page = Page {
            ids: rows[..kept].iter().map(|row| row.id).collect(),
            suspect: first_suspect == Some(0) && !self.has(Flaw::SuspectsInCompany),
        };
        call.walk.reached = page.ids.last().unwrap_or(call.walk.reached);
        call.stage = Stage::Scanned { page };
        state.calls.push(call);
    }

    pub fn scannable<'a>(
        &self,
        state: &'a State,
        start: Id,
        active: Set,
    ) -> impl Iterator<Item = &'a Row> {
        let locked = self.locked_rows(state);
        state.queue.iter().filter(move |row| {
            let is_paused = row.paused && !state.resumed;
            row.id > start
                && !row.delayed
                && !is_paused
                && !active.has(row.id)
                && !locked.has(row.id)
        })
    }

    /// Rows that a call of `lease` or an open transaction has locked. Writers wait for them, and scans skip
    /// them.
    pub fn locked_rows(&self, state: &State) -> Set {
        if self.has(Flaw::NoRowLocks) || self.has(Flaw::NoRowLocksNorConstraint) {
            return Set::default();
        }
        let locked = state.calls.iter().map(|call| call.locked);
        let open = state.open.map(|open| open.rows);
        locked.chain(open).fold(Set::default(), Set::or)
    }

    /// Leases that a call of `lease` or an open transaction has locked. No event leaves them before it has
    /// ended.
    pub fn locked_leases(&self, state: &State) -> Set {
        if self.has(Flaw::NoOwnLock) {
            return Set::default();
        }
        let locked = state.calls.iter().map(|call| match &call.stage {
            Stage::Looked { facts, .. } => facts.own_tokens,
            _ => Set::default(),
        });
        let open = state.open.map(|open| open.leases);
        locked.chain(open).fold(Set::default(), Set::or)
    }

    /// The second look: own leases are locked, then the facts are read from one snapshot.
    pub fn look(&self, state: &mut State, token: Token) {
        Self::glimpse(state, token);
        self.lock_own(state, token);
    }

    /// Reads the facts.
    pub fn glimpse(state: &mut State, token: Token) {
        let mut call = take_call(state, token);
        let Stage::Scanned { page } = call.stage else {
            unreachable!("a call looks again after its scan");
        };
        call.stage = Stage::Glimpsed {
            page,
            queue: state.queue.clone(),
            leases: state.leases.clone(),
        };
        state.calls.push(call);
    }

    /// Locks the worker's own leases, and reads their events at this moment.
    pub fn lock_own(&self, state: &mut State, token: Token) {
        let mut call = take_call(state, token);
        let Stage::Glimpsed {
            page,
            queue,
            leases,
        } = &call.stage
        else {
            unreachable!("the facts are read before");
        };
        let is_own = |lease: &&Lease| {
            lease.worker == call.worker
                && (call.held.has(lease.token) || self.has(Flaw::LostCountsAsOurs))
        };
        let own: Vec<Lease> = state.leases.iter().filter(is_own).cloned().collect();
        let facts = self.facts(&call, *page, queue, leases, &own);
        call.stage = Stage::Looked { page: *page, facts };
        state.calls.push(call);
    }

    fn facts(
        &self,
        call: &Call,
        page: Page,
        queue: &[Row],
        live: &[Lease],
        own: &[Lease],
    ) -> Facts {
        let own_tokens: Set = own.iter().map(|lease| lease.token).collect();
        let (own, all) = (in_leases(own), in_leases(live));
        let is_clear = call.start <= call.walk.clear_to;
        let passed: Set = queue
            .iter()
            .filter(|row| is_clear && !row.delayed && !row.stray && row.group.is_some())
            .filter(|row| row.id > call.start && row.id <= call.walk.reached)
            .filter(|row| !page.ids.has(row.id) && !all.has(row.id))
            .map(|row| row.id)
            .collect();
        let strange = live.iter().filter(|lease| !own_tokens.has(lease.token));
        let busy = strange.fold(Set::default(), |ids, lease| ids.or(lease.ids));
        let looks_again =
            !self.has(Flaw::NoSecondLook) && !self.has(Flaw::NoSecondLookNorConstraint);
        let others = all.minus(own);
        Facts {
            mine: if looks_again {
                page.ids.minus(others)
            } else {
                page.ids
            },
            own,
            own_tokens,
            doubtful: if is_clear || self.has(Flaw::ClearToIgnored) {
                self.doubtful(call, page.ids, queue, own, (passed, busy))
            } else {
                groups(queue, page.ids)
            },
            first_passed: passed.first(),
        }
    }

    /// The doubtful groups: groups of events that were passed and not leased, of events in another worker's
    /// lease, of events younger than the walk, and of strays of other workers.
    fn doubtful(
        &self,
        call: &Call,
        page: Set,
        queue: &[Row],
        own: Set,
        (passed, busy): (Set, Set),
    ) -> Set {
        let mut ids = Set::default();
        if !self.has(Flaw::PassedNotAsked) {
            ids = ids.or(passed);
        }
        if !self.has(Flaw::YoungNotAsked) {
            ids = ids.or(page.minus(call.walk.seen));
        }
        if !self.has(Flaw::BusyNotAsked) {
            ids = ids.or(busy);
        }
        let strays = queue.iter().filter(|row| row.stray && row.group.is_some());
        let strays: Set = strays.map(|row| row.id).collect();
        if !strays.minus(page).minus(own).is_empty() {
            ids = ids.or(strays);
        }
        groups(queue, ids)
    }

    /// The cut of doubtful groups, the insert and its COMMIT.
    pub fn insert(&self, state: &mut State, token: Token) {
        let mut call = take_call(state, token);
        let Stage::Looked { page, facts } = call.stage else {
            unreachable!("a call looks before it inserts");
        };
        let cut = cut(&state.queue, page.ids, &facts);
        let mine = facts.mine.minus(cut);
        let first_passed = cut.first().into_iter().chain(facts.first_passed).min();
        if call.start <= call.walk.clear_to {
            let clear = first_passed.map_or(call.walk.reached, |id| call.walk.reached.min(id - 1));
            call.walk.clear_to = call.walk.clear_to.max(clear);
        }
        if !mine.and(state.in_leases()).is_empty() {
            state.breach(Breach::Clash);
            let lacks_constraint = self.has(Flaw::NoRowLocksNorConstraint)
                || self.has(Flaw::NoSecondLookNorConstraint);
            if !lacks_constraint {
                return;
            }
        }
        if !mine.is_empty() {
            let is_alone = page.suspect && !self.has(Flaw::SuspectStartsWithItsLease);
            let begun = match self.scenario.poller {
                Some(poller) if poller == call.worker => call.ask.most,
                _ if is_alone => 0,
                _ => call.ask.first_window,
            };
            state.leases.push(Lease {
                token,
                worker: call.worker,
                ids: mine,
                started_to: mine.iter().take(usize::from(begun)).last().unwrap_or(0),
                expired: false,
                ended: false,
                cuts: 0,
                walk: self.known(call.walk),
                ran: Set::default(),
                heard: false,
            });
        }
        if call.awaited {
            call.locked = Set::default();
            call.stage = Stage::Committed;
            state.calls.push(call);
        }
    }

    /// What is kept of a walk that another lease may continue.
    fn known(&self, walk: Walk) -> Walk {
        if self.scenario.walks {
            return walk;
        }
        Walk::default()
    }

    /// `read_leased`.
    pub fn read_leased(&self, state: &mut State, token: Token) {
        let mut call = take_call(state, token);
        call.stage = Stage::Read(self.held_under(state, token));
        state.calls.push(call);
    }

    fn held_under(&self, state: &State, token: Token) -> Option<Held> {
        let lease = state.lease(token)?;
        let in_lease = |row: &&Row| lease.ids.has(row.id);
        let suspects = || state.queue.iter().filter(in_lease).any(|row| row.suspect);
        let hand = |row: &Row| Hand {
            id: row.id,
            group: row.group,
            abandoned: row.is_exhausted() && !self.has(Flaw::NoAttemptCheck),
            last: row.attempts + 1 >= row.max_attempts,
            snoozes: row.snoozes,
            stage: Handling::Waiting,
            peeked: false,
            charged: false,
        };
        Some(Held {
            token,
            suspect: suspects() && !self.has(Flaw::SuspectsInCompany),
            started_to: lease.started_to,
            asked_to: lease.started_to,
            cuts: 0,
            hands: state.queue.iter().filter(in_lease).map(hand).collect(),
        })
    }

    /// The answer reaches the worker. If events have left its hands in the meantime, it reads again, and does
    /// not move its cursor.
    pub fn arrive(&self, state: &mut State, token: Token) {
        let call = take_call(state, token);
        let Stage::Read(mut held) = call.stage else {
            unreachable!("an answer is read before it arrives");
        };
        let reads_again = call.overtaken && !self.has(Flaw::NotReadOnArrival);
        if reads_again {
            held = self.held_under(state, token);
        }
        if let Some(lease) = state.lease_mut(token) {
            lease.heard = true;
        }
        let mind = state.mind_mut(call.worker);
        if !call.overtaken {
            mind.walk = self.known(call.walk);
        }
        mind.held.extend(held);
        if reads_again {
            Self::in_hand(state, call.worker);
        }
    }

    /// The worker abandons the call. The statement may still commit.
    pub fn lose(state: &mut State, token: Token) {
        let mut call = take_call(state, token);
        state.spent.lost += 1;
        let mind = state.mind_mut(call.worker);
        mind.lost = mind.lost.or(Set::one(token));
        call.awaited = false;
        if !matches!(call.stage, Stage::Committed | Stage::Read(_)) {
            state.calls.push(call);
        }
    }
}

/// The events behind the first event of a doubtful group that this worker does not hold.
fn cut(queue: &[Row], page: Set, facts: &Facts) -> Set {
    let mut cut = Set::default();
    for group in facts.doubtful.iter() {
        let of_group = || queue.iter().filter(|row| row.group == Some(group));
        let last = of_group().map(|row| row.id).rfind(|id| page.has(*id));
        let ours = facts.own.or(facts.mine);
        let ahead = of_group()
            .map(|row| row.id)
            .find(|id| Some(*id) <= last && !ours.has(*id));
        let behind = of_group().map(|row| row.id).filter(|id| Some(*id) > ahead);
        if ahead.is_some() {
            cut = cut.or(behind.collect::<Set>().and(facts.mine));
        }
    }
    cut
}

/// Returns the groups of these events.
fn groups(queue: &[Row], ids: Set) -> Set {
    let named = queue.iter().filter(|row| ids.has(row.id));
    named.filter_map(|row| row.group).collect()
}

pub fn take_call(state: &mut State, token: Token) -> Call {
    let place = state.calls.iter().position(|call| call.token == token);
    state.calls.remove(place.expect("the call is under way"))
}
