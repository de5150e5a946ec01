//! Ways to get the protocol wrong: each takes one guard away. A model that does not notice is no proof.

use crate::promise;
use crate::scenario::Scenario;

/// One guard removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// `publish` does not lock the group before it draws the id.
    NoGroupLock,
    /// The scan of `lease` locks no rows.
    NoRowLocks,
    /// Nor does the database refuse a second lease.
    NoRowLocksNorConstraint,
    /// `lease` inserts what it has scanned, whatever was leased since.
    NoSecondLook,
    /// Nor does the database refuse a second lease.
    NoSecondLookNorConstraint,
    /// `lease` does not ask for groups of what was written after the walk began.
    YoungNotAsked,
    /// What is young goes by the order of ids.
    YoungById,
    /// `lease` does not ask for groups of what it has passed.
    PassedNotAsked,
    /// `lease` does not ask how far the walk is clear.
    ClearToIgnored,
    /// `lease` does not ask for groups that another's lease has events of.
    BusyNotAsked,
    /// `hand_back` marks no strays.
    NoStrayAtGiveBack,
    /// `sweep` marks no strays.
    NoStrayAtLapse,
    /// What is delayed from birth is no stray.
    DelayedIsNoStray,
    /// `lease` does not lock the worker's own leases.
    NoOwnLock,
    /// `lease` locks the worker's own leases in the statement that reads the facts, and so sees a newer version of
    /// them than of everything else.
    LocksBehindTheFacts,
    /// `lease` takes all leases under the worker's name for its own.
    LostCountsAsOurs,
    /// `hand_back` leaves what stands behind where it is.
    FollowersStay,
    /// A give-back does not name the lease under way.
    UnderWayNotNamed,
    /// A give-back does not name leases whose answers were lost.
    LostNotNamed,
    /// `complete` reads the lease without a lock.
    NoFence,
    /// `complete` does not look at the lease.
    CompleteByIdAlone,
    /// `retry` does not look at the lease.
    RetryByIdAlone,
    /// `hand_back` does not look at the lease.
    HandBackByIdAlone,
    /// `retry` and `hand_back` take an event out of whichever lease of the worker has it.
    GivesBackOutOfAnyLease,
    /// `renew` does not look at the token.
    RenewByIdAlone,
    /// `complete` says that a lease is over while something of it is in hand.
    OverTooEarly,
    /// `complete` inserts into the log in one statement and deletes from the queue in the next.
    EndInTwoStatements,
    /// The handler's transaction commits by itself, and its end after it.
    EffectApart,
    /// `sweep` breaks the leases that have expired, and leaves the worker's others.
    SweepsSingleLeases,
    /// `sweep` does not look at the time.
    SweepsBeforeTime,
    /// Nobody breaks leases.
    NoSweep,
    /// A lapse charges everything that was leased.
    LapseChargesUnstarted,
    /// A lapse charges nothing.
    LapseChargesNothing,
    /// `requeue` charges nothing.
    RequeueChargesNothing,
    /// `requeue` charges what it names and not what leaves with it.
    RequeueChargesNoFollower,
    /// `cancel` charges nothing.
    CancelChargesNothing,
    /// `cancel` does not tell the worker.
    CancelTellsNobody,
    /// A lapse leaves no mark on what may have started.
    LapseLeavesNoMark,
    /// A suspect may start with its lease.
    SuspectStartsWithItsLease,
    /// What has lapsed is leased and started like everything else.
    SuspectsInCompany,
    /// A suspect is started while something else is between start and end.
    SuspectBesideWindow,
    /// A lease has a first window while a suspect is in hand.
    WindowBesideSuspect,
    /// A suspect's lease is named as held: what stands behind it in its group is leased.
    SuspectsDoNotBar,
    /// Handlers start before the transaction has committed that says so.
    StartsAhead,
    /// What was given back is started when no answer came.
    StartsWhatItGaveBack,
    /// What stands behind something that was given back is started when no answer came.
    StartsWhatLeftAlong,
    /// `read_leased` does not compare attempts with their limit.
    NoAttemptCheck,
    /// A lease that arrives is taken as it was read, whatever has left the worker's hands since.
    NotReadOnArrival,
    /// `start` does not ask whether something was taken from the lease.
    CutsNotAsked,
    /// `delete_expired` takes live events as well.
    CleanupIgnoresState,
    /// `replay` takes events that are still live.
    ReplayOfLive,
    /// `replay` has no lock.
    ReplaysNotSerialized,
    /// `release_waiting` does not look at the last event of a set.
    LastMemberNotAsked,
    /// What is replayed is not waited for.
    ReplayNotAwaited,
    /// Nor does it matter where the replay stands.
    ReplayAwaitedBehind,
}

impl Flaw {
    pub const ALL: [Self; 55] = [
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
        Self::LastMemberNotAsked,
        Self::ReplayNotAwaited,
        Self::ReplayAwaitedBehind,
    ];

    /// Where it shows, and promises it breaks there.
    #[expect(
        clippy::match_same_arms,
        clippy::too_many_lines,
        reason = "one line for each guard"
    )]
    pub fn breaks(self) -> (Scenario, &'static [&'static str]) {
        use promise::{
            ALONE, ATTEMPTS, CLEAR, COUNTED, EFFECT, ENDS, FENCED, GOES_ON, NO_CLASH, ONE_HOLDER,
            ONE_PLACE, ORDER, OWN_ROWS, RUN, UNCHARGED, WAITS,
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
            Self::LastMemberNotAsked => (Scenario::FAN_IN_OF_TWO, &[WAITS]),
            Self::ReplayNotAwaited => (Scenario::FAN_IN, &[WAITS]),
            Self::ReplayAwaitedBehind => (Scenario::FAN_IN_GROUP, &[ENDS]),
        }
    }
}
