//! The state of the model: the rows of the database, the beliefs of workers, and the notes of a witness. No
//! part of the protocol can read these notes.

use std::collections::BTreeSet;
use std::fmt;

/// An event's id, as the sequence gives it: 1, 2, …
pub type Id = u8;

/// A worker, from 0.
pub type Worker = u8;

/// Identifies a lease. A number is used again once no worker knows the lease that had it.
pub type Token = u8;

/// Events of one group keep their order.
pub type Group = Option<u8>;

/// A set of ids, tokens or groups. It stands for the multirange of the real protocol.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set(u16);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub open: Option<Open>,
    /// One for each planned publish.
    pub publishes: Vec<Publish>,
    /// `event_queue`, in id order.
    pub queue: Vec<Row>,
    /// `lease`, by token.
    pub leases: Vec<Lease>,
    /// `event_log`, in the order of its inserts.
    pub log: Vec<Ended>,
    /// Ids that the cleanup has removed from the log.
    pub purged: Vec<Id>,
    /// Calls of `lease` in progress.
    pub calls: Vec<Call>,
    /// The beliefs of workers, by worker. There is one more worker than in the scenario, for the time after
    /// the faults.
    pub minds: Vec<Mind>,
    /// Whether the paused kind is resumed.
    pub resumed: bool,
    /// Events that an operator has checked but not yet replayed. Only used if replays do not wait for each
    /// other.
    pub looks: Vec<Id>,
    pub spent: Spent,
    pub witness: Witness,
}

/// A producer's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Publish {
    Planned,
    /// The id is drawn. No other session sees the row.
    Open(Id),
    Over,
}

#[expect(clippy::struct_excessive_bools, reason = "so are the table's columns")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub id: Id,
    pub group: Group,
    /// Its kind is paused until it is resumed.
    pub paused: bool,
    pub attempts: u8,
    pub max_attempts: u8,
    /// `lapses > 0`: a worker died while it held this event.
    pub suspect: bool,
    pub delayed: bool,
    /// It may be free behind a cursor.
    pub stray: bool,
    /// How often its handler has asked to run later.
    pub snoozes: u8,
    pub replay_of: Option<Id>,
}

/// A row of `lease`. A lease without live events is equivalent to none, unless it is marked as ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub token: Token,
    pub worker: Worker,
    pub ids: Set,
    /// Handlers of ids up to this one may have started.
    pub started_to: Id,
    /// Its time is over, but it still holds its events.
    pub expired: bool,
    /// Its worker has marked it as ended, and renews it no more. Only where [`Scenario::ended_stay`].
    ///
    /// [`Scenario::ended_stay`]: crate::scenario::Scenario::ended_stay
    pub ended: bool,
    pub cuts: u8,
    /// The position of the walk.
    pub walk: Walk,
    /// For the witness: the events whose handlers started under it.
    pub ran: Set,
    /// For the witness: whether its worker received the answer.
    pub heard: bool,
}

/// A walk through the queue, lease by lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Walk {
    /// The last id examined. 0 before the walk begins.
    pub reached: Id,
    /// Each event with a group and an id up to this one that was written before the walk has ended, is in a
    /// lease, or is a stray.
    pub clear_to: Id,
    /// `as_of`: the events written before the walk.
    pub seen: Set,
}

/// A call of `lease` in the database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub token: Token,
    pub worker: Worker,
    pub ask: Ask,
    /// The tokens whose events the worker names as in its hands.
    pub held: Set,
    /// Where the call starts, and after the scan where it ends.
    pub walk: Walk,
    pub start: Id,
    /// The rows that its scan has locked.
    pub locked: Set,
    pub stage: Stage,
    /// Whether the worker waits for the answer.
    pub awaited: bool,
    /// Whether events have left the worker's hands in the meantime.
    pub overtaken: bool,
}

/// The request of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ask {
    pub from_start: bool,
    pub most: u8,
    pub first_window: u8,
}

