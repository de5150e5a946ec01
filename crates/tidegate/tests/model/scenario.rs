//! Small scenarios, each with what its flaws and promises need.

use crate::promise::{ALL_END, BESIDE, GIVEN_UP, LEASES_ON, OVERLAP, REFUSED, RUNS_ALONE, SNOOZES};
use crate::state::{Group, Spent, Worker};

/// Limits for everything that can happen. They bound the search.
#[expect(clippy::struct_excessive_bools, reason = "switches, each by itself")]
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// The groups of the events that are published, in any order.
    pub groups: &'static [Group],
    pub workers: Worker,
    pub max_attempts: u8,
    /// Whether the statements of a lease are separate steps.
    pub apart: bool,
    /// The maximum number of rows that a lease examines, at least 1.
    pub most: u8,
    /// How many handlers may start with the lease.
    pub first_windows: &'static [u8],
    /// Whether workers continue to lease behind the rows that they have examined.
    pub walks: bool,
    /// Whether handlers start.
    pub runs: bool,
    /// Whether handlers ask for a retry.
    pub retries: bool,
    /// How often an event may be snoozed. 0: no handler asks for it.
    pub most_snoozes: u8,
    pub allowed: Spent,
    pub cleanup: bool,
    /// Whether the first two events are published in one transaction.
    pub together: bool,
    /// Whether publishes may be rolled back.
    pub aborts: bool,
    /// Whether the rows of leases that have ended stay until a sweep.
    pub ended_stay: bool,
    /// Whether a suspect and its neighbours wait for each other only for some time.
    pub wait_ends: bool,
    /// Whether all events are published before anything else happens.
    pub published: bool,
    /// The event whose kind is paused until it is resumed.
    pub paused: Option<usize>,
    /// The event that becomes ready later.
    pub delayed: Option<usize>,
    /// The worker that leases by `poll`: one lease at a time, all of whose events start with it.
    pub poller: Option<Worker>,
    /// Whether a transaction of a handler or a guest may stay open.
    pub opens: bool,
    /// The states that must be reachable in this scenario.
    pub reaches: &'static [&'static str],
}

const NOTHING: Spent = Spent {
    crashes: 0,
    lost: 0,
    unheard: 0,
    lapses: 0,
    handed_back: 0,
    requeues: 0,
    cancels: 0,
    replays: 0,
};

/// What may happen so often, and nothing else.
macro_rules! spent {
    ($($what:ident: $often:literal),+) => { Spent { $($what: $often,)+ ..NOTHING } };
}

// One event.
impl Scenario {
    /// Everything that a producer and workers can do with one event.
    pub const ONE_EVENT: Self = Self {
        name: "one event",
        groups: &[None],
        workers: 2,
        max_attempts: 2,
        apart: false,
        most: 1,
        first_windows: &[0, 1],
        walks: false,
        runs: true,
        retries: true,
        most_snoozes: 0,
        allowed: spent!(unheard: 1, lapses: 2, handed_back: 1),
        cleanup: false,
        together: false,
        aborts: true,
        ended_stay: false,
        wait_ends: false,
        published: false,
        paused: None,
        delayed: None,
        poller: None,
        opens: false,
        reaches: &[OVERLAP, ALL_END, REFUSED, RUNS_ALONE, GIVEN_UP],
    };
    /// The same with an operator who requeues.
    pub const ONE_REQUEUED: Self = Self {
        name: "one event and a requeue",
        allowed: spent!(unheard: 1, lapses: 1, requeues: 1),
        reaches: &[OVERLAP, ALL_END, REFUSED, RUNS_ALONE],
        ..Self::ONE_EVENT
    };
    /// The same with an operator who cancels.
    pub const ONE_CANCELLED: Self = Self {
        name: "one event and a cancel",
        allowed: spent!(unheard: 1, lapses: 1, cancels: 1),
        reaches: &[ALL_END, REFUSED, RUNS_ALONE],
        ..Self::ONE_EVENT
    };
    /// A handler that asks to run later, next to everything that costs attempts.
    pub const ONE_SNOOZED: Self = Self {
        name: "one event that is snoozed",
        max_attempts: 1,
        most_snoozes: 2,
        allowed: spent!(unheard: 1, lapses: 1),
        aborts: false,
        reaches: &[ALL_END, REFUSED, SNOOZES, GIVEN_UP],
        ..Self::ONE_EVENT
    };
    /// An event that ends, is replayed and is cleaned up.
    pub const REPLAYED: Self = Self {
        name: "one event and its replay",
        max_attempts: 1,
        first_windows: &[1],
        allowed: spent!(lapses: 1, replays: 1),
        cleanup: true,
        reaches: &[ALL_END, GIVEN_UP],
        ..Self::ONE_EVENT
    };
    /// An event that is leased statement by statement.
    pub const MEETING: Self = Self {
        name: "one event, and leases statement by statement",
        apart: true,
        first_windows: &[1],
        allowed: spent!(lapses: 1),
        cleanup: false,
        aborts: false,
        published: true,
        reaches: &[ALL_END, REFUSED, RUNS_ALONE],
        ..Self::ONE_EVENT
    };
    /// The same, with a worker that abandons a lease or dies.
    pub const MEETING_LOST: Self = Self {
        name: "one event, and leases statement by statement, of which one is lost",
        allowed: spent!(crashes: 1, lost: 1, lapses: 1),
        ..Self::MEETING
    };
}

