//! What the model remembers: the database's rows, what workers believe, and a witness's notes that no
//! part of the protocol can see.

use std::collections::BTreeSet;

/// An event's id, as the sequence gives it: 1, 2, …
pub type Id = u8;

/// A worker, from 0.
pub type Worker = u8;

/// Which lease of its event a token belongs to, from 1. The same number of two events is not the same
/// token: the statements always name both.
pub type Token = u8;

/// Events of one group keep their order.
pub type Group = Option<u8>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// One for each planned publish.
    pub publishes: Vec<Publish>,
    /// `event_queue`, in id order.
    pub queue: Vec<Row>,
    /// `event_log`, in the order of its inserts.
    pub log: Vec<Ended>,
    /// What the cleanup has removed from the log.
    pub purged: Vec<Id>,
    /// Leases as their workers know them, by event and token.
    pub grants: Vec<Grant>,
    /// Rows that a worker has looked at and not yet taken: only where a lease is two statements.
    pub scans: Vec<(Worker, Vec<Id>)>,
    /// What workers know of the queue behind their cursors, by worker: only where they walk it.
    pub walks: Vec<Walk>,
    /// Events that an operator has looked at and not yet replayed: only where replays do not wait for
    /// each other.
    pub looks: Vec<Id>,
    pub spent: Spent,
    pub witness: Witness,
}

/// A worker's walk through the queue, lease by lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Walk {
    /// The last id that was looked at; 0 before the walk begins.
    pub cursor: Id,
    /// Up to here, all that has a group is gone, in hand or of a doubtful group, if it was committed before
    /// the walk.
    pub seen_to: Id,
    /// What was committed before the walk.
    pub began: Vec<Id>,
    /// The last id drawn before the walk. Only with [`crate::flaw::Flaw::GoesByIds`].
    pub drawn: Id,
    /// Groups of what was left behind or went back.
    pub doubtful: BTreeSet<u8>,
}

/// A producer's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Publish {
    Planned,
    /// The id is drawn; nobody else sees the row.
    Open(Id),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub id: Id,
    pub group: Group,
    pub attempts: u8,
    pub max_attempts: u8,
    pub delayed: bool,
    pub lease: Option<Lease>,
    pub replay_of: Option<Id>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub token: Token,
    /// Its time is over. Whoever holds it need not know.
    pub expired: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    pub id: Id,
    pub group: Group,
    pub attempts: u8,
    pub max_attempts: u8,
    /// The lease that is named as the one that ended it.
    pub token: Option<Token>,
}

/// A leased event in a worker's hands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub id: Id,
    pub token: Token,
    pub worker: Worker,
    pub group: Group,
    /// Taken only to be ended: its attempts were spent before.
    pub abandoned: bool,
    /// After this attempt there is no other.
    pub last: bool,
    pub stage: Stage,
    /// The worker has heard what its statement has done. Only where it walks.
    pub heard: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Leased and not started.
    Held,
    /// Its handler runs. A frozen worker stays here as long as it likes.
    Running,
    /// The worker has said what becomes of it. The statement may arrive at any later time, again and
    /// again (an answer was lost, so it was sent anew), or never.
    Sent { verdict: Verdict, arrived: bool },
    /// The worker is no more.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The handler succeeded; its effect and its follow-ups are committed with its end.
    Finalize,
    /// The system gives it up.
    Fail,
    Retry,
    Release,
}

/// What a scenario allows a limited number of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    pub crashes: u8,
    pub requeues: u8,
    pub replays: u8,
    pub cancels: u8,
}

/// What somebody who sees everything writes down, to judge by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Witness {
    /// By id, from 1.
    pub events: Vec<Story>,
    /// Ids in the order in which their publishes were committed.
    pub committed: Vec<Id>,
    /// Promises that a step has broken.
    pub broken: BTreeSet<Breach>,
    /// A statement under a lost lease has arrived and changed nothing.
    pub refused: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Story {
    pub leases: u8,
    /// Leases that counted no attempt, or whose attempt was given back.
    pub uncounted: u8,
    pub starts: u8,
    pub effects: u8,
    /// Who holds it rightfully.
    pub holder: Option<Token>,
    /// Who has ended it.
    pub ended_by: Option<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// Leased before an event of its group whose publish was committed earlier.
    OutOfOrder,
    /// A statement changed a row whose lease its sender had lost.
    StaleWrite,
    /// Leased although somebody else's lease was running.
    LeasedTwice,
    /// An operator's verb or the cleanup touched a row that was not its to touch.
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

    pub fn grant(&self, id: Id, token: Token) -> Option<&Grant> {
        self.grants
            .iter()
            .find(|grant| (grant.id, grant.token) == (id, token))
    }

    pub fn grant_mut(&mut self, id: Id, token: Token) -> Option<&mut Grant> {
        self.grants
            .iter_mut()
            .find(|grant| (grant.id, grant.token) == (id, token))
    }

    pub fn story(&mut self, id: Id) -> &mut Story {
        &mut self.witness.events[usize::from(id) - 1]
    }

    /// Draws an id from the sequence.
    pub fn draw(&mut self) -> Id {
        self.witness.events.push(Story::default());
        Id::try_from(self.witness.events.len()).expect("a model is small")
    }

    /// A committed insert.
    pub fn insert(&mut self, row: Row) {
        self.witness.committed.push(row.id);
        let place = self.queue.partition_point(|other| other.id < row.id);
        self.queue.insert(place, row);
    }

    pub fn walk(&self, worker: Worker) -> Walk {
        let walk = self.walks.get(usize::from(worker));
        walk.cloned().unwrap_or_default()
    }

    pub fn set_walk(&mut self, worker: Worker, walk: Walk) {
        let place = usize::from(worker);
        if self.walks.len() <= place && walk != Walk::default() {
            self.walks.resize(place + 1, Walk::default());
        }
        if let Some(known) = self.walks.get_mut(place) {
            *known = walk;
        }
    }

    pub fn breach(&mut self, breach: Breach) {
        self.witness.broken.insert(breach);
    }

    /// Whether the row is in this worker's hands, as far as both know.
    pub fn is_held_by(&self, row: &Row, worker: Worker) -> bool {
        row.lease
            .and_then(|lease| self.grant(row.id, lease.token))
            .is_some_and(|grant| grant.worker == worker && grant.stage != Stage::Gone)
    }
}

impl Row {
    pub fn is_exhausted(&self) -> bool {
        self.attempts >= self.max_attempts
    }

    /// No lease of it is running.
    pub fn is_free(&self) -> bool {
        self.lease.is_none_or(|lease| lease.expired)
    }
}

impl Grant {
    /// The worker has given it back, and does not know yet that the database has heard it.
    pub fn bars_its_group(&self) -> bool {
        matches!(
            self.stage,
            Stage::Sent {
                verdict: Verdict::Retry | Verdict::Release,
                arrived: false
            }
        )
    }
}