/// The progress of a call of `lease`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It has read which events are in hand.
    Begun { active: Set },
    /// It has locked rows. The page contains those that it intends to lease.
    Scanned { page: Page },
    /// It has read the facts, but has not locked its own leases. Only with
    /// [`crate::flaw::Flaw::LocksBehindTheFacts`].
    Glimpsed {
        page: Page,
        queue: Vec<Row>,
        leases: Vec<Lease>,
    },
    /// It has locked its own leases and read the facts.
    Looked { page: Page, facts: Facts },
    /// It has committed.
    Committed,
    /// It has read the events. The answer is on its way.
    Read(Option<Held>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    pub ids: Set,
    pub suspect: bool,
}

/// The facts that a call of `lease` reads in its second look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The events of the page that no other worker has leased in the meantime.
    pub mine: Set,
    /// The events in the worker's hands.
    pub own: Set,
    /// The leases that it has locked to read them.
    pub own_tokens: Set,
    /// Groups to look up in the index.
    pub doubtful: Set,
    /// The first event with a group that was passed.
    pub first_passed: Option<Id>,
}

/// The beliefs of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mind {
    pub walk: Walk,
    /// Leases with events in hand, by token.
    pub held: Vec<Held>,
    /// Tokens of leases whose answer was lost.
    pub lost: Set,
    /// It has died.
    pub gone: bool,
}

/// A lease as its worker knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub token: Token,
    pub suspect: bool,
    /// Handlers up to this id may start, because the transaction that records it has committed.
    pub started_to: Id,
    /// Handlers up to this id were requested to start.
    pub asked_to: Id,
    pub cuts: u8,
    pub hands: Vec<Hand>,
}

/// A leased event in a worker's hands.
#[expect(clippy::struct_excessive_bools, reason = "facts, each by itself")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hand {
    pub id: Id,
    pub group: Group,
    /// Leased only to be ended, because its attempts were already used up.
    pub abandoned: bool,
    /// This attempt is the last one.
    pub last: bool,
    /// How often the event had been snoozed when it was read.
    pub snoozes: u8,
    pub stage: Handling,
    /// The lease was read before the end. Only with [`crate::flaw::Flaw::NoFence`].
    pub peeked: bool,
    /// For the witness: an attempt was charged for this lease of the event.
    pub charged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Handling {
    /// Leased but not started.
    Waiting,
    /// Its handler is running. A frozen worker may stay in this state for any length of time.
    Running,
    /// The worker has decided the verdict. Its statement may arrive at any later time, repeatedly (because an
    /// answer was lost and it was sent again), or never.
    Over(Verdict),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The handler succeeded. Its effect and its follow-ups are committed with its end.
    Complete,
    /// The system gives up the event.
    Fail,
    Retry,
    /// The handler asks to run later, which is no failure.
    Snooze,
    HandBack,
}

/// A transaction that stays open: a handler's, which commits slowly, or that of a guest, who polls and
/// commits when the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    /// The event that it is about.
    pub id: Id,
    /// The rows that it has locked.
    pub rows: Set,
    /// The leases that it has locked.
    pub leases: Set,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    pub id: Id,
    pub group: Group,
    pub attempts: u8,
    pub max_attempts: u8,
    pub completed: bool,
}

/// Uses of everything that a scenario limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    pub crashes: u8,
    /// Answers of `lease` that never arrive.
    pub lost: u8,
    /// Answers to writes that never arrive.
    pub unheard: u8,
    /// Leases that expire.
    pub lapses: u8,
    /// Events that were handed back without being started.
    pub handed_back: u8,
    pub requeues: u8,
    pub cancels: u8,
    pub replays: u8,
}

