//! Slots of drains, and the events that are left to handle.

use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::statement::statements;
use super::{Queryable, document, execute, first, query};
use crate::chain::Chain;
use crate::error::Result;

/// The most events that a drain's report counts as left.
pub const MOST_LEFT: i64 = 10_000;

statements! {
    /// Takes one of the first `$2` slots for `$3` seconds, as hop `$5` of chain `$4`; `$6` says
    /// where the worker runs. Takes none if there is nothing to do for the kinds `$7`.
    TAKE_SLOT: "take_slot" [UUID, INT4, FLOAT8, UUID, INT4, TEXT, TEXT_ARRAY] =
        "SELECT t.slot, t.repeated, t.wakes, @tidegate.wal_position(), t.idle FROM @tidegate.take_slot($1, $2, $3, $4, $5, $6, $7) AS t";

    /// Keeps a slot for another `$3` seconds. In the lowest one, counts ready events of the kinds `$4`, up to
    /// `$5`.
    KEEP_SLOT: "keep_slot" [INT4, UUID, FLOAT8, TEXT_ARRAY, INT8] = "\
SELECT jsonb_build_object('ours', k.ours, 'ready', coalesce(k.ready, 0), 'at_work', k.at_work)::text
  FROM @tidegate.keep_slot($1, $2, $3, $4, $5) AS k";

    SHOULD_WAKE: "should_wake" [] = "SELECT @tidegate.should_wake()";

    LEAVE_SLOT: "leave_slot" [INT4, UUID] = "SELECT @tidegate.leave_slot($1, $2)";

    NOTE_RUN: "note_run" [UUID, TEXT] = "SELECT @tidegate.note_run($1, $2::json)";

    /// A next time that has passed counts as now.
    LEFT_TO_DO: "left_to_do" [TEXT_ARRAY, INT8] = "\
SELECT jsonb_build_object('ready', l.ready, 'next_due_at', CASE WHEN l.next_due_at < 'infinity' THEN
               to_char(greatest(l.next_due_at, clock_timestamp()) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') END,
           'at_work', l.at_work)::text
  FROM @tidegate.left_to_do($1, $2) AS l";

    WAL_POSITION: "wal_position" [] = "SELECT @tidegate.wal_position()";
}

/// What is left to handle, and which drains are at work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct LeftToDo {
    /// Events that a drain could lease now, counted up to the given limit.
    pub ready: u64,
    /// When the next events will be ready, if known; RFC 3339.
    pub next_due_at: Option<String>,
    /// Drains that have a slot.
    pub at_work: u16,
}

/// A slot that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The number of the slot.
    pub number: i32,
    /// Whether publishers wake drains, so that this one looks a last time after it has left the slot.
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
    /// There is nothing to do.
    Idle,
    /// Another worker was started as the same hop of the chain.
    Repeated,
}

/// The result of renewing a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Kept {
    /// Whether the slot still belongs to its drain.
    pub ours: bool,
    /// Events that a drain could lease now, as far as they were counted.
    pub ready: u64,
    /// Drains at work, if they were counted.
    pub at_work: Option<u16>,
}

/// Takes one of the first `most` slots for `timeout`, as a hop of a chain. `name` says where the worker runs.
/// With `kinds`, it takes none if there is nothing to do for a drain of these.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn take_slot(
    client: &impl Queryable,
    worker: Uuid,
    name: &str,
    most: i32,
    timeout: Duration,
    chain: Chain,
    kinds: Option<&[&str]>,
) -> Result<Taken> {
    let (seconds, hop) = (timeout.as_secs_f64(), i32::from(chain.hop));
    let values: [&(dyn ToSql + Sync); 7] =
        [&worker, &most, &seconds, &chain.id, &hop, &name, &kinds];
    let rows = query(client, &TAKE_SLOT, &values).await?;
    let Some(row) = rows.first() else {
        return Ok(Taken::None);
    };
    Ok(match (row.get(0), row.get(1)) {
        _ if row.get(4) => Taken::Idle,
        (_, true) => Taken::Repeated,
        (Some(number), false) => Taken::Slot(Slot {
            number,
            wakes: row.get(2),
            wal: row.get(3),
        }),
        (None, false) => Taken::None,
    })
}

/// Renews the slot for `timeout` from now. If its drain has the lowest slot, and unless `most` is 0, counts
/// the events that a drain of these kinds could lease now, up to `most`, and the drains at work.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn keep_slot(
    client: &impl Queryable,
    worker: Uuid,
    timeout: Duration,
    slot: i32,
    kinds: &[&str],
    most: u64,
) -> Result<Kept> {
    let (seconds, most) = (
        timeout.as_secs_f64(),
        i64::try_from(most).unwrap_or(i64::MAX),
    );
    let values: [&(dyn ToSql + Sync); 5] = [&slot, &worker, &seconds, &kinds, &most];
    let kept = document(client, &KEEP_SLOT, &values).await?;
    Ok(kept.unwrap_or_default())
}

/// Whether a producer should start a drain after its publish is committed: no drain at work will look again,
/// and no other producer has recently started one. Runs in its own transaction.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn should_wake(client: &impl Queryable) -> Result<bool> {
    Ok(first(client, &SHOULD_WAKE, &[]).await?.unwrap_or_default())
}

/// Returns the position in the server's write-ahead log, if the server reports it.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn wal_position(client: &impl Queryable) -> Result<Option<i64>> {
    Ok(first(client, &WAL_POSITION, &[]).await?.flatten())
}

/// Gives the slot back.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn leave_slot(client: &impl Queryable, slot: i32, worker: Uuid) -> Result<()> {
    execute(client, &LEAVE_SLOT, &[&slot, &worker]).await
}

/// Stores the report of a drain that ends, as JSON.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn note_run(client: &impl Queryable, worker: Uuid, report: &str) -> Result<()> {
    execute(client, &NOTE_RUN, &[&worker, &report]).await
}

/// Returns the events that a drain for these kinds could lease now, up to `most`, when more will be ready,
/// and which drains are at work.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn left_to_do(client: &impl Queryable, kinds: &[&str], most: i64) -> Result<LeftToDo> {
    let left = document(client, &LEFT_TO_DO, &[&kinds, &most]).await?;
    Ok(left.unwrap_or_default())
}
