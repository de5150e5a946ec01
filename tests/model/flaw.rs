//! Flaws of the protocol. Each one removes one guard. If the model does not notice the flaw, it proves
//! nothing.

use crate::promise;
use crate::scenario::Scenario;

/// One guard removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// `publish` does not lock the group before it draws the id.
    NoGroupLock,
    /// The scan of `lease` locks no rows.
    NoRowLocks,
    /// Additionally, the database does not refuse a second lease.
    NoRowLocksNorConstraint,
    /// `lease` inserts what it has scanned, even if another worker has leased it since.
    NoSecondLook,
    /// Additionally, the database does not refuse a second lease.
    NoSecondLookNorConstraint,
    /// `lease` does not check the groups of events written after the walk began.
    YoungNotAsked,
    /// Whether an event is young is decided by the order of ids.
    YoungById,
    /// `lease` does not check the groups of events that it passed.
    PassedNotAsked,
    /// `lease` does not check how far the walk is clear.
    ClearToIgnored,
    /// `lease` does not check groups with events in another worker's lease.
    BusyNotAsked,
    /// `hand_back` marks no strays.
    NoStrayAtGiveBack,
    /// `sweep` marks no strays.
    NoStrayAtLapse,
    /// An event that is delayed from the start is not a stray.
    DelayedIsNoStray,
    /// `lease` does not lock the worker's own leases.
    NoOwnLock,
    /// `lease` locks the worker's own leases in the statement that reads the facts, so it sees a newer
    /// version of them than of everything else.
    LocksBehindTheFacts,
    /// `lease` treats all leases under the worker's name as its own.
    LostCountsAsOurs,
    /// `hand_back` does not remove the later events of the group.
    FollowersStay,
    /// A give-back does not name the lease that is being taken.
    UnderWayNotNamed,
    /// A give-back does not name leases whose answers were lost.
    LostNotNamed,
    /// `complete` reads the lease without a lock.
    NoFence,
    /// `complete` does not check the lease.
    CompleteByIdAlone,
    /// `retry` does not check the lease.
    RetryByIdAlone,
    /// `hand_back` does not check the lease.
    HandBackByIdAlone,
    /// `retry` and `hand_back` remove an event from any lease of the worker.
    GivesBackOutOfAnyLease,
    /// `renew` does not check the token.
    RenewByIdAlone,
    /// `complete` marks a lease as ended while one of its events is in hand.
    OverTooEarly,
    /// `complete` inserts into the log in one statement and deletes from the queue in the next.
    EndInTwoStatements,
    /// The handler's transaction commits by itself, and the end of the event after it.
    EffectApart,
    /// `sweep` breaks the expired leases of a worker, but not its other leases.
    SweepsSingleLeases,
    /// `sweep` takes a worker for dead when one of its leases has expired.
    SweepsAtTheFirst,
    /// `sweep` does not check the time.
    SweepsBeforeTime,
    /// No lease is ever broken.
    NoSweep,
    /// A lapse charges all leased events.
    LapseChargesUnstarted,
    /// A lapse charges no event.
    LapseChargesNothing,
    /// `requeue` charges no event.
    RequeueChargesNothing,
    /// `requeue` charges the named events, but not the later events that leave with them.
    RequeueChargesNoFollower,
    /// `cancel` charges no event.
    CancelChargesNothing,
    /// `cancel` does not notify the worker.
    CancelTellsNobody,
    /// A lapse does not mark the events that may have started.
    LapseLeavesNoMark,
    /// A suspect may start with its lease.
    SuspectStartsWithItsLease,
    /// Events that have lapsed are leased and started like all others.
    SuspectsInCompany,
    /// A suspect is started while another event is running.
    SuspectBesideWindow,
    /// A suspect is started beside another one when its wait is over.
    SuspectBesideSuspect,
    /// An event on its last attempt is started beside a suspect.
    LastBesideSuspect,
    /// A lease that has ended and expired stands for its worker.
    EndedStandsForItsWorker,
    /// A lease has a first window while a suspect is in hand.
    WindowBesideSuspect,
    /// A suspect's lease is named as held, so the later events of its group are leased.
    SuspectsDoNotBar,
    /// Handlers start before the transaction that records their start has committed.
    StartsAhead,
    /// An event that was given back is started if no answer arrived.
    StartsWhatItGaveBack,
    /// A later event of the group of an event that was given back is started if no answer arrived.
    StartsWhatLeftAlong,
    /// `read_leased` does not compare attempts with their limit.
    NoAttemptCheck,
    /// A lease that arrives is used as it was read, even if events have left the worker's hands since.
    NotReadOnArrival,
    /// `start` does not check whether events were taken away from the lease.
    CutsNotAsked,
    /// `delete_expired` also deletes live events.
    CleanupIgnoresState,
    /// `replay` also replays live events.
    ReplayOfLive,
    /// Replays take no lock.
    ReplaysNotSerialized,
    /// `retry` charges a snooze like a failure.
    SnoozeCharges,
    /// `retry` does not store how often an event was snoozed.
    SnoozesForgotten,
}