/// The notes of a witness that sees everything. The promises are judged by them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Witness {
    /// The number of ids drawn.
    pub drawn: Id,
    /// Ids in the order in which their publishes committed.
    pub committed: Vec<Id>,
    /// How often the effects of handlers were committed, by id, from 1.
    pub effects: Vec<u8>,
    /// The events whose worker may have died while running them.
    pub lapsed: Set,
    /// The events that have had an attempt that counts, or that an operator ended.
    pub failed: Set,
    /// How often each event was snoozed, by id, from 1.
    pub snoozed: Vec<u8>,
    /// Promises that a step has broken.
    pub broken: BTreeSet<Breach>,
    /// Whether a statement under a lost lease has arrived and changed nothing.
    pub refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// An event was started before an earlier committed event of its group was over.
    OutOfOrder,
    /// A statement changed an event that its sender's lease did not hold.
    StaleWrite,
    /// The exclusion constraint had to refuse a lease.
    Clash,
    /// A handler ran, and its attempt will never be charged.
    Uncounted,
    /// An attempt was charged that no window had started.
    ChargedUnstarted,
    /// An event was started with no attempt left.
    TooOften,
    /// An event was charged because of a suspect next to it.
    NeighbourCharged,
    /// A suspect ran when another one, or an event on its last attempt, was started.
    StartedBeside,
    /// An event was given up without an attempt that failed.
    GivenUpUnfailed,
    /// An event was snoozed more often than it may be.
    SnoozedTooOften,
    /// An operation, a sweep or the cleanup changed an event that it must not change.
    Forbidden,
}

impl State {
    pub fn row(&self, id: Id) -> Option<&Row> {
        self.queue.iter().find(|row| row.id == id)
    }

    pub fn row_mut(&mut self, id: Id) -> Option<&mut Row> {
        self.queue.iter_mut().find(|row| row.id == id)
    }

    pub fn ended(&self, id: Id) -> Option<&Ended> {
        self.log.iter().find(|ended| ended.id == id)
    }

    pub fn lease(&self, token: Token) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.token == token)
    }

    pub fn lease_mut(&mut self, token: Token) -> Option<&mut Lease> {
        self.leases.iter_mut().find(|lease| lease.token == token)
    }

    /// The call whose answer a worker waits for.
    pub fn call_of(&self, worker: Worker) -> Option<&Call> {
        self.calls
            .iter()
            .find(|call| call.awaited && call.worker == worker)
    }

    pub fn mind(&self, worker: Worker) -> &Mind {
        &self.minds[usize::from(worker)]
    }

    pub fn mind_mut(&mut self, worker: Worker) -> &mut Mind {
        &mut self.minds[usize::from(worker)]
    }

    /// All ids in leases.
    pub fn in_leases(&self) -> Set {
        in_leases(&self.leases)
    }

    /// Whether a lease with this token holds the event.
    pub fn is_held(&self, token: Token, id: Id) -> bool {
        self.lease(token).is_some_and(|lease| lease.ids.has(id))
    }

    /// Live events behind an id in its group.
    pub fn behind(&self, id: Id) -> Set {
        let group = self.row(id).and_then(|row| row.group);
        let follows = |row: &&Row| group.is_some() && row.group == group && row.id > id;
        self.queue
            .iter()
            .filter(follows)
            .map(|row| row.id)
            .collect()
    }

    /// Draws an id from the sequence.
    pub fn draw(&mut self) -> Id {
        self.witness.drawn += 1;
        self.witness.effects.push(0);
        self.witness.snoozed.push(0);
        self.witness.drawn
    }

    /// Inserts a committed row.
    pub fn insert(&mut self, row: Row) {
        self.witness.committed.push(row.id);
        let place = self.queue.partition_point(|other| other.id < row.id);
        self.queue.insert(place, row);
    }

    /// A token that is not in use.
    pub fn free_token(&self) -> Token {
        let leased = self.leases.iter().map(|lease| lease.token);
        let called = self.calls.iter().map(|call| call.token);
        let held = self.minds.iter().flat_map(|mind| &mind.held);
        let lost = self.minds.iter().flat_map(|mind| mind.lost.iter());
        let named = self.calls.iter().flat_map(|call| call.held.iter());
        let known: Set = leased
            .chain(called)
            .chain(held.map(|held| held.token))
            .chain(lost)
            .chain(named)
            .collect();
        (1..16)
            .find(|token| !known.has(*token))
            .expect("some is free")
    }

    /// Removes ended events from leases, and tokens of removed leases from the beliefs of workers.
    pub fn tidy(&mut self) {
        let live: Set = self.queue.iter().map(|row| row.id).collect();
        for lease in &mut self.leases {
            lease.ids = lease.ids.and(live);
            lease.ran = lease.ran.and(lease.ids);
        }
        self.leases
            .retain(|lease| !lease.ids.is_empty() || lease.ended);
        self.leases.sort_unstable_by_key(|lease| lease.token);
        self.calls.sort_unstable_by_key(|call| call.token);
        let leased = self.leases.iter().map(|lease| lease.token);
        let called = self.calls.iter().map(|call| call.token);
        let known: Set = leased.chain(called).collect();
        for mind in &mut self.minds {
            mind.lost = mind.lost.and(known);
            mind.held.retain(|held| !held.hands.is_empty());
            mind.held.sort_unstable_by_key(|held| held.token);
        }
    }

    pub fn breach(&mut self, breach: Breach) {
        self.witness.broken.insert(breach);
    }
}

