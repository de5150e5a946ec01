//! Slots of drains, and what is left to do.

use std::time::Duration;

use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::{query, sql};
use crate::error::Error;

/// So much of what is left is counted.
pub const MOST_LEFT: i64 = 10_000;

/// What is left to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// What a drain could take now, [`MOST_LEFT`] at most.
    pub ready: u64,
    /// When there will be more next, if that is known; RFC 3339.
    pub next_due_at: Option<String>,
}

/// Takes one of the first `most` slots for so long; `None`: all are taken.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn take_slot(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    most: i32,
    timeout: Duration,
) -> Result<Option<i32>, Error> {
    let seconds = timeout.as_secs_f64();
    let rows = query(client, &sql::slot::TAKE_SLOT, &[&worker, &most, &seconds]).await?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Keeps the slot for so long from now, and tells how many events its drain ends in a second. Whether it still is its drain's.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn keep_slot(
    client: &(impl GenericClient + Sync),
    (slot, worker): (i32, Uuid),
    timeout: Duration,
    rate: Option<f64>,
) -> Result<bool, Error> {
    let seconds = timeout.as_secs_f64();
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&slot, &worker, &seconds, &rate];
    let rows = query(client, &sql::slot::KEEP_SLOT, &values).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
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

/// What a drain for these kinds could take now, and when there will be more.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn left_to_do(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
) -> Result<Left, Error> {
    let rows = query(client, &sql::slot::LEFT_TO_DO, &[&kinds, &MOST_LEFT]).await?;
    Ok(rows.first().map_or_else(Left::default, |row| Left {
        ready: row.get::<_, i64>(0).unsigned_abs(),
        next_due_at: row.get(1),
    }))
}
