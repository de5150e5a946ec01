//! Owns the row in hand: an event under a lease, and the right to end it. What the program itself sees of it is
//! [`crate::event`] and [`crate::context`].

use std::time::SystemTime;

use uuid::Uuid;

use crate::outcome::Progress;

/// The right to finish one event: its id and the token of the lease it was taken under. Whoever
/// holds a stale one changes nothing (invariant I5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// The event's id.
    pub id: i64,
    /// Random, one for each lease statement.
    pub token: Uuid,
}

/// What the queue says of a row at the moment it was leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// To be handled; its attempt is counted.
    Run,
    /// Its deadline had passed (B13): to be ended unhandled, no attempt counted.
    Expired,
    /// Its last permitted attempt was abandoned: to be ended, no attempt counted.
    Abandoned,
}

/// A row in hand.
#[derive(Debug, Clone)]
pub struct LeasedEvent {
    /// Id and token.
    pub lease: Lease,
    /// Whether to run it or to end it.
    pub fate: Fate,
    /// Stored kind; not necessarily one this program knows.
    pub kind: String,
    /// Stored payload, JSON text.
    pub payload: Option<Vec<u8>>,
    /// Order group.
    pub group_key: Option<String>,
    /// Business object.
    pub correlation_id: Option<String>,
    /// Attempts including this one (C7).
    pub attempts: u32,
    /// Attempts after which it is given up.
    pub max_attempts: u32,
    /// When it was published, database clock.
    pub created_at: SystemTime,
    /// Start-before deadline, database clock.
    pub expires_at: Option<SystemTime>,
    /// What earlier attempts have already done.
    pub progress: Option<Progress>,
    /// The W3C trace context it was published under.
    pub traceparent: Option<String>,
    /// It is a replay of an event that has ended.
    pub is_replay: bool,
}

#[cfg(test)]
impl LeasedEvent {
    /// A first attempt, without a payload.
    pub(crate) fn sample(id: i64, group: Option<&str>) -> Self {
        Self {
            lease: Lease {
                id,
                token: Uuid::nil(),
            },
            fate: Fate::Run,
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
        }
    }
}
