//! Owns the leased row: an event under a lease, and the right to end it. What a program sees of the event is
//! in [`event`](crate::event), and in the `Context` of the crate `tidegate`.

use std::hash::{Hash, Hasher};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use uuid::Uuid;

use crate::progress::Progress;

/// The right to finish one event: its id and the token of its lease. A worker with a stale lease changes
/// nothing (invariant I5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Lease {
    /// The event's id.
    pub id: i64,
    /// Random, one for each lease statement.
    pub token: Uuid,
}

// Ids are nearly always enough to distinguish leases, and the drain hashes a lease several times for each
// event.
impl Hash for Lease {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// What is to be done with a row, decided when it was leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseDecision {
    /// Run its handlers. Its attempt is counted.
    Run,
    /// End it without running it, because its deadline has passed (B13). No attempt is counted.
    Expired,
    /// End it, because its last permitted attempt was abandoned. No attempt is counted.
    Abandoned,
    /// End it, because it has had as many attempts as it may have by now. No attempt is counted.
    Exhausted,
}

/// A leased row.
#[derive(Debug, Clone)]
pub struct LeasedEvent {
    /// The id and the token.
    pub lease: Lease,
    /// Decided by the database, from the attempts, the deadline and the workers that went away.
    pub fate: LeaseDecision,
    /// The stored kind, which this program may not know.
    pub kind: String,
    /// The stored payload, JSON text.
    pub payload: Option<Vec<u8>>,
    /// The event's group.
    pub group_key: Option<String>,
    /// The id of its business object.
    pub correlation_id: Option<String>,
    /// The number of attempts, including this one (C7).
    pub attempts: u32,
    /// The number of attempts before the event fails.
    pub max_attempts: u32,
    /// When it was published, by the database's clock.
    pub created_at: SystemTime,
    /// The start-before deadline, by the database's clock.
    pub expires_at: Option<SystemTime>,
    /// What earlier attempts have already done.
    pub progress: Option<Progress>,
    /// The W3C trace context under which it was published.
    pub traceparent: Option<String>,
    /// Whether it is a replay of an event that has ended.
    pub is_replay: bool,
    /// The time from the lease to the deadline, by the database's clock.
    pub expires_in: Option<Duration>,
    /// Whether it is in a group and had its first error longer ago than `TIDEGATE_MAX_GROUP_DELAY`. Nobody
    /// waits longer for a program that can read it.
    pub is_overdue: bool,
}

impl LeasedEvent {
    /// Whether this is its last attempt: being charged for it would be its end.
    pub fn is_last(&self) -> bool {
        self.fate == LeaseDecision::Run && self.attempts >= self.max_attempts
    }

    /// Creates a first attempt of an event without a payload, for tests. No lease in the database stands
    /// behind it.
    pub fn sample(id: i64, group: Option<&str>) -> Self {
        Self {
            lease: Lease {
                id,
                token: Uuid::nil(),
            },
            fate: LeaseDecision::Run,
            kind: "sample".to_owned(),
            payload: None,
            group_key: group.map(ToOwned::to_owned),
            correlation_id: None,
            attempts: 1,
            max_attempts: 5,
            created_at: SystemTime::UNIX_EPOCH,
            expires_at: None,
            progress: None,
            traceparent: None,
            is_replay: false,
            expires_in: None,
            is_overdue: false,
        }
    }
}
