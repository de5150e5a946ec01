//! Flaws of the protocol. Each one removes one guard. If the model does not notice the flaw, it proves
//! nothing.

use crate::promise::{
    ALONE, APART, ATTEMPTS, CLEAR, COUNTED, EFFECT, ENDS, FENCED, GOES_ON, HOLDS, NO_CLASH,
    ONE_HOLDER, ONE_PLACE, ORDER, OWN_ROWS, RUN, SNOOZED, UNCHARGED,
};
use crate::scenario::Scenario;

/// Each flaw, the scenario in which it shows, and the promises that it breaks there.
macro_rules! flaws {
    ($($(#[$attr:meta])* $name:ident: $scenario:ident => $promises:expr,)+) => {
        /// One guard removed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Flaw {
            $($(#[$attr])* $name,)+
        }

        impl Flaw {
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The scenario in which the flaw shows, and the promises that it breaks there.
            pub fn breaks(self) -> (Scenario, &'static [&'static str]) {
                match self {
                    $(Self::$name => (Scenario::$scenario, &$promises),)+
                }
            }
        }
    };
}

flaws! {
    /// `publish` does not lock the group before it draws the id.
    NoGroupLock: GROUP => [RUN, ORDER],
    /// The scan of `lease` locks no rows.
    NoRowLocks: MEETING => [NO_CLASH],
    /// Additionally, the database does not refuse a second lease.
    NoRowLocksNorConstraint: MEETING => [ONE_HOLDER],
    /// `lease` inserts what it has scanned, even if another worker has leased it since.
    NoSecondLook: MEETING => [NO_CLASH],
    /// Additionally, the database does not refuse a second lease.
    NoSecondLookNorConstraint: MEETING => [ONE_HOLDER],
    /// `lease` does not check the groups of events written after the walk began.
    YoungNotAsked: WALK => [RUN],
    /// Whether an event is young is decided by the order of ids.
    YoungById: WALK_TOGETHER => [RUN, CLEAR],
    /// `lease` does not check the groups of events that it passed.
    PassedNotAsked: WALK_PAUSED => [RUN],
    /// `lease` does not check how far the walk is clear.
    ClearToIgnored: WALK_PAUSED => [RUN],
    /// `lease` does not check groups with events in another worker's lease.
    BusyNotAsked: GROUP => [RUN, ORDER],
    /// `hand_back` marks no strays.
    NoStrayAtGiveBack: WALK_BACK => [RUN, CLEAR],
    /// `sweep` marks no strays.
    NoStrayAtLapse: WALK_BACK => [RUN, CLEAR],
    /// An event that is delayed from the start is not a stray.
    DelayedIsNoStray: WALK_DELAYED => [RUN, CLEAR],
    /// `lease` does not lock the worker's own leases.
    NoOwnLock: APART => [RUN],
    /// `lease` locks the worker's own leases in the statement that reads the facts, so it sees a newer
    /// version of them than of everything else.
    LocksBehindTheFacts: APART_BESIDE => [RUN],
    /// `lease` treats all leases under the worker's name as its own.
    LostCountsAsOurs: LOST => [RUN],
    /// `hand_back` does not remove the later events of the group.
    FollowersStay: GROUP => [RUN],
    /// A give-back does not name the lease that is being taken.
    UnderWayNotNamed: APART => [RUN],
    /// A give-back does not name leases whose answers were lost.
    LostNotNamed: LOST => [RUN],
    /// `complete` reads the lease without a lock.
    NoFence: ONE_REQUEUED => [FENCED],
    /// `complete` does not check the lease.
    CompleteByIdAlone: ONE_EVENT => [FENCED],
    /// `retry` does not check the lease.
    RetryByIdAlone: ONE_EVENT => [FENCED],
    /// `hand_back` does not check the lease.
    HandBackByIdAlone: ONE_EVENT => [FENCED],
    /// `retry` and `hand_back` remove an event from any lease of the worker.
    GivesBackOutOfAnyLease: MEETING_LOST => [FENCED],
    /// `renew` does not check the token.
    RenewByIdAlone: ONE_EVENT => [FENCED],
    /// `complete` marks a lease as ended while one of its events is in hand.
    OverTooEarly: WALK_RUNS => [CLEAR],
    /// `complete` inserts into the log in one statement and deletes from the queue in the next.
    EndInTwoStatements: ONE_EVENT => [ONE_PLACE],
    /// The handler's transaction commits by itself, and the end of the event after it.
    EffectApart: ONE_EVENT => [EFFECT],
    /// `sweep` breaks the expired leases of a worker, but not its other leases.
    SweepsSingleLeases: GROUP => [RUN],
    /// `sweep` takes a worker for dead when one of its leases has expired.
    SweepsAtTheFirst: GROUP => [OWN_ROWS],
    /// `sweep` does not check the time.
    SweepsBeforeTime: ONE_EVENT => [OWN_ROWS],
    /// No lease is ever broken.
    NoSweep: ONE_EVENT => [ENDS],
    /// A lapse charges all leased events.
    LapseChargesUnstarted: ONE_EVENT => [UNCHARGED],
    /// A lapse charges no event.
    LapseChargesNothing: ONE_EVENT => [COUNTED],
    /// `requeue` charges no event.
    RequeueChargesNothing: ONE_REQUEUED => [COUNTED],
    /// `requeue` charges the named events, but not the later events that leave with them.
    RequeueChargesNoFollower: REQUEUED => [COUNTED],
    /// `cancel` charges no event.
    CancelChargesNothing: ONE_CANCELLED => [COUNTED],
    /// `cancel` does not notify the worker.
    CancelTellsNobody: CANCELLED => [COUNTED],
    /// A lapse does not mark the events that may have started.
    LapseLeavesNoMark: SUSPECTS => [ALONE],
    /// A suspect may start with its lease.
    SuspectStartsWithItsLease: SUSPECTS => [ALONE],
    /// Events that have lapsed are leased and started like all others.
    SuspectsInCompany: SUSPECTS => [ALONE],
    /// A suspect is started while another event is running.
    SuspectBesideWindow: SUSPECTS => [ALONE],
    /// A suspect is started beside another one when its wait is over.
    SuspectBesideSuspect: SUSPECTS_THAT_WAIT => [APART],
    /// An event on its last attempt is started beside a suspect.
    LastBesideSuspect: SUSPECTS_THAT_WAIT => [APART],
    /// A lease that has ended and expired stands for its worker.
    EndedStandsForItsWorker: ENDED => [OWN_ROWS],
    /// A lease has a first window while a suspect is in hand.
    WindowBesideSuspect: SUSPECTS => [ALONE],
    /// A suspect's lease is named as held, so the later events of its group are leased.
    SuspectsDoNotBar: SUSPECTS_OF_A_GROUP => [GOES_ON],
    /// Handlers start before the transaction that records their start has committed.
    StartsAhead: ONE_EVENT => [COUNTED],
    /// An event that was given back is started if no answer arrived.
    StartsWhatItGaveBack: ONE_EVENT => [COUNTED],
    /// A later event of the group of an event that was given back is started if no answer arrived.
    StartsWhatLeftAlong: GROUP_UNHEARD => [COUNTED],
    /// `read_leased` does not compare attempts with their limit.
    NoAttemptCheck: ONE_EVENT => [ATTEMPTS],
    /// A lease that arrives is used as it was read, even if events have left the worker's hands since.
    NotReadOnArrival: APART => [COUNTED],
    /// `start` does not check whether events were taken away from the lease.
    CutsNotAsked: REQUEUED => [COUNTED],
    /// A handler's transaction locks its lease.
    HandlersLockTheirLease: OPEN => [HOLDS],
    /// `poll` sweeps the leases of dead drains.
    GuestsSweep: OPEN => [HOLDS],
    /// `poll` makes any delayed event ready.
    GuestsPromote: OPEN => [HOLDS],
    /// `poll` takes what operators want out of the leases of live workers.
    GuestsTakeFromLeases: OPEN => [HOLDS],
    /// `delete_expired` also deletes live events.
    CleanupIgnoresState: REPLAYED => [ONE_PLACE, OWN_ROWS],
    /// `replay` also replays live events.
    ReplayOfLive: REPLAYED => [OWN_ROWS],
    /// Replays take no lock.
    ReplaysNotSerialized: REPLAYED => [OWN_ROWS],
    /// `retry` charges a snooze like a failure.
    SnoozeCharges: ONE_SNOOZED => [SNOOZED],
    /// `retry` does not store how often an event was snoozed.
    SnoozesForgotten: ONE_SNOOZED => [SNOOZED],
}