// Events of a group.
impl Scenario {
    /// Two producers, two workers, one group.
    pub const GROUP: Self = Self {
        name: "two events of a group",
        groups: &[Some(1), Some(1)],
        most: 2,
        first_windows: &[1],
        allowed: spent!(lapses: 1, handed_back: 1),
        aborts: false,
        reaches: &[
            OVERLAP, BESIDE, ALL_END, REFUSED, LEASES_ON, RUNS_ALONE, GIVEN_UP,
        ],
        ..Self::ONE_EVENT
    };
    /// A worker that does not receive the answer to a lease.
    pub const LOST: Self = Self {
        name: "two events of a group, and a lease nobody heard of",
        allowed: spent!(lost: 1, handed_back: 1, lapses: 1),
        published: true,
        reaches: &[ALL_END, LEASES_ON],
        ..Self::GROUP
    };
    /// An operator takes events away, together with the later events of their groups.
    pub const REQUEUED: Self = Self {
        name: "two events of a group, one beside it, and a requeue",
        groups: &[Some(1), Some(1), None],
        workers: 1,
        first_windows: &[0, 2],
        retries: false,
        allowed: spent!(requeues: 1),
        published: true,
        reaches: &[ALL_END, REFUSED, LEASES_ON],
        ..Self::GROUP
    };
    /// An operator ends events, and the later events of their groups continue.
    pub const CANCELLED: Self = Self {
        name: "two events of a group, one beside it, and a cancel",
        allowed: spent!(cancels: 1),
        ..Self::REQUEUED
    };
    /// A snoozed event stays ahead of its group.
    pub const SNOOZED: Self = Self {
        name: "two events of a group that are snoozed",
        most_snoozes: 1,
        retries: false,
        allowed: spent!(lapses: 1),
        published: true,
        reaches: &[ALL_END, REFUSED, LEASES_ON, SNOOZES],
        ..Self::GROUP
    };
    /// Statements of leases, interleaved with a give-back.
    pub const APART: Self = Self {
        name: "two events of a group, and leases statement by statement",
        apart: true,
        retries: false,
        allowed: spent!(handed_back: 1),
        published: true,
        reaches: &[ALL_END, LEASES_ON],
        ..Self::GROUP
    };
    /// Statements of leases, interleaved with a give-back of part of a lease.
    pub const APART_BESIDE: Self = Self {
        name: "two events of a group, one between them, and leases statement by statement",
        groups: &[Some(1), None, Some(1)],
        workers: 1,
        runs: false,
        reaches: &[LEASES_ON],
        ..Self::APART
    };
    /// Statements of leases, interleaved with a sweep.
    pub const APART_LAPSE: Self = Self {
        name: "two events of a group, a lapse, and leases statement by statement",
        runs: false,
        allowed: spent!(lapses: 1),
        reaches: &[LEASES_ON],
        ..Self::APART
    };
}

