//! Slots of drains, and what is left to do.

use std::time::Duration;

use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{query, sql};
use crate::chain::Chain;
use crate::error::Error;

/// A drain's report counts so much of what is left.
pub const MOST_LEFT: i64 = 10_000;

/// What is left to do, and who is at work.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Left {
    /// What a drain could take now, as many as were asked for at most.
    pub ready: u64,
    /// When there will be more next, if that is known; RFC 3339.
    pub next_due_at: Option<String>,
    /// Drains that have a slot.
    pub at_work: u16,
    /// Of them, those of which it is not known yet how fast they are.
    pub unrated: u16,
    /// Events that the others end in a second, together.
    pub rate: f64,
}

/// A slot that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Which one.
    pub number: i32,
    /// Publishers wake drains, and must be told before this one ends.
    pub wakes: bool,
    /// How far the server had written its log ahead, if it tells.
    pub wal: Option<i64>,
}

/// What became of the wish for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is this one.
    Slot(Slot),
    /// All are taken.
    None,
    /// Another worker was started as the same hop of the chain.
    Repeated,
}

/// What became of a slot that was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// It still is its drain's.
    pub ours: bool,
    /// No drain at work has a lower one.
    pub first: bool,
}

/// Takes one of the first `most` slots for so long, as a hop of a chain.
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
        (None, false) => Taken::None,
    })
}

/// Keeps the slot for so long from now, and tells how many events its drain ends in a second.
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

/// Tells that the drain looks a last time before it ends, or that it has found something after all. False: that is not known.
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

/// Whether who has just published, and committed that, should start a drain: none is at work that will still look, and nobody
/// else has been told so of late. In a transaction of its own.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn should_wake(client: &(impl GenericClient + Sync)) -> Result<bool, Error> {
    let rows = query(client, &sql::slot::SHOULD_WAKE, &[]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// How far the server has written its log ahead, if it tells.
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

/// Notes a drain that ends, with its report as JSON.
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

/// What a drain for these kinds could take now, up to `most`, when there will be more, and who is at work.
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