impl Flaw {
    pub const ALL: [Self; 58] = [
        Self::NoGroupLock,
        Self::NoRowLocks,
        Self::NoRowLocksNorConstraint,
        Self::NoSecondLook,
        Self::NoSecondLookNorConstraint,
        Self::YoungNotAsked,
        Self::YoungById,
        Self::PassedNotAsked,
        Self::ClearToIgnored,
        Self::BusyNotAsked,
        Self::NoStrayAtGiveBack,
        Self::NoStrayAtLapse,
        Self::DelayedIsNoStray,
        Self::NoOwnLock,
        Self::LocksBehindTheFacts,
        Self::LostCountsAsOurs,
        Self::FollowersStay,
        Self::UnderWayNotNamed,
        Self::LostNotNamed,
        Self::NoFence,
        Self::CompleteByIdAlone,
        Self::RetryByIdAlone,
        Self::HandBackByIdAlone,
        Self::GivesBackOutOfAnyLease,
        Self::RenewByIdAlone,
        Self::OverTooEarly,
        Self::EndInTwoStatements,
        Self::EffectApart,
        Self::SweepsSingleLeases,
        Self::SweepsAtTheFirst,
        Self::SweepsBeforeTime,
        Self::NoSweep,
        Self::LapseChargesUnstarted,
        Self::LapseChargesNothing,
        Self::RequeueChargesNothing,
        Self::RequeueChargesNoFollower,
        Self::CancelChargesNothing,
        Self::CancelTellsNobody,
        Self::LapseLeavesNoMark,
        Self::SuspectStartsWithItsLease,
        Self::SuspectsInCompany,
        Self::SuspectBesideWindow,
        Self::SuspectBesideSuspect,
        Self::LastBesideSuspect,
        Self::EndedStandsForItsWorker,
        Self::WindowBesideSuspect,
        Self::SuspectsDoNotBar,
        Self::StartsAhead,
        Self::StartsWhatItGaveBack,
        Self::StartsWhatLeftAlong,
        Self::NoAttemptCheck,
        Self::NotReadOnArrival,
        Self::CutsNotAsked,
        Self::CleanupIgnoresState,
        Self::ReplayOfLive,
        Self::ReplaysNotSerialized,
        Self::SnoozeCharges,
        Self::SnoozesForgotten,
    ];