pub fn in_leases(leases: &[Lease]) -> Set {
    leases
        .iter()
        .fold(Set::default(), |all, lease| all.or(lease.ids))
}

impl Mind {
    pub fn held(&self, token: Token) -> Option<&Held> {
        self.held.iter().find(|held| held.token == token)
    }

    pub fn held_mut(&mut self, token: Token) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.token == token)
    }

    pub fn hand(&self, token: Token, id: Id) -> Option<&Hand> {
        self.held(token)?.hands.iter().find(|hand| hand.id == id)
    }

    pub fn hand_mut(&mut self, token: Token, id: Id) -> Option<&mut Hand> {
        let held = self.held_mut(token)?;
        held.hands.iter_mut().find(|hand| hand.id == id)
    }

    /// All events in hand, each with its lease.
    pub fn hands(&self) -> impl Iterator<Item = (&Held, &Hand)> {
        self.held
            .iter()
            .flat_map(|held| held.hands.iter().map(move |hand| (held, hand)))
    }

    pub fn tokens(&self) -> Set {
        self.held.iter().map(|held| held.token).collect()
    }

    /// Whether the handlers of earlier events of its group are over.
    pub fn has_turn(&self, hand: &Hand) -> bool {
        hand.group.is_none()
            || !self.hands().any(|(_, other)| {
                other.group == hand.group && other.id < hand.id && !other.is_handled()
            })
    }

    /// Whether an event of another lease is running, as far as the worker has requested its start.
    pub fn any_begun_but(&self, token: Token) -> bool {
        self.hands()
            .any(|(held, hand)| held.token != token && hand.id <= held.asked_to)
    }
}

impl Hand {
    /// Whether its handler is over, even if this is not written yet.
    pub fn is_handled(&self) -> bool {
        matches!(
            self.stage,
            Handling::Over(Verdict::Complete | Verdict::Fail)
        )
    }
}

impl Row {
    pub fn is_exhausted(&self) -> bool {
        self.attempts >= self.max_attempts
    }
}

impl Set {
    pub fn one(number: u8) -> Self {
        Self(1 << number)
    }

    /// 0 to `last`.
    pub fn up_to(last: u8) -> Self {
        (0..=last).collect()
    }

    pub fn has(self, number: u8) -> bool {
        self.0 >> number & 1 == 1
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = u8> + Clone {
        (0..16).filter(move |number| self.has(*number))
    }

    pub fn first(self) -> Option<u8> {
        self.iter().next()
    }

    pub fn last(self) -> Option<u8> {
        self.iter().last()
    }
}

impl FromIterator<u8> for Set {
    fn from_iter<I: IntoIterator<Item = u8>>(numbers: I) -> Self {
        numbers
            .into_iter()
            .fold(Self::default(), |set, number| set.or(Self::one(number)))
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
