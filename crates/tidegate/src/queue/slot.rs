//! Slots of drains, and the events that are left to handle.

use std::time::Duration;

use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{query, sql};
use crate::chain::Chain;
use crate::error::Error;

/// The most events that a drain's report counts as left.
pub const MOST_LEFT: i64 = 10_000;

/// What is left to handle, and which drains are at work.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Left {
    /// Events that a drain could lease now, counted up to the given limit.
    pub ready: u64,
    /// When the next events will be ready, if known; RFC 3339.
    pub next_due_at: Option<String>,
    /// Drains that have a slot.
    pub at_work: u16,
    /// How many of them have no known rate yet.
    pub unrated: u16,
    /// Events that the drains with a known rate end per second, together.
    pub rate: f64,
}

/// A slot that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The number of the slot.
    pub number: i32,
    /// Whether publishers wake drains, so that this one must announce its end.
    pub wakes: bool,
    /// The position in the server's write-ahead log, if the server reports it.
    pub wal: Option<i64>,
}

/// The result of a request for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The drain has this slot.
    Slot(Slot),
    /// All slots are taken.
    None,
    /// All slots are taken, and the drain in one of them has announced that it closes. It may not see events
    /// that are published after that.
    Soon,
    /// Another worker was started as the same hop of the chain.
    Repeated,
}

/// The result of renewing a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Whether the slot still belongs to its drain.
    pub ours: bool,
    /// Whether no drain at work has a lower slot.
    pub first: bool,
}

/// Takes one of the first `most` slots for `timeout`, as a hop of a chain.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn take_slot(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    most: i32,
    timeout: Duration,
    chain: Chain,
) -> Result<Taken, Error> {
    let (seconds, hop) = (timeout.as_secs_f64(), i32::from(chain.hop));
    let values: [&(dyn ToSql + Sync); 5] = [&worker, &most, &seconds, &chain.id, &hop];
    let rows = query(client, &sql::slot::TAKE_SLOT, &values).await?;
    let Some(row) = rows.first() else {
        return Ok(Taken::None);
    };
    Ok(match (row.get(0), row.get(1)) {
        (_, true) => Taken::Repeated,
        (Some(number), false) => Taken::Slot(Slot {
            number,
            wakes: row.get(2),
            wal: row.get(3),
        }),
        (None, false) if row.get(4) => Taken::Soon,
        (None, false) => Taken::None,
    })
}

/// Renews the slot for `timeout` from now, and stores how many events its drain ends per second.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn keep_slot(
    client: &(impl GenericClient + Sync),
    (slot, worker): (i32, Uuid),
    timeout: Duration,
    rate: Option<f64>,
) -> Result<Kept, Error> {
    let seconds = timeout.as_secs_f64();
    let values: [&(dyn ToSql + Sync); 4] = [&slot, &worker, &seconds, &rate];
    let rows = query(client, &sql::slot::KEEP_SLOT, &values).await?;
    Ok(Kept {
        ours: rows.first().is_some_and(|row| row.get(0)),
        first: rows.first().is_some_and(|row| row.get(1)),
    })
}

/// Announces that the drain looks for events one last time before it ends, or that it goes on after all.
/// Returns false if that could not be stored.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn close_slot(
    client: &(impl GenericClient + Sync),
    (slot, worker): (i32, Uuid),
    closing: bool,
) -> Result<bool, Error> {
    let values: [&(dyn ToSql + Sync); 3] = [&slot, &worker, &closing];
    let rows = query(client, &sql::slot::CLOSE_SLOT, &values).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Whether a producer should start a drain after its publish is committed: no drain at work will look again,
/// and no other producer has recently started one. Runs in its own transaction.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn should_wake(client: &(impl GenericClient + Sync)) -> Result<bool, Error> {
    let rows = query(client, &sql::slot::SHOULD_WAKE, &[]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Returns the position in the server's write-ahead log, if the server reports it.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn wal_position(client: &(impl GenericClient + Sync)) -> Result<Option<i64>, Error> {
    let rows = query(client, &sql::slot::WAL_POSITION, &[]).await?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Gives the slot back.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn leave_slot(
    client: &(impl GenericClient + Sync),
    slot: i32,
    worker: Uuid,
) -> Result<(), Error> {
    query(client, &sql::slot::LEAVE_SLOT, &[&slot, &worker])
        .await
        .map(drop)
}

/// Stores the report of a drain that ends, as JSON.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn note_run(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    report: &str,
) -> Result<(), Error> {
    query(client, &sql::slot::NOTE_RUN, &[&worker, &report])
        .await
        .map(drop)
}

/// Returns the events that a drain for these kinds could lease now, up to `most`, when more will be ready,
/// and which drains are at work.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn left_to_do(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
    most: i64,
) -> Result<Left, Error> {
    let rows = query(client, &sql::slot::LEFT_TO_DO, &[&kinds, &most]).await?;
    let count = |count: i32| u16::try_from(count).unwrap_or(u16::MAX);
    Ok(rows.first().map_or_else(Left::default, |row| Left {
        ready: row.get::<_, i64>(0).unsigned_abs(),
        next_due_at: row.get(1),
        at_work: count(row.get(2)),
        unrated: count(row.get(3)),
        rate: row.get(4),
    }))
}