    /// The scenarios in which the flaw shows, and the promises that it breaks there.
    #[expect(clippy::match_same_arms, reason = "one line for each guard")]
    #[expect(clippy::too_many_lines, reason = "a table")]
    pub fn breaks(self) -> (Scenario, &'static [&'static str]) {
        use promise::{
            ALONE, APART, ATTEMPTS, CLEAR, COUNTED, EFFECT, ENDS, FENCED, GOES_ON, NO_CLASH,
            ONE_HOLDER, ONE_PLACE, ORDER, OWN_ROWS, RUN, SNOOZED, UNCHARGED,
        };
        match self {
            Self::NoGroupLock => (Scenario::GROUP, &[RUN, ORDER]),
            Self::NoRowLocks => (Scenario::MEETING, &[NO_CLASH]),
            Self::NoRowLocksNorConstraint => (Scenario::MEETING, &[ONE_HOLDER]),
            Self::NoSecondLook => (Scenario::MEETING, &[NO_CLASH]),
            Self::NoSecondLookNorConstraint => (Scenario::MEETING, &[ONE_HOLDER]),
            Self::YoungNotAsked => (Scenario::WALK, &[RUN]),
            Self::YoungById => (Scenario::WALK_TOGETHER, &[RUN, CLEAR]),
            Self::PassedNotAsked => (Scenario::WALK_PAUSED, &[RUN]),
            Self::ClearToIgnored => (Scenario::WALK_PAUSED, &[RUN]),
            Self::BusyNotAsked => (Scenario::GROUP, &[RUN, ORDER]),
            Self::NoStrayAtGiveBack => (Scenario::WALK_BACK, &[RUN, CLEAR]),
            Self::NoStrayAtLapse => (Scenario::WALK_BACK, &[RUN, CLEAR]),
            Self::DelayedIsNoStray => (Scenario::WALK_DELAYED, &[RUN, CLEAR]),
            Self::NoOwnLock => (Scenario::APART, &[RUN]),
            Self::LocksBehindTheFacts => (Scenario::APART_BESIDE, &[RUN]),
            Self::LostCountsAsOurs => (Scenario::LOST, &[RUN]),
            Self::FollowersStay => (Scenario::GROUP, &[RUN]),
            Self::UnderWayNotNamed => (Scenario::APART, &[RUN]),
            Self::LostNotNamed => (Scenario::LOST, &[RUN]),
            Self::NoFence => (Scenario::ONE_REQUEUED, &[FENCED]),
            Self::CompleteByIdAlone => (Scenario::ONE_EVENT, &[FENCED]),
            Self::RetryByIdAlone => (Scenario::ONE_EVENT, &[FENCED]),
            Self::HandBackByIdAlone => (Scenario::ONE_EVENT, &[FENCED]),
            Self::GivesBackOutOfAnyLease => (Scenario::MEETING_LOST, &[FENCED]),
            Self::RenewByIdAlone => (Scenario::ONE_EVENT, &[FENCED]),
            Self::OverTooEarly => (Scenario::WALK_RUNS, &[CLEAR]),
            Self::EndInTwoStatements => (Scenario::ONE_EVENT, &[ONE_PLACE]),
            Self::EffectApart => (Scenario::ONE_EVENT, &[EFFECT]),
            Self::SweepsSingleLeases => (Scenario::GROUP, &[RUN]),
            Self::SweepsAtTheFirst => (Scenario::GROUP, &[OWN_ROWS]),
            Self::SweepsBeforeTime => (Scenario::ONE_EVENT, &[OWN_ROWS]),
            Self::NoSweep => (Scenario::ONE_EVENT, &[ENDS]),
            Self::LapseChargesUnstarted => (Scenario::ONE_EVENT, &[UNCHARGED]),
            Self::LapseChargesNothing => (Scenario::ONE_EVENT, &[COUNTED]),
            Self::RequeueChargesNothing => (Scenario::ONE_REQUEUED, &[COUNTED]),
            Self::RequeueChargesNoFollower => (Scenario::REQUEUED, &[COUNTED]),
            Self::CancelChargesNothing => (Scenario::ONE_CANCELLED, &[COUNTED]),
            Self::CancelTellsNobody => (Scenario::CANCELLED, &[COUNTED]),
            Self::LapseLeavesNoMark => (Scenario::SUSPECTS, &[ALONE]),
            Self::SuspectStartsWithItsLease => (Scenario::SUSPECTS, &[ALONE]),
            Self::SuspectsInCompany => (Scenario::SUSPECTS, &[ALONE]),
            Self::SuspectBesideWindow => (Scenario::SUSPECTS, &[ALONE]),
            Self::WindowBesideSuspect => (Scenario::SUSPECTS, &[ALONE]),
            Self::SuspectBesideSuspect => (Scenario::SUSPECTS_THAT_WAIT, &[APART]),
            Self::LastBesideSuspect => (Scenario::SUSPECTS_THAT_WAIT, &[APART]),
            Self::EndedStandsForItsWorker => (Scenario::ENDED, &[OWN_ROWS]),
            Self::SuspectsDoNotBar => (Scenario::SUSPECTS_OF_A_GROUP, &[GOES_ON]),
            Self::StartsAhead => (Scenario::ONE_EVENT, &[COUNTED]),
            Self::StartsWhatItGaveBack => (Scenario::ONE_EVENT, &[COUNTED]),
            Self::StartsWhatLeftAlong => (Scenario::GROUP_UNHEARD, &[COUNTED]),
            Self::NoAttemptCheck => (Scenario::ONE_EVENT, &[ATTEMPTS]),
            Self::NotReadOnArrival => (Scenario::APART, &[COUNTED]),
            Self::CutsNotAsked => (Scenario::REQUEUED, &[COUNTED]),
            Self::CleanupIgnoresState => (Scenario::REPLAYED, &[ONE_PLACE, OWN_ROWS]),
            Self::ReplayOfLive => (Scenario::REPLAYED, &[OWN_ROWS]),
            Self::ReplaysNotSerialized => (Scenario::REPLAYED, &[OWN_ROWS]),
            Self::SnoozeCharges => (Scenario::ONE_SNOOZED, &[SNOOZED]),
            Self::SnoozesForgotten => (Scenario::ONE_SNOOZED, &[SNOOZED]),
        }
    }
}