// Walks.
impl Scenario {
    /// Walks that pass events inserted behind them.
    pub const WALK: Self = Self {
        name: "two events of a group, one without, and walks",
        groups: &[Some(1), Some(1), None],
        walks: true,
        runs: false,
        retries: false,
        allowed: NOTHING,
        reaches: &[LEASES_ON],
        ..Self::GROUP
    };
    /// The same, with the group's events published in one transaction.
    pub const WALK_TOGETHER: Self = Self {
        name: "two events of a group in one transaction, one without, and walks",
        together: true,
        ..Self::WALK
    };
    /// Walks that pass events freed behind them.
    pub const WALK_BACK: Self = Self {
        name: "two events of a group, walks, a lapse and a give-back",
        groups: &[Some(1), Some(1)],
        allowed: spent!(lapses: 1, handed_back: 1),
        ..Self::WALK
    };
    /// Walks that pass events without leasing them.
    pub const WALK_PAUSED: Self = Self {
        name: "two events of a group, the first of a paused kind, one between them, and walks",
        groups: &[Some(1), None, Some(1)],
        published: true,
        paused: Some(0),
        ..Self::WALK
    };
    /// Walks that pass events that are not ready.
    pub const WALK_DELAYED: Self = Self {
        name: "two events of a group, the first delayed, and walks",
        groups: &[Some(1), Some(1)],
        published: true,
        delayed: Some(0),
        ..Self::WALK
    };
    /// Walks of workers that handle the events they find.
    pub const WALK_RUNS: Self = Self {
        name: "two events of a group that are handled, and walks",
        groups: &[Some(1), Some(1)],
        runs: true,
        reaches: &[ALL_END, LEASES_ON],
        ..Self::WALK
    };
}

// Lapsed events.
impl Scenario {
    /// Two events whose worker died, or may have died.
    pub const SUSPECTS: Self = Self {
        name: "two events that lapse",
        groups: &[None, None],
        first_windows: &[1],
        retries: false,
        allowed: spent!(lapses: 3),
        published: true,
        reaches: &[OVERLAP, ALL_END, REFUSED, RUNS_ALONE, GIVEN_UP],
        ..Self::GROUP
    };
    /// The same in a group.
    pub const SUSPECTS_OF_A_GROUP: Self = Self {
        name: "two events of a group that lapse",
        groups: &[Some(1), Some(1)],
        reaches: &[OVERLAP, BESIDE, ALL_END, REFUSED, RUNS_ALONE, GIVEN_UP],
        ..Self::SUSPECTS
    };
    /// Suspects that have waited for long enough, beside events that have failed before.
    pub const SUSPECTS_THAT_WAIT: Self = Self {
        name: "two events that lapse or fail, and need not run alone",
        retries: true,
        allowed: spent!(lapses: 2),
        wait_ends: true,
        ..Self::SUSPECTS
    };
    /// A program that handles events by SQL, beside a drain.
    pub const POLLED: Self = Self {
        name: "two events of a group, a drain and a poller",
        poller: Some(1),
        allowed: spent!(lapses: 2, requeues: 1),
        reaches: &[OVERLAP, ALL_END, REFUSED, GIVEN_UP],
        ..Self::SUSPECTS_OF_A_GROUP
    };
    /// Transactions that stay open, beside an event that is retried and one that becomes ready later.
    pub const OPEN: Self = Self {
        name: "three events, and a transaction that stays open",
        groups: &[None, Some(1), None],
        workers: 1,
        max_attempts: 1,
        most: 2,
        first_windows: &[2],
        allowed: spent!(lapses: 1),
        aborts: false,
        published: true,
        delayed: Some(2),
        opens: true,
        reaches: &[ALL_END],
        ..Self::ONE_EVENT
    };
    /// Leases that have ended are still there.
    pub const ENDED: Self = Self {
        name: "two events, and leases that have ended",
        ended_stay: true,
        allowed: spent!(lapses: 2),
        reaches: &[ALL_END],
        ..Self::SUSPECTS
    };
}

