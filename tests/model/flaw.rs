//! Ways to get the protocol wrong: each takes one guard away. A model that does not notice is no proof.

use crate::promise;
use crate::protocol::Scenario;

/// One guard removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// FINALIZE, RETRY and RELEASE find their row by its id alone.
    NoTokenCheck,
    /// RENEW finds its row by its id alone.
    RenewWithoutToken,
    /// LEASE neither locks the rows that it chooses nor looks at them again when it updates them.
    NoOuterRecheck,
    /// LEASE has no `cut`.
    NoGroupCut,
    /// `publish` does not lock the group before it draws the id.
    NoGroupLock,
    /// LEASE does not compare attempts with their limit.
    NoAttemptCheck,
    /// Nobody ends events that were abandoned on their last attempt.
    NoSweep,
    /// `sweep_events` does not look at the lease.
    SweepIgnoresLease,
    /// `delete_expired` takes live events as well.
    CleanupIgnoresState,
    /// RELEASE keeps the attempt counted.
    ReleaseCounts,
    /// What has started is released like what has not.
    ReleaseOfStarted,
    /// FINALIZE inserts into the log in one statement and deletes from the queue in the next.
    FinalizeInTwoStatements,
    /// The handler's transaction commits by itself, and its end after it.
    EffectApart,
    /// `end_leases` leaves the token where it is.
    RequeueKeepsToken,
    /// `end_by_operator` takes the lease's token to the log.
    CancelKeepsToken,
    /// `replay` takes events that are still live.
    ReplayOfLive,
    /// `replay` has no `lock_replays`.
    ReplaysNotSerialized,
    /// A walk knows the way of what was committed after it began.
    KnowsTheUncommitted,
    /// A walk knows the way of each event whose id was drawn before it began.
    GoesByIds,
    /// A walk does not look whether what is in hand is still its worker's.
    TrustsItsHands,
    /// A walk does not remember the groups of what it has left behind.
    ForgetsWhatItMet,
    /// A walk does not remember the groups of what has gone back.
    ForgetsWhatWentBack,
    /// A walk that leaps knows the way over which it has leapt.
    KnowsWhatItLeapsOver,
}

impl Flaw {
    pub const ALL: [Self; 23] = [
        Self::NoTokenCheck,
        Self::RenewWithoutToken,
        Self::NoOuterRecheck,
        Self::NoGroupCut,
        Self::NoGroupLock,
        Self::NoAttemptCheck,
        Self::NoSweep,
        Self::SweepIgnoresLease,
        Self::CleanupIgnoresState,
        Self::ReleaseCounts,
        Self::ReleaseOfStarted,
        Self::FinalizeInTwoStatements,
        Self::EffectApart,
        Self::RequeueKeepsToken,
        Self::CancelKeepsToken,
        Self::ReplayOfLive,
        Self::ReplaysNotSerialized,
        Self::KnowsTheUncommitted,
        Self::GoesByIds,
        Self::TrustsItsHands,
        Self::ForgetsWhatItMet,
        Self::ForgetsWhatWentBack,
        Self::KnowsWhatItLeapsOver,
    ];

    /// Where it shows, and promises it breaks there.
    #[expect(clippy::match_same_arms, reason = "one line for each guard")]
    pub fn breaks(self) -> (Scenario, &'static [&'static str]) {
        use promise::{
            ATTEMPTS, COUNTED, CREDIT, EFFECT, ENDS, FENCED, ONE_HOLDER, ONE_PLACE, ORDER, OWN_ROWS,
        };
        let (one, group) = (Scenario::ONE_EVENT, Scenario::GROUP);
        match self {
            Self::NoTokenCheck => (one, &[FENCED, CREDIT]),
            Self::RenewWithoutToken => (one, &[FENCED]),
            Self::NoOuterRecheck => (one, &[ONE_HOLDER]),
            Self::NoGroupCut => (group, &[ORDER]),
            Self::NoGroupLock => (group, &[ORDER]),
            Self::NoAttemptCheck => (one, &[ATTEMPTS]),
            Self::NoSweep => (one, &[ENDS]),
            Self::SweepIgnoresLease => (one, &[OWN_ROWS]),
            Self::CleanupIgnoresState => (one, &[ONE_PLACE, OWN_ROWS]),
            Self::ReleaseCounts => (one, &[COUNTED]),
            Self::ReleaseOfStarted => (one, &[ATTEMPTS]),
            Self::FinalizeInTwoStatements => (one, &[ONE_PLACE]),
            Self::EffectApart => (one, &[EFFECT]),
            Self::RequeueKeepsToken => (one, &[FENCED]),
            Self::CancelKeepsToken => (one, &[CREDIT]),
            Self::ReplayOfLive => (Scenario::REPLAYED, &[OWN_ROWS]),
            Self::ReplaysNotSerialized => (Scenario::REPLAYED, &[OWN_ROWS]),
            Self::KnowsTheUncommitted => (Scenario::WALK_PAST, &[ORDER]),
            Self::GoesByIds => (Scenario::WALK_PAST_BOTH, &[ORDER]),
            Self::TrustsItsHands => (Scenario::WALK, &[ORDER]),
            Self::ForgetsWhatItMet => (Scenario::WALK_PAST, &[ORDER]),
            Self::ForgetsWhatWentBack => (Scenario::WALK, &[ORDER]),
            Self::KnowsWhatItLeapsOver => (Scenario::WALK_PAST, &[ORDER]),
        }
    }
}