// Larger scenarios, for a long search.
impl Scenario {
    /// One event, with higher limits for everything.
    pub const ONE_FOR_LONG: Self = Self {
        name: "one event, three lapses and a requeue",
        allowed: spent!(lapses: 3, requeues: 1),
        ..Self::ONE_EVENT
    };
    /// A group whose workers do not receive the answers to their writes.
    pub const GROUP_UNHEARD: Self = Self {
        name: "two events of a group, and a write nobody heard of",
        first_windows: &[0, 2],
        allowed: spent!(unheard: 1, lapses: 1, handed_back: 1),
        ..Self::GROUP
    };
    /// A group that lapses twice.
    pub const GROUP_TWICE: Self = Self {
        name: "two events of a group, two lapses and a crash",
        allowed: spent!(crashes: 1, lapses: 2, handed_back: 1),
        ..Self::GROUP
    };
    /// A group that an operator takes from one worker, and that another worker finds.
    pub const GROUP_REQUEUED: Self = Self {
        name: "two events of a group, a lapse and a requeue",
        first_windows: &[2],
        retries: false,
        allowed: spent!(lapses: 1, requeues: 1),
        reaches: &[OVERLAP, BESIDE, ALL_END, REFUSED, LEASES_ON, RUNS_ALONE],
        ..Self::GROUP
    };
    /// A group into which an event is replayed while the cleanup runs.
    pub const GROUP_REPLAYED: Self = Self {
        name: "two events of a group, a lapse and a replay",
        max_attempts: 1,
        allowed: spent!(lapses: 1, replays: 1),
        cleanup: true,
        reaches: &[ALL_END, REFUSED, LEASES_ON, GIVEN_UP],
        ..Self::GROUP
    };
    /// A group under lost leases, statement by statement.
    pub const APART_LOST: Self = Self {
        name: "two events of a group, and leases statement by statement, of which one is lost",
        runs: false,
        allowed: spent!(lost: 1, handed_back: 1),
        reaches: &[LEASES_ON],
        ..Self::APART
    };
    /// An operator between the statements of a worker's leases.
    pub const APART_REQUEUED: Self = Self {
        name: "two events of a group, one between them, a requeue, and leases statement by statement",
        groups: &[Some(1), None, Some(1)],
        workers: 1,
        first_windows: &[0, 2],
        allowed: spent!(requeues: 1),
        ..Self::APART
    };
    /// A walk that passes open publishes.
    pub const WALK_APART: Self = Self {
        name: "two events of a group, one without, and a walk statement by statement",
        workers: 1,
        apart: true,
        ..Self::WALK
    };
    /// Walks that pass events that are given back.
    pub const WALK_APART_BACK: Self = Self {
        name: "two events of a group, a give-back, and walks statement by statement",
        groups: &[Some(1), Some(1)],
        apart: true,
        allowed: spent!(handed_back: 1),
        ..Self::WALK
    };
    /// Two groups whose events are handled, with walks.
    pub const WALK_WIDE: Self = Self {
        name: "two events of a group and one of another that are handled, a lapse and walks",
        groups: &[Some(1), Some(1), Some(2)],
        runs: true,
        max_attempts: 1,
        allowed: spent!(lapses: 1),
        reaches: &[ALL_END, LEASES_ON],
        ..Self::WALK
    };
    /// Three events of a group.
    pub const THREE: Self = Self {
        name: "three events of a group",
        groups: &[Some(1), Some(1), Some(1)],
        most: 3,
        published: true,
        ..Self::GROUP
    };
    /// The same with an event without a group, and a crash.
    pub const POLLED_WIDE: Self = Self {
        name: "two events of a group and one without, a drain and a poller",
        groups: &[Some(1), Some(1), None],
        allowed: spent!(crashes: 1, lapses: 1, requeues: 1),
        ..Self::POLLED
    };
    /// Three events that lapse.
    pub const THREE_SUSPECTS: Self = Self {
        name: "two events of a group and one without that lapse",
        groups: &[Some(1), Some(1), None],
        reaches: &[OVERLAP, BESIDE, ALL_END, REFUSED, RUNS_ALONE, GIVEN_UP],
        ..Self::SUSPECTS
    };
}
